//! What a test can do to a [`MemRemote`].

use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{Cred, Error, Handle, MemRemote, New, Remote, RemoteWritten, SetAttr, Stability};

use crate::block_on;

fn file(remote: &MemRemote, content: &[u8]) -> Handle {
    block_on(async {
        let root = remote.root().await.unwrap().handle;
        let set = SetAttr::default();
        let made = remote.make(&Cred::root(), &root, "a".as_ref(), New::File, set).await.unwrap();
        write(remote, &made.found.handle, content, Stability::FileSync).await;
        made.found.handle
    })
}

async fn write(
    remote: &MemRemote,
    file: &Handle,
    content: &[u8],
    stability: Stability,
) -> RemoteWritten {
    let content = Bytes::copy_from_slice(content);
    remote.write(&Cred::root(), file, None, 0, content, stability).await.unwrap()
}

fn content(remote: &MemRemote, file: &Handle) -> Bytes {
    block_on(remote.read(&Cred::root(), file, None, 0, 100)).unwrap().data
}

#[test]
fn a_restart_loses_unstable_writes_and_says_so() {
    let remote = MemRemote::new();
    let file = file(&remote, b"durable");
    let written = block_on(write(&remote, &file, b"maybe", Stability::Unstable));
    assert_eq!(content(&remote, &file), "maybele");
    remote.restart();
    assert_eq!(content(&remote, &file), "durable");
    let committed = block_on(remote.commit(&Cred::root(), &file, None, 0..0)).unwrap();
    assert_ne!(committed.verifier, written.verifier);

    let written = block_on(write(&remote, &file, b"again", Stability::Unstable));
    let committed = block_on(remote.commit(&Cred::root(), &file, None, 0..0)).unwrap();
    assert_eq!(committed.verifier, written.verifier);
    remote.restart();
    assert_eq!(content(&remote, &file), "againle");
}

#[test]
fn a_stable_write_between_unstable_ones_is_kept() {
    let remote = MemRemote::new();
    let file = file(&remote, b"0000");
    block_on(async {
        write(&remote, &file, b"1111", Stability::Unstable).await;
        write(&remote, &file, b"22", Stability::FileSync).await;
        write(&remote, &file, b"3", Stability::Unstable).await;
    });
    assert_eq!(content(&remote, &file), "3211");
    remote.restart();
    assert_eq!(content(&remote, &file), "2200");
}

#[test]
fn another_client_changes_things_behind_ones_back() {
    let remote = MemRemote::new();
    let file = file(&remote, b"old");
    let held = block_on(remote.getattr(&Cred::root(), &file)).unwrap();
    remote.reset_calls();
    block_on(write(&remote.another_client(), &file, b"new", Stability::FileSync));
    assert_eq!(remote.calls_total(), 0);
    assert_eq!(content(&remote, &file), "new");
    assert_eq!((remote.calls("read"), remote.calls("write")), (1, 0));
    let change = block_on(write(&remote, &file, b"mine", Stability::FileSync)).change;
    assert!(!change.follows(&held.validator()));
}

#[test]
fn faults_come_in_order_and_are_not_carried_out() {
    let remote = MemRemote::new();
    let file = file(&remote, b"x");
    remote.fail_next(2, Error::TryAgain);
    remote.fail_next(1, Error::Io);
    let cut = || {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        block_on(remote.setattr(&Cred::root(), &file, set, None)).map(drop)
    };
    assert_eq!([cut(), cut(), cut()], [Err(Error::TryAgain), Err(Error::TryAgain), Err(Error::Io)]);
    assert_eq!(content(&remote, &file), "x");
    cut().unwrap();
    assert_eq!(content(&remote, &file), "");
}

#[test]
fn calls_wait_for_the_server() {
    let remote = Arc::new(MemRemote::new());
    let file = file(&remote, b"x");
    remote.cut_off();
    assert!(!remote.reachable());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| content(&remote, &file));
        while remote.calls("read") == 0 {
            std::thread::yield_now();
        }
        remote.reconnect();
        assert_eq!(reader.join().unwrap(), "x");
    });

    remote.cut_off();
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| block_on(remote.getattr(&Cred::root(), &file)));
        while remote.calls("getattr") == 0 {
            std::thread::yield_now();
        }
        remote.time_out();
        assert_eq!(asker.join().unwrap().unwrap_err(), Error::TimedOut);
    });
    remote.shutdown();
    assert_eq!(block_on(remote.root()).unwrap_err(), Error::Shutdown);
}

#[test]
fn a_full_disk() {
    let remote = MemRemote::new();
    let file = file(&remote, b"x");
    remote.set_full(true);
    let data = Bytes::from_static(b"y");
    let written = block_on(remote.write(&Cred::root(), &file, None, 0, data, Stability::FileSync));
    assert_eq!(written.unwrap_err(), Error::NoSpace);
    assert_eq!(content(&remote, &file), "x");
    assert_eq!(block_on(remote.statfs(&Cred::root(), &file)).unwrap().bytes_free, 0);
}
