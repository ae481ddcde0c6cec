//! Which file a handle means: a server may give the handle of a removed file to the next one it
//! makes (SMB reuses inode numbers), and answers arrive out of order.
//!
//! A file that is gone has given up its handle: the client no longer asks for it, and the handle
//! means whichever file has it from then on.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use larder_io::Monotonic;
use larder_vfs::{Ino, Made, Removal};

use super::table::{Moment, Node};
use crate::core::Core;
use crate::write::Event;

impl Core {
    /// Processes the description of what a call of ours has made, which began at `asked`, after
    /// `moment`. A server may give it the handle of a file that was removed (SMB: inode numbers are
    /// reused). Then that file is gone, even if the answer to its removal is still in flight, or if
    /// another client removed it.
    pub(crate) fn learn_made(
        &self,
        made: &Made,
        (asked, moment): (Monotonic, Moment),
        hint: (Ino, OsString),
    ) -> Arc<Node> {
        let given_again = self.remote.limits().by_name;
        let earlier = self.table.known_before(&made.found.handle, moment, (&hint, given_again));
        if let Some(earlier) = earlier.filter(|_| made.created) {
            self.gone(&earlier);
        }
        self.learn(&made.found, asked, Some(hint))
    }

    /// A name of `child`, which had so many `links` before the server was asked, is gone there.
    pub(crate) fn unlinked(
        &self,
        child: &Node,
        (dir, name): (&Node, &OsStr),
        what: Removal,
        links: u32,
    ) {
        // What only this machine knows is certain, and bytes that the server lacks depend on it.
        let is_named = self
            .remote
            .deferring()
            .is_some_and(|here| child.handle().is_ok_and(|handle| here.has_name(&handle)));
        let mut state = child.state();
        if state.is_gone() {
            return;
        }
        // The links that are known may be too few: other clients make links, and not every answer
        // reports them.
        let is_there = |(at, is): &(Ino, OsString)| *at == dir.ino && is == name;
        let is_hidden = state.hidden().name().is_some_and(|hidden| !is_there(hidden));
        // The server may have described the file meanwhile, without the name that is gone.
        let links = links.max(state.known().attr.nlink);
        let has_others = is_hidden || is_named || links > 1;
        let last = what == Removal::Directory || !has_others;
        if !last {
            state.lose_link();
            state.move_ctime(self.now());
            self.table.persist(child.ino, &mut state);
            return;
        }
        let elsewhere = state.known().hint.as_ref().is_some_and(|hint| !is_there(hint));
        drop(state);
        self.gone(child);
        if let (true, Some(kernel)) = (elsewhere, self.kernel.get()) {
            // It was found under another name while this one was being removed: that is another
            // file, with the same handle. The kernel has to look it up again.
            kernel.distrust_names();
        }
    }

    /// Hidden names that a file had, or may have had, are gone.
    pub(crate) fn hidden_names_are_gone(&self, names: &[(Ino, OsString)]) {
        for (dir, name) in names {
            if let Ok(dir) = self.node(*dir) {
                dir.hidden_name_is_gone(name);
            }
        }
    }

    /// The file is gone at the server, which may give its handle to the next file that is made.
    pub(crate) fn gone(&self, child: &Node) {
        let mut state = child.state();
        state.go();
        // If the hidden name of an open file is removed, nothing is left for its last release.
        let hidden = state.hidden_mut().take();
        let is_open = !state.opens().is_empty();
        if is_open {
            // An open file keeps its record; `Table::get_gone` finds it for a later process.
            self.cache.drop_key(child.no());
        } else {
            self.unsent_event(child.ino, &mut state, Event::GivenUp);
        }
        self.note_unfinished(child.ino, &mut state);
        drop(state);
        self.hidden_names_are_gone(&hidden);
        if !is_open {
            self.cache.drop_file(child.no());
            self.cache.drop_listing(child.no());
            self.cache.drop_node(child.no());
        }
    }
}
