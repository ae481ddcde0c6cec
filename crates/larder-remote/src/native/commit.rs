//! Commits: what was written becomes part of the file.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_vfs::{Change, Committed, Error, Result, Verifier};
use larder_wire::meta::calls::{CommitExtents, GetCaps};
use larder_wire::meta::words::{ByteRange, DiskId, FileId, Mode, OpenId};
use larder_wire::meta::{BLOCK_BYTES, RANGES_MAX, Status};
use larder_wire::xdr::Array;

use super::Native;
use super::disks::{self, Grants, NotDone};
use super::plan::block_of;
use super::read::GRANTS_MAX;
use super::session::Failed;
use super::uncommitted::Uncommitted;

/// Changes of a file that follow each other, as one.
#[derive(Default)]
pub(super) struct Chain(Option<Change>);

impl Chain {
    /// Adds the next one. If another client has changed the file in between, the state before the
    /// first is not known.
    pub(super) fn add(&mut self, next: Change) {
        let is_next =
            |before: &Change| before.after.is_some_and(|attr| next.follows(&attr.validator()));
        self.0 = Some(match self.0 {
            None => next,
            Some(first) if is_next(&first) => Change { before: first.before, ..next },
            Some(_) => Change { before: None, ..next },
        });
    }

    /// All of them; `None` if there were none.
    pub(super) fn whole(&self) -> Option<Change> {
        self.0
    }
}

impl Native {
    /// Makes what was written of a file durable, and part of it.
    pub(super) async fn commit_written(&self, file: FileId) -> Result<Committed> {
        let change = self.commit_file(file).await?.unwrap_or_default();
        Ok(Committed { verifier: self.verifier(), change })
    }

    /// Commits what was written of a file, so that what the server reports includes it.
    pub(super) async fn commit_pending(&self, file: FileId) -> Result<()> {
        if self.uncommitted.get(file).is_none() {
            return Ok(());
        }
        // Boxed: most calls have nothing to commit.
        Box::pin(self.commit_file(file)).await.map(drop)
    }

    /// Commits what was written of a file; returns how it changed, if there was anything. If it was
    /// lost in the meantime the verifier changes, and nothing is committed.
    pub(super) async fn commit_file(&self, file: FileId) -> Result<Option<Change>> {
        let Some(entry) = self.uncommitted.get(file) else { return Ok(None) };
        let turn = self.uncommitted.turn(file);
        let _alone = turn.write().await;
        let Some(written) = entry.take() else { return Ok(None) };
        let done = self.commit(file, &written).await;
        // They are the file's, or lost.
        self.session.opens().forget_ahead(file);
        match done {
            Ok(_) => {}
            Err(Error::TimedOut | Error::Shutdown | Error::TryAgain) => {
                self.uncommitted.put_back(file, written);
            }
            // Trying again would not help. The writer learns of it by the verifier.
            Err(_) => self.note_loss(),
        }
        self.uncommitted.forget_if_done(file);
        done
    }

    async fn commit(&self, file: FileId, written: &Uncommitted) -> Result<Option<Change>> {
        let mut copies = written.copies.clone();
        let wanted = copies.all();
        let mut granted = None;
        for (disk, unflushed) in &written.unflushed {
            if !wanted.contains(disk) {
                continue;
            }
            let flushed = self.is_lost(file, written, (*disk, unflushed), &mut granted);
            let has_others = copies.has_others(*disk);
            let is_lost = if has_others {
                // Another disk has it: this one has missed it.
                let flushed = Box::pin(self.disks.patiently(flushed));
                flushed.await.and_then(|is_lost| is_lost).unwrap_or(true)
            } else {
                flushed.await?
            };
            if is_lost {
                copies.remove(*disk);
            }
        }
        let mut is_lost = copies.is_lost();
        let mut chain = Chain::default();
        let mut chunks = written.pieces.chunks(RANGES_MAX).peekable();
        while let Some(pieces) = chunks.next() {
            if is_lost {
                break;
            }
            let merged = written.merged_in(pieces);
            let now = self.rpc().config().clock.instant();
            let (due_ms, archive_ms) = (written.due.due_ms(now), written.due.archive_ms(now));
            // No one else writes it at the same time.
            let all = chunks.peek().is_none();
            let done = self.session.change(&written.cred, |sequence| CommitExtents {
                sequence,
                file,
                open: OpenId::NONE,
                written: Array(pieces.to_vec()),
                copies: Array(copies.all()),
                merged: Array(merged.clone()),
                mtime: None,
                all,
                on_way: false,
                due_ms,
                archive_ms,
            });
            match self.note_changes(done.await, |done| vec![done.file]) {
                Ok(done) => chain.add(self.changed(&done.file)),
                // The blocks were freed with the session that had them, or belong to another client
                // now.
                Err(Failed::Status(Status::NotAllocated | Status::Changed)) => {
                    is_lost = true;
                    // Since it has a memory disk, or one leaves, the volume accepts no writes in
                    // place.
                    if !self.disks.writes_anew() {
                        self.session.learn_disks().await?;
                    }
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        if is_lost {
            tracing::warn!(file = file.0, "written bytes were lost before they were committed");
            self.session.opens().forget_ahead(file);
            self.note_loss();
            return Ok(None);
        }
        Ok(chain.whole())
    }

    /// Flushes a disk, under another capability if the one used for writing has expired; returns
    /// whether the disk has lost what was written.
    async fn is_lost(
        &self,
        file: FileId,
        written: &Uncommitted,
        (disk, unflushed): (DiskId, &disks::Unflushed),
        newer: &mut Option<Grants>,
    ) -> Result<bool> {
        let on_disk = newer.as_ref().and_then(|grants| grants.on(disk).next());
        let mut granted = Arc::clone(on_disk.unwrap_or(&unflushed.granted));
        for tried in 0..GRANTS_MAX {
            self.before_try(tried).await;
            match self.disks.flush(&granted).await {
                Ok(boot) => return Ok(boot != unflushed.boot),
                Err(NotDone::Refused) => {}
                Err(NotDone::Failed(error)) => return Err(error),
            }
            let on_it = written.pieces.iter().find(|piece| written.copies.has(piece.disk, disk));
            let first = on_it.map_or(0, |piece| piece.offset);
            let given = self.session.ask(&written.cred, |session| GetCaps {
                session,
                file,
                open: OpenId::NONE,
                mode: Mode::Write,
                range: ByteRange { offset: block_of(first), length: BLOCK_BYTES },
            });
            let grants = newer.insert(Grants::new(&given.await?.layout.grants.0)?);
            // The blocks went with the session that had them.
            let Some(other) = grants.on(disk).next() else { return Ok(true) };
            granted = Arc::clone(other);
        }
        Err(self.refused_again_and_again(file))
    }

    pub(super) fn note_loss(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes when what was written and not committed may be lost.
    pub(super) fn verifier(&self) -> Verifier {
        Verifier(self.losses.load(Ordering::Acquire))
    }
}
