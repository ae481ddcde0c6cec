//! A small new file is committed while its bytes are in flight to the disks.
//!
//! The metadata server gave its blocks with the OPEN, and no client has written to them. So the
//! disks alone can tell it whether they were written: it waits for that before it names them in the
//! file, and the writer waits for one round trip instead of two. If the server does not learn it in
//! time, it refuses the commit, which is made again when the disks have answered.
//!
//! Each block is written by one request; otherwise the first of two would stand for the second. If
//! a disk refuses a capability, the same bytes are written again to the same blocks, while the
//! server waits for them.

use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::{Change, Cred, Error, Result};
use larder_wire::meta::Status;
use larder_wire::meta::calls::{CommitExtents, GetCaps};
use larder_wire::meta::words::{FileId, Mode, OpenId, Written};
use larder_wire::xdr::Array;

use super::Native;
use super::anew::own;
use super::disks::{Grants, NotDone};
use super::opens::Open;
use super::plan::{Location, Piece};
use super::session::Failed;
use super::uncommitted::Noted;
use super::write::How;

/// The result of committing bytes that are in flight.
pub(super) enum Beside {
    /// They are the file's, durably.
    Committed(Box<Change>),
    /// The disks have them, and they are to be committed.
    Written,
    /// They are to be written as any others.
    NotWritten,
}

impl Native {
    /// Writes the first bytes of a new file and commits them at the same time, if nothing of it was
    /// written before.
    pub(super) async fn write_beside_commit(
        &self,
        cred: &Cred,
        (file, open): (FileId, &Open),
        data: &Bytes,
        how: How,
    ) -> Result<Beside> {
        let turn = self.uncommitted.turn(file);
        let _alone = turn.write().await;
        if self.uncommitted.get(file).is_some() {
            return Ok(Beside::NotWritten);
        }
        let end = data.len() as u64;
        let ahead = open.untouched_ahead(end).filter(|ahead| self.suits(ahead, how.medium));
        let Some(layout) = ahead else { return Ok(Beside::NotWritten) };
        let (pieces, grants) = self.planned(&layout, 0..end)?;
        let (mut written, mut copies) = (Vec::with_capacity(pieces.len()), Vec::new());
        for Piece { offset, length, at } in &pieces {
            let to = at.and_then(|location| self.disks.to_be_written(&grants, location, *length));
            let (Some(Location { disk, position }), Some(to)) = (*at, to) else {
                return Ok(Beside::NotWritten);
            };
            written.push(Written { offset: *offset, length: *length, disk, position });
            copies.extend(to);
        }
        copies.sort_unstable();
        copies.dedup();
        let now = self.rpc().config().clock.instant();
        let committing = self.session.change(cred, |sequence| CommitExtents {
            sequence,
            file,
            open: OpenId::NONE,
            written: Array(written.clone()),
            copies: Array(copies.clone()),
            merged: Array::default(),
            mtime: None,
            all: true,
            on_way: true,
            due_ms: how.due.due_ms(now),
            archive_ms: how.due.archive_ms(now),
        });
        let writing = self.write_there(cred, file, (pieces, grants), data);
        let (written, committed) = tokio::join!(writing, committing);
        let committed = self.note_changes(committed, |done| vec![done.file]);
        self.session.opens().forget_ahead(file);
        match (committed, written) {
            // The disks have confirmed to the server that they have the bytes, whatever they
            // answered to us.
            (Ok(done), _) => Ok(Beside::Committed(Box::new(self.changed(&done.file)))),
            (Err(failed), Ok((written, noted))) => {
                use Status::{Changed, NotAllocated, NotWritten};
                let error = match failed {
                    // The next commit shows whether they are lost.
                    Failed::Status(NotWritten | NotAllocated | Changed) => None,
                    failed => Some(Error::from(failed)),
                };
                match error {
                    None | Some(Error::TimedOut | Error::Shutdown | Error::TryAgain) => {
                        self.uncommitted.note(cred, file, &written, noted.due(how.due));
                    }
                    // It will not be otherwise the next time.
                    Some(_) => self.note_loss(),
                }
                error.map_or(Ok(Beside::Written), Err)
            }
            (Err(_), Err(NotDone::Refused)) => Ok(Beside::NotWritten),
            (Err(_), Err(_)) if self.is_out_of_memory(how) => Ok(Beside::NotWritten),
            (Err(_), Err(NotDone::Failed(error))) => Err(error),
        }
    }

    /// Writes to these blocks; once more if a disk refuses a capability.
    ///
    /// # Errors
    /// [`NotDone`]
    async fn write_there(
        &self,
        cred: &Cred,
        file: FileId,
        (pieces, grants): (Vec<Piece>, Arc<Grants>),
        data: &Bytes,
    ) -> Result<(Vec<Written>, Noted), NotDone> {
        match self.write_pieces(pieces.clone(), grants, 0, data, false).await {
            Err(NotDone::Refused) => {
                Box::pin(self.write_there_again(cred, file, pieces, data)).await
            }
            done => done,
        }
    }

    /// Writes the same bytes again to the same blocks, under other capabilities.
    ///
    /// # Errors
    /// [`NotDone`]; [`NotDone::Refused`] also if they are to be written elsewhere.
    async fn write_there_again(
        &self,
        cred: &Cred,
        file: FileId,
        pieces: Vec<Piece>,
        data: &Bytes,
    ) -> Result<(Vec<Written>, Noted), NotDone> {
        let (open, mode, range) = (OpenId::NONE, Mode::Write, 0..data.len() as u64);
        let asked = |session| GetCaps { session, file, open, mode, range: range.clone().into() };
        // Whoever asks for other blocks after this learns what is wrong.
        let given = self.session.ask(cred, asked).await.map_err(|_| NotDone::Refused)?;
        match self.planned(&own(given.layout), range.clone())? {
            (now, grants) if now == pieces => self.write_pieces(now, grants, 0, data, false).await,
            _ => Err(NotDone::Refused),
        }
    }
}
