//! [`Client`] as a [`FileSystem`]: passes each operation to the module that implements it.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{
    Access, Answer, Change, Cred, DirEntry, Entry, Error, FileSystem, Found, Fresh, GivenUp,
    Handle, Ino, Kernel, Lock, LockOwner, Lookup, New, OpenFlags, OpenId, OpenOffset, Opened,
    Removal, RenameFlags, Result, Seek, SetAttr, SetXattr, SpaceChange, Stability, StatFs,
    Verifier, Written,
};

use crate::client::Client;
use crate::core::Core;

impl Client {
    fn later<T, F>(&self, work: impl FnOnce(Arc<Core>) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        Answer::later(work(self.core.clone()))
    }
}

impl FileSystem for Client {
    fn attach(&self, kernel: Arc<dyn Kernel>) {
        let attached = self.core.kernel.set(kernel);
        assert!(attached.is_ok(), "a second kernel was attached");
        self.core.tell_of_open_files();
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        self.core.lookup(cred, parent, name)
    }

    fn forget(&self, ino: Ino, _count: u64) {
        self.core.table.forget(ino);
    }

    fn getattr(&self, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        self.core.getattr(cred, ino)
    }

    fn stat(&self, cred: &Cred, ino: Ino) -> Answer<Fresh> {
        self.core.stat(cred, ino)
    }

    /// The server's reply describes its own file before the change, which is not what this client's
    /// users saw of the file before.
    fn setattr(
        &self,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        set: SetAttr,
    ) -> Answer<(Fresh, Change)> {
        let cred = self.core.caller(cred);
        self.later(|core| async move {
            Ok((core.setattr_for_kernel(&cred, ino, open, set).await?, Change::default()))
        })
    }

    fn access(&self, cred: &Cred, ino: Ino, wanted: Access) -> Answer<Access> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.access(&cred, ino, wanted).await })
    }

    fn readlink(&self, cred: &Cred, ino: Ino) -> Answer<OsString> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.readlink(&cred, ino).await })
    }

    fn make(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        new: New,
        set: SetAttr,
    ) -> Answer<Entry> {
        let (cred, name) = (self.core.caller(cred), name.to_owned());
        self.later(|core| async move { core.make(&cred, parent, &name, new, set).await })
    }

    fn remove(&self, cred: &Cred, parent: Ino, name: &OsStr, what: Removal) -> Answer<()> {
        let (cred, name) = (self.core.caller(cred), name.to_owned());
        self.later(|core| async move { core.remove(&cred, parent, &name, what).await })
    }

    fn rename(
        &self,
        cred: &Cred,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        flags: RenameFlags,
    ) -> Answer<()> {
        let cred = self.core.caller(cred);
        let (from_dir, from) = (from.0, from.1.to_owned());
        let (to_dir, to) = (to.0, to.1.to_owned());
        self.later(|core| async move {
            core.rename(&cred, (from_dir, &from), (to_dir, &to), flags).await
        })
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Entry> {
        let (cred, name) = (self.core.caller(cred), name.to_owned());
        self.later(|core| async move { core.link(&cred, ino, parent, &name).await })
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        self.core.open_whole(cred, ino, flags)
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &OsStr,
        set: SetAttr,
        flags: OpenFlags,
    ) -> Answer<(Entry, Opened)> {
        let (cred, name) = (self.core.caller(cred), name.to_owned());
        self.later(|core| async move { core.create(&cred, parent, &name, set, flags).await })
    }

    fn read(
        &self,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answer<Bytes> {
        self.core.read_whole(cred, ino, open, offset, len)
    }

    fn write(
        &self,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Answer<Written> {
        self.core.write(cred, ino, open, offset, data, stability)
    }

    fn flush(&self, _cred: &Cred, ino: Ino, open: OpenId, owner: Option<LockOwner>) -> Answer<()> {
        self.core.flush(ino, open, owner)
    }

    fn lock(&self, ino: Ino, open: OpenId, lock: Lock, wait: Option<GivenUp>) -> Answer<()> {
        self.later(|core| async move { core.lock(ino, open, lock, wait).await })
    }

    fn unlock(&self, ino: Ino, _open: OpenId, owner: LockOwner, range: Range<u64>) -> Answer<()> {
        if !self.core.locks.has(ino, owner) {
            return Answer::ok(());
        }
        self.later(|core| async move { core.unlock(ino, owner, range).await })
    }

    fn test_lock(&self, ino: Ino, open: OpenId, lock: Lock) -> Answer<Option<Lock>> {
        self.later(|core| async move { core.test_lock(ino, open, lock).await })
    }

    fn has_xattrs(&self) -> bool {
        self.core.options.has_xattrs
    }

    fn xattr(&self, cred: &Cred, ino: Ino, name: &OsStr) -> Answer<Option<Bytes>> {
        let (cred, name) = (self.core.caller(cred), name.to_owned());
        self.later(|core| async move { core.xattr(&cred, ino, &name).await })
    }

    fn xattrs(&self, cred: &Cred, ino: Ino) -> Answer<Vec<OsString>> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.xattrs(&cred, ino).await })
    }

    fn set_xattr(&self, cred: &Cred, ino: Ino, set: SetXattr) -> Answer<()> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.set_xattr(&cred, ino, set).await })
    }

    fn hint_class(&self, cred: &Cred, _: Ino, open: OpenId, class: String) -> Answer<()> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.hint_class(&cred, open, &class).await })
    }

    fn change_space(
        &self,
        _cred: &Cred,
        ino: Ino,
        open: OpenId,
        change: SpaceChange,
    ) -> Answer<()> {
        self.later(|core| async move { core.change_space(ino, open, change).await })
    }

    fn seek(&self, _: &Cred, ino: Ino, open: OpenId, offset: u64, what: Seek) -> Answer<u64> {
        if !self.core.remote.tells_holes() {
            return Answer::fail(Error::NotSupported);
        }
        self.later(|core| async move { core.seek(ino, open, offset, what).await })
    }

    fn copies(&self) -> bool {
        self.core.remote.copies()
    }

    fn copy_range(&self, _cred: &Cred, from: OpenOffset, to: OpenOffset, len: u64) -> Answer<u64> {
        self.later(|core| async move { core.copy_range(from, to, len).await })
    }

    fn fsync(&self, _cred: &Cred, ino: Ino, open: Option<OpenId>) -> Answer<Verifier> {
        let deadline = self.core.deadline();
        self.later(|core| async move { core.fsync(ino, open, deadline).await })
    }

    fn sync_names(&self, cred: &Cred, dir: Ino) -> Option<Answer<()>> {
        self.core.remote.deferring()?;
        let cred = self.core.caller(cred);
        Some(self.later(|core| async move { core.sync_names(&cred, dir).await }))
    }

    fn release(&self, _ino: Ino, open: OpenId) -> Answer<()> {
        self.later(|core| async move { core.release(open).await })
    }

    fn opendir(&self, cred: &Cred, ino: Ino) -> Answer<()> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.opendir(&cred, ino).await })
    }

    fn readdir(
        &self,
        cred: &Cred,
        ino: Ino,
        offset: u64,
        bytes_max: u32,
        plus: bool,
    ) -> Answer<Vec<DirEntry>> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.readdir(&cred, ino, offset, bytes_max, plus).await })
    }

    fn statfs(&self, cred: &Cred, ino: Ino) -> Answer<StatFs> {
        let cred = self.core.caller(cred);
        self.later(|core| async move { core.statfs(&cred, ino).await })
    }

    fn handle(&self, ino: Ino) -> Answer<Handle> {
        Answer::Now(self.core.node(ino).and_then(|node| node.handle()))
    }

    fn resolve(&self, handle: &Handle) -> Answer<Ino> {
        if let Some(no) = self.core.cache.number_of(handle.as_bytes()) {
            return Answer::ok(Ino(no.0));
        }
        let handle = handle.clone();
        self.later(|core| async move {
            let asked = core.now();
            let attr = core.remote.getattr(&core.caller(&Cred::root()), &handle).await?;
            Ok(core.learn(&Found { handle, attr }, asked, None).ino)
        })
    }
}
