//! Procedures on names: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME and LINK
//! (RFC 1813, 3.3.3 and 3.3.8 to 3.3.15).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use larder_vfs::{
    Attr, Entry, Ino, Kind, Lookup, New, Removal, RenameFlags, SetAttr, SetTime, Time,
};
use larder_wire::nfs3::{
    CREATE3args, CREATE3res, CREATE3resok, LINK3args, LINK3res, LINK3wcc, LOOKUP3args, LOOKUP3res,
    LOOKUP3resok, MKDIR3args, MKNOD3args, REMOVE3args, REMOVE3res, REMOVE3resok, RENAME3args,
    RENAME3res, RENAME3wcc, RMDIR3args, SYMLINK3args, createhow3, createverf3, diropargs3,
    filename3, mknoddata3, nfs_fh3, nfsstat3, wcc_data,
};

use super::{Caller, Nfs, ask, fail, with};
use crate::words;

impl Nfs {
    pub(crate) async fn lookup(&self, caller: &Caller, args: LOOKUP3args) -> LOOKUP3res {
        let dir = self.resolve(&args.what.dir).await.map_err(|status| fail(status, None))?;
        let found = async {
            let name = words::name(&args.what.name);
            if name == "." {
                self.is_directory(caller, dir).await?;
                return Ok((args.what.dir, self.attr(caller, dir).await?));
            }
            self.find(caller, dir, name).await
        };
        let found = found.await;
        let dir_attributes = self.post_op(caller, dir).await;
        with(found, dir_attributes, |(object, attr)| LOOKUP3resok {
            object,
            obj_attributes: Some(words::fattr(&attr)),
            dir_attributes,
        })
    }

    /// The object that a name refers to.
    async fn find(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &OsStr,
    ) -> Result<(nfs_fh3, Attr), nfsstat3> {
        match ask(self.fs.lookup(&caller.cred, dir, name)).await? {
            Lookup::Found(entry) => Ok((self.take_handle(&entry).await?, entry.fresh.attr)),
            Lookup::Absent { .. } => Err(nfsstat3::NFS3ERR_NOENT),
        }
    }

    pub(crate) async fn create(&self, caller: &Caller, args: CREATE3args) -> CREATE3res {
        let (new, set, verifier) = match &args.how {
            createhow3::UNCHECKED(set) => (New::File, words::set_attr(set), None),
            createhow3::GUARDED(set) => (New::FileExclusive, words::set_attr(set), None),
            createhow3::EXCLUSIVE(verifier) => {
                (New::FileExclusive, marked(verifier), Some(verifier))
            }
        };
        self.make(caller, &args.r#where, new, set, verifier).await
    }

    pub(crate) async fn mkdir(&self, caller: &Caller, args: MKDIR3args) -> CREATE3res {
        let set = words::set_attr(&args.attributes);
        self.make(caller, &args.r#where, New::Directory, set, None).await
    }

    pub(crate) async fn symlink(&self, caller: &Caller, args: SYMLINK3args) -> CREATE3res {
        let target = &args.symlink.symlink_data;
        let set = words::set_attr(&args.symlink.symlink_attributes);
        let new = New::Symlink(OsString::from(OsStr::from_bytes(target)));
        self.make(caller, &args.r#where, new, set, None).await
    }

    pub(crate) async fn mknod(&self, caller: &Caller, args: MKNOD3args) -> CREATE3res {
        let (kind, set, spec) = match &args.what {
            mknoddata3::NF3CHR(data) => (Kind::CharDevice, data.dev_attributes, data.spec),
            mknoddata3::NF3BLK(data) => (Kind::BlockDevice, data.dev_attributes, data.spec),
            mknoddata3::NF3SOCK(set) => (Kind::Socket, *set, Default::default()),
            mknoddata3::NF3FIFO(set) => (Kind::Fifo, *set, Default::default()),
            mknoddata3::NF3REG | mknoddata3::NF3DIR | mknoddata3::NF3LNK => {
                return Err(fail(nfsstat3::NFS3ERR_BADTYPE, wcc_data::default()));
            }
        };
        let new = New::Node(kind, words::device(spec));
        self.make(caller, &args.r#where, new, words::set_attr(&set), None).await
    }

    /// Makes an object. With `verifier`, an existing object that carries it is also the answer: the
    /// call was sent twice (RFC 1813, 3.3.8).
    async fn make(
        &self,
        caller: &Caller,
        place: &diropargs3,
        new: New,
        set: SetAttr,
        verifier: Option<&createverf3>,
    ) -> CREATE3res {
        let none = wcc_data::default();
        let dir = self.resolve(&place.dir).await.map_err(|status| fail(status, none))?;
        let change = self.change_directory(caller, dir).await;
        let made = async {
            let name = new_name(&place.name)?;
            if matches!(&new, New::Symlink(target) if target.as_bytes().contains(&0)) {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            let made = ask(self.fs.make(&caller.cred, dir, name, new, set)).await;
            match (made, verifier) {
                (Err(nfsstat3::NFS3ERR_EXIST), Some(verifier)) => {
                    self.find_marked(caller, dir, name, verifier).await
                }
                (made, _) => {
                    let entry: Entry = made?;
                    Ok((self.take_handle(&entry).await?, entry.fresh.attr))
                }
            }
        };
        let made = made.await;
        let dir_wcc = self.changed(caller, change).await;
        with(made, dir_wcc, |(handle, attr)| CREATE3resok {
            obj: Some(handle),
            obj_attributes: Some(words::fattr(&attr)),
            dir_wcc,
        })
    }

    /// The file that an earlier transmission of this exclusive create made.
    async fn find_marked(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &OsStr,
        verifier: &createverf3,
    ) -> Result<(nfs_fh3, Attr), nfsstat3> {
        let (handle, attr) = self.find(caller, dir, name).await?;
        let mark = marked(verifier);
        let bears = [(mark.atime, attr.atime), (mark.mtime, attr.mtime)]
            .iter()
            .all(|(mark, found)| *mark == Some(SetTime::To(*found)));
        let ours = attr.kind == Kind::File && attr.size == 0 && bears;
        if ours { Ok((handle, attr)) } else { Err(nfsstat3::NFS3ERR_EXIST) }
    }

    pub(crate) async fn remove(&self, caller: &Caller, args: REMOVE3args) -> REMOVE3res {
        self.unlink(caller, &args.object, Removal::File).await
    }

    pub(crate) async fn rmdir(&self, caller: &Caller, args: RMDIR3args) -> REMOVE3res {
        self.unlink(caller, &args.object, Removal::Directory).await
    }

    async fn unlink(&self, caller: &Caller, place: &diropargs3, what: Removal) -> REMOVE3res {
        let none = wcc_data::default();
        let dir = self.resolve(&place.dir).await.map_err(|status| fail(status, none))?;
        let change = self.change_directory(caller, dir).await;
        let done = async {
            let name = words::name(&place.name);
            match name.as_bytes() {
                b"." => Err(nfsstat3::NFS3ERR_INVAL),
                // Required by RFC 1813, 3.3.13.
                b".." => Err(nfsstat3::NFS3ERR_EXIST),
                _ => ask(self.fs.remove(&caller.cred, dir, name, what)).await,
            }
        };
        let done = done.await;
        let dir_wcc = self.changed(caller, change).await;
        with(done, dir_wcc, |()| REMOVE3resok { dir_wcc })
    }

    pub(crate) async fn rename(&self, caller: &Caller, args: RENAME3args) -> RENAME3res {
        let none = RENAME3wcc::default();
        let from = self.resolve(&args.from.dir).await.map_err(|status| fail(status, none))?;
        let to = self.resolve(&args.to.dir).await.map_err(|status| fail(status, none))?;
        // Within one directory the rename is one change; two marks would overlap each other.
        let from_change = self.change_directory(caller, from).await;
        let to_change = match from == to {
            true => None,
            false => Some(self.change_directory(caller, to).await),
        };
        let done = async {
            let (from_name, to_name) = (moved_name(&args.from.name)?, moved_name(&args.to.name)?);
            let (from, to) = ((from, from_name), (to, to_name));
            ask(self.fs.rename(&caller.cred, from, to, RenameFlags::default())).await
        };
        let done = done.await;
        let fromdir_wcc = self.changed(caller, from_change).await;
        let todir_wcc = match to_change {
            Some(change) => self.changed(caller, change).await,
            None => fromdir_wcc,
        };
        let wcc = RENAME3wcc { fromdir_wcc, todir_wcc };
        with(done, wcc, |()| wcc)
    }

    pub(crate) async fn link(&self, caller: &Caller, args: LINK3args) -> LINK3res {
        let none = LINK3wcc::default();
        let file = self.resolve(&args.file).await.map_err(|status| fail(status, none))?;
        let dir = self.resolve(&args.link.dir).await.map_err(|status| fail(status, none))?;
        let change = self.change_directory(caller, dir).await;
        let done = async {
            let name = new_name(&args.link.name)?;
            let entry = ask(self.fs.link(&caller.cred, file, dir, name)).await?;
            self.fs.forget(entry.ino, 1);
            Ok(())
        };
        let done = done.await;
        let linkdir_wcc = self.changed(caller, change).await;
        let wcc = LINK3wcc { file_attributes: self.post_op(caller, file).await, linkdir_wcc };
        with(done, wcc, |()| wcc)
    }
}

/// The attributes that mark an exclusive create: the verifier as times, which the client sets right
/// afterwards. The highest bits are left out, as in Linux, so that file systems with signed times
/// keep them. No rights until the client sets the mode.
fn marked(verifier: &createverf3) -> SetAttr {
    let [a, b, c, d, e, f, g, h] = *verifier;
    let time = |bytes| {
        let sec = i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff);
        Some(SetTime::To(Time { sec, nsec: 0 }))
    };
    SetAttr {
        mode: Some(0),
        atime: time([a, b, c, d]),
        mtime: time([e, f, g, h]),
        ..SetAttr::default()
    }
}

/// The name of a new entry. `.` and `..` exist everywhere.
fn new_name(name: &filename3) -> Result<&OsStr, nfsstat3> {
    match &name[..] {
        b"." | b".." => Err(nfsstat3::NFS3ERR_EXIST),
        _ => Ok(words::name(name)),
    }
}

/// The name of an entry that is renamed (RFC 1813, 3.3.14).
fn moved_name(name: &filename3) -> Result<&OsStr, nfsstat3> {
    match &name[..] {
        b"." | b".." => Err(nfsstat3::NFS3ERR_INVAL),
        _ => Ok(words::name(name)),
    }
}
