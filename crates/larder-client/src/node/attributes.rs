//! Attributes and rights: how fresh they must be, and how the server is asked for them.
//!
//! If the server is out of reach, cached attributes are used, even stale ones. Rights for which the
//! server was not asked in time are then derived from the mode bits, and user 0 gets no more than
//! they allow unless the server is known not to squash root.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{
    Access, Answer, Cred, Error, Fresh, Ino, Intent, Judged, Kind, Lease, RemoteOpened, Result,
    StatFs, Token,
};

use super::changes::Seen;
use super::squash::RootSquash;
use super::table::Node;
use super::verdicts;
use crate::core::Core;
use crate::names::on_handle;

/// Space and limits change slowly and are asked for often.
const STATFS_TTL: Duration = Duration::from_secs(1);

/// Longest wait until the kernel has dropped pages of a file whose attributes are asked for. It
/// does so at once, unless another request has locked one.
const PAGES_WAIT_MAX: Duration = Duration::from_secs(1);

impl Core {
    /// Attributes as fresh as their timeout asks, from memory if they are.
    pub(crate) fn getattr(self: &Arc<Self>, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        match self.node(ino) {
            Ok(node) => self.getattr_of(cred, node),
            Err(error) => Answer::fail(error),
        }
    }

    /// The same for a node.
    pub(crate) fn getattr_of(self: &Arc<Self>, cred: &Cred, node: Arc<Node>) -> Answer<Fresh> {
        let is_known = self.is_fresh(&node) && !self.lacks_ctime(&node);
        if is_known && self.pages_to_drop(&node).is_none() {
            return Answer::ok(self.fresh(&node));
        }
        let (core, cred) = (self.clone(), self.caller(cred));
        Answer::later(async move {
            if !is_known {
                core.revalidate(&node, &cred).await?;
            }
            if let Some(dropped) = core.pages_to_drop(&node) {
                let _ = core.clock.timeout(PAGES_WAIT_MAX, dropped).await;
            }
            Ok(core.fresh(&node))
        })
    }

    /// Whether a change of ours moved the ctime, and the server must be asked for the new one.
    fn lacks_ctime(&self, node: &Node) -> bool {
        let state = node.state();
        let is_told = state.changing() || state.is_gone() || !self.remote.reachable();
        state.ctime_is_old() && !is_told
    }

    /// Asks the server for the attributes. The names of a directory need a lease too, which is
    /// requested in the background.
    pub(crate) async fn revalidate(self: &Arc<Self>, node: &Arc<Node>, cred: &Cred) -> Result<()> {
        if node.state().is_directory() {
            self.lease_later(node, cred);
        }
        self.ask_attributes(node, cred).await
    }

    pub(crate) async fn ask_attributes(&self, node: &Node, cred: &Cred) -> Result<()> {
        let asked = self.now();
        match on_handle!(self, cred, node, handle => self.remote.getattr(cred, &handle)) {
            Ok(attr) => {
                self.observe(node, attr, asked);
                Ok(())
            }
            Err(Error::TimedOut) => self.use_what_is_held(node, "getattr"),
            Err(error) => Err(error),
        }
    }

    /// The server did not answer: logs that once per failure, and continues with what is cached.
    fn use_what_is_held(&self, node: &Node, operation: &str) -> Result<()> {
        tracing::warn!(ino = node.ino.0, operation, "no answer in time; serving what is cached");
        Ok(())
    }

    /// Asks the server what `cred` may do; the reply also has attributes, and a lease if one is
    /// available. Returns `None` if the server does not answer.
    pub(crate) async fn ask_rights(&self, node: &Node, cred: &Cred) -> Result<Option<Access>> {
        let asked = self.now();
        let answer =
            on_handle!(self, cred, node, handle => self.remote.access(cred, &handle, Access::ALL));
        let answer = answer.map(|Judged { granted, attr, lease }| RemoteOpened {
            granted,
            attr,
            lease,
            token: None,
        });
        Ok(self.take_judged(node, cred, asked, answer).await?.map(|opened| opened.granted))
    }

    /// Opens a file at the server; the reply has all that [`Core::ask_rights`] returns, and a token
    /// if the server has opens. Returns `None` if the server does not answer.
    async fn ask_open(
        &self,
        node: &Node,
        cred: &Cred,
        intent: Intent,
    ) -> Result<Option<RemoteOpened>> {
        let asked = self.now();
        let answer =
            on_handle!(self, cred, node, handle => self.remote.open(cred, &handle, intent));
        self.take_judged(node, cred, asked, answer).await
    }

    /// Processes the server's reply about a file and about what `cred` may do, to a request sent at
    /// `asked`.
    async fn take_judged(
        &self,
        node: &Node,
        cred: &Cred,
        asked: Monotonic,
        answer: Result<RemoteOpened>,
    ) -> Result<Option<RemoteOpened>> {
        match answer {
            Ok(mut opened) => {
                match opened.attr {
                    Some(attr) => {
                        let seen = self.observe(node, attr, asked);
                        self.take_lease(node, seen, opened.lease.take());
                    }
                    None => self.ask_attributes(node, cred).await?,
                }
                let mut state = node.state();
                self.squash.judge(&state.known().attr, cred, opened.granted);
                state.set_rights(cred, opened.granted, asked);
                Ok(Some(opened))
            }
            Err(Error::NotSupported) => self.ask_attributes(node, cred).await.map(|()| None),
            Err(Error::TimedOut) => self.use_what_is_held(node, "access").map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Which of the rights in `wanted` the caller has, without a request: `None` if only the server
    /// can tell.
    pub(crate) fn known_rights(&self, node: &Node, cred: &Cred, wanted: Access) -> Option<Access> {
        if let Some(granted) = node.state().rights_of(cred, wanted, self.now()) {
            return Some(granted);
        }
        (!self.remote.reachable()).then(|| self.rights_as_held(node, cred, wanted))
    }

    /// The server's last decision, or else the mode bits.
    pub(crate) fn rights_as_held(&self, node: &Node, cred: &Cred, wanted: Access) -> Access {
        let superuser = self.squash.known() == RootSquash::No;
        let state = node.state();
        let said = state.last_rights_of(cred, wanted);
        said.unwrap_or_else(|| verdicts::by_mode(&state.known().attr, cred, superuser) & wanted)
    }

    /// Which of the rights in `wanted` the caller has. Asks the server if necessary, or if `asks`.
    async fn rights(&self, node: &Node, cred: &Cred, wanted: Access, asks: bool) -> Result<Access> {
        if !asks && let Some(granted) = self.known_rights(node, cred, wanted) {
            return Ok(granted);
        }
        let said = self.ask_rights(node, cred).await?;
        Ok(said.map_or_else(|| self.rights_as_held(node, cred, wanted), |said| said & wanted))
    }

    /// Which of the rights in `wanted` the caller has, provided that it may reach the file at all.
    /// Asks the server if necessary, or if `asks`.
    pub(crate) async fn rights_below(
        &self,
        node: &Node,
        cred: &Cred,
        wanted: Access,
        asks: bool,
    ) -> Result<Access> {
        self.demand_path(node, cred).await?;
        self.rights(node, cred, wanted, asks).await
    }

    /// The same for a caller that opens the file. If the server is asked, it also opens the file,
    /// if it has opens.
    pub(crate) async fn rights_to_open(
        &self,
        node: &Node,
        cred: &Cred,
        intent: Intent,
        asks: bool,
    ) -> Result<(Access, Option<Token>)> {
        self.demand_path(node, cred).await?;
        if !asks && let Some(granted) = self.known_rights(node, cred, intent.rights) {
            return Ok((granted, None));
        }
        Ok(match self.ask_open(node, cred, Intent { rights: Access::ALL, ..intent }).await? {
            Some(opened) => (opened.granted & intent.rights, opened.token),
            None => (self.rights_as_held(node, cred, intent.rights), None),
        })
    }

    /// Fails unless the caller has all rights in `wanted`. Asks the server if necessary, or if
    /// `asks`.
    pub(crate) async fn demand(
        &self,
        node: &Node,
        cred: &Cred,
        wanted: Access,
        asks: bool,
    ) -> Result<()> {
        match self.rights(node, cred, wanted, asks).await? {
            granted if granted.contains(wanted) => Ok(()),
            _ => Err(Error::AccessDenied),
        }
    }

    /// The same for bytes that a front door reads or writes without an open: it does not know
    /// whether its caller has the file open, so the owner may do so whatever the mode is, as at any
    /// server (RFC 1813, 4.4). The caller's rights were checked when it opened the file.
    ///
    /// # Errors
    /// Objects without bytes are refused as by any server (RFC 1813, 3.3.6 and 3.3.7); else as
    /// [`Core::demand`].
    pub(crate) async fn demand_bytes(
        &self,
        node: &Node,
        cred: &Cred,
        wanted: Access,
        asks: bool,
    ) -> Result<()> {
        let demanded = self.demand(node, cred, wanted, asks).await;
        let attr = node.state().known().attr;
        match attr.kind {
            Kind::File => {}
            Kind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::InvalidArgument),
        }
        let is_owner = attr.uid == cred.uid;
        if is_owner && demanded == Err(Error::AccessDenied) { Ok(()) } else { demanded }
    }

    /// Answers access(2).
    pub(crate) async fn access(&self, cred: &Cred, ino: Ino, wanted: Access) -> Result<Access> {
        let node = self.node(ino)?;
        let asks = !self.is_fresh(&node);
        let mut granted = self.rights_below(&node, cred, wanted, asks).await?;
        if self.options.read_only {
            granted = granted & (Access::READ | Access::LOOKUP | Access::EXECUTE);
        }
        Ok(granted)
    }

    /// Target of a symbolic link: cached as long as the link has the same version.
    pub(crate) async fn readlink(self: &Arc<Self>, cred: &Cred, ino: Ino) -> Result<OsString> {
        let node = self.node(ino)?;
        self.demand_path(&node, cred).await?;
        if !self.is_fresh(&node) {
            self.revalidate(&node, cred).await?;
        }
        if let Some(target) = node.state().known().target.clone() {
            return Ok(target);
        }
        let asked = self.now();
        let (target, attr) =
            on_handle!(self, cred, &node, handle => self.remote.readlink(cred, &handle))?;
        if let Some(attr) = attr {
            self.observe(&node, attr, asked);
        }
        let mut state = node.state();
        state.leads_to(target.clone());
        self.table.persist(ino, &mut state);
        Ok(target)
    }

    /// Space and limits, at most [`STATFS_TTL`] old; older if the server does not answer. Where a
    /// directory was removed here, they are those of the root.
    pub(crate) async fn statfs(&self, cred: &Cred, ino: Ino) -> Result<StatFs> {
        let held = *self.statfs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((asked, answer)) = held
            && (self.now().since(asked) < STATFS_TTL || !self.remote.reachable())
        {
            return Ok(answer);
        }
        let mut node = self.node(ino)?;
        if node.state().is_removed_directory() {
            node = self.node(Ino::ROOT)?;
        }
        let asked = self.now();
        match on_handle!(self, cred, &node, handle => self.remote.statfs(cred, &handle)) {
            Ok(answer) => {
                *self.statfs.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                    Some((asked, answer));
                Ok(answer)
            }
            Err(Error::TimedOut) if held.is_some() => Ok(held.expect("just checked").1),
            Err(error) => Err(error),
        }
    }

    /// Asks for a lease on a directory, and does not wait for it.
    pub(crate) fn lease_later(self: &Arc<Self>, dir: &Arc<Node>, cred: &Cred) {
        if !self.wants_lease(dir) || dir.state().leasing_mut().begin_asking() {
            return;
        }
        let (core, dir, cred) = (self.clone(), dir.clone(), self.caller(cred));
        self.runtime.spawn(async move {
            let answer = core.ask_rights(&dir, &cred).await;
            dir.state().leasing_mut().end_asking();
            if let Err(error) = answer {
                tracing::debug!(ino = dir.ino.0, %error, "no lease on a directory");
            }
        });
    }

    /// Keeps a lease that came with attributes, unless those are obsolete; or remembers that the
    /// server gave none.
    pub(crate) fn take_lease(&self, node: &Node, seen: Seen, lease: Option<Lease>) {
        let now = self.now();
        let mut state = node.state();
        state.forget_old_rights(now);
        match lease {
            None => state.leasing_mut().refuse(now),
            Some(lease) if seen != Seen::Older => {
                if state.is_directory() && state.known().doubtful {
                    // Names from before the lease are not asked about again while it holds.
                    state.forget_contents();
                    self.table.persist(node.ino, &mut state);
                }
                state.leasing_mut().take(lease);
            }
            Some(_) => {}
        }
    }
}
