//! The open files of one node, counted by their mode, and the mode that a new one takes.
//!
//! Which mode suits is [`crate::open::mode`]'s to say; here is whether the cache has the local file that it needs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_cache::{BackingFile, CachedFile};
use larder_vfs::{Cred, DataPath, Kind, OpenFlags, Opened};

use super::file::OpenFile;
use super::mode::{BYPASSED_BYTES_MAX, Case, Mode, mode};
use crate::core::Core;
use crate::journal::{OpenRecord, Version};
use crate::node::{Node, State};
use crate::write::{Event, LocalEnd};

/// A file that is synced more often than this while the kernel writes it is one of those that are always synced: a log.
/// A file that is only to outlive a crash is synced once, at its end.
const SYNCS_MAX: u32 = 3;

/// So often a local file is asked for that is given up before it can be used. Then the open file does without.
const OFFERS_MAX: u32 = 3;

/// What the cache offers for a new open file.
enum Offer {
    /// It has no local file that is whole, or the kernel writes to it already.
    Nothing,
    /// A local file to be read.
    Read(Arc<BackingFile>),
    /// A local file whose bypass has begun, and how it looked then.
    Written(Arc<BackingFile>, LocalEnd),
}

impl Offer {
    fn local_file(&self) -> Option<&Arc<BackingFile>> {
        match self {
            Offer::Nothing => None,
            Offer::Read(file) | Offer::Written(file, _) => Some(file),
        }
    }

    /// Gives back what was not taken.
    fn withdraw(self, file: &CachedFile) {
        if matches!(self, Offer::Written(..)) && file.end_bypass().is_err() {
            tracing::warn!("cannot read back a cached file; its local copy is given up");
        }
    }
}

/// What became of an offer.
enum Accepted {
    /// It was taken.
    Offered((Mode, DataPath)),
    /// The open file takes another way.
    Other((Mode, DataPath)),
    /// What was offered was given up meanwhile, with its bypass.
    Stale,
}

/// The open files of one node.
#[derive(Default)]
pub(crate) struct Opens {
    passthrough: u32,
    bypass: u32,
    cached: u32,
    direct: u32,
    /// The local file that the kernel has been given for passthrough opens. It holds the inode to this one until nobody
    /// has the file open any more in any mode, and shows it to whoever maps the file meanwhile.
    backing: Option<Arc<BackingFile>>,
    /// The version that it shows, as far as that is known.
    backing_shows: Option<Version>,
    /// The kernel has a local file of an earlier process that is not known here.
    stray: bool,
    /// Releases of its last writer by way of the kernel that still look for what he wrote.
    ending_bypass: u32,
    /// Size and modification time of the local file when it was last collected.
    collected: Option<LocalEnd>,
    /// Size of the local file that the kernel writes, when it was last looked at.
    written_size: Option<u64>,
    /// How often it was synced while the kernel wrote it, and was not short.
    syncs: u32,
}

impl Opens {
    pub(crate) fn is_empty(&self) -> bool {
        self.passthrough + self.bypass + self.cached + self.direct == 0
    }

    /// Whether the kernel may be writing to the local file.
    pub(crate) fn bypassing(&self) -> bool {
        self.bypass > 0
    }

    /// Whether there may be bytes in the local file that the kernel wrote and nobody has looked for.
    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypass + self.ending_bypass > 0
    }

    /// Whether the kernel reads or writes a local file itself, or is held to one.
    pub(crate) fn binds_kernel(&self) -> bool {
        self.passthrough + self.bypass > 0 || self.backing.is_some()
    }

    /// Whether somebody reads a local file by way of the kernel.
    pub(crate) fn is_read_by_kernel(&self) -> bool {
        self.passthrough > 0
    }

    /// The local file to which the kernel is held, unless it may be writing to it.
    pub(crate) fn backing_unwritten(&self) -> Option<&Arc<BackingFile>> {
        self.backing.as_ref().filter(|_| !self.bypassing())
    }

    /// The version that the local file shows to which the kernel is held.
    pub(crate) fn backing_shows(&self) -> Option<Version> {
        self.backing_shows
    }

    /// It shows that version by now.
    pub(crate) fn set_backing_shows(&mut self, version: Version) {
        self.backing_shows = Some(version);
    }

    /// Remembers how the local file looked when it was last compared with the server's version.
    pub(crate) fn set_collected(&mut self, end: Option<LocalEnd>) {
        self.collected = end;
        if self.bypassing() {
            self.written_size = end.map(|end| end.size);
        }
    }

    /// Counts an open file of an earlier process, and takes its local file up if it is the `same` that
    /// the kernel has. Answers `false` if the kernel writes to one that is not known.
    pub(crate) fn restore(&mut self, mode: Mode, file: &CachedFile, same: bool) -> bool {
        let is_first = self.backing.is_none();
        *self.count(mode) += 1;
        if !mode.passes_through() || (same && !is_first) {
            return true;
        }
        if same && is_first {
            self.backing = if mode == Mode::Bypass { file.go_on_bypassing() } else { file.whole() };
        }
        let known = same && self.backing.is_some();
        self.stray |= !known;
        known || mode == Mode::Passthrough
    }

    /// An open file is gone. Answers whether it was the last one by way of which the kernel wrote; then
    /// [`Opens::end_of_bypass`] must follow.
    pub(crate) fn uncount(&mut self, mode: Mode) -> bool {
        *self.count(mode) -= 1;
        if self.passthrough + self.bypass == 0 {
            self.collected = None;
            self.syncs = 0;
        }
        if !self.bypassing() {
            self.written_size = None;
        }
        if self.is_empty() {
            self.backing = None;
            self.backing_shows = None;
            self.stray = false;
        }
        let is_last_writer = mode == Mode::Bypass && !self.bypassing();
        self.ending_bypass += u32::from(is_last_writer);
        is_last_writer
    }

    /// What the last writer by way of the kernel wrote has been looked for.
    pub(crate) fn end_of_bypass(&mut self) {
        self.ending_bypass -= 1;
    }

    fn count(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Passthrough => &mut self.passthrough,
            Mode::Bypass => &mut self.bypass,
            Mode::Cached => &mut self.cached,
            Mode::Direct => &mut self.direct,
        }
    }

    /// How long the file is to all who have it open while the kernel writes it, whatever others make of it.
    pub(crate) fn written_size(&self) -> Option<u64> {
        self.written_size
    }

    /// Size and modification time of the local file now.
    pub(crate) fn local_end(&self) -> Option<LocalEnd> {
        Some(LocalEnd::of(&self.backing.as_ref()?.stamp().ok()?))
    }
}

impl State {
    /// What the kernel shows of the version `from` is of the present one too.
    pub(crate) fn carry_shown(&mut self, from: Version) {
        let version = self.version();
        if self.pages == Some(from) {
            self.pages = Some(version);
        }
        if self.opens.backing_shows() == Some(from) {
            self.opens.set_backing_shows(version);
        }
    }

    /// Counts an open file that the kernel reads or writes by way of a local file.
    fn count_passing(&mut self, mode: Mode, backing: Arc<BackingFile>) -> (Mode, DataPath) {
        *self.opens.count(mode) += 1;
        if mode == Mode::Bypass {
            self.pages = None;
        }
        (mode, DataPath::Passthrough(backing))
    }
}

impl Core {
    /// The open file that an earlier try of this request made, which nobody answered.
    fn opened_before(&self, node: &Node, cred: &Cred) -> Option<Opened> {
        let is_it = |open: &OpenFile| {
            open.node.ino == node.ino && open.cred.request == cred.request && cred.request != 0
        };
        let (id, mode) = {
            let table = self.open_table();
            let mut found = table.iter().filter(|(_, open)| cred.retried && is_it(open));
            found.next().map(|(id, open)| (*id, open.mode))?
        };
        let backing = node.state().opens.backing.clone();
        let path = match (mode, backing) {
            (Mode::Passthrough | Mode::Bypass, Some(backing)) => DataPath::Passthrough(backing),
            (Mode::Cached, _) => DataPath::Cached { keep: false },
            (Mode::Passthrough | Mode::Bypass | Mode::Direct, _) => DataPath::Direct,
        };
        Some(Opened { id, path })
    }

    /// Whether [`Core::choose`] will not wait for the local disk.
    pub(crate) fn chooses_quickly(
        &self,
        node: &Node,
        file: &CachedFile,
        flags: &OpenFlags,
    ) -> bool {
        let synced_here = self.synced_here(node);
        let (version, wanted) = {
            let state = node.state();
            (state.version().bytes(), mode(&self.case(&state, flags, synced_here)))
        };
        file.is_ready(&version, wanted == Mode::Bypass)
    }

    /// Chooses the mode of a new open file and counts it. May wait for the local disk.
    pub(crate) fn choose(&self, node: &Arc<Node>, cred: Cred, flags: OpenFlags) -> Opened {
        if let Some(opened) = self.opened_before(node, &cred) {
            return opened;
        }
        let file = self.file(node);
        self.prepare(node, &file);
        let (mode, path) = self.take_mode(node, &file, &flags);
        self.count_open(node, &file, &flags, mode);
        file.touch();
        let id = self.next_open_id();
        let (cred, ino) = (cred.first_time(), node.ino);
        let local = if mode.passes_through() { file.local_number() } else { 0 };
        let (noted_cred, shown) = (cred.clone(), node.state().shown());
        let version = shown.version;
        self.note_open(id, &OpenRecord { ino, cred: noted_cred, flags, mode, local, version });
        let open = OpenFile::new(node.clone(), file, cred, flags, mode);
        open.stream().shown = Some(shown);
        self.open_table().insert(id, Arc::new(open));
        Opened { id, path }
    }

    /// Counts a new open file. The kernel tells nobody how much it reads of a local file, so the hit
    /// rate is one of opens.
    fn count_open(&self, node: &Node, file: &CachedFile, flags: &OpenFlags, mode: Mode) {
        let by_kernel = mode.passes_through();
        let counters = &self.counters;
        let counter = if by_kernel { &counters.opens_passthrough } else { &counters.opens_other };
        counter.fetch_add(1, Ordering::Relaxed);
        let size = node.state().attr().size;
        if !flags.read || size == 0 {
            return;
        }
        counters.opens_for_reading.fetch_add(1, Ordering::Relaxed);
        let is_whole = by_kernel || file.held(0..size).first() == Some(&(0..size));
        counters.opens_of_whole_files.fetch_add(is_whole.into(), Ordering::Relaxed);
    }

    /// Makes what the cache holds be of the present version, unless local changes are in it.
    pub(crate) fn prepare(&self, node: &Node, file: &CachedFile) {
        let state = node.state();
        let attr = &state.known.attr;
        let version = state.version().bytes();
        let changed_here = state.has_unsent() || !file.dirty().is_empty();
        if attr.kind == Kind::File && !changed_here && file.version().as_ref() != Some(&version) {
            file.reset(&version, attr.size);
        }
    }

    /// What decides the mode of a new open file.
    fn case(&self, state: &State, flags: &OpenFlags, synced_here: bool) -> Case {
        let kernel_takes = self.kernel.get().is_some_and(|kernel| kernel.passthrough());
        let (opens, version) = (&state.opens, state.version());
        Case {
            flags: *flags,
            synchronous: flags.sync || self.options.sync,
            local_file: kernel_takes && self.options.cache_data && !opens.stray,
            size: state.attr().size,
            synced_here,
            passthrough: opens.binds_kernel(),
            bypass: opens.bypassing(),
            cached: opens.cached > 0,
            other_pages: state.pages != Some(version),
        }
    }

    /// Gives a new open file its mode, and counts it. The local disk is waited for without the node's lock, for which
    /// threads wait that serve the whole mount; then it is seen whether what the disk gave still serves.
    fn take_mode(&self, node: &Node, file: &CachedFile, flags: &OpenFlags) -> (Mode, DataPath) {
        let synced_here = self.synced_here(node);
        for _ in 0..OFFERS_MAX {
            let offer = self.offer(node, file, flags, synced_here);
            let accepted = {
                let mut state = node.state();
                let accepted = self.accept(&mut state, &offer, file, flags, synced_here);
                // The kernel may write the file from now on.
                self.unsent_event(node.ino, &mut state, Event::OpensChanged);
                accepted
            };
            match accepted {
                Accepted::Offered(taken) => return taken,
                Accepted::Other(taken) => {
                    offer.withdraw(file);
                    return taken;
                }
                Accepted::Stale => {}
            }
        }
        self.take_mode_without(&mut node.state(), flags, synced_here)
    }

    /// A local file for a new open file, as far as it can be had. May wait for the local disk.
    fn offer(&self, node: &Node, file: &CachedFile, flags: &OpenFlags, synced_here: bool) -> Offer {
        {
            let state = node.state();
            let wanted = mode(&self.case(&state, flags, synced_here));
            if !wanted.passes_through() || state.opens.bypassing() {
                return Offer::Nothing;
            }
        }
        file.verify_ahead();
        let offered = if flags.write {
            file.begin_bypass().map(|(whole, begun)| Offer::Written(whole, LocalEnd::of(&begun)))
        } else {
            file.whole().map(Offer::Read)
        };
        offered.unwrap_or(Offer::Nothing)
    }

    /// Decides the mode and counts the open file, with the local file that was offered, or that the kernel
    /// writes already, or without one.
    fn accept(
        &self,
        state: &mut State,
        offer: &Offer,
        file: &CachedFile,
        flags: &OpenFlags,
        synced_here: bool,
    ) -> Accepted {
        let wanted = mode(&self.case(state, flags, synced_here));
        if !wanted.passes_through() {
            return Accepted::Other(self.take_mode_without(state, flags, synced_here));
        }
        if state.opens.bypassing()
            && let Some(backing) = state.opens.backing.clone()
        {
            return Accepted::Other(state.count_passing(wanted, backing));
        }
        let Some(whole) = offer.local_file() else {
            return Accepted::Other(self.take_mode_without(state, flags, synced_here));
        };
        if !file.is_backed_by(whole) {
            return Accepted::Stale;
        }
        if state.opens.backing.as_ref().is_some_and(|held| !Arc::ptr_eq(held, whole)) {
            // Open files still show an older version.
            return Accepted::Other(self.take_mode_without(state, flags, synced_here));
        }
        state.opens.backing = Some(whole.clone());
        state.opens.backing_shows = Some(state.version());
        if let Offer::Written(_, begun) = offer {
            state.opens.collected = Some(*begun);
        }
        Accepted::Offered(state.count_passing(wanted, whole.clone()))
    }

    /// The mode of an open file that gets no local file, counted.
    fn take_mode_without(
        &self,
        state: &mut State,
        flags: &OpenFlags,
        synced_here: bool,
    ) -> (Mode, DataPath) {
        let case = Case { local_file: false, ..self.case(state, flags, synced_here) };
        let mode = mode(&case);
        *state.opens.count(mode) += 1;
        if mode == Mode::Direct {
            return (mode, DataPath::Direct);
        }
        // Pages belong to the inode: those of two versions would mix under open files.
        let version = state.version();
        let keep = state.pages.replace(version) == Some(version);
        (mode, DataPath::Cached { keep })
    }

    /// Whether programs sync files of its directory again and again while they write them.
    fn synced_here(&self, node: &Node) -> bool {
        let dir = node.state().known.hint.as_ref().map(|(dir, _)| *dir);
        dir.and_then(|dir| self.node(dir).ok()).is_some_and(|dir| dir.state().synced_here)
    }

    /// Counts an fsync of a file that the kernel writes itself. It compared the whole file, and so will those
    /// that follow through this open; new files beside it are not given to the kernel to write any more.
    pub(crate) fn count_sync(&self, node: &Node) {
        let dir = {
            let mut state = node.state();
            let is_short = state.attr().size <= BYPASSED_BYTES_MAX;
            if is_short || !state.opens.bypassing() {
                return;
            }
            state.opens.syncs += 1;
            let dir = state.known.hint.as_ref().map(|(dir, _)| *dir);
            dir.filter(|_| state.opens.syncs > SYNCS_MAX)
        };
        if let Some(dir) = dir.and_then(|dir| self.node(dir).ok()) {
            dir.state().synced_here = true;
        }
    }

    /// Brings size and time of a file that the kernel writes itself up to date.
    pub(crate) fn refresh_local_end(&self, node: &Node) {
        let mut state = node.state();
        if !state.opens.bypassing() {
            return;
        }
        let end = state.opens.local_end();
        state.opens.written_size = end.map(|end| end.size);
        if let Some(end) = end.filter(|end| state.opens.collected != Some(*end)) {
            self.unsent_event(node.ino, &mut state, Event::KernelWrote(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_io::Monotonic;
    use larder_vfs::{Handle, Time};

    use super::*;
    use crate::fixtures::file_of;
    use crate::journal::Known;
    use crate::options::TtlRange;

    /// Until a release has looked for what the kernel wrote, the cache does not give the old version up by itself.
    #[test]
    fn a_change_of_somebody_else_makes_a_mixture_until_a_bypass_has_ended() {
        let ttl = TtlRange { min: Duration::ZERO, max: Duration::ZERO };
        let at = Monotonic::from_nanos;
        for (steps, is_mixed) in [(0, true), (1, true), (2, false)] {
            let known = Known::described(file_of(Time::default()), 1, at(0), ttl.min);
            let mut state = State::new(Handle::new(b"h"), known);
            *state.opens.count(Mode::Bypass) += 1;
            if steps >= 1 {
                assert!(state.opens.uncount(Mode::Bypass), "the last writer");
            }
            if steps >= 2 {
                state.opens.end_of_bypass();
            }
            state.observe(file_of(Time { sec: 5, nsec: 5 }), 1, at(1), ttl, false);
            assert_eq!(state.unsent.is_mixed(), is_mixed, "{steps}");
        }
    }
}
