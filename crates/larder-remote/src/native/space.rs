//! Room for ranges of files.
//!
//! To punch a range, the metadata server removes its whole blocks, as a truncation does; the client
//! writes zeros over the rest of the first and the last block, unless it is a hole. (If another
//! client truncates the file at the same time, this may extend it to its earlier length again, as
//! any write may.) An allocated range gets blocks that were never written, which read as zeros.

use std::ops::Range;

use bytes::Bytes;
use larder_vfs::{Change, Cred, Error, Result, SetAttr, SpaceChange, SpaceKind, Stability};
use larder_wire::meta::calls::{self, GetCaps};
use larder_wire::meta::words::{FileId, Layout, Mode, OpenId};
use larder_wire::meta::{ALLOCATE_BYTES_MAX, FILE_BYTES_MAX, Status};

use super::commit::Chain;
use super::opens::Open;
use super::plan::{parts, spans};
use super::session::Failed;
use super::write::ROOM_TRIES_MAX;
use super::{Native, convert};
impl Native {
    /// See [`larder_vfs::Remote::change_space`].
    pub(super) async fn change_space_of(
        &self,
        cred: &Cred,
        of: (FileId, Option<&Open>),
        change: &SpaceChange,
    ) -> Result<Change> {
        change.check(FILE_BYTES_MAX)?;
        self.commit_pending(of.0).await?;
        // A caller that may not write the file gets that error.
        let (size, _) = self.to_write(cred, of.0, &change.range).await?;
        if change.kind != SpaceKind::Punch && change.range.end > change.size_after(size) {
            // Extents end where the file does.
            return Err(Error::NotSupported);
        }
        let mut chain = Chain::default();
        if change.kind != SpaceKind::Allocate && change.range.start < size {
            self.punch(cred, of, &change.range, size, &mut chain).await?;
        }
        if change.kind != SpaceKind::Punch {
            self.allocate(cred, of.0, &change.range, size, &mut chain).await?;
        }
        Ok(chain.whole().unwrap_or_default())
    }

    /// The size of a file that the caller may write, and the extents of a range that are not holes,
    /// from its start on.
    pub(super) async fn to_write(
        &self,
        cred: &Cred,
        file: FileId,
        range: &Range<u64>,
    ) -> Result<(u64, Layout)> {
        let (open, mode, range) = (OpenId::NONE, Mode::Write, range.clone().into());
        let given =
            self.session.ask(cred, |session| GetCaps { session, file, open, mode, range }).await?;
        Ok((given.attributes.size, given.layout))
    }

    /// Has a range of a file of `size` bytes read as zeros.
    async fn punch(
        &self,
        cred: &Cred,
        of: (FileId, Option<&Open>),
        range: &Range<u64>,
        size: u64,
        chain: &mut Chain,
    ) -> Result<()> {
        let (blocks, edges) = parts(range, size);
        if !blocks.is_empty() {
            let punched = self.session.change(cred, |sequence| calls::Punch {
                sequence,
                file: of.0,
                open: OpenId::NONE,
                range: blocks.clone().into(),
            });
            let punched = self.note_changes(punched.await, |punched| vec![punched.file])?;
            chain.add(self.changed(&punched.file));
        }
        for edge in edges.into_iter().filter(|edge| !edge.is_empty()) {
            let (_, layout) = self.to_write(cred, of.0, &edge).await?;
            let is_data = |span: Range<u64>| span.start < edge.end && edge.start < span.end;
            if spans(&layout).any(is_data) {
                let length = usize::try_from(edge.end - edge.start).expect("less than two blocks");
                let (zeros, stable) = (Bytes::from(vec![0; length]), Stability::FileSync);
                chain.add(self.write_all(cred, of, edge.start, zeros, stable).await?.change);
            }
        }
        Ok(())
    }

    /// Gives blocks to the holes of a range in a file of `size` bytes. If there are not enough, the
    /// file keeps its size.
    async fn allocate(
        &self,
        cred: &Cred,
        file: FileId,
        range: &Range<u64>,
        size: u64,
        chain: &mut Chain,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(ALLOCATE_BYTES_MAX));
            match self.preallocate(cred, file, at..end).await {
                Ok(change) => chain.add(change),
                Err(error) => {
                    self.take_growth_back(cred, file, size, chain).await;
                    return Err(error);
                }
            }
            at = end;
        }
        Ok(())
    }

    async fn preallocate(&self, cred: &Cred, file: FileId, range: Range<u64>) -> Result<Change> {
        let mut tried = 0;
        loop {
            self.before_try(tried).await;
            let done = self.session.change(cred, |sequence| calls::Preallocate {
                sequence,
                file,
                open: OpenId::NONE,
                range: range.clone().into(),
            });
            match self.note_changes(done.await, |done| vec![done.file]) {
                // Now that space is short, the server takes back what closed files do not use.
                Err(Failed::Status(Status::NoSpace)) if tried < ROOM_TRIES_MAX => tried += 1,
                done => return Ok(self.changed(&done?.file)),
            }
        }
    }

    /// A part of a range has got blocks, and the rest has not: the file gets its earlier length
    /// back, if no other client has changed it.
    async fn take_growth_back(&self, cred: &Cred, file: FileId, size: u64, chain: &Chain) {
        let grown = chain.whole().and_then(|whole| whole.after);
        let Some(grown) = grown.filter(|grown| grown.size > size) else { return };
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let cut = self.session.change(cred, |sequence| calls::SetAttr {
            sequence,
            file,
            open: OpenId::NONE,
            set: convert::set(&set),
            guard: Some(convert::sent_time(grown.ctime)),
        });
        if let Err(failed) = self.note_changes(cut.await, |cut| vec![cut.file]) {
            let error = Error::from(failed);
            tracing::warn!(file = file.0, %error, "a file that was to get room is longer now");
        }
    }
}
