//! A metadata server whose engine counts for what its callers wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_io::{Disk, RealClock, RealDisk};
use larder_meta::engine::{Engine, EngineError, Owner, View, Writes};
use larder_meta::volume::{self, Joining, NewDisk};
use larder_meta::{Metadata, Options};
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::calls;
use larder_wire::meta::words::{
    ByteRange, DiskId, FileId, IfExists, LeaseKind, Medium, Mode, OpenId, SetAttributes, SetTime,
    Time, Written,
};
use larder_wire::xdr::Array;

use crate::client::{Client, GoodDisks, dentry, engine, serve_metadata};
use crate::commits::commit;

/// An engine that counts the commits that are durable when they return, and the others.
pub(crate) struct Counting {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) durable: AtomicU64,
    pub(crate) late: AtomicU64,
}

impl Engine for Counting {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        self.engine.view()
    }

    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        self.durable.fetch_add(1, Ordering::SeqCst);
        self.engine.commit(writes, owner)
    }

    fn commit_late(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        self.late.fetch_add(1, Ordering::SeqCst);
        self.engine.commit_late(writes, owner)
    }

    fn sync(&self) -> Result<(), EngineError> {
        self.engine.sync()
    }

    fn boot(&self) -> Result<Option<Vec<u8>>, EngineError> {
        self.engine.boot()
    }
}

impl Counting {
    fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    fn late(&self) -> u64 {
        self.late.load(Ordering::SeqCst)
    }
}

/// A server with a memory disk in a new directory, and a client.
async fn serve(dir: &tempfile::TempDir) -> (Arc<Counting>, Client) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
    let engine: Arc<dyn Engine> = Arc::new(engine(&disk));
    let (durable, late) = Default::default();
    let engine = Arc::new(Counting { engine, durable, late });
    let new = NewDisk {
        id: [3; 16],
        address: "nowhere:2".into(),
        bytes: 1024 * BLOCK_BYTES,
        is_memory: true,
    };
    let memory = volume::enrol(&*engine, &new, Joining::Anywhere).unwrap();
    assert_eq!(memory, DiskId(2));
    let owned = volume::take(&*engine).unwrap();
    let own = Arc::clone(&engine) as Arc<dyn Engine>;
    let (disks, clock) = (Arc::new(GoodDisks::default()), Arc::new(RealClock));
    let metadata = Metadata::start(own, owned, disks, clock, Options::default()).unwrap();
    let client = Client::connect(serve_metadata(metadata).await, 1, 1).await;
    (engine, client)
}

/// Makes a file, which gets blocks with its open, commits them, and closes it. Returns its number.
pub(crate) async fn make(
    client: &Client,
    first: u32,
    at: (FileId, &str),
    medium: Medium,
) -> FileId {
    let create = calls::Create {
        dentry: dentry(at.0, at.1),
        set: SetAttributes::default(),
        if_exists: IfExists::Fail,
    };
    let opened = client.call(calls::Open {
        sequence: client.sequence(0, first),
        what: calls::OpenWhat::Create(create),
        mode: Mode::Write,
        lease: LeaseKind::None,
        range: ByteRange { offset: 0, length: BLOCK_BYTES },
        allocate: Some(medium),
    });
    let opened = opened.await.unwrap();
    let (file, extent) = (opened.file.after.file, opened.layout.extents.0[0]);
    let (disk, position) = (extent.disk, extent.position);
    let written = Written { offset: 0, length: BLOCK_BYTES, disk, position };
    client.call(commit(client.sequence(0, first + 1), file, vec![written])).await.unwrap();
    let close =
        calls::Close { sequence: client.sequence(0, first + 2), opens: Array(vec![opened.open]) };
    client.call(close).await.unwrap();
    file
}

/// Nobody waits for a sync while volatile files are made, written, closed and removed, one after
/// the other; each change of another file waits for one.
#[tokio::test(flavor = "multi_thread")]
async fn volatile_files_wait_for_no_sync() {
    const FILES: u32 = 20;
    let dir = tempfile::tempdir().unwrap();
    let (engine, client) = serve(&dir).await;
    let before = engine.durable();
    for number in 0..FILES {
        let at = (FileId::ROOT, &*format!("v{number}"));
        make(&client, number * 4 + 1, at, Medium::Memory(1)).await;
    }
    for number in 0..FILES {
        let sequence = client.sequence(0, FILES * 4 + number + 1);
        let dentry = dentry(FileId::ROOT, &format!("v{number}"));
        client.call(calls::Remove { sequence, dentry }).await.unwrap();
    }
    assert_eq!(engine.durable() - before, 0);
    assert!(engine.late() >= u64::from(FILES) * 3, "{}", engine.late());
    make(&client, 1000, (FileId::ROOT, "durable"), Medium::Disk).await;
    assert!(engine.durable() - before >= 2);
}

/// An archive is unpacked and removed again: directories in directories, files and symbolic links
/// with their modes and times, the times of directories last. Nobody waits for a sync, until a
/// durable file is made in one of the directories.
#[tokio::test(flavor = "multi_thread")]
async fn a_volatile_tree_waits_for_no_sync() {
    const DIRS: u32 = 6;
    const FILES: u32 = 5;
    let medium = Medium::Memory(1);
    let folder = tempfile::tempdir().unwrap();
    let (engine, client) = serve(&folder).await;
    let mut number = 0;
    let mut next = || {
        number += 4;
        number
    };
    let made = async |sequence, at: (FileId, &str), what| {
        let (sequence, dentry) = (client.sequence(0, sequence), dentry(at.0, at.1));
        let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let call = calls::Make { sequence, dentry, what, set, medium };
        client.call(call).await.unwrap().made.file
    };
    let described = async |sequence, file| {
        let time = SetTime::To(Time { seconds: 1_000_000, nanoseconds: 0 });
        let set = SetAttributes {
            mode: Some(0o700),
            atime: time,
            mtime: time,
            ..SetAttributes::default()
        };
        let (sequence, open) = (client.sequence(0, sequence), OpenId::NONE);
        client.call(calls::SetAttr { sequence, file, open, set, guard: None }).await.unwrap();
    };
    let before = engine.durable();
    let (mut above, mut dirs) = (FileId::ROOT, Vec::new());
    for _ in 0..DIRS {
        let dir = made(next(), (above, "dir"), calls::MakeWhat::Directory).await;
        for at in 0..FILES {
            let file = make(&client, next(), (dir, &format!("file{at}")), medium).await;
            described(next(), file).await;
        }
        let link = made(next(), (dir, "link"), calls::MakeWhat::Symlink("file0".into())).await;
        described(next(), link).await;
        dirs.push((above, dir));
        above = dir;
    }
    for (_, dir) in &dirs {
        described(next(), *dir).await;
    }
    for (above, dir) in dirs.into_iter().rev() {
        let names = (0..FILES).map(|at| format!("file{at}")).chain(["link".to_owned()]);
        for name in names {
            let sequence = client.sequence(0, next());
            client.call(calls::Remove { sequence, dentry: dentry(dir, &name) }).await.unwrap();
        }
        let sequence = client.sequence(0, next());
        client.call(calls::RmDir { sequence, dentry: dentry(above, "dir") }).await.unwrap();
    }
    assert_eq!(engine.durable() - before, 0);
    // A close changes nothing.
    let calls = u64::from(DIRS * (FILES * 4 + 6));
    assert!(engine.late() >= calls, "{} of {calls}", engine.late());
    let dir = made(next(), (FileId::ROOT, "dir"), calls::MakeWhat::Directory).await;
    assert_eq!(engine.durable() - before, 0);
    make(&client, next(), (dir, "durable"), Medium::Disk).await;
    let durable = engine.durable();
    assert!(durable - before >= 2);
    described(next(), dir).await;
    assert!(engine.durable() > durable, "the directory has a durable file");
}
