//! The cache's disk fails, dies or is full: reads return what was written, what a close
//! acknowledged is at the server, and no caller gets an error of a disk whose work the server can
//! do.

use larder_client::Options;
use larder_io::Fault;
use larder_vfs::{Error, FileSystem, Ino, New, SetAttr, Stability};

use crate::rig::{PATIENCE, READ, Rig, WRITE, pattern, root};

const BYTES: usize = 50_000;

/// One file, as its only user sees it.
struct File<'a> {
    rig: &'a Rig,
    name: &'static str,
    content: Vec<u8>,
    /// Changes that were said to have failed.
    failed: u32,
}

impl File<'_> {
    /// Writes, and closes.
    async fn write(&mut self, at: usize, bytes: &[u8]) {
        let Ok(open) = self.rig.open(&root(), self.name, WRITE).await else {
            self.failed += 1;
            return;
        };
        let written = open.write(at as u64, bytes).await;
        let read = open.read(at as u64, bytes.len() as u32).await;
        if written.is_ok() {
            assert!(read.is_err() || read.as_deref() == Ok(bytes), "{} reads otherwise", self.name);
        }
        let closed = open.close().await;
        let mut after = self.content.clone();
        after.resize(after.len().max(at + bytes.len()), 0);
        after[at..at + bytes.len()].copy_from_slice(bytes);
        let before = std::mem::replace(&mut self.content, after);
        self.account(written.and(closed), before).await;
    }

    /// Cuts or extends it.
    async fn cut(&mut self, size: usize) {
        let ino = self.rig.find(self.name).await.unwrap();
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let set = self.rig.client.setattr(&root(), ino, None, set).wait().await;
        let mut after = self.content.clone();
        after.resize(size, 0);
        let before = std::mem::replace(&mut self.content, after);
        self.account(set.map(drop), before).await;
    }

    /// A failed change was made or not, and the server shows which.
    async fn account(&mut self, told: Result<(), Error>, before: Vec<u8>) {
        let found = self.rig.foreigner().await.cat(self.name).await;
        if told.is_err() && found != self.content {
            assert!(found == before, "{} is neither what it was nor what it is", self.name);
            self.content = before;
        }
        self.failed += u32::from(told.is_err());
        assert!(found == self.content, "{}: {told:?}, and the server lacks it", self.name);
    }

    async fn read(&self) {
        let Ok(open) = self.rig.open(&root(), self.name, READ).await else { return };
        for (at, len) in [(0, 1000), (20_000, 30_000), (0, 1 << 20)] {
            let end = (at + len).min(self.content.len());
            let found = open.read(at as u64, len as u32).await;
            assert!(found.as_deref() == Ok(&self.content[at.min(end)..end]), "{}", self.name);
        }
        let _ = open.close().await;
    }
}

/// Work on a few files. Returns how many changes were reported as failed.
async fn work(rig: &Rig) -> u32 {
    let mut failed = 0;
    for (seed, name) in (1..).zip(["read", "written", "cut"]) {
        let content = pattern(seed, BYTES);
        let mut file = File { rig, name, content, failed: 0 };
        file.read().await;
        file.read().await;
        match name {
            "written" => {
                file.write(100, &pattern(9, 700)).await;
                file.read().await;
                file.write(40_000, &pattern(10, 20_000)).await;
            }
            "cut" => {
                file.cut(20_001).await;
                file.read().await;
                file.write(10_000, &pattern(11, 30_000)).await;
                file.cut(60_000).await;
            }
            _ => {}
        }
        file.read().await;
        failed += file.failed;
    }
    failed
}

/// A client that has nothing, and a server with three files.
async fn rig() -> Rig {
    let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
    let other = rig.foreigner().await;
    for (seed, name) in (1..).zip(["read", "written", "cut"]) {
        other.put(name, &pattern(seed, BYTES)).await;
    }
    rig
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_fault_of_the_local_disk_anywhere_costs_no_byte() {
    let mut number = 0;
    let mut failed = 0;
    loop {
        let rig = rig().await;
        let begin = rig.disk.operations();
        let at = begin + 1 + number;
        rig.disk.inject(Fault::EioAt(at));
        println!("the fault is at operation {number}");
        failed += work(&rig).await;
        if rig.disk.operations() < at {
            break;
        }
        // A step of its own for each of the first, then some of each kind.
        number += if number < 40 { 1 } else { 3 };
    }
    println!("{number} operations, {failed} changes failed");
    assert!(number > 50, "a test of nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_disk_that_dies_at_any_time_costs_no_byte() {
    for number in (0..120).step_by(4) {
        let rig = rig().await;
        rig.disk.inject(Fault::EioFrom(rig.disk.operations() + 1 + number));
        println!("the disk dies at operation {number}");
        work(&rig).await;
    }
}

/// (bytes that the disk has more)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_local_disk_is_nobodys_business() {
    for more in [0, 4096, 30_000, 100_000, 1_000_000] {
        let rig = rig().await;
        let used: u64 = rig.disk.files().iter().map(|(_, len)| len).sum();
        rig.disk.inject(Fault::SpaceBytes(used + more));
        println!("{more} bytes are left");
        assert_eq!(work(&rig).await, 0, "{more}: the server has room");
    }
}

/// A front door that opens nothing writes: what is not sent yet is sent, and the verifier of a
/// commit shows whether a restart came in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_without_an_open_are_committed_or_told_to_be_lost() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"0123456789").await;
    let ino = rig.find("file").await.unwrap();
    let write = async |rig: &Rig, bytes: &[u8]| {
        let write = rig.client.write(&root(), ino, None, 0, bytes, Stability::Unstable);
        write.wait().await.unwrap()
    };
    let written = write(&rig, b"one").await;
    assert_eq!(written.stability, Stability::Unstable);
    assert_eq!(rig.foreigner().await.cat("file").await, b"0123456789");
    let committed = rig.client.fsync(&root(), ino, None).wait().await.unwrap();
    assert_eq!(committed, written.verifier);
    assert_eq!(rig.foreigner().await.cat("file").await, b"one3456789");
    // No commit follows: it is sent nevertheless.
    write(&rig, b"two").await;
    tokio::time::timeout(PATIENCE, rig.sent()).await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, b"two3456789");
    // The next mount has another verifier, and what was left unsent.
    let written = write(&rig, b"six").await;
    let rig = rig.kill(larder_client::Start::NewMount).await;
    let again = write(&rig, b"ten").await;
    assert_ne!(again.verifier, written.verifier, "the caller has to write it once more");
    let committed = rig.client.fsync(&root(), ino, None).wait().await.unwrap();
    assert_eq!(committed, again.verifier);
    assert_eq!(rig.foreigner().await.cat("file").await, b"ten3456789");
    let read = rig.client.read(&root(), ino, None, 0, 4).wait().await.unwrap();
    assert_eq!(&read[..], b"ten3");
    let nowhere = rig.client.read(&root(), Ino(987_654), None, 0, 4).wait().await;
    assert_eq!(nowhere, Err(Error::Stale));
}

/// A front door that opens nothing may be asked for bytes of an object that has none (RFC 1813,
/// 3.3.6 and 3.3.7).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_what_is_no_file_are_refused_at_once() {
    let rig = Rig::new(Options::default()).await;
    let made = [("link", New::Symlink("target".into())), ("dir", New::Directory)];
    for ((name, what), refused) in
        made.into_iter().zip([Error::InvalidArgument, Error::IsDirectory])
    {
        let (ino, set) = (Ino::ROOT, SetAttr::default());
        rig.client.make(&root(), ino, name.as_ref(), what, set).wait().await.unwrap();
        let ino = rig.find(name).await.unwrap();
        let write = rig.client.write(&root(), ino, None, 0, b"bytes", Stability::Unstable);
        assert_eq!(write.wait().await.err(), Some(refused), "{name}");
        let read = rig.client.read(&root(), ino, None, 0, 5).wait().await;
        assert_eq!(read, Err(refused), "{name}");
    }
    assert_eq!(rig.client.unsent(&|_| true).bytes, 0);
}
