//! All tests share the kernel's memory of files. Those that count the kernel's requests keep others
//! from emptying it.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a test does with the kernel's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It counts requests that depend on it.
    Counts,
    /// It empties it.
    Forgets,
    /// It does both.
    Both,
}

impl Use {
    /// Whether two tests may do so at the same time.
    fn goes_with(self, other: Use) -> bool {
        self == other && self != Use::Both
    }
}

/// Those that use it and those that wait, in the order in which they came.
struct Users {
    next: u64,
    by_turn: BTreeMap<u64, Use>,
}

static USERS: Mutex<Users> = Mutex::new(Users { next: 0, by_turn: BTreeMap::new() });
static ONE_LESS: Condvar = Condvar::new();

fn users() -> MutexGuard<'static, Users> {
    USERS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Turn(u64);

impl Turn {
    /// Waits for all that came before and do not go with it.
    fn wait(wanted: Use) -> Turn {
        let mut guard = users();
        let turn = guard.next;
        guard.next += 1;
        guard.by_turn.insert(turn, wanted);
        let must_wait =
            |users: &mut Users| users.by_turn.range(..turn).any(|(_, it)| !it.goes_with(wanted));
        drop(ONE_LESS.wait_while(guard, must_wait).unwrap_or_else(PoisonError::into_inner));
        Turn(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        users().by_turn.remove(&self.0);
        ONE_LESS.notify_all();
    }
}

/// No test empties the kernel's memory while this is held.
pub(crate) struct Remembers(#[expect(dead_code, reason = "held")] Turn);

/// Waits until no test empties the kernel's memory. What this returns is not to be held where
/// [`Mount::remount`](crate::harness::Mount::remount) is called.
pub(crate) fn kernel_remembers() -> Remembers {
    Remembers(Turn::wait(Use::Counts))
}

/// Permission to empty the kernel's memory, and to run programs that do. Not to be held where
/// another one is waited for.
pub(crate) struct MayForget(#[expect(dead_code, reason = "held")] Turn);

impl MayForget {
    /// Waits until no test counts.
    pub(crate) fn now() -> MayForget {
        MayForget(Turn::wait(Use::Forgets))
    }

    /// For a test that counts, too: waits until no other one counts or empties it.
    pub(crate) fn alone() -> MayForget {
        MayForget(Turn::wait(Use::Both))
    }

    /// Empties it of unused names and inodes.
    pub(crate) fn names(&self) {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }

    /// Empties it of file data, too.
    pub(crate) fn everything(&self) {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }
}
