//! Counts of served calls, by program.

use larder_rpc::server::ProcedureStats;

/// Counts of served calls since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Procedures of NFS, by number.
    pub nfs: Vec<ProcedureStats>,
    /// Procedures of MOUNT, by number.
    pub mount: Vec<ProcedureStats>,
    /// Calls answered from the duplicate request cache.
    pub replayed: u64,
    /// Calls dropped because the same call was being executed.
    pub dropped: u64,
    /// Messages that were not calls, called no procedure of ours, or could not be decoded.
    pub refused: u64,
    /// TCP connections accepted.
    pub connections: u64,
}

impl Stats {
    /// All calls of NFS.
    pub fn nfs_calls(&self) -> u64 {
        self.nfs.iter().map(|procedure| procedure.calls).sum()
    }
}

impl From<larder_rpc::server::Stats> for Stats {
    /// The programs are those of [`crate::service::PROGRAMS`].
    fn from(stats: larder_rpc::server::Stats) -> Stats {
        // This server does not call its clients.
        let larder_rpc::server::Stats { programs, replayed, dropped, refused, connections, .. } =
            stats;
        let mut programs = programs.into_iter();
        let mut next = || programs.next().unwrap_or_default();
        Stats { nfs: next(), mount: next(), replayed, dropped, refused, connections }
    }
}
