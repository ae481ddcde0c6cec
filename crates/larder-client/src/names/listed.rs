//! State of the readers that are listing a directory, or looking up its names.

use std::sync::Arc;

use super::ahead::Ahead;
use super::pages::Pages;
use super::walk::{GoesRound, Walks};
use crate::journal::Page;

/// The pages that were used last, and the ways of the readers.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// None, for most directories.
    pages: Option<Box<Pages>>,
    /// A page that is not believed, for the reader that was given its begin.
    lent: Option<Arc<Page>>,
    walks: Walks,
    ahead: Ahead,
}

impl Listed {
    /// Of those that look its names up.
    pub(super) fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// What is known of the cached pages.
    pub(super) fn pages(&mut self) -> &mut Pages {
        self.pages.get_or_insert_default()
    }

    /// No cached page is what the server would return.
    pub(crate) fn drop_pages(&mut self) {
        self.pages = None;
    }

    /// The page that was given to one reader, if that reader continues in it at this position.
    pub(super) fn lent_after(&self, offset: u64) -> Option<&Arc<Page>> {
        self.lent.as_ref().filter(|page| offset != 0 && page.holds(offset))
    }

    /// This page was given to one reader, and must not be used for others.
    pub(crate) fn lend(&mut self, page: Arc<Page>) {
        self.lent = Some(page);
    }

    /// A reader was given a page that is trusted: it continues there, or asks the server, but never
    /// in an earlier page.
    pub(crate) fn end_loan(&mut self) {
        self.lent = None;
    }

    /// A reader that was at `from` was given entries up to the position `to`.
    ///
    /// # Errors
    /// If its positions form a cycle.
    pub(super) fn step(&mut self, from: u64, to: Option<u64>) -> Result<(), GoesRound> {
        self.walks.step(from, to)
    }
}
