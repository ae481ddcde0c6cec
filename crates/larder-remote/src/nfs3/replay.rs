//! Whether an error is the effect of our own first attempt.
//!
//! A call whose reply was lost is sent again. A server that remembers replies answers as before;
//! one that does not, or was rebooted in between, carries it out again and finds that the name to
//! be made exists, or that the name to be removed is gone. Only evidence can show whether we did
//! that or another client, and the errors differ in the cost of a wrong guess:
//! - REMOVE, RMDIR "not found": the name is gone, which is what was asked for: done.
//! - LINK "exists": done if the name leads to the file.
//! - SYMLINK "exists": done if it has the same target.
//! - RENAME "not found": done if the target is there and the source is not.
//! - MKDIR, MKNOD, guarded CREATE "exists": these are used as locks, so done only if the object
//!   belongs to the caller, was never touched since it was made, and its making was the last change
//!   of the directory. A caller that can tell its file itself is told that there was no answer if
//!   this is an empty file of the caller's.
//!
//! Exclusive CREATE needs none of this: its verifier is the evidence (RFC 1813, 3.3.8).

use super::Nfs3;
use super::convert;
use larder_vfs::{Attr, Change, Cred, Error, Kind, LookedUp, Made, Remote, Result, Time};
use larder_wire::nfs3::{diropargs3, nfs_fh3, nfsstat3};
use std::ffi::OsString;

/// The most by which the times of an object and of its directory differ if both come from its
/// making, in nanoseconds: two ticks of a clock of 100 Hz.
const SAME_MOMENT_NS: i128 = 20_000_000;

/// How to recognise an object as made by us.
#[derive(Clone, Debug)]
pub(super) enum Mine {
    /// A new object of this kind.
    Fresh(Kind),
    /// A new file, for a caller that asks again if it is not known whether this is the one.
    AskedAgain,
    /// A symbolic link with this target.
    Symlink(OsString),
}

/// Whether "not found" may mean that the first try took the name away.
pub(super) fn may_be_done(status: nfsstat3, transmissions: u32) -> bool {
    status == nfsstat3::NFS3ERR_NOENT && transmissions > 1
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

/// Whether the making of `attr` by `cred` was the last change of its directory.
fn is_fresh(attr: &Attr, kind: Kind, cred: &Cred, dir: Option<Attr>) -> bool {
    let Some(dir) = dir else { return false };
    let made = nanoseconds(attr.ctime);
    let untouched = (made - nanoseconds(attr.mtime)).abs() <= SAME_MOMENT_NS;
    let last = (made - nanoseconds(dir.mtime)).abs() <= SAME_MOMENT_NS;
    attr.kind == kind && attr.uid == cred.uid && untouched && last
}

impl Nfs3 {
    /// Returns the object at `place` if it is the one that we made.
    pub(super) async fn made_before(
        &self,
        cred: &Cred,
        place: diropargs3,
        mine: Mine,
        dir: Change,
    ) -> Result<Made> {
        let LookedUp { found, dir: after } = self.look_up(cred, place).await?;
        let found = found.ok_or(Error::Exists)?;
        let attr = &found.attr;
        let may_be = matches!(mine, Mine::AskedAgain)
            && (attr.kind, attr.size, attr.uid) == (Kind::File, 0, cred.uid);
        let ours = match mine {
            Mine::Fresh(kind) => is_fresh(attr, kind, cred, after.or(dir.after)),
            Mine::AskedAgain => is_fresh(attr, Kind::File, cred, after.or(dir.after)),
            Mine::Symlink(target) => {
                found.attr.kind == Kind::Symlink
                    && self.readlink(cred, &found.handle).await?.0 == target
            }
        };
        match (ours, may_be) {
            (true, _) => Ok(Made { found, dir, created: false, token: None }),
            (false, true) => Err(Error::TimedOut),
            (false, false) => Err(Error::Exists),
        }
    }

    /// Whether `link` leads to `file` already.
    pub(super) async fn linked_before(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        link: diropargs3,
    ) -> Result<bool> {
        let Some(there) = self.look_up(cred, link).await?.found else { return Ok(false) };
        let wanted = self.attributes(cred, file).await?;
        Ok(there.handle == convert::handle(&file)
            || (there.attr.fsid, there.attr.fileid) == (wanted.fsid, wanted.fileid))
    }

    /// Whether `to` is there and `from` is not.
    pub(super) async fn renamed_before(
        &self,
        cred: &Cred,
        from: diropargs3,
        to: diropargs3,
    ) -> Result<bool> {
        let gone = self.look_up(cred, from).await?.found.is_none();
        Ok(gone && self.look_up(cred, to).await?.found.is_some())
    }
}

#[cfg(test)]
mod tests;
