//! NFS version 3 as [`Remote`] (RFC 1813).
//!
//! Each method is one procedure where the protocol allows; these are the exceptions:
//! - READ and WRITE beyond the negotiated size, or answered short, are continued.
//! - NFS3ERR_JUKEBOX is asked again with pauses, until the caller's deadline, or else as long as a
//!   call may take ([`larder_rpc::Config::limit`]); on a hard mount as long as it takes.
//! - An exclusive CREATE is followed by SETATTR, since the verifier lies where attributes belong
//!   (RFC 1813, 3.3.8).
//! - A reply without attributes that the caller needs is completed by GETATTR.
//! - READDIRPLUS falls back to READDIR for good where the server lacks it.
//! - A call that changes names and was sent more than once may report the effect of its own first
//!   attempt ("exists", "not found") if the server has no duplicate request cache or lost it in a
//!   reboot: [`replay`] decides that.
//!
//! nfsstat3 stops in [`convert`]; the other modules use only the types of `larder-vfs`.

mod convert;
mod data;
mod mount;
mod names;
mod programs;
mod replay;

pub use mount::{MountError, MountOptions};
pub use programs::ProgramError;

use bytes::Bytes;
use larder_io::Backoff;
use larder_rpc::{CallOptions, Recovery, Reply, RpcClient, TimerClass};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, Cred, Error, Found, Future, Handle, Judged,
    Listing, LookedUp, Made, New, Remote, RemoteLimits, RemoteRead, RemoteWritten, Removal, Result,
    SetAttr, Stability, StatFs, Time, Token,
};
use larder_wire::Procedure;
use larder_wire::nfs3::{
    ACCESS3args, FSSTAT3args, GETATTR3args, LOOKUP3args, READLINK3args, Res3, diropargs3, nfs_fh3,
    nfsstat3,
};
use mount::MountPoint;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// First and longest pause before asking again after NFS3ERR_JUKEBOX.
const JUKEBOX_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Procedures that share an estimate of their round trip: a WRITE to a disk says nothing about a
/// LOOKUP in memory. Those that change names have none.
mod timer {
    use larder_rpc::TimerClass;

    /// Attributes and rights.
    pub(super) const ATTRIBUTES: TimerClass = TimerClass::estimated(1);
    /// Names.
    pub(super) const LOOKUP: TimerClass = TimerClass::estimated(2);
    /// Data and directories to the client.
    pub(super) const READ: TimerClass = TimerClass::estimated(3);
    /// Data to the server.
    pub(super) const WRITE: TimerClass = TimerClass::estimated(4);
    /// Data to the server's disk.
    pub(super) const COMMIT: TimerClass = TimerClass::estimated(5);
}

/// A mounted export of an NFSv3 server.
#[derive(Debug)]
pub struct Nfs3 {
    client: RpcClient,
    mount_point: MountPoint,
    root: nfs_fh3,
    limits: RemoteLimits,
    fail_fast: bool,
    /// The server has no READDIRPLUS.
    no_plus: AtomicBool,
    /// For verifiers of exclusive creates.
    creations: AtomicU64,
}

impl Nfs3 {
    /// Mounts an export, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`MountError`], each with what to do about it. Takes no longer than the waits of the port
    /// mapper, MOUNT and three calls.
    pub async fn mount(options: &MountOptions) -> Result<Nfs3, MountError> {
        mount::mount(options).await
    }

    /// The transport below: its accounts, and whether the server answers.
    pub fn rpc(&self) -> &RpcClient {
        &self.client
    }

    /// Tells the server that the export is no longer used. Nothing depends on it; gives up early.
    pub async fn unmount(&self) {
        self.mount_point.leave().await;
    }

    /// Calls a procedure. After NFS3ERR_JUKEBOX the call is repeated, within the limit of a call.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the server answered NFS3ERR_JUKEBOX until the limit; as
    /// [`convert::rpc_error`].
    async fn call<P, T, E>(
        &self,
        cred: &Cred,
        args: &P,
        class: TimerClass,
    ) -> Result<Reply<Res3<T, E>>>
    where
        P: Procedure<Res = Res3<T, E>>,
    {
        let credential = self.client.auth_sys(cred.uid, cred.gid, &cred.groups);
        let deadline = cred.deadline.map(|deadline| deadline.at());
        let options = CallOptions { class, fail_fast: self.fail_fast, deadline };
        let config = self.client.config();
        let clock = &config.clock;
        let ends = (config.recovery == Recovery::Soft).then(|| match deadline {
            Some(deadline) => deadline,
            None => clock.instant() + config.limit(),
        });
        let mut backoff = Backoff::new(JUKEBOX_PAUSES.0, JUKEBOX_PAUSES.1);
        loop {
            let reply = self.client.call(&credential, args, options).await;
            let reply = reply.map_err(|cause| {
                tracing::debug!(server = %config.server, procedure = P::NUMBER, %cause, "call failed");
                convert::rpc_error(cause)
            })?;
            if reply.results.is_err() {
                self.client.count_refused(P::NUMBER);
            }
            match &reply.results {
                Err(fail) if fail.status == nfsstat3::NFS3ERR_JUKEBOX => {}
                _ => return Ok(reply),
            }
            let pause = backoff.pause();
            if ends.is_some_and(|ends| clock.instant() + pause > ends) {
                return Err(Error::TimedOut);
            }
            clock.sleep(pause).await;
        }
    }

    /// Calls a procedure and returns its answer, including what a failure contains.
    async fn answer<P, T, E>(&self, cred: &Cred, args: &P, class: TimerClass) -> Result<T>
    where
        P: Procedure<Res = Res3<T, E>>,
    {
        let reply = self.call(cred, args, class).await?;
        reply.results.map_err(|fail| convert::error(fail.status))
    }

    async fn attributes(&self, cred: &Cred, object: nfs_fh3) -> Result<Attr> {
        let args = GETATTR3args { object };
        let answer = self.answer(cred, &args, timer::ATTRIBUTES).await?;
        Ok(convert::attr(&answer.obj_attributes))
    }

    /// Attributes that a reply should have carried.
    async fn complete(&self, cred: &Cred, object: nfs_fh3, attr: Option<Attr>) -> Result<Attr> {
        match attr {
            Some(attr) => Ok(attr),
            None => self.attributes(cred, object).await,
        }
    }

    async fn look_up(&self, cred: &Cred, what: diropargs3) -> Result<LookedUp> {
        let reply = self.call(cred, &LOOKUP3args { what }, timer::LOOKUP).await?;
        match reply.results {
            Ok(answer) => {
                let attr = convert::post_op(answer.obj_attributes);
                let attr = self.complete(cred, answer.object, attr).await?;
                let found = Some(Found { handle: convert::handle(&answer.object), attr });
                Ok(LookedUp { found, dir: convert::post_op(answer.dir_attributes) })
            }
            Err(fail) if fail.status == nfsstat3::NFS3ERR_NOENT => {
                Ok(LookedUp { found: None, dir: convert::post_op(fail.detail) })
            }
            Err(fail) => Err(convert::error(fail.status)),
        }
    }
}

impl Remote for Nfs3 {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move {
            let attr = self.attributes(&Cred::root(), self.root).await?;
            Ok(Found { handle: convert::handle(&self.root), attr })
        })
    }

    fn limits(&self) -> RemoteLimits {
        self.limits
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        Box::pin(async move { self.attributes(cred, convert::file(file)?).await })
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        Box::pin(async move { self.set_attributes(cred, convert::file(file)?, &set, guard).await })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        Box::pin(async move {
            let args = ACCESS3args { object: convert::file(file)?, access: wanted.0.into() };
            let answer = self.answer(cred, &args, timer::ATTRIBUTES).await?;
            let granted = convert::access(answer.access) & wanted;
            Ok(Judged::new(granted, convert::post_op(answer.obj_attributes)))
        })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(async move { self.look_up(cred, convert::entry(dir, name)?).await })
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        Box::pin(async move {
            let args = READLINK3args { symlink: convert::file(file)? };
            let answer = self.answer(cred, &args, timer::READ).await?;
            let target = OsString::from_vec(answer.data.to_vec());
            Ok((target, convert::post_op(answer.symlink_attributes)))
        })
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        Box::pin(async move { self.read_all(cred, convert::file(file)?, offset, len).await })
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        Box::pin(async move {
            self.write_all(cred, convert::file(file)?, offset, data, stability).await
        })
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        range: Range<u64>,
    ) -> Future<'a, Committed> {
        Box::pin(async move { self.commit_range(cred, convert::file(file)?, range).await })
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(async move { self.make_object(cred, convert::entry(dir, name)?, new, set).await })
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        Box::pin(async move { self.remove_entry(cred, convert::entry(dir, name)?, what).await })
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(async move {
            let from = convert::entry(from.0, from.1)?;
            self.rename_entry(cred, from, convert::entry(to.0, to.1)?).await
        })
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        Box::pin(async move {
            self.link_entry(cred, convert::file(file)?, convert::entry(dir, name)?).await
        })
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(async move { self.list(cred, convert::file(dir)?, cookie, bytes_max).await })
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        Box::pin(async move {
            let args = FSSTAT3args { fsroot: convert::file(file)? };
            let answer = self.answer(cred, &args, timer::ATTRIBUTES).await?;
            Ok(convert::statfs(&answer, self.limits.name_max))
        })
    }

    fn call_limit(&self) -> Option<Duration> {
        let config = self.client.config();
        (config.recovery == Recovery::Soft).then(|| config.limit())
    }

    fn reachable(&self) -> bool {
        self.client.reachable()
    }

    fn shutdown(&self) {
        self.client.shutdown();
    }
}

#[cfg(test)]
mod tests;
