//! The open files of a mount, by number and by file. Its lock is held briefly, and no other is
//! taken under it except that of a token.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_class::Level;
use larder_vfs::{Ino, OpenId, Token};

use super::open_file::OpenFile;
use crate::class::Wanted;
use crate::node::Node;

/// All open files.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    by_id: HashMap<OpenId, Arc<OpenFile>>,
    /// The same, ordered by file, so that the open files of one file are found without a scan.
    by_ino: BTreeSet<(Ino, OpenId)>,
}

impl Inner {
    /// The open files of one file, in the order in which they were opened.
    fn of(&self, ino: Ino) -> impl Iterator<Item = (OpenId, &Arc<OpenFile>)> {
        let ids = self.by_ino.range((ino, OpenId(0))..=(ino, OpenId(u64::MAX)));
        ids.filter_map(|(_, id)| {
            let open = self.by_id.get(id);
            debug_assert!(open.is_some(), "a number that a file has is that of an open file");
            Some((*id, open?))
        })
    }
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was opened.
    pub(crate) fn insert(&self, id: OpenId, open: Arc<OpenFile>) {
        let mut inner = self.lock();
        inner.by_ino.insert((open.node.ino, id));
        let earlier = inner.by_id.insert(id, open);
        debug_assert!(earlier.is_none(), "a number of an open file is given once");
    }

    /// It is released. `None` if it was before.
    pub(super) fn remove(&self, id: OpenId) -> Option<Arc<OpenFile>> {
        let mut inner = self.lock();
        let open = inner.by_id.remove(&id)?;
        inner.by_ino.remove(&(open.node.ino, id));
        debug_assert_eq!(inner.by_id.len(), inner.by_ino.len());
        Some(open)
    }

    /// An open at the server by which a file's bytes can be read, or written.
    pub(crate) fn token(&self, ino: Ino, writes: bool) -> Option<Token> {
        let inner = self.lock();
        let serves = |open: &OpenFile| if writes { open.flags.write } else { open.flags.read };
        let opens = inner.of(ino).map(|(_, open)| open);
        opens.filter(|open| serves(open)).find_map(|open| open.token())
    }

    /// The open file with this number.
    pub(super) fn get(&self, id: OpenId) -> Option<Arc<OpenFile>> {
        self.lock().by_id.get(&id).cloned()
    }

    /// The open file that this request made. Looks at all.
    pub(super) fn by_request(&self, request: u64) -> Option<(OpenId, Arc<OpenFile>)> {
        let inner = self.lock();
        let mut all = inner.by_id.iter();
        let found = all.find(|(_, open)| open.cred.request == request);
        found.map(|(id, open)| (*id, open.clone()))
    }

    /// The strongest level that an fsync waits for, among the classes of the open files that may
    /// write the file; `None`: there are none.
    pub(crate) fn strongest_fsync(&self, ino: Ino) -> Option<Option<Level>> {
        let inner = self.lock();
        let writers = inner.of(ino).map(|(_, open)| open).filter(|open| open.flags.write);
        writers.map(|open| open.class().promised.fsync).max()
    }

    /// Where all want a file's bytes who have it open for writing.
    pub(crate) fn wanted(&self, ino: Ino) -> Wanted {
        let inner = self.lock();
        let writers = inner.of(ino).map(|(_, open)| open).filter(|open| open.flags.write);
        writers.map(|open| Wanted::by(&open.class())).fold(Wanted::Nowhere, Wanted::and)
    }

    /// Within which time what was written to a file is to be in the archive, if one of the classes
    /// of the open files that may have written it says so.
    pub(crate) fn archive_within(&self, ino: Ino) -> Option<Duration> {
        let inner = self.lock();
        let writers = inner.of(ino).map(|(_, open)| open).filter(|open| open.flags.write);
        writers.filter_map(|open| open.class().archive_within()).min()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        self.lock().by_id.values().cloned().collect()
    }

    /// Those that have a hidden name in this directory, or may have one.
    pub(crate) fn hidden_in(&self, dir: &Node) -> Vec<Arc<OpenFile>> {
        if dir.state().hidden().inside().is_empty() {
            return Vec::new();
        }
        let mut open = self.all();
        open.retain(|open| {
            let names = open.node.state().hidden().names_to_remove();
            names.iter().any(|(at, _)| *at == dir.ino)
        });
        open
    }

    /// The open files of one file, in the order in which they were opened.
    pub(crate) fn of(&self, ino: Ino) -> Vec<(OpenId, Arc<OpenFile>)> {
        self.lock().of(ino).map(|(id, open)| (id, open.clone())).collect()
    }

    /// Whether one of those of a file is as wanted. Asked under the lock.
    pub(crate) fn any_of(&self, ino: Ino, is_wanted: impl Fn(&OpenFile) -> bool) -> bool {
        self.lock().of(ino).any(|(_, open)| is_wanted(open))
    }
}
