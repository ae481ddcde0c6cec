//! Looks names up.
//!
//! A cached name is trusted while its directory's attributes are fresh and no other client's change
//! has begun a new epoch there.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_vfs::{Access, Answer, Cred, Error, Ino, LookedUp, Lookup, Result};

use super::recover::on_handle;
use crate::core::Core;
use crate::journal::name_bytes;
use crate::node::{Node, RootSquash, State};
use crate::options::LookupCache;

impl Core {
    /// Looks a name up, in memory if what is held is fresh enough.
    pub(crate) fn lookup(
        self: &Arc<Self>,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
    ) -> Answer<Lookup> {
        let dir = match self.node(parent) {
            Ok(dir) => dir,
            Err(error) => return Answer::fail(error),
        };
        if let Some(answer) = self.lookup_held(&dir, cred, name) {
            return Answer::Now(answer);
        }
        let (core, cred, name) = (self.clone(), self.caller(cred), name.to_owned());
        Answer::later(async move { core.lookup_remote(&dir, &cred, &name).await })
    }

    /// The answer, if it is held and fresh.
    fn lookup_held(&self, dir: &Node, cred: &Cred, name: &OsStr) -> Option<Result<Lookup>> {
        if name == ".." || !dir.state().is_directory() || !self.has_fresh_names(dir) {
            return None;
        }
        if self.options.lookup_cache == LookupCache::None && self.remote.reachable() {
            return None;
        }
        let granted = self.known_rights(dir, cred, Access::LOOKUP)?;
        if !granted.contains(Access::LOOKUP) {
            return Some(Err(Error::AccessDenied));
        }
        // The server may have changed it already. While the server is out of reach, no process of
        // this mount can have seen that.
        if self.changing.has(dir, name) && self.remote.reachable() {
            return None;
        }
        if self.is_away() {
            self.correct_name(dir, name)?;
        }
        let held = self.name(dir, name);
        if held.is_none() && self.is_away() && self.is_unlisted(dir, name) {
            return Some(Ok(Lookup::Absent { ttl: Duration::ZERO }));
        }
        if held.is_none() && !self.is_known_absent(dir, name) || self.wants_lease(dir) {
            return None;
        }
        let Some(child) = held.and_then(|held| held.child) else {
            let cached = self.options.lookup_cache == LookupCache::All;
            let ttl = self.name_ttl(dir, false);
            return cached.then_some(Ok(Lookup::Absent { ttl }));
        };
        let child = self.table.get(child).filter(|child| !child.state().is_gone())?;
        self.is_fresh(&child).then(|| Ok(Lookup::Found(self.entry(dir, &child))))
    }

    /// Whether all names of the directory are known and this is none of them, under a lease that
    /// ends before another client makes it.
    fn is_known_absent(&self, dir: &Node, name: &OsStr) -> bool {
        let state = dir.state();
        state.early_lease().is_some() && self.may_lack(&state, name)
    }

    /// The same, if there is such a lease.
    fn may_lack(&self, state: &State, name: &OsStr) -> bool {
        let limits = self.remote.limits();
        let is_asked = self.options.lookup_cache != LookupCache::All;
        let is_exact = !limits.case_insensitive && name.len() <= limits.name_max as usize;
        !is_asked && is_exact && state.whole().lacks(name_bytes(name))
    }

    /// The answer, if a lease on the directory makes one of what is held. If the client has to ask
    /// the server about the file in any case, no caller waits for the lease; later lookups have it.
    async fn lookup_leased(
        self: &Arc<Self>,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
    ) -> Result<Option<Result<Lookup>>> {
        if !self.wants_lease(dir) {
            return Ok(None);
        }
        let held = self.name(dir, name);
        let child = held.as_ref().map(|held| held.child.and_then(|ino| self.table.get(ino)));
        match child {
            None if self.may_lack(&dir.state(), name) => {
                self.ask_rights(dir, cred).await?;
                return Ok(self.lookup_held(dir, cred, name));
            }
            None if self.has_fresh_names(dir) => {}
            Some(child) if child.as_ref().is_none_or(|child| self.is_fresh(child)) => {
                self.ask_rights(dir, cred).await?;
                return Ok(self.lookup_held(dir, cred, name));
            }
            _ => self.lease_later(dir, cred),
        }
        Ok(None)
    }

    /// The answer, if many names of the directory were looked up, and a page of its listing has
    /// this one, or is all of it.
    async fn lookup_listed(
        &self,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
    ) -> Option<Result<Lookup>> {
        // Where names wait here, many are looked up without a call.
        let lists =
            self.options.lookup_cache != LookupCache::None && self.remote.deferring().is_none();
        if !lists || !dir.state().is_directory() {
            return None;
        }
        match self.list_ahead(dir, cred).await {
            Ok(true) => {
                let answer = self.lookup_held(dir, cred, name);
                dir.state().listed_mut().ahead().answered(answer.is_some());
                answer
            }
            Ok(false) => None,
            Err(error) => Some(self.lookup_held(dir, cred, name).unwrap_or(Err(error))),
        }
    }

    pub(crate) async fn lookup_remote(
        self: &Arc<Self>,
        dir: &Arc<Node>,
        cred: &Cred,
        name: &OsStr,
    ) -> Result<Lookup> {
        if name == ".." {
            return self.lookup_parent(dir, cred).await;
        }
        self.ask_root_squash(dir, cred).await?;
        if let Some(answer) = self.lookup_leased(dir, cred, name).await? {
            return answer;
        }
        if let Some(answer) = self.lookup_listed(dir, cred, name).await {
            return answer;
        }
        let (asked, epoch) = (self.now(), dir.state().known().epoch);
        let answer = on_handle!(self, cred, dir, handle => self.remote.lookup(cred, &handle, name));
        let LookedUp { found, dir: dir_attr } = match answer {
            Err(Error::TimedOut) => {
                // From now on the server is known to be out of reach, so what is held is an answer.
                return self.lookup_held(dir, cred, name).unwrap_or(Err(Error::TimedOut));
            }
            answer => answer?,
        };
        let epoch = self.observe_names(dir, dir_attr, (asked, epoch));
        dir.state().set_searched(cred, asked);
        // If the directory was changed in the meantime, by us or by others, what we know is more
        // reliable than this answer.
        let epoch = epoch.filter(|_| !dir.state().changed_since(asked));
        let Some(found) = found else {
            if let Some(epoch) = epoch {
                self.put_name_of(dir, name, None, epoch);
            }
            let ttl = epoch.map_or(Duration::ZERO, |_| self.name_ttl(dir, false));
            return Ok(Lookup::Absent { ttl });
        };
        let child = self.learn(&found, asked, Some((dir.ino, name.to_owned())));
        if let Some(epoch) = epoch {
            self.put_name_of(dir, name, Some(child.ino), epoch);
        }
        child.state().looked_up(cred.pid, self.now());
        Ok(Lookup::Found(self.entry(dir, &child)))
    }

    /// `..`, for front doors that ask for it: by where the directory was last seen, else from the
    /// server.
    async fn lookup_parent(self: &Arc<Self>, dir: &Arc<Node>, cred: &Cred) -> Result<Lookup> {
        let hint = dir.state().known().hint.as_ref().map(|(parent, _)| *parent);
        let parent = match hint.and_then(|ino| self.table.get(ino)) {
            _ if dir.ino == Ino::ROOT => dir.clone(),
            Some(parent) => parent,
            None => {
                let asked = self.now();
                let up = OsStr::new("..");
                let answer =
                    on_handle!(self, cred, dir, handle => self.remote.lookup(cred, &handle, up))?;
                self.learn(&answer.found.ok_or(Error::NotFound)?, asked, None)
            }
        };
        if !self.is_fresh(&parent) {
            self.revalidate(&parent, cred).await?;
        }
        Ok(Lookup::Found(self.entry(dir, &parent)))
    }

    /// The first private directory tells whether the server squashes root; one question per mount.
    async fn ask_root_squash(&self, dir: &Node, cred: &Cred) -> Result<()> {
        let private = !dir.state().searchable_by_all();
        if private && self.squash.known() == RootSquash::Unknown {
            self.ask_rights(dir, &Cred::root().until(cred.deadline)).await?;
        }
        Ok(())
    }
}
