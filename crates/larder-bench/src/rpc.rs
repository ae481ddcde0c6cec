//! RPC accounting: how many calls of each procedure a piece of work cost.
//!
//! Two places count. The daemon of a mount of ours knows what it sent; our NFS server knows what it was
//! asked, by whichever client. Both are asked through the binary's own `stat` command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Calls by procedure.
pub type Calls = BTreeMap<String, u64>;

/// Who counts the calls of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Nobody.
    None,
    /// The daemon of a mount of ours.
    Daemon {
        /// Our binary.
        larder: PathBuf,
        /// Where it is mounted.
        mountpoint: PathBuf,
    },
    /// Our NFS server: everything that it is asked, whoever asks.
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
}

impl Counter {
    /// The daemon, if `dir` lies on a mount of ours.
    pub fn of_mount(larder: &Path, dir: &Path) -> Counter {
        let found = dir.ancestors().map(|mountpoint| Counter::Daemon {
            larder: larder.to_path_buf(),
            mountpoint: mountpoint.to_path_buf(),
        });
        // `larder stat` of the root or of a plain directory costs a process and changes nothing.
        let mut found = found.filter(|counter| counter.read().is_ok());
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

    /// The counts so far; `None` if nobody counts.
    ///
    /// # Errors
    /// If who counts does not answer.
    pub fn read(&self) -> Result<Option<Calls>> {
        let mut command = match self {
            Counter::None => return Ok(None),
            Counter::Daemon { larder, mountpoint } => {
                let mut command = Command::new(larder);
                command.arg("stat").arg(mountpoint);
                command
            }
            Counter::Export { larder, address } => {
                let mut command = Command::new(larder);
                command.args(["stat", "--export", address]);
                command
            }
        };
        let output = command
            .arg("--json")
            .stdin(Stdio::null())
            .output()
            .context("cannot run larder stat")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let stat: Stat = serde_json::from_slice(&output.stdout).context("larder stat")?;
        Ok(Some(stat.rpc.into_iter().map(|(name, procedure)| (name, procedure.calls)).collect()))
    }
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
    fn a_plain_directory_has_no_counter() {
        assert_eq!(
            Counter::of_mount(Path::new("/bin/false"), Path::new("/usr/bin")),
            Counter::None
        );
        assert_eq!(Counter::None.read().unwrap(), None);
    }
}
