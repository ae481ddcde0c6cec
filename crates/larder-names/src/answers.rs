//! [`Names`] as the client's [`Deferring`]: what may be answered here, and what waits for the
//! server.

use std::ffi::OsStr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use larder_vfs::{
    Attr, Change, Cred, Deferred, Deferring, Future, Handle, Held, Remote, Result, SetAttr, Time,
    Validator,
};

use crate::due;
use crate::names::Names;
use crate::object::Dir;
use crate::overlay::There;
use crate::shared::Target;
use crate::which::Which;

impl Deferring for Names {
    fn names(&self) -> &dyn Remote {
        self
    }

    fn is_away(&self) -> bool {
        self.shared.is_away()
    }

    fn is_sole(&self) -> bool {
        self.shared.licence.sole
    }

    fn may_be_offline(&self) -> bool {
        self.shared.licence.offline
    }

    fn is_kept_enough(&self) -> bool {
        self.shared.licence.is_kept_enough(self.remote())
    }

    fn outdates_listings(&self) -> bool {
        self.shared.is_away() || self.shared.unchecked().is_some()
    }

    fn found_again(&self, before: &Handle, now: &Handle) {
        self.shared.found_again(before, now);
    }

    fn held_by(&self, held: Weak<dyn Held>) {
        // Only the first counts.
        let _ = self.shared.held.set(held);
    }

    fn begin(&self) {
        tokio::spawn(due::run(Arc::downgrade(&self.shared)));
    }

    fn promise(&self, file: &Handle, within: Duration) {
        let mut state = self.shared.state();
        if let Some(no) = state.journal().number_in(file)
            && state.journal().waiting(no).is_some()
        {
            self.shared.set_due(&mut state, no, Some(within));
        }
    }

    fn promise_link(&self, dir: &Handle, name: &OsStr, within: Duration) -> bool {
        let mut state = self.shared.state();
        let dentry = state.dentry(dir, name);
        let Some(no) = state.journal().links().at(&dentry.dir, name) else { return false };
        self.shared.set_due(&mut state, no, Some(within));
        true
    }

    fn set_here(
        &self,
        cred: &Cred,
        file: &Handle,
        set: &SetAttr,
        written_ns: Option<i64>,
    ) -> Option<Result<Change>> {
        match self.shared.target(file) {
            Ok(Target::Waiting(no)) if self.defers() => {
                self.shared.set_here(cred, no, set, written_ns)
            }
            Ok(Target::Server(server)) if self.defers() => {
                self.shared.alter_here(cred, (file, server), set)
            }
            _ => None,
        }
    }

    fn claim<'a>(&'a self, cred: &'a Cred, file: &'a Handle, shown: &'a Attr) -> Future<'a, ()> {
        Box::pin(self.shared.claim(cred, file, shown))
    }

    fn is_claimed(&self, file: &Handle) -> bool {
        let state = self.shared.state();
        state.journal().server_handle(file).is_some_and(|server| state.is_claimed(server))
    }

    fn emptied(&self) -> Vec<(Handle, Attr)> {
        self.shared.emptied()
    }

    fn lacks_bytes(&self, file: &Handle) -> bool {
        matches!(self.shared.target(file), Ok(Target::Waiting(_)))
    }

    fn given_time(&self, file: &Handle, written_ns: i64) -> Option<Time> {
        let state = self.shared.state();
        let given = state.journal().get(state.journal().number_in(file)?)?.given?;
        (written_ns <= given.over_ns).then_some(given.mtime)
    }

    fn attributes_here(&self, file: &Handle) -> Option<Attr> {
        let state = self.shared.state();
        state.attr(state.journal().number_in(file)?)
    }

    fn keep(&self) -> Future<'_, ()> {
        Box::pin(self.shared.keep())
    }

    fn replay<'a>(&'a self, file: Option<&'a Handle>) -> Future<'a, ()> {
        if file.is_none() {
            self.shared.state().all_is_due(self.shared.clock.instant());
        }
        Box::pin(async move {
            let Some(file) = file else { return self.shared.replay_which(&Which::All).await };
            for no in self.shared.changes_of(file) {
                self.shared.replay_one(no, None).await?;
            }
            Ok(())
        })
    }

    fn replay_limited(&self) -> Future<'_, ()> {
        self.shared.state().all_is_due(self.shared.clock.instant());
        Box::pin(async { self.shared.replay_limited(&Which::All).await })
    }

    fn make_limited<'a>(
        &'a self,
        file: &'a Handle,
    ) -> Pin<Box<dyn std::future::Future<Output = ()> + Send + 'a>> {
        Box::pin(self.shared.make_limited(file))
    }

    fn beneath(&self, file: &Handle, shown: &Validator) -> Option<Validator> {
        let state = self.shared.state();
        let server = state.journal().server_handle(file)?;
        let (_, altered) = state.journal().altered(server)?;
        altered.beneath(shown)
    }

    fn name_here(
        &self,
        dir: &Handle,
        name: &OsStr,
        held: Option<&Handle>,
    ) -> Option<Option<Handle>> {
        let here = self.shared.is_here(dir, name);
        let state = self.shared.state();
        let journal = state.journal();
        let Some(here) = here else {
            // What waits has all its names on record, and what is gone has none.
            let no = journal.number_in(held?)?;
            let is_elsewhere = match journal.waiting(no) {
                Some((dentry, _)) => *dentry != state.dentry(dir, name),
                None => journal.get(no).is_none(),
            };
            return is_elsewhere.then_some(None);
        };
        let Some(here) = here else { return Some(None) };
        Some(match here {
            There::Waiting(no) => Some(journal.handle(no)),
            There::Moved(no) => {
                let server = &journal.taken().get(no)?.handle;
                let made = journal.of_server(server);
                Some(made.map_or_else(|| server.clone(), |no| journal.handle(no)))
            }
            There::Linked(no) => Some(journal.client_handle(&journal.links().get(no)?.file)),
            There::Server(found) => Some(found.handle),
        })
    }

    fn is_removed(&self, file: &Handle) -> bool {
        let state = self.shared.state();
        match state.journal().number_in(file) {
            Some(no) => {
                let named = state.journal().named(no);
                state.is_gone(no) || named.is_some_and(|it| state.journal().is_gone(&it.handle))
            }
            None => state.journal().is_gone(file),
        }
    }

    fn loses_name(&self, file: &Handle) -> bool {
        let state = self.shared.state();
        let server = state.journal().server_handle(file);
        let doubt = server.and_then(|server| state.journal().doubts().of(server));
        doubt.is_some_and(|(_, doubt)| doubt.loses_name)
    }

    fn has_name(&self, file: &Handle) -> bool {
        let state = self.shared.state();
        let file = state.journal().identity(file);
        let waits = matches!(file, Dir::Made(no) if state.journal().waiting(no).is_some());
        waits || state.journal().links().count_of(&file) > 0
    }

    fn awaited(&self, file: &Handle) -> Option<Deferred> {
        let state = self.shared.state();
        let no = state.journal().number_in(file)?;
        self.shared.tell(&state, no)
    }

    fn deferred(&self) -> Vec<Deferred> {
        let state = self.shared.state();
        state.all_due().filter_map(|(no, _)| self.shared.tell(&state, no)).collect()
    }
}
