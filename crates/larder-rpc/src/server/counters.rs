//! Counts of served calls, by procedure. They are atomics that are only ever added to, so they cost
//! next to nothing and a snapshot needs no lock; its figures may be some calls apart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::program::Program;

/// Counts of served calls since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Procedures of each program by number, in the order of the service's programs.
    pub programs: Vec<Vec<ProcedureStats>>,
    /// Calls answered from the duplicate request cache.
    pub replayed: u64,
    /// Calls dropped because the same call was being executed.
    pub dropped: u64,
    /// Messages that were not calls, called no procedure of ours, or could not be decoded.
    pub refused: u64,
    /// TCP connections accepted.
    pub connections: u64,
    /// Calls to clients that ended, with or without results.
    pub callbacks: u64,
    /// Calls to clients that ended without results.
    pub callbacks_failed: u64,
    /// Replies of clients that belong to no call.
    pub stray_replies: u64,
}

/// Counts of calls to clients, on all connections.
#[derive(Debug, Default)]
pub(crate) struct CallbackCounts {
    pub(crate) calls: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) strays: AtomicU64,
}

/// Counts of one procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStats {
    /// Its name.
    pub name: &'static str,
    /// Calls, including retransmissions.
    pub calls: u64,
    /// Calls answered with a status other than success.
    pub errors: u64,
    /// Bytes of calls, without record marks.
    pub bytes_in: u64,
    /// Bytes of replies, with record marks.
    pub bytes_out: u64,
}

/// The counters.
#[derive(Debug)]
pub(crate) struct Counters {
    /// In the order of the service's programs.
    programs: Vec<Vec<Procedure>>,
    pub(crate) replayed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) connections: AtomicU64,
}

#[derive(Debug)]
struct Procedure {
    name: &'static str,
    calls: AtomicU64,
    errors: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

impl Counters {
    pub(crate) fn new(programs: &[Program]) -> Counters {
        let of = |one: &Program| one.procedures.iter().map(|name| Procedure::new(name)).collect();
        Counters {
            programs: programs.iter().map(of).collect(),
            replayed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            connections: AtomicU64::new(0),
        }
    }

    /// A call to the program at `index` arrived.
    pub(crate) fn call(&self, index: usize, procedure: u32, bytes: usize) {
        if let Some(counted) = self.of(index, procedure) {
            counted.calls.fetch_add(1, Relaxed);
            counted.bytes_in.fetch_add(bytes as u64, Relaxed);
        }
    }

    /// It was answered.
    pub(crate) fn reply(&self, index: usize, procedure: u32, bytes: usize, failed: bool) {
        if let Some(counted) = self.of(index, procedure) {
            counted.bytes_out.fetch_add(bytes as u64, Relaxed);
            counted.errors.fetch_add(u64::from(failed), Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let of = |one: &Vec<Procedure>| one.iter().map(Procedure::snapshot).collect();
        Stats {
            programs: self.programs.iter().map(of).collect(),
            replayed: self.replayed.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            refused: self.refused.load(Relaxed),
            connections: self.connections.load(Relaxed),
            ..Stats::default()
        }
    }

    fn of(&self, index: usize, procedure: u32) -> Option<&Procedure> {
        self.programs.get(index)?.get(procedure as usize)
    }
}

impl Procedure {
    fn new(name: &'static str) -> Procedure {
        Procedure {
            name,
            calls: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }

    fn snapshot(&self) -> ProcedureStats {
        ProcedureStats {
            name: self.name,
            calls: self.calls.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
        }
    }
}
