//! Names, rights and attributes against the model that every server must match
//! ([`larder_vfs::MemRemote`]): random sequences of calls by several users.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_vfs::{Cred, Error, Handle, Kind, MemRemote, New, Remote, Removal, SetAttr, SetTime};
use larder_wire::meta::Status;
use larder_wire::meta::calls;
use larder_wire::meta::words::{self, Attributes, FileId, OpenId, SetAttributes};

use super::rig::{Rig, dentry, user};
use crate::rights::Caller;
use crate::volume::{self, Joining, Tenure};

/// Number of histories, unless the variable `LARDER_META_HISTORIES` says otherwise.
const HISTORIES: u64 = 300;
const STEPS: usize = 60;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "."];

/// A generator that is the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// A file on both sides.
#[derive(Clone, Debug)]
struct Both {
    ours: FileId,
    model: Handle,
}

struct Pair {
    rig: Rig,
    model: Arc<MemRemote>,
    runtime: tokio::runtime::Runtime,
    random: Random,
    files: Vec<Both>,
}

fn status(error: Error) -> Status {
    match error {
        Error::NotFound => Status::NotFound,
        Error::Exists => Status::Exists,
        Error::NotDirectory => Status::NotDirectory,
        Error::IsDirectory => Status::IsDirectory,
        Error::NotEmpty => Status::NotEmpty,
        Error::AccessDenied => Status::AccessDenied,
        Error::NotPermitted => Status::NotPermitted,
        Error::InvalidArgument => Status::Invalid,
        Error::Stale => Status::Stale,
        Error::NameTooLong => Status::NameTooLong,
        other => panic!("the model says {other}"),
    }
}

/// The attributes that are compared.
type Seen = (words::Kind, u32, u32, u32, u32, u64);

fn ours(attributes: &Attributes) -> Seen {
    let Attributes { kind, mode, links, uid, gid, size, .. } = *attributes;
    (kind, mode, links, uid, gid, if kind == words::Kind::Directory { 0 } else { size })
}

fn models(attr: &larder_vfs::Attr) -> Seen {
    let kind = match attr.kind {
        Kind::File => words::Kind::File,
        Kind::Directory => words::Kind::Directory,
        Kind::Symlink => words::Kind::Symlink,
        Kind::Fifo => words::Kind::Fifo,
        Kind::Socket => words::Kind::Socket,
        Kind::CharDevice => words::Kind::CharacterDevice,
        Kind::BlockDevice => words::Kind::BlockDevice,
    };
    let size = if attr.kind == Kind::Directory { 0 } else { attr.size };
    (kind, attr.mode, attr.nlink, attr.uid, attr.gid, size)
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let model = Arc::new(MemRemote::new());
        let root = runtime.block_on(model.root()).unwrap().handle;
        let mut rig = Rig::new(64);
        rig.set(FileId::ROOT, super::rig::mode(0o777)).unwrap();
        let files = vec![Both { ours: FileId::ROOT, model: root }];
        Pair { rig, model, runtime, random: Random(seed), files }
    }

    fn caller(&mut self) -> (Caller, Cred) {
        let (uid, groups) =
            self.random.one_of::<(u32, &[u32])>(&[(0, &[]), (1, &[7]), (2, &[7]), (3, &[])]);
        (user(uid, groups), Cred::new(uid, uid, groups))
    }

    /// A file, more often a young one.
    fn file(&mut self) -> Both {
        let among = self.files.len().min(8);
        let late = self.files.len() - 1 - self.random.below(among);
        let late = self.files[late].clone();
        let first = self.files[0].clone();
        self.random.one_of(&[first, late.clone(), late])
    }

    fn name(&mut self) -> &'static str {
        self.random.one_of(&NAMES)
    }

    /// Both sides gave the same answer. Objects that were made are remembered.
    fn same(
        &mut self,
        what: &str,
        ours_said: Result<Option<Attributes>, Status>,
        model_said: Result<Option<(Option<Handle>, larder_vfs::Attr)>, Error>,
    ) {
        let wanted = model_said.as_ref().map_err(|error| status(*error));
        let wanted = wanted.map(|found| found.as_ref().map(|(_, attr)| models(attr)));
        let got = ours_said.map(|found| found.as_ref().map(ours));
        assert_eq!(got, wanted, "{what}");
        if let (Ok(Some(attributes)), Ok(Some((Some(handle), _)))) = (ours_said, model_said)
            && self.files.iter().all(|both| both.ours != attributes.file)
        {
            self.files.push(Both { ours: attributes.file, model: handle });
        }
    }

    fn step(&mut self) {
        let ((caller, cred), dir, name) = (self.caller(), self.file(), self.name());
        match self.random.below(10) {
            0 => self.lookup(&caller, &cred, &dir, name),
            1..=3 => self.make(&caller, &cred, &dir, name),
            4 => self.remove(&caller, &cred, &dir, name),
            5 => self.rename(&caller, &cred, &dir, name),
            6 => self.link(&caller, &cred, &dir, name),
            7 => self.disks(),
            _ => self.set(&caller, &cred, &dir),
        }
    }

    /// A disk is added or removed, whichever changes no file.
    fn disks(&mut self) {
        let there = volume::disks(&self.rig.engine).unwrap();
        if there.len() < 3 {
            let (_, like) = there.first().cloned().unwrap();
            self.rig.enrol(like, Joining::Anywhere).unwrap();
        } else {
            let (disk, _) = self.random.one_of(&there);
            assert_eq!(self.rig.remove_disk(disk).unwrap(), Tenure::Gone);
        }
    }

    fn lookup(&mut self, caller: &Caller, cred: &Cred, dir: &Both, name: &'static str) {
        let call = calls::Lookup { session: self.rig.session, dentry: dentry(dir.ours, name) };
        let got = self.rig.read(caller, &call).map(|found| found.found);
        let found = self.runtime.block_on(self.model.lookup(cred, &dir.model, OsStr::new(name)));
        let found = found.map(|found| found.found.map(|found| (Some(found.handle), found.attr)));
        self.same(&format!("lookup {name} in {dir:?} by {caller:?}"), got, found);
    }

    fn make(&mut self, caller: &Caller, cred: &Cred, dir: &Both, name: &'static str) {
        let sequence = self.rig.next();
        let mode = self.random.one_of(&[0o755, 0o700, 0o770, 0o644, 0o1777, 0o2775, 0o444, 0o4755]);
        let (set, model_set) = (
            SetAttributes { mode: Some(mode), ..SetAttributes::default() },
            SetAttr { mode: Some(mode), ..SetAttr::default() },
        );
        let dentry = dentry(dir.ours, name);
        let (new, got) = match self.random.below(5) {
            0 | 1 => {
                let call = calls::MkDir { sequence, dentry, set };
                (New::Directory, self.rig.call(caller, call).map(|made| made.made))
            }
            2 => {
                let call = calls::Symlink { sequence, dentry, target: "t".into(), set };
                (New::Symlink("t".into()), self.rig.call(caller, call).map(|made| made.made))
            }
            3 => {
                let (kind, device) = (words::Kind::Fifo, words::Device::default());
                let call = calls::MkNod { sequence, dentry, kind, device, set };
                let new = New::Node(Kind::Fifo, larder_vfs::Device::default());
                (new, self.rig.call(caller, call).map(|made| made.made))
            }
            _ => {
                let if_exists = words::IfExists::Fail;
                let create = calls::Create { dentry, set, if_exists };
                let what = calls::OpenWhat::Create(create);
                let opened = self.rig.open(caller, what, words::Mode::ReadWrite);
                if let Ok(opened) = &opened {
                    self.rig.close(opened.open).unwrap();
                }
                (New::FileExclusive, opened.map(|opened| opened.file.after))
            }
        };
        let what = format!("make {name} in {dir:?} by {caller:?}, mode {mode:o}: {new:?}");
        let made = self.model.make(cred, &dir.model, OsStr::new(name), new, model_set);
        let made = self.runtime.block_on(made);
        let made = made.map(|made| Some((Some(made.found.handle), made.found.attr)));
        self.same(&what, got.map(Some), made);
    }

    fn remove(&mut self, caller: &Caller, cred: &Cred, dir: &Both, name: &'static str) {
        let (sequence, dentry) = (self.rig.next(), dentry(dir.ours, name));
        let (removal, got) = if self.random.below(2) == 0 {
            (Removal::File, self.rig.call(caller, calls::Remove { sequence, dentry }))
        } else {
            (Removal::Directory, self.rig.call(caller, calls::RmDir { sequence, dentry }))
        };
        let what = format!("remove {name} in {dir:?} by {caller:?}: {removal:?}");
        let removed = self.model.remove(cred, &dir.model, OsStr::new(name), removal);
        let removed = self.runtime.block_on(removed);
        let removed = removed.map(|change| change.after.map(|attr| (None, attr)));
        self.same(&what, got.map(|changed| Some(changed.dir.after)), removed);
    }

    fn rename(&mut self, caller: &Caller, cred: &Cred, dir: &Both, name: &'static str) {
        let (to_dir, to_name, sequence) = (self.file(), self.name(), self.rig.next());
        let (from, to) = (dentry(dir.ours, name), dentry(to_dir.ours, to_name));
        let got = self.rig.call(caller, calls::Rename { sequence, from, to, keep: false });
        let what = format!("rename {name} in {dir:?} to {to_name} in {to_dir:?} by {caller:?}");
        let (from, to) = ((&dir.model, OsStr::new(name)), (&to_dir.model, OsStr::new(to_name)));
        let renamed = self.runtime.block_on(self.model.rename(cred, from, to));
        let renamed = renamed.map(|(_, to)| to.after.map(|attr| (None, attr)));
        self.same(&what, got.map(|renamed| Some(renamed.to_dir.after)), renamed);
    }

    fn link(&mut self, caller: &Caller, cred: &Cred, dir: &Both, name: &'static str) {
        let (file, sequence) = (self.file(), self.rig.next());
        let call = calls::Link { sequence, file: file.ours, dentry: dentry(dir.ours, name) };
        let got = self.rig.call(caller, call).map(|linked| Some(linked.dir.after));
        let what = format!("link {file:?} as {name} in {dir:?} by {caller:?}");
        let linked = self.model.link(cred, &file.model, &dir.model, OsStr::new(name));
        let linked = self.runtime.block_on(linked);
        let linked = linked.map(|(_, change)| change.after.map(|attr| (None, attr)));
        self.same(&what, got, linked);
    }

    fn set(&mut self, caller: &Caller, cred: &Cred, file: &Both) {
        let maybe =
            |random: &mut Random, from: &[u32]| (random.below(3) == 0).then(|| random.one_of(from));
        let random = &mut self.random;
        let mode = maybe(random, &[0o777, 0o700, 0o000, 0o6775, 0o1777, 0o2770, 0o555]);
        // On Linux only privileged users may give a file to its present owner; the model lets any
        // user.
        let owners: &[u32] = if caller.uid == 0 { &[0, 1, 2] } else { &[9] };
        let (uid, gid) = (maybe(random, owners), maybe(random, &[0, 1, 7]));
        let size = maybe(random, &[0, 5000, 10]).map(u64::from);
        let touches = random.below(4) == 0;
        let (mtime, model_mtime) = match touches {
            true => (words::SetTime::Now, Some(SetTime::ServerNow)),
            false => (words::SetTime::Keep, None),
        };
        let atime = words::SetTime::Keep;
        let set = SetAttributes { mode, uid, gid, size, atime, mtime };
        let model_set = SetAttr { mode, uid, gid, size, mtime: model_mtime, ..SetAttr::default() };
        let (sequence, open) = (self.rig.next(), OpenId::NONE);
        let call = calls::SetAttr { sequence, file: file.ours, open, set, guard: None };
        let got = self.rig.call(caller, call).map(|changed| Some(changed.file.after));
        let changed = self.model.setattr(cred, &file.model, model_set, None);
        let changed = self.runtime.block_on(changed);
        let changed = changed.map(|change| change.after.map(|attr| (None, attr)));
        self.same(&format!("set {set:?} of {file:?} by {caller:?}"), got, changed);
    }

    /// Every file that both know is the same on both sides, for every caller.
    fn compare(&mut self) {
        for file in self.files.clone() {
            let got = self.rig.attributes(file.ours).map(Some);
            let found = self.runtime.block_on(self.model.getattr(&Cred::root(), &file.model));
            self.same(&format!("{file:?}"), got, found.map(|attr| Some((None, attr))));
            for uid in [0, 1, 3] {
                let (caller, cred) = (user(uid, &[7]), Cred::new(uid, uid, &[7]));
                let session = self.rig.session;
                let call = calls::Access { session, file: file.ours, wanted: 63 };
                let got = self.rig.read(&caller, &call).ok().map(|given| given.granted);
                let all = larder_vfs::Access::ALL;
                let found = self.runtime.block_on(self.model.access(&cred, &file.model, all));
                let wanted = found.ok().map(|judged| u32::from(judged.granted.0));
                assert_eq!(got, wanted, "access of {uid} to {file:?}");
            }
        }
    }
}

#[test]
fn names_and_rights_are_those_of_the_model() {
    let histories =
        std::env::var("LARDER_META_HISTORIES").map_or(HISTORIES, |count| count.parse().unwrap());
    let seeds = match std::env::var("LARDER_META_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 1..=histories,
    };
    for seed in seeds {
        // Where a test fails, its output is shown.
        println!("LARDER_META_SEED={seed}");
        let mut pair = Pair::new(seed);
        for _ in 0..STEPS {
            pair.step();
        }
        pair.compare();
        pair.rig.check();
        let mut pair = Pair { rig: pair.rig.crash(), ..pair };
        pair.compare();
    }
}
