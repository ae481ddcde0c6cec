//! Where the cached pages of a listing are: which one a reader continues in, and which number a
//! page gets that the server has just sent. Pure.
//!
//! Cached pages are numbered from 0, and each begins where the one before it ends. A reader asks
//! for what follows a position: most of the time that is in a page that was used lately, or where a
//! page begins. Both are found without reading a page from the index, so that listing a directory
//! costs as much for each name however many pages it has. Only a reader that seeks, or that
//! continues after the directory's state has left memory, has the pages searched.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::journal::Page;

/// Most pages that are kept in memory, at some 200 KiB each: one for each of so many readers.
const RECENT_MAX: usize = 4;

/// What is known of the cached pages of a directory.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// The pages that were used last, with their numbers, the latest one first.
    recent: VecDeque<(u32, Arc<Page>)>,
    /// At which positions pages begin, as far as that is known, and where the one behind the last
    /// would.
    begins: HashMap<u64, u32>,
    /// The same, by number.
    positions: BTreeMap<u32, u64>,
}

/// In which cached page to look for a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sought {
    /// In these: what begins there is not known.
    Among(Range<u32>),
    /// In this one: it begins there.
    In(u32),
    /// In none: it is behind all of them.
    Behind,
}

impl Sought {
    /// The numbers of these pages.
    pub(super) fn numbers(self) -> Range<u32> {
        match self {
            Sought::Among(numbers) => numbers,
            Sought::In(number) => number..number + 1,
            Sought::Behind => 0..0,
        }
    }
}

impl Pages {
    /// A page in memory with the entries after a position.
    pub(super) fn holding(&self, offset: u64) -> Option<Arc<Page>> {
        self.recent.iter().find(|(_, page)| page.holds(offset)).map(|(_, page)| page.clone())
    }

    /// Where to look for it otherwise, if so many are cached.
    pub(super) fn sought(&self, offset: u64, cached: u32) -> Sought {
        match self.begins.get(&offset) {
            Some(number) if *number < cached => Sought::In(*number),
            Some(_) => Sought::Behind,
            None => Sought::Among(0..cached),
        }
    }

    /// This cached page was used.
    pub(super) fn used(&mut self, number: u32, page: &Arc<Page>) {
        self.recent.retain(|(held, _)| *held != number);
        self.recent.push_front((number, page.clone()));
        self.recent.truncate(RECENT_MAX);
        self.begin(page.start, number);
        if let Some(next) = page.next() {
            self.begin(next, number + 1);
        }
    }

    fn begin(&mut self, position: u64, number: u32) {
        if let Some(before) = self.positions.insert(number, position).filter(|it| *it != position) {
            self.begins.remove(&before);
        }
        if let Some(before) = self.begins.insert(position, number).filter(|it| *it != number) {
            self.positions.remove(&before);
        }
    }

    /// Nothing is cached from this page on.
    fn end_at(&mut self, number: u32) {
        self.recent.retain(|(held, _)| *held < number);
        for (_, position) in self.positions.split_off(&number) {
            self.begins.remove(&position);
        }
    }

    /// The number that a page of the server gets if it is to be kept, and how many are cached then.
    /// `None`: it does not follow the cached ones directly.
    pub(super) fn keep(&mut self, page: &Arc<Page>, cached: u32) -> Option<(u32, u32)> {
        let number = match page.start {
            0 => 0,
            start => *self.begins.get(&start).filter(|number| **number <= cached && cached > 0)?,
        };
        // What was cached behind it is of use if it begins where this page ends.
        let follows = page.next().and_then(|next| self.begins.get(&next));
        let has_followers = number > 0 && follows == Some(&(number + 1));
        if !has_followers {
            self.end_at(number + 1);
        }
        let kept = if has_followers { cached.max(number + 1) } else { number + 1 };
        self.used(number, page);
        Some((number, kept))
    }
}

impl Page {
    /// Whether the entries after the position `offset` begin in this page.
    pub(super) fn holds(&self, offset: u64) -> bool {
        match self.position_of(offset) {
            Some(first) => first < self.entries.len() || self.eof,
            None => false,
        }
    }

    /// Index of the first entry after the position `offset`.
    pub(super) fn position_of(&self, offset: u64) -> Option<usize> {
        if offset == self.start {
            return Some(0);
        }
        self.entries.iter().position(|entry| entry.position == offset).map(|index| index + 1)
    }

    /// Position at which the next page starts; `None` if there is none.
    pub(super) fn next(&self) -> Option<u64> {
        if self.eof { None } else { self.entries.last().map(|entry| entry.position) }
    }
}

#[cfg(test)]
mod tests;
