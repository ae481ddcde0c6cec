//! Supplementary groups of the calling process.
//!
//! A request carries the caller's fsuid, fsgid and thread id, not its groups: those are read from
//! `/proc/<id>/status` and cached for [`TTL`] under (thread, uid, gid).
//!
//! Limits: a thread that calls setgroups(2) counts with its old groups for up to [`TTL`], and so
//! does a new thread that was given the same number with the same uid and gid. A caller in a
//! process namespace that we cannot see has number 0, and no groups.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_io::{Clock, Monotonic};
use larder_vfs::Cred;

/// How long groups are believed.
const TTL: Duration = Duration::from_secs(1);

/// Most threads whose groups are remembered; when there are more, all are forgotten.
const KNOWN_LEN_MAX: usize = 1024;

/// Reads and remembers groups.
pub(crate) struct Groups {
    clock: Arc<dyn Clock>,
    known: Mutex<HashMap<Key, Known>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: u32,
    uid: u32,
    gid: u32,
}

struct Known {
    groups: Arc<[u32]>,
    until: Monotonic,
}

impl Groups {
    /// Nothing is known yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Groups {
        Groups { clock, known: Mutex::default() }
    }

    /// The full credentials of a caller. May read a file of procfs; never waits for anything else.
    pub(crate) fn cred(&self, pid: u32, uid: u32, gid: u32) -> Cred {
        let groups = self.groups(Key { pid, uid, gid });
        Cred { uid, gid, groups, pid, retried: false, request: 0, deadline: None }
    }

    fn groups(&self, key: Key) -> Arc<[u32]> {
        let now = self.clock.now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hit) = known.get(&key).filter(|hit| now < hit.until) {
            return Arc::clone(&hit.groups);
        }
        if known.len() >= KNOWN_LEN_MAX {
            known.clear();
        }
        // Still under the lock: the file is short, and two threads that ask for the same caller
        // should not both read it.
        let groups = read(key.pid);
        known.insert(key, Known { groups: Arc::clone(&groups), until: now + TTL });
        groups
    }
}

fn read(pid: u32) -> Arc<[u32]> {
    if pid == 0 {
        return Arc::default();
    }
    // A caller that is gone is not waiting for the answer either.
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    parse(&status)
}

fn parse(status: &[u8]) -> Arc<[u32]> {
    status
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .unwrap_or_default()
        .split(u8::is_ascii_whitespace)
        .filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use larder_io::SimClock;

    use super::*;

    #[test]
    fn the_line_is_found() {
        assert_eq!(
            *parse(b"Name:\tGroups: 9\nGid:\t5\nGroups:\t4 24 1000 \nX:\t1\n"),
            [4, 24, 1000]
        );
        assert_eq!(*parse(b"Groups:\t \n"), []);
        assert_eq!(*parse(b""), []);
    }

    #[test]
    fn own_groups_are_read_and_expire() {
        let clock = Arc::new(SimClock::new());
        let groups = Groups::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let pid = std::process::id();
        let first = groups.cred(pid, 1, 2);
        assert_eq!((first.uid, first.gid, first.pid), (1, 2, pid));
        assert!(Arc::ptr_eq(&first.groups, &groups.cred(pid, 1, 2).groups));
        clock.advance(TTL);
        assert!(
            first.groups.is_empty() || !Arc::ptr_eq(&first.groups, &groups.cred(pid, 1, 2).groups)
        );
    }

    #[test]
    fn memory_is_bounded() {
        let groups = Groups::new(Arc::new(SimClock::new()));
        for uid in 0..3 * KNOWN_LEN_MAX as u32 {
            groups.cred(0, uid, 0);
        }
        assert!(groups.known.lock().unwrap().len() <= KNOWN_LEN_MAX);
    }
}
