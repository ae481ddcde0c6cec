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
    ByteRange, DiskId, FileId, IfExists, LeaseKind, Medium, Mode, OpenId, SetAttributes, Written,
};
use larder_wire::xdr::Array;

use crate::client::{Client, GoodDisks, dentry, engine, serve_metadata};

/// An engine that counts the commits that are durable when they return, and the others.
struct Counting {
    engine: Arc<dyn Engine>,
    durable: AtomicU64,
    late: AtomicU64,
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

    fn boot(&self) -> Option<Vec<u8>> {
        self.engine.boot()
    }
}

/// Makes a file, which gets blocks with its open, commits them, and closes it. Returns its number.
async fn make(client: &Client, first: u32, name: &str, medium: Medium) -> FileId {
    let create = calls::Create {
        dentry: dentry(FileId::ROOT, name),
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
    let committed = client.call(calls::CommitExtents {
        sequence: client.sequence(0, first + 1),
        file,
        open: OpenId::NONE,
        written: Array(vec![Written { offset: 0, length: BLOCK_BYTES, disk, position }]),
        copies: Array(vec![disk]),
        merged: Array::default(),
        mtime: None,
        all: true,
        on_way: false,
        due_ms: None,
        archive_ms: None,
    });
    committed.await.unwrap();
    let close = calls::Close { sequence: client.sequence(0, first + 2), open: opened.open };
    client.call(close).await.unwrap();
    file
}

/// Nobody waits for a sync while volatile files are made, written, closed and removed, one after
/// the other; each change of another file waits for one.
#[tokio::test(flavor = "multi_thread")]
async fn volatile_files_wait_for_no_sync() {
    const FILES: u32 = 20;
    let dir = tempfile::tempdir().unwrap();
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
    let (durable, late) =
        (|| engine.durable.load(Ordering::SeqCst), || engine.late.load(Ordering::SeqCst));
    let before = durable();
    for number in 0..FILES {
        make(&client, number * 4 + 1, &format!("v{number}"), Medium::Memory(1)).await;
    }
    for number in 0..FILES {
        let sequence = client.sequence(0, FILES * 4 + number + 1);
        let dentry = dentry(FileId::ROOT, &format!("v{number}"));
        client.call(calls::Remove { sequence, dentry }).await.unwrap();
    }
    assert_eq!(durable() - before, 0);
    assert!(late() >= u64::from(FILES) * 3, "{}", late());
    make(&client, 1000, "durable", Medium::Disk).await;
    assert!(durable() - before >= 2);
}
