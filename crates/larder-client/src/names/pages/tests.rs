//! Readers of a directory whose cached pages, and what is known of them, a test keeps itself. The
//! server's part is a function of the position and of how many entries it sends.

use std::ffi::OsString;

use super::*;
use crate::journal::PageEntry;

/// Entries of each page where a test does not say otherwise.
const LENGTH: u64 = 12;
/// Entries that a reader is given at a time.
const GIVEN: u64 = 5;

/// What the server sends of a directory with `entries` names from a position on.
fn page(start: u64, length: u64, entries: u64) -> Arc<Page> {
    let end = (start + length).min(entries);
    let entry = |position: u64| PageEntry {
        name: OsString::from(position.to_string()),
        fileid: position,
        kind: None,
        position,
        child: None,
    };
    let told = (start + 1..=end).map(entry).collect();
    Arc::new(Page { start, verifier: 0, eof: end == entries, entries: told })
}

/// Cached pages with what is known of them, and what a listing costs.
#[derive(Default)]
struct Listing {
    pages: Pages,
    cached: Vec<Arc<Page>>,
    /// How many pages were read from the index.
    read: usize,
    /// How many came from the server.
    fetched: usize,
}

impl Listing {
    fn cached(&self) -> u32 {
        u32::try_from(self.cached.len()).unwrap()
    }

    /// The page in which a reader continues, from the cache or from the server.
    fn after(&mut self, offset: u64, length: u64, entries: u64) -> Arc<Page> {
        if let Some(page) = self.pages.holding(offset) {
            return page;
        }
        for number in self.pages.sought(offset, self.cached()).numbers() {
            self.read += 1;
            let page = self.cached[number as usize].clone();
            if page.holds(offset) {
                self.pages.used(number, &page);
                return page;
            }
        }
        self.fetch(page(offset, length, entries))
    }

    /// The server has sent a page.
    fn fetch(&mut self, page: Arc<Page>) -> Arc<Page> {
        self.fetched += 1;
        if let Some((number, kept)) = self.pages.keep(&page, self.cached()) {
            let number = number as usize;
            assert!(number <= self.cached.len(), "no page is left out");
            self.cached.truncate(kept as usize);
            match self.cached.get_mut(number) {
                Some(place) => *place = page.clone(),
                None => self.cached.push(page.clone()),
            }
            assert_eq!(self.cached(), kept);
        }
        page
    }

    /// The position of a reader after it was given some entries; `None` at the end.
    fn step(&mut self, offset: u64, length: u64, entries: u64) -> Option<u64> {
        let page = self.after(offset, length, entries);
        let first = page.position_of(offset).unwrap();
        let rest = &page.entries[first..];
        rest.iter().take(GIVEN as usize).next_back().map(|entry| entry.position)
    }

    fn walk(&mut self, entries: u64) {
        let mut at = 0;
        while let Some(next) = self.step(at, LENGTH, entries) {
            assert!(at < next && next <= at + GIVEN, "no entry is left out");
            at = next;
        }
        assert_eq!(at, entries);
    }
}

/// What a listing costs for each page does not grow with the directory: the first one reads no page
/// from the index, and each later one reads each page once; also if others list it meanwhile.
#[test]
fn a_listing_costs_the_same_for_each_page_however_many_there_are() {
    for pages in [1, 10, 1000] {
        let entries = pages * LENGTH;
        let mut listing = Listing::default();
        listing.walk(entries);
        assert_eq!((listing.read, listing.fetched as u64), (0, pages));
        listing.walk(entries);
        assert!(listing.read as u64 <= pages, "{} of {pages}", listing.read);
        assert_eq!(listing.fetched as u64, pages, "all are cached");

        // As many readers as have pages in memory, each of which begins later than the one before.
        let mut together = Listing::default();
        let mut places = [Some(0); RECENT_MAX];
        let mut steps = 0;
        while places.iter().any(Option::is_some) {
            steps += 1;
            for (number, place) in places.iter_mut().enumerate().filter(|(at, _)| *at * 7 < steps) {
                let Some(at) = *place else { continue };
                *place = together.step(at, LENGTH, entries);
                assert!(place.is_some() || at == entries, "reader {number}");
            }
        }
        let read_max = pages as usize * RECENT_MAX;
        assert!(together.read <= read_max, "{} of {pages}", together.read);
        assert_eq!(together.fetched as u64, pages);
    }
}

/// A process that begins with cached pages, or a reader that seeks, finds each position.
#[test]
fn positions_are_found_in_pages_of_which_nothing_is_known() {
    const PAGES: u64 = 9;
    let entries = PAGES * LENGTH;
    let mut listing = Listing::default();
    listing.walk(entries);
    for offset in (0..=entries).rev() {
        listing.pages = Pages::default();
        assert!(listing.after(offset, LENGTH, entries).holds(offset));
    }
    assert_eq!(listing.fetched as u64, PAGES);
}

/// Random readers of a directory of which the server sends pages of any length, also anew: cached
/// pages follow each other without a gap, and what is known of them is true.
#[test]
fn cached_pages_follow_each_other_whatever_is_fetched_anew() {
    const ENTRIES: u64 = 60;
    for seed in 0..2000_u64 {
        let mut random = seed;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (random >> 33) % below
        };
        let (mut listing, mut reader) = (Listing::default(), 0);
        for _ in 0..60 {
            let length = 1 + next(9);
            match next(8) {
                0 => reader = 0,
                1 => reader = next(ENTRIES + 1),
                2 => listing.pages = Pages::default(),
                3 if !listing.cached.is_empty() => {
                    let again = next(u64::from(listing.cached()));
                    let start = listing.cached[usize::try_from(again).unwrap()].start;
                    listing.fetch(page(start, length, ENTRIES));
                }
                _ => reader = listing.step(reader, length, ENTRIES).unwrap_or(0),
            }
            let cached = &listing.cached;
            let follow = cached.windows(2).all(|two| two[0].next() == Some(two[1].start));
            assert!(follow && cached.first().is_none_or(|page| page.start == 0), "seed {seed}");
            for (number, page) in cached.iter().enumerate() {
                match listing.pages.sought(page.start, listing.cached()) {
                    Sought::In(told) => assert_eq!(told as usize, number, "seed {seed}"),
                    Sought::Among(all) => assert_eq!(all, 0..listing.cached(), "seed {seed}"),
                    Sought::Behind => panic!("seed {seed}: page {number} is there"),
                }
            }
        }
    }
}
