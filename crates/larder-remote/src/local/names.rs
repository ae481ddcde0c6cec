//! Operations on names: look up, make, remove, rename, link.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;

use larder_vfs::{
    Attr, Change, Cred, Error, Found, Handle, Kind, LookedUp, Made, New, Removal, Result, SetAttr,
};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, chmod, linkat, makedev, mkdirat, mknodat, openat,
    readlinkat, renameat, symlinkat, unlinkat,
};

use super::descriptors::OpenFile;
use super::errors::error;
use super::export::{Export, change, check_name};
use super::identity::Identity;

/// Mode of new files and directories for which the client gives none: only the owner has rights.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// How often the operation is repeated if other processes make and remove the file in the meantime.
const TRIES_MAX: u32 = 8;

impl Export {
    pub(super) fn lookup(&self, cred: &Cred, handle: &Handle, name: &OsStr) -> Result<LookedUp> {
        check_name(name)?;
        let dir = self.dir(handle)?;
        // `..` of the export's root is the root itself.
        let name = if name == ".." && self.is_root(handle) { OsStr::new(".") } else { name };
        let opened = {
            let _acting = self.act_as(&self.identity(cred))?;
            self.open_entry(&dir, name)
        };
        let found = match opened {
            // It lay inside a moment ago, and may have been moved out since.
            Ok(above) if name == ".." && !self.is_inside(&above)? => return Err(Error::Stale),
            Ok(fd) => Some(self.found(fd)?),
            Err(Error::NotFound) => None,
            Err(other) => return Err(other),
        };
        let dir = self.attr(&*dir)?;
        // A removed directory finds nothing, but that is no answer.
        if dir.nlink == 0 { Err(Error::Stale) } else { Ok(LookedUp { found, dir: Some(dir) }) }
    }

    pub(super) fn readlink(&self, handle: &Handle) -> Result<(OsString, Attr)> {
        let file = self.file(handle)?;
        if file.kind != Kind::Symlink {
            return Err(Error::InvalidArgument);
        }
        let target = readlinkat(&*file, c"", Vec::new()).map_err(error)?;
        Ok((OsString::from_vec(target.into_bytes()), self.attr(&*file)?))
    }

    pub(super) fn make(
        &self,
        cred: &Cred,
        handle: &Handle,
        name: &OsStr,
        new: &New,
        set: SetAttr,
    ) -> Result<Made> {
        self.writable()?;
        check_name(name)?;
        let who = self.identity(cred);
        let dir = self.dir(handle)?;
        let locked = self.lock(handle);
        let before = self.attr(&*dir)?;
        let (mut found, made) = {
            let _acting = self.act_as(&who)?;
            self.make_entry(&dir, name, new, &set)?
        };
        let after = self.attr(&*dir)?;
        drop(locked);

        let rest = if made { rest_of_new(&who, set, &found.attr) } else { size_of(set) };
        if made {
            self.undo_umask(new, &set, &mut found)?;
        }
        if rest != SetAttr::default() {
            self.set_new(&who, &mut found, rest)?;
            self.sync_attributes(&found.handle, &*self.file(&found.handle)?)?;
        }
        self.sync_names(&[handle])?;
        Ok(Made { found, dir: change(&before, after), created: false, token: None })
    }

    pub(super) fn remove(
        &self,
        cred: &Cred,
        handle: &Handle,
        name: &OsStr,
        what: Removal,
    ) -> Result<Change> {
        self.writable()?;
        check_name(name)?;
        if name == "." || name == ".." {
            return Err(Error::InvalidArgument);
        }
        let flags = match what {
            Removal::File => AtFlags::empty(),
            Removal::Directory => AtFlags::REMOVEDIR,
        };
        let dir = self.dir(handle)?;
        let locked = self.lock(handle);
        let before = self.attr(&*dir)?;
        let victim = self.handle_at(&dir, name);
        {
            let _acting = self.act_as(&self.identity(cred))?;
            unlinkat(&*dir, name, flags).map_err(error)?;
        }
        let after = self.attr(&*dir)?;
        drop(locked);
        victim.iter().for_each(|victim| self.descriptors().forget(victim));
        self.sync_names(&[handle])?;
        Ok(change(&before, after))
    }

    pub(super) fn rename(
        &self,
        cred: &Cred,
        from: (&Handle, &OsStr),
        to: (&Handle, &OsStr),
    ) -> Result<(Change, Change)> {
        self.writable()?;
        for name in [from.1, to.1] {
            check_name(name)?;
            if name == "." || name == ".." {
                return Err(Error::InvalidArgument);
            }
        }
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        let locked = self.lock_both(from.0, to.0);
        let before = (self.attr(&*from_dir)?, self.attr(&*to_dir)?);
        let victim = self.handle_at(&to_dir, to.1);
        {
            let _acting = self.act_as(&self.identity(cred))?;
            renameat(&*from_dir, from.1, &*to_dir, to.1).map_err(error)?;
        }
        let after = (self.attr(&*from_dir)?, self.attr(&*to_dir)?);
        drop(locked);
        victim.iter().for_each(|victim| self.descriptors().forget(victim));
        if from.0 == to.0 {
            self.sync_names(&[to.0])?;
        } else {
            // The new name is synced before the removal of the old one: a crash may leave both,
            // never neither.
            self.sync_names(&[to.0, from.0])?;
        }
        Ok((change(&before.0, after.0), change(&before.1, after.1)))
    }

    pub(super) fn link(
        &self,
        cred: &Cred,
        file: &Handle,
        handle: &Handle,
        name: &OsStr,
    ) -> Result<(Attr, Change)> {
        self.writable()?;
        check_name(name)?;
        let target = self.file(file)?;
        let dir = self.dir(handle)?;
        let locked = self.lock(handle);
        let before = self.attr(&*dir)?;
        {
            let _acting = self.act_as(&self.identity(cred))?;
            // Through proc(5): linking by descriptor alone takes a capability that the caller does
            // not have. The sysctl `fs.protected_hardlinks` applies here, unlike in the kernel's
            // server.
            linkat(CWD, target.proc_path(), &*dir, name, AtFlags::SYMLINK_FOLLOW).map_err(error)?;
        }
        let after = self.attr(&*dir)?;
        drop(locked);
        self.sync_names(&[handle])?;
        Ok((self.attr(&*target)?, change(&before, after)))
    }

    /// Makes the entries of directories durable, if names are to be.
    fn sync_names(&self, dirs: &[&Handle]) -> Result<()> {
        match self.options().durable_names {
            true => dirs.iter().try_for_each(|dir| self.sync(dir)),
            false => Ok(()),
        }
    }

    /// The handle of what `name` stands for now, to close our descriptors of it once it is gone.
    fn handle_at(&self, dir: &OpenFile, name: &OsStr) -> Option<Handle> {
        let fd = self.open_entry(dir, name).ok()?;
        self.describe(fd).ok().map(|found| found.handle)
    }

    /// Makes the entry as the calling thread. The second value says whether it is new.
    fn make_entry(
        &self,
        dir: &OpenFile,
        name: &OsStr,
        new: &New,
        set: &SetAttr,
    ) -> Result<(Found, bool)> {
        let default = if *new == New::Directory { DIRECTORY_MODE } else { FILE_MODE };
        let mode = Mode::from_raw_mode(set.mode.unwrap_or(default) & 0o7777);
        match new {
            New::File => return self.make_or_open_file(dir, name, mode),
            New::FileExclusive => {
                let fd = create_file(dir, name, mode)?;
                return Ok((self.describe(fd)?, true));
            }
            New::Directory => mkdirat(dir, name, mode),
            New::Symlink(target) => symlinkat(target.as_os_str(), dir, name),
            New::Node(kind, device) => {
                let device = makedev(device.major, device.minor);
                mknodat(dir, name, node_type(*kind)?, mode, device)
            }
        }
        .map_err(error)?;
        let fd = self.open_entry(dir, name)?;
        Ok((self.found(fd)?, true))
    }

    fn make_or_open_file(&self, dir: &OpenFile, name: &OsStr, mode: Mode) -> Result<(Found, bool)> {
        for _ in 0..TRIES_MAX {
            match create_file(dir, name, mode) {
                Ok(fd) => return Ok((self.describe(fd)?, true)),
                Err(Error::Exists) => {}
                Err(other) => return Err(other),
            }
            match self.open_entry(dir, name) {
                Ok(fd) => {
                    let found = self.found(fd)?;
                    let regular = found.attr.kind == Kind::File;
                    return if regular { Ok((found, false)) } else { Err(Error::Exists) };
                }
                // Removed since: try to make it again.
                Err(Error::NotFound) => {}
                Err(other) => return Err(other),
            }
        }
        Err(Error::TryAgain)
    }

    /// Gives a new object back the bits that the process's umask removed: clients have applied
    /// their own umask, and ours must not count. Where a directory has a default ACL the kernel
    /// ignores umasks, and the mode it gave is right. Done with our own rights, since a user may
    /// not always set again what the kernel gave it (a directory's set-gid bit, from its parent).
    fn undo_umask(&self, new: &New, set: &SetAttr, found: &mut Found) -> Result<()> {
        const PERMISSIONS: u32 = 0o777;
        let given = found.attr.mode;
        let wanted = set.mode.unwrap_or(given) & PERMISSIONS;
        let masked = wanted & !self.umask;
        if matches!(new, New::Symlink(_)) || wanted == masked || given & PERMISSIONS != masked {
            return Ok(());
        }
        let file = self.file(&found.handle)?;
        let mode = Mode::from_raw_mode(given & !PERMISSIONS | wanted);
        chmod(file.proc_path(), mode).map_err(error)?;
        found.attr = self.attr(&*file)?;
        Ok(())
    }

    /// Sets attributes of an object that was just made, or found when it was to be made.
    fn set_new(&self, who: &Identity, found: &mut Found, set: SetAttr) -> Result<()> {
        let file = self.file(&found.handle)?;
        let data = self.data_to_set(&found.handle, &file, set)?;
        let _locked = self.lock(&found.handle);
        self.set(who, &file, data.as_deref(), &found.attr, set)?;
        found.attr = self.attr(&*file)?;
        Ok(())
    }
}

/// The attributes of a new object that are still to be set: all but the mode, with which it was
/// made. Only the superuser gives files away; for others the kernel's server ignores the ids, too,
/// because some clients always send them.
fn rest_of_new(who: &Identity, set: SetAttr, attr: &Attr) -> SetAttr {
    let ours = who.is_superuser();
    SetAttr {
        mode: None,
        uid: set.uid.filter(|&uid| ours && uid != attr.uid),
        gid: set.gid.filter(|&gid| ours && gid != attr.gid),
        size: set.size.filter(|&size| size != attr.size && attr.kind == Kind::File),
        atime: set.atime,
        mtime: set.mtime,
        in_memory: None,
        retained: false,
    }
}

/// The attributes to set on a file that exists already: its size, as with open(2) and
/// `O_CREAT | O_TRUNC`.
fn size_of(set: SetAttr) -> SetAttr {
    SetAttr { size: set.size, ..SetAttr::default() }
}

fn create_file(dir: &OpenFile, name: &OsStr, mode: Mode) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, mode).map_err(error)
}

fn node_type(kind: Kind) -> Result<FileType> {
    match kind {
        Kind::Fifo => Ok(FileType::Fifo),
        Kind::Socket => Ok(FileType::Socket),
        Kind::CharDevice => Ok(FileType::CharacterDevice),
        Kind::BlockDevice => Ok(FileType::BlockDevice),
        Kind::File | Kind::Directory | Kind::Symlink => Err(Error::InvalidArgument),
    }
}
