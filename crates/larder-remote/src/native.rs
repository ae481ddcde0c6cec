//! larder's own servers as [`Remote`]: names of the metadata server, bytes of the disks.
//!
//! A call about names is one of the metadata program. Data never passes the metadata server: it
//! says where bytes lie and grants capabilities, with which the disks are read ([`read`]) and
//! written ([`write`]).
//!
//! Every object has an exact version, so what a call changed is known from its reply, and nothing
//! has to be weighed: a call that changes something is carried out once, whatever becomes of its
//! connection ([`session`]).

mod convert;
mod disks;
mod mount;
mod names;
mod plan;
mod read;
mod session;
mod uncommitted;
mod write;
mod xattrs;

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use larder_rpc::{Recovery, RpcClient, Snapshot};
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, Cred, Found, Future, Handle, Judged, Listing,
    LookedUp, Made, New, Remote, RemoteLimits, RemoteRead, RemoteWritten, Removal, Result, SetAttr,
    SetXattr, Stability, StatFs, Time, Token,
};
use larder_wire::meta::calls;
use larder_wire::meta::words::{Attributes, FileId, OpenId, VolumeId};
use larder_wire::meta::{FILE_BYTES_MAX, NAME_BYTES_MAX};

use disks::Disks;
pub use mount::{MountError, MountOptions};
use session::Session;
use uncommitted::UncommittedFiles;

/// A mounted volume.
#[derive(Debug)]
pub struct Native {
    session: Arc<Session>,
    disks: Arc<Disks>,
    volume: VolumeId,
    root: FileId,
    limits: RemoteLimits,
    uncommitted: UncommittedFiles,
    /// How often written bytes were lost before they were committed, from a random number on.
    losses: AtomicU64,
}

impl Native {
    /// Mounts a volume, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`MountError`], each with what to do about it.
    pub async fn mount(options: &MountOptions) -> Result<Native, MountError> {
        mount::mount(options).await
    }

    /// The transport to the metadata server: its accounts, and whether it answers.
    pub fn rpc(&self) -> &RpcClient {
        self.session.rpc()
    }

    /// The accounts of all that was asked of the metadata server and the disks.
    pub fn stats(&self) -> Snapshot {
        self.disks.stats().into_iter().fold(self.rpc().stats(), Snapshot::with)
    }

    fn file(&self, handle: &Handle) -> Result<FileId> {
        convert::file(self.volume, handle)
    }

    fn attr(&self, attributes: &Attributes) -> Attr {
        convert::attr(self.volume, attributes)
    }

    /// Attributes, after what was written here has become part of the file.
    async fn attributes(&self, cred: &Cred, file: FileId) -> Result<Attr> {
        self.settle(file).await?;
        let asked = self.session.ask(cred, |session| calls::GetAttr { session, file });
        Ok(self.attr(&asked.await?))
    }
}

impl Remote for Native {
    fn root(&self) -> Future<'_, Found> {
        Box::pin(async move {
            let attr = self.attributes(&Cred::root(), self.root).await?;
            Ok(Found { handle: convert::handle(self.volume, self.root), attr })
        })
    }

    fn limits(&self) -> RemoteLimits {
        self.limits
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        Box::pin(async move { self.attributes(cred, self.file(file)?).await })
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        Box::pin(async move {
            let file = self.file(file)?;
            self.settle(file).await?;
            let changed = self.session.change(cred, |sequence| calls::SetAttr {
                sequence,
                file,
                open: OpenId::NONE,
                set: convert::set(&set),
                guard: guard.map(convert::sent_time),
            });
            Ok(convert::change(self.volume, &changed.await?.file))
        })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        Box::pin(async move {
            let file = self.file(file)?;
            self.settle(file).await?;
            let wanted_bits = wanted.0.into();
            let args = |session| calls::Access { session, file, wanted: wanted_bits };
            let given = self.session.ask(cred, args).await?;
            let granted = convert::access(given.granted) & wanted;
            Ok(Judged::new(granted, Some(self.attr(&given.attributes))))
        })
    }

    fn xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        Box::pin(async move { self.xattr_of(cred, self.file(file)?, name).await })
    }

    fn xattrs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<OsString>> {
        Box::pin(async move { self.xattrs_of(cred, self.file(file)?).await })
    }

    fn set_xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetXattr,
    ) -> Future<'a, Change> {
        Box::pin(async move { self.change_xattr(cred, self.file(file)?, set).await })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(async move { self.look_up(cred, self.place(dir, name)?).await })
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        Box::pin(async move {
            let file = self.file(file)?;
            let read = self.session.ask(cred, |session| calls::ReadLink { session, file }).await?;
            Ok((OsString::from_vec(read.target.to_vec()), Some(self.attr(&read.attributes))))
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
        Box::pin(async move { self.read_all(cred, self.file(file)?, offset, len).await })
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
        Box::pin(
            async move { self.write_all(cred, self.file(file)?, offset, data, stability).await },
        )
    }

    /// Commits all of the file that is not: the range only says that something is.
    fn commit<'a>(
        &'a self,
        _cred: &'a Cred,
        file: &'a Handle,
        _: Option<&'a Token>,
        _range: Range<u64>,
    ) -> Future<'a, Committed> {
        Box::pin(async move { self.commit_written(self.file(file)?).await })
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        Box::pin(async move { self.make_object(cred, self.place(dir, name)?, new, set).await })
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        Box::pin(async move { self.remove_entry(cred, self.place(dir, name)?, what).await })
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(async move {
            let from = self.place(from.0, from.1)?;
            self.rename_entry(cred, from, self.place(to.0, to.1)?).await
        })
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        Box::pin(
            async move { self.link_entry(cred, self.file(file)?, self.place(dir, name)?).await },
        )
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(async move {
            let dir = self.file(dir)?;
            let listed = self.session.ask(cred, |session| calls::ReadDir {
                session,
                dir,
                cookie: cookie.position,
                bytes_max,
                attributes: true,
            });
            Ok(convert::listing(self.volume, &listed.await?))
        })
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, _file: &'a Handle) -> Future<'a, StatFs> {
        Box::pin(async move {
            let space = self.session.ask(cred, |session| calls::FsStat { session }).await?;
            Ok(convert::statfs(&space))
        })
    }

    fn call_limit(&self) -> Option<Duration> {
        let config = self.rpc().config();
        (config.recovery == Recovery::Soft).then(|| config.limit())
    }

    fn reachable(&self) -> bool {
        self.rpc().reachable()
    }

    fn shutdown(&self) {
        self.rpc().shutdown();
        self.disks.shutdown();
    }
}

/// What is asked for, within what the programs can carry.
fn limits(data_max: u32) -> RemoteLimits {
    let data_max = data_max.clamp(4096, larder_wire::disk::DATA_BYTES_MAX as u32);
    RemoteLimits {
        read_max: data_max,
        write_max: data_max,
        readdir_preferred: 128 << 10,
        file_size_max: FILE_BYTES_MAX,
        name_max: NAME_BYTES_MAX as u32,
        // Versions tell changes apart, however close.
        time_delta_ns: 1,
        links: true,
        symlinks: true,
        case_insensitive: false,
        opens: false,
        by_name: false,
    }
}
