//! Does the steps on two mounts, and checks each answer with the model.

mod names;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Instant;

use super::layers::{WriteId, content};
use super::model::{Id, Model, Path, Who};
use super::script::{DIRS, FILES, Flags, Operation, SLOTS, Step};
use crate::rounds::{LATE_MAX, Mapper};

/// An answer that the model does not allow.
type Wrong = Result<(), String>;

/// How the two mounts differ from those of the default.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Every write is at the server when it returns.
    pub(crate) writes_at_once: bool,
    /// The server notifies of changes, and may do so late.
    pub(crate) leases: bool,
    /// Open files of one client can prevent another one's changes of names.
    pub(crate) opens_hinder: bool,
    /// An open file exists, whichever client removes its names.
    pub(crate) opens_keep: bool,
}

/// Two mounts at work.
pub(crate) struct Play {
    kind: Kind,
    model: Model,
    begin: Instant,
    mounts: [PathBuf; 2],
    server: PathBuf,
    slots: [[Option<(u32, File, Flags)>; SLOTS]; 2],
    /// Inode numbers of the server.
    numbers: BTreeMap<u64, Id>,
    mapper: Mapper,
    /// Calls so far.
    pub(crate) acts: Cell<u64>,
    /// Lookups for which the server's notification came late; reads that ended with ESTALE because
    /// the file had changed.
    pub(crate) late: u64,
    pub(crate) stale: u64,
}

/// The bytes of an open file from an offset on, to its end or up to this number.
fn read(file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let mut got = 0;
    while got < bytes.len() {
        match file.read_at(&mut bytes[got..], at + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            // The kernel did not know where the file ends: programs read again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

/// More than any file has.
const ALL: u64 = 1 << 20;

fn relative(path: Path) -> PathBuf {
    path.dir.map_or_else(PathBuf::new, PathBuf::from).join(path.name)
}

fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

fn unless(allowed: bool, error: &io::Error) -> Wrong {
    if allowed { Ok(()) } else { Err(format!("failed: {error}")) }
}

impl Play {
    pub(crate) fn new(kind: Kind, model: Model, mounts: [PathBuf; 2], server: PathBuf) -> Play {
        Play {
            kind,
            model,
            begin: Instant::now(),
            mounts,
            server,
            slots: Default::default(),
            numbers: BTreeMap::new(),
            mapper: Mapper::start(),
            acts: Cell::new(0),
            late: 0,
            stale: 0,
        }
    }

    /// Does something as a separate process would: a process need not ask again about what it has
    /// just looked up.
    fn alone<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        self.acts.set(self.acts.get() + 1);
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    fn at(&self, who: Who, path: Path) -> PathBuf {
        self.mounts[who].join(relative(path))
    }

    fn at_server(&self, path: Path) -> PathBuf {
        self.server.join(relative(path))
    }

    /// What a step is about to do, and to which file, if it is about a descriptor or a name.
    /// `None`: nothing.
    pub(crate) fn describe(&self, step: &Step) -> Option<String> {
        let about = match (step.what.slot(), step.what) {
            (Some(slot), _) => format!("file {}", self.slot(step.who, slot)?.3),
            (_, Operation::Open { slot, .. }) if self.slots[step.who][slot].is_some() => {
                return None;
            }
            (
                _,
                Operation::Open { path, .. } | Operation::Unlink { path } | Operation::Map { path },
            ) => {
                format!("files {:?}", self.model.views(step.who, path))
            }
            (_, Operation::Rename { from, to } | Operation::Link { from, to }) => {
                let views = [from, to].map(|path| self.model.views(step.who, path));
                format!("files {views:?}")
            }
            _ => String::new(),
        };
        Some(format!("{step} {about}"))
    }

    /// Does one step.
    pub(crate) fn step(&mut self, Step { who, what }: Step) -> Wrong {
        self.model.now = self.begin.elapsed();
        match what {
            Operation::Open { slot, path, flags, look } => self.open(who, slot, path, flags, look),
            Operation::Close { slot, sync } => self.close(who, slot, sync),
            Operation::Sync { slot } => self.sync(who, slot),
            Operation::Read { slot, at, len } => self.read(who, slot, at, len),
            Operation::Write { slot, at, len } => self.write(who, slot, at, len),
            Operation::Append { slot, len } => self.append(who, slot, len),
            Operation::Truncate { slot, size } => self.truncate(who, slot, size),
            Operation::SizeOf { slot } => self.size_of(who, slot),
            Operation::Stat { path } => self.stat(who, path),
            Operation::Map { path } => self.map(who, path),
            Operation::Link { from, to } => self.link(who, from, to),
            Operation::Rename { from, to } => self.rename(who, from, to),
            Operation::Unlink { path } => self.unlink(who, path),
            Operation::Mkdir { dir } => self.mkdir(who, dir),
            Operation::Rmdir { dir } => self.rmdir(who, dir),
            Operation::List { dir } => self.list(who, dir),
        }
    }

    /// Whether the server has exactly what the model says, for all files.
    pub(crate) fn compare_all(&mut self) -> Wrong {
        (1..self.model.count()).try_for_each(|id| self.compare_with_server(id))
    }

    /// Closes everything.
    pub(crate) fn end(&mut self) -> Wrong {
        for who in 0..2 {
            (0..SLOTS).try_for_each(|slot| self.close(who, slot, true))?;
        }
        Ok(())
    }

    /// The open file in a slot.
    fn slot(&self, who: Who, slot: usize) -> Option<(u32, &File, Flags, Id)> {
        let (open, file, flags) = self.slots[who][slot].as_ref()?;
        Some((*open, file, *flags, self.model.open(*open).id))
    }

    fn open(&mut self, who: Who, slot: usize, path: Path, flags: Flags, look: bool) -> Wrong {
        let views = self.model.views(who, path);
        let is_unsent = |id: &Id| self.model.object(*id).is_unsent(1 - who);
        let cannot_cut = flags.truncate && views.iter().flatten().any(is_unsent);
        if self.slots[who][slot].is_some() || cannot_cut || !self.is_clear(who, path) {
            return Ok(());
        }
        self.await_word(who, path)?;
        let Flags { read, write, append, truncate, create, exclusive } = flags;
        let mut options = File::options();
        options.read(read).write(write).append(append).truncate(truncate && !append);
        options.create(create).create_new(exclusive);
        let at = self.at(who, path);
        match self.alone(|| options.open(at)) {
            Ok(file) => self.opened(who, slot, path, flags, file, look),
            Err(error) => {
                let may_exist = views.iter().any(Option::is_some);
                let may_lack =
                    views.contains(&None) && (!create || self.may_lack_parent(who, path));
                unless(
                    match error.raw_os_error() {
                        Some(libc::EEXIST) => exclusive && may_exist,
                        Some(libc::ENOENT) => may_lack,
                        _ => false,
                    },
                    &error,
                )
            }
        }
    }

    /// Whether a mount can only take a name for what it is. Changes by outdated names are not
    /// tested: they may affect another file.
    fn is_clear(&self, who: Who, path: Path) -> bool {
        self.model.views(who, path).len() == 1
    }

    fn may_lack_parent(&self, who: Who, path: Path) -> bool {
        let views = self.model.directory_views(who, path.dir);
        let is_gone = |dir: &Option<Id>| dir.is_none_or(|dir| self.model.object(dir).names == 0);
        self.model.parent(path).is_none() || path.dir.is_some() && views.iter().any(is_gone)
    }

    fn opened(
        &mut self,
        who: Who,
        slot: usize,
        path: Path,
        flags: Flags,
        file: File,
        look: bool,
    ) -> Wrong {
        let is_new = self.model.truth(path).is_none()
            && flags.create
            && self.at_server(path).symlink_metadata().is_ok();
        let id = if is_new {
            let there = self.at_server(path).symlink_metadata().unwrap().ino();
            let id = self.model.make(who, path);
            self.numbers.insert(there, id);
            id
        } else {
            self.model.truth(path).ok_or("it opened a file that is not there")?
        };
        if flags.exclusive && !is_new {
            return Err("an exclusive open found a file".to_owned());
        }
        if flags.truncate && !flags.append && !is_new {
            self.model.truncate(who, id, 0);
        }
        let open = self.model.opened(who, id, flags.write);
        let looked = if look && flags.read {
            let size = file.metadata().map_err(|error| format!("fstat: {error}"))?.len();
            let read =
                self.alone(|| read(&file, 0, ALL)).map_err(|error| format!("read: {error}"))?;
            let view = self.model.view(open);
            view.explain_size(size).and_then(|()| view.explain(0, ALL, &read))
        } else {
            Ok(())
        };
        self.slots[who][slot] = Some((open, file, flags));
        looked.map_err(|text| format!("just opened, file {id}: {text}"))
    }

    /// Where the notification of a change may be late, waits until it has come.
    fn await_word(&mut self, who: Who, path: Path) -> Wrong {
        let views = self.model.views(who, path);
        let [Some(id)] = views[..] else { return Ok(()) };
        if !self.kind.leases {
            return Ok(());
        }
        let deadline = Instant::now() + LATE_MAX;
        let at = self.at(who, path);
        for round in 0_u64.. {
            let seen = self.alone(|| File::open(&at).and_then(|file| read(&file, 0, ALL)));
            let seen = seen.map_err(|error| format!("a look before: {error}"));
            let wrong = seen.and_then(|seen| self.model.fresh(who, id).explain(0, ALL, &seen));
            match wrong {
                Err(wrong) if Instant::now() > deadline => {
                    return Err(format!("{LATE_MAX:?} later, file {id}: {wrong}"));
                }
                Err(_) => {}
                Ok(()) => {
                    self.late += u64::from(round > 0);
                    break;
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, who: Who, slot: usize, sync: bool) -> Wrong {
        if sync {
            self.sync(who, slot)?;
        }
        let Some((open, file, flags)) = self.slots[who][slot].take() else { return Ok(()) };
        let id = self.model.open(open).id;
        self.alone(move || drop(file));
        self.model.closed(open);
        if flags.write { self.compare_with_server(id) } else { Ok(()) }
    }

    fn sync(&mut self, who: Who, slot: usize) -> Wrong {
        let Some((_, file, flags, id)) = self.slot(who, slot) else { return Ok(()) };
        if !flags.write {
            return Ok(());
        }
        if let Err(error) = self.alone(|| file.sync_all()) {
            return self.in_vain(who, id, &error);
        }
        self.model.flush(who, id);
        self.compare_with_server(id)
    }

    fn in_vain(&mut self, who: Who, id: Id, error: &io::Error) -> Wrong {
        let allowed = self.may_be_stale(who, id, error);
        self.model.write_in_vain(who, id);
        unless(allowed, error)
    }

    fn may_be_stale(&self, who: Who, id: Id, error: &io::Error) -> bool {
        let may_go = !self.kind.opens_keep;
        may_go && is(error, libc::ESTALE) && self.model.may_be_stale(who, id)
    }

    /// Data that was closed or synced is at the server, as far as the file has a name that the test
    /// knows.
    fn compare_with_server(&mut self, id: Id) -> Wrong {
        let dirs = [None].into_iter().chain(DIRS.map(Some));
        let paths = dirs.flat_map(|dir| FILES.map(|name| Path { dir, name }));
        let Some(path) = paths.into_iter().find(|path| self.model.truth(*path) == Some(id)) else {
            return Ok(());
        };
        let bytes = self
            .read_at_server(id, path)
            .map_err(|error| format!("file {id} at the server by {path:?}: {error}"))?;
        let same = self.model.at_server(id).explain(0, ALL, &bytes);
        self.model.learn_size(id, bytes.len() as u64);
        same.map_err(|text| format!("at the server, file {id}: {text}"))
    }

    /// A mount with unsent bytes may just be sending them, since a lease was recalled: the reader
    /// is told that the file has changed, once for each of them.
    fn read_at_server(&self, id: Id, path: Path) -> io::Result<Vec<u8>> {
        let object = self.model.object(id);
        let mut sending = (0..2).filter(|who| object.is_unsent(*who));
        loop {
            match fs::read(self.at_server(path)) {
                Err(error) if is(&error, libc::ESTALE) && sending.next().is_some() => {}
                read => return read,
            }
        }
    }

    fn read(&mut self, who: Who, slot: usize, at: u64, len: u64) -> Wrong {
        let Some((open, file, flags, id)) = self.slot(who, slot) else { return Ok(()) };
        if !flags.read {
            return Ok(());
        }
        match self.alone(|| read(file, at, len)) {
            Ok(_) if self.model.object(id).written_in_vain[who] => Ok(()),
            Ok(seen) => {
                let same = self.model.view(open).explain(at, len, &seen);
                same.map_err(|text| format!("file {id}, {} bytes at {at}: {text}", seen.len()))
            }
            Err(error) => {
                let is_overtaken = is(&error, libc::ESTALE) && self.model.may_be_overtaken(open);
                let allowed = is_overtaken || self.may_be_stale(who, id, &error);
                self.stale += u64::from(allowed);
                unless(allowed, &error).map_err(|text| {
                    format!("file {id}, {} names: {text}", self.model.object(id).names)
                })
            }
        }
    }

    fn write(&mut self, who: Who, slot: usize, at: u64, len: u64) -> Wrong {
        let write = self.model.next_write();
        let Some((_, file, flags, id)) = self.slot(who, slot) else { return Ok(()) };
        if !flags.write || flags.append {
            return Ok(());
        }
        let bytes = content(write, at..at + len);
        if let Err(error) = self.alone(|| file.write_all_at(&bytes, at)) {
            return self.in_vain(who, id, &error);
        }
        self.written(who, id, at..at + len, write)
    }

    fn written(&mut self, who: Who, id: Id, range: Range<u64>, write: WriteId) -> Wrong {
        self.model.write(who, id, range, write);
        if !self.kind.writes_at_once {
            return Ok(());
        }
        self.model.flush(who, id);
        self.compare_with_server(id)
    }

    /// Where the end was not certain, the appended bytes are looked for at the server.
    fn append(&mut self, who: Who, slot: usize, len: u64) -> Wrong {
        let write = self.model.next_write();
        let Some((_, file, flags, id)) = self.slot(who, slot) else { return Ok(()) };
        let gone = self.model.object(id).names == 0;
        if !flags.append || gone || self.model.object(id).is_unsent(1 - who) {
            return Ok(());
        }
        let ends = self.model.told(who, id).ends();
        // From this mount's point of view the file may end anywhere, but only at one place.
        let [end] = ends[..] else { return Ok(()) };
        let bytes = content(write, end..end + len);
        if let Err(error) = self.alone(|| file.write_all_at(&bytes, 0)) {
            return self.in_vain(who, id, &error);
        }
        self.written(who, id, end..end + len, write)
    }

    fn truncate(&mut self, who: Who, slot: usize, size: u64) -> Wrong {
        let Some((_, file, flags, id)) = self.slot(who, slot) else { return Ok(()) };
        if !flags.write || self.model.object(id).is_unsent(1 - who) {
            return Ok(());
        }
        if let Err(error) = self.alone(|| file.set_len(size)) {
            return self.in_vain(who, id, &error);
        }
        self.model.truncate(who, id, size);
        self.compare_with_server(id)
    }

    fn size_of(&mut self, who: Who, slot: usize) -> Wrong {
        let Some((_, file, _, id)) = self.slot(who, slot) else { return Ok(()) };
        match self.alone(|| file.metadata()) {
            Ok(_) if self.model.object(id).written_in_vain[who] => Ok(()),
            Ok(seen) => {
                let same = self.model.told(who, id).explain_size(seen.len());
                same.map_err(|text| format!("file {id}: {text}"))
            }
            Err(error) => unless(self.may_be_stale(who, id, &error), &error),
        }
    }

    /// Accessing a mapping beyond the end kills the process. If a process of this mount reads a
    /// file by passthrough, the kernel shows the local file to all processes that map the file,
    /// whatever version it is.
    fn map(&mut self, who: Who, path: Path) -> Wrong {
        let [Some(id)] = self.model.views(who, path)[..] else { return Ok(()) };
        if self.model.kernel_writes && self.model.is_open(id, Some(who)) {
            return Ok(());
        }
        self.await_word(who, path)?;
        let seen = self.mapper.map(&self.at(who, path))?;
        let open = self.model.opened(who, id, false);
        let same = self.model.view(open).explain(0, ALL, &seen);
        self.model.closed(open);
        same.map_err(|text| format!("mapped, file {id}: {text}"))
    }
}
