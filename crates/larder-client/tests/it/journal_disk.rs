//! The cache's disk fails or fills up on a mount that is the only writer of names: whatever a close
//! or an fsync acknowledged gets to the server, names and bytes, whether the process or the machine
//! dies then; what cannot be promised is refused; and work goes on when the disk has room again.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use larder_client::Start;
use larder_io::{Disk, Fault, Image};
use larder_vfs::{Error, FileSystem, Ino, Lookup, OpenFlags, Remote, Result, SetAttr};

use crate::kept::generated;
use crate::rig::{Rig, WRITE, pattern, root};

/// What happens to the disk.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The operation with this number fails (EIO).
    Once(u64),
    /// All operations from this number on fail (EIO).
    From(u64),
    /// This many bytes are left (ENOSPC).
    Left(u64),
}

/// The files of which it is certain what the next process has to find; `None`: no file. Those that
/// are missing were refused something, or changed without a close.
#[derive(Default)]
struct Told {
    certain: BTreeMap<&'static str, Option<Vec<u8>>>,
    refused: Vec<Error>,
}

impl Told {
    fn hear(&mut self, names: &[(&'static str, Option<Vec<u8>>)], answer: Result<()>) {
        for (name, content) in names {
            match answer {
                Ok(()) => drop(self.certain.insert(*name, content.clone())),
                Err(_) => drop(self.certain.remove(name)),
            }
        }
        self.refused.extend(answer.err());
    }
}

async fn put(rig: &Rig, name: &str, bytes: &[u8]) -> Result<()> {
    let flags = OpenFlags { truncate: true, ..WRITE };
    let name = OsStr::new(name);
    let (ino, id) = match rig.client.lookup(&root(), Ino::ROOT, name).wait().await? {
        Lookup::Found(entry) => {
            (entry.ino, rig.client.open(&root(), entry.ino, flags).wait().await?.id)
        }
        Lookup::Absent { .. } => {
            let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            let made = rig.client.create(&root(), Ino::ROOT, name, set, flags).wait().await?;
            (made.0.ino, made.1.id)
        }
    };
    let open = rig.again((ino, id));
    let written = open.write(0, bytes).await;
    let closed = open.close().await;
    written.and(closed)
}

/// Writes into a file, syncs it, and writes more, which nothing acknowledges.
async fn sync_part(rig: &Rig, name: &str, bytes: &[u8]) -> Result<()> {
    let open = rig.open(&root(), name, WRITE).await?;
    let written = open.write(100, bytes).await;
    let synced = rig.client.fsync(&root(), open.ino, None).wait().await.map(drop);
    let closed = open.close().await;
    written.and(synced).and(closed)
}

/// Makes a directory's changes as durable as its class asks for.
async fn sync_names(rig: &Rig) -> Result<()> {
    let synced = rig.client.sync_names(&root(), Ino::ROOT);
    synced.expect("names are made here").wait().await
}

async fn work(rig: &Rig, told: &mut Told) {
    let content = |seed, len| Some(pattern(seed, len));
    let written = |seed, len| pattern(seed, len);
    told.hear(&[("a", content(1, 3_000))], put(rig, "a", &written(1, 3_000)).await);
    told.hear(&[("b", content(2, 40_000))], put(rig, "b", &written(2, 40_000)).await);
    told.hear(&[("a", content(3, 5_000))], put(rig, "a", &written(3, 5_000)).await);
    if rig.find("b").await.is_some() {
        let whole = told.certain.get("b").cloned().flatten().map(|mut whole| {
            whole[100..5_100].copy_from_slice(&written(4, 5_000));
            whole
        });
        let answer = sync_part(rig, "b", &written(4, 5_000)).await;
        match whole {
            Some(whole) => told.hear(&[("b", Some(whole))], answer),
            None => told.refused.extend(answer.err()),
        }
    }
    // As editors do.
    told.hear(&[("new", content(5, 20_000))], put(rig, "new", &written(5, 20_000)).await);
    let renamed = match rig.rename("new", "b").await {
        Ok(()) => sync_names(rig).await,
        refused => refused,
    };
    match told.certain.get("new").cloned() {
        Some(bytes) => told.hear(&[("b", bytes), ("new", None)], renamed),
        None => told.hear(&[("b", None), ("new", None)], renamed.and(Err(Error::Io))),
    }
    let removed = match rig.remove("a").await {
        Ok(()) => sync_names(rig).await,
        refused => refused,
    };
    told.hear(&[("a", None)], removed);
    told.hear(&[("c", content(6, 7_000))], put(rig, "c", &written(6, 7_000)).await);
    told.refused.extend(rig.client.sync(&|_| true).await.err());
    told.hear(&[("c", content(7, 9_000))], put(rig, "c", &written(7, 9_000)).await);
    told.hear(&[("a", content(8, 300))], put(rig, "a", &written(8, 300)).await);
}

/// What the server has of a file in the root directory.
async fn at_server(rig: &Rig, name: &str) -> Option<Vec<u8>> {
    let top = rig.server.root().await.unwrap().handle;
    let found = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found?;
    Some(rig.server.read(&root(), &found.handle, None, 0, 1 << 20).await.unwrap().data.to_vec())
}

/// Works on a disk in trouble, and checks what the next process has. Returns the number of
/// operations, and what was refused.
async fn live(trouble: Option<Trouble>, end: Option<Image>) -> (u64, Vec<Error>) {
    let what = format!("{trouble:?} {end:?}");
    let rig = Rig::exclusive_ticking(generated()).await;
    rig.put("first", b"").await;
    rig.checkpoint();
    let begin = rig.disk.operations();
    match trouble {
        None => {}
        Some(Trouble::Once(no)) => rig.disk.inject(Fault::EioAt(begin + no)),
        Some(Trouble::From(no)) => rig.disk.inject(Fault::EioFrom(begin + no)),
        Some(Trouble::Left(bytes)) => {
            let space = rig.disk.space().unwrap();
            rig.disk.inject(Fault::SpaceBytes(space.total_bytes - space.free_bytes + bytes));
        }
    }
    let mut told = Told::default();
    work(&rig, &mut told).await;
    let operations = rig.disk.operations() - begin;
    rig.disk.heal();
    told.hear(&[("later", Some(pattern(9, 500)))], put(&rig, "later", &pattern(9, 500)).await);
    let rig = match end {
        None => rig.kill(Start::Resume).await,
        Some(image) => {
            let image = rig.disk.crash(image);
            rig.server.shutdown();
            rig.boot(image, rig.server.another_client()).await
        }
    };
    for (name, content) in &told.certain {
        let found = match rig.find(name).await {
            Some(_) => Some(rig.cat(name).await),
            None => None,
        };
        let sizes = (found.as_ref().map(Vec::len), content.as_ref().map(Vec::len));
        assert!(found == *content, "{what}: {name} has (now, told) {sizes:?}");
    }
    put(&rig, "last", b"last").await.unwrap();
    rig.client.sync(&|_| true).await.unwrap();
    for (name, content) in &told.certain {
        let found = at_server(&rig, name).await;
        let sizes = (found.as_ref().map(Vec::len), content.as_ref().map(Vec::len));
        assert!(found == *content, "{what}: of {name} the server has (now, told) {sizes:?}");
    }
    assert_eq!(at_server(&rig, "last").await.as_deref(), Some(&b"last"[..]), "{what}");
    let aside: Vec<_> = rig.set_aside().into_iter().map(|(name, _)| name).collect();
    assert!(aside.is_empty(), "{what}: {aside:?}");
    (operations, told.refused)
}

/// With `LARDER_HEAVY` every operation and every page is tried.
fn stride() -> usize {
    if std::env::var_os("LARDER_HEAVY").is_some() { 1 } else { 5 }
}

/// How a life may end: the process dies, or the machine.
fn ends(seed: u64) -> [Option<Image>; 3] {
    [None, Some(Image::Synced), Some(Image::Torn(seed))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_disk_fails_what_was_acknowledged_gets_to_the_server() {
    let (operations, refused) = live(None, None).await;
    assert_eq!(refused, []);
    println!("{operations} operations");
    let (mut lives, mut refused) = (0, 0);
    for no in (1..=operations).step_by(stride()) {
        for (trouble, shift) in [(Trouble::Once(no), 0), (Trouble::From(no), 1)] {
            let end = ends(no)[((no / stride() as u64 + shift) % 3) as usize];
            refused += live(Some(trouble), end).await.1.len();
            lives += 1;
        }
    }
    println!("{lives} lives, {refused} refusals");
    assert!(refused > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_full_the_disk_is_what_was_acknowledged_gets_to_the_server() {
    let (mut lives, mut refused) = (0, 0);
    for bytes in (0..48).step_by(stride()).map(|pages| pages * 4096) {
        for end in ends(bytes) {
            refused += live(Some(Trouble::Left(bytes)), end).await.1.len();
            lives += 1;
        }
    }
    println!("{lives} lives, {refused} refusals");
    assert!(refused > 0);
}
