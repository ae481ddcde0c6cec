//! Reads: straight from the disks, after asking the metadata server where the bytes are.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use larder_vfs::{Attr, Change, Cred, Error, RemoteRead, Result, Seek};
use larder_wire::meta::calls::{GetCaps, LayoutGiven};
use larder_wire::meta::words::{
    Attributes, ByteRange, Changed, Extent, ExtentState, FileId, Layout, Mode, OpenId,
};
use larder_wire::meta::{FILE_BYTES_MAX, Status};
use tokio::task::JoinSet;

use super::disks::{Grants, NotDone};
use super::opens::Open;
use super::plan::{self, Piece, spans};
use super::session::Failed;
use super::{Native, convert};

/// How often a new capability is requested for one request: repeated refusals are not the client's
/// fault. With [`Native::before_try`] that takes half a minute: a disk that was restarted refuses
/// everything until the metadata server has noticed, which takes 9 s.
pub(super) const GRANTS_MAX: u32 = 20;
/// Longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How far layouts are asked for.
const LAYOUT_BYTES: u64 = 64 << 20;

impl Native {
    /// Reads `len` bytes, or up to the end of the file.
    pub(super) async fn read_all(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead> {
        self.commit_pending(file).await?;
        let range = offset..offset.saturating_add(len.into()).min(FILE_BYTES_MAX);
        let mut read: Vec<Bytes> = Vec::new();
        let mut at = range.start;
        loop {
            let (attr, parts) = self.read_part(cred, (file, open), at..range.end).await?;
            at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
            let is_over = parts.is_empty() || at >= range.end || at >= attr.size;
            read.extend(parts);
            if is_over {
                return Ok(RemoteRead {
                    data: joined(read),
                    eof: at >= attr.size,
                    attr: Some(attr),
                });
            }
        }
    }

    /// Reads as much from the start of a range as one layout covers.
    async fn read_part(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        range: Range<u64>,
    ) -> Result<(Attr, Vec<Bytes>)> {
        for tried in 0..GRANTS_MAX {
            self.before_try(tried).await;
            let (attributes, layout) = self.layout(cred, (file, open), &range).await?;
            let attr = self.attr(&attributes);
            let end = range.end.min(attr.size);
            if range.start >= end {
                return Ok((attr, Vec::new()));
            }
            refuse_lost(&layout, &(range.start..end))?;
            let (pieces, grants) = self.planned(&layout, range.start..end)?;
            match self.read_pieces(pieces, grants).await {
                Ok(parts) => return Ok((attr, parts)),
                Err(NotDone::Refused) => self.session.leases().forget_layout(file),
                Err(NotDone::Failed(error)) => return Err(error),
            }
        }
        Err(self.refused_again_and_again(file))
    }

    /// See [`larder_vfs::Remote::seek`]. Under a lease, the layout that was used for reading is
    /// known.
    pub(super) async fn seek_in(
        &self,
        cred: &Cred,
        of: (FileId, Option<&Open>),
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        self.commit_pending(of.0).await?;
        let size = self.look_at(cred, of.0).await?.0.size;
        let mut at = offset;
        while at < size {
            let (attributes, layout) = self.layout(cred, of, &(at..size)).await?;
            let covered = layout.covered;
            let told = covered.offset.saturating_add(covered.length).min(attributes.size);
            match what.among(at, told, spans(&layout)) {
                Ok(found) if found < told => return Ok(found),
                // It was cut meanwhile, or the server talks nonsense.
                _ if told <= at => return Err(Error::NoData),
                _ => at = told,
            }
        }
        // The range searched so far has nothing of the kind, and ends in a hole.
        if what == Seek::Hole && offset < size { Ok(size) } else { Err(Error::NoData) }
    }

    /// See [`larder_vfs::Remote::is_lost`]. Under a lease the layout is kept for readers.
    pub(super) async fn has_lost(&self, cred: &Cred, of: (FileId, Option<&Open>)) -> Result<bool> {
        self.commit_pending(of.0).await?;
        let mut at = 0;
        loop {
            let (attributes, layout) = self.layout(cred, of, &(at..at + 1)).await?;
            let covered = layout.covered;
            let told = covered.offset.saturating_add(covered.length).min(attributes.size);
            if refuse_lost(&layout, &(at..told)).is_err() {
                return Ok(true);
            }
            // It ends there, or the server talks nonsense.
            if told >= attributes.size || told <= at {
                return Ok(false);
            }
            at = told;
        }
    }

    /// The location of a range, from its start on, and the file's attributes: under a lease without
    /// a request, which otherwise brings one.
    pub(super) async fn layout(
        &self,
        cred: &Cred,
        (file, open): (FileId, Option<&Open>),
        range: &Range<u64>,
    ) -> Result<(Attributes, Layout)> {
        let leases = self.session.leases();
        // An open file can be read whatever mode it is given later.
        let open = open.filter(|open| open.reads());
        if (open.is_some() || !leases.refuses(cred, file))
            && let Some(known) = leases.layout(file, range.start, range.end)
        {
            return Ok(known);
        }
        // Covers more, so that a sequential reader does not have to ask again.
        let length = (range.end - range.start).max(LAYOUT_BYTES);
        let length = length.min(FILE_BYTES_MAX.saturating_sub(range.start).max(1));
        let range = ByteRange { offset: range.start, length };
        // What GETCAPS tells is true for one read only, unless there is a lease.
        if !leases.holds(file)
            && let Some(told) = self.layout_with_lease(cred, file, range).await?
        {
            return Ok(told);
        }
        let asking = leases.begin();
        let get = async |open| {
            let mode = Mode::Read;
            self.session.ask(cred, |session| GetCaps { session, file, open, mode, range }).await
        };
        let open = open.map_or(OpenId::NONE, Open::id);
        let given = match get(open).await {
            Err(Failed::Status(Status::BadOpen)) => get(OpenId::NONE).await,
            given => given,
        };
        let LayoutGiven { attributes, layout } = given?;
        asking.take_layout(&attributes, &layout);
        Ok((attributes, layout))
    }

    /// All pieces at once. One alone, as of a short file, is read by this task.
    pub(super) async fn read_pieces(
        &self,
        pieces: Vec<Piece>,
        grants: Arc<Grants>,
    ) -> Result<Vec<Bytes>, NotDone> {
        if let [Piece { at: Some(location), length, .. }] = pieces[..] {
            let data = self.disks.read(&grants, location, length).await?;
            return Ok(vec![whole(data, length)?]);
        }
        let mut reading = JoinSet::new();
        let mut parts = vec![Bytes::new(); pieces.len()];
        for (number, piece) in pieces.into_iter().enumerate() {
            match piece.at {
                None => {
                    let length = usize::try_from(piece.length);
                    let length = length.map_err(|_| Error::InvalidArgument)?;
                    parts[number] = Bytes::from(vec![0; length]);
                }
                Some(location) => {
                    let (disks, grants) = (Arc::clone(&self.disks), Arc::clone(&grants));
                    reading.spawn(async move {
                        let data = disks.read(&grants, location, piece.length).await?;
                        Ok::<_, NotDone>((number, whole(data, piece.length)?))
                    });
                }
            }
        }
        while let Some(done) = reading.join_next().await {
            let (number, data) = done.map_err(|_| Error::Shutdown)??;
            parts[number] = data;
        }
        Ok(parts)
    }

    /// A layout, cut into pieces, with the grants that open the disks.
    pub(super) fn planned(
        &self,
        layout: &Layout,
        range: Range<u64>,
    ) -> Result<(Vec<Piece>, Arc<Grants>)> {
        let length_max = larder_wire::disk::DATA_BYTES_MAX as u64;
        let pieces = plan::pieces(layout, range, length_max).map_err(|plan::Senseless| {
            tracing::warn!(?layout, "senseless layout");
            Error::Io
        })?;
        Ok((pieces, Arc::new(Grants::new(&layout.grants.0)?)))
    }

    /// Waits before a request is tried for the third time, and longer before each further attempt.
    pub(super) async fn before_try(&self, tried: u32) {
        if tried >= 2 {
            let pause = PAUSE_MAX.min(Duration::from_millis(50) * (1 << (tried - 1).min(16)));
            let clock = &self.session.rpc().config().clock;
            clock.sleep_until(clock.instant() + pause).await;
        }
    }

    /// A disk accepts no capability until the metadata server has reached it: as with a disk that
    /// is away, a later attempt may succeed, and what is to be written is kept until then.
    pub(super) fn refused_again_and_again(&self, file: FileId) -> Error {
        tracing::warn!(file = file.0, "disks refuse what the metadata server grants");
        Error::TimedOut
    }

    pub(super) fn changed(&self, changed: &Changed) -> Change {
        convert::change(self.volume, changed)
    }
}

/// Fails if some of a range was in memory alone, and is lost.
pub(super) fn refuse_lost(layout: &Layout, range: &Range<u64>) -> Result<()> {
    let is_lost = |extent: &Extent| {
        let end = extent.offset.saturating_add(extent.length);
        extent.state == ExtentState::Lost && extent.offset < range.end && range.start < end
    };
    if layout.extents.0.iter().any(is_lost) { Err(Error::Lost) } else { Ok(()) }
}

/// What a disk has read, which is to have this length.
fn whole(data: Bytes, wanted: u64) -> Result<Bytes> {
    if data.len() as u64 == wanted {
        return Ok(data);
    }
    tracing::warn!(wanted, got = data.len(), "senseless READ of a disk");
    Err(Error::Io)
}

/// One buffer of several. One alone is not copied.
fn joined(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut whole = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| whole.extend_from_slice(part));
    whole.freeze()
}
