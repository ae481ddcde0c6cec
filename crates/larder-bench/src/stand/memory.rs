//! A volume with a memory disk, in one process, as `larder serve --memory` makes it.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Result;

use super::volume::{Endpoint, certify, spawn};
use crate::link::netns::Netns;
use crate::process::{self, START_MAX, still_runs};

/// Size of the other disk. Its store has holes where nothing was written.
const DISK_SIZE: &str = "16G";

/// A running volume.
#[derive(Debug)]
pub(super) struct MemoryVolume {
    child: Child,
    /// How it is mounted.
    pub(super) endpoint: Endpoint,
    /// Where the bytes are that are not in memory.
    pub(super) dir: PathBuf,
}

impl MemoryVolume {
    /// Makes a volume in `dir`, which must not exist, with a memory disk of `size`, and serves it
    /// at `address` and the two ports behind that. Each sync of its other disk takes
    /// `disk_latency`.
    ///
    /// # Errors
    /// If it cannot be made or does not come up.
    pub(super) fn start(
        larder: &Path,
        dir: &Path,
        size: &str,
        disk_latency: Option<Duration>,
        address: SocketAddr,
        netns: Option<&Netns>,
    ) -> Result<MemoryVolume> {
        fs::create_dir_all(dir)?;
        let volume = dir.join("volume");
        let mut serve = Command::new(larder);
        serve.arg("serve").arg(&volume).args(["--size", DISK_SIZE, "--memory", size]);
        serve.args(["--listen", &address.to_string()]);
        if let Some(latency) = disk_latency {
            serve.args(["--disk-latency", &format!("{}us", latency.as_micros())]);
        }
        let tls = (!address.ip().is_loopback()).then(|| certify(dir, address.ip())).transpose()?;
        if let Some(tls) = &tls {
            serve.arg("--cert").arg(&tls.certificate).arg("--cert-key").arg(&tls.key);
        }
        let log = dir.join("log");
        let child = spawn(&mut serve, &log, netns)?;
        let mut served = MemoryVolume { child, endpoint: Endpoint::new(address, tls), dir: volume };
        process::wait_for("the volume's start", START_MAX, || {
            still_runs(&mut served.child, "larder serve", &log)?;
            Ok(TcpStream::connect_timeout(&address, START_MAX).ok())
        })?;
        Ok(served)
    }

    /// Its process, which leads a group.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for MemoryVolume {
    fn drop(&mut self) {
        process::end(&mut self.child);
    }
}
