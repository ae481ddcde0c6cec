//! Bare FUSE mounts of a tmpfs, one for each client: the least that any mount can cost. Each shows
//! a directory of its own, because it trusts what it knows of that for an hour.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::Result;
use larder_io::mountinfo::mounted_at;

use super::beside::{self, Local, Tmpfs};
use crate::process::{self, START_MAX, log_to, still_runs, wait_for};
use crate::target::Target;

/// Mounts that are ended when dropped.
#[derive(Debug)]
pub(super) struct Passthrough {
    // Dropped in this order.
    mounts: Vec<Mount>,
    _memory: Tmpfs,
}

#[derive(Debug)]
struct Mount {
    daemon: Child,
    mountpoint: PathBuf,
}

impl Passthrough {
    /// Makes a tmpfs in `top`, and mounts a directory of it for each client.
    ///
    /// # Errors
    /// If we are not root, or it cannot be mounted.
    pub(super) fn start(larder: &Path, top: &Path, clients: u32) -> Result<Passthrough> {
        let memory = Tmpfs::create(top, Local::Passthrough.name())?;
        let mut passthrough = Passthrough { mounts: Vec::new(), _memory: memory };
        for number in 0..clients.max(1) {
            let dir = passthrough._memory.mountpoint().join(number.to_string());
            let mountpoint = top.join(format!("passthrough-{number}"));
            fs::create_dir(&dir)?;
            fs::create_dir(&mountpoint)?;
            let log = top.join(format!("passthrough-{number}.log"));
            let mut command = Command::new(larder);
            command.args(["bench", "passthrough"]).arg(&dir).arg(&mountpoint).process_group(0);
            log_to(&mut command, &log)?;
            let daemon = command.spawn()?;
            passthrough.mounts.push(Mount { daemon, mountpoint: mountpoint.clone() });
            let Some(mount) = passthrough.mounts.last_mut() else { continue };
            wait_for("a passthrough mount", START_MAX, || {
                still_runs(&mut mount.daemon, "larder bench passthrough", &log)?;
                Ok(mounted_at(&mountpoint)?)
            })?;
        }
        Ok(passthrough)
    }

    pub(super) fn target(&self) -> Target {
        let dirs: Vec<PathBuf> = self.mounts.iter().map(|mount| mount.mountpoint.clone()).collect();
        let mut target = beside::target(Local::Passthrough, &dirs[0]);
        target.clients = dirs[1..].to_vec();
        target
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // It unmounts.
        process::end(&mut self.daemon);
    }
}
