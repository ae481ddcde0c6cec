//! Set-uid and set-gid bits that a writer has dropped and that the server will drop when it gets
//! the bytes. Pure; see [`super::privileges`].

use larder_vfs::SetAttr;

/// Bits of a mode (`S_ISUID`, `S_ISGID`).
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
/// Without this bit (`S_IXGRP`), `S_ISGID` means something else and stays.
const GROUP_EXECUTE: u32 = 0o010;

/// Bits that a writer has dropped, and the server will drop by the bytes.
#[derive(Default)]
pub(crate) struct Dropped(u32);

impl Dropped {
    /// Whether the mode is what the server says.
    pub(crate) fn is_none(&self) -> bool {
        self.0 == 0
    }

    /// A user without privileges wrote to a file with this mode. For a write that bypasses the page
    /// cache, the kernel does not report that. Returns whether another mode is shown from now on.
    pub(crate) fn by_write(&mut self, mode: u32) -> bool {
        let is_new = self.is_next(mode);
        self.0 |= dropped_by_write(mode);
        is_new
    }

    /// Whether the next write without privileges changes the mode that is shown.
    pub(super) fn is_next(&self, mode: u32) -> bool {
        self.shown(mode) & dropped_by_write(mode) != 0
    }

    /// These are dropped too.
    pub(super) fn add(&mut self, bits: u32) {
        debug_assert!(bits & !(SET_UID | SET_GID) == 0, "a writer drops no other bit of a mode");
        self.0 |= bits;
    }

    /// The server's mode is shown again from now on: the bytes are sent, or a mode was set.
    pub(crate) fn end(&mut self) {
        self.0 = 0;
    }

    /// The mode as applications see it.
    pub(crate) fn shown(&self, mode: u32) -> u32 {
        mode & !self.0
    }
}

/// The bits that a write without privileges drops.
fn dropped_by_write(mode: u32) -> u32 {
    let set_gid = if mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
    mode & (SET_UID | set_gid)
}

/// The bits that `set` removes from a mode, if it changes nothing else of mode and owner.
pub(super) fn dropped(mode: u32, set: &SetAttr) -> Option<u32> {
    let (now, wanted) = (mode & 0o7777, set.mode? & 0o7777);
    let dropped = now & !wanted;
    let is_only_that = dropped | wanted == now && dropped & !(SET_UID | SET_GID) == 0;
    (is_only_that && set.uid.is_none() && set.gid.is_none()).then_some(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (mode, wanted, bits that are dropped)
    #[test]
    fn what_drops_privileges_does_nothing_else() {
        for (mode, wanted, bits) in [
            (0o6755, 0o755, Some(0o6000)),
            (0o6755, 0o2755, Some(0o4000)),
            (0o2755, 0o755, Some(0o2000)),
            (0o755, 0o755, Some(0)),
            (0o6755, 0o754, None),
            (0o4755, 0o2755, None),
            (0o1755, 0o755, None),
            (0o755, 0o4755, None),
        ] {
            let set = SetAttr { mode: Some(wanted), ..SetAttr::default() };
            assert_eq!(dropped(mode, &set), bits, "{mode:o} {wanted:o}");
            assert_eq!(dropped(mode, &SetAttr { uid: Some(1), ..set }), None);
        }
        assert_eq!(dropped(0o6755, &SetAttr::default()), None);
    }
}
