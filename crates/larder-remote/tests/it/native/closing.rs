//! Closes of many files go to the metadata server together, and all of them arrive.

use std::sync::Arc;
use std::time::Duration;

use larder_io::{Image, SimClock};
use larder_remote::native::{MountOptions, Native};
use larder_testkit::Volume;
use larder_vfs::{Cred, Error, Handle, New, Remote, Removal, SetAttr, Token};
use larder_wire::seal::Setup;

use super::locks::SHORT;
use super::{calls, eventually, mount};

/// As many as do not wait for others.
const ENOUGH: usize = 64;

async fn mount_at(volume: &Volume, clock: &Arc<SimClock>) -> Native {
    let (host, port) = (volume.address().ip().to_string(), volume.address().port());
    let clock = Arc::clone(clock) as Arc<dyn larder_io::Clock>;
    let options = MountOptions { port, clock, ..MountOptions::new(&host) };
    Native::mount(&options).await.unwrap_or_else(|error| panic!("{error}"))
}

/// A file that is open, and was made by this.
async fn make_open(native: &Native, number: usize) -> (Handle, Token) {
    let (root, dir) = (Cred::root(), native.root().await.unwrap().handle);
    let (name, set) = (format!("f{number}"), SetAttr { mode: Some(0o644), ..SetAttr::default() });
    let made = native.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
    (made.found.handle, made.token.unwrap())
}

async fn remove(native: &Native, number: usize) {
    let (dir, name) = (native.root().await.unwrap().handle, format!("f{number}"));
    native.remove(&Cred::root(), &dir, name.as_ref(), Removal::File).await.unwrap();
}

/// Whether the server has removed a file that has no name: it does when the file is not open. Asks
/// by a change, because attributes are known under a lease.
async fn is_gone(native: &Native, file: &Handle) -> bool {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    match native.setattr(&Cred::root(), file, set, None).await {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error, Error::Stale);
            true
        }
    }
}

/// Time stands still: closes go when there are enough, or when the time has come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_closes_of_many_files_are_few_calls() {
    let (volume, clock) = (Volume::new(Setup::Secure), Arc::new(SimClock::new()));
    let (native, other) = (mount_at(&volume, &clock).await, mount(&volume).await);
    let mut files = Vec::new();
    for number in 0..200 {
        let (file, token) = make_open(&native, number).await;
        native.close(&Cred::root(), token.clone()).await.unwrap();
        // Closing it again does nothing, nor does its end.
        native.close(&Cred::root(), token).await.unwrap();
        files.push(file);
    }
    for number in 0..200 {
        remove(&other, number).await;
    }
    eventually("enough do not wait", async || is_gone(&other, &files[ENOUGH - 1]).await).await;
    assert!(!is_gone(&other, &files[199]).await, "the last ones wait");
    assert!((1..=3).contains(&calls(&native, "CLOSE")), "{}", calls(&native, "CLOSE"));
    eventually("the last ones are closed", async || {
        clock.advance(Duration::from_millis(20));
        is_gone(&other, &files[199]).await
    })
    .await;
    for file in &files {
        assert!(is_gone(&other, file).await);
    }
    assert!(calls(&native, "CLOSE") <= 4, "{} calls", calls(&native, "CLOSE"));
}

/// Time stands still, and yet a file is gone with its last close and its last name, whichever is
/// first: with the answer to the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_close_of_a_file_without_names_waits_for_no_other() {
    let (volume, clock) = (Volume::new(Setup::Secure), Arc::new(SimClock::new()));
    let native = mount_at(&volume, &clock).await;
    let (closed_first, token) = make_open(&native, 0).await;
    native.close(&Cred::root(), token).await.unwrap();
    remove(&native, 0).await;
    assert!(is_gone(&native, &closed_first).await);

    let (removed_first, token) = make_open(&native, 1).await;
    remove(&native, 1).await;
    assert!(!is_gone(&native, &removed_first).await);
    native.close(&Cred::root(), token).await.unwrap();
    assert!(is_gone(&native, &removed_first).await);

    let [(replaced, of_replaced), (_, of_other)] =
        [make_open(&native, 2).await, make_open(&native, 3).await];
    native.close(&Cred::root(), of_replaced).await.unwrap();
    drop(of_other);
    let dir = native.root().await.unwrap().handle;
    native.rename(&Cred::root(), (&dir, "f3".as_ref()), (&dir, "f2".as_ref())).await.unwrap();
    assert!(is_gone(&native, &replaced).await);
    assert_eq!(calls(&native, "CLOSE"), 3);
}

/// The end of the session closes what waits, and nothing is said after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_to_be_closed_ends_with_the_session() {
    let (volume, clock) = (Volume::new(Setup::Secure), Arc::new(SimClock::new()));
    let (native, other) = (mount_at(&volume, &clock).await, mount(&volume).await);
    let [(file, token), (late, late_token)] =
        [make_open(&native, 0).await, make_open(&native, 1).await];
    native.close(&Cred::root(), token).await.unwrap();
    remove(&other, 0).await;
    remove(&other, 1).await;
    assert!(!is_gone(&other, &file).await, "time stands still");
    native.leave().await;
    drop(late_token);
    clock.advance(Duration::from_secs(1));
    for file in [&file, &late] {
        eventually("it is closed", async || is_gone(&other, file).await).await;
    }
    assert_eq!((calls(&native, "CLOSE"), calls(&native, "SESSION")), (0, 1));
}

/// The server is restarted while closes wait: it has forgotten those opens, and keeps what is still
/// open here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_to_be_closed_is_closed_after_a_restart_of_the_server() {
    // A file without names may be open elsewhere until the server has had its clients' reports.
    let mut volume = Volume::with_options(Setup::Secure, SHORT);
    let clock = Arc::new(SimClock::new());
    let native = mount_at(&volume, &clock).await;
    let (closed, token) = make_open(&native, 0).await;
    let (open, kept) = make_open(&native, 1).await;
    native.close(&Cred::root(), token).await.unwrap();
    volume.kill_meta(Image::Written);
    volume.start();
    let ticking = Arc::clone(&clock);
    let ticks = tokio::spawn(async move {
        loop {
            ticking.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    });
    // A call that changes something finds out.
    drop(make_open(&native, 2).await);
    let other = mount(&volume).await;
    remove(&other, 0).await;
    remove(&other, 1).await;
    eventually("the closed one is gone", async || is_gone(&other, &closed).await).await;
    assert!(!is_gone(&other, &open).await);
    drop(kept);
    eventually("the close of the other one arrives", async || is_gone(&other, &open).await).await;
    ticks.abort();
}
