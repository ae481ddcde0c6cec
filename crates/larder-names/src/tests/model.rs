//! Random histories: names that are made here, a server that refuses calls and loses answers,
//! processes and machines that die. In the end, the server has what was acknowledged.

use larder_vfs::{Error, SetTime, Time, Trouble};

use super::*;

/// A random history of changes of names.
pub(super) struct History {
    pub(super) random: Random,
    /// Counts objects that were made: no two have the same time.
    count: i64,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl History {
    pub(super) fn new(seed: u64) -> History {
        History { random: Random(seed), count: 0 }
    }

    /// A directory, of those that there are.
    async fn dir(&mut self, rig: &Rig) -> Handle {
        let mut at = rig.top().await;
        while self.random.below(3) > 0 {
            let name = NAMES[self.random.below(4) as usize];
            match rig.find(&at, name).await {
                Some(found) if found.attr.kind == Kind::Directory => at = found.handle,
                _ => break,
            }
        }
        at
    }

    /// Makes a change, if possible. Returns the error, if the caller did not cause it.
    pub(super) async fn step(&mut self, rig: &Rig) -> Option<Error> {
        let dir = self.dir(rig).await;
        let name = NAMES[self.random.below(4) as usize];
        self.count += 1;
        let answer = match self.random.below(13) {
            0..=2 => self.make(rig, &dir, name, New::FileExclusive).await,
            3 => self.make(rig, &dir, name, New::Directory).await,
            4 => self.make(rig, &dir, name, New::Symlink(format!("{}", self.count).into())).await,
            5 => rig.remove(&dir, name, Removal::File).await,
            6 => rig.remove(&dir, name, Removal::Directory).await,
            7 | 8 => {
                let to = (self.dir(rig).await, NAMES[self.random.below(4) as usize]);
                let (from, to) = ((&dir, OsStr::new(name)), (&to.0, OsStr::new(to.1)));
                rig.remote().rename(&user(), from, to).await.map(drop)
            }
            10..=12 => {
                let to = (self.dir(rig).await, NAMES[self.random.below(4) as usize]);
                match rig.find(&dir, name).await {
                    Some(found) if found.attr.kind != Kind::Directory => {
                        let (file, to) = (&found.handle, (&to.0, OsStr::new(to.1)));
                        rig.remote().link(&user(), file, to.0, to.1).await.map(drop)
                    }
                    _ => Ok(()),
                }
            }
            _ => match rig.find(&dir, name).await {
                Some(found) if found.attr.kind != Kind::Symlink => {
                    let mtime = Some(SetTime::To(Time { sec: 1000 + self.count, nsec: 0 }));
                    let set = SetAttr { mtime, ..mode(0o700 + self.random.below(64) as u32) };
                    rig.remote().setattr(&user(), &found.handle, set, None).await.map(drop)
                }
                _ => Ok(()),
            },
        };
        match answer {
            Ok(()) => None,
            Err(
                Error::Exists
                | Error::NotFound
                | Error::NotEmpty
                | Error::IsDirectory
                | Error::NotDirectory
                | Error::InvalidArgument,
            ) => None,
            Err(error) => Some(error),
        }
    }

    async fn make(&self, rig: &Rig, dir: &Handle, name: &str, new: New) -> Result<()> {
        let mtime = Some(SetTime::To(Time { sec: 1000 + self.count, nsec: 0 }));
        let set = SetAttr { mtime, ..mode(0o755) };
        rig.remote().make(&user(), dir, name.as_ref(), new, set).await.map(drop)
    }
}

/// What is made at the server is what was visible here.
pub(super) async fn check_names(rig: &Rig) {
    let before = unlinked(&tree(rig.remote()).await);
    rig.deferring().replay(None).await.unwrap();
    let after = tree(rig.remote()).await;
    assert_eq!(unlinked(&after), before);
    let links = |tree: Tree| -> Vec<(String, String, u32)> {
        tree.into_iter().map(|(path, leaf)| (path, leaf.first, leaf.links)).collect()
    };
    assert_eq!(links(tree(&*rig.server).await), links(after));
    rig.is_quiet("nobody else has made a name");
}

/// Calls fail, or their answers are lost; processes die; the machine crashes after changes were
/// kept. What was acknowledged to a caller is done, and what was refused is not.
#[tokio::test]
async fn what_was_acknowledged_is_at_the_server_in_the_end() {
    let (seed, rounds) = seed("what_was_acknowledged", 60);
    let (mut troubles, mut crashes, mut steps) = (0, 0, 0);
    for round in 0..rounds {
        let mut rig = Rig::new().await;
        let mut history = History::new(seed.wrapping_mul(7_000_003) + round);
        for _ in 0..40 {
            steps += 1;
            let before = tree(rig.remote()).await;
            match history.random.below(12) {
                0 => {
                    let trouble = match history.random.below(3) {
                        0 => Trouble::Unanswered,
                        1 => Trouble::Refused(Error::NoSpace),
                        _ => Trouble::Refused(Error::TimedOut),
                    };
                    rig.server.trouble_after(history.random.below(6), trouble);
                    let replayed = rig.deferring().replay(None).await;
                    troubles += u64::from(replayed.is_err());
                    // A call that is set to go wrong must not be one of the checks.
                    rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
                    let after = unlinked(&tree(rig.remote()).await);
                    assert_eq!(after, unlinked(&before), "{round}: nothing shows");
                }
                1 => {
                    rig.deferring().keep().await.unwrap();
                    let image = match history.random.below(4) {
                        0 => None,
                        1 => Some(Image::Synced),
                        2 => Some(Image::Written),
                        _ => Some(Image::Torn(history.random.next())),
                    };
                    rig = rig.crash(image);
                    rig.server.time_out();
                    rig.server.reconnect();
                    crashes += 1;
                    let after = unlinked(&tree(rig.remote()).await);
                    assert_eq!(after, unlinked(&before), "{round}: all of it is there");
                    rig.be_seen().await;
                }
                2 => {
                    let some = rig.deferring().deferred();
                    let Some(one) = some.get(history.random.below(some.len() as u64) as usize)
                    else {
                        continue;
                    };
                    rig.deferring().replay(Some(&one.file)).await.unwrap();
                    let after = unlinked(&tree(rig.remote()).await);
                    assert_eq!(after, unlinked(&before), "{round}: nothing shows");
                }
                _ => assert_eq!(history.step(&rig).await, None, "{round}"),
            }
        }
        check_names(&rig).await;
    }
    println!("{steps} steps, {troubles} troubles, {crashes} crashes");
    assert!(troubles > 0 && crashes > 0);
}
