//! Random work on a mount that works without its server, which is cut off now and then while
//! requests are on their way: some of these it carries out, and answers none. No other client is
//! there, so nothing is a conflict, and in the end the server has what was acknowledged. Mounts
//! with `exclusive` and with `offline` take turns.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::Duration;

use larder_client::Start;
use larder_vfs::{
    Error, FileSystem, Ino, Lookup, OpenFlags, Removal, RenameFlags, Result, SetAttr, Stability,
    Trouble,
};

use crate::kept::{at_server, generated};
use crate::rig::{Random, Rig, WRITE, pattern, root};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// How often what waits is sent until all is there.
const TRIES_MAX: u32 = 50;

/// A mount, and what was acknowledged on it.
struct Run {
    rig: Rig,
    random: Random,
    /// Which of the `contents` each name leads to.
    files: BTreeMap<&'static str, usize>,
    contents: Vec<Vec<u8>>,
    /// Names of calls that were under way when the server or the process went: nothing is done to
    /// them any more, and the server may have what such a call has done or what was there before.
    unsure: BTreeSet<&'static str>,
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
        let rig = match seed % 2 {
            0 => Rig::exclusive_ticking(generated()).await,
            _ => Rig::offline_ticking(generated()).await,
        };
        rig.server.tell_times();
        rig.server.hide_before();
        rig.names().await;
        Run {
            rig,
            random: Random(seed),
            files: BTreeMap::new(),
            contents: Vec::new(),
            unsure: BTreeSet::new(),
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
        let name = NAMES[self.random.below(4) as usize];
        let at = self.random.below(10);
        let to = NAMES[self.random.below(4) as usize];
        let bytes = self.bytes();
        let is_unsure = [name, to].iter().any(|name| self.unsure.contains(name));
        if is_unsure || !self.is_known(name).await || !self.is_known(to).await {
            return;
        }
        self.done.push(format!("{at} {name} {} {to}", bytes.len()));
        match (at, self.files.get(name).copied()) {
            (0..=3, file) => {
                let opened = match file {
                    Some(_) => {
                        let flags = OpenFlags { truncate: true, ..WRITE };
                        self.rig.open(&root(), name, flags).await
                    }
                    None => self.rig.try_create_in(Ino::ROOT, name).await,
                };
                if let Some(open) = done(opened) {
                    open.write(0, &bytes).await.unwrap();
                    open.close().await.unwrap();
                    let file = file.unwrap_or_else(|| {
                        self.contents.push(Vec::new());
                        self.contents.len() - 1
                    });
                    self.files.insert(name, file);
                    self.contents[file] = bytes;
                }
            }
            (4, Some(file)) => {
                let end = self.contents[file].len() as u64;
                if let Some(open) = done(self.rig.open(&root(), name, WRITE).await) {
                    open.write(end, &bytes).await.unwrap();
                    open.close().await.unwrap();
                    self.contents[file].extend_from_slice(&bytes);
                }
            }
            (5, Some(_)) if !self.died => {
                let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                if let Some(ino) = done(self.rig.try_find(name).await) {
                    done(self.rig.client.setattr(&root(), ino, None, mode).wait().await);
                }
            }
            (6, Some(_)) if done(self.rig.remove(name).await).is_some() => {
                self.files.remove(name);
            }
            // rename(2) of a file to another name of it does nothing.
            (7, Some(file))
                if self.files.get(to) != Some(&file)
                    && done(self.rig.rename(name, to).await).is_some() =>
            {
                self.files.remove(name);
                self.files.insert(to, file);
            }
            (8.., Some(file))
                if !self.files.contains_key(to) && done(self.link(name, to).await).is_some() =>
            {
                self.files.insert(to, file);
            }
            _ => {}
        }
    }

    async fn link(&self, name: &str, to: &str) -> Result<()> {
        let ino = self.rig.try_find(name).await?;
        let linked = self.rig.client.link(&root(), ino, Ino::ROOT, to.as_ref()).wait().await;
        linked.map(drop)
    }

    /// Begins a call or a few of an application, which may end at any time, or never.
    async fn begin(&mut self) {
        let name = NAMES[self.random.below(4) as usize];
        let to = NAMES[self.random.below(4) as usize];
        if [name, to].iter().any(|name| self.unsure.contains(name)) || self.unsure.len() > 1 {
            return;
        }
        let (at, bytes) = (self.random.below(4), self.bytes());
        if at == 3 && self.files.contains_key(name) {
            return;
        }
        self.done.push(format!("begins {at} {name} {} {to}", bytes.len()));
        self.unsure.extend([name, to]);
        self.files.retain(|one, _| *one != name && *one != to);
        let client = self.rig.client.clone();
        tokio::spawn(async move {
            let (root, top, rename) = (root(), Ino::ROOT, RenameFlags::default());
            let (name, to) = (OsStr::new(name), OsStr::new(to));
            // As the kernel does.
            let found = client.lookup(&root, top, name).wait().await;
            let _ = client.lookup(&root, top, to).wait().await;
            match at {
                0 => {
                    let _ = client.remove(&root, top, name, Removal::File).wait().await;
                }
                1 => {
                    let _ = client.rename(&root, (top, name), (top, to), rename).wait().await;
                }
                2 => {
                    if let Ok(Lookup::Found(found)) = found {
                        let _ = client.link(&root, found.ino, top, to).wait().await;
                    }
                }
                _ => {
                    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
                    let created = client.create(&root, top, name, set, WRITE).wait().await;
                    let Ok((entry, opened)) = created else { return };
                    let (ino, id) = (entry.ino, opened.id);
                    let unstable = Stability::Unstable;
                    let write = client.write(&root, ino, Some(id), 0, &bytes, unstable);
                    let _ = write.wait().await;
                    let _ = client.flush(&root, ino, id, None).wait().await;
                    let _ = client.release(ino, id).wait().await;
                }
            }
        });
        self.yields().await;
    }

    async fn yields(&mut self) {
        for _ in 0..self.random.below(12) {
            tokio::task::yield_now().await;
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
            Err(Error::TimedOut | Error::TryAgain) => false,
            Err(error) => panic!("{}: {error}: {:?}", self.seed, self.done),
        }
    }

    /// The server is cut off while all is being sent, and is back after more work.
    async fn outage(mut self) -> Run {
        let after = self.random.below(8);
        if self.random.below(3) == 0 {
            self.begin().await;
        }
        match self.random.below(4) {
            0 => {
                self.done.push("cut".into());
                let client = self.rig.client.clone();
                let _sending = tokio::spawn(async move { client.sync(&|_| true).await });
                self.yields().await;
                if self.random.below(2) == 0 {
                    self.begin().await;
                }
            }
            1 => {
                self.done.push(format!("after {after} no answer"));
                self.rig.server.trouble_after(after, Trouble::Unanswered);
                self.try_to_send().await;
                self.rig.server.trouble_after(u64::MAX, Trouble::Unanswered);
            }
            kind => {
                let method = ["write", "setattr"][kind as usize - 2];
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
        if self.random.below(3) == 0 {
            self.begin().await;
        }
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
        let mut tries = 0..TRIES_MAX;
        while !self.try_to_send().await {
            assert!(tries.next().is_some(), "LARDER_SEED={}: {:#?}", self.seed, self.done);
        }
        let what = format!("LARDER_SEED={}: {:#?}", self.seed, self.done);
        assert_eq!(self.rig.cache().conflicts(0, usize::MAX), [], "{what}");
        assert_eq!(self.rig.set_aside(), [], "{what}");
        let there = self.rig.foreigner().await.names().await;
        let there = there.iter().filter(|name| !self.unsure.contains(name.as_str()));
        assert!(there.eq(self.files.keys()), "{:?} {what}", self.files.keys());
        for (name, file) in &self.files {
            assert!(at_server(&self.rig, name).await == self.contents[*file], "{name} {what}");
        }
    }
}

#[tokio::test]
async fn no_outage_makes_a_conflict_that_no_other_client_caused() {
    let seed = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    let rounds = std::env::var("LARDER_ROUNDS").ok().map_or(100, |rounds| rounds.parse().unwrap());
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
