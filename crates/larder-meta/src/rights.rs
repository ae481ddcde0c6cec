//! Rights: POSIX's rules on modes, owners and groups.
//!
//! Functions of the caller and of attributes; nothing here reads or writes.

use larder_wire::meta::Status;
use larder_wire::meta::words::{Attributes, Kind, access};

/// Bits of a mode.
pub(crate) const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
pub(crate) const STICKY: u32 = 0o1000;
const GROUP_EXECUTE: u32 = 0o010;

/// One class's bits of a mode.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// On whose behalf a call is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// The superuser.
    pub fn root() -> Caller {
        Caller { uid: 0, gid: 0, groups: Vec::new() }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the file is the caller's to administer.
    pub(crate) fn owns(&self, file: &Attributes) -> bool {
        self.is_root() || self.uid == file.uid
    }

    pub(crate) fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// The `rwx` bits that the caller has.
    fn bits(&self, file: &Attributes) -> u32 {
        if self.is_root() {
            let executes = file.kind == Kind::Directory || file.mode & 0o111 != 0;
            return if executes { READ | WRITE | EXECUTE } else { READ | WRITE };
        }
        let shift = match () {
            () if self.uid == file.uid => 6,
            () if self.in_group(file.gid) => 3,
            () => 0,
        };
        file.mode >> shift & 7
    }

    /// Demands all of `bits`.
    ///
    /// # Errors
    /// [`Status::AccessDenied`]
    pub(crate) fn need(&self, file: &Attributes, bits: u32) -> Result<(), Status> {
        if self.bits(file) & bits == bits { Ok(()) } else { Err(Status::AccessDenied) }
    }

    /// Demands the rights to read or write data without an open file, by NFS's rule: the owner may,
    /// since an open file stays usable whatever its mode becomes; a user who may execute may read,
    /// since the client must read to execute (RFC 1813, 4.4).
    ///
    /// # Errors
    /// [`Status::AccessDenied`]
    pub(crate) fn need_data(&self, file: &Attributes, bits: u32) -> Result<(), Status> {
        if self.owns(file) || (bits == READ && self.need(file, EXECUTE).is_ok()) {
            return Ok(());
        }
        self.need(file, bits)
    }

    /// Demands the right to remove the name of `file` from `dir`, as far as the sticky bit is
    /// concerned.
    ///
    /// # Errors
    /// [`Status::NotPermitted`]
    pub(crate) fn need_unstuck(&self, dir: &Attributes, file: &Attributes) -> Result<(), Status> {
        if dir.mode & STICKY != 0 && !self.owns(dir) && !self.owns(file) {
            return Err(Status::NotPermitted);
        }
        Ok(())
    }

    /// The bits of ACCESS that the caller has.
    pub(crate) fn access(&self, file: &Attributes) -> u32 {
        let bits = self.bits(file);
        let granted = |bit, access| if bits & bit != 0 { access } else { 0 };
        let change = access::MODIFY | access::EXTEND;
        match file.kind {
            Kind::Directory => {
                granted(READ, access::READ)
                    | granted(WRITE, change | access::DELETE)
                    | granted(EXECUTE, access::LOOKUP)
            }
            _ => {
                granted(READ, access::READ)
                    | granted(WRITE, change)
                    | granted(EXECUTE, access::EXECUTE)
            }
        }
    }
}

/// The mode of a file after a user without privileges writes it, or after its owner changes.
pub(crate) fn without_privileges(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
    mode & !(SET_UID | group)
}
