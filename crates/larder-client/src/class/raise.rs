//! Bytes in the memory of other machines that are to be on the server's disk, because their file
//! gets a stronger class, or a name of one; or in the archive. So are the records of objects
//! without bytes that the server may lose.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_class::Class;
use larder_vfs::{Cred, Kind, Lookup, Result};

use super::volatile;
use crate::core::Core;
use crate::names::on_handle;
use crate::node::Node;

/// Within which time bytes that a class left in the memory of other machines must be on the
/// server's disk if their file has another class; `None`: they may stay.
pub(super) fn leaves_within(before: &Class, after: &Class) -> Option<Duration> {
    let before_raise = volatile(before).filter(|_| !before.promised.keeps(&after.promised))?;
    match volatile(after) {
        // The server's disk is stronger than any number of memories.
        Some(volatile) if volatile.copies <= before_raise.copies => volatile.due,
        Some(_) | None => Some(Duration::ZERO),
    }
}

/// Whether a file is to be in the archive, or to be there earlier, if it has another class.
fn is_archived_earlier(before: &Class, after: &Class) -> bool {
    let after = after.archive_within();
    after.is_some_and(|after| before.archive_within().is_none_or(|before| after < before))
}

impl Core {
    /// The file that a rename may raise: the known one, or the one that the server has, if what the
    /// name stands for is not known.
    ///
    /// # Errors
    /// Those of a lookup.
    pub(crate) async fn child_to_raise(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
        known: Option<&Arc<Node>>,
    ) -> Result<Option<Arc<Node>>> {
        if known.is_some() || !self.names_may_raise() {
            return Ok(known.cloned());
        }
        match self.lookup_remote(dir, cred, name).await? {
            Lookup::Found(entry) => Ok(self.table.get(entry.ino)),
            _ => Ok(None),
        }
    }

    /// Whether some name has a stronger class than some file whose bytes may be in the memory of
    /// other machines, or has one with an archive.
    fn names_may_raise(&self) -> bool {
        let may_differ = !self.options.classes.rules().is_empty() || !self.set_classes.is_empty();
        may_differ && (self.may_be_in_memory() || self.may_be_archived())
    }

    /// Whether files of some class are to be in an archive.
    fn may_be_archived(&self) -> bool {
        let mut classes = self.options.classes.all();
        classes.any(|(_, class)| class.is_ok_and(|class| class.archive_within().is_some()))
    }

    /// Whether the server may have bytes in the memory of other machines.
    fn may_be_in_memory(&self) -> bool {
        let mut classes = self.options.classes.all();
        classes.any(|(_, class)| class.is_ok_and(Class::is_volatile))
    }

    /// Before an object gets a name, and perhaps a class of its own with it: if that makes its
    /// class stronger, open files of a weaker one get that class, what was written through them
    /// is sent, and all of the file's bytes leave the memory of other machines. If the new class
    /// has an archive, the file is due there. Of what is in a directory, bytes that are to leave
    /// memory are due elsewhere at once.
    ///
    /// # Errors
    /// The server's; [`larder_vfs::Error::NotSupported`] if it has no archive, and the class does;
    /// [`larder_vfs::Error::Busy`] if every write is to be at the server, and the
    /// kernel itself writes the file.
    pub(crate) async fn raise_for_name(
        self: &Arc<Self>,
        cred: &Cred,
        node: &Arc<Node>,
        name: (&Node, &OsStr),
        inherited: Option<&str>,
    ) -> Result<()> {
        if !self.names_may_raise() {
            return Ok(());
        }
        let own = self.set_classes.of(node.ino);
        let after = self.class_with_name(node, name, own.as_deref().or(inherited));
        let before = self.class_for_owner(node).class;
        let within = leaves_within(&before, &after);
        let kind = node.state().known().attr.kind;
        if kind != Kind::File {
            if let Some(within) = within {
                self.leave_memory(cred, node, within).await?;
            }
            if kind == Kind::Directory {
                let own = own.or(inherited.map(str::to_owned));
                let places = (self.place(node), self.place_after(name, own));
                Box::pin(self.raise_below(cred, node, places)).await?;
            }
            return Ok(());
        }
        let is_raised = |before: &Class| {
            leaves_within(before, &after).is_some() || is_archived_earlier(before, &after)
        };
        if !is_raised(&before) {
            return Ok(());
        }
        let mut weaker = self.open_files.of(node.ino);
        weaker.retain(|(_, open)| is_raised(&open.class()));
        self.change_open_files(cred, (node, &weaker), &after, within).await
    }

    /// Has the server put a file into the archive within this time, as it is.
    pub(super) async fn archive_file(
        &self,
        cred: &Cred,
        node: &Arc<Node>,
        within: Duration,
    ) -> Result<()> {
        if node.state().known().attr.kind != Kind::File {
            return Ok(());
        }
        let within = Some(within);
        on_handle!(self, cred, node, handle => self.remote.in_archive(cred, &handle, within))
            .map(drop)
    }

    /// Has the server move a file's bytes from memory to its disk, and lose no other object's
    /// records. It keeps these in memory for a moment only, so a time has no meaning for them.
    pub(super) async fn leave_memory(
        &self,
        cred: &Cred,
        node: &Arc<Node>,
        within: Duration,
    ) -> Result<()> {
        let is_file = node.state().known().attr.kind == Kind::File;
        if !self.may_be_in_memory() || (!is_file && !within.is_zero()) {
            return Ok(());
        }
        on_handle!(self, cred, node, handle => self.remote.leave_memory(cred, &handle, within))
    }
}

#[cfg(test)]
mod tests {
    use larder_class::{Sources, load};

    use super::*;

    #[test]
    fn what_a_raise_has_to_move() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("larder.toml");
        let text = "[class.minute]\nlike = 'volatile'\ndurable = '1min'\n\
                    [class.hour]\nlike = 'volatile'\ndurable = '1h'\n\
                    [class.twice]\nlike = 'volatile'\nshared = { copies = 2 }\n";
        std::fs::write(&file, text).unwrap();
        let sources = Sources { files: vec![file], ..Sources::default() };
        let classes = load(
            &sources,
            &crate::shared_offer("a volume", crate::Here::DISK, Duration::from_secs(30)),
        )
        .unwrap();
        let (now, minute) = (Some(Duration::ZERO), Duration::from_secs(60));
        for (before, after, within) in [
            ("volatile", "volatile", None),
            ("volatile", "edited", now),
            ("volatile", "critical", now),
            ("volatile", "generated", now),
            ("scratch", "edited", now),
            ("volatile", "minute", Some(minute)),
            ("hour", "minute", Some(minute)),
            ("minute", "hour", None),
            ("minute", "volatile", None),
            ("volatile", "twice", now),
            ("twice", "volatile", None),
            ("twice", "edited", now),
            ("edited", "volatile", None),
            ("edited", "critical", None),
        ] {
            let [one, other] = [before, after].map(|name| classes.get(name).unwrap());
            assert_eq!(leaves_within(&one, &other), within, "{before} {after}");
        }
    }
}
