//! The model as a [`Remote`]: each call goes to the server, as the state of the connection allows.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;

use super::open::Open;
use super::{MemRemote, Reach};
use crate::{
    Access, Attr, Change, Changed, Committed, Cookie, CopyEnd, Cred, Found, Future, Handle,
    InArchive, Intent, Judged, Kind, Listing, LockChange, LockMode, LookedUp, Made, New, Remote,
    RemoteCopied, RemoteLimits, RemoteOpened, RemoteRead, RemoteWritten, Removal, Seek, SetAttr,
    SetXattr, SpaceChange, Stability, StatFs, Time, Token, Watcher,
};

impl Remote for MemRemote {
    fn root(&self) -> Future<'_, Found> {
        self.call("root", |server| Ok(server.root()))
    }

    fn limits(&self) -> RemoteLimits {
        self.server().limits
    }

    fn getattr<'a>(&'a self, _: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        self.call("getattr", |server| server.getattr(file))
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        self.change("setattr", vec![file.clone()], move |server| {
            server.setattr(cred, file, set, guard)
        })
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        self.call("access", move |server| self.judge(server, cred, file, wanted))
    }

    fn open<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        intent: Intent,
    ) -> Future<'a, RemoteOpened> {
        let opens = self.server().limits.opens;
        let method = if opens { "open" } else { "access" };
        if !opens && intent.rights == Access::NONE {
            return Box::pin(std::future::ready(Ok(RemoteOpened::unknown())));
        }
        self.call(method, move |server| {
            let Judged { granted, attr, lease } = self.judge(server, cred, file, intent.rights)?;
            let token = opens.then(|| Token::new(Open::new(&self.opens, file)));
            Ok(RemoteOpened { granted, attr, lease, token })
        })
    }

    fn leave_memory<'a>(&'a self, _: &'a Cred, file: &'a Handle, _: Duration) -> Future<'a, ()> {
        self.call("leave_memory", |server| server.getattr(file).map(drop))
    }

    fn in_archive<'a>(
        &'a self,
        _: &'a Cred,
        file: &'a Handle,
        _: Option<Duration>,
    ) -> Future<'a, Option<InArchive>> {
        self.call("in_archive", |server| server.getattr(file).map(|_| None))
    }

    fn close<'a>(&'a self, _: &'a Cred, token: Token) -> Future<'a, ()> {
        Box::pin(async move {
            token.get::<Open>().inspect(|open| open.close());
            self.enter("close").await
        })
    }

    fn gives_leases(&self) -> bool {
        self.connection().gives_leases.is_some()
    }

    fn exclude<'a>(&'a self, _: &'a Cred, file: &'a Handle) -> Future<'a, Option<Attr>> {
        self.call("exclude", |server| {
            let attr = server.getattr(file)?;
            Ok(self.connection().alone.take(file).then_some(attr))
        })
    }

    fn is_excluding(&self, file: &Handle) -> bool {
        self.connection().alone.has(file)
    }

    fn retain<'a>(&'a self, _: &'a Cred, file: &'a Handle, _bytes: u64) -> Future<'a, bool> {
        self.call("retain", |server| {
            let size = server.getattr(file)?.size;
            Ok(self.connection().alone.retain(file, size))
        })
    }

    fn retains(&self, file: &Handle) -> bool {
        self.connection().alone.retains(file)
    }

    fn release<'a>(&'a self, _: &'a Cred, file: &'a Handle, by_others: bool) -> Future<'a, ()> {
        if !by_others && !self.retains(file) {
            return Box::pin(async { Ok(()) });
        }
        self.call("release", |server| {
            server.getattr(file)?;
            self.connection().alone.release(file);
            Ok(())
        })
    }

    fn still_excludes(&self, file: &Handle) -> bool {
        self.connection().alone.has_still(file)
    }

    fn watch(&self, watcher: Weak<dyn Watcher>) {
        // A client that used this connection before may have left leases, which the new one does
        // not have.
        self.server().leases.disconnect(self.number);
        self.connection().watcher = Some(watcher);
    }

    fn lock<'a>(
        &'a self,
        _: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        Box::pin(async move {
            let entered = self.enter("lock").await;
            let mut server = self.server();
            let unlocks = changes.iter().all(|change| change.mode.is_none());
            if unlocks || entered.is_ok() {
                server.getattr(file)?;
                server.locks.change(self.number, file, changes)?;
            }
            entered?;
            server.getattr(file)
        })
    }

    fn test_lock<'a>(
        &'a self,
        _: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
        mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        self.call("test_lock", move |server| {
            server.getattr(file)?;
            Ok(server.locks.conflict(self.number, file, &range, mode))
        })
    }

    fn xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, Option<Bytes>> {
        self.call("xattr", move |server| server.xattr(cred, file, name))
    }

    fn xattrs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Vec<OsString>> {
        self.call("xattrs", move |server| server.xattrs(cred, file))
    }

    fn set_xattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        set: SetXattr,
    ) -> Future<'a, Change> {
        self.change("set_xattr", vec![file.clone()], move |server| {
            server.set_xattr(cred, file, set)
        })
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        self.call("lookup", |server| server.lookup(cred, dir, name))
    }

    fn readlink<'a>(
        &'a self,
        _: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        self.call("readlink", |server| server.readlink(file))
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        self.count_opened("read", file, open);
        self.call("read", move |server| {
            if self.connection().grows {
                let end = server.getattr(file)?.size;
                server.write(&Cred::root(), file, end, b"+", Stability::FileSync)?;
            }
            let Some(size) = self.connection().cut.take() else {
                return server.read(cred, file, offset, len);
            };
            let attr = Some(server.getattr(file)?);
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            server.setattr(&Cred::root(), file, set, None)?;
            Ok(RemoteRead { attr, eof: false, ..server.read(cred, file, offset, len)? })
        })
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
        self.count_opened("write", file, open);
        self.change("write", vec![file.clone()], move |server| {
            let nobody = Cred::new(65534, 65534, &[]);
            let (is_meddled, hides_before, cred) = {
                let mut connection = self.connection();
                let left = connection.meddled_after;
                connection.meddled_after = left.and_then(|left| left.checked_sub(1));
                let is_nobody = connection.squashes_root && cred.uid == 0;
                let cred = if is_nobody { &nobody } else { cred };
                (left == Some(0), connection.hides_before, cred)
            };
            if is_meddled {
                server.write(&Cred::root(), file, 0, b"!", Stability::FileSync)?;
            }
            let mut written = server.write(cred, file, offset, &data, stability)?;
            written.change.before = written.change.before.filter(|_| !hides_before);
            Ok(written)
        })
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        _: Range<u64>,
    ) -> Future<'a, Committed> {
        self.count_opened("commit", file, open);
        self.call("commit", |server| server.commit(cred, file))
    }

    fn change_space<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        change: &'a SpaceChange,
    ) -> Future<'a, Change> {
        self.count_opened("change_space", file, open);
        self.change("change_space", vec![file.clone()], move |server| {
            server.change_space(cred, file, change)
        })
    }

    fn tells_holes(&self) -> bool {
        true
    }

    fn seek<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        what: Seek,
    ) -> Future<'a, u64> {
        self.count_opened("seek", file, open);
        self.call("seek", move |server| server.seek(cred, file, offset, what))
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
        self.count_opened("copy_range", from.file, from.open);
        self.count_opened("copy_range", to.file, to.open);
        self.change("copy_range", vec![to.file.clone()], move |server| {
            server.copy_range(cred, from, to, len)
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
        let files = self.touched(dir, name);
        self.connection().volatile += u64::from(set.in_memory.is_some());
        self.change("make", files, move |server| {
            let made = server.make(cred, dir, name, new, set)?;
            let found = &made.found;
            let opens = server.limits.opens && found.attr.kind == Kind::File;
            let token = opens.then(|| Token::new(Open::new(&self.opens, &found.handle)));
            Ok(Made { token, ..made })
        })
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        let files = self.touched(dir, name);
        self.change("remove", files, move |server| server.remove(cred, dir, name, what))
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        let files = [self.touched(from.0, from.1), self.touched(to.0, to.1)].concat();
        self.change("rename", files, move |server| server.rename(cred, from, to))
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        let files = vec![file.clone(), dir.clone()];
        self.change("link", files, |server| server.link(cred, file, dir, name))
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        self.call("readdir", move |server| server.readdir(cred, dir, cookie, bytes_max))
    }

    fn statfs<'a>(&'a self, _: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        self.call("statfs", |server| server.statfs(file))
    }

    fn reachable(&self) -> bool {
        self.connection().reach == Reach::Reachable
    }

    fn shutdown(&self) {
        self.server().locks.end(self.number);
        self.set_reach(Reach::ShutDown);
    }
}
