//! What a process asks about names.

use std::ffi::{OsStr, OsString};

use larder_testkit::history::Span;
use larder_testkit::history::names::{self, Kind, Node, Refusal};
use larder_vfs::{Error, FileSystem, Ino, Lookup, New, OpenFlags, Removal, RenameFlags};
use tokio::sync::OwnedRwLockReadGuard;

use super::{DIRS, Dir, FILES, Player, mode, root};
use crate::kernel::{Changing, Kernel};
use crate::world::{Life, Outcome};

/// The most calls about names in one history, not counting those at its end.
const NAME_CALLS_MAX: usize = 100;

/// A name in a directory.
type At = (Dir, &'static str);

impl Player {
    pub(super) async fn step_of_names(&mut self, life: &Life) {
        if self.history.record.lock().unwrap().names.len() >= NAME_CALLS_MAX {
            return;
        }
        let top = self.root.unwrap();
        let Some(dir) = self.some_dir(life).await else { return };
        let name = self.random.one_of(&FILES);
        match self.random.below(12) {
            0..3 => self.make(life, dir, name, Kind::File).await,
            3..5 => {
                self.look(life, dir, name).await;
            }
            5..7 => self.remove(life, dir, name, Kind::File).await,
            7 => {
                let Some(other) = self.some_dir(life).await else { return };
                let to = self.random.one_of(&FILES);
                self.rename(life, (dir, name), (other, to)).await;
            }
            8 => {
                let Some(other) = self.some_dir(life).await else { return };
                let to = self.random.one_of(&FILES);
                self.link(life, (dir, name), (other, to)).await;
            }
            9 => {
                let is_top = dir.1 == top.1;
                let all = [FILES, DIRS].concat();
                self.list(life, dir, if is_top { &all } else { &FILES }).await;
            }
            10 => {
                let name = self.random.one_of(&DIRS);
                self.make(life, top, name, Kind::Directory).await;
            }
            _ if self.random.below(2) == 0 => {
                let name = self.random.one_of(&DIRS);
                self.remove(life, top, name, Kind::Directory).await;
            }
            _ => {
                let (from, to) = (self.random.one_of(&DIRS), self.random.one_of(&DIRS));
                self.rename(life, (top, from), (top, to)).await;
            }
        }
    }

    /// The directory of the history, or one of the directories in it.
    async fn some_dir(&mut self, life: &Life) -> Option<Dir> {
        let top = self.root.unwrap();
        match self.random.below(4) {
            0..2 => Some(top),
            below => self.look(life, top, DIRS[usize::from(below == 2)]).await,
        }
    }

    /// The locks of the client's kernel. Clients of an export have none.
    fn kernel<'a>(&self, life: &'a Life) -> Option<&'a Kernel> {
        (!self.history.is_of_export).then_some(&*life.kernel)
    }

    /// What the kernel locks for a lookup in a directory, or its listing.
    async fn looking(&self, life: &Life, dir: Dir) -> Option<OwnedRwLockReadGuard<()>> {
        match self.kernel(life) {
            Some(kernel) => Some(kernel.look(dir.0).await),
            None => None,
        }
    }

    /// What the kernel locks for a change of names in these directories, and then of what the names
    /// in `stays` and `goes` stand for, which it looks up: files, and directories that may go.
    async fn changing<'a>(
        &self,
        life: &'a Life,
        dirs: &[Dir],
        (stays, goes): (Option<At>, Option<At>),
    ) -> Option<Changing<'a>> {
        let dirs: Vec<Ino> = dirs.iter().map(|dir| dir.0).collect();
        let mut changing = self.kernel(life)?.change(self.root.unwrap().0, &dirs).await;
        let mut objects = Vec::new();
        for (at, may_go) in [(stays, false), (goes, true)] {
            let Some((dir, name)) = at else { continue };
            let found = life.call(move |client| client.lookup(&root(), dir.0, name.as_ref())).await;
            let Outcome::Done(Lookup::Found(entry)) = found else { continue };
            if may_go || entry.fresh.attr.kind == larder_vfs::Kind::File {
                objects.push(entry.ino);
            }
        }
        changing.with(objects).await;
        Some(changing)
    }

    /// The outcome of a call about names; an impossible answer is recorded.
    fn judged<T>(&self, what: &str, outcome: Outcome<T>) -> Option<Result<T, Refusal>> {
        let refusal = match outcome {
            Outcome::Done(done) => return Some(Ok(done)),
            Outcome::Unknown => return None,
            Outcome::Refused(Error::Exists) => Refusal::Exists,
            Outcome::Refused(Error::NotFound) => Refusal::Absent,
            Outcome::Refused(Error::NotEmpty) => Refusal::NotEmpty,
            Outcome::Refused(Error::Stale) => Refusal::Gone,
            Outcome::Refused(error) => {
                self.history.note(|record| record.odd.push(format!("{what}: {error}")));
                return None;
            }
        };
        Some(Err(refusal))
    }

    pub(super) async fn look(&self, life: &Life, dir: Dir, name: &'static str) -> Option<Dir> {
        let looking = self.looking(life, dir).await;
        let look = self.timed(life, move |client| client.lookup(&root(), dir.0, name.as_ref()));
        let ((span, found), is_attended) = life.attended(look).await;
        drop(looking);
        let found = self.judged("lookup", found)?.map(|found| match found {
            Lookup::Found(entry) => Some((entry.ino, life.node(entry.fresh.attr.fileid))),
            Lookup::Absent { .. } => None,
        });
        if !is_attended {
            return None;
        }
        let answer = found.map(|found| found.map(|found| found.1));
        self.history.note_name(life, span, names::Call::Look { at: (dir.1, name), answer });
        found.ok().flatten()
    }

    pub(super) async fn list(&self, life: &Life, dir: Dir, all: &[&'static str]) {
        let _looking = self.looking(life, dir).await;
        let made = self.history.tick();
        let (Some(seen), true) = life.attended(self.listed(life, dir.0)).await else { return };
        let span = Span { made, answered: Some(self.history.tick()) };
        // What a client that died had not begun to send of the file that all write is kept beside
        // it, if another client has written it since.
        let beside = format!("{}.conflict-", self.history.file_name);
        let is_aside = |name: &&OsString| {
            let name = name.to_string_lossy();
            name.contains(".conflict-") && !name.starts_with(&beside)
        };
        for name in seen.iter().map(|entry| &entry.0).filter(is_aside) {
            self.history.note(|record| record.odd.push(format!("{} is listed", name.display())));
        }
        for name in all {
            let found = seen.iter().find(|(seen, _)| seen == OsStr::new(name));
            let answer = Ok(found.map(|found| found.1));
            self.history.note_name(life, span, names::Call::Look { at: (dir.1, name), answer });
        }
    }

    /// All entries of a directory, with their numbers.
    async fn listed(&self, life: &Life, dir: Ino) -> Option<Vec<(OsString, Node)>> {
        let (mut seen, mut offset) = (Vec::new(), 0);
        loop {
            let page =
                life.call(move |client| client.readdir(&root(), dir, offset, 1 << 16, false));
            let Outcome::Done(page) = page.await else { return None };
            let Some(last) = page.last() else { return Some(seen) };
            offset = last.offset;
            seen.extend(page.into_iter().map(|entry| (entry.name, life.node(entry.fileid))));
        }
    }

    async fn make(&self, life: &Life, dir: Dir, name: &'static str, kind: Kind) {
        let _alone = self.changing(life, &[dir], (None, None)).await;
        let (span, made) = if kind == Kind::Directory {
            let make = move |client: &larder_client::Client| {
                client.make(&root(), dir.0, name.as_ref(), New::Directory, mode(0o755))
            };
            let (span, made) = self.timed(life, make).await;
            (
                span,
                self.judged("mkdir", made)
                    .map(|made| made.map(|entry| life.node(entry.fresh.attr.fileid))),
            )
        } else {
            let make = move |client: &larder_client::Client| {
                let flags = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
                client.create(&root(), dir.0, name.as_ref(), mode(0o644), flags)
            };
            let (span, made) = self.timed(life, make).await;
            let made = self.judged("create", made);
            if let Some(Ok((entry, opened))) = &made {
                let (ino, id) = (entry.ino, opened.id);
                life.call(move |client| client.release(ino, id)).await;
            }
            (span, made.map(|made| made.map(|(entry, _)| life.node(entry.fresh.attr.fileid))))
        };
        let unheard = || Ok(names::unheard(span.made));
        let answer = made.unwrap_or_else(unheard);
        self.history.note_name(life, span, names::Call::Make { at: (dir.1, name), kind, answer });
    }

    async fn remove(&self, life: &Life, dir: Dir, name: &'static str, kind: Kind) {
        let what = if kind == Kind::File { Removal::File } else { Removal::Directory };
        let _alone = self.changing(life, &[dir], (None, Some((dir, name)))).await;
        let (span, removed) = self
            .timed(life, move |client| client.remove(&root(), dir.0, name.as_ref(), what))
            .await;
        let answer = self.judged("remove", removed).unwrap_or(Ok(()));
        self.history.note_name(life, span, names::Call::Remove { at: (dir.1, name), kind, answer });
    }

    async fn rename(&self, life: &Life, from: (Dir, &'static str), to: (Dir, &'static str)) {
        let _alone = self.changing(life, &[from.0, to.0], (Some(from), Some(to))).await;
        let rename = move |client: &larder_client::Client| {
            let (old, new) = ((from.0.0, from.1.as_ref()), (to.0.0, to.1.as_ref()));
            client.rename(&root(), old, new, RenameFlags::default())
        };
        let (span, renamed) = self.timed(life, rename).await;
        let answer = self.judged("rename", renamed).unwrap_or(Ok(()));
        let (from, to) = ((from.0.1, from.1), (to.0.1, to.1));
        self.history.note_name(life, span, names::Call::Rename { from, to, answer });
    }

    async fn link(&self, life: &Life, from: (Dir, &'static str), to: (Dir, &'static str)) {
        let Some((ino, file)) = self.look(life, from.0, from.1).await else { return };
        let mut alone = self.changing(life, &[to.0], (None, None)).await;
        if let Some(alone) = &mut alone {
            alone.with([ino]).await;
        }
        let (span, linked) =
            self.timed(life, move |client| client.link(&root(), ino, to.0.0, to.1.as_ref())).await;
        let linked = self.judged("link", linked);
        let answer = linked.map_or(Ok(()), |linked| linked.map(drop));
        self.history.note_name(life, span, names::Call::Link { file, to: (to.0.1, to.1), answer });
    }
}
