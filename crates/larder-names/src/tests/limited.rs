//! What nobody waits for is made at the server within a limit on bytes per second.

use std::sync::{Mutex, Weak};
use std::time::Duration;

use larder_io::{Clock, REQUEST_BYTES, Rate};
use larder_vfs::{Attr, Held, Listed, Stability};

use super::*;

/// Of the tests, in bytes per second: a slice has eight changes.
const RATE: u64 = 32 * REQUEST_BYTES;

/// Longest wait for what must happen without time on the simulated clock. A busy machine may stall
/// for seconds.
const PATIENCE: Duration = Duration::from_secs(120);

impl Rig {
    async fn limited(rate: &Arc<Rate>) -> Rig {
        let rig = Rig::new().await;
        let licence = Licence { sole: true, ..Licence::default() };
        let (server, cache, clock) = (rig.server.clone(), rig.cache.clone(), rig.clock.clone());
        let names = Names::new(server, cache, clock, "here", licence).limited_by(rate.clone());
        let rig = Rig { names: Arc::new(names), ..rig };
        rig.be_seen().await;
        rig
    }

    /// Three directories, each with these names, made by turns.
    async fn three_with(&self, names: usize) -> [Handle; 3] {
        let top = self.top().await;
        let mut dirs = Vec::new();
        for dir in DIRS {
            dirs.push(self.made(&top, dir, New::Directory).await.unwrap().handle);
        }
        for at in 0..names {
            for dir in &dirs {
                self.made(dir, &name(at, names), New::File).await.unwrap();
            }
        }
        dirs.try_into().expect("three")
    }

    /// Lets time pass until no more waits. Returns how long that took, after `look` has looked
    /// each time that everything stood still.
    async fn until_all_is_there(&self, mut look: impl FnMut(Duration, &Tree)) -> Duration {
        let begin = self.clock.instant();
        loop {
            // A disk's sync may take a while.
            let all_wait = async {
                while self.clock.next_wake().is_none() && !self.deferring().deferred().is_empty() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(PATIENCE, all_wait).await.expect("somebody goes on");
            let time = self.clock.instant() - begin;
            look(time, &tree(&*self.server).await);
            if self.deferring().deferred().is_empty() {
                return time;
            }
            let wake = self.clock.next_wake().expect("somebody goes on");
            self.clock.advance(wake.saturating_duration_since(self.clock.instant()));
        }
    }
}

const DIRS: [&str; 3] = ["a", "b", "c"];

/// Not in the order of the alphabet.
fn name(at: usize, names: usize) -> String {
    format!("{}", (at * 7) % names)
}

/// At no time more is there than the rate allows, each directory has the first of its names, and it
/// takes no longer than the rate asks for: by the task that makes what is due, and by a command.
#[tokio::test]
async fn names_are_made_within_the_limit_and_in_their_order() {
    const NAMES: usize = 40;
    for is_by_itself in [false, true] {
        let rig = Rig::limited(&Arc::new(Rate::new(Some(RATE)))).await;
        rig.three_with(NAMES).await;
        let held = rig.names.clone();
        let replaying = tokio::spawn(async move {
            let here = held.deferring().expect("it defers");
            match is_by_itself {
                true => {
                    held.shared().state().all_is_due(held.shared().clock.instant());
                    here.begin();
                }
                false => here.replay_limited().await.unwrap(),
            }
        });
        let took = rig
            .until_all_is_there(|time, there| {
                let allowed = u128::from(RATE) * time.as_nanos();
                let bytes = there.len() as u128 * u128::from(REQUEST_BYTES);
                assert!(bytes * 1_000_000_000 <= allowed, "{} names in {time:?}", there.len());
                for dir in DIRS {
                    let has = |at| there.contains_key(&format!("/{dir}/{}", name(at, NAMES)));
                    let count = (0..NAMES).filter(|at| has(*at)).count();
                    assert!((0..count).all(has), "{dir}: {count}");
                }
            })
            .await;
        replaying.await.unwrap();
        let all = (3 * (NAMES + 1)) as u64;
        assert_eq!(tree(&*rig.server).await.len() as u64, all);
        assert!(took <= Duration::from_secs(all / (RATE / REQUEST_BYTES) + 1), "{took:?}");
    }
}

/// A caller needs a file at the server while many others wait there for the limit: it has it
/// without any time passing, with what was made in its directory before, and nothing else.
#[tokio::test]
async fn a_caller_does_not_wait_for_the_limit() {
    const NAMES: usize = 40;
    const WRITTEN: usize = 5;
    let rig = Rig::limited(&Arc::new(Rate::new(Some(RATE)))).await;
    let dirs = rig.three_with(NAMES).await;
    let held = rig.names.clone();
    let replaying = tokio::spawn(async move {
        held.deferring().expect("it defers").replay_limited().await.unwrap();
    });
    rig.clock.asleep(1).await;
    let file = rig.find(&dirs[2], &name(WRITTEN, NAMES)).await.unwrap().handle;
    let (user, text) = (user(), "text".into());
    let written = rig.remote().write(&user, &file, None, 0, text, Stability::FileSync);
    let begin = rig.clock.instant();
    tokio::time::timeout(PATIENCE, written).await.expect("it waits for no time").unwrap();
    assert_eq!(rig.clock.instant(), begin);
    let there = tree(&*rig.server).await;
    let has = |at: usize| there.contains_key(&format!("/c/{}", name(at, NAMES)));
    assert!((0..=WRITTEN).all(has), "{there:?}");
    // And the directories.
    assert!(there.len() <= WRITTEN + 1 + DIRS.len(), "{there:?}");
    rig.until_all_is_there(|_, _| {}).await;
    replaying.await.unwrap();
    assert_eq!(tree(&*rig.server).await.len(), 3 * (NAMES + 1));
}

/// Without a limit, and once it is gone, nothing waits.
#[tokio::test]
async fn without_a_limit_all_is_made_at_once() {
    let rate = Arc::new(Rate::new(None));
    let rig = Rig::limited(&rate).await;
    rig.three_with(20).await;
    rig.deferring().replay_limited().await.unwrap();
    rig.is_quiet("without a limit");
    rate.set(&*rig.clock, Some(RATE));
    let top = rig.top().await;
    for at in 0..40 {
        rig.made(&top, &format!("more {at}"), New::File).await.unwrap();
    }
    let held = rig.names.clone();
    let replaying = tokio::spawn(async move {
        held.deferring().expect("it defers").replay_limited().await.unwrap();
    });
    rig.clock.asleep(1).await;
    rate.set(&*rig.clock, None);
    replaying.await.unwrap();
    rig.is_quiet("the limit is gone");
}

/// Which bytes are asked for, and whether within the limit.
#[derive(Default)]
struct Bytes(Mutex<Vec<(Handle, bool)>>);

impl Held for Bytes {
    fn held(&self, _file: &Handle) -> Option<Attr> {
        None
    }

    fn held_name(&self, _dir: &Handle, _name: &OsStr) -> Option<Option<Found>> {
        None
    }

    fn bring<'a>(&'a self, file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        self.0.lock().unwrap().push((file.clone(), false));
        Box::pin(std::future::ready(Ok(())))
    }

    fn bring_limited<'a>(&'a self, file: &'a Handle) -> larder_vfs::Future<'a, ()> {
        self.0.lock().unwrap().push((file.clone(), true));
        Box::pin(std::future::ready(Ok(())))
    }

    fn held_entries(&self, _dir: &Handle) -> Option<Vec<Listed>> {
        None
    }
}

/// Bytes of a file that is to replace another one go first, within the limit; not while others wait
/// for the turn to make something at the server.
#[tokio::test]
async fn bytes_before_a_change_keep_to_the_limit() {
    let rig = Rig::limited(&Arc::new(Rate::new(Some(RATE)))).await;
    let top = rig.top().await;
    for name in ["old", "moved"] {
        rig.made(&top, name, New::File).await.unwrap();
    }
    rig.deferring().replay(None).await.unwrap();
    let bytes = Arc::new(Bytes::default());
    let weak: Weak<Bytes> = Arc::downgrade(&bytes);
    rig.deferring().held_by(weak);
    let user = user();
    let moved = rig.find(&top, "moved").await.unwrap().handle;
    let rename = rig.remote().rename(&user, (&top, OsStr::new("moved")), (&top, OsStr::new("new")));
    rename.await.unwrap();
    // As an editor does.
    let beside = rig.made(&top, "beside", New::File).await.unwrap().handle;
    let rename =
        rig.remote().rename(&user, (&top, OsStr::new("beside")), (&top, OsStr::new("old")));
    rename.await.unwrap();
    let held = rig.names.clone();
    let replaying = tokio::spawn(async move {
        held.deferring().expect("it defers").replay_limited().await.unwrap();
    });
    rig.until_all_is_there(|_, _| {}).await;
    replaying.await.unwrap();
    let asked = bytes.0.lock().unwrap().clone();
    for file in [&moved, &beside] {
        let first = asked.iter().find(|(one, _)| one == file);
        assert_eq!(first, Some(&(file.clone(), true)), "{asked:?}");
    }
    let there: Vec<_> = tree(&*rig.server).await.into_keys().collect();
    assert_eq!(there, ["/new", "/old"]);
}
