//! Requests that the kernel sends again, because the process that had them died.
//!
//! The server may have carried out the first attempt. A request that would fail for that reason
//! succeeds, if what is found is what the request would have made. Another client may have made it
//! at the same time; this cannot be determined, and the risk is taken only for requests that are
//! sent again.

use std::ffi::OsStr;
use std::sync::Arc;

use larder_vfs::{Attr, Change, Cookie, Cred, Error, Found, Kind, Made, New, Result, SetAttr};

use super::recover::on_handle;
use crate::core::Core;
use crate::node::Node;
use crate::node::RootSquash;

/// An attempt of ours changed the directory and its reply was not processed: what is known of its
/// names is dropped.
const UNSEEN: Change = Change { before: None, after: None };

/// Asked of a directory that should be empty.
const LISTING_BYTES_MAX: u32 = 4096;

impl Core {
    /// The result of a request to make `new`, given the server's answer.
    pub(crate) async fn resolve_make(
        &self,
        cred: &Cred,
        dir: &Arc<Node>,
        name: &OsStr,
        (new, set): (&New, SetAttr),
        answer: Result<Made>,
    ) -> Result<Made> {
        if !cred.retried || !matches!(answer, Err(Error::Exists)) {
            return answer;
        }
        let Some(found) = self.found(cred, dir, name).await? else { return answer };
        if !self.is_made(cred, &found, new).await? {
            return answer;
        }
        let mut found = found;
        if *new == New::FileExclusive {
            // The first attempt may have ended between making the file and giving it its
            // attributes.
            let changed = self.remote.setattr(cred, &found.handle, set, None).await?;
            found.attr = changed.after.unwrap_or(found.attr);
        }
        Ok(Made { found, dir: UNSEEN, created: false, token: None })
    }

    /// Whether `found` is what the first attempt would have made, still untouched.
    async fn is_made(&self, cred: &Cred, found: &Found, new: &New) -> Result<bool> {
        let attr = &found.attr;
        if !self.may_own(cred, attr) {
            return Ok(false);
        }
        Ok(match new {
            New::File => false,
            New::FileExclusive => attr.kind == Kind::File && attr.size == 0,
            New::Directory => {
                attr.kind == Kind::Directory && {
                    let (handle, start) = (&found.handle, Cookie::default());
                    let listing = self.remote.readdir(cred, handle, start, LISTING_BYTES_MAX);
                    listing.await?.entries.is_empty()
                }
            }
            New::Symlink(target) => {
                attr.kind == Kind::Symlink
                    && self.remote.readlink(cred, &found.handle).await?.0 == *target
            }
            New::Node(kind, device) => attr.kind == *kind && attr.device == *device,
        })
    }

    /// Whether the server may have given an object of the caller this owner: the caller's own id,
    /// or the one to which it maps user 0.
    fn may_own(&self, cred: &Cred, attr: &Attr) -> bool {
        attr.uid == cred.uid || (cred.uid == 0 && self.squash.known() != RootSquash::No)
    }

    /// The kernel asks again for a change by which a file is to lose this name: whether the file
    /// that had it has lost it, by the first attempt, or to another client. What is known of the
    /// file may count this, or not, so only the server can tell whether it has other names; and
    /// what has the name now must stay. A file that is hidden has notes of its own.
    pub(super) async fn was_lost_before(
        self: &Arc<Self>,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
    ) -> bool {
        if !cred.retried {
            return false;
        }
        // That the directory was changed since does not matter: it was, by the first attempt.
        let had = self.child(dir, name).or_else(|| self.doubtful(dir, name));
        let is_shown_file = |node: &Arc<Node>| {
            let state = node.state();
            state.known().attr.kind != Kind::Directory && state.hidden().name().is_none()
        };
        let Some(child) = had.filter(is_shown_file) else { return false };
        let Ok(found) = self.found(cred, dir, name).await else { return false };
        if found.as_ref().is_some_and(|found| Ok(&found.handle) == child.handle().as_ref()) {
            return false;
        }
        self.begin_change(dir);
        if found.is_none() {
            self.put_name(dir, name, None);
        }
        self.end_names_change(dir, Some(UNSEEN));
        match self.is_over(cred, &child).await {
            true => {
                self.keep_removal(&child).await;
                self.gone(&child);
            }
            false => self.doubt([Some(child)]),
        }
        true
    }

    /// The result of a removal.
    pub(crate) fn resolve_remove(cred: &Cred, answer: Result<Change>) -> Result<Change> {
        match answer {
            Err(Error::NotFound) if cred.retried => Ok(UNSEEN),
            answer => answer,
        }
    }

    /// The result of a rename: it was made if the source is gone and the target exists, and is the
    /// source as far as that is known.
    pub(crate) async fn resolve_rename(
        &self,
        cred: &Cred,
        source: Option<&Arc<Node>>,
        to: (&Arc<Node>, &OsStr),
        answer: Result<(Change, Change)>,
    ) -> Result<(Change, Change)> {
        if !cred.retried || !matches!(answer, Err(Error::NotFound)) {
            return answer;
        }
        let Some(target) = self.found(cred, to.0, to.1).await? else { return answer };
        if source.is_some_and(|source| source.handle().as_ref() != Ok(&target.handle)) {
            return answer;
        }
        Ok((UNSEEN, UNSEEN))
    }

    /// The result of a link.
    pub(crate) async fn resolve_link(
        &self,
        cred: &Cred,
        node: &Node,
        (dir, name): (&Arc<Node>, &OsStr),
        answer: Result<(Option<Attr>, Change)>,
    ) -> Result<(Option<Attr>, Change)> {
        if !cred.retried || !matches!(answer, Err(Error::Exists)) {
            return answer;
        }
        match self.found(cred, dir, name).await? {
            Some(found) if Ok(&found.handle) == node.handle().as_ref() => {
                Ok((Some(found.attr), UNSEEN))
            }
            _ => answer,
        }
    }

    /// Whether a name is one of `child` at the server now.
    pub(crate) async fn stands_for(
        &self,
        cred: &Cred,
        (dir, name): (&Arc<Node>, &OsStr),
        child: &Node,
    ) -> Result<bool> {
        let found = self.found(cred, dir, name).await?;
        Ok(found.is_some_and(|found| Ok(found.handle) == child.handle()))
    }

    /// What the server has under a name now.
    async fn found(&self, cred: &Cred, dir: &Arc<Node>, name: &OsStr) -> Result<Option<Found>> {
        let answer = on_handle!(self, cred, dir, handle => self.remote.lookup(cred, &handle, name));
        Ok(answer?.found)
    }
}
