//! Reports events to the owner of a file's unsent data, under its node's lock, and carries out the
//! immediate consequences.

use std::time::Duration;

use larder_cache::FileNo;
use larder_vfs::Ino;

use super::unsent::{Actions, Context, Event};
use crate::core::Core;
use crate::node::{Node, State};

impl Core {
    /// Reports what happened to the unsent data of a file, under the node's lock, and does at once
    /// what follows: the engine gets the due time, the session log what the next process has to
    /// know, and the kernel is told to drop pages that belong to no version.
    pub(crate) fn unsent_event(&self, ino: Ino, state: &mut State, event: Event<'_>) {
        let actions = self.apply(ino, state, event);
        debug_assert!(!actions.send && !actions.set_aside, "{event:?} is not the engine's");
    }

    /// The same. What takes longer is left to the caller: [`Actions::send`] and
    /// [`Actions::set_aside`].
    pub(super) fn apply(&self, ino: Ino, state: &mut State, event: Event<'_>) -> Actions {
        let before = state.unsent().schedule();
        let was_there = state.unsent().since().is_some() && !matches!(event, Event::Sent);
        let context = Context {
            kernel_writes: state.opens().bypassing(),
            now: self.clock.instant(),
            age: state.unsent().age(self.options.unsent_age_max),
            is_away: self.is_away(),
        };
        let mut actions = state.unsent_mut().apply(event, context);
        // What an earlier process left was judged by that process.
        let is_left = matches!(event, Event::Recovered { .. });
        if !was_there && !is_left && self.is_moved_below(ino, state) {
            actions.record |= state.unsent_mut().requests_mut().make();
        }
        self.engine.replan(ino, before, state.unsent().schedule());
        if actions.record {
            self.note_unfinished(ino, state);
        }
        if actions.drop_pages {
            debug_assert!(!state.opens().bypassing(), "who writes the local file keeps it");
            self.drop_pages(ino, state);
        }
        actions
    }

    /// Whether something is unsent of a file, and the server may have a change of ours that the
    /// version below it lacks.
    fn is_moved_below(&self, ino: Ino, state: &State) -> bool {
        let below = || self.cache.file(FileNo(ino.0)).version();
        self.tells_requests()
            && state.unsent().since().is_some()
            && (state.may_be_moved() || below() != Some(state.version().bytes()))
    }

    /// No caller will send what is unsent of a file: the engine does, after `wait`, repeatedly for
    /// as long as the server is out of reach. What the server refuses then is set aside.
    pub(crate) fn leave_unsent(&self, node: &Node, wait: Duration) {
        self.unsent_event(node.ino, &mut node.state(), Event::Left { wait });
    }

    /// A file is opened whose class lets bytes be unsent for `age`, or for as long as the mount
    /// allows.
    pub(crate) fn unsent_promise(&self, node: &Node, age: Option<Duration>) {
        let (usual, mut state) = (self.options.unsent_age_max, node.state());
        let others = self.open_files.any_of(node.ino, |open| open.flags.write);
        if state.unsent_mut().promise(age, usual, others) {
            let wait = state.unsent().age(usual);
            self.unsent_event(node.ino, &mut state, Event::Left { wait });
        }
    }

    /// Updates size and time of a file that the kernel writes itself.
    pub(crate) fn refresh_local_end(&self, node: &Node) {
        let mut state = node.state();
        if !state.opens().bypassing() {
            return;
        }
        if let Some(end) = state.opens_mut().look() {
            self.unsent_event(node.ino, &mut state, Event::KernelWrote(end));
        }
    }

    /// Whether the file may have bytes that the server lacks.
    pub(crate) fn has_unsent(&self, node: &Node) -> bool {
        node.state().has_unsent()
    }
}
