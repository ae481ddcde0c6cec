//! Counts and latencies of a mount, as `larder stat` shows them.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::cache::CacheState;
use crate::options::Bytes;

/// Counts and latencies of a mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stat {
    /// Where it is mounted.
    pub(crate) mountpoint: String,
    /// Seconds since the mount.
    pub(crate) uptime_s: u64,
    /// By procedure.
    pub(crate) rpc: BTreeMap<String, Procedure>,
    /// By connection.
    pub(crate) connections: Vec<Connection>,
    /// Answers of disks that were refused: they were forged, altered, or swapped.
    #[serde(default)]
    pub(crate) forged: u64,
    /// The cache, as in [`super::Status`].
    pub(crate) cache: Option<CacheState>,
    /// Requests of the kernel, since the process that serves began.
    pub(crate) fuse: BTreeMap<String, u64>,
    /// What the kernel holds of this mount.
    pub(crate) kernel: KernelState,
}

/// The objects to which the kernel holds references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelState {
    /// References given to it since the process that serves began.
    pub(crate) given: u64,
    /// References that it gave back.
    pub(crate) returned: u64,
    /// Nodes that the client has in memory.
    pub(crate) nodes_in_memory: u64,
}

/// The cost of a procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Procedure {
    /// Calls that ended.
    pub(crate) calls: u64,
    /// Calls that failed: the server refused them, or there was no valid answer.
    pub(crate) errors: u64,
    /// Of these, calls that the server answered with a status other than success.
    #[serde(default)]
    pub(crate) refused: u64,
    /// Sendings beyond the first.
    pub(crate) retransmits: u64,
    /// Waits for a reply that ran out.
    pub(crate) timeouts: u64,
    /// Bytes sent.
    pub(crate) bytes_sent: u64,
    /// Bytes received.
    pub(crate) bytes_received: u64,
    /// From the offer to the reply.
    pub(crate) latency_us: Latency,
    /// From the last sending to the reply.
    pub(crate) round_trip_us: Latency,
}

/// A summary of durations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// All together.
    #[serde(default)]
    pub(crate) sum: u64,
    /// Mean.
    pub(crate) mean: u64,
    /// Half took at most this.
    pub(crate) p50: u64,
    /// 90 % took at most this.
    pub(crate) p90: u64,
    /// 99 % took at most this.
    pub(crate) p99: u64,
    /// None took more.
    pub(crate) max: u64,
}

/// The activity of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connection {
    /// Whether it is up.
    pub(crate) connected: bool,
    /// Calls given to it.
    pub(crate) offered: u64,
    /// Calls answered.
    pub(crate) completed: u64,
    /// Calls that wait for a reply.
    pub(crate) in_flight: u64,
    /// Calls that wait for the window.
    pub(crate) backlog: u64,
    /// Calls that may be in flight.
    pub(crate) window: u64,
    /// Sendings beyond the first.
    pub(crate) retransmits: u64,
    /// Waits for a reply that ran out.
    pub(crate) timeouts: u64,
    /// Times that it was connected again.
    pub(crate) reconnects: u64,
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>9} {:>7} {:>7} {:>10} {:>10} {:>9} {:>9} {:>9}",
            "procedure",
            "calls",
            "failed",
            "retrans",
            "sent",
            "received",
            "p50 us",
            "p99 us",
            "max us"
        )?;
        for (name, one) in &self.rpc {
            writeln!(
                f,
                "{name:<12} {:>9} {:>7} {:>7} {:>10} {:>10} {:>9} {:>9} {:>9}",
                one.calls,
                one.errors,
                one.retransmits,
                Bytes(one.bytes_sent),
                Bytes(one.bytes_received),
                one.latency_us.p50,
                one.latency_us.p99,
                one.latency_us.max
            )?;
        }
        for (number, one) in self.connections.iter().enumerate() {
            let state = if one.connected { "up" } else { "down" };
            writeln!(
                f,
                "connection {number}: {state}, {} of {} calls in flight, {} wait, {} reconnects",
                one.in_flight, one.window, one.backlog, one.reconnects
            )?;
        }
        if self.forged > 0 {
            writeln!(f, "{} answers refused: they were not the disks'", self.forged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_has_the_fields_that_other_tools_rely_on() {
        let mut stat = Stat::default();
        stat.rpc.insert("READ".to_owned(), Procedure { calls: 3, ..Procedure::default() });
        let json = serde_json::to_value(&stat).unwrap();
        for field in ["calls", "errors", "retransmits", "bytes_sent", "bytes_received"] {
            assert!(json["rpc"]["READ"][field].is_u64(), "{field}");
        }
        for field in ["p50", "p99"] {
            assert!(json["rpc"]["READ"]["latency_us"][field].is_u64(), "{field}");
        }
        assert_eq!(json["rpc"]["READ"]["calls"], 3);
    }

    #[test]
    fn answers_that_are_not_the_disks_are_told() {
        let quiet = Stat::default();
        assert!(!quiet.to_string().contains("refused"));
        let attacked = Stat { forged: 3, ..quiet };
        let told = "\n3 answers refused: they were not the disks'\n";
        assert!(attacked.to_string().ends_with(told), "{attacked}");
        assert_eq!(serde_json::to_value(&attacked).unwrap()["forged"], 3);
    }
}
