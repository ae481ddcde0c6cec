//! The locks that a kernel has on directories and files during calls about names (Linux,
//! `fs/namei.c`): it makes one change at a time in a directory, and no lookups and listings there
//! meanwhile; nothing is made in a directory while it is removed or replaced; and a file gets no
//! other name while it loses one.
//!
//! Locks are taken in one order: the directory above all others, the others by their numbers, and
//! then what the call is about. A call that holds one waits for none before it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use larder_vfs::Ino;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// The locks of one client.
#[derive(Debug, Default)]
pub(crate) struct Kernel(Mutex<BTreeMap<Ino, Arc<RwLock<()>>>>);

/// Held by a change of names.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    kernel: &'a Kernel,
    held: BTreeMap<Ino, OwnedRwLockWriteGuard<()>>,
}

impl Kernel {
    fn lock(&self, ino: Ino) -> Arc<RwLock<()>> {
        Arc::clone(self.0.lock().unwrap().entry(ino).or_default())
    }

    /// For a lookup in a directory, or its listing.
    pub(crate) async fn look(&self, dir: Ino) -> OwnedRwLockReadGuard<()> {
        self.lock(dir).read_owned().await
    }

    /// For a change of names in these directories. `top` is above all others.
    pub(crate) async fn change(&self, top: Ino, dirs: &[Ino]) -> Changing<'_> {
        let mut changing = Changing { kernel: self, held: BTreeMap::new() };
        for dir in ordered(top, dirs) {
            changing.take(dir).await;
        }
        changing
    }
}

impl Changing<'_> {
    /// Also locks what loses or gets a name. Each directory and file is locked once.
    pub(crate) async fn with(&mut self, objects: impl IntoIterator<Item = Ino>) {
        let mut objects: Vec<Ino> = objects.into_iter().collect();
        objects.sort_unstable();
        for object in objects {
            self.take(object).await;
        }
    }

    async fn take(&mut self, ino: Ino) {
        if !self.held.contains_key(&ino) {
            self.held.insert(ino, self.kernel.lock(ino).write_owned().await);
        }
    }
}

/// The order in which directories are locked.
fn ordered(top: Ino, dirs: &[Ino]) -> Vec<Ino> {
    let mut dirs = dirs.to_vec();
    dirs.sort_unstable_by_key(|dir| (*dir != top, *dir));
    dirs
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const TOP: Ino = Ino(5);
    const LOW: Ino = Ino(3);
    const HIGH: Ino = Ino(8);
    const FILE: Ino = Ino(4);

    fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    #[test]
    fn changes_are_alone_in_a_directory_and_lookups_are_not() {
        let kernel = Kernel::default();
        let looks = [ready(kernel.look(LOW)).unwrap(), ready(kernel.look(LOW)).unwrap()];
        assert!(ready(kernel.change(TOP, &[LOW])).is_none());
        assert!(ready(kernel.change(TOP, &[HIGH])).is_some());
        drop(looks);
        let change = ready(kernel.change(TOP, &[LOW, LOW])).unwrap();
        assert!(ready(kernel.look(LOW)).is_none());
        assert!(ready(kernel.change(TOP, &[LOW])).is_none());
        drop(change);
        assert!(ready(kernel.look(LOW)).is_some());
    }

    #[test]
    fn what_loses_its_name_is_locked_with_its_directory() {
        let kernel = Kernel::default();
        let mut removal = ready(kernel.change(TOP, &[TOP])).unwrap();
        let linked = ready(kernel.change(TOP, &[LOW])).unwrap();
        assert!(ready(removal.with([LOW])).is_none(), "something is being made in it");
        drop(linked);
        assert!(ready(removal.with([LOW, FILE])).is_some());
        assert!(ready(kernel.change(TOP, &[LOW])).is_none());
        assert!(ready(ready(kernel.change(TOP, &[HIGH])).unwrap().with([FILE])).is_none());
        drop(removal);
        assert!(ready(ready(kernel.change(TOP, &[LOW])).unwrap().with([FILE])).is_some());
    }

    /// Whichever directories calls name in which order: whoever waits for a lock holds no later
    /// one, so no two calls wait for each other.
    #[test]
    fn no_two_calls_wait_for_each_other() {
        let rank = |ino: Ino| [TOP, LOW, HIGH].iter().position(|one| *one == ino).unwrap();
        for from in [TOP, LOW, HIGH] {
            for to in [TOP, LOW, HIGH] {
                let order: Vec<usize> = ordered(TOP, &[from, to]).into_iter().map(rank).collect();
                assert!(order.is_sorted(), "{from:?} {to:?}: {order:?}");
            }
        }
    }
}
