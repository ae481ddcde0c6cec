//! An ext4 on a disk as slow as that of the servers, mounted with `sync,dirsync`: its image is a
//! file behind `larder bench passthrough --disk-latency`, where each sync takes the time of a
//! server's.
//!
//! ```text
//! ext4 ── loop device ── slow/image (FUSE) ── files/image
//! ```
//!
//! It is removed when it is dropped; what a run leaves that is killed, `run_dir` removes.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use larder_io::mountinfo::mounted_at;

use crate::process::{self, START_MAX, log_to, still_runs, succeed, wait_for};

/// Its directory, in that of a run.
const DIR: &str = "slow-disk";
/// In there: the image on the machine's disk; the same behind FUSE; the file system.
const FILES: &str = "files";
const SLOW: &str = "slow";
const MOUNTED: &str = "mounted";
const IMAGE: &str = "image";

/// A mounted file system, and the daemon behind its disk.
#[derive(Debug)]
pub(super) struct SlowExt4 {
    dir: PathBuf,
    daemon: Child,
}

impl SlowExt4 {
    /// Makes an empty one of `bytes` in the directory of a run. Each sync of its disk takes
    /// `latency`.
    ///
    /// # Errors
    /// If we are not root, or the error of mkfs(8) or mount(8).
    pub(super) fn create(
        larder: &Path,
        top: &Path,
        bytes: u64,
        latency: Duration,
    ) -> Result<SlowExt4> {
        let dir = top.join(DIR);
        for name in [FILES, SLOW, MOUNTED] {
            fs::create_dir_all(dir.join(name))?;
        }
        let image = dir.join(FILES).join(IMAGE);
        File::create_new(&image)?.set_len(bytes)?;
        succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let mut serve = Command::new(larder);
        serve.args(["bench", "passthrough", "--disk-latency"]);
        serve.arg(format!("{}us", latency.as_micros()));
        serve.arg(dir.join(FILES)).arg(dir.join(SLOW)).process_group(0);
        let log = dir.join("log");
        log_to(&mut serve, &log)?;
        let daemon = serve.spawn().context("cannot start a slow disk")?;
        // From here on, dropping it removes what is mounted.
        let mut slow = SlowExt4 { dir, daemon };
        wait_for("a slow disk", START_MAX, || {
            still_runs(&mut slow.daemon, "larder bench passthrough", &log)?;
            Ok(mounted_at(&slow.dir.join(SLOW))?)
        })?;
        let mut mount = Command::new("mount");
        // The kernel would write the tables of inodes in the background otherwise, and keep the
        // disk busy. The loop device is gone with the mount.
        mount.args(["-o", "loop,sync,dirsync,noinit_itable"]).arg(slow.dir.join(SLOW).join(IMAGE));
        succeed(mount.arg(slow.mountpoint()))?;
        Ok(slow)
    }

    /// Where it is mounted.
    pub(super) fn mountpoint(&self) -> PathBuf {
        self.dir.join(MOUNTED)
    }
}

impl Drop for SlowExt4 {
    fn drop(&mut self) {
        let at = self.mountpoint();
        if matches!(mounted_at(&at), Ok(Some(_)))
            && let Err(error) = succeed(Command::new("umount").arg(&at))
        {
            eprintln!("larder: {error:#}");
        }
        // It unmounts what lies below.
        process::end(&mut self.daemon);
    }
}
