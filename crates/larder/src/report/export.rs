//! An export's reports of itself.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CacheState, Procedure};
use crate::options::Bytes;

/// An export's own counts of what it served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportStat {
    /// Where it listens.
    pub(crate) listen: String,
    /// The directory, or the source.
    pub(crate) dir: String,
    /// Process of the export.
    pub(crate) pid: u32,
    /// Seconds since it began.
    pub(crate) uptime_s: u64,
    /// By procedure of NFS.
    pub(crate) rpc: BTreeMap<String, Served>,
    /// By procedure of MOUNT.
    pub(crate) mount: BTreeMap<String, Served>,
    /// Calls answered by the reply to the same call, sent before.
    pub(crate) replayed: u64,
    /// Calls dropped because the same one was being carried out.
    pub(crate) dropped: u64,
    /// Messages that were no call of ours.
    pub(crate) refused: u64,
    /// Connections that were made, over TCP.
    pub(crate) connections: u64,
    /// What is behind it, if it is not a directory of this machine.
    pub(crate) behind: Option<Behind>,
}

/// The server and cache behind an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Behind {
    /// Calls to the server, by procedure.
    pub(crate) rpc: BTreeMap<String, Procedure>,
    /// The cache on disk.
    pub(crate) cache: Option<CacheState>,
}

/// Calls served of a procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Served {
    /// Calls that came, sent again or not.
    pub(crate) calls: u64,
    /// Calls answered with a status other than success.
    pub(crate) errors: u64,
    /// Bytes of replies.
    pub(crate) bytes_sent: u64,
    /// Bytes of calls.
    pub(crate) bytes_received: u64,
}

impl fmt::Display for ExportStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["procedure", "calls", "failed", "sent", "received"];
        let [procedure, calls, failed, sent, received] = columns;
        writeln!(f, "{procedure:<12} {calls:>9} {failed:>7} {sent:>10} {received:>10}")?;
        let mount = self.mount.iter().map(|(name, one)| (format!("MOUNT {name}"), one));
        for (name, one) in self.rpc.iter().map(|(name, one)| (name.clone(), one)).chain(mount) {
            let Served { calls, errors, .. } = one;
            let (sent, received) = (Bytes(one.bytes_sent), Bytes(one.bytes_received));
            writeln!(f, "{name:<12} {calls:>9} {errors:>7} {sent:>10} {received:>10}")?;
        }
        let ExportStat { replayed, dropped, refused, connections, .. } = self;
        writeln!(
            f,
            "{connections} connections; {replayed} calls answered again, {dropped} dropped, {refused} refused"
        )?;
        let Some(Behind { rpc, cache }) = &self.behind else { return Ok(()) };
        writeln!(f, "asked of {}:", self.dir)?;
        for (name, Procedure { calls, errors, bytes_sent, bytes_received, .. }) in rpc {
            let (sent, received) = (Bytes(*bytes_sent), Bytes(*bytes_received));
            writeln!(f, "{name:<12} {calls:>9} {errors:>7} {sent:>10} {received:>10}")?;
        }
        let Some(cache) = cache else { return Ok(()) };
        writeln!(f, "cache: {} in {} files at {}", Bytes(cache.bytes), cache.files, cache.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_a_mount() {
        let mut stat = ExportStat::default();
        stat.rpc.insert("READ".to_owned(), Served { calls: 3, ..Served::default() });
        stat.mount.insert("MNT".to_owned(), Served::default());
        let json = serde_json::to_value(&stat).unwrap();
        for field in ["calls", "errors", "bytes_sent", "bytes_received"] {
            assert!(json["rpc"]["READ"][field].is_u64(), "{field}");
            assert!(json["mount"]["MNT"][field].is_u64(), "{field}");
        }
        let shown = stat.to_string();
        assert!(shown.lines().any(|line| line.starts_with("READ  ")), "{shown}");
        assert!(shown.lines().any(|line| line.starts_with("MOUNT MNT ")), "{shown}");
    }
}
