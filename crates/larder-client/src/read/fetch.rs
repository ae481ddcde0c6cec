//! Reads: carries the plan out, one flight per range, with readahead.
//!
//! - Two readers of one range share one request (single flight).
//! - Readahead for a sequential reader uses a window that doubles, so that enough requests are in
//!   flight to fill bandwidth times delay. Readahead stays within half of the buffer budget and is
//!   dropped rather than waited for.
//! - Readers get a reply at once; the cache gets the bytes afterwards, from the flight
//!   ([`crate::read::storing`]). A cache that declines costs nothing but the next read.
//! - Bytes of another version than the flight began with are thrown away and the read starts over,
//!   so no read mixes versions; nor does a sequential read of one open file (see
//!   [`crate::read::stream`]). A file that others change faster than that is read past the cache
//!   ([`Core::read_as_it_is`]).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use larder_cache::{CHUNK_BYTES, CachedFile, Filled};
use larder_io::resident_bytes;
use larder_vfs::{Answer, Attr, Cred, Ino, OpenId, RemoteRead, Result};
use tokio::sync::OwnedSemaphorePermit;

use super::flights::{Flight, Flights, Lost};
use super::plan::{FileEnd, Slice, Source, plan};
use super::storing::StoringRoom;
use super::stream::{self, Shown, Stream};
use crate::core::Core;
use crate::journal::Version;
use crate::names::on_handle;
use crate::node::Node;
use crate::open::OpenFile;

/// How often a read is begun, if the file changes each time before it ends.
const TRIES_MAX: u32 = 4;
/// The unit in which the kernel caches and requests a file's bytes (fuse(4)), in bytes.
const PAGE_BYTES: u64 = 4096;

/// Why bytes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launch {
    /// One read waits for them, and no other read is expected to want the rest of the request.
    Once,
    /// A read waits for them, and the reads that follow will want the rest.
    Sequence,
    /// No read waits yet. Launched while the readahead budget lasts.
    Ahead,
}

impl Core {
    /// Reads, from the local disk if all of the range is cached.
    pub(crate) fn read(
        self: &Arc<Self>,
        cred: &Cred,
        ino: Ino,
        open: Option<OpenId>,
        offset: u64,
        len: u32,
    ) -> Answer<Bytes> {
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(error) => return Answer::fail(error),
        };
        if let Err(lost) = self.refuse_lost(ino, open) {
            return Answer::fail(lost);
        }
        let open = open.and_then(|id| self.open_file(id).ok());
        let wanted = offset..offset.saturating_add(u64::from(len));
        let hearing = self.hearing(&node, open.as_deref());
        let heard = move |core: &Core, node: &Node, bytes: Bytes| {
            // A short answer ends where the file does.
            let end = offset + bytes.len() as u64;
            match bytes.len() < len as usize {
                true => core.heard(node, hearing, bytes, end),
                false => Some(bytes),
            }
        };
        if open.is_some()
            && let Some(answer) = self.read_held(&node, open.as_deref(), wanted.clone())
        {
            let Some(answer) = answer.map(|bytes| heard(self, &node, bytes)).transpose() else {
                let core = self.clone();
                return Answer::later(async move { core.have_asked_again(&node).await });
            };
            return Answer::Now(answer);
        }
        self.fill.link_used(self.now());
        let (core, cred) = (self.clone(), self.caller(cred));
        Answer::later(async move {
            if open.is_none() {
                core.check_read_without_open(&node, &cred).await?;
            }
            let bytes = core.read_remote(&node, &cred, open.as_deref(), wanted).await?;
            match heard(&core, &node, bytes) {
                Some(bytes) => Ok(bytes),
                None => core.have_asked_again(&node).await,
            }
        })
    }

    /// For a front door that opens nothing: every read is an open, a read and a close.
    async fn check_read_without_open(&self, node: &Node, cred: &Cred) -> Result<()> {
        let asks = !self.is_fresh(node);
        self.demand_bytes(node, cred, larder_vfs::Access::READ, asks).await?;
        if asks {
            self.give_up_doubtful(node).await;
        }
        Ok(())
    }

    /// The answer, if every byte is cached for the present version.
    fn read_held(
        self: &Arc<Self>,
        node: &Arc<Node>,
        open: Option<&OpenFile>,
        wanted: Range<u64>,
    ) -> Option<Result<Bytes>> {
        let file = self.file(node);
        self.prepare(node, &file);
        let slices = self.slices(node, &file, wanted.clone());
        if slices.iter().any(|slice| slice.source == Source::Remote) {
            return None;
        }
        if let Some(open) = open {
            let mut stream = open.stream();
            match Core::check(&stream, node, open.flags.write, &wanted) {
                Ok(shown) => stream.shown = Some(shown),
                Err(error) => return Some(Err(error)),
            }
            let readahead = self.advance(node, &mut stream, &wanted);
            self.read_ahead(node, open, readahead);
        }
        let bytes = read_slices(&file, &slices)?;
        self.counters.read_bytes_cached.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Some(Ok(bytes))
    }

    fn advance(&self, node: &Node, stream: &mut Stream, wanted: &Range<u64>) -> Option<Range<u64>> {
        let size = node.state().attr().size;
        stream::advance(stream, wanted, size, self.options.readahead_bytes_max)
    }

    /// Checks what a reader of this range in a stream is shown; `written` says whether the same
    /// open file wrote.
    fn check(stream: &Stream, node: &Node, written: bool, wanted: &Range<u64>) -> Result<Shown> {
        let (now, ours) = {
            let state = node.state();
            let ours = state.unsent().end().is_some() || state.changing() || written;
            (state.shown(), ours)
        };
        stream.check(now, ours, wanted).inspect_err(|_| {
            tracing::warn!(ino = node.ino.0, "file changed on the server while it was read");
        })
    }

    fn slices(&self, node: &Node, file: &CachedFile, wanted: Range<u64>) -> Vec<Slice> {
        loop {
            let end = Core::file_end(node);
            let held = file.held(wanted.start..wanted.end.min(end.size).max(wanted.start));
            // What was just sent may not be cached any more, and comes before another end of the
            // server's data.
            if Core::file_end(node) == end {
                return plan(wanted, end, &held);
            }
        }
    }

    pub(super) fn file_end(node: &Node) -> FileEnd {
        let state = node.state();
        FileEnd { size: state.attr().size, zero_point: state.server_end() }
    }

    /// Fetches a range into the cache for no open file in particular, and returns the bytes, with
    /// local changes.
    pub(crate) async fn read_range(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        offset: u64,
        len: u32,
    ) -> Result<Bytes> {
        self.read_remote(node, cred, None, offset..offset + u64::from(len)).await
    }

    async fn read_remote(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        open: Option<&OpenFile>,
        wanted: Range<u64>,
    ) -> Result<Bytes> {
        let (bytes, shown) = self.read_with_version(node, cred, open, wanted).await?;
        if let Some(open) = open {
            open.stream().shown = Some(shown);
        }
        Ok(bytes)
    }

    async fn read_with_version(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        open: Option<&OpenFile>,
        wanted: Range<u64>,
    ) -> Result<(Bytes, Shown)> {
        for _ in 0..TRIES_MAX {
            let file = self.file(node);
            self.prepare(node, &file);
            let (version, shown) = node.state().version_shown();
            let slices = self.slices(node, &file, wanted.clone());
            if let Some(open) = open {
                // Locked while requests are launched: of two reads at the same time, one finds the
                // other's requests.
                let mut stream = open.stream();
                Core::check(&stream, node, open.flags.write, &wanted)?;
                let reached = stream.reached;
                let readahead = self.advance(node, &mut stream, &wanted);
                let sequence = readahead.as_ref().map(|_| reached);
                self.launch_missing(node, cred, &version, &slices, sequence);
                self.read_ahead(node, open, readahead);
            } else {
                self.launch_missing(node, cred, &version, &slices, None);
            }
            match self.gather(node, &file, &version, &slices).await {
                Ok(Some(bytes)) => return Ok((bytes, shown)),
                Ok(None) | Err(Lost::Changed) => {}
                Err(Lost::Failed(error)) => return Err(error),
            }
        }
        // What is returned ends where this version does.
        let shown = node.state().shown();
        Ok((self.read_as_it_is(node, cred, wanted).await?, shown))
    }

    /// Launches flights for what is neither cached nor in flight. Granules are fetched whole. A
    /// sequential read, which had `reached` an offset before, fetches whole requests: the rest of a
    /// request is what the reader wants next (and the kernel may ask out of order). Requests then
    /// begin and end at the same places, no matter which read asks first, and there are as few of
    /// them as possible.
    fn launch_missing(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        version: &Version,
        slices: &[Slice],
        reached: Option<u64>,
    ) {
        let mut remote = slices.iter().filter(|slice| slice.source == Source::Remote);
        let Some(first) = remote.next() else { return };
        let (asked, asked_end) = (first.range.start, remote.next_back().unwrap_or(first).range.end);

        let granule = self.granule_bytes();
        let start = self.widened_start(node, asked / granule * granule, asked);
        let (start, granule, launch) = match reached {
            Some(reached) => {
                (start.min(reached), u64::from(self.request_bytes_max()), Launch::Sequence)
            }
            None => (start, granule, Launch::Once),
        };
        debug_assert!(start <= asked, "a request begins no later than what is wanted");
        let stop = asked_end.next_multiple_of(granule).min(node.state().server_end());
        self.launch(node, cred, version, start..stop, launch);
    }

    /// The unit that is fetched whole: that of the cache, or else that of the kernel's page cache.
    /// Anything more would be thrown away, and requested again.
    fn granule_bytes(&self) -> u64 {
        if self.options.cache_data { CHUNK_BYTES } else { PAGE_BYTES }
    }

    /// Granules are fetched whole, but not if the first part of one is cached already.
    fn widened_start(&self, node: &Node, granule_start: u64, start: u64) -> u64 {
        match self.file(node).held(granule_start..start).last() {
            Some(held) => held.end,
            None => granule_start,
        }
    }

    /// Launches flights for what is missing of `range`.
    ///
    /// The cache is queried under the lock of the flights: a flight is forgotten only after the
    /// cache has its bytes, so a range is never found neither cached nor in flight, and fetched
    /// twice.
    fn launch(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        version: &Version,
        range: Range<u64>,
        launch: Launch,
    ) {
        // Another client may have truncated the file meanwhile.
        if range.is_empty() {
            return;
        }
        let request_max = u64::from(self.request_bytes_max());
        let file = self.file(node);
        let mut flights = node.flights.lock();
        let held = file.held(range.clone());
        for part in Flights::to_request(&flights, held, range, version, request_max) {
            let permit = if launch == Launch::Ahead {
                let budget = self.readahead_budget.clone();
                let Ok(permit) = budget.try_acquire_many_owned(kib(&part)) else { return };
                Some(permit)
            } else {
                None
            };
            let once = launch == Launch::Once;
            debug_assert!(
                !flights.iter().any(|flight| flight.meets(version, &part)),
                "a byte of a version is requested once"
            );
            flights.push(self.fly(node, cred, version, part, once, permit));
        }
    }

    /// Most bytes of one read request.
    pub(crate) fn request_bytes_max(&self) -> u32 {
        let limit = self.options.read_bytes_max.min(self.remote.limits().read_max);
        let chunk = u32::try_from(CHUNK_BYTES).expect("a chunk is small");
        if limit < chunk { limit } else { limit / chunk * chunk }
    }

    fn fly(
        self: &Arc<Self>,
        node: &Arc<Node>,
        cred: &Cred,
        version: &Version,
        range: Range<u64>,
        once: bool,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Arc<Flight> {
        let (land, flight) = Flight::begin(range, *version, once, self.options.cache_data);
        let (core, node, cred) = (self.clone(), node.clone(), cred.clone());
        // The reader may close the file before the bytes arrive: then the version to which they
        // belong would be forgotten.
        let file = self.file(&node);
        let (in_air, stored) = (flight.clone(), flight.clone());
        self.in_air.send_modify(|flights| *flights += 1);
        self.runtime.spawn(async move {
            let room = core.storing_room(&file, &in_air).await;
            let result = core.fetch(&node, &cred, &in_air).await;
            let (bytes, is_stored) = (result.clone().ok(), room.is_some());
            if bytes.is_none() {
                // First: a reader that learns of that starts over, and would otherwise still find
                // this flight.
                node.flights.remove(&in_air);
            }
            land.send_replace(Some(result));
            let at = node.clone();
            let end = move |is_cached| {
                if in_air.stored(is_cached, || !at.state().opens().is_empty()) {
                    at.flights.remove(&in_air);
                }
                drop((permit, room));
                core.in_air.send_modify(|flights| *flights -= 1);
            };
            match bytes {
                Some(bytes) if is_stored => store(&node, file, &stored, bytes, end),
                Some(_) => end(false),
                None => end(true),
            }
        });
        flight
    }

    /// Room to store the bytes of a flight; `None` if they will not be cached.
    async fn storing_room(&self, file: &CachedFile, flight: &Flight) -> Option<StoringRoom> {
        if !self.options.cache_data {
            return None;
        }
        if file.fills_quickly() {
            return Some(StoringRoom::NOT_NEEDED);
        }
        self.storing_budget.take(&*self.clock, kib(flight.range()), !flight.is_once()).await
    }

    /// Asks the server for the bytes of a flight.
    async fn fetch(&self, node: &Node, cred: &Cred, flight: &Flight) -> Result<Bytes, Lost> {
        let (read, asked) =
            self.ask_bytes(node, cred, flight.range()).await.map_err(Lost::Failed)?;
        let attr = match read.attr {
            Some(attr) => attr,
            None => on_handle!(self, cred, node, handle => self.remote.getattr(cred, &handle))
                .map_err(Lost::Failed)?,
        };
        self.judge_reply(node, flight, attr, asked, &read.data)?;
        Ok(read.data)
    }

    /// One READ, within the budget for bytes in flight; and when it was sent.
    pub(super) async fn ask_bytes(
        &self,
        node: &Node,
        cred: &Cred,
        range: &Range<u64>,
    ) -> Result<(RemoteRead, larder_io::Monotonic)> {
        let len = u32::try_from(range.end - range.start).expect("requests are short");
        let (room, cred) = &self.transfer_budget.take(kib(range), cred).await?;
        let (asked, start) = (self.now(), range.start);
        let open = self.open_files.token(node.ino, false);
        let read = on_handle!(self, cred, node, to =>
            self.remote.read(cred, &to, open.as_ref(), start, len))?;
        room.progress();
        self.counters.read_bytes_remote.fetch_add(read.data.len() as u64, Ordering::Relaxed);
        Ok((read, asked))
    }

    /// Whether the bytes belong to the version that the flight set out for.
    fn judge_reply(
        &self,
        node: &Node,
        flight: &Flight,
        attr: Attr,
        asked: larder_io::Monotonic,
        data: &Bytes,
    ) -> Result<(), Lost> {
        self.observe_bytes(node, flight.version(), attr, asked);
        if !attr.validator().same_data(&flight.version().validator) {
            // A change of our own may have been in flight: then the next round sees its outcome.
            return Err(Lost::Changed);
        }
        if data.len() as u64 != flight.range().end - flight.range().start {
            // Servers describe a file and read it, one after the other, and another client has
            // truncated it in between: the next round sees its new end.
            return Err(Lost::Changed);
        }
        Ok(())
    }

    /// Waits for flights and puts the answer together; `None` if some bytes turned out to be
    /// unavailable.
    async fn gather(
        &self,
        node: &Node,
        file: &CachedFile,
        version: &Version,
        slices: &[Slice],
    ) -> Result<Option<Bytes>, Lost> {
        // One flight may serve several slices: it must not be gone for the second when the first
        // has consumed it.
        let flights = node.flights.lock().clone();
        let mut pieces: Vec<Bytes> = Vec::with_capacity(slices.len());
        for slice in slices {
            if slice.source != Source::Remote {
                let Some(bytes) = read_slices(file, std::slice::from_ref(slice)) else {
                    return Ok(None);
                };
                pieces.push(bytes);
                continue;
            }
            let mut at = slice.range.start;
            while at < slice.range.end {
                let wanted = at..slice.range.end;
                let Some(piece) = self.piece(node, file, version, &flights, wanted).await? else {
                    return Ok(None);
                };
                at += piece.len() as u64;
                debug_assert!(!piece.is_empty(), "each piece takes the read further");
                debug_assert!(at <= slice.range.end, "a piece ends within what was wanted");
                pieces.push(piece);
            }
        }
        Ok(Some(joined(pieces)))
    }

    /// Some bytes from the start of `range`: from a flight, or from the cache once that has them.
    async fn piece(
        &self,
        node: &Node,
        file: &CachedFile,
        version: &Version,
        flights: &[Arc<Flight>],
        range: Range<u64>,
    ) -> Result<Option<Bytes>, Lost> {
        let flight = flights.iter().find(|flight| flight.brings(version, range.start)).cloned();
        let Some(flight) = flight else {
            let held = file.held(range.clone());
            let Some(first) = held.first().filter(|held| held.start == range.start) else {
                return Ok(None);
            };
            let slice = Slice { range: first.clone(), source: Source::Cache };
            return Ok(read_slices(file, &[slice]));
        };
        let bytes = flight.bytes().await?;
        let begin = flight.range().start;
        debug_assert_eq!(
            bytes.len() as u64,
            flight.range().end - begin,
            "a flight that lands brings all of its range"
        );
        let from = usize::try_from(range.start - begin).expect("within the flight");
        let to =
            usize::try_from(range.end.min(flight.range().end) - begin).expect("within the flight");
        if flight.consume(range.end) {
            node.flights.remove(&flight);
        }
        Ok(Some(bytes.slice(from..to)))
    }

    /// Launches readahead for what is not cached of `range`.
    fn read_ahead(self: &Arc<Self>, node: &Arc<Node>, open: &OpenFile, range: Option<Range<u64>>) {
        let Some(range) = range else { return };
        let (version, size) = {
            let state = node.state();
            (state.version(), state.server_end())
        };
        // Up to where a request ends, or the file.
        let request_max = u64::from(self.request_bytes_max());
        let whole = range.end / request_max * request_max;
        let range = range.start..if range.end >= size { size } else { whole };
        self.launch(node, &open.cred, &version, range, Launch::Ahead);
    }
}

/// Gives the bytes of a flight to the cache, now or a little later, and reports to `end` whether it
/// has them.
fn store(
    node: &Arc<Node>,
    file: Arc<CachedFile>,
    flight: &Arc<Flight>,
    bytes: Bytes,
    end: impl FnOnce(bool) + Send + 'static,
) {
    // A file that is kept in memory until it is written takes the bytes faster than another thread
    // wakes up.
    let is_quick = file.fills_quickly();
    let flight = flight.clone();
    let store = move || {
        let (version, start) = (flight.version().bytes(), flight.range().start);
        let filled = match flight.is_ahead() {
            true => file.fill_ahead(&version, start, &bytes),
            false => file.fill(&version, start, &bytes),
        };
        end(filled == Filled::Stored);
    };
    if is_quick {
        store();
    } else if node.storing.push(Box::new(store)) {
        let node = node.clone();
        tokio::task::spawn_blocking(move || {
            while let Some(store) = node.storing.next() {
                store();
            }
        });
    }
}

/// KiB of a range, for the budgets.
fn kib(range: &Range<u64>) -> u32 {
    u32::try_from((range.end - range.start).div_ceil(1024)).unwrap_or(u32::MAX)
}

/// Bytes that are cached or zero; `None` if the cache cannot return them after all.
pub(super) fn read_slices(file: &CachedFile, slices: &[Slice]) -> Option<Bytes> {
    debug_assert!(
        slices.iter().all(|slice| slice.source != Source::Remote),
        "what the server has is not read as zeros"
    );
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else {
        return Some(Bytes::new());
    };
    if slices.len() == 1
        && first.source == Source::Cache
        && let Some(bytes) = file.read_recent(&first.range)
    {
        return Some(bytes);
    }
    debug_assert!(
        slices.windows(2).all(|two| two[0].range.end == two[1].range.start),
        "every byte comes from somewhere"
    );
    let start = first.range.start;
    let mut buffer = resident_bytes(usize::try_from(last.range.end - start).ok()?);
    for slice in slices {
        let from = usize::try_from(slice.range.start - start).ok()?;
        let to = usize::try_from(slice.range.end - start).ok()?;
        let part = &mut buffer[from..to];
        match slice.source {
            Source::Cache => file.read(slice.range.start, part).ok()?,
            Source::Zero => part.fill(0),
            Source::Remote => return None,
        }
    }
    Some(buffer.into())
}

/// One buffer of several; no copy if there is but one.
fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| all.extend_from_slice(piece));
    all.freeze()
}
