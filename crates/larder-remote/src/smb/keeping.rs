//! Keeps files that are open here open at the server too: the opens that tokens stand for.
//!
//! Requests name a file by path, and others rename and remove. An open at the server means its file
//! whatever happens to the names, it reports the file's current name, and while it exists the
//! file's number is given to no other file. So a file that is open here keeps its identity, and is
//! found again when another client has renamed it.
//!
//! If the file has a lease, the open with which it was granted is kept, which costs no request.
//!
//! An open also keeps the name of a file that another client removes, until it is closed (MS-FSA,
//! 2.1.5.4). Our own removals give the file another name first ([`super::hidden`]).
//!
//! When the connection is lost, these opens are lost, and made again by path.

use super::attr::Named;
use super::burst::Burst;
use super::files::{Known, ServerOpen};
use super::link::{Link, garbled};
use super::names;
use super::share::{self, Opened, Share};
use super::standing::StandingOpen;
use super::status::Failure;
use super::wire::{self, Opening};
use larder_vfs::{Access, Cred, Handle, Intent, Kind, RemoteOpened, Token};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::status::NtStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a token of this share stands for.
struct Open(Mutex<Option<Arc<StandingOpen>>>);

impl Open {
    fn token(standing: Arc<StandingOpen>) -> Token {
        Token::new(Open(Mutex::new(Some(standing))))
    }

    fn standing(&self) -> MutexGuard<'_, Option<Arc<StandingOpen>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the place of a file that is kept open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// It was found, and its path is recorded.
    Recorded,
    /// It is not at the path that the server reports: a Samba process learns of a new name by a
    /// message from another one, a moment after it was given.
    Elsewhere,
    /// It is not open, has no name any more, or has one outside the mount.
    Unknown,
}

/// Closes what a token stands for; see [`larder_vfs::Remote::close`]. No caller waits for the
/// server.
pub(super) fn close(token: &Token) {
    drop(token.get::<Open>().and_then(|open| open.standing().take()));
}
impl Share {
    /// Checks rights, describes and opens; see [`larder_vfs::Remote::open`].
    pub(super) async fn open(
        self: &Arc<Share>,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        intent: Intent,
    ) -> Result<RemoteOpened, Failure> {
        if intent.rights == Access::NONE {
            // Whatever it is opened for is opened when it is needed.
            let token = self.standing.enter(file).map(Open::token);
            return Ok(RemoteOpened { token, ..RemoteOpened::unknown() });
        }
        let wanted = intent.rights;
        let standing = if intent.read || intent.write { self.standing.enter(file) } else { None };
        let looked = match &standing {
            Some(standing) if !self.leases => self.open_to_keep(link, standing).await?,
            _ => None,
        };
        let judged = match (looked, self.judge_now(cred, file, wanted)) {
            (Some(known), _) => self.judged(cred, &known, None, wanted),
            (None, Some(judged)) => judged,
            (None, None) => self.judge(link, cred, file, wanted).await?,
        };
        let is_file = judged.attr.as_ref().is_some_and(|attr| attr.kind == Kind::File);
        let standing = standing.filter(|_| is_file);
        if let Some(standing) = &standing {
            self.renew(link, standing).await?;
        }
        let token = standing.map(Open::token);
        Ok(RemoteOpened { granted: judged.granted, attr: judged.attr, lease: judged.lease, token })
    }

    /// Opens a file to keep it, and reads its attributes, in one message; of a directory only the
    /// attributes are read. `None`: it is open already, or may not be read.
    async fn open_to_keep(
        &self,
        link: &Arc<Link>,
        standing: &StandingOpen,
    ) -> Result<Option<Known>, Failure> {
        let mut held = standing.open.lock().await;
        if held.as_ref().is_some_and(|open| open.is_on(link)) {
            return Ok(None);
        }
        let path = self.path(&standing.file)?;
        let opening = Opening { maximal: true, ..Opening::existing(path, wire::READ) };
        let opened = match share::open(link, opening).await {
            Err(Failure::Status(NtStatus::ACCESS_DENIED | NtStatus::SHARING_VIOLATION)) => {
                return Ok(None);
            }
            opened => opened.map_err(|failure| self.gone(&standing.file, failure))?,
        };
        self.verify(&standing.file, &opened.info)?;
        let Opened { open, info, maximal, .. } = opened;
        if !info.is_directory() {
            open.begin_keeping();
            *held = Some(Arc::new(open));
        }
        Ok(Some(Known { info, maximal: maximal.unwrap_or(u32::MAX) }))
    }

    /// The burst of the writes through a token of this file that are not committed.
    pub(super) fn burst_of(&self, file: &Handle, token: Option<&Token>) -> Option<Arc<Burst>> {
        self.standing_by(file, token).map(|standing| Arc::clone(&standing.burst))
    }

    /// The open for which a token stands, if it belongs to this file and is not closed.
    fn standing_by(&self, file: &Handle, token: Option<&Token>) -> Option<Arc<StandingOpen>> {
        let standing = token?.get::<Open>()?.standing().clone()?;
        (standing.file == *file).then_some(standing)
    }

    /// The open for which a token of this file stands, if bytes can be read through it.
    pub(super) async fn by_token(
        &self,
        link: &Link,
        file: &Handle,
        token: Option<&Token>,
    ) -> Option<Arc<ServerOpen>> {
        self.standing_by(file, token)?.on(link).await.filter(|open| open.reads)
    }

    /// Keeps a file open by this, unless it is already.
    pub(super) async fn keep_this(&self, file: &Handle, open: ServerOpen) -> Option<Token> {
        let standing = self.standing.enter(file)?;
        let mut held = standing.open.lock().await;
        if !held.as_ref().is_some_and(|held| held.is_on(&open.link)) {
            open.begin_keeping();
            *held = Some(Arc::new(open));
        }
        drop(held);
        Some(Open::token(standing))
    }

    /// From now on keeps a file by the open of its new lease, if it is kept by an earlier one. The
    /// server takes requests without the lease's key for another client's.
    pub(super) async fn keep_by_lease(&self, link: &Link, file: &Handle) {
        let Some(standing) = self.standing.get(file) else { return };
        let mut held = standing.open.lock().await;
        let Some(entry) = self.files.get(file) else { return };
        let opens = entry.opens.lock().await;
        let leased = opens.read.clone().filter(|open| open.is_on(link));
        if let (Some(former), Some(leased)) = (&mut *held, leased)
            && !former.bears_key()
        {
            leased.begin_keeping();
            drop(opens);
            std::mem::replace(former, leased).close().await;
        }
    }

    /// Opens again what must be kept open, after a change of ours that had to close it.
    pub(super) async fn keep_on(&self, link: &Arc<Link>, file: &Handle) {
        if let Some(standing) = self.standing.get(file) {
            self.try_renew(link, &standing).await;
        }
    }

    /// Opens what must be kept open, unless it is open, or cannot be opened.
    pub(super) async fn try_renew(&self, link: &Arc<Link>, standing: &StandingOpen) {
        if let Err(failure) = self.renew(link, standing).await {
            let file = &standing.file;
            tracing::debug!(
                ?file,
                ?failure,
                "a file that is open here is not kept open at the server"
            );
        }
    }

    /// Opens what must be kept open, unless it is open.
    async fn renew(&self, link: &Arc<Link>, standing: &StandingOpen) -> Result<(), Failure> {
        let mut held = standing.open.lock().await;
        if held.as_ref().is_some_and(|open| open.is_on(link)) {
            return Ok(());
        }
        if let Some(useless) = held.take() {
            useless.end_keeping();
        }
        if let Some(entry) = self.files.get(&standing.file) {
            let opens = entry.opens.lock().await;
            *held = opens.read.clone().filter(|open| open.is_on(link));
            if let Some(open) = &*held {
                // Before another task closes it with its lease.
                open.begin_keeping();
                return Ok(());
            }
        }
        let opened = match self.open_file(link, &standing.file, wire::READ, 0).await {
            Err(Failure::Status(NtStatus::ACCESS_DENIED | NtStatus::SHARING_VIOLATION)) => {
                self.open_file(link, &standing.file, wire::LOOK, 0).await?
            }
            opened => opened?,
        };
        opened.open.begin_keeping();
        *held = Some(Arc::new(opened.open));
        Ok(())
    }

    /// Finds a file that is kept open, by the name that the server reports for it, and records
    /// that.
    pub(super) async fn find_standing(
        &self,
        link: &Arc<Link>,
        file: &Handle,
    ) -> Result<Whereabouts, Failure> {
        let Some(standing) = self.standing.get(file) else { return Ok(Whereabouts::Unknown) };
        let Some(open) = standing.on(link).await else { return Ok(Whereabouts::Unknown) };
        let seen = link.ask(wire::query(open.id)).await?.read::<QueryInfoResponse>()?;
        let named = Named::parse(&seen.output_buffer).map_err(garbled)?;
        let below = self.below_root(&named.path).filter(|_| !named.is_going);
        let Some(below) = below else { return Ok(Whereabouts::Unknown) };
        match self.is_at(link, &below, file).await {
            Ok(true) => Ok(Whereabouts::Recorded),
            Ok(false) => Ok(Whereabouts::Elsewhere),
            Err(failure) if failure.is_absence() || failure.is_pathless() => {
                Ok(Whereabouts::Elsewhere)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether a path below the root is one of this file. If so, that is recorded.
    async fn is_at(&self, link: &Arc<Link>, below: &str, file: &Handle) -> Result<bool, Failure> {
        let (dirs, component) = below.rsplit_once('\\').unwrap_or(("", below));
        let mut dir = self.root().clone();
        for component in dirs.split('\\').filter(|component| !component.is_empty()) {
            let path = names::join(&self.path(&dir)?, component);
            let seen = self.look(link, path, false).await?;
            dir = self.found(&dir, component, &seen.info).handle;
        }
        let seen = self.look(link, names::join(&self.path(&dir)?, component), false).await?;
        let is_it = self.handle(&seen.info).as_ref() == Some(file);
        if is_it {
            self.found(&dir, component, &seen.info);
        }
        Ok(is_it)
    }

    /// The part of a path of the share below the mount's root, if it is below.
    fn below_root(&self, path: &str) -> Option<String> {
        let path = path.trim_start_matches('\\');
        let base = self.path(self.root()).ok()?;
        let below = path.strip_prefix(base.as_str())?;
        let below = if base.is_empty() { below } else { below.strip_prefix('\\')? };
        (!below.is_empty()).then(|| below.to_owned())
    }
}
