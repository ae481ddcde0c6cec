//! A share of an SMB server (2.1 to 3.1.1) as [`Remote`], on the protocol library `smb2` (ADR
//! 0009).
//!
//! The library brings messages, signing, encryption, login and credits. This module makes a file
//! system of it: handles that survive renames, leases, opens that are kept, errors, recovery.
//!
//! - **Handles** are the server's file ids, never names ([`handle`]). Requests name a file by path,
//!   so the client must have learnt a handle's path from a lookup or a listing ([`places`]); a
//!   handle without a path is [`larder_vfs::Error::Stale`] until its name is looked up again. The
//!   client checks that the file at a path is the one that was meant.
//! - **Open files** are kept open at the server, which knows their current names when others rename
//!   them ([`kept`]).
//! - **Leases**: [`Remote::access`] opens a file with a lease to read and to keep open, or puts a
//!   directory under watch. While it holds, attributes are answered and data is read without
//!   opening again ([`lease`], [`files`]).
//! - **Opens**: [`Remote::open`] keeps a file open until its token is closed ([`kept`]).
//! - **Locks** are held by one open of each file, by which its reads and writes go as well
//!   ([`locks`], [`pieces`]).
//! - **Rights**: all users work with the rights of the login. To keep users of this machine apart,
//!   each call is checked against the modes that the mount states, as with `mount.cifs`, and
//!   against what the server grants the login. Servers keep no modes; see [`set`] for what chmod
//!   does.
//! - **Writes** are unstable until they are flushed; those of a burst share an open ([`data`]).
//! - **Connections**: one or several (`nconnect`); each file lives on one of them ([`channels`]).
//! - **Recovery**: a lost connection ends the leases of its files, and is replaced; calls are sent
//!   again ([`channel`]). [`change`] describes how changes of names are handled whose answer was
//!   lost.
//!
//! - **Symbolic links** are files whose content says so ([`symlinks`], [`symlink_files`]).
//!
//! Absent on purpose: special files, DFS, several channels of one session.

mod attr;
mod burst;
mod change;
mod channel;
mod channels;
mod connector;
mod copy;
mod credentials;
mod data;
mod elsewhere;
mod expected;
mod files;
mod frames;
mod greeting;
mod handle;
mod hidden;
mod kdc;
mod keeping;
mod kerberos;
mod kerberos_error;
mod krb5_conf;
mod lease;
mod link;
mod listing;
mod locked;
mod locks;
mod mount;
mod mounting;
mod moves;
mod names;
mod notices;
mod paths;
mod pieces;
mod set;
mod share;
mod snapshots;
mod space;
mod standing;
mod status;
mod symlink_files;
mod symlinks;
mod tickets;
mod under_lease;
mod version;
mod watch;
mod watching;
mod wire;
mod xattrs;

pub use credentials::{Credentials, CredentialsError, Kerberos, Password};
pub use kerberos_error::KerberosError;
pub use mount::{MountError, MountOptions, PORT};
pub use version::Version;

use bytes::Bytes;
use channel::{Channel, attempt, call};
use data::Target;
use elsewhere::upon;
use larder_rpc::series::Track;
use larder_rpc::{RecordError, Recording, Snapshot};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Error, Found, Future, Handle,
    Intent, Judged, Kind, Listing, LockChange, LockMode, LookedUp, Made, New, Remote, RemoteCopied,
    RemoteLimits, RemoteOpened, RemoteRead, RemoteWritten, Removal, Seek, SetAttr, SetXattr,
    SpaceChange, Stability, StatFs, Time, Token, Watcher,
};
use share::Share;
use smb2::msg::query_info::QueryInfoResponse;
use status::Failure;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A mounted share of an SMB server.
pub struct Smb {
    share: Arc<Share>,
}

impl std::fmt::Debug for Smb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Smb(//{}/{})", self.share.options.host, self.share.options.share)
    }
}

impl Smb {
    /// Mounts a share, on the tokio runtime of the caller. Takes no longer than 20 s, and 10 s if
    /// the server does not answer.
    ///
    /// # Errors
    /// [`MountError`], each with what to do about it.
    pub async fn mount(options: &MountOptions) -> Result<Smb, MountError> {
        Ok(Smb { share: mounting::mount(options).await? })
    }

    /// What every command cost so far, in the shape of [`larder_rpc::RpcClient::stats`].
    pub fn stats(&self) -> Snapshot {
        let share = &self.share;
        let connections = share.channels.iter().map(Channel::snapshot).collect();
        Snapshot { procedures: share.accounts.snapshot(), connections }
    }

    /// Begins to record what each connection does, in slices of `width`, as
    /// [`larder_rpc::RpcClient::record`] does.
    ///
    /// # Errors
    /// [`RecordError`]
    pub fn record(&self, width: Duration) -> Result<Recording, RecordError> {
        let channels = &self.share.channels;
        let tracks = channels.iter().map(|channel| Arc::clone(&channel.accounts.track)).collect();
        let share = Arc::clone(&self.share);
        let is_over = move || share.channels.iter().all(Channel::is_shut);
        Track::record(tracks, Arc::clone(&self.share.options.clock), width, is_over)
    }

    /// The version of the protocol that is spoken, if there is a connection.
    pub fn version(&self) -> Option<Version> {
        self.share.channels.iter().find_map(Channel::link).map(|link| link.version())
    }
}

impl Drop for Smb {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Remote for Smb {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move {
            let share = &self.share;
            let handle = share.root().clone();
            let seen = call!(None, share, [&handle], share.channel(&handle), |link, _again| share
                .look_at(&link, &handle, false))?;
            Ok(Found { attr: seen.info.attr(&share.shape), handle })
        })
    }

    fn limits(&self) -> RemoteLimits {
        self.share.limits
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        Box::pin(async move {
            let share = &self.share;
            let known = share.files.get(file).and_then(|entry| entry.known());
            let info = match known {
                Some((_, known)) => known.info,
                None => {
                    let seen =
                        upon!(share, cred, file, |link, _again| share.look_at(&link, file, false));
                    seen?.info
                }
            };
            let mut attr = info.attr(&share.shape);
            share.tell_link(cred.deadline, file, &mut attr).await?;
            Ok(attr)
        })
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        Box::pin(async move {
            let share = &self.share;
            let mut changed =
                upon!(share, cred, file, |link, _again| share.set(&link, cred, file, &set, guard))?;
            if let Some(after) = &mut changed.after {
                share.tell_link(cred.deadline, file, after).await?;
            }
            Ok(changed)
        })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        Box::pin(async move {
            let share = &self.share;
            let mut judged = match share.judge_now(cred, file, wanted) {
                Some(judged) => judged,
                None => {
                    upon!(share, cred, file, |link, _again| share.judge(&link, cred, file, wanted))?
                }
            };
            if let Some(attr) = &mut judged.attr {
                share.tell_link(cred.deadline, file, attr).await?;
            }
            Ok(judged)
        })
    }

    fn gives_leases(&self) -> bool {
        self.share.leases
    }

    fn watch(&self, watcher: Weak<dyn Watcher>) {
        // Only the first counts, as the trait has it.
        let _ = self.share.watcher.set(watcher);
    }

    fn open<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        intent: Intent,
    ) -> Future<'a, RemoteOpened> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, _again| share.open(&link, cred, file, intent))
        })
    }

    fn close<'a>(&'a self, _: &'a Cred, token: Token) -> Future<'a, ()> {
        keeping::close(&token);
        Box::pin(std::future::ready(Ok(())))
    }

    fn lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        Box::pin(async move {
            let share = &self.share;
            let changed = upon!(share, cred, file, |link, _again| share.lock(&link, file, changes));
            if changed.is_err() && changes.iter().all(|change| change.mode.is_none()) {
                // What is only unlocked stays so even if the server is not told.
                share.forget_locks(file, changes).await;
            }
            changed
        })
    }

    fn test_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
        mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, _again| share.test_lock(&link, file, &range, mode))
        })
    }

    fn xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        Box::pin(async move {
            let share = &self.share;
            let all = upon!(share, cred, file, |link, _again| share.xattrs(&link, cred, file))?;
            Ok(xattrs::value_of(all, name))
        })
    }

    fn xattrs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<OsString>> {
        Box::pin(async move {
            let share = &self.share;
            let all = upon!(share, cred, file, |link, _again| share.xattrs(&link, cred, file))?;
            Ok(all.into_iter().map(|(name, _)| name).collect())
        })
    }

    fn set_xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetXattr,
    ) -> Future<'a, Change> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, again| share.set_xattr(&link, cred, file, &set, again))
        })
    }

    fn change_space<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, _again| share.change_space(&link, cred, file, change))
        })
    }

    fn tells_holes(&self) -> bool {
        true
    }

    fn seek<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        offset: u64,
        what: Seek,
    ) -> Future<'a, u64> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, _again| share.seek(&link, cred, file, offset, what))
        })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(async move {
            let share = &self.share;
            let mut looked_up =
                call!(cred.deadline, share, [dir], share.channel(dir), |link, _again| share
                    .look_up(&link, cred, dir, name))?;
            if let Some(Found { handle, attr }) = &mut looked_up.found {
                share.tell_link(cred.deadline, handle, attr).await?;
            }
            Ok(looked_up)
        })
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        Box::pin(async move {
            let share = &self.share;
            let seen = upon!(share, cred, file, |link, _again| share.look_at(&link, file, false))?;
            let mut attr = seen.info.attr(&share.shape);
            let target = share.target(cred.deadline, file, &attr).await?;
            let target = target.ok_or(Error::InvalidArgument)?;
            symlinks::show_link(&mut attr, &target);
            Ok((target, Some(attr)))
        })
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        Box::pin(async move {
            let share = &self.share;
            let bytes = (offset, len);
            upon!(share, cred, file, |link, _again| share.read(&link, cred, file, open, bytes))
        })
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        token: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, _again| async {
                let target = Target { link: &link, file, token, offset, stability };
                share.write(&target, cred, &data).await
            })
        })
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        token: Option<&'a Token>,
        _range: Range<u64>,
    ) -> Future<'a, Committed> {
        Box::pin(async move {
            let share = &self.share;
            upon!(share, cred, file, |link, _again| share.commit(&link, cred, file, token))
        })
    }

    fn copies(&self) -> bool {
        true
    }

    fn copy_range<'a>(
        &'a self,
        cred: &'a Cred,
        from: CopyEnd<'a>,
        to: CopyEnd<'a>,
        len: u64,
    ) -> Future<'a, RemoteCopied> {
        Box::pin(async move {
            let (share, ends) = (&self.share, (from, to));
            let copied = upon!(share, cred, to.file, beside from.file, |link, _again| share
                .copy_range(&link, cred, ends, len));
            let is_lost = matches!(copied, Err(Error::Stale)) && share.path(from.file).is_err();
            if !is_lost || !share.finds_again(cred, from.file).await {
                return copied;
            }
            upon!(share, cred, to.file, beside from.file, |link, _again| share.copy_range(&link, cred, ends, len))
        })
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(async move {
            let share = &self.share;
            let mut made = call!(
                cred.deadline,
                share,
                [dir],
                share.channel(dir),
                |link, again| share.make(&link, cred, (dir, name), &new, &set, again)
            )?;
            // A new file has the attributes with which it was made; only an existing one must be
            // truncated.
            let Found { handle: file, attr } = &mut made.found;
            share.tell_link(cred.deadline, file, attr).await?;
            let cut = set.size.filter(|size| attr.kind == Kind::File && *size != attr.size);
            if cut.is_some() {
                let set = SetAttr { size: cut, ..SetAttr::default() };
                let cut = upon!(share, cred, file, |link, _again| share
                    .set(&link, cred, file, &set, None))?;
                *attr = cut.after.unwrap_or(*attr);
            }
            Ok(made)
        })
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        Box::pin(async move {
            let share = &self.share;
            call!(cred.deadline, share, [dir], share.channel_at(dir, name), |link, again| share
                .remove(&link, cred, (dir, name), what, again))
        })
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(async move {
            let share = &self.share;
            attempt!(cred.deadline, share.channel_at(from.0, from.1), |link, again| share
                .rename(&link, cred, from, to, again))?;
            Ok((Change::default(), Change::default()))
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
            let share = &self.share;
            let (mut attr, change) = upon!(share, cred, file, |link, again| share.link(
                &link,
                cred,
                file,
                (dir, name),
                again
            ))?;
            if let Some(attr) = &mut attr {
                share.tell_link(cred.deadline, file, attr).await?;
            }
            Ok((attr, change))
        })
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(async move {
            let share = &self.share;
            let mut listing =
                call!(cred.deadline, share, [dir], share.channel(dir), |link, _again| share
                    .list(&link, cred, dir, cookie, bytes_max))?;
            share.tell_links(cred.deadline, &mut listing.entries).await;
            Ok(listing)
        })
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        Box::pin(async move {
            let share = &self.share;
            call!(cred.deadline, share, [file], share.channel(file), |link, _again| share
                .space(&link, file))
        })
    }

    fn call_limit(&self) -> Option<std::time::Duration> {
        self.share.channels.first().and_then(Channel::call_limit)
    }

    fn reachable(&self) -> bool {
        self.share.channels.iter().any(Channel::is_up)
    }

    fn shutdown(&self) {
        self.share.channels.iter().for_each(Channel::shut);
    }
}

impl Share {
    async fn space(&self, link: &Arc<link::Link>, file: &Handle) -> Result<StatFs, Failure> {
        let opened = self.open_file(link, file, wire::LOOK, 0).await?;
        let op = wire::query_volume(opened.open.id, wire::FS_FULL_SIZE_INFORMATION);
        let reply = link.ask(op).await?.read::<QueryInfoResponse>()?;
        let (bytes, available, free) = wire::space(&reply.output_buffer).map_err(link::garbled)?;
        Ok(StatFs {
            bytes,
            bytes_free: free.min(bytes),
            bytes_available: available.min(free).min(bytes),
            // The protocol knows of no slots.
            files: 0,
            files_free: 0,
            files_available: 0,
            name_max: self.limits.name_max,
        })
    }
}
