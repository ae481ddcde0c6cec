//! When a directory is listed in place of looking up one name in it. Pure.
//!
//! Whoever looks up many names of a directory, one after the other, waits for the server as many
//! times: a build that searches for headers, a `git status` on a cold cache, a program that makes
//! many files, each of which is looked up first. A page of the listing describes some hundred files
//! and takes one call as well; if it is the whole directory and leases are given, it also says
//! which names there are not.
//!
//! So every so many lookups ([`LOOKUPS_MIN`]) one is made by the listing. How much is read in vain
//! is bounded by what was asked for: the next page is read after one lookup more for each
//! [`NAMES_PER_LOOKUP`] names of the last one, and after twice as many each time that a page did
//! not have the name that it was read for.

/// So many lookups are made before the first page is read.
const LOOKUPS_MIN: u32 = 8;
/// For so many names that were read, one was looked up.
const NAMES_PER_LOOKUP: u32 = 16;
/// Most times that the number of lookups is doubled.
const DOUBLED_MAX: u32 = 10;
/// How large a page is asked for, in bytes: 100 to 300 names.
pub(super) const PAGE_BYTES: u32 = 32 << 10;

/// What is remembered of the lookups in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    /// The directory's epoch: in another one all begins anew.
    epoch: u64,
    /// Names that the server was asked for since the last page.
    asked: u32,
    /// Names of the last page.
    read: u32,
    /// After which position the next page begins.
    position: u64,
    /// So many pages in a row did not answer the lookup that read them.
    in_vain: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Counting,
    /// A lookup reads a page now; the others ask for their names.
    Reading,
    /// The directory cannot be listed.
    Refused,
}

/// What came of reading a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// So many names, and the position of the next page; none is the end.
    Page { names: u32, next: Option<u64> },
    /// The caller may not list it, or there was no answer.
    Nothing,
}

impl Ahead {
    /// The server is to be asked for a name of the directory, which is in this epoch. Returns the
    /// position of the page that is to be read instead, if one is: then [`Ahead::end`] must follow.
    pub(super) fn ask(&mut self, epoch: u64) -> Option<u64> {
        if self.epoch != epoch && self.stage != Stage::Reading {
            *self = Ahead { epoch, ..Ahead::default() };
        }
        self.asked = self.asked.saturating_add(1);
        let needed = (self.read / NAMES_PER_LOOKUP).max(LOOKUPS_MIN);
        let needed = needed.saturating_mul(1 << self.in_vain.min(DOUBLED_MAX));
        if self.stage != Stage::Counting || self.asked <= needed {
            return None;
        }
        (self.stage, self.asked) = (Stage::Reading, 0);
        Some(self.position)
    }

    /// A file that was looked up is opened, and the reply to its lookup had what that needs: a page
    /// would not have had it.
    pub(super) fn opened(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Whether the page that was read answered the lookup.
    pub(super) fn answered(&mut self, is_answered: bool) {
        self.in_vain = if is_answered { 0 } else { self.in_vain.saturating_add(1) };
    }

    /// The page was read.
    pub(super) fn end(&mut self, read: Read) {
        match read {
            Read::Page { names, next } => {
                self.stage = Stage::Counting;
                // At the end it begins again: what was read may have become too old to be used.
                (self.read, self.position) = (names, next.unwrap_or(0));
            }
            Read::Nothing => self.stage = Stage::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many lookups, that one included, a page is read, and which.
    fn next_page(ahead: &mut Ahead, epoch: u64) -> (u32, u64) {
        for lookups in 1..10_000 {
            if let Some(position) = ahead.ask(epoch) {
                return (lookups, position);
            }
        }
        panic!("none is read: {ahead:?}");
    }

    #[test]
    fn pages_follow_each_other_as_far_as_names_are_looked_up() {
        let mut ahead = Ahead::default();
        assert_eq!(next_page(&mut ahead, 1), (LOOKUPS_MIN + 1, 0));
        ahead.end(Read::Page { names: 300, next: Some(77) });
        assert_eq!(next_page(&mut ahead, 1), (300 / NAMES_PER_LOOKUP + 1, 77));
        // The last one is short, and then all begins anew.
        ahead.end(Read::Page { names: 10, next: None });
        assert_eq!(next_page(&mut ahead, 1), (LOOKUPS_MIN + 1, 0));
    }

    #[test]
    fn lookups_of_files_that_are_opened_do_not_count() {
        let mut ahead = Ahead::default();
        for _ in 0..1000 {
            assert_eq!(ahead.ask(1), None);
            ahead.opened();
        }
        ahead.opened();
        assert_eq!(next_page(&mut ahead, 1), (LOOKUPS_MIN + 1, 0));
    }

    /// Names that are not there are not described by any page, and without leases a directory is
    /// never known whole.
    #[test]
    fn pages_that_do_not_answer_become_rare() {
        let mut ahead = Ahead::default();
        let mut lookups = Vec::new();
        for is_answered in [false, false, true, false] {
            lookups.push(next_page(&mut ahead, 1).0 - 1);
            ahead.end(Read::Page { names: 3, next: None });
            ahead.answered(is_answered);
        }
        lookups.push(next_page(&mut ahead, 1).0 - 1);
        assert_eq!(lookups, [8, 16, 32, 8, 16]);
        for _ in 0..100 {
            ahead.end(Read::Page { names: u32::MAX, next: None });
            ahead.answered(false);
        }
        assert!((0..100_000).all(|_| ahead.ask(1).is_none()));
    }

    #[test]
    fn one_page_is_read_at_a_time() {
        let mut ahead = Ahead::default();
        next_page(&mut ahead, 1);
        for epoch in [1, 2] {
            assert!((0..1000).all(|_| ahead.ask(epoch).is_none()), "while a page is read");
        }
        ahead.end(Read::Page { names: 1, next: Some(5) });
        assert_eq!(next_page(&mut ahead, 2), (LOOKUPS_MIN + 1, 0), "of the new epoch");
    }

    #[test]
    fn what_cannot_be_listed_is_not_tried_again_in_its_epoch() {
        let mut ahead = Ahead::default();
        next_page(&mut ahead, 1);
        ahead.end(Read::Nothing);
        assert!((0..1000).all(|_| ahead.ask(1).is_none()));
        assert_eq!(next_page(&mut ahead, 2), (LOOKUPS_MIN + 1, 0));
    }

    /// All sequences of lookups, pages and new epochs: no more names are read than lookups allow.
    #[test]
    fn what_is_read_is_bounded_by_what_is_looked_up() {
        for page in [1, 15, 16, 17, 100, 160, 1000] {
            let (mut ahead, mut lookups, mut read) = (Ahead::default(), 0_u32, 0_u32);
            for position in 0..100 {
                lookups += next_page(&mut ahead, 1).0;
                ahead.end(Read::Page { names: page, next: Some(position + 1) });
                read += page;
                assert!(read <= page + NAMES_PER_LOOKUP * lookups, "{page} {lookups} {read}");
            }
        }
    }
}
