//! Moves names, within and between directories, and replaces existing ones.

use larder_wire::meta::Status;
use larder_wire::meta::calls::Renamed;
use larder_wire::meta::words::{Dentry, FileId};

use super::entries::{changed, enter, find, take};
use super::removing::unlink;
use crate::inode;
use crate::request::Request;
use crate::rights::WRITE;
use crate::store::Txn;
use crate::store::records::{Entry, Inode};

/// Renames as rename(2) does; with `keep`, as renameat2(2) with RENAME_NOREPLACE.
pub(crate) fn rename(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    from: &Dentry,
    to: &Dentry,
    keep: bool,
    is_open: &dyn Fn(FileId) -> bool,
) -> Result<Renamed, Status> {
    let from_dir = changed(txn, request.caller, from)?;
    let to_dir = changed(txn, request.caller, to)?;
    let entry = find(txn, &from_dir, &from.name)?.ok_or(Status::NotFound)?;
    let target = find(txn, &to_dir, &to.name)?;
    if target.is_some() && keep {
        return Err(Status::Exists);
    }
    let moved = inode::get(txn, entry.file)?;
    let target_file = target.as_ref().map(|target| inode::get(txn, target.file)).transpose()?;
    let is_same = target.as_ref().is_some_and(|target| target.file == entry.file);
    if is_same {
        let same = |inode: &Inode| inode.changed(inode.attributes.version());
        let (from_dir, to_dir) = (same(&from_dir), same(&to_dir));
        return Ok(Renamed { from_dir, to_dir, moved: same(&moved), replaced: None });
    }
    judge(txn, request, &from_dir, &moved, &to_dir, target_file.as_ref())?;
    let replaced = target.zip(target_file);
    let way = Move { from_dir, from, entry, to_dir, to, moved };
    way.carry_out(txn, request, replaced, is_open)
}

fn judge(
    txn: &Txn<'_>,
    request: &Request<'_>,
    from_dir: &Inode,
    moved: &Inode,
    to_dir: &Inode,
    target: Option<&Inode>,
) -> Result<(), Status> {
    let caller = request.caller;
    caller.need_unstuck(&from_dir.attributes, &moved.attributes)?;
    let is_directory = moved.is_directory();
    if is_directory && is_within(txn, to_dir, moved.file())? {
        return Err(Status::Invalid);
    }
    if is_directory && from_dir.file() != to_dir.file() {
        // Its `..` changes.
        caller.need(&moved.attributes, WRITE)?;
    }
    let Some(target) = target else { return Ok(()) };
    caller.need_unstuck(&to_dir.attributes, &target.attributes)?;
    match (target.is_directory(), is_directory) {
        (true, false) => Err(Status::IsDirectory),
        (false, true) => Err(Status::NotDirectory),
        (true, true) if target.entries > 0 => Err(Status::NotEmpty),
        _ => Ok(()),
    }
}

/// Whether `dir` is `ancestor` or is below it.
fn is_within(txn: &Txn<'_>, dir: &Inode, ancestor: FileId) -> Result<bool, Status> {
    let (mut file, mut parent) = (dir.file(), dir.parent);
    while file != ancestor && file != FileId::ROOT {
        file = parent;
        parent = inode::directory(txn, file)?.parent;
    }
    Ok(file == ancestor)
}

/// A rename that was checked.
struct Move<'a> {
    from_dir: Inode,
    from: &'a Dentry,
    entry: Entry,
    to_dir: Inode,
    to: &'a Dentry,
    moved: Inode,
}

impl Move<'_> {
    fn carry_out(
        self,
        txn: &mut Txn<'_>,
        request: &Request<'_>,
        replaced: Option<(Entry, Inode)>,
        is_open: &dyn Fn(FileId) -> bool,
    ) -> Result<Renamed, Status> {
        let Move { mut from_dir, from, entry, to_dir, to, mut moved } = self;
        let now = request.now;
        let is_directory = moved.is_directory();
        let (from_before, to_before) = (from_dir.attributes.version(), to_dir.attributes.version());
        // If both are one directory, there is one inode: each step sees the changes of the one
        // before.
        let mut other = (from_dir.file() != to_dir.file()).then_some(to_dir);

        take(txn, &mut from_dir, &from.name, entry.cookie, now);
        from_dir.attributes.links -= u32::from(is_directory);
        let to_dir = other.as_mut().unwrap_or(&mut from_dir);
        let mut gone = None;
        if let Some((entry, target)) = replaced {
            take(txn, to_dir, &to.name, entry.cookie, now);
            to_dir.attributes.links -= u32::from(target.is_directory());
            gone = Some(unlink(txn, request, target, is_open)?);
        }
        enter(txn, to_dir, &to.name, moved.file(), now);
        to_dir.attributes.links += u32::from(is_directory);
        let moved_before = moved.attributes.version();
        moved.parent = to_dir.file();
        moved.touch(now, false);

        let to_after = to_dir.changed(to_before);
        inode::put(txn, &from_dir);
        if let Some(to_dir) = &other {
            inode::put(txn, to_dir);
        }
        inode::put(txn, &moved);
        Ok(Renamed {
            from_dir: from_dir.changed(from_before),
            to_dir: to_after,
            moved: moved.changed(moved_before),
            replaced: gone,
        })
    }
}
