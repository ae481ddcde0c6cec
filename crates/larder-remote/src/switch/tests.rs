//! The model behind a switch.

use larder_io::SimClock;
use larder_vfs::MemRemote;
use larder_vfs::conformance::{Traits, Verdict, cases};

use super::*;

fn switch(by_hand: bool) -> (Arc<MemRemote>, Arc<SimClock>, Switch) {
    switch_with(by_hand, Arc::new(|| Box::pin(async { Ok(()) })))
}

fn switch_with(by_hand: bool, before_off: BeforeOff) -> (Arc<MemRemote>, Arc<SimClock>, Switch) {
    let (remote, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::new()));
    let switch = Switch::new(remote.clone(), clock.clone(), by_hand, before_off);
    (remote, clock, switch)
}

#[tokio::test]
async fn while_it_is_off_no_call_is_sent_or_waits() {
    let (remote, _, switch) = switch(true);
    assert!(!switch.reachable());
    assert_eq!(switch.root().await.map(drop), Err(Error::TimedOut));
    let handle = remote.root().await.unwrap().handle;
    let calls = remote.calls_total();
    assert_eq!(switch.getattr(&Cred::root(), &handle).await, Err(Error::TimedOut));
    assert_eq!(remote.calls_total(), calls);
    switch.set(false).await;
    assert!(switch.reachable());
    switch.getattr(&Cred::root(), &handle).await.unwrap();
}

#[tokio::test]
async fn the_suite_passes_through_it() {
    let (remote, _, switch) = switch(false);
    let switch: Arc<dyn Remote> = Arc::new(switch);
    let root = switch.root().await.unwrap().handle;
    let traits = Traits::default().with_elsewhere(Arc::new(remote.another_client()));
    let mut passed = 0;
    for case in cases() {
        match case.check(&switch, &root, &traits).await {
            Verdict::Passed => passed += 1,
            Verdict::Skipped(_) => {}
            Verdict::Failed(text) => panic!("{}: {text}", case.name),
        }
    }
    assert!(passed > 50, "{passed}");
}

/// A call that waits causes a probe of the server; if that is not answered either, calls no longer
/// wait, and when the server is back it is used again.
#[tokio::test]
async fn a_silent_server_is_away_until_it_answers() {
    let (remote, clock, switch) = switch(false);
    let switch = Arc::new(switch);
    let handle = switch.root().await.unwrap().handle;
    let until = async |is_away| {
        while switch.off().is_away != is_away {
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    };
    for _ in 0..3 {
        remote.cut_off();
        let waiting = tokio::spawn({
            let (switch, handle) = (switch.clone(), handle.clone());
            async move { switch.getattr(&Cred::root(), &handle).await }
        });
        let begun = clock.instant();
        until(true).await;
        assert!(clock.instant() - begun < Duration::from_secs(8));
        assert_eq!(waiting.await.unwrap(), Err(Error::TimedOut));
        assert!(!switch.reachable());
        assert_eq!(switch.getattr(&Cred::root(), &handle).await, Err(Error::TimedOut));
        // Switched off by hand, it is not probed.
        switch.set(true).await;
        remote.reconnect();
        switch.set(false).await;
        until(false).await;
        switch.getattr(&Cred::root(), &handle).await.unwrap();
    }
    assert_eq!(switch.off(), Off::default());
}

/// A call that the server does not answer until the call's own limit ends before the server counts
/// as away because calls wait. Its caller finds out that the server is away.
#[tokio::test]
async fn a_call_that_ends_without_an_answer_tells_that_the_server_is_away() {
    let (remote, clock, switch) = switch(false);
    let switch = Arc::new(switch);
    let handle = switch.root().await.unwrap().handle;
    remote.cut_off();
    let waiting = tokio::spawn({
        let (switch, handle) = (switch.clone(), handle.clone());
        async move { (switch.getattr(&Cred::root(), &handle).await, switch.off().is_away) }
    });
    let begun = clock.instant();
    while !waiting.is_finished() {
        clock.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
        if clock.instant() - begun >= Duration::from_secs(2) {
            remote.time_out();
        }
    }
    assert_eq!(waiting.await.unwrap(), (Err(Error::TimedOut), true));
    assert!(clock.instant() - begun < Duration::from_secs(3));
}

/// Whatever switches it off, what the client knows is kept first, once, and calls wait for that,
/// though not for ever.
#[tokio::test]
async fn what_is_known_is_kept_before_it_is_off() {
    let disk = Arc::new(tokio::sync::Semaphore::new(0));
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let before_off: BeforeOff = {
        let (disk, begun) = (disk.clone(), begun.clone());
        Arc::new(move || {
            let disk = disk.clone();
            begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Box::pin(async move {
                disk.acquire().await.map_err(|_| Error::Io)?.forget();
                Ok(())
            })
        })
    };
    let (remote, clock, switch) = switch_with(false, before_off);
    let switch = Arc::new(switch);
    let until = async |holds: &dyn Fn() -> bool| {
        while !holds() {
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    };
    let times = || begun.load(std::sync::atomic::Ordering::SeqCst);
    // The server falls silent: two calls wait, and the disk is ready after a second.
    remote.cut_off();
    let waiting = [(); 2].map(|()| {
        let switch = switch.clone();
        tokio::spawn(async move { switch.root().await.map(drop) })
    });
    until(&|| times() == 1).await;
    clock.advance(Duration::from_secs(1));
    tokio::task::yield_now().await;
    assert!(!switch.off().is_away && waiting.iter().all(|call| !call.is_finished()));
    disk.add_permits(1);
    until(&|| switch.off().is_away).await;
    for call in waiting {
        assert_eq!(call.await.unwrap(), Err(Error::TimedOut));
    }
    // What is off already is not switched off by hand once more.
    switch.set(true).await;
    assert_eq!(times(), 1);
    // On again, and off by hand, with a disk that is never ready.
    remote.reconnect();
    switch.set(false).await;
    until(&|| switch.off() == Off::default()).await;
    let by_hand = tokio::spawn({
        let switch = switch.clone();
        async move { switch.set(true).await }
    });
    until(&|| times() == 2).await;
    assert!(!switch.off().by_hand);
    until(&|| by_hand.is_finished()).await;
    assert!(switch.off().by_hand);
}
