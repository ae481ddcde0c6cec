//! State of the readers that are listing a directory.

use std::sync::Arc;

use super::walk::{GoesRound, Walks};
use crate::journal::Page;

/// The page that was used last, and the ways of the readers.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// With its number.
    last_page: Option<(u32, Arc<Page>)>,
    /// A page that is not believed, for the reader that was given its begin.
    lent: Option<Arc<Page>>,
    walks: Walks,
}

impl Listed {
    /// The page that was used last, with its number.
    pub(crate) fn last_page(&self) -> Option<&(u32, Arc<Page>)> {
        self.last_page.as_ref()
    }

    /// This page was used.
    pub(crate) fn set_last_page(&mut self, number: u32, page: Arc<Page>) {
        self.last_page = Some((number, page));
    }

    /// No cached page is what the server would return.
    pub(crate) fn drop_page(&mut self) {
        self.last_page = None;
    }

    /// The page that is not trusted, for the reader that continues in it.
    pub(crate) fn lent(&self) -> Option<&Arc<Page>> {
        self.lent.as_ref()
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
