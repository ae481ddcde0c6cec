//! larder's own servers: a metadata server and a disk, each behind its sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_io::{Image, SimClock};
use larder_meta::Options;
use larder_remote::native::{MountOptions, Native};
use larder_testkit::{Relay, Volume};
use larder_vfs::conformance::{Traits, Verdict, cases};
use larder_vfs::{Cred, Error, Handle, Intent, New, Remote, Removal, SetAttr, Stability};
use larder_wire::seal::Setup;

mod bare;
mod closing;
mod copying;
mod instead;
mod locks;
mod recalls;
mod retaining;
mod revoked;

async fn mount(volume: &Volume) -> Native {
    let (host, port) = (volume.address().ip().to_string(), volume.address().port());
    let options = MountOptions { port, ..MountOptions::new(&host) };
    Native::mount(&options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// The suite of `larder-vfs`, all cases on one mount.
async fn conforms(volume: Volume) {
    let native: Arc<dyn Remote> = Arc::new(mount(&volume).await);
    let root = native.root().await.unwrap().handle;
    let traits = Traits::default().with_elsewhere(Arc::new(mount(&volume).await));
    let mut failed = Vec::new();
    for case in cases() {
        match case.check(&native, &root, &traits).await {
            Verdict::Passed => {}
            Verdict::Skipped(reason) => println!("{} skipped: {reason}", case.name),
            Verdict::Failed(text) => failed.push(format!("{}: {text}", case.name)),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn larders_own_servers_conform() {
    conforms(Volume::new(Setup::Secure)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn larders_own_servers_conform_with_encrypted_data() {
    conforms(Volume::new(Setup::Private)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn larders_own_servers_conform_with_copies() {
    conforms(Volume::with_copies(Setup::Secure, 2)).await;
}

async fn make(native: &Native, name: &str) -> Handle {
    let root = native.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let made = native.make(&Cred::root(), &root, name.as_ref(), New::File, set).await.unwrap();
    made.found.handle
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// What one mount has written and committed another one reads, also in parts; a mount sees its own
/// writes before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_goes_straight_to_the_disk_and_comes_back() {
    let volume = Volume::new(Setup::Secure);
    let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
    let file = make(&one, "data").await;
    let data = pattern(3_000_001);
    let whole = Bytes::from(data.clone());
    let written = one.write(&root, &file, None, 0, whole, Stability::Unstable).await.unwrap();
    assert_eq!(two.getattr(&root, &file).await.unwrap().size, 0, "it is not committed yet");
    assert_eq!(one.getattr(&root, &file).await.unwrap().size, 3_000_001);
    let committed = one.commit(&root, &file, None, 0..0).await.unwrap();
    assert_eq!(written.verifier, committed.verifier);
    for (offset, len) in [(0, 3_000_001), (1, 70_000), (2_999_999, 10), (5_000_000, 1)] {
        let read = two.read(&root, &file, None, offset, len).await.unwrap();
        let start = data.len().min(offset as usize);
        let end = data.len().min(start + len as usize);
        assert!(read.data == data[start..end], "{offset}+{len}: {} bytes", read.data.len());
        assert_eq!(read.eof, end == data.len(), "{offset}+{len}");
    }
    assert_eq!(calls(&one, "WRITE"), 3);
}

/// Waits until `holds`.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < until, "{what}");
        tokio::task::yield_now().await;
    }
}

/// How often a procedure was called.
fn calls(native: &Native, name: &str) -> u64 {
    let stats = native.stats();
    stats.procedures.iter().find(|one| one.name == name).map_or(0, |one| one.calls)
}

/// How many calls were sent to the metadata server, answered or not.
fn offered(native: &Native) -> u64 {
    native.rpc().stats().connections.iter().map(|connection| connection.offered).sum()
}

/// A new file has blocks: its bytes are sent to the disk without a request for blocks, and what is
/// left of the blocks is taken back with the open. Nothing is lost if the open ends before what was
/// written is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_written_without_asking_for_blocks() {
    let volume = Volume::new(Setup::Secure);
    let (native, root) = (mount(&volume).await, Cred::root());
    let dir = native.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    for (number, stability) in [Stability::FileSync, Stability::Unstable].into_iter().enumerate() {
        let name = format!("new{number}");
        let made = native.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
        let (file, token) = (made.found.handle, made.token.unwrap());
        let data = Bytes::from(pattern(40_000));
        native.write(&root, &file, Some(&token), 0, data.clone(), stability).await.unwrap();
        native.close(&root, token.clone()).await.unwrap();
        // The token's open is gone.
        let more = Bytes::from_static(b"more");
        native.write(&root, &file, Some(&token), 50_000, more, Stability::FileSync).await.unwrap();
        let read = native.read(&root, &file, None, 0, 100_000).await.unwrap().data;
        assert!(read[..40_000] == data && read[50_000..] == b"more"[..], "{stability:?}");
        assert!(read[40_000..50_000].iter().all(|byte| *byte == 0));
    }
    assert_eq!(calls(&native, "OPEN"), 2);
    eventually("the opens are closed", async || (1..=2).contains(&calls(&native, "CLOSE"))).await;
    let made = native.make(&root, &dir, "quick".as_ref(), New::File, set).await.unwrap();
    let asked = calls(&native, "ALLOC");
    let (file, token) = (made.found.handle, made.token);
    for offset in [0, 30_000, 60_000] {
        let data = Bytes::from(pattern(5_000));
        native
            .write(&root, &file, token.as_ref(), offset, data, Stability::Unstable)
            .await
            .unwrap();
    }
    // After a commit the blocks ahead are not used again.
    assert_eq!(calls(&native, "ALLOC"), asked);
}

/// The commit of a small new file is in flight at the same time as its bytes, and waits for these
/// at the server: the writer waits for one round trip, and not for a flush. Time stands still, so
/// no wait times out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_new_file_is_committed_while_it_is_written() {
    let clock = Arc::new(SimClock::new());
    let mut volume = Volume::simulated(Setup::Secure, (1, 64 << 20), clock);
    let mut relay = Relay::to(volume.disk_address()).await;
    volume.kill_meta(Image::Written);
    volume.show_disk_at(relay.address);
    volume.start();
    let (native, root) = (Arc::new(mount(&volume).await), Cred::root());
    let dir = native.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let data = Bytes::from(pattern(40_000));
    for name in ["connects", "new"] {
        let made = native.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
        let (file, token) = (made.found.handle, made.token);
        let before = ["WRITE", "COMMIT_EXTENTS", "FLUSH"].map(|name| calls(&native, name));
        let (is_held, offered_before) = (name == "new", offered(&native));
        if is_held {
            relay.hold();
        }
        let (own, bytes) = (Arc::clone(&native), data.clone());
        let (cred, to, by) = (root.clone(), file.clone(), token.clone());
        let writing = tokio::spawn(async move {
            own.write(&cred, &to, by.as_ref(), 0, bytes, Stability::FileSync).await
        });
        if is_held {
            relay.catch().await;
            // The disk has heard nothing, and the server knows of it all the same.
            let until = Instant::now() + Duration::from_secs(20);
            while offered(&native) == offered_before {
                assert!(Instant::now() < until, "the commit waits for the write");
                tokio::task::yield_now().await;
            }
            assert!(!writing.is_finished());
            let other = mount(&volume).await;
            let size = other.getattr(&root, &file).await.unwrap().size;
            assert_eq!(size, 0, "nothing is named that is not durable");
            // The commit is carried out after that client has returned its lease.
            other.leave().await;
            relay.let_go();
        }
        let written = writing.await.unwrap();
        let after = ["WRITE", "COMMIT_EXTENTS", "FLUSH"].map(|name| calls(&native, name));
        let written = written.unwrap_or_else(|error| panic!("{name}: {error}, {after:?}"));
        assert_eq!(written.stability, Stability::FileSync);
        assert_eq!(written.change.after.unwrap().size, 40_000);
        let after = ["WRITE", "COMMIT_EXTENTS", "FLUSH"].map(|name| calls(&native, name));
        assert_eq!(after, [before[0] + 1, before[1] + 1, before[2]], "{name}");
        assert!(native.read(&root, &file, None, 0, 50_000).await.unwrap().data == data);
    }
}

/// The disk disappears while the first bytes of a new file are in flight: the commit is refused,
/// and they are written when the disk is back. The file names no blocks before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_written_over_a_restart_of_the_disk() {
    let mut volume = Volume::new(Setup::Secure);
    let (native, root) = (Arc::new(mount(&volume).await), Cred::root());
    let dir = native.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let made = native.make(&root, &dir, "new".as_ref(), New::File, set).await.unwrap();
    let (file, token) = (made.found.handle, made.token);
    // It is connected to the disk.
    let data = Bytes::from(pattern(40_000));
    let first = make(&native, "first").await;
    native.write(&root, &first, None, 0, data.clone(), Stability::FileSync).await.unwrap();
    volume.kill_disk(0, Image::Written);
    let (own, bytes, to) = (Arc::clone(&native), data.clone(), file.clone());
    let cred = root.clone();
    let writing = tokio::spawn(async move {
        own.write(&cred, &to, token.as_ref(), 0, bytes, Stability::FileSync).await
    });
    let other = mount(&volume).await;
    assert_eq!(other.getattr(&root, &file).await.unwrap().size, 0);
    assert!(!writing.is_finished());
    volume.start();
    writing.await.unwrap().unwrap();
    assert!(other.read(&root, &file, None, 0, 50_000).await.unwrap().data == data);
    drop((native, other));
    volume.kill();
    assert_eq!(volume.check(), [""; 0]);
}

/// One mount removes a file that another one has open. As long as that has a lease the server need
/// not know of its opens; it is told before the lease is returned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_that_another_mount_removes_is_there_until_its_close() {
    let volume = Volume::new(Setup::Secure);
    let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
    let dir = one.root().await.unwrap().handle;
    let file = make(&one, "open").await;
    let data = Bytes::from(pattern(10_000));
    one.write(&root, &file, None, 0, data.clone(), Stability::FileSync).await.unwrap();
    let opened = two.open(&root, &file, Intent::READ).await.unwrap();
    assert!(opened.lease.unwrap().holds());
    assert_eq!(calls(&two, "OPEN"), 0);
    one.remove(&root, &dir, "open".as_ref(), Removal::File).await.unwrap();
    assert_eq!(calls(&two, "OPEN"), 1);
    let token = opened.token.unwrap();
    assert!(two.read(&root, &file, Some(&token), 0, 20_000).await.unwrap().data == data);
    two.close(&root, token).await.unwrap();
    eventually("it goes with its close", async || {
        let read = two.read(&root, &file, None, 0, 20_000).await;
        matches!(read, Err(Error::Stale))
    })
    .await;
}

/// A mount that has opened a file continues to read it when another mount removes the right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_is_read_on_whatever_another_mount_makes_of_its_mode() {
    let volume = Volume::new(Setup::Secure);
    let (one, two, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
    let file = make(&one, "open").await;
    let data = Bytes::from(pattern(10_000));
    one.write(&root, &file, None, 0, data.clone(), Stability::FileSync).await.unwrap();
    let user = Cred::new(1000, 1000, &[]);
    let opened = two.open(&user, &file, Intent::READ).await.unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    one.setattr(&root, &file, set, None).await.unwrap();
    let token = opened.token.as_ref();
    assert!(two.read(&user, &file, token, 0, 20_000).await.unwrap().data == data);
    let refused = two.read(&user, &file, None, 0, 20_000).await;
    assert_eq!(refused.unwrap_err(), Error::AccessDenied);
}

/// The servers are restarted under a file that was just made: the blocks that it was given ahead
/// are gone, and what is written to it is not lost; and open files are opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_written_over_a_restart_of_its_servers() {
    let mut volume = Volume::new(Setup::Secure);
    let (native, root) = (mount(&volume).await, Cred::root());
    let dir = native.root().await.unwrap().handle;
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let made = native.make(&root, &dir, "new".as_ref(), New::File, set).await.unwrap();
    let (file, token) = (made.found.handle, made.token.unwrap());
    volume.kill();
    volume.start();
    let data = Bytes::from(pattern(40_000));
    let token = Some(&token);
    native.write(&root, &file, token, 0, data.clone(), Stability::FileSync).await.unwrap();
    let other = mount(&volume).await;
    assert!(other.read(&root, &file, None, 0, 50_000).await.unwrap().data == data);
    native.remove(&root, &dir, "new".as_ref(), Removal::File).await.unwrap();
    assert!(native.read(&root, &file, token, 0, 50_000).await.unwrap().data == data);
}

/// A file that was truncated and grows again shows zeros and no old bytes, in whichever block it
/// was cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_behind_a_cut_stay_away() {
    let volume = Volume::new(Setup::Secure);
    let (native, root) = (mount(&volume).await, Cred::root());
    let file = make(&native, "cut").await;
    let write = async |offset: u64, data: &[u8]| {
        let data = Bytes::copy_from_slice(data);
        native.write(&root, &file, None, offset, data, Stability::FileSync).await.unwrap();
    };
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    write(0, &[7; 20_000]).await;
    native.setattr(&root, &file, size(5_000), None).await.unwrap();
    write(6_000, b"more").await;
    let mut wanted = vec![7; 5_000];
    wanted.resize(6_000, 0);
    wanted.extend(b"more");
    assert!(native.read(&root, &file, None, 0, 30_000).await.unwrap().data == wanted);
    native.setattr(&root, &file, size(4_500), None).await.unwrap();
    native.setattr(&root, &file, size(9_000), None).await.unwrap();
    wanted.truncate(4_500);
    wanted.resize(9_000, 0);
    assert!(native.read(&root, &file, None, 0, 30_000).await.unwrap().data == wanted);
}

/// The servers are restarted under a mount: what was committed is there, and the mount continues to
/// work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_goes_on_after_its_servers_were_started_anew() {
    let mut volume = Volume::new(Setup::Secure);
    let (native, root) = (mount(&volume).await, Cred::root());
    let file = make(&native, "kept").await;
    let (old, new) = (Bytes::from(pattern(10_000)), Bytes::from(pattern(9_000)));
    native.write(&root, &file, None, 0, old.clone(), Stability::FileSync).await.unwrap();
    let unstable =
        native.write(&root, &file, None, 20_000, new.clone(), Stability::Unstable).await.unwrap();
    volume.kill();
    volume.start();
    // The disk was restarted, so what it had in its memory counts as lost, and is sent again.
    let committed = native.commit(&root, &file, None, 0..0).await.unwrap();
    assert_ne!(unstable.verifier, committed.verifier);
    native.write(&root, &file, None, 20_000, new.clone(), Stability::FileSync).await.unwrap();
    let read = native.read(&root, &file, None, 0, 40_000).await.unwrap().data;
    assert!(read[..10_000] == old && read[20_000..] == new);
    assert!(read[10_000..20_000].iter().all(|byte| *byte == 0));
}
