//! Files whose bytes only the client has that wrote them ([`crate::retained`]): what clients tell
//! of them, and what becomes of them and of their leases with a session.

use larder_wire::meta::calls::{Retain, Retention, ReturnLease};
use larder_wire::meta::words::{FileId, LeaseKind, SessionId, Time};
use larder_wire::meta::{FILE_BYTES_MAX, Status};

use super::memory::Noticed;
use crate::alone::Alone;
use crate::data;
use crate::inode;
use crate::leases::{Event as LeaseEvent, Leases};
use crate::request::Request;
use crate::retained::{self, NO_DISK};
use crate::sessions::{Session, Standing};
use crate::store::records::{Inode, Loss};
use crate::store::{Txn, key};
use crate::whereabouts::{Event, NOBODY};

/// What a client tells of bytes that it retains. `may_write`: the file, if the caller may write it.
pub(super) fn told(
    txn: &mut Txn<'_>,
    request: &Request<'_>,
    (call, may_write): (Retain, Result<Inode, Status>),
    (leases, noticed): (&Leases, &mut Noticed),
) -> Result<(), Status> {
    let client = request.client;
    let (mut inode, event) = match call.what {
        Retention::Retained(bytes) => {
            if bytes > FILE_BYTES_MAX || client == NOBODY {
                return Err(Status::Invalid);
            }
            let inode = may_write?;
            let is_alone = leases.alone(call.file) == Some(request.session);
            // A file of which the disks have something is not lost as a whole.
            if !is_alone || inode.attributes.used > 0 {
                return Err(Status::Changed);
            }
            (inode, Event::Retained { client, bytes })
        }
        Retention::Released => (inode::regular(txn, call.file)?, Event::Released { client }),
        Retention::GivenUp => (inode::regular(txn, call.file)?, Event::Ended { client }),
    };
    let (before, was_lost) = (inode.whereabouts, inode.whereabouts.is_lost());
    retained::note(txn, &mut inode, event)?;
    if inode.whereabouts == before {
        return Ok(());
    }
    inode::put(txn, &inode);
    if inode.whereabouts.is_lost() && !was_lost && inode.attributes.links > 0 {
        note_loss(txn, noticed, (1, inode.attributes.size), request.now)?;
    }
    Ok(())
}

/// Whether leases may be returned. That of a client on a file that it retains is not taken back
/// before the bytes are at the disks: who waits for it would find none.
///
/// # Errors
/// [`Status::Later`]
pub(super) fn may_return(
    txn: &Txn<'_>,
    request: &Request<'_>,
    call: &ReturnLease,
    leases: &Leases,
) -> Result<(), Status> {
    for returned in call.returned.0.iter().filter(|one| one.keep < LeaseKind::Write) {
        if !leases.is_alone_by(request.session, returned) {
            continue;
        }
        let inode = txn.get::<Inode>(&key::inode(returned.file))?;
        let client = inode.and_then(|inode| inode.whereabouts.client());
        if client == Some(request.client) {
            return Err(Status::Later);
        }
    }
    Ok(())
}

/// The server begins: clients have their leases on what they retain again.
pub(super) fn restore(leases: &mut Leases, alone: &Alone, retained: Vec<(SessionId, FileId)>) {
    for (session, file) in retained {
        leases.apply(LeaseEvent::Asked { session, file, kind: LeaseKind::Write });
        alone.set(file, leases.alone(file));
    }
}

/// A session ends. If its client has another one in its place, the next process goes on with what
/// is in the machine's memory, unless the one before did not return a lease: returns these files.
/// Otherwise what the client retains is lost.
pub(super) fn left(
    txn: &mut Txn<'_>,
    session: &Session,
    has_heir: bool,
    noticed: &mut Noticed,
    now: Time,
) -> Result<Vec<FileId>, Status> {
    if has_heir && session.standing != Standing::Condemned {
        return retained::of_client(txn, session.client);
    }
    let lost = retained::end(txn, session.client)?;
    if lost.0 > 0 {
        note_loss(txn, noticed, lost, now)?;
    }
    Ok(Vec::new())
}

fn note_loss(
    txn: &mut Txn<'_>,
    noticed: &mut Noticed,
    (files, bytes): (u64, u64),
    now: Time,
) -> Result<(), Status> {
    let loss = Loss { at_s: now.seconds, disk: NO_DISK, files, bytes };
    let number = data::memory::note_loss(txn, &loss)?;
    noticed.is_lost(number, loss);
    Ok(())
}
