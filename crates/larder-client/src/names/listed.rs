//! What is remembered of those who list a directory just now.

use std::sync::Arc;

use super::walk::{GoesRound, Walks};
use crate::journal::Page;

/// The page that was used last, and the ways of the readers.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// With its number.
    last_page: Option<(u32, Arc<Page>)>,
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

    /// No page is what the server would give.
    pub(crate) fn drop_page(&mut self) {
        self.last_page = None;
    }

    /// A reader who was at `from` was given entries up to the position `to`.
    ///
    /// # Errors
    /// If his way goes round.
    pub(super) fn step(&mut self, from: u64, to: Option<u64>) -> Result<(), GoesRound> {
        self.walks.step(from, to)
    }
}
