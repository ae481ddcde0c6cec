//! Chooses the I/O mode of a new open file.
//!
//! [`crate::open::mode`] says which mode suits; this module finds out whether the cache has the
//! local file that the mode needs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_cache::{BackingFile, CachedFile};
use larder_class::Class;
use larder_vfs::{Cred, DataPath, OpenFlags, Opened};

use super::mode::{BYPASSED_BYTES_MAX, Case, Mode, mode};
use super::open_file::OpenFile;
use crate::core::Core;
use crate::journal::OpenRecord;
use crate::node::{Node, State};
use crate::write::{Event, LocalEnd};

/// How often a local file is requested that is given up before it can be used. After that the open
/// file goes without one.
const OFFERS_MAX: u32 = 3;

/// What the cache offers for a new open file.
enum Offer {
    /// There is no local file that is whole, or the kernel writes to it already.
    Nothing,
    /// A local file to be read.
    Read(Arc<BackingFile>),
    /// A local file whose bypass has begun, and its state at that moment.
    Written(Arc<BackingFile>, LocalEnd),
}

impl Offer {
    fn local_file(&self) -> Option<&Arc<BackingFile>> {
        match self {
            Offer::Nothing => None,
            Offer::Read(file) | Offer::Written(file, _) => Some(file),
        }
    }

    /// Gives back what was not used.
    fn withdraw(self, file: &CachedFile) {
        if matches!(self, Offer::Written(..)) && file.end_bypass().is_err() {
            tracing::warn!("cannot read back a cached file; its local copy is given up");
        }
    }
}

/// The flags by which the mode of an open file of this class is chosen: its class may change while
/// it is open, its mode does not.
pub(super) fn as_of_class(flags: OpenFlags, class: &Class) -> OpenFlags {
    OpenFlags { sync: flags.sync || class.is_synchronous(), ..flags }
}

/// The result of an offer.
enum Accepted {
    /// It was taken.
    Offered((Mode, DataPath)),
    /// The open file uses another I/O mode.
    Other((Mode, DataPath)),
    /// The offered file was given up in the meantime, with its bypass.
    Stale,
}

impl Core {
    /// The open file that an earlier attempt of this request made, and that was not answered, and
    /// its node. All that the request asks for was done then: done once more, it would empty a file
    /// that others may have written since.
    pub(super) fn opened_before(&self, cred: &Cred) -> Option<(Arc<Node>, Opened)> {
        if !cred.retried || cred.request == 0 {
            return None;
        }
        let (id, open) = self.open_files.by_request(cred.request)?;
        let node = open.node.clone();
        let backing = node.state().opens().backing().cloned();
        let path = match (open.mode, backing) {
            (Mode::Passthrough | Mode::Bypass, Some(backing)) => DataPath::Passthrough(backing),
            (Mode::Cached, _) => DataPath::Cached { keep: false },
            (Mode::Passthrough | Mode::Bypass | Mode::Direct, _) => DataPath::Direct,
        };
        Some((node, Opened { id, path }))
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

    /// Chooses the mode of a new open file of this class and counts it. May wait for the local
    /// disk.
    pub(crate) fn choose(
        &self,
        node: &Arc<Node>,
        cred: Cred,
        flags: OpenFlags,
        class: Arc<Class>,
    ) -> Opened {
        let file = self.file(node);
        self.prepare(node, &file);
        if flags.write {
            // What the kernel may write from now on is sent within the time of the class.
            self.promise(node, &class);
            file.prefer_memory(class.is_in_memory());
        }
        let (mode, path) = self.take_mode(node, &file, &as_of_class(flags, &class));
        debug_assert_eq!(
            mode.passes_through(),
            matches!(path, DataPath::Passthrough(_)),
            "the kernel gets a local file exactly for the modes in which it uses one"
        );
        if mode == Mode::Bypass {
            node.state().unsent_mut().may_be_of(&cred);
        }
        self.count_open(node, &file, &flags, mode);
        file.touch();
        let id = self.next_open_id();
        let (cred, ino) = (cred.first_time(), node.ino);
        let local = if mode.passes_through() { file.local_number() } else { 0 };
        let (noted_cred, shown) = (cred.clone(), node.state().shown());
        let (version, epoch) = (shown.version, shown.epoch);
        let is_usual = class.name == self.options.classes.mount().name;
        let noted_class = (!is_usual).then(|| class.name.clone());
        self.note_open(
            id,
            &OpenRecord {
                ino,
                cred: noted_cred,
                flags,
                mode,
                local,
                version,
                epoch,
                class: noted_class,
            },
        );
        let open = OpenFile::new(node.clone(), file, cred, flags, mode, class);
        open.stream().shown = Some(shown);
        self.open_files.insert(id, Arc::new(open));
        Opened { id, path }
    }

    /// Counts a new open file. The kernel does not report how much it reads of a local file, so the
    /// hit rate is one of opens.
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
        let is_whole = by_kernel || file.holds(0..size);
        counters.opens_of_whole_files.fetch_add(is_whole.into(), Ordering::Relaxed);
    }

    /// What decides the mode of a new open file.
    fn case(&self, state: &State, flags: &OpenFlags, synced_here: bool) -> Case {
        let kernel_takes = self.kernel.get().is_some_and(|kernel| kernel.passthrough());
        let (opens, version) = (state.opens(), state.version());
        let case = Case {
            flags: *flags,
            synchronous: flags.sync || self.options.sync,
            local_file: kernel_takes && self.options.cache_data && opens.takes_local_file(),
            size: state.attr().size,
            synced_here,
            locks_passed: self.options.pass_locks,
            ..Case::default()
        };
        opens.described_in(case, version)
    }

    /// Gives a new open file its mode, and counts it. The local disk is waited for without the
    /// node's lock, for which threads wait that serve the whole mount; afterwards it is checked
    /// whether the local file still suits.
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

    /// A local file for a new open file, if one is available. May wait for the local disk.
    fn offer(&self, node: &Node, file: &CachedFile, flags: &OpenFlags, synced_here: bool) -> Offer {
        {
            let state = node.state();
            let wanted = mode(&self.case(&state, flags, synced_here));
            if !wanted.passes_through() || state.opens().bypassing() {
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

    /// Decides the mode and counts the open file, with the local file that was offered, or that the
    /// kernel writes already, or without one.
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
        if state.opens().bypassing()
            && let Some(backing) = state.opens().backing().cloned()
        {
            state.opens_mut().count_passing(wanted);
            return Accepted::Other((wanted, DataPath::Passthrough(backing)));
        }
        let Some(whole) = offer.local_file() else {
            return Accepted::Other(self.take_mode_without(state, flags, synced_here));
        };
        if !file.is_backed_by(whole) {
            return Accepted::Stale;
        }
        if state.opens().backing().is_some_and(|held| !Arc::ptr_eq(held, whole)) {
            // Open files still show an older version.
            return Accepted::Other(self.take_mode_without(state, flags, synced_here));
        }
        let begun = match offer {
            Offer::Written(_, begun) => Some(*begun),
            Offer::Nothing | Offer::Read(_) => None,
        };
        let version = state.version();
        state.opens_mut().give(wanted, whole.clone(), version, begun);
        Accepted::Offered((wanted, DataPath::Passthrough(whole.clone())))
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
        state.opens_mut().count_other(mode);
        if mode == Mode::Direct {
            return (mode, DataPath::Direct);
        }
        let version = state.version();
        let keep = state.opens_mut().keep_pages(version);
        (mode, DataPath::Cached { keep })
    }

    /// Whether programs sync files of its directory again and again while they write them.
    fn synced_here(&self, node: &Node) -> bool {
        let dir = node.state().known().hint.as_ref().map(|(dir, _)| *dir);
        dir.and_then(|dir| self.node(dir).ok())
            .is_some_and(|dir| dir.state().opens().is_synced_inside())
    }

    /// Counts an fsync of a file that the kernel writes itself. It compared the whole file, and so
    /// will later ones through this open; new files in its directory no longer get the bypass mode.
    pub(crate) fn count_sync(&self, node: &Node) {
        let dir = {
            let mut state = node.state();
            let is_short = state.attr().size <= BYPASSED_BYTES_MAX;
            if is_short || !state.opens().bypassing() {
                return;
            }
            let dir = state.known().hint.as_ref().map(|(dir, _)| *dir);
            let is_log = state.opens_mut().count_sync();
            dir.filter(|_| is_log)
        };
        if let Some(dir) = dir.and_then(|dir| self.node(dir).ok()) {
            dir.state().opens_mut().synced_inside();
        }
    }
}
