//! A client that takes a lease on everything before it uses it.

use bytes::Bytes;
use larder_remote::smb::Smb;
use larder_vfs::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Found, Future, Handle, Intent,
    Judged, Listing, LockChange, LockMode, LookedUp, Made, New, Remote, RemoteCopied, RemoteLimits,
    RemoteOpened, RemoteRead, RemoteWritten, Removal, Seek, SetAttr, SetXattr, SpaceChange,
    Stability, StatFs, Time, Token,
};
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::Arc;

pub(super) struct Eager(pub(super) Arc<Smb>);

/// Takes a lease on each of these, if one is available, and then makes the call.
macro_rules! leased {
    ($self:ident, [$($file:expr),*], $call:expr) => {
        Box::pin(async move {
            $(let _ = $self.0.access(&Cred::root(), $file, Access::READ).await;)*
            $call.await
        })
    };
}

impl Remote for Eager {
    fn root(&self) -> Future<'_, Found> {
        self.0.root()
    }

    fn limits(&self) -> RemoteLimits {
        self.0.limits()
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        leased!(self, [file], self.0.getattr(cred, file))
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        leased!(self, [file], self.0.setattr(cred, file, set, guard))
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        self.0.access(cred, file, wanted)
    }

    fn lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        leased!(self, [file], self.0.lock(cred, file, changes))
    }

    fn test_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
        mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        leased!(self, [file], self.0.test_lock(cred, file, range, mode))
    }

    fn open<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        intent: Intent,
    ) -> Future<'a, RemoteOpened> {
        leased!(self, [file], self.0.open(cred, file, intent))
    }

    fn close<'a>(&'a self, cred: &'a Cred, token: Token) -> Future<'a, ()> {
        self.0.close(cred, token)
    }

    fn xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        leased!(self, [file], self.0.xattr(cred, file, name))
    }

    fn xattrs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<OsString>> {
        leased!(self, [file], self.0.xattrs(cred, file))
    }

    fn set_xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetXattr,
    ) -> Future<'a, Change> {
        leased!(self, [file], self.0.set_xattr(cred, file, set))
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        leased!(self, [dir], self.0.lookup(cred, dir, name))
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        leased!(self, [file], self.0.readlink(cred, file))
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        leased!(self, [file], self.0.read(cred, file, open, offset, len))
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        leased!(self, [file], self.0.write(cred, file, open, offset, data, stability))
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        range: Range<u64>,
    ) -> Future<'a, Committed> {
        leased!(self, [file], self.0.commit(cred, file, open, range))
    }

    fn change_space<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        leased!(self, [file], self.0.change_space(cred, file, open, change))
    }

    fn copies(&self) -> bool {
        self.0.copies()
    }

    fn copy_range<'a>(
        &'a self,
        cred: &'a Cred,
        from: CopyEnd<'a>,
        to: CopyEnd<'a>,
        len: u64,
    ) -> Future<'a, RemoteCopied> {
        leased!(self, [from.file, to.file], self.0.copy_range(cred, from, to, len))
    }

    fn tells_holes(&self) -> bool {
        self.0.tells_holes()
    }

    fn seek<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        what: Seek,
    ) -> Future<'a, u64> {
        leased!(self, [file], self.0.seek(cred, file, open, offset, what))
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        leased!(self, [dir], self.0.make(cred, dir, name, new, set))
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        leased!(self, [dir], self.0.remove(cred, dir, name, what))
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        leased!(self, [from.0, to.0], self.0.rename(cred, from, to))
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        leased!(self, [file, dir], self.0.link(cred, file, dir, name))
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        leased!(self, [dir], self.0.readdir(cred, dir, cookie, bytes_max))
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        leased!(self, [file], self.0.statfs(cred, file))
    }
}
