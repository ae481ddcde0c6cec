//! Bytes of a file that only the client has which wrote them, in the memory of its machine.
//!
//! The client has told that they are there (RETAIN) before it acknowledged them, and has a write
//! lease on the file for as long as it retains them: who asks for the file has that recalled, and
//! waits until the client has written the bytes to disks and has told that ([`Event::Released`]).
//! If the client's session ends before, nobody can have the bytes any more, and the file is lost as
//! a whole until it is emptied.
//!
//! Who has a file's bytes is a pure state machine ([`crate::whereabouts`]); [`note`] carries an
//! event out in a transaction. Only a file without bytes at the disks can be retained, so a file
//! that is not lost shows what the disks have.
//!
//! A client is named, not its session: its next process ([`crate::live`]) goes on with what is in
//! the machine's memory.

use std::collections::BTreeMap;

use larder_wire::meta::Status;
use larder_wire::meta::words::{DiskId, FileId, Time};

use crate::inode;
use crate::store::records::{Inode, Retaining};
use crate::store::{Txn, key};
use crate::whereabouts::{Client, Event, NOBODY, Whereabouts};

/// In the place of the disk that has lost something, in the record of a loss.
pub(crate) const NO_DISK: DiskId = DiskId(0);

/// Carries an event out, in the inode, which the caller writes, and in the record by which the file
/// is found. A file that is lost with it gets the size that it had for its client, and another
/// version.
pub(crate) fn note(txn: &mut Txn<'_>, inode: &mut Inode, event: Event) -> Result<(), Status> {
    let (before, file) = (inode.whereabouts, inode.file());
    let after = before.apply(event)?;
    if before.found_under() != after.found_under() {
        if let Some(under) = before.found_under() {
            txn.delete(key::retaining(under, file));
        }
        if let Some(under) = after.found_under() {
            txn.put(key::retaining(under, file), &Retaining {});
        }
    }
    inode.whereabouts = after;
    if let (Whereabouts::Lost { bytes }, false) = (after, before.is_lost()) {
        inode.attributes.size = inode.attributes.size.max(bytes);
        inode.touch(Time::default(), true);
    }
    Ok(())
}

/// A file is no more.
pub(crate) fn forget(txn: &mut Txn<'_>, inode: &Inode) {
    if let Some(under) = inode.whereabouts.found_under() {
        txn.delete(key::retaining(under, inode.file()));
    }
}

/// The session of a client is over, and no other one follows: what it retains is lost. Returns how
/// many files that are, and how many bytes; those without a name count for nothing.
pub(crate) fn end(txn: &mut Txn<'_>, client: Client) -> Result<(u64, u64), Status> {
    let (mut files, mut lost) = (0, 0);
    for file in of_client(txn, client)? {
        let mut inode = inode::get(txn, file)?;
        note(txn, &mut inode, Event::Ended { client })?;
        if let (Whereabouts::Lost { bytes }, true) = (inode.whereabouts, inode.attributes.links > 0)
        {
            (files, lost) = (files + 1, lost + bytes);
        }
        inode::put(txn, &inode);
    }
    Ok((files, lost))
}

/// The files that a client retains.
pub(crate) fn of_client(txn: &Txn<'_>, client: Client) -> Result<Vec<FileId>, Status> {
    let prefix = key::retaining(client, FileId(0));
    let records = txn.scan_all::<Retaining>(&prefix[..prefix.len() - 8])?;
    let file = |(key, _): (Vec<u8>, _)| key::last_number(&key).map(FileId).ok_or(Status::Io);
    records.into_iter().map(file).collect()
}

/// All files that clients retain.
pub(crate) fn all(txn: &Txn<'_>) -> Result<Vec<(Client, FileId)>, Status> {
    let records = txn.scan_all::<Retaining>(&key::retaining(NOBODY, FileId(0))[..1])?;
    let mut found = Vec::new();
    for (key, _) in records {
        let client = *key[1..].first_chunk().ok_or(Status::Io)?;
        let file = FileId(key::last_number(&key).ok_or(Status::Io)?);
        found.extend((client != NOBODY).then_some((client, file)));
    }
    Ok(found)
}

/// Adds the files that were lost with their clients, and how many bytes.
pub(crate) fn add_lost(txn: &Txn<'_>, to: &mut BTreeMap<FileId, u64>) -> Result<(), Status> {
    for file in of_client(txn, NOBODY)? {
        if let Whereabouts::Lost { bytes } = inode::get(txn, file)?.whereabouts {
            // What memory disks had of it is among these.
            to.insert(file, bytes);
        }
    }
    Ok(())
}
