//! Open files: culling leaves their data alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::file::CachedFile;

/// An open file: its data is not culled while this lives. Its state stays loaded for a while then.
#[derive(Debug)]
pub struct InUse(Arc<CachedFile>);

impl Drop for InUse {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.store.recent.forget(self.0.number());
            self.0.store.file_closed();
            drop(self.0.store.still_loaded.keep(self.0.number(), Arc::clone(&self.0)));
        }
    }
}

impl CachedFile {
    /// Exempts the file's data from culling until the returned value is dropped. Its state stays in
    /// memory for as long.
    pub fn hold(self: &Arc<Self>) -> InUse {
        self.holders.fetch_add(1, Ordering::AcqRel);
        InUse(Arc::clone(self))
    }
}
