//! The files below a directory that gets another name or class: those whose class is stronger from
//! then on, and whose bytes may be in the memory of other machines, are due elsewhere at once.
//!
//! There may be many, so nobody waits until they are there: when the call returns, the server has
//! on record that they are due. What is made or written below the directory while it is renamed
//! keeps the class with which that is done.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_class::{Class, Rule, Subject};
use larder_vfs::{Cred, DirEntry, Entry, Error, Ino, Kind, Lookup, Result};
use tokio::task::JoinSet;

use super::raise::leaves_within;
use crate::core::Core;
use crate::node::Node;

/// The time of what is due at once, and not waited for.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Entries of a directory that are read at a time, in bytes.
const LISTING_BYTES: u32 = 64 << 10;

/// Files of which the server is told at the same time.
const TOLD_MAX: usize = 32;

/// Where a directory is, as far as that decides on the classes of what is in it.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// The class that was set for it, or else for the nearest directory above, and for which.
    set: Option<(PathBuf, String)>,
}

impl Place {
    /// That of a directory in it, for which this class was set.
    fn of(&self, name: &OsStr, own: Option<String>) -> Place {
        let path = self.path.join(name);
        let set = own.map(|own| (path.clone(), own)).or_else(|| self.set.clone());
        Place { path, set }
    }

    fn set_class(&self) -> Option<&str> {
        self.set.as_ref().map(|(_, name)| name.as_str())
    }
}

/// A directory before and after the change.
type Both = (Place, Place);

impl Core {
    /// Where a directory is.
    pub(super) fn place(&self, dir: &Node) -> Place {
        Place { path: self.path_of(dir.ino), set: self.class_in(dir) }
    }

    /// The same after it was renamed, if this class is set for it.
    pub(super) fn place_after(&self, (dir, name): (&Node, &OsStr), own: Option<String>) -> Place {
        self.place(dir).of(name, own)
    }

    /// Has the server move, at once, what is to leave the memory of other machines since `dir` is
    /// in another place. On return it is on record that this is due.
    ///
    /// # Errors
    /// The server's: some of it may be moved nevertheless.
    pub(super) async fn raise_below(
        self: &Arc<Self>,
        cred: &Cred,
        dir: &Node,
        (before, after): Both,
    ) -> Result<()> {
        if !self.differs_below(&before, &after) {
            return Ok(());
        }
        // Who may rename a directory need not be able to list what is in it.
        let root = self.caller(&Cred::root());
        let (mut open, mut raising) = (vec![(dir.ino, (before, after))], JoinSet::new());
        while let Some((ino, places)) = open.pop() {
            let mut offset = 0;
            loop {
                let listed = match self.readdir(&root, ino, offset, LISTING_BYTES, true).await {
                    // Somebody else has removed it.
                    Err(Error::NotFound | Error::Stale) => break,
                    listed => listed?,
                };
                let Some(last) = listed.last() else { break };
                offset = last.offset;
                for listed in listed {
                    let Some(found) = self.entry_below(&root, ino, &listed).await? else {
                        continue;
                    };
                    // What was set for itself decides wherever it is.
                    if self.set_classes.of(found.ino).is_some() {
                        continue;
                    }
                    if found.fresh.attr.kind == Kind::Directory {
                        let of = |place: &Place| place.of(&listed.name, None);
                        open.push((found.ino, (of(&places.0), of(&places.1))));
                        continue;
                    }
                    while raising.len() >= TOLD_MAX {
                        self.raised_one(&mut raising).await?;
                    }
                    self.raise_in(cred, &listed.name, &found, &places, &mut raising);
                }
            }
        }
        while !raising.is_empty() {
            self.raised_one(&mut raising).await?;
        }
        Ok(())
    }

    /// Whether files may have another class in the second place: only those with a class that lets
    /// bytes be in the memory of other machines matter.
    fn differs_below(&self, before: &Place, after: &Place) -> bool {
        let classes = &self.options.classes;
        let is_volatile = |name: &str| classes.get(name).is_ok_and(|class| class.is_volatile());
        match (before.set_class(), after.set_class()) {
            (Some(before), after) => is_volatile(before) && Some(before) != after,
            (None, after) => {
                let rules = classes.rules();
                let was_volatile = classes.mount().is_volatile()
                    || rules.iter().any(|rule| is_volatile(rule.class()));
                let differs = after.is_some() || rules.iter().any(Rule::asks_for_directory);
                was_volatile && differs
            }
        }
    }

    /// What a name below the directory stands for. `None`: nothing any more.
    async fn entry_below(
        self: &Arc<Self>,
        root: &Cred,
        dir: Ino,
        listed: &DirEntry,
    ) -> Result<Option<Entry>> {
        if let Some(entry) = listed.entry {
            return Ok(Some(entry));
        }
        match self.lookup_remote(&self.node(dir)?, root, &listed.name).await {
            Ok(Lookup::Found(entry)) => Ok(Some(entry)),
            Ok(Lookup::Absent { .. }) | Err(Error::NotFound | Error::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins to raise a file, if its class is stronger in the second place.
    fn raise_in(
        self: &Arc<Self>,
        cred: &Cred,
        name: &OsStr,
        found: &Entry,
        (before, after): &Both,
        raising: &mut JoinSet<Result<()>>,
    ) {
        let attr = &found.fresh.attr;
        if attr.kind != Kind::File {
            return;
        }
        let class = |place: &Place| -> Arc<Class> {
            let choice = self.options.classes.choose(&Subject {
                path: &place.path.join(name),
                uid: attr.uid,
                size: attr.size,
                program: None,
                own: None,
                dir: place.set.as_ref().map(|(dir, name)| (dir.as_path(), name.as_str())),
            });
            choice.class
        };
        let (before, after) = (class(before), class(after));
        let Some(within) = leaves_within(&before, &after) else { return };
        let (core, cred, ino) = (Arc::clone(self), cred.clone(), found.ino);
        raising.spawn(async move {
            let node = core.node(ino)?;
            let mut weaker = core.open_files.of(ino);
            weaker.retain(|(_, open)| leaves_within(&open.class(), &after).is_some());
            let within = Some(within.max(AT_ONCE));
            core.change_open_files(&cred, (&node, &weaker), &after, within).await
        });
    }

    /// Waits for one file.
    async fn raised_one(&self, raising: &mut JoinSet<Result<()>>) -> Result<()> {
        match raising.join_next().await {
            Some(Ok(Err(Error::NotFound | Error::Stale)) | Ok(Ok(()))) | None => Ok(()),
            Some(Ok(refused)) => refused,
            Some(Err(_)) => Err(Error::Shutdown),
        }
    }
}
