//! What is known of a directory of the server in which something was made here: enough to answer
//! for names that do not exist, and to decide which users may make names.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};

use larder_vfs::{Attr, Change, Validator};

use crate::object::{Maker, Shown};

/// Most callers whose right to change a directory is remembered.
const WRITERS_MAX: usize = 16;

/// A directory of the server, as its only writer knows it.
#[derive(Clone, Debug)]
pub(crate) struct ServerDir {
    /// The server's last report.
    attr: Attr,
    /// The times that applications see instead, as long as the server's version is this one.
    shown: Option<Shown>,
    /// All names in it, if they are known.
    names: Option<HashSet<OsString>>,
    /// Other clients may have changed them, unless the server still has this version.
    is_doubtful: bool,
    /// The users who may search and change it.
    writers: Vec<Maker>,
}

impl ServerDir {
    /// Of a directory that the server has just described.
    pub(crate) fn new(attr: Attr) -> ServerDir {
        ServerDir { attr, shown: None, names: None, is_doubtful: false, writers: Vec::new() }
    }

    /// For a directory that was just made, here and at the server: its version is `shown`, and it
    /// is empty.
    pub(crate) fn made(attr: Attr, shown: Shown) -> ServerDir {
        ServerDir { shown: Some(shown), names: Some(HashSet::new()), ..ServerDir::new(attr) }
    }

    /// Whether objects made in it get its group.
    pub(crate) fn passes_group_on(&self) -> bool {
        self.attr.mode & 0o2000 != 0
    }

    /// The version of which something is known.
    pub(crate) fn version(&self) -> Validator {
        self.attr.validator()
    }

    /// The attributes as applications see them.
    pub(crate) fn shown(&self) -> Attr {
        self.show(self.attr)
    }

    /// The same of a description by the server.
    pub(crate) fn show(&self, mut attr: Attr) -> Attr {
        if let Some(shown) = &self.shown {
            shown.apply(&mut attr, None);
        }
        attr
    }

    /// Something was made or removed here: applications see the directory change.
    pub(crate) fn touch(&mut self, now: larder_vfs::Time) {
        let server = self.attr.validator();
        self.shown = Some(Shown { server, mtime: now, ctime: now });
    }

    /// The server describes the directory, which no other client changes: if it has another version
    /// nevertheless, its names are not known any more.
    pub(crate) fn observe(&mut self, attr: Attr) {
        if !self.attr.validator().same(&attr.validator()) {
            *self = ServerDir { is_doubtful: self.is_doubtful, ..ServerDir::new(attr) };
        }
        self.attr = attr;
    }

    /// A change of ours that applications have seen already. `follow` applies it to the names.
    pub(crate) fn replayed(
        &mut self,
        change: &Change,
        follow: impl FnOnce(&mut HashSet<OsString>),
    ) {
        let Some(after) = change.after.filter(|_| self.is_followed_by(change)) else {
            self.forget(change);
            return;
        };
        self.attr = after;
        if let Some(shown) = &mut self.shown {
            shown.server = after.validator();
        }
        self.names.as_mut().map(follow);
    }

    /// A change that was made at the server for a waiting caller, as it is reported to the caller.
    /// `names` applies it.
    pub(crate) fn passed(
        &mut self,
        mut change: Change,
        names: impl FnOnce(&mut HashSet<OsString>),
    ) -> Change {
        let follows = self.is_followed_by(&change);
        if let (Some(before), Some(shown)) = (&mut change.before, &self.shown) {
            shown.apply_before(before, None);
        }
        self.shown = None;
        match change.after.filter(|_| follows) {
            Some(after) => {
                self.attr = after;
                self.names.as_mut().map(names);
            }
            None => self.forget(&change),
        }
        change
    }

    /// Whether a change of ours directly follows what is known. For a server that does not report
    /// that, it does: no other client makes changes.
    fn is_followed_by(&self, change: &Change) -> bool {
        change.before.is_none() || change.follows(&self.attr.validator())
    }

    fn forget(&mut self, change: &Change) {
        let attr = change.after.unwrap_or(self.attr);
        *self = ServerDir { is_doubtful: self.is_doubtful, ..ServerDir::new(attr) };
    }

    /// Its mode or owner may be another one.
    pub(crate) fn forget_writers(&mut self) {
        self.writers.clear();
    }

    pub(crate) fn learn_names(&mut self, names: HashSet<OsString>) {
        self.names = Some(names);
    }

    /// It may have other names: the server has not said what it did to them.
    pub(crate) fn lose_names(&mut self) {
        self.names = None;
    }

    /// Another client may change it from now on.
    pub(crate) fn doubt_names(&mut self) {
        self.is_doubtful = true;
        self.forget_writers();
    }

    /// No other client can change it from now on, and the server describes it.
    pub(crate) fn confirm(&mut self, attr: Attr) {
        self.observe(attr);
        self.trust_names();
    }

    /// The same, if no other client can have changed it since it was described.
    pub(crate) fn trust_names(&mut self) {
        self.is_doubtful = false;
    }

    /// A name was removed.
    pub(crate) fn lose_name(&mut self, name: &OsStr) {
        if let Some(names) = &mut self.names {
            names.remove(name);
        }
    }

    /// Whether the server has such a name; `None`: that is not known.
    pub(crate) fn has(&self, name: &OsStr) -> Option<bool> {
        let names = self.names.as_ref().filter(|_| !self.is_doubtful);
        names.map(|names| names.contains(name))
    }

    pub(crate) fn learn_writer(&mut self, writer: Maker) {
        if self.writers.len() == WRITERS_MAX {
            self.writers.remove(0);
        }
        self.writers.push(writer);
    }

    pub(crate) fn has_writer(&self, writer: &Maker) -> bool {
        self.writers.contains(writer)
    }
}
