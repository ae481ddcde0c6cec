//! How long a caller waits for a server that has much to make for others.

use std::time::Duration;

use larder_io::Clock;
use larder_vfs::{Deadline, Error, Stability};

use super::front::{Front, Pace};
use super::*;

/// How many names are made in a directory. The server takes a second for each.
const NAMES: usize = 30;
const EACH: Duration = Duration::from_secs(1);
/// How long a call waits for a silent server.
const LIMIT: Duration = Duration::from_secs(9);
/// Longest wait for what must happen without time on the simulated clock. A busy machine may stall
/// for seconds.
const PATIENCE: Duration = Duration::from_secs(120);

impl Rig {
    async fn paced() -> (Rig, Arc<Pace>) {
        let rig = Rig::new().await;
        let pace = Pace::new(&rig.clock);
        let server = Arc::new(Front::paced(rig.server.clone(), pace.clone()));
        let (cache, clock) = (rig.cache.clone(), rig.clock.clone());
        let licence = Licence { sole: true, ..Licence::default() };
        let names = Arc::new(Names::new(server, cache, clock, "here", licence));
        let rig = Rig { names, ..rig };
        rig.be_seen().await;
        (rig, pace)
    }

    /// A directory with names that wait. Returns the last one.
    async fn with_names(&self) -> Handle {
        let top = self.top().await;
        let dir = self.made(&top, "dir", New::Directory).await.unwrap().handle;
        for at in 0..NAMES {
            self.made(&dir, &at.to_string(), New::File).await.unwrap();
        }
        self.made(&dir, "last", New::File).await.unwrap().handle
    }

    /// Writes to a file on behalf of a caller that waits for so long; time passes meanwhile.
    /// Returns how long that took.
    async fn write_within(&self, file: &Handle) -> (Result<()>, Duration) {
        let begin = self.clock.instant();
        let caller = user().until(Some(Deadline::new(begin, LIMIT)));
        let text = "text".into();
        let writing = async {
            let written =
                self.remote().write(&caller, file, None, 0, text, Stability::FileSync).await;
            (written.map(drop), self.clock.instant() - begin)
        };
        let passing = async {
            loop {
                // The server, or who awaits it, and the caller's deadline.
                self.clock.asleep(2).await;
                let wake = self.clock.next_wake().expect("somebody sleeps");
                self.clock.advance(wake.saturating_duration_since(self.clock.instant()));
            }
        };
        let either = async {
            tokio::select! {
                written = writing => written,
                () = passing => unreachable!("time passes on"),
            }
        };
        tokio::time::timeout(PATIENCE, either).await.expect("it ends")
    }
}

/// `larder sync` makes all that waits, for longer than a call waits for a silent server. Meanwhile
/// the bytes of a file are sent whose name is made last: that waits as long as the server goes on.
#[tokio::test]
async fn a_caller_waits_for_its_turn_as_long_as_names_are_made() {
    let (rig, pace) = Rig::paced().await;
    let file = rig.with_names().await;
    pace.set(EACH);
    let names = rig.names.clone();
    let replaying =
        tokio::spawn(async move { names.deferring().expect("it defers").replay(None).await });
    while rig.clock.next_wake().is_none() {
        tokio::task::yield_now().await;
    }
    let (written, took) = rig.write_within(&file).await;
    assert_eq!(written, Ok(()), "{took:?}");
    assert!(took >= EACH * NAMES as u32, "{took:?}");
    replaying.await.unwrap().unwrap();
}

/// What is due in its directory is made for a caller before its own file: that takes longer than a
/// call waits, and is no silence.
#[tokio::test]
async fn a_caller_waits_for_what_is_due_before_its_file() {
    let (rig, pace) = Rig::paced().await;
    let file = rig.with_names().await;
    rig.names.shared().state().all_is_due(rig.clock.instant());
    pace.set(EACH);
    let (written, took) = rig.write_within(&file).await;
    assert_eq!(written, Ok(()), "{took:?}");
    assert!(took >= EACH * NAMES as u32, "{took:?}");
}

/// A server that makes nothing for that long is silent.
#[tokio::test]
async fn a_caller_gives_up_once_nothing_is_made() {
    for has_turn in [false, true] {
        let (rig, pace) = Rig::paced().await;
        let file = rig.with_names().await;
        rig.names.shared().state().all_is_due(rig.clock.instant());
        pace.set(EACH * 1000);
        if !has_turn {
            let names = rig.names.clone();
            tokio::spawn(async move { names.deferring().expect("it defers").replay(None).await });
            while rig.clock.next_wake().is_none() {
                tokio::task::yield_now().await;
            }
        }
        let told = rig.write_within(&file).await;
        assert_eq!(told, (Err(Error::TimedOut), LIMIT), "{has_turn}");
    }
}
