//! A kernel that reads and writes local files itself.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_cache::{Cache, Config};
use larder_client::{Client, Options, Start};
use larder_io::{BootId, Clock, RealClock, RealDisk, SimClock};
use larder_vfs::{
    DataPath, Error, FileSystem, Handle, Ino, Kernel, LocalFile, MemRemote, OpenFlags, OpenId,
    Remote, Removal, SetAttr, Stability,
};
use tempfile::TempDir;

use crate::parallel::trouble;
use crate::rig::{READ, Random, WRITE, next_session, pattern, root};

mod in_time;

/// A kernel that reads and writes local files itself.
struct Passthrough;

impl Kernel for Passthrough {
    fn passthrough(&self) -> bool {
        true
    }

    fn invalidate(&self, _: Ino, _: bool) {}

    fn invalidate_entry(&self, _: Ino, _: &OsStr) {}
}

pub(crate) async fn on_directory(
    dir: &Path,
    server: Arc<MemRemote>,
    start: Start,
) -> (Client, Cache) {
    let clock = SimClock::ticking();
    if start == Start::Resume {
        // The machine's clock has gone on since the process died.
        clock.advance(Duration::from_secs(1));
    }
    with_clock(dir, server, start, Arc::new(clock)).await
}

/// A client of a server of its own, in a directory of its own, on the machine's clock.
pub(crate) async fn in_real_time() -> (Arc<MemRemote>, TempDir, Client, Cache) {
    let (server, dir) = (Arc::new(MemRemote::new()), tempfile::tempdir().unwrap());
    let clock = Arc::new(RealClock);
    let (client, cache) = with_clock(dir.path(), server.clone(), Start::NewMount, clock).await;
    (server, dir, client, cache)
}

async fn with_clock(
    dir: &Path,
    server: Arc<MemRemote>,
    start: Start,
    clock: Arc<dyn Clock>,
) -> (Client, Cache) {
    with_kernel(dir, server, (start, Options::default()), clock, Arc::new(Passthrough)).await
}

pub(crate) async fn with_kernel(
    dir: &Path,
    server: Arc<MemRemote>,
    (start, options): (Start, Options),
    clock: Arc<dyn Clock>,
    kernel: Arc<dyn Kernel>,
) -> (Client, Cache) {
    let boot = Some(BootId(1));
    let config = Config { checkpoint_interval: None, boot, ..Config::new(b"volume") };
    let cache = Cache::open(Arc::new(RealDisk::open(dir).unwrap()), clock.clone(), config).unwrap();
    let remote: Arc<dyn Remote> = server;
    let session = next_session();
    let client = Client::new(remote, cache.clone(), clock, options, session, start).await.unwrap();
    client.attach(kernel);
    (client, cache)
}

/// A new file in the root directory, whose local file the kernel writes.
async fn create(client: &Client, name: &str) -> (Ino, OpenId, LocalFile) {
    let flags = OpenFlags { truncate: true, ..OpenFlags::WRITE };
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let created = client.create(&root(), Ino::ROOT, OsStr::new(name), set, flags);
    let (entry, opened) = created.wait().await.unwrap();
    let DataPath::Passthrough(local) = opened.path else { panic!("not by the kernel") };
    (entry.ino, opened.id, local)
}

/// The same, with this many bytes that the kernel wrote.
pub(crate) async fn create_written(
    client: &Client,
    name: &str,
    len: usize,
) -> (Ino, OpenId, LocalFile) {
    let (ino, open, local) = create(client, name).await;
    rustix::io::pwrite(local.as_fd(), &pattern(1, len), 0).unwrap();
    (ino, open, local)
}

/// Another client, and its handle of a file in the root directory.
pub(crate) async fn another_client_at(server: &MemRemote, name: &str) -> (MemRemote, Handle) {
    let other = server.another_client();
    let top = other.root().await.unwrap().handle;
    let found = other.lookup(&root(), &top, OsStr::new(name)).await.unwrap().found;
    (other, found.unwrap().handle)
}

/// What the server has of a file.
pub(crate) async fn content_of(server: &MemRemote, name: &str) -> Vec<u8> {
    let (other, handle) = another_client_at(server, name).await;
    other.read(&root(), &handle, None, 0, 1 << 20).await.unwrap().data.to_vec()
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The data file that the kernel of the copied world has open.
pub(crate) fn data_file(dir: &Path) -> fs::File {
    let mut files = Vec::new();
    for dir in fs::read_dir(dir.join("data")).unwrap() {
        files.extend(fs::read_dir(dir.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
    }
    assert_eq!(files.len(), 1, "no other local file is made");
    fs::File::options().write(true).open(&files[0]).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_wrote_itself_outlives_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (folder.path().join("before"), folder.path().join("after"));
    fs::create_dir(&before).unwrap();
    let server = MemRemote::new();
    let (client, _) =
        on_directory(&before, Arc::new(server.another_client()), Start::NewMount).await;
    let (ino, open, local) = create(&client, "file").await;
    rustix::io::pwrite(local.as_fd(), b"by the kernel", 0).unwrap();
    // The copy stands for the directory after the process died.
    copy_tree(&before, &after);
    let (client, _) = on_directory(&after, Arc::new(server.another_client()), Start::Resume).await;
    let attr = client.getattr(&root(), ino).wait().await.unwrap().attr;
    assert_eq!(attr.size, 13);
    let kernel = data_file(&after);
    rustix::io::pwrite(kernel.as_fd(), b", and after it", 13).unwrap();
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
    assert_eq!(content_of(&server, "file").await, b"by the kernel, and after it");
}

/// A process that empties a directory also removes the hidden names of files that are still open.
/// What was written to those need not be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_file_whose_hidden_name_is_removed_leaves_nothing_to_send() {
    let folder = tempfile::tempdir().unwrap();
    let server = MemRemote::new();
    let (client, cache) =
        on_directory(folder.path(), Arc::new(server.another_client()), Start::NewMount).await;
    let (ino, open, local) = create(&client, "file").await;
    let remove = async |name: &OsStr| {
        client.remove(&root(), Ino::ROOT, name, Removal::File).wait().await.unwrap();
    };
    remove(OsStr::new("file")).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Arc::new(server.another_client());
    let (other, _) = on_directory(elsewhere.path(), other, Start::NewMount).await;
    other.opendir(&root(), Ino::ROOT).wait().await.unwrap();
    let names = other.readdir(&root(), Ino::ROOT, 0, 1000, true).wait().await.unwrap();
    let hidden = names.iter().find(|entry| entry.name.as_encoded_bytes().starts_with(b".nfs"));
    remove(&hidden.unwrap().name).await;

    rustix::io::pwrite(local.as_fd(), b"by the kernel", 0).unwrap();
    let attr = client.getattr(&root(), ino).wait().await.unwrap().attr;
    assert_eq!((attr.nlink, attr.size), (0, 13));
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
    assert_eq!(cache.unsent(), []);
}

/// What the kernel wrote itself, and the server did not accept at the last close, is unsent like
/// any other data: it counts, the file has its size, and it is sent without a new mount.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_wrote_itself_is_sent_when_the_server_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(MemRemote::new());
    let (client, cache) = on_directory(folder.path(), server.clone(), Start::NewMount).await;
    let (ino, open, local) = create(&client, "file").await;
    rustix::io::pwrite(local.as_fd(), b"by the kernel", 0).unwrap();
    server.time_out();
    let flushed = client.flush(&root(), ino, open, None).wait().await;
    assert_eq!(flushed.unwrap_err(), Error::TimedOut);
    client.release(ino, open).wait().await.unwrap();
    let unsent = client.status().unsent;
    assert_eq!((unsent.files, unsent.bytes), (1, 13));
    assert_eq!(client.getattr(&root(), ino).wait().await.unwrap().attr.size, 13);
    server.reconnect();
    client.write_back_all().await.unwrap();
    assert_eq!((cache.unsent(), client.status().unsent.files), (vec![], 0));
    assert_eq!(content_of(&server, "file").await, b"by the kernel");
}

/// What the server refuses one writer is not lost for the others: each close reports it, and tries
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_refused_to_one_writer_is_sent_by_another() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(MemRemote::new());
    let (client, cache) = on_directory(folder.path(), server.clone(), Start::NewMount).await;
    let (ino, first, local) = create(&client, "file").await;
    let second = client.open(&root(), ino, WRITE).wait().await.unwrap();
    assert!(matches!(second.path, DataPath::Passthrough(_)));
    rustix::io::pwrite(local.as_fd(), b"one", 0).unwrap();
    server.set_full(true);
    let close = async |open| {
        let flushed = client.flush(&root(), ino, open, None).wait().await;
        client.release(ino, open).wait().await.unwrap();
        flushed
    };
    assert_eq!(close(first).await, Err(Error::NoSpace));
    rustix::io::pwrite(local.as_fd(), b" two", 3).unwrap();
    let flushed = client.flush(&root(), ino, second.id, None).wait().await;
    assert_eq!(flushed, Err(Error::NoSpace));
    server.set_full(false);
    close(second.id).await.unwrap();
    assert_eq!(content_of(&server, "file").await, b"one two");
    assert_eq!(cache.unsent(), []);
}

/// Bytes of the file that are one writer's alone.
const REGION: usize = 50_000;

/// A program writes its part of a file through the kernel, and flushes it: then the server has it.
async fn write_region(client: &Client, server: &MemRemote, ino: Ino, writer: usize, seed: u64) {
    let open = client.open(&root(), ino, WRITE).wait().await.unwrap();
    let DataPath::Passthrough(local) = open.path else { panic!("not by the kernel") };
    let (mut random, start) = (Random(seed), writer * REGION);
    let mut region = vec![0; REGION];
    for step in 0..20 {
        let from = random.below(REGION as u64) as usize;
        let len = (1 + random.below(20_000) as usize).min(REGION - from);
        let bytes = pattern(seed * 100 + step, len);
        rustix::io::pwrite(local.as_fd(), &bytes, (start + from) as u64).unwrap();
        region[from..from + len].copy_from_slice(&bytes);
        match random.below(4) {
            0 => drop(client.getattr(&root(), ino).wait().await.unwrap()),
            1 => {
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                let set = client.setattr(&root(), ino, Some(open.id), set).wait().await;
                assert!(matches!(set, Ok(_) | Err(Error::TimedOut)));
            }
            _ => match client.flush(&root(), ino, open.id, None).wait().await {
                Err(Error::TimedOut) => {}
                flushed => {
                    flushed.unwrap();
                    let mut found = content_of(server, "file").await;
                    found.resize(2 * REGION, 0);
                    assert!(found[start..start + REGION] == region, "{seed} {step}");
                }
            },
        }
    }
    server.hold(None);
    while client.flush(&root(), ino, open.id, None).wait().await == Err(Error::TimedOut) {
        server.reconnect();
    }
    client.release(ino, open.id).wait().await.unwrap();
    let mut found = content_of(server, "file").await;
    found.resize(2 * REGION, 0);
    assert!(found[start..start + REGION] == region, "{seed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_by_way_of_the_kernel_lose_nothing() {
    let first = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in first.map_or(1..21, |seed: u64| seed..seed + 200) {
        let folder = tempfile::tempdir().unwrap();
        let server = Arc::new(MemRemote::new());
        let (client, cache) = on_directory(folder.path(), server.clone(), Start::NewMount).await;
        let (ino, open, _local) = create(&client, "file").await;
        let writers = async {
            tokio::join!(
                write_region(&client, &server, ino, 0, seed * 10 + 1),
                write_region(&client, &server, ino, 1, seed * 10 + 2),
            )
        };
        tokio::select! {
            _ = writers => {}
            () = trouble(&server, seed) => unreachable!("it has no end"),
        }
        server.hold(None);
        server.reconnect();
        client.flush(&root(), ino, open, None).wait().await.unwrap();
        client.release(ino, open).wait().await.unwrap();
        assert_eq!(cache.unsent(), []);
    }
}

/// Whether the kernel gets the local file for a new open, which is closed again.
async fn is_passed(client: &Client, ino: Ino, flags: OpenFlags) -> bool {
    let opened = client.open(&root(), ino, flags).wait().await.unwrap();
    close(client, ino, opened.id).await;
    matches!(opened.path, DataPath::Passthrough(_))
}

async fn close(client: &Client, ino: Ino, open: OpenId) {
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
}

/// The kernel tells of the release of a file after close(2) has returned: who gives the file a
/// class then, by which it may not write it, waits for that. While a process has it open, it is
/// refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_just_closed_gets_a_class_whose_writes_are_at_the_server() {
    let (_server, _dir, client, _cache) = in_real_time().await;
    let (ino, open, _local) = create_written(&client, "file", 1000).await;
    let root = root();
    let set = || client.set_class(&root, ino, Some("critical"));
    assert_eq!(set().await, Err(Error::Busy));
    client.flush(&root, ino, open, None).wait().await.unwrap();
    let release = async {
        tokio::task::yield_now().await;
        client.release(ino, open).wait().await.unwrap();
    };
    let (given, ()) = tokio::join!(set(), release);
    given.unwrap();
    assert_eq!(client.class(ino).unwrap().class.name, "critical");
}

/// What the kernel writes itself is found by comparing the whole file: so it does not write long
/// files, unless they are written from the first byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_file_is_not_given_to_the_kernel_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(MemRemote::new());
    let (client, _) = on_directory(folder.path(), server.clone(), Start::NewMount).await;
    let (ino, open, _local) = create_written(&client, "file", 1 << 20).await;
    close(&client, ino, open).await;
    let append = OpenFlags { read: false, append: true, ..WRITE };
    assert!(is_passed(&client, ino, READ).await);
    assert!(!is_passed(&client, ino, WRITE).await);
    assert!(!is_passed(&client, ino, append).await);
    let cut = OpenFlags { truncate: true, ..append };
    assert!(is_passed(&client, ino, cut).await);
    // Now it is short.
    assert!(is_passed(&client, ino, append).await);
    assert!(!is_passed(&client, ino, WRITE).await, "changed in place");
}

/// A log is synced after each entry, and then a new one is begun beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_beside_one_that_is_always_synced_are_not_given_to_the_kernel_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(MemRemote::new());
    let (client, _) = on_directory(folder.path(), server.clone(), Start::NewMount).await;
    let (ino, open, _local) = create_written(&client, "log", 300 << 10).await;
    for entry in 0..4 {
        client.fsync(&root(), ino, None).wait().await.unwrap();
        if entry < 3 {
            let (other, id, _) = create(&client, "other").await;
            close(&client, other, id).await;
        }
    }
    close(&client, ino, open).await;
    let flags = OpenFlags { truncate: true, ..OpenFlags::WRITE };
    assert!(!is_passed(&client, ino, flags).await);
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let created = client.create(&root(), Ino::ROOT, OsStr::new("next"), set, flags);
    let (entry, opened) = created.wait().await.unwrap();
    assert!(!matches!(opened.path, DataPath::Passthrough(_)));
    close(&client, entry.ino, opened.id).await;
    // Too long to be read through the pages that its writer left.
    let longer = SetAttr { size: Some(300 << 10), ..SetAttr::default() };
    client.setattr(&root(), ino, None, longer).wait().await.unwrap();
    assert!(is_passed(&client, ino, READ).await);
}

/// Only the local file's size and times show what the kernel has written: they tell whether
/// something is unsent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_wrote_itself_counts_before_it_is_collected() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(MemRemote::new());
    let (client, _) = on_directory(folder.path(), server.clone(), Start::NewMount).await;
    let dirty = || {
        let unsent = client.status().unsent;
        (unsent.files, unsent.bytes, unsent.is_bound)
    };
    let (ino, open, local) = create(&client, "file").await;
    assert_eq!(dirty(), (0, 0, false));
    rustix::io::pwrite(local.as_fd(), b"by the kernel", 0).unwrap();
    assert_eq!(dirty(), (1, 13, true));
    client.fsync(&root(), ino, None).wait().await.unwrap();
    assert_eq!(dirty(), (0, 0, false));
    rustix::io::pwrite(local.as_fd(), b"more", 13).unwrap();
    assert_eq!(dirty(), (1, 17, true));
    close(&client, ino, open).await;
    assert_eq!(dirty(), (0, 0, false));
}

/// Another client has changed the file while the kernel writes its local file: what a truncation
/// cuts off is not sent when the file has grown again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncation_cuts_the_local_file_whatever_version_the_server_has() {
    let (server, _dir, client, _cache) = in_real_time().await;
    let (ino, open, local) = create_written(&client, "file", 60_000).await;
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    let (other, theirs) = another_client_at(&server, "file").await;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    other.setattr(&root(), &theirs, set, None).await.unwrap();
    // Its lookup learns of the change.
    client.lookup(&root(), Ino::ROOT, OsStr::new("file")).wait().await.unwrap();
    let second = client.open(&root(), ino, READ).wait().await.unwrap();
    let cut = SetAttr { size: Some(10_000), ..SetAttr::default() };
    client.setattr(&root(), ino, Some(open), cut).wait().await.unwrap();
    assert_eq!(rustix::fs::fstat(local.as_fd()).unwrap().st_size, 10_000);
    rustix::io::pwrite(local.as_fd(), b"far", 70_000).unwrap();
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    client.release(ino, second.id).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
    let mut expected = pattern(1, 10_000);
    expected.resize(70_000, 0);
    expected.extend_from_slice(b"far");
    assert!(content_of(&server, "file").await == expected);
}

/// The reply to a truncation is the first sign of another client's change: what the kernel holds of
/// the file is not taken for the new version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_kernel_wrote_is_given_up_after_a_change_that_a_truncation_tells_of() {
    let server = Arc::new(MemRemote::new());
    let dir = tempfile::tempdir().unwrap();
    let (client, _cache) = on_directory(dir.path(), server.clone(), Start::NewMount).await;
    let (ino, open, _local) = create_written(&client, "file", 60_000).await;
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    let (other, theirs) = another_client_at(&server, "file").await;
    let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    other.setattr(&root(), &theirs, cut(0), None).await.unwrap();
    client.setattr(&root(), ino, Some(open), cut(20_000)).wait().await.unwrap();
    client.flush(&root(), ino, open, None).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
    let again = client.open(&root(), ino, READ).wait().await.unwrap();
    let read = client.read(&root(), ino, Some(again.id), 0, 1 << 20).wait().await.unwrap();
    assert!(read == vec![0; 20_000], "as at the server");
    client.release(ino, again.id).wait().await.unwrap();
}

/// The kernel reads an older local file for a process that opened it before another client's
/// change. For a process that writes it here now, it is the same file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_an_older_local_file_sees_what_is_changed_here() {
    let (server, _dir, client, _cache) = in_real_time().await;
    let (ino, open, _local) = create_written(&client, "file", 60_000).await;
    close(&client, ino, open).await;
    let reader = client.open(&root(), ino, READ).wait().await.unwrap();
    let DataPath::Passthrough(older) = reader.path else { panic!("not by the kernel") };
    let (other, theirs) = another_client_at(&server, "file").await;
    let bytes = pattern(2, 60_000).into();
    other.write(&root(), &theirs, None, 0, bytes, Stability::FileSync).await.unwrap();
    let flags = OpenFlags { read: true, ..WRITE };
    let writer = client.open(&root(), ino, flags).wait().await.unwrap();
    assert!(matches!(writer.path, DataPath::Direct), "the kernel has another file for it");
    let written = client.write(&root(), ino, Some(writer.id), 30_000, b"OURS", Stability::Unstable);
    written.wait().await.unwrap();
    let mut seen = [0; 6];
    rustix::io::pread(older.as_fd(), &mut seen, 29_999).unwrap();
    assert_eq!((&seen[1..5], seen[0]), (&b"OURS"[..], pattern(1, 60_000)[29_999]));
    let cut = SetAttr { size: Some(40_000), ..SetAttr::default() };
    client.setattr(&root(), ino, Some(writer.id), cut).wait().await.unwrap();
    assert_eq!(rustix::fs::fstat(older.as_fd()).unwrap().st_size, 40_000);
    // The kernel shows that local file to all that map the file until it is not open any more, in
    // any mode.
    client.release(ino, reader.id).wait().await.unwrap();
    let mapping = client.open(&root(), ino, READ).wait().await.unwrap();
    assert!(matches!(mapping.path, DataPath::Direct), "the kernel has another file for it");
    let written = client.write(&root(), ino, Some(writer.id), 35_000, b"MORE", Stability::Unstable);
    written.wait().await.unwrap();
    rustix::io::pread(older.as_fd(), &mut seen, 35_000).unwrap();
    assert_eq!(&seen[..4], b"MORE");
    client.release(ino, mapping.id).wait().await.unwrap();
    close(&client, ino, writer.id).await;
    let mut expected = pattern(2, 40_000);
    expected[30_000..30_004].copy_from_slice(b"OURS");
    expected[35_000..35_004].copy_from_slice(b"MORE");
    assert!(content_of(&server, "file").await == expected);
}

/// The kernel also shows its local file to processes that map the file. So what others have closed
/// is copied to it once no process reads it by passthrough, and again later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mapping_made_after_an_older_local_file_was_read_shows_what_others_have_closed() {
    let (server, _dir, client, _cache) = in_real_time().await;
    let (ino, open, _local) = create_written(&client, "file", 60_000).await;
    close(&client, ino, open).await;
    let reader = client.open(&root(), ino, READ).wait().await.unwrap();
    let DataPath::Passthrough(older) = reader.path else { panic!("not by the kernel") };
    let (other, theirs) = another_client_at(&server, "file").await;
    let mut expected = pattern(1, 60_000);
    let bytes = pattern(9, 70_000).into();
    other.write(&root(), &theirs, None, 0, bytes, Stability::FileSync).await.unwrap();
    // It holds the kernel to the local file, without reading it.
    let holder = client.open(&root(), ino, READ).wait().await.unwrap();
    assert!(matches!(holder.path, DataPath::Direct), "the kernel has another file for it");
    assert!(content(&older) == expected, "somebody may be in the midst of it");
    client.release(ino, reader.id).wait().await.unwrap();
    for (round, len) in [(2, 90_000), (3, 30_000)] {
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        other.setattr(&root(), &theirs, cut, None).await.unwrap();
        expected = pattern(round, len);
        let bytes = expected.clone().into();
        other.write(&root(), &theirs, None, 0, bytes, Stability::FileSync).await.unwrap();
        let mapping = client.open(&root(), ino, READ).wait().await.unwrap();
        assert!(matches!(mapping.path, DataPath::Direct), "the kernel has another file for it");
        assert!(content(&older) == expected, "{round}");
        client.release(ino, mapping.id).wait().await.unwrap();
    }
    // Data that is being written here is not overwritten, and its writer continues.
    let writer = client.open(&root(), ino, WRITE).wait().await.unwrap();
    for at in [10_000, 40_000] {
        let written = client.write(&root(), ino, Some(writer.id), at, b"OURS", Stability::Unstable);
        written.wait().await.unwrap();
        expected.resize(expected.len().max(usize::try_from(at).unwrap() + 4), 0);
        expected[usize::try_from(at).unwrap()..][..4].copy_from_slice(b"OURS");
        let mapping = client.open(&root(), ino, READ).wait().await.unwrap();
        assert!(content(&older) == expected, "{at}");
        client.release(ino, mapping.id).wait().await.unwrap();
    }
    close(&client, ino, writer.id).await;
    server.reset_calls();
    let mapping = client.open(&root(), ino, READ).wait().await.unwrap();
    assert_eq!(server.calls("read"), 0, "it is up to date");
    assert!(content(&older) == expected);
    client.release(ino, mapping.id).wait().await.unwrap();
    client.release(ino, holder.id).wait().await.unwrap();
}

/// A process that opens a file which the kernel writes itself gets the writer's local file. Its
/// size is the one that is shown, whatever other clients have done to the file: a process that maps
/// beyond the end would be killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_the_kernel_writes_is_as_long_as_its_local_file() {
    let (server, _dir, client, _cache) = in_real_time().await;
    let (ino, writer, _local) = create_written(&client, "file", 50_000).await;
    client.flush(&root(), ino, writer, None).wait().await.unwrap();
    let (other, theirs) = another_client_at(&server, "file").await;
    for len in [90_000, 20_000] {
        let resized = SetAttr { size: Some(len), ..SetAttr::default() };
        other.setattr(&root(), &theirs, resized, None).await.unwrap();
        let mapping = client.open(&root(), ino, READ).wait().await.unwrap();
        let DataPath::Passthrough(mapped) = mapping.path else { panic!("not by the kernel") };
        let shown = client.getattr(&root(), ino).wait().await.unwrap().attr.size;
        assert_eq!(usize::try_from(shown).unwrap(), content(&mapped).len(), "{len}");
        client.release(ino, mapping.id).wait().await.unwrap();
    }
    close(&client, ino, writer).await;
    let opened = client.open(&root(), ino, READ).wait().await.unwrap();
    assert_eq!(client.getattr(&root(), ino).wait().await.unwrap().attr.size, 20_000);
    client.release(ino, opened.id).wait().await.unwrap();
}

fn content(local: &larder_vfs::LocalFile) -> Vec<u8> {
    let len = rustix::fs::fstat((**local).as_fd()).unwrap().st_size;
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let read = rustix::io::pread((**local).as_fd(), &mut bytes, 0).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}
