//! How many references the kernel holds to each inode: it gains one with each entry that it is given, and
//! says when it gives some back. The file system is told when the last one has gone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_vfs::Ino;

/// Locks that share the work, so that threads seldom wait for each other.
const SHARDS: usize = 16;

/// A table that is mostly empty gives its memory back if it has more places than this.
const CAPACITY_KEPT: usize = 1024;

/// References of the kernel, by inode.
#[derive(Default)]
pub(crate) struct Lookups {
    shards: [Mutex<HashMap<Ino, u64>>; SHARDS],
    gained: AtomicU64,
    forgotten: AtomicU64,
}

impl Lookups {
    /// The kernel is about to get an entry of `ino`.
    pub(crate) fn gain(&self, ino: Ino) {
        self.gained.fetch_add(1, Ordering::Relaxed);
        *self.shard(ino).entry(ino).or_default() += 1;
    }

    /// The kernel gives back `count`. Whether they were the last ones. Those that it holds from before
    /// our process began are not in the table: then what it says is believed.
    pub(crate) fn forget(&self, ino: Ino, count: u64) -> bool {
        self.forgotten.fetch_add(count, Ordering::Relaxed);
        let mut shard = self.shard(ino);
        match shard.entry(ino) {
            Entry::Occupied(mut held) if *held.get() > count => {
                *held.get_mut() -= count;
                return false;
            }
            Entry::Occupied(held) => drop(held.remove()),
            Entry::Vacant(_) => {}
        }
        if shard.capacity() > CAPACITY_KEPT && shard.len() < shard.capacity() / 4 {
            let wanted = shard.len() * 2;
            shard.shrink_to(wanted);
        }
        true
    }

    /// Inodes that the kernel holds references to, references it was given, and those it gave back.
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let inodes = self.shards.iter().map(|shard| lock(shard).len() as u64).sum();
        (inodes, self.gained.load(Ordering::Relaxed), self.forgotten.load(Ordering::Relaxed))
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<Ino, u64>> {
        lock(&self.shards[(ino.0 % SHARDS as u64) as usize])
    }
}

fn lock(shard: &Mutex<HashMap<Ino, u64>>) -> MutexGuard<'_, HashMap<Ino, u64>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reference_is_told() {
        let lookups = Lookups::default();
        for ino in [5, 5, 5, 21] {
            lookups.gain(Ino(ino));
        }
        assert!(!lookups.forget(Ino(5), 2));
        assert!(lookups.forget(Ino(5), 1));
        assert_eq!(lookups.totals(), (1, 4, 3));
        assert!(lookups.forget(Ino(21), 1));
        assert!(lookups.forget(Ino(9), 4), "held from before our time");
        assert_eq!(lookups.totals().0, 0);
    }
}
