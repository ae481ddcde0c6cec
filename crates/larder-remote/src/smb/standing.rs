//! The table of files that are kept open at the server because they are open here
//! ([`super::keeping`]).
//!
//! Invariants:
//! - At most [`STANDING_MAX`] files are kept open; others are open here without that.
//! - An entry is an open on the file's channel. When the connection is lost, the entry is lost.

use super::burst::Burst;
use super::files::ServerOpen;
use super::link::Link;
use larder_vfs::Handle;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Most files kept open. Servers bound the opens of a client: Samba at 16,384.
const STANDING_MAX: usize = 8192;

/// A file that is kept open until this is dropped.
pub(super) struct StandingOpen {
    pub(super) file: Handle,
    pub(super) open: tokio::sync::Mutex<Option<Arc<ServerOpen>>>,
    /// It is written to through another open.
    pub(super) burst: Arc<Burst>,
}

impl StandingOpen {
    /// The open, if it can be used.
    pub(super) async fn on(&self, link: &Link) -> Option<Arc<ServerOpen>> {
        self.open.lock().await.clone().filter(|open| open.is_on(link))
    }

    /// Closes it, and waits until it is.
    pub(super) async fn close(&self) {
        self.burst.close().await;
        if let Some(open) = self.open.lock().await.take() {
            open.close().await;
        }
    }
}

impl Drop for StandingOpen {
    fn drop(&mut self) {
        if let Some(open) = self.open.get_mut() {
            open.end_keeping();
        }
    }
}

/// All files that are kept open.
#[derive(Default)]
pub(super) struct StandingOpens {
    by_file: Mutex<HashMap<Handle, Weak<StandingOpen>>>,
}

impl StandingOpens {
    fn by_file(&self) -> MutexGuard<'_, HashMap<Handle, Weak<StandingOpen>>> {
        self.by_file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, file: &Handle) -> Option<Arc<StandingOpen>> {
        self.by_file().get(file)?.upgrade()
    }

    /// The file's entry, which may be a new one; `None` if there are too many.
    pub(super) fn enter(&self, file: &Handle) -> Option<Arc<StandingOpen>> {
        let mut by_file = self.by_file();
        if let Some(standing) = by_file.get(file).and_then(Weak::upgrade) {
            return Some(standing);
        }
        if by_file.len() >= by_file.capacity() || by_file.len() >= STANDING_MAX {
            by_file.retain(|_, standing| standing.strong_count() > 0);
        }
        if by_file.len() >= STANDING_MAX {
            return None;
        }
        let (open, burst) = (tokio::sync::Mutex::default(), Arc::default());
        let standing = Arc::new(StandingOpen { file: file.clone(), open, burst });
        by_file.insert(file.clone(), Arc::downgrade(&standing));
        Some(standing)
    }

    /// Closes what is kept open of a file, and waits until it is closed.
    pub(super) async fn close(&self, file: &Handle) {
        if let Some(standing) = self.get(file) {
            standing.close().await;
        }
    }

    /// Those that `chosen` names.
    pub(super) fn all(&self, chosen: impl Fn(&Handle) -> bool) -> Vec<Arc<StandingOpen>> {
        let by_file = self.by_file();
        let chosen = by_file.iter().filter(|(file, _)| chosen(file));
        chosen.filter_map(|(_, standing)| standing.upgrade()).collect()
    }
}
