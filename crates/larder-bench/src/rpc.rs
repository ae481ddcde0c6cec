//! RPC accounting: how many calls of each procedure a piece of work cost, and how long they took.
//!
//! Calls are counted in two places. The daemon of one of our mounts counts what it sent; our NFS
//! server counts what any client asked of it. Both are asked through the binary's own `stat`
//! command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::process;

/// Calls by procedure.
pub type Calls = BTreeMap<String, u64>;

/// The counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Calls by procedure.
    pub calls: Calls,
    /// Their duration from the offer to the reply, in microseconds, the sum over all calls of a
    /// procedure; nothing where that is not known.
    pub time_us: Calls,
}

impl Counted {
    /// The difference from `before`, for procedures that were called.
    #[must_use]
    pub fn since(&self, before: &Counted) -> Counted {
        Counted {
            calls: since(&before.calls, &self.calls),
            time_us: since(&before.time_us, &self.time_us),
        }
    }

    fn add(&mut self, other: Counted) {
        for (sums, more) in [(&mut self.calls, other.calls), (&mut self.time_us, other.time_us)] {
            for (name, count) in more {
                *sums.entry(name).or_default() += count;
            }
        }
    }
}

/// The source of the counts for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// No source.
    None,
    /// The daemons of mounts of ours: those whose clients work are counted together.
    Daemon {
        /// Our binary.
        larder: PathBuf,
        /// Where they are mounted.
        mountpoints: Vec<PathBuf>,
    },
    /// Our NFS server: all calls, from any client.
    Export {
        /// Our binary.
        larder: PathBuf,
        /// Where it listens, `IP:PORT`.
        address: String,
    },
}

/// The part that we read of what `larder stat --json` prints.
#[derive(Deserialize)]
struct Stat {
    rpc: BTreeMap<String, Procedure>,
}

#[derive(Deserialize)]
struct Procedure {
    calls: u64,
    #[serde(default)]
    latency_us: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    #[serde(default)]
    sum: u64,
}

impl Counter {
    /// The daemon, if `dir` is on a mount of ours.
    pub fn of_mount(larder: &Path, dir: &Path) -> Counter {
        let found = dir.ancestors().map(|mountpoint| Counter::Daemon {
            larder: larder.to_path_buf(),
            mountpoints: vec![mountpoint.to_path_buf()],
        });
        // `larder stat` of the root or of a plain directory costs a process and changes nothing.
        let mut found = found.filter(|counter| counter.read(1).is_ok());
        found.next().unwrap_or(Counter::None)
    }

    /// Name in records.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Counter::None => None,
            Counter::Daemon { .. } => Some("daemon"),
            Counter::Export { .. } => Some("server"),
        }
    }

    /// The counts so far, of daemons those of the first so many clients; `None` if there is no
    /// source.
    ///
    /// # Errors
    /// If the source does not answer.
    pub fn read(&self, clients: usize) -> Result<Option<Counted>> {
        let mut counted = Counted::default();
        match self {
            Counter::None => return Ok(None),
            Counter::Daemon { larder, mountpoints } => {
                for mountpoint in mountpoints.iter().take(clients) {
                    let mut stat = process::larder_of(larder, mountpoint);
                    counted.add(ask(stat.arg("stat").arg(mountpoint))?);
                }
            }
            Counter::Export { larder, address } => {
                counted.add(ask(Command::new(larder).args(["stat", "--export", address]))?);
            }
        }
        Ok(Some(counted))
    }
}

fn ask(command: &mut Command) -> Result<Counted> {
    let output =
        command.arg("--json").stdin(Stdio::null()).output().context("cannot run larder stat")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let stat: Stat = serde_json::from_slice(&output.stdout).context("larder stat")?;
    let of = |pick: fn(&Procedure) -> u64| {
        stat.rpc.iter().map(|(name, procedure)| (name.clone(), pick(procedure))).collect()
    };
    Ok(Counted { calls: of(|one| one.calls), time_us: of(|one| one.latency_us.sum) })
}

/// Calls made since `before`, of procedures that were called.
pub fn since(before: &Calls, after: &Calls) -> Calls {
    let calls = after.iter().map(|(name, calls)| {
        (name.clone(), calls.saturating_sub(before.get(name).copied().unwrap_or(0)))
    });
    calls.filter(|(_, calls)| *calls > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_leave_out_what_was_not_called() {
        let calls = |calls: &[(&str, u64)]| -> Calls {
            calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let difference = since(
            &calls(&[("READ", 3), ("LOOKUP", 1)]),
            &calls(&[("READ", 5), ("LOOKUP", 1), ("WRITE", 2)]),
        );
        assert_eq!(difference, calls(&[("READ", 2), ("WRITE", 2)]));
    }

    #[test]
    fn several_clients_are_added_up() {
        let counted = |calls: u64, time_us: u64| Counted {
            calls: [("READ".to_owned(), calls)].into(),
            time_us: [("READ".to_owned(), time_us)].into(),
        };
        let mut all = counted(3, 700);
        all.add(counted(2, 300));
        assert_eq!(all, counted(5, 1000));
        assert_eq!(all.since(&counted(3, 1000)).calls, counted(2, 0).calls);
    }

    #[test]
    fn a_plain_directory_has_no_counter() {
        assert_eq!(
            Counter::of_mount(Path::new("/bin/false"), Path::new("/usr/bin")),
            Counter::None
        );
        assert_eq!(Counter::None.read(1).unwrap(), None);
    }
}
