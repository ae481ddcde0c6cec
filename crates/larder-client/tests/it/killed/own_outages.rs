//! Random work on a mount that works without its server, which is cut off now and then while
//! requests are on their way: some of these it carries out, and answers none. No other client is
//! there, so nothing is a conflict, and in the end the server has what was acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_client::Start;
use larder_vfs::{Error, FileSystem, Ino, OpenFlags, Result, SetAttr, Trouble};

use crate::kept::{at_server, generated};
use crate::rig::{PATIENCE, Random, Rig, WRITE, pattern, root};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A mount, and what was acknowledged on it.
struct Run {
    rig: Rig,
    random: Random,
    files: BTreeMap<&'static str, Vec<u8>>,
    number: u64,
    seed: u64,
    /// Whether a process has died: the next one does not know that a rename, or attributes that
    /// were set at the server, have moved a file's change time, and takes that for another
    /// client's change of its attributes.
    died: bool,
    done: Vec<String>,
}

/// What was done; `None`: it needs the server, and was not.
fn done<T>(answer: Result<T>) -> Option<T> {
    match answer {
        Ok(done) => Some(done),
        Err(Error::TimedOut) => None,
        Err(error) => panic!("{error}"),
    }
}

impl Run {
    async fn new(seed: u64) -> Run {
        let rig = Rig::offline_ticking(generated()).await;
        rig.server.tell_times();
        rig.server.hide_before();
        rig.names().await;
        Run {
            rig,
            random: Random(seed),
            files: BTreeMap::new(),
            number: 0,
            seed,
            died: false,
            done: Vec::new(),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        self.number += 1;
        let len = [0, 1, 30, 1000, 3000][self.random.below(5) as usize];
        pattern(self.seed * 1000 + self.number, len)
    }

    /// One call or a few of an application.
    async fn work(&mut self) {
        let name = NAMES[self.random.below(3) as usize];
        let at = self.random.below(8);
        let to = NAMES[self.random.below(3) as usize];
        let bytes = self.bytes();
        if !self.is_known(name).await || !self.is_known(to).await {
            return;
        }
        self.done.push(format!("{at} {name} {} {to}", bytes.len()));
        match (at, self.files.contains_key(name)) {
            (0..=3, is_there) => {
                let opened = match is_there {
                    true => {
                        let flags = OpenFlags { truncate: true, ..WRITE };
                        self.rig.open(&root(), name, flags).await
                    }
                    false => self.rig.try_create_in(Ino::ROOT, name).await,
                };
                if let Some(open) = done(opened) {
                    open.write(0, &bytes).await.unwrap();
                    open.close().await.unwrap();
                    self.files.insert(name, bytes);
                }
            }
            (4, true) => {
                let end = self.files[name].len() as u64;
                if let Some(open) = done(self.rig.open(&root(), name, WRITE).await) {
                    open.write(end, &bytes).await.unwrap();
                    open.close().await.unwrap();
                    self.files.entry(name).or_default().extend_from_slice(&bytes);
                }
            }
            (5, true) if !self.died => {
                let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                let ino = self.rig.find(name).await.unwrap();
                done(self.rig.client.setattr(&root(), ino, None, mode).wait().await);
            }
            (6, true) if done(self.rig.remove(name).await).is_some() => {
                self.files.remove(name);
            }
            (7, true) if done(self.rig.rename(name, to).await).is_some() => {
                let bytes = self.files.remove(name).unwrap();
                self.files.insert(to, bytes);
            }
            _ => {}
        }
    }

    /// Whether what has a name is known without the server, if that is away.
    async fn is_known(&self, name: &str) -> bool {
        let found = self.rig.client.lookup(&root(), Ino::ROOT, name.as_ref()).wait().await;
        assert!(matches!(found, Ok(_) | Err(Error::TimedOut)), "{found:?}");
        found.is_ok()
    }

    async fn works(&mut self) {
        for _ in 0..self.random.below(4) + 1 {
            self.work().await;
            self.rig.advance(self.random.below(3));
        }
    }

    async fn try_to_send(&self) -> bool {
        match self.rig.in_vain(self.rig.client.sync(&|_| true)).await {
            Ok(()) => true,
            // What became of a request is not known yet.
            Err(Error::TimedOut | Error::TryAgain | Error::Io) => false,
            Err(error) => panic!("{}: {error}: {:?}", self.seed, self.done),
        }
    }

    /// The server is cut off while all is being sent, and is back after more work.
    async fn outage(mut self) -> Run {
        let after = self.random.below(8);
        match self.random.below(3) {
            0 => {
                self.done.push(format!("after {after} no answer"));
                self.rig.server.trouble_after(after, Trouble::Unanswered);
                self.try_to_send().await;
                self.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            }
            kind => {
                let method = ["write", "setattr"][kind as usize - 1];
                self.done.push(format!("{method} is not answered"));
                self.rig.server.hold_answers(Some(method));
                let calls = self.rig.server.calls(method);
                let client = self.rig.client.clone();
                let sending = tokio::spawn(async move { client.sync(&|_| true).await });
                while self.rig.server.calls(method) == calls && !sending.is_finished() {
                    tokio::task::yield_now().await;
                }
                self.rig.server.time_out();
                self.rig.server.hold_answers(None);
                let _ = sending.await.unwrap();
            }
        }
        self.rig.server.time_out();
        self.done.push("away".into());
        let deaths = self.random.below(8);
        if deaths & 3 == 1 {
            self = self.die().await;
        }
        self.works().await;
        if deaths & 6 == 2 {
            self = self.die().await;
            self.works().await;
        }
        self.rig.server.reconnect();
        self.done.push("back".into());
        self
    }

    /// The process dies, and another one continues the mount.
    async fn die(mut self) -> Run {
        let start = [Start::Resume, Start::NewMount][self.random.below(2) as usize];
        self.done.push(format!("killed, {start:?}"));
        self.died = true;
        self.rig.server.time_out();
        self.rig = self.rig.kill(start).await;
        self.rig.server.hide_before();
        self.rig.server.time_out();
        self
    }

    async fn check(&self) {
        let bringing = async { while !self.try_to_send().await {} };
        tokio::time::timeout(PATIENCE, bringing).await.expect("it ends");
        let what = format!("LARDER_SEED={}: {:#?}", self.seed, self.done);
        assert_eq!(self.rig.cache().conflicts(0, usize::MAX), [], "{what}");
        assert_eq!(self.rig.set_aside(), [], "{what}");
        let there = self.rig.foreigner().await.names().await;
        assert!(there.iter().eq(self.files.keys()), "{there:?} {:?} {what}", self.files.keys());
        for (name, bytes) in &self.files {
            assert!(at_server(&self.rig, name).await == *bytes, "{name} {what}");
        }
    }
}

#[tokio::test]
async fn no_outage_makes_a_conflict_that_no_other_client_caused() {
    let seed = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    let rounds = std::env::var("LARDER_ROUNDS").ok().map_or(40, |rounds| rounds.parse().unwrap());
    for seed in seed.map_or(1..rounds, |seed: u64| seed..seed + 1) {
        let mut run = Run::new(seed).await;
        for _ in 0..1 + seed % 4 {
            run.works().await;
            run = run.outage().await;
            run.rig.clock.advance(Duration::from_secs(run.random.below(3)));
            if run.random.below(2) == 0 {
                run.check().await;
            }
        }
        run.check().await;
    }
}
