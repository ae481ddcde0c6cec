//! What the kernel holds of files, and when it must drop that.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex};

use larder_client::{Client, Options, Start};
use larder_io::RealClock;
use larder_vfs::{
    DataPath, Entry, Error, FileSystem, Fresh, Hold, Ino, Kernel, Lookup, MemRemote, OpenFlags,
    OpenId, Remote, SetAttr, Stability, Told,
};
use rustix::io::pwrite;
use tokio::sync::{Notify, oneshot};

use crate::passthrough::{another_client_at, with_kernel};
use crate::rig::{PATIENCE, READ, Rig, WRITE, root};

/// A kernel without passthrough that remembers of which files it was told to drop pages.
#[derive(Default)]
struct Pages {
    dropped: Mutex<Vec<Ino>>,
    /// Has another owner for each answer that is to be sent first.
    holds: Arc<()>,
}

impl Kernel for Pages {
    fn passthrough(&self) -> bool {
        false
    }

    fn invalidate(&self, ino: Ino, attributes_only: bool) {
        if !attributes_only {
            self.dropped.lock().unwrap().push(ino);
        }
    }

    fn hold(&self, _: Ino) -> Hold {
        Box::new(Arc::clone(&self.holds))
    }

    fn invalidate_entry(&self, _: Ino, _: &OsStr) {}
}

/// A process that keeps a file open and reads it repeatedly sees each change by another client, not
/// only the first: what it read after that one is in the kernel's pages, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_an_open_file_go_with_each_change_by_another_client() {
    let rig = Rig::new(Options::default()).await;
    let kernel = Arc::new(Pages::default());
    rig.client.attach(kernel.clone());
    let other = rig.foreigner().await;
    other.put("file", b"status 0").await;
    let ino = rig.find("file").await.unwrap();
    let open = rig.client.open(&root(), ino, READ).wait().await.unwrap();
    assert!(matches!(open.path, DataPath::Cached { .. }), "not by pages of the kernel");
    for round in 1..4 {
        let bytes = format!("status {round}");
        rig.advance(60);
        other.put("file", bytes.as_bytes()).await;
        // The size did not change: the kernel notices nothing by itself.
        assert_eq!(rig.stat("file").await.attr.size, 8);
        assert!(std::mem::take(&mut *kernel.dropped.lock().unwrap()).contains(&ino), "{round}");
        let read = rig.client.read(&root(), ino, Some(open.id), 0, 100).wait().await.unwrap();
        assert_eq!(read, bytes.as_bytes());
    }
    rig.client.release(ino, open.id).wait().await.unwrap();
}

/// A kernel that takes its time.
#[derive(Default)]
struct SlowKernel {
    passthrough: bool,
    /// What it was told to drop and has not dropped yet, with the tasks that wait for that.
    queue: Mutex<HashMap<Ino, Vec<oneshot::Sender<()>>>>,
    /// A task waits.
    waited_for: Notify,
}

impl SlowKernel {
    /// Drops all of it.
    fn drop_now(&self) {
        self.queue.lock().unwrap().clear();
    }

    /// The answer to a call, which must wait until all is dropped.
    async fn answers_when_dropped<T>(&self, call: impl Future<Output = T>, what: &str) -> T {
        tokio::pin!(call);
        tokio::select! {
            biased;
            _ = &mut call => panic!("{what}: answered too early"),
            () = self.waited_for.notified() => {}
        }
        self.drop_now();
        tokio::time::timeout(PATIENCE, call).await.unwrap()
    }
}

impl Kernel for SlowKernel {
    fn passthrough(&self) -> bool {
        self.passthrough
    }

    fn invalidate(&self, ino: Ino, _: bool) {
        self.queue.lock().unwrap().entry(ino).or_default();
    }

    fn told(&self, ino: Ino) -> Option<Told> {
        let (waiter, told) = oneshot::channel();
        self.queue.lock().unwrap().get_mut(&ino)?.push(waiter);
        self.waited_for.notify_one();
        Some(Box::pin(async move { drop(told.await) }))
    }

    fn invalidate_entry(&self, _: Ino, _: &OsStr) {}
}

/// The reply to an open has no attributes: its caller sees the size that the kernel holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_is_answered_when_the_kernel_has_dropped_the_old_version() {
    for cache_data in [true, false] {
        let rig = Rig::new(Options { cache_data, ..Options::default() }).await;
        let kernel = Arc::new(SlowKernel::default());
        rig.client.attach(kernel.clone());
        let other = rig.foreigner().await;
        other.put("file", b"one").await;
        assert_eq!(rig.cat("file").await, b"one");
        for (round, who) in ["open", "lookup", "getattr", "listing", "setattr"].iter().enumerate() {
            let ino = rig.find("file").await.unwrap();
            rig.advance(6);
            other.put("file", &vec![b'x'; 10 + round]).await;
            match *who {
                "lookup" => assert!(rig.find("file").await.is_some()),
                "getattr" => assert_eq!(rig.stat("file").await.attr.size, 10 + round as u64),
                "listing" => {
                    // Two files that are stale are asked for one by one.
                    for name in ["a", "b", "c"] {
                        other.put(name, b"x").await;
                    }
                    rig.advance(60);
                    assert_eq!(rig.names().await, ["a", "b", "c", "file"]);
                }
                "setattr" => {
                    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                    rig.client.setattr(&root(), ino, None, set).wait().await.unwrap();
                }
                _ => {}
            }
            let open = rig.client.open(&root(), ino, READ).wait();
            let opened = kernel.answers_when_dropped(open, who).await.unwrap();
            rig.client.release(ino, opened.id).wait().await.unwrap();
        }
        // Nothing is queued, and no task waits.
        assert_eq!(rig.cat("file").await.len(), 14);
    }
}

/// A process that reads a file through the kernel's pages and is told that the file ends earlier
/// finds no old page behind that end: the kernel takes no size from an answer that crosses a
/// notification. If a page cannot be dropped, the attributes are told nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_an_open_file_are_told_when_the_kernel_has_dropped_its_pages() {
    let rig = Rig::new(Options::default()).await;
    let kernel = Arc::new(SlowKernel::default());
    rig.client.attach(kernel.clone());
    let other = rig.foreigner().await;
    other.put("file", &[b'x'; 50_000]).await;
    let ino = rig.find("file").await.unwrap();
    let getattr = || rig.client.getattr(&root(), ino).wait();
    let opened = rig.client.open(&root(), ino, READ).wait().await.unwrap();
    // Whether getattr finds the change out, or another call did.
    for (size, is_known) in [(40_000, false), (30_000, true)] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        other.set("file", set).await;
        rig.advance(60);
        if is_known {
            rig.find("file").await.unwrap();
        }
        let told = kernel.answers_when_dropped(getattr(), "getattr").await.unwrap();
        assert_eq!(told.attr.size, size);
    }
    for size in [20_000, 10_000] {
        other.set("file", SetAttr { size: Some(size), ..SetAttr::default() }).await;
        rig.advance(60);
        let told = match size {
            20_000 => rig.in_vain(getattr()).await,
            _ => getattr().await,
        };
        assert_eq!(told.unwrap().attr.size, size, "no one drops the pages");
        if size == 20_000 {
            rig.client.release(ino, opened.id).wait().await.unwrap();
        }
    }
}

/// A process that dies between learning of a change and telling the kernel leaves the kernel with
/// the old size and with pages of the old version, which it would show for as long as it has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_did_not_tell_the_kernel_is_told_before_an_open_is_answered() {
    let rig = Rig::new(Options::default()).await;
    rig.client.attach(Arc::new(SlowKernel::default()));
    let other = rig.foreigner().await;
    for name in ["closed", "open"] {
        other.put(name, b"old").await;
        assert_eq!(rig.cat(name).await, b"old");
    }
    let open = rig.open(&root(), "open", READ).await.unwrap();
    assert_eq!(open.read(0, 10).await.unwrap(), b"old");
    let names = open.names();
    rig.advance(6);
    for name in ["closed", "open"] {
        other.put(name, b"new and longer").await;
        assert_eq!(rig.in_vain(rig.stat(name)).await.attr.size, 14, "it knows");
    }
    let rig = rig.kill(Start::Resume).await;
    let kernel = Arc::new(SlowKernel::default());
    rig.client.attach(kernel.clone());
    assert!(kernel.queue.lock().unwrap().contains_key(&names.0), "it may have pages of it");
    for name in ["open", "closed"] {
        let ino = rig.find(name).await.unwrap();
        let open = rig.client.open(&root(), ino, READ).wait();
        let opened = kernel.answers_when_dropped(open, name).await.unwrap();
        rig.client.release(ino, opened.id).wait().await.unwrap();
        let again = tokio::time::timeout(PATIENCE, rig.cat(name)).await;
        assert_eq!(again.expect("it is told once"), b"new and longer");
    }
    rig.again(names).close().await.unwrap();
    let rig = rig.kill(Start::NewMount).await;
    rig.client.attach(Arc::new(SlowKernel::default()));
    let anew = tokio::time::timeout(PATIENCE, rig.cat("closed")).await;
    assert_eq!(anew.expect("a new kernel knows nothing"), b"new and longer");
}

/// A file that ends where the kernel believes it to end: an answer up to there is given whatever
/// the kernel is told to drop meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_answer_that_ends_where_the_kernel_expects_it_is_given() {
    let rig = Rig::new(Options::default()).await;
    let kernel = Arc::new(SlowKernel::default());
    rig.client.attach(kernel.clone());
    let open = rig.create("file").await;
    open.write(0, b"ours").await.unwrap();
    open.flush().await.unwrap();
    let other = rig.foreigner().await;
    for round in 0..3_u64 {
        let there = other.open(&root(), "file", WRITE).await.unwrap();
        there.write(round, b"+").await.unwrap();
        there.close().await.unwrap();
        rig.advance(60);
        assert_eq!(rig.in_vain(rig.stat("file")).await.attr.size, 4);
        assert!(kernel.queue.lock().unwrap().contains_key(&open.ino), "it is about to be told");
        let expected = [&b"++++"[..=round as usize], &b"ours"[round as usize + 1..]].concat();
        let read = rig.in_vain(open.read(0, 4096)).await;
        assert_eq!(read.as_deref(), Ok(&expected[..]), "round {round}");
        kernel.drop_now();
    }
    open.close().await.unwrap();
}

/// The kernel ignores where an answer ends if it was told to drop pages since it asked, and would
/// show zeros beyond that end. So it must ask again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_answer_that_the_kernel_would_not_listen_to_is_not_given() {
    let rig = Rig::new(Options::default()).await;
    let kernel = Arc::new(SlowKernel::default());
    rig.client.attach(kernel.clone());
    let other = rig.foreigner().await;
    other.put("file", &[b'x'; 50_000]).await;
    let ino = rig.find("file").await.unwrap();
    let opened = rig.client.open(&root(), ino, READ).wait().await.unwrap();
    assert!(matches!(opened.path, DataPath::Cached { .. }), "not by pages of the kernel");
    let read = async |len: u32| {
        let read = rig.client.read(&root(), ino, Some(opened.id), 0, len).wait();
        rig.in_vain(read).await.map(|bytes| bytes.len())
    };
    assert_eq!(read(60_000).await, Ok(50_000));
    let there = other.open(&root(), "file", WRITE).await.unwrap();
    there.truncate(2).await.unwrap();
    rig.advance(60);
    assert_eq!(rig.in_vain(rig.stat("file")).await.attr.size, 2);
    assert_eq!(read(4096).await, Err(Error::Interrupted), "it is about to be told");
    assert_eq!(read(2).await, Ok(2), "there is nothing to listen to");
    kernel.drop_now();
    assert_eq!(read(4096).await, Ok(2));
    // Discovered by the read itself: from the server, since less is cached.
    there.write(100_000, b"more").await.unwrap();
    there.flush().await.unwrap();
    rig.advance(60);
    assert_eq!(rig.in_vain(rig.stat("file")).await.attr.size, 100_004);
    kernel.drop_now();
    there.truncate(1).await.unwrap();
    assert_eq!(read(60_000).await, Err(Error::Interrupted));
    kernel.drop_now();
    assert_eq!(read(60_000).await, Ok(1));
    rig.client.release(ino, opened.id).wait().await.unwrap();
    there.close().await.unwrap();
}

/// The kernel believes a file to be longer than it is: nothing that it is told overtakes an answer
/// from which it is to learn the end. A notification waits for one that is on its way, and drops
/// pages, so that it waits for those whose request was not read yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_with_the_end_of_a_file_is_not_overtaken() {
    let rig = Rig::new(Options::default()).await;
    rig.server.tell_data_changes();
    let kernel = Arc::new(Pages::default());
    rig.client.attach(kernel.clone());
    let other = rig.foreigner().await;
    for (name, is_cut) in [("cut", true), ("whole", false)] {
        other.put(name, &[b'x'; 50_000]).await;
        let ino = rig.find(name).await.unwrap();
        let opened = rig.client.open(&root(), ino, READ).wait().await.unwrap();
        let read = async |len: u32| {
            rig.client.read(&root(), ino, Some(opened.id), 0, len).wait().await.unwrap()
        };
        let bytes = read(60_000).await;
        assert_eq!((bytes.len(), Arc::strong_count(&kernel.holds)), (50_000, 1), "as believed");
        let is_dropped = || std::mem::take(&mut *kernel.dropped.lock().unwrap()).contains(&ino);
        if is_cut {
            let there = other.open(&root(), name, WRITE).await.unwrap();
            there.truncate(2).await.unwrap();
            there.close().await.unwrap();
            rig.advance(60);
            assert_eq!(rig.stat(name).await.attr.size, 2);
            assert!(is_dropped());
        }
        let bytes = read(60_000).await;
        assert_eq!(bytes.len(), if is_cut { 2 } else { 50_000 });
        assert_eq!(Arc::strong_count(&kernel.holds) == 2, is_cut, "until it is sent");
        drop(bytes);
        assert_eq!(Arc::strong_count(&kernel.holds), 1);
        other.set(name, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
        rig.advance(60);
        assert_eq!(rig.stat(name).await.attr.mode, 0o600);
        assert_eq!(is_dropped(), is_cut, "{name}: the bytes are the same");
        rig.client.release(ino, opened.id).wait().await.unwrap();
    }
}

/// The kernel takes the begin of a request from behind the end for the file's end, and would ignore
/// the answer to one that it made at the same time: such a request is repeated until another one
/// has told the end, or nobody reads there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_from_behind_the_end_comes_after_one_that_tells_it() {
    let rig = Rig::new(Options::default()).await;
    rig.client.attach(Arc::new(Pages::default()));
    let other = rig.foreigner().await;
    other.put("file", &[b'x'; 200_000]).await;
    let ino = rig.find("file").await.unwrap();
    let opened = rig.client.open(&root(), ino, READ).wait().await.unwrap();
    let read = async |at: u64| {
        let read = rig.client.read(&root(), ino, Some(opened.id), at, 65_536).wait();
        rig.in_vain(read).await.map(|bytes| bytes.len())
    };
    assert_eq!(read(0).await, Ok(65_536));
    other.set("file", SetAttr { size: Some(2), ..SetAttr::default() }).await;
    rig.advance(60);
    assert_eq!(rig.stat("file").await.attr.size, 2);
    assert_eq!(read(131_072).await, Err(Error::Interrupted));
    assert_eq!(read(0).await, Ok(2));
    for round in 0..2 {
        for _ in 0..3 {
            assert_eq!(read(131_072).await, Err(Error::Interrupted), "{round}");
        }
        assert_eq!(read(131_072).await, Ok(0), "{round}: it ends");
    }
    other.set("file", SetAttr { size: Some(65_536), ..SetAttr::default() }).await;
    rig.advance(60);
    assert_eq!(rig.stat("file").await.attr.size, 65_536);
    assert_eq!(read(65_536).await, Ok(0), "from the end");
    rig.client.release(ino, opened.id).wait().await.unwrap();
}

/// What this mount did to a file that ends at 4 since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// Its kernel wrote the file by itself.
    WroteItself,
    /// A process wrote it by requests.
    Wrote,
    /// A process cut the file.
    Cut,
    /// A process opened the file with `O_TRUNC` and wrote it.
    Emptied,
}

/// Opens a file of the root directory, which is made if it is not there.
async fn open_at(client: &Client, name: &str, flags: OpenFlags) -> (Ino, OpenId, DataPath) {
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let opened = client.create(&root(), Ino::ROOT, OsStr::new(name), set, flags).wait().await;
    let (entry, opened) = opened.unwrap();
    (entry.ino, opened.id, opened.path)
}

async fn close(client: &Client, (ino, id): (Ino, OpenId)) {
    client.flush(&root(), ino, id, None).wait().await.unwrap();
    client.release(ino, id).wait().await.unwrap();
}

async fn write(client: &Client, (ino, id): (Ino, OpenId), bytes: &[u8]) {
    let written = client.write(&root(), ino, Some(id), 0, bytes, Stability::Unstable);
    assert_eq!(written.wait().await.unwrap().len as usize, bytes.len());
}

/// A link by another client cuts nothing off: its readers here get what they ask for up to the
/// file's end, although the kernel is just to be told of another version. The kernel believes in no
/// later end, whoever made the file as long as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_by_another_client_fails_no_read_up_to_the_end() {
    const ANEW: OpenFlags = OpenFlags { truncate: true, ..OpenFlags::WRITE };
    for done in [Done::WroteItself, Done::Wrote, Done::Cut, Done::Emptied] {
        let (server, dir) = (Arc::new(MemRemote::new()), tempfile::tempdir().unwrap());
        let passthrough = done == Done::WroteItself;
        let kernel = Arc::new(SlowKernel { passthrough, ..SlowKernel::default() });
        let options = Options { file_ttl: Default::default(), ..Options::default() };
        let start = (Start::NewMount, options);
        let clock = Arc::new(RealClock);
        let (client, _cache) =
            with_kernel(dir.path(), server.clone(), start, clock, kernel.clone()).await;
        let (ino, id, path) = open_at(&client, "file", ANEW).await;
        match (done, path) {
            (Done::WroteItself, DataPath::Passthrough(local)) => {
                assert_eq!(pwrite(&*local, b"four", 0), Ok(4));
            }
            (Done::WroteItself, _) => panic!("not by the kernel"),
            (Done::Wrote, _) => write(&client, (ino, id), b"four").await,
            (Done::Cut | Done::Emptied, _) => write(&client, (ino, id), b"four and more").await,
        }
        close(&client, (ino, id)).await;
        if done == Done::Cut {
            let set = SetAttr { size: Some(4), ..SetAttr::default() };
            client.setattr(&root(), ino, None, set).wait().await.unwrap();
        }
        if done == Done::Emptied {
            let opened = client.open(&root(), ino, ANEW).wait().await.unwrap();
            write(&client, (ino, opened.id), b"four").await;
            close(&client, (ino, opened.id)).await;
        }
        let opened = client.open(&root(), ino, WRITE).wait().await.unwrap();
        assert!(matches!(opened.path, DataPath::Cached { .. }), "{done:?}: not by pages");
        let (other, handle) = another_client_at(&server, "file").await;
        let top = other.root().await.unwrap().handle;
        other.link(&root(), &handle, &top, OsStr::new("second")).await.unwrap();
        let found = client.lookup(&root(), Ino::ROOT, OsStr::new("file")).wait().await.unwrap();
        let Lookup::Found(Entry { fresh: Fresh { attr, .. }, .. }) = found else {
            panic!("{done:?}: it is there")
        };
        assert_eq!((attr.nlink, attr.size), (2, 4), "{done:?}");
        assert!(kernel.told(ino).is_some(), "{done:?}: it is about to be told");
        let read = client.read(&root(), ino, Some(opened.id), 0, 4096).wait().await;
        assert_eq!(read.as_deref(), Ok(&b"four"[..]), "{done:?}");
        kernel.drop_now();
        close(&client, (ino, opened.id)).await;
    }
}
