//! The open files of one node, counted by their mode, and what the kernel shows of the node. Pure.

use std::sync::Arc;

use larder_cache::{BackingFile, CachedFile};

use super::believed_end::{BelievedEnd, Event};
use super::mode::{Case, Mode};
use crate::journal::Version;
use crate::write::LocalEnd;

/// A file that is synced more often than this while the kernel writes it is considered a log, which
/// is always synced. A file that only has to survive a crash is synced once, at its end.
const SYNCS_MAX: u32 = 3;
/// So often a file is sent because a process asks for its time, until nobody has it open. A process
/// that asks again and again follows how the file grows.
const STATS_MAX: u32 = 2;
/// So many requests in a row that are from behind the file's end are interrupted.
const BEHIND_MAX: u32 = 3;

/// The open files of one node.
#[derive(Default)]
pub(crate) struct Opens {
    passthrough: u32,
    bypass: u32,
    cached: u32,
    direct: u32,
    /// The local file that the kernel was given for passthrough opens. The kernel uses this one
    /// for the inode until the file is not open in any mode any more, and shows it to
    /// processes that map the file during that time.
    backing: Option<Arc<BackingFile>>,
    /// The version that it shows, as far as that is known.
    backing_shows: Option<Version>,
    /// The kernel has a local file from an earlier process that is not known here.
    stray: bool,
    /// The version that the kernel's page cache holds pages of.
    pages: Option<Version>,
    /// How often the kernel was to drop something of the node.
    tellings: u64,
    /// Where the kernel believes the file to end, unless it writes the file by itself.
    believed_end: BelievedEnd,
    /// What an earlier process may have left in the kernel was dealt with.
    taken_over: bool,
    /// Directories: programs repeatedly sync files of it while they write them.
    is_synced_inside: bool,
    /// How many requests in a row were interrupted because they were from behind the file's end.
    behind: u32,
    /// Opens that are on their way ([`super::arriving`]).
    arriving: u32,
    /// Calls that are taking a name from the file.
    leaving: u32,
    /// Releases of its last bypass open that are still looking for what the kernel wrote.
    ending_bypass: u32,
    /// Size and modification time of the local file when it was last compared.
    collected: Option<LocalEnd>,
    /// Size of the local file that the kernel writes, when it was last inspected.
    written_size: Option<u64>,
    /// How often it was synced while the kernel wrote it, and was not short.
    syncs: u32,
    /// How often it was sent because a process asked for its time.
    stats: u32,
}

impl Opens {
    pub(crate) fn is_empty(&self) -> bool {
        self.passthrough + self.bypass + self.cached + self.direct == 0
    }

    /// A process asks for the time of the file, which has unsent bytes. Returns whether they are to
    /// be sent first.
    pub(crate) fn count_stat(&mut self) -> bool {
        let is_first = self.stats < STATS_MAX;
        self.stats += u32::from(is_first);
        is_first
    }

    /// Whether no process has the file open, or is opening it.
    pub(crate) fn is_unused(&self) -> bool {
        self.is_empty() && self.arriving == 0
    }

    /// Whether a name of the file is about to go.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    pub(super) fn begin_leaving(&mut self) {
        self.leaving += 1;
    }

    pub(super) fn end_leaving(&mut self) {
        self.leaving = self.leaving.checked_sub(1).expect("what ends has begun");
    }

    /// An open begins, unless a name is about to go. Returns whether it did.
    pub(super) fn try_arrive(&mut self) -> bool {
        let arrives = !self.is_leaving();
        self.arriving += u32::from(arrives);
        arrives
    }

    pub(super) fn end_arriving(&mut self) {
        self.arriving = self.arriving.checked_sub(1).expect("what ends has begun");
    }

    /// Whether a process reads the file through the kernel's pages.
    pub(crate) fn has_cached(&self) -> bool {
        self.cached > 0
    }

    /// Whether the kernel may be writing to the local file.
    pub(crate) fn bypassing(&self) -> bool {
        self.bypass > 0
    }

    /// Whether there may be bytes in the local file that the kernel wrote and that were not looked
    /// for yet.
    pub(crate) fn is_bypassed(&self) -> bool {
        self.bypass + self.ending_bypass > 0
    }

    /// Whether the kernel reads or writes a local file itself, or is bound to one.
    pub(crate) fn binds_kernel(&self) -> bool {
        self.passthrough + self.bypass > 0 || self.backing.is_some()
    }

    /// Whether the kernel has a local file, which it reads or writes itself.
    pub(crate) fn has_local_file(&self) -> bool {
        self.backing.is_some()
    }

    /// Whether a process reads a local file through passthrough.
    pub(crate) fn is_read_by_kernel(&self) -> bool {
        self.passthrough > 0
    }

    /// The local file to which the kernel is bound, unless it may be writing to it.
    pub(crate) fn backing_unwritten(&self) -> Option<&Arc<BackingFile>> {
        self.backing.as_ref().filter(|_| !self.bypassing())
    }

    /// The version that the local file shows to which the kernel is bound.
    pub(crate) fn backing_shows(&self) -> Option<Version> {
        self.backing_shows
    }

    /// It shows that version by now.
    pub(crate) fn set_backing_shows(&mut self, version: Version) {
        self.backing_shows = Some(version);
    }

    /// Remembers the size and time of the local file when it was last compared with the server's
    /// version.
    pub(crate) fn set_collected(&mut self, end: Option<LocalEnd>) {
        self.collected = end;
        if self.bypassing() {
            self.written_size = end.map(|end| end.size);
        }
    }

    /// Counts an open file of an earlier process, and adopts its local file if it is the `same`
    /// that the kernel has. Returns `false` if the kernel writes to one that is not known.
    pub(crate) fn restore(&mut self, mode: Mode, file: &CachedFile, same: bool) -> bool {
        debug_assert!(
            mode != Mode::Bypass || self.passthrough == 0,
            "the opens by which the kernel writes decide which local file it has"
        );
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
        debug_assert!(
            self.stray || self.backing.is_some(),
            "a local file that the kernel has is known, or no other is given"
        );
        known || mode == Mode::Passthrough
    }

    /// An open file is gone. Returns whether it was the last bypass open; then
    /// [`Opens::end_of_bypass`] must follow.
    pub(crate) fn uncount(&mut self, mode: Mode) -> bool {
        let count = self.count(mode);
        assert!(*count > 0, "an open file that is gone was counted in its mode");
        *count -= 1;
        let is_last_writer = mode == Mode::Bypass && !self.bypassing();
        if is_last_writer {
            let written = self.local_end().map(|end| end.size);
            self.believe(Event::WroteItself(written));
        }
        if self.passthrough + self.bypass == 0 {
            self.collected = None;
            self.syncs = 0;
        }
        if !self.bypassing() {
            self.written_size = None;
        }
        if self.is_empty() {
            self.stats = 0;
            self.backing = None;
            self.backing_shows = None;
            self.stray = false;
        }
        self.ending_bypass += u32::from(is_last_writer);
        is_last_writer
    }

    /// What the kernel wrote for the last bypass open has been found.
    pub(crate) fn end_of_bypass(&mut self) {
        assert!(self.ending_bypass > 0, "the end of a bypass follows on its last release");
        self.ending_bypass -= 1;
    }

    /// Counts an open file that the kernel reads or writes through the local file that it was
    /// given.
    pub(super) fn count_passing(&mut self, mode: Mode) {
        debug_assert!(mode.passes_through(), "who gets a local file passes through");
        *self.count(mode) += 1;
        if mode == Mode::Bypass {
            self.pages = None;
        }
    }

    /// The kernel is given a local file, which shows `version`, for an open file of this mode; if
    /// the kernel may write it, `begun` is its state at that moment.
    pub(super) fn give(
        &mut self,
        mode: Mode,
        backing: Arc<BackingFile>,
        version: Version,
        begun: Option<LocalEnd>,
    ) {
        debug_assert!(
            !self.stray && self.backing.as_ref().is_none_or(|held| Arc::ptr_eq(held, &backing)),
            "the kernel gets no second local file of one inode"
        );
        debug_assert!(!self.bypassing(), "who joins a writer uses the writer's local file");
        debug_assert_eq!(mode == Mode::Bypass, begun.is_some(), "a bypass begins before it counts");
        self.backing = Some(backing);
        self.backing_shows = Some(version);
        self.collected = begun.or(self.collected);
        self.count_passing(mode);
    }

    /// Counts an open file that gets no local file.
    pub(super) fn count_other(&mut self, mode: Mode) {
        debug_assert!(!mode.passes_through(), "who passes through gets a local file");
        *self.count(mode) += 1;
    }

    /// The local file to which the kernel is bound.
    pub(super) fn backing(&self) -> Option<&Arc<BackingFile>> {
        self.backing.as_ref()
    }

    /// Whether a new open file may be given a local file.
    pub(super) fn takes_local_file(&self) -> bool {
        !self.stray
    }

    /// Fills in the part of `case` that depends on the open files, for a file of this version.
    pub(super) fn described_in(&self, case: Case, version: Version) -> Case {
        debug_assert!(
            self.cached == 0 || self.passthrough + self.bypass == 0,
            "the kernel refuses passthrough beside page-cached opens"
        );
        Case {
            passthrough: self.binds_kernel(),
            bypass: self.bypassing(),
            cached: self.cached > 0,
            other_pages: self.pages != Some(version),
            ..case
        }
    }

    /// The kernel gets pages of this version. Returns whether those that it may hold belong to it
    /// too: pages belong to the inode, and pages of two versions would mix under open files.
    pub(crate) fn keep_pages(&mut self, version: Version) -> bool {
        self.pages.replace(version) == Some(version)
    }

    /// The kernel's pages belong to no version. Returns whether it may hold any: processes that
    /// have the file open in page-cached mode read new ones all the time, whatever was dropped
    /// before.
    pub(crate) fn drop_pages(&mut self) -> bool {
        self.tell();
        self.pages.take().is_some() || self.cached > 0
    }

    /// The kernel is to drop something of the node.
    pub(crate) fn tell(&mut self) {
        self.tellings += 1;
    }

    /// The kernel, which believes in a later end, is about to get a short answer. Returns whether
    /// it may. If the request `is_behind` the file's end, the answer tells the kernel an end
    /// that is too late, and makes it ignore answers to earlier requests.
    pub(crate) fn tell_end(&mut self, is_behind: bool) -> bool {
        if is_behind && self.behind < BEHIND_MAX {
            self.behind += 1;
            return false;
        }
        self.behind = 0;
        if is_behind {
            self.tell();
        }
        true
    }

    /// The kernel has never heard of the node.
    pub(crate) fn begin_unknown(&mut self) {
        self.believe(Event::Unheard);
    }

    /// The kernel hears, or sees a caller's write to, that the file ends at `end`. It may not
    /// believe it if another end was on its way at the same time.
    pub(crate) fn raise_believed_end(&mut self, end: u64) {
        self.believe(Event::Told(end));
    }

    /// The kernel is answered that a process of this machine has set the size: it believes that.
    pub(crate) fn set_believed_end(&mut self, end: u64) {
        self.believe(Event::Set(end));
    }

    /// The kernel is answered that an open has emptied the file; the `sole` one that may write it,
    /// or others may just be writing.
    pub(crate) fn emptied_by_open(&mut self, sole: bool) {
        if sole {
            self.believe(Event::Set(0));
        } else if self.bypassing() {
            self.believe(Event::Confused);
        }
    }

    fn believe(&mut self, event: Event) {
        self.believed_end = self.believed_end.apply(event);
    }

    /// Whether the kernel may believe that the file goes on behind `end`.
    pub(crate) fn may_believe_beyond(&self, end: u64) -> bool {
        self.bypassing() || self.believed_end.may_be_beyond(end)
    }

    /// Deals with what an earlier process may have left in the kernel. Returns whether that was
    /// still to be done.
    pub(crate) fn take_over(&mut self) -> bool {
        !std::mem::replace(&mut self.taken_over, true)
    }

    /// How often it was to.
    pub(crate) fn tellings(&self) -> u64 {
        self.tellings
    }

    /// What the kernel shows of the version `from` belongs to the version `to` too.
    pub(crate) fn carry(&mut self, from: Version, to: Version) {
        for shown in [&mut self.pages, &mut self.backing_shows] {
            if *shown == Some(from) {
                *shown = Some(to);
            }
        }
    }

    /// Counts an fsync of a file that the kernel writes. Returns whether the file is one that is
    /// always synced.
    pub(super) fn count_sync(&mut self) -> bool {
        debug_assert!(self.bypassing(), "the count ends with the last open by which it writes");
        self.syncs += 1;
        self.syncs > SYNCS_MAX
    }

    /// Directories: programs repeatedly sync files of it while they write them.
    pub(super) fn synced_inside(&mut self) {
        self.is_synced_inside = true;
    }

    /// Directories: whether they do.
    pub(super) fn is_synced_inside(&self) -> bool {
        self.is_synced_inside
    }

    /// Inspects how the local file that the kernel writes ends now. Returns that if it is not as it
    /// was when it was last compared.
    pub(crate) fn look(&mut self) -> Option<LocalEnd> {
        debug_assert!(self.bypassing(), "only the kernel's writes move the end unseen");
        let end = self.local_end();
        self.written_size = end.map(|end| end.size);
        end.filter(|end| self.collected != Some(*end))
    }

    fn count(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Passthrough => &mut self.passthrough,
            Mode::Bypass => &mut self.bypass,
            Mode::Cached => &mut self.cached,
            Mode::Direct => &mut self.direct,
        }
    }

    /// The length of the file for all that have it open while the kernel writes it, whatever other
    /// clients do to it.
    pub(crate) fn written_size(&self) -> Option<u64> {
        self.written_size
    }

    /// Size and modification time of the local file now.
    pub(crate) fn local_end(&self) -> Option<LocalEnd> {
        Some(LocalEnd::of(&self.backing.as_ref()?.stamp().ok()?))
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
    use crate::node::{Age, State};
    use crate::options::TtlRange;

    fn version(number: u64) -> Version {
        let validator = file_of(Time { sec: i64::try_from(number).unwrap(), nsec: 0 }).validator();
        Version { validator, rereads: 0 }
    }

    const MODES: [Mode; 4] = [Mode::Passthrough, Mode::Bypass, Mode::Cached, Mode::Direct];

    /// Over all sequences of six opens and closes in each mode: the counts agree with a list of the
    /// open files.
    #[test]
    fn open_files_are_counted_by_mode() {
        const LENGTH: u32 = 6;
        for sequence in 0..8_usize.pow(LENGTH) {
            let (mut opens, mut model, mut ending) = (Opens::default(), Vec::new(), 0);
            for step in 0..LENGTH {
                let step = sequence / 8_usize.pow(step) % 8;
                let mode = MODES[step % 4];
                if step < 4 {
                    match mode {
                        Mode::Passthrough | Mode::Bypass => opens.count_passing(mode),
                        Mode::Cached | Mode::Direct => opens.count_other(mode),
                    }
                    model.push(mode);
                } else if let Some(at) = model.iter().position(|open| *open == mode) {
                    model.remove(at);
                    let is_last = mode == Mode::Bypass && !model.contains(&Mode::Bypass);
                    assert_eq!(opens.uncount(mode), is_last, "{sequence}");
                    ending += u32::from(is_last);
                }
                let has = |mode: Mode| model.contains(&mode);
                assert_eq!(opens.is_empty(), model.is_empty(), "{sequence}");
                assert_eq!(opens.bypassing(), has(Mode::Bypass));
                assert_eq!(opens.is_bypassed(), has(Mode::Bypass) || ending > 0);
                assert_eq!(opens.is_read_by_kernel(), has(Mode::Passthrough));
                let passes = has(Mode::Bypass) || has(Mode::Passthrough);
                assert_eq!(opens.binds_kernel(), passes);
                assert_eq!(opens.drop_pages(), has(Mode::Cached), "no pages were kept");
            }
            (0..ending).for_each(|_| opens.end_of_bypass());
            assert_eq!(opens.is_bypassed(), opens.bypassing());
        }
    }

    /// Over all sequences of five steps: the kernel's pages belong to the version that was kept
    /// last, or to which it was carried, and a file that the kernel writes itself has none.
    #[test]
    fn pages_are_of_one_version() {
        const LENGTH: u32 = 5;
        for sequence in 0..6_usize.pow(LENGTH) {
            let (mut opens, mut pages) = (Opens::default(), None);
            for step in 0..LENGTH {
                let step = sequence / 6_usize.pow(step) % 6;
                match step {
                    0 | 1 => {
                        let kept = version(step as u64);
                        assert_eq!(opens.keep_pages(kept), pages == Some(kept), "{sequence}");
                        pages = Some(kept);
                    }
                    2 | 3 => {
                        let (from, to) = (version(step as u64 - 2), version(3 - step as u64));
                        opens.carry(from, to);
                        pages = pages.map(|held| if held == from { to } else { held });
                    }
                    4 => assert_eq!(opens.drop_pages(), pages.take().is_some(), "{sequence}"),
                    _ => {
                        opens.count_passing(Mode::Bypass);
                        assert!(opens.uncount(Mode::Bypass));
                        opens.end_of_bypass();
                        pages = None;
                    }
                }
                for number in [0, 1] {
                    let case = opens.described_in(Case::default(), version(number));
                    assert_eq!(case.other_pages, pages != Some(version(number)), "{sequence}");
                }
            }
        }
    }

    #[test]
    fn what_is_synced_again_and_again_is_noticed() {
        let mut opens = Opens::default();
        opens.count_passing(Mode::Bypass);
        for count in 1..=2 * SYNCS_MAX {
            assert_eq!(opens.count_sync(), count > SYNCS_MAX);
        }
        opens.uncount(Mode::Bypass);
        opens.count_passing(Mode::Bypass);
        assert!(!opens.count_sync(), "it is counted anew from the next open on");
        assert!(!opens.is_synced_inside());
        opens.synced_inside();
        assert!(opens.is_synced_inside());
    }

    /// The kernel holds no lock while an open empties a file: what other processes write meanwhile
    /// may count after that, and what it writes by itself for them is not seen.
    #[test]
    fn an_open_that_empties_a_file_among_writers_leaves_the_bound() {
        for (sole, bypassing, beyond) in
            [(true, false, false), (true, true, true), (false, false, true), (false, true, true)]
        {
            let mut opens = Opens::default();
            opens.begin_unknown();
            assert!(!opens.may_believe_beyond(0));
            opens.raise_believed_end(5);
            if bypassing {
                opens.count_passing(Mode::Bypass);
            }
            opens.emptied_by_open(sole);
            assert_eq!(opens.may_believe_beyond(0), beyond, "{sole} {bypassing}");
            let is_lost = !sole && bypassing;
            assert_eq!(opens.may_believe_beyond(5), bypassing, "{sole} {bypassing}");
            opens.bypass = 0;
            assert_eq!(opens.may_believe_beyond(5), is_lost, "{sole} {bypassing}");
        }
    }

    /// Until a release has looked for what the kernel wrote, the cache does not drop the old
    /// version by itself.
    #[test]
    fn a_change_by_another_client_makes_a_mixture_until_the_bypass_ends() {
        let ttl = TtlRange { min: Duration::ZERO, max: Duration::ZERO };
        let at = Monotonic::from_nanos;
        for (steps, is_mixed) in [(0, true), (1, true), (2, false)] {
            let known = Known::described(file_of(Time::default()), 1, at(0), ttl.min);
            let mut state = State::new(Handle::new(b"h"), known);
            state.opens_mut().count_passing(Mode::Bypass);
            if steps >= 1 {
                assert!(state.opens_mut().uncount(Mode::Bypass), "the last writer");
            }
            if steps >= 2 {
                state.opens_mut().end_of_bypass();
            }
            state.observe(file_of(Time { sec: 5, nsec: 5 }), 1, at(1), ttl, Age::Old);
            assert_eq!(state.unsent().is_mixed(), is_mixed, "{steps}");
        }
    }
}
