//! A daemon's reports of its mount or export, and their form for people.
//!
//! [`Status`], [`Stat`] and [`ExportStat`] are an interface: other tools read their JSON. Fields
//! may be added, not renamed. All counts run since the mount was made or the export began.

mod archive;
mod cache;
mod class;
mod conflict;
pub(crate) mod disk;
mod explained;
mod export;
mod hoard;
mod leaving;
mod loss;
pub(crate) mod prometheus;
mod remade;
mod server;
mod stat;

use std::fmt::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::options::Bytes;
use larder_client::UnsentTotal;

pub(crate) use archive::ArchiveStatus;
pub(crate) use cache::CacheState;
pub(crate) use class::{ClassShown, Durable, Unsaved};
pub(crate) use conflict::Conflict;
pub(crate) use explained::{ArchiveKnown, Explained, StoredAt, promised_levels};
pub(crate) use export::{Behind, ExportStat, Served};
pub(crate) use hoard::HoardedTree;
pub(crate) use loss::{LossTold, LostFile};
pub(crate) use remade::{Rebuild, Remade, StaysLost};
pub(crate) use server::{DiskServed, DiskStatus, ServerStatus, Standby, VolumeStatus};
pub(crate) use stat::{Connection, KernelState, Latency, Procedure, Stat};

/// A limit that is as large as this counts as none: the free space of the disk decides then.
const BYTES_UNLIMITED: u64 = 1 << 50;

/// Most conflicts in a status: an answer is one line of bounded length.
pub(crate) const CONFLICTS_TOLD_MAX: usize = 64;

/// Most conflicts that are listed for people.
const CONFLICTS_MAX: usize = 10;

/// State of a mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Where it is mounted.
    pub(crate) mountpoint: String,
    /// Where an export listens; then there is no mountpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    /// What is mounted, or exported.
    pub(crate) source: String,
    /// The options that it was mounted with, as they were typed.
    #[serde(default)]
    pub(crate) options: Vec<String>,
    /// How its daemon does.
    pub(crate) state: State,
    /// Process of the daemon: the supervisor's, if there is one.
    pub(crate) pid: u32,
    /// Process that answers.
    pub(crate) worker_pid: u32,
    /// Process that keeps the mount when the worker dies, if there is one.
    pub(crate) supervisor_pid: Option<u32>,
    /// Workers that died since the mount.
    pub(crate) restarts: u64,
    /// How requests travel from the kernel: `dev` or `uring`.
    pub(crate) transport: String,
    /// Version of the program that serves.
    pub(crate) version: String,
    /// Where the daemon logs.
    pub(crate) log: Option<String>,
    /// Seconds since the mount.
    pub(crate) uptime_s: u64,
    /// The server.
    pub(crate) server: ServerState,
    /// Reads and opens.
    pub(crate) reads: Reads,
    /// Completing files that were read in part.
    #[serde(default)]
    pub(crate) fill: Fill,
    /// Pinned trees that are kept whole and fresh.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) hoard: Vec<HoardedTree>,
    /// Data that waits to be written back.
    pub(crate) dirty: Dirty,
    /// What was done here and could not be done so at the server, until a user clears it. A daemon
    /// tells [`CONFLICTS_TOLD_MAX`] at most in one answer; [`crate::control::Request::Conflicts`]
    /// lists all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conflicts: Vec<Conflict>,
    /// How many there are; of a daemon of an earlier version 0.
    #[serde(default)]
    pub(crate) conflicts_total: u64,
    /// What is made again, if the mount does that by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rebuild: Option<Rebuild>,
    /// Files that are lost, and could not be made again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stay_lost: Vec<StaysLost>,
    /// The cache; `None` without one on disk, or if its state is unknown.
    pub(crate) cache: Option<CacheState>,
    /// Bytes of memory that the daemon occupies.
    pub(crate) memory_bytes: u64,
    /// All procedures together.
    pub(crate) rpc: RpcTotal,
}

/// How a daemon does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// It answers.
    Mounted,
    /// Nothing is mounted yet: it tries to reach the server.
    Trying,
    /// Its workers died again and again: every call fails.
    Failed,
    /// It is out of the name space, and still served for processes that have files open, or see it
    /// in another name space.
    Detached,
    /// It listens, but does not answer in time.
    Hung,
    /// The daemon is dead, and the mount is still there.
    #[default]
    Dead,
}

/// The server as the daemon sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerState {
    /// Whether it answered last time.
    pub(crate) reachable: bool,
    /// Why the server has not been reached since the worker began, if that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
    /// Nothing is sent to it, because a user wants that (`larder offline`).
    #[serde(default)]
    pub(crate) offline: bool,
    /// How many bytes per second it gets without a caller that waits for them, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second_max: Option<u64>,
    /// `tcp` or `udp`.
    pub(crate) transport: String,
    /// Connections that are up.
    pub(crate) connected: u64,
}

/// Where reads were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reads {
    /// Bytes from the cache, including those that readahead fetched just before. Reads by the
    /// kernel itself are not included: it does not report how much it reads.
    pub(crate) bytes_cached: u64,
    /// Bytes from the server.
    pub(crate) bytes_remote: u64,
    /// Opens that handed the local file to the kernel.
    pub(crate) opens_passthrough: u64,
    /// Other opens.
    pub(crate) opens_other: u64,
    /// Opens for reading of files that are not empty.
    #[serde(default)]
    pub(crate) opens_for_reading: u64,
    /// Of these, the opens that found every byte of the file's present version in the cache.
    #[serde(default)]
    pub(crate) opens_of_whole_files: u64,
    /// Files open now.
    pub(crate) open_files: u64,
}

/// Completing files that were read in part while the link is quiet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fill {
    /// Files up to this size are completed; absent if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_max: Option<u64>,
    /// Files that lack something.
    pub(crate) files_waiting: u64,
    /// Bytes that were fetched in this way.
    pub(crate) bytes: u64,
}

/// What the server does not have yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dirty {
    /// Files with such bytes.
    pub(crate) files: u64,
    /// The bytes.
    pub(crate) bytes: u64,
    /// There may be fewer: for files that the kernel writes itself the whole size is counted.
    #[serde(default)]
    pub(crate) bytes_is_bound: bool,
    /// For how many seconds the oldest byte has waited; for what an earlier process left, since
    /// this one began.
    #[serde(default)]
    pub(crate) oldest_s: Option<u64>,
}

impl From<UnsentTotal> for Dirty {
    fn from(UnsentTotal { files, bytes, is_bound, oldest }: UnsentTotal) -> Dirty {
        let oldest_s = oldest.map(|time| time.as_secs());
        Dirty { files, bytes, bytes_is_bound: is_bound, oldest_s }
    }
}

/// Answer to [`crate::control::Request::Sync`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Synced {
    /// What the server lacked before.
    pub(crate) before: Dirty,
    /// What it lacks now.
    pub(crate) left: Dirty,
    /// Why, if something could not be sent.
    pub(crate) refused: Option<String>,
    /// How many conflicts were found by that; of a daemon of an earlier version 0.
    #[serde(default)]
    pub(crate) conflicts: u64,
}

/// Answer to [`crate::control::Request::Limit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limited {
    /// How many bytes per second are sent without a caller that waits for them; `None`: as many as
    /// the server takes.
    pub(crate) bytes_per_second: Option<u64>,
}

/// Answer to [`crate::control::Request::Offline`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offline {
    /// The server does not answer.
    pub(crate) is_away: bool,
    /// What it got, and what it lacks.
    pub(crate) synced: Synced,
    /// The conflicts that were found by that. A daemon tells [`CONFLICTS_TOLD_MAX`] at most in one
    /// answer.
    pub(crate) conflicts: Vec<Conflict>,
    /// How many there are; of a daemon of an earlier version 0.
    #[serde(default)]
    pub(crate) conflicts_total: u64,
}

impl fmt::Display for Dirty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = if self.bytes_is_bound { "at most " } else { "" };
        write!(f, "{most}{} in {} files", Bytes(self.bytes), self.files)
    }
}

/// All procedures together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RpcTotal {
    /// Calls that ended.
    pub(crate) calls: u64,
    /// Calls that failed: the server refused them, or there was no valid answer.
    pub(crate) errors: u64,
    /// Of these, calls that the server answered with a status other than success.
    #[serde(default)]
    pub(crate) refused: u64,
    /// Sendings beyond the first.
    pub(crate) retransmits: u64,
    /// Bytes sent.
    pub(crate) bytes_sent: u64,
    /// Bytes received.
    pub(crate) bytes_received: u64,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, pid) = (&self.mountpoint, self.pid);
        match &self.listen {
            Some(listen) => writeln!(f, "export at {listen}")?,
            None => writeln!(f, "{at}")?,
        }
        writeln!(f, "  source   {}", self.source)?;
        if !self.options.is_empty() {
            writeln!(f, "  options  {}", self.options.join(","))?;
        }
        match self.state {
            State::Dead => {
                writeln!(f, "  state    its daemon (process {pid}) is dead: larder umount {at}")?;
            }
            State::Failed => {
                writeln!(
                    f,
                    "  state    its workers died again and again ({}): every call fails",
                    self.restarts
                )?;
                writeln!(f, "  next     see the log, then: larder upgrade {at}")?;
            }
            State::Hung => writeln!(f, "  state    its daemon (process {pid}) does not answer")?,
            State::Detached => {
                writeln!(f, "  state    detached: process {pid} serves whoever still has it")?;
                writeln!(f, "  next     to end it: larder umount --pid {pid}")?;
            }
            State::Trying => {
                let since = Span(Duration::from_secs(self.uptime_s));
                let problem = self.server.problem.as_deref().unwrap_or("not tried yet");
                writeln!(f, "  state    not mounted yet, trying for {since} (process {pid})")?;
                writeln!(f, "  problem  {problem}")?;
            }
            State::Mounted => self.fmt_live(f)?,
        }
        if let Some(log) = &self.log {
            writeln!(f, "  log      {log}")?;
        }
        Ok(())
    }
}

impl Status {
    /// How many conflicts there are.
    pub(crate) fn count_conflicts(&self) -> u64 {
        self.conflicts_total.max(self.conflicts.len() as u64)
    }

    fn fmt_live(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = Span(Duration::from_secs(self.uptime_s));
        let memory = Bytes(self.memory_bytes);
        let worker = self.worker_pid;
        let how = if self.listen.is_some() { "exported" } else { "mounted" };
        writeln!(f, "  state    {how} for {up} by process {worker}, {memory} of memory")?;
        match self.supervisor_pid {
            _ if self.listen.is_some() => {}
            Some(keeper) => {
                writeln!(f, "  keeper   process {keeper}; {} worker(s) died", self.restarts)?;
            }
            None => writeln!(f, "  keeper   none: the mount ends with its process")?,
        }
        let answers = match (self.server.offline, self.server.reachable) {
            (true, _) => "is not asked (larder offline)",
            (false, true) => "answers",
            (false, false) => "does not answer",
        };
        let (count, transport) = (self.server.connected, &self.server.transport);
        writeln!(f, "  server   {answers}; {count} {transport} connection(s)")?;
        if let Some(problem) = &self.server.problem {
            writeln!(f, "           {problem}")?;
        }
        self.fmt_cache(f)?;
        if self.dirty.files > 0 {
            writeln!(f, "  dirty    {} wait for the server", self.dirty)?;
        }
        if let Some(rate) = self.server.bytes_per_second_max {
            let rate = Bytes(rate);
            writeln!(f, "  limit    {rate} per second of what no process waits for")?;
        }
        let at = if self.listen.is_some() { "" } else { self.mountpoint.as_str() };
        for conflict in self.conflicts.iter().take(CONFLICTS_MAX) {
            writeln!(f, "  conflict {}", conflict.clone().at(at).numbered())?;
        }
        let more = self.count_conflicts().saturating_sub(CONFLICTS_MAX as u64);
        if more > 0 {
            writeln!(f, "  conflict and {more} more: larder conflicts {at}")?;
        }
        if let Some(rebuild) = self.rebuild.filter(|rebuild| *rebuild != Rebuild::default()) {
            let Rebuild { made, running, waiting } = rebuild;
            writeln!(f, "  rebuild  {made} made again, {running} being made, {waiting} waiting")?;
        }
        for StaysLost { path, why } in &self.stay_lost {
            writeln!(f, "  lost     {path}: {why}")?;
        }
        let RpcTotal { calls, errors, refused, retransmits, .. } = self.rpc;
        let (sent, received) = (Bytes(self.rpc.bytes_sent), Bytes(self.rpc.bytes_received));
        writeln!(
            f,
            "  rpc      {calls} calls, {errors} failed ({refused} refused by the server), {retransmits} sent again"
        )?;
        writeln!(f, "  traffic  {sent} sent, {received} received")
    }

    fn fmt_cache(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cache) = &self.cache else {
            return writeln!(f, "  cache    none on disk");
        };
        let most = match cache.bytes_max {
            BYTES_UNLIMITED.. => String::new(),
            most => format!(" of {}", Bytes(most)),
        };
        let (bytes, files, dir) = (Bytes(cache.bytes), cache.files, &cache.dir);
        writeln!(f, "  cache    {bytes}{most} in {files} files at {dir}")?;
        if cache.failed {
            writeln!(f, "  warning  the cache's disk failed: everything comes from the server")?;
        }
        if cache.set_aside > 0 {
            let count = cache.set_aside;
            writeln!(
                f,
                "  warning  {count} file(s) with changes that the server refused, or that met somebody else's, lie in {dir}/set-aside: copy what you need and remove them"
            )?;
        }
        let Reads { bytes_cached, bytes_remote, opens_passthrough, opens_other, .. } = self.reads;
        let Reads { opens_for_reading, opens_of_whole_files, .. } = self.reads;
        let share = percent(opens_of_whole_files, opens_for_reading);
        writeln!(
            f,
            "  hits     {share}: {opens_of_whole_files} of {opens_for_reading} opens for reading found the whole file in the cache"
        )?;
        let (cached, remote) = (Bytes(bytes_cached), Bytes(bytes_remote));
        writeln!(
            f,
            "  reads    {remote} from the server, {cached} from the cache by process {}",
            self.worker_pid
        )?;
        let opens = opens_passthrough + opens_other;
        writeln!(
            f,
            "  opens    {opens_passthrough} of {opens} are read and written by the kernel itself, not counted in bytes"
        )?;
        let Fill { bytes_max, files_waiting, bytes } = self.fill;
        match bytes_max {
            Some(most) => writeln!(
                f,
                "  fill     files up to {}; {files_waiting} wait for a quiet link, {} fetched",
                Bytes(most),
                Bytes(bytes)
            )?,
            None => writeln!(f, "  fill     off")?,
        }
        self.hoard.iter().try_for_each(|tree| writeln!(f, "  hoard    {tree}"))
    }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "none yet".to_owned(),
        _ => format!("{:.0} %", part as f64 * 100.0 / whole as f64),
    }
}

/// A duration with its two largest units: `3 d 4 h`.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_secs();
        let mut shown = String::new();
        let mut units = 0;
        for (unit, seconds) in [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)] {
            let count = rest / seconds;
            rest %= seconds;
            let last = unit == "s" && shown.is_empty();
            if units < 2 && (count > 0 || last) {
                write!(shown, "{}{count} {unit}", if shown.is_empty() { "" } else { " " })?;
            }
            units += usize::from(count > 0 || units > 0);
        }
        f.pad(&shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown() {
        for (seconds, shown) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3661, "1 h 1 min"),
            (90_000, "1 d 1 h"),
            (86_401, "1 d"),
        ] {
            assert_eq!(Span(Duration::from_secs(seconds)).to_string(), shown);
        }
    }

    #[test]
    fn a_dead_daemon_is_told_with_what_to_do() {
        let status = Status { mountpoint: "/mnt".to_owned(), ..Status::default() };
        assert!(status.to_string().contains("larder umount /mnt"));
    }

    #[test]
    fn a_mount_is_told_with_its_options_and_what_was_refused() {
        let shown = Status {
            state: State::Mounted,
            options: vec!["ro".to_owned(), "actimeo=5".to_owned()],
            rpc: RpcTotal { calls: 9, errors: 3, refused: 2, ..RpcTotal::default() },
            ..Status::default()
        };
        let shown = shown.to_string();
        assert!(shown.contains("  options  ro,actimeo=5\n"), "{shown}");
        assert!(shown.contains("9 calls, 3 failed (2 refused by the server)"), "{shown}");
    }

    #[test]
    fn conflicts_are_listed_up_to_a_limit() {
        let one = |number| Conflict {
            number,
            path: format!("dir/name.conflict-here-{number}"),
            wanted: "name".to_owned(),
            ..Conflict::default()
        };
        let shown = |count| {
            let conflicts = (0..count).map(one).take(CONFLICTS_TOLD_MAX).collect();
            let (state, mountpoint) = (State::Mounted, "/mnt".to_owned());
            let conflicts_total = count;
            Status { state, mountpoint, conflicts, conflicts_total, ..Status::default() }
                .to_string()
        };
        let listed = |count| shown(count).matches("  conflict ").count();
        assert_eq!([0, 1, 10, 11].map(listed), [0, 1, 10, 11]);
        let line =
            "/mnt/dir/name.conflict-here-0: kept beside name, which somebody else has made\n";
        assert!(shown(1).contains(&format!("  conflict 0 (1970-01-01T00:00:00Z) {line}")));
        assert!(shown(12).contains("  conflict and 2 more: "), "{}", shown(12));
        assert!(shown(5010).contains("  conflict and 5000 more: "), "{}", shown(5010));
    }

    #[test]
    fn shares_are_shown() {
        assert_eq!(percent(0, 0), "none yet");
        assert_eq!(percent(2, 3), "67 %");
    }
}
