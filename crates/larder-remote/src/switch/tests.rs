//! The model behind a switch.

use larder_io::SimClock;
use larder_vfs::MemRemote;
use larder_vfs::conformance::{Traits, Verdict, cases};

use super::*;

fn switch(by_hand: bool) -> (Arc<MemRemote>, Arc<SimClock>, Switch) {
    let (remote, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::new()));
    let switch = Switch::new(remote.clone(), clock.clone(), by_hand);
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
    switch.set(false);
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
        switch.set(true);
        remote.reconnect();
        switch.set(false);
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
