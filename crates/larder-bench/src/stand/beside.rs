//! File systems of this machine that are measured beside mounts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::succeed;
use crate::target::{Chosen, Target, mount_of};

/// Size of a disk that is made for a run, in bytes: a sparse file.
const DISK_BYTES: u64 = 4 << 30;

/// A file system of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The disk on which the server and the caches are, as it is mounted.
    Disk,
    /// An ext4 of its own, mounted with `sync,dirsync`: every change is on the disk when its call
    /// returns.
    Synchronous,
    /// A tmpfs.
    Memory,
    /// A tmpfs, behind FUSE and nothing else: one mount for each client.
    Passthrough,
}

/// Those that a suite measures, if it measures any.
pub fn locals(suite: &str) -> &'static [Local] {
    match suite {
        "mbfs" => &[Local::Disk, Local::Synchronous, Local::Memory, Local::Passthrough],
        _ => &[Local::Disk],
    }
}

impl Local {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Local::Disk => "local",
            Local::Synchronous => "local sync",
            Local::Memory => "tmpfs",
            Local::Passthrough => "passthrough",
        }
    }

    /// The tests of a suite that it runs; empty: all.
    pub(super) fn tests(self) -> &'static [Chosen] {
        /// Works beside those that were published with `mbfs`: of these it runs one, on the disk.
        const PUBLISHED: Chosen = Chosen {
            names: &["large-write", "small-file", "untar", "edit", "andrew"],
            copies: &[],
        };
        match self {
            Local::Disk => &[],
            Local::Synchronous | Local::Memory | Local::Passthrough => &[PUBLISHED],
        }
    }
}

/// A file system that was made for a run. When dropped, it is removed.
#[derive(Debug)]
pub(super) struct Beside {
    mountpoint: PathBuf,
}

impl Beside {
    /// Makes an empty one in `top` and mounts it.
    ///
    /// # Errors
    /// If we are not root, or the error of mkfs(8) or mount(8).
    pub(super) fn create(top: &Path, local: Local) -> Result<Beside> {
        let mountpoint = top.join(local.name().replace(' ', "-"));
        fs::create_dir(&mountpoint)?;
        let mut mount = Command::new("mount");
        if matches!(local, Local::Memory | Local::Passthrough) {
            mount.args(["-t", "tmpfs", "tmpfs"]);
        } else {
            let image = top.join("synchronous.img");
            File::create(&image)?.set_len(DISK_BYTES)?;
            succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
            mount.args(["-o", "loop,sync,dirsync"]).arg(&image);
        }
        succeed(mount.arg(&mountpoint))?;
        Ok(Beside { mountpoint })
    }

    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    pub(super) fn target(&self, local: Local) -> Target {
        let mut target = Target::new(local.name(), &self.mountpoint);
        target.options = mount_of(&self.mountpoint).unwrap_or_default();
        target.tests = local.tests();
        // All of a tmpfs is in memory, before a test and after it.
        if local != Local::Memory {
            target.disks = vec![self.mountpoint.clone()];
        }
        target
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Err(error) = succeed(Command::new("umount").arg(&self.mountpoint)) {
            eprintln!("larder: {error:#}");
        }
    }
}
