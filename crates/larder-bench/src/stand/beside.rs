//! File systems of this machine that are measured beside mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::succeed;
use crate::target::{Chosen, Target, mount_of};

/// A file system of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// The disk on which the server and the caches are, as it is mounted.
    Disk,
    /// An ext4 of its own, on a disk as slow as the servers', mounted with `sync,dirsync`: every
    /// change is on the disk when its call returns.
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
        const PUBLISHED: Chosen = Chosen {
            names: &["large-write", "small-file", "untar", "edit", "andrew"],
            copies: &[],
        };
        /// A work beside those that were published with `mbfs`, in which a mount of ours is
        /// compared with the disk.
        const FAR: Chosen = Chosen { names: &["untar-far"], copies: &[] };
        /// Of these a slow disk is measured at the fewest and the most clients.
        const AT_ENDS: Chosen = Chosen { copies: &[1, 3, 10], ..PUBLISHED };
        match self {
            Local::Disk => &[],
            Local::Synchronous => &[AT_ENDS],
            Local::Memory => &[PUBLISHED],
            Local::Passthrough => &[PUBLISHED, FAR],
        }
    }
}

/// The target of a file system that was made for a run.
pub(super) fn target(local: Local, mountpoint: &Path) -> Target {
    let mut target = Target::new(local.name(), mountpoint);
    target.options = mount_of(mountpoint).unwrap_or_default();
    target.tests = local.tests();
    target
}

/// A tmpfs that was made for a run. When dropped, it is removed.
#[derive(Debug)]
pub(super) struct Tmpfs {
    mountpoint: PathBuf,
}

impl Tmpfs {
    /// Makes an empty one in `top` and mounts it.
    ///
    /// # Errors
    /// If we are not root, or the error of mount(8).
    pub(super) fn create(top: &Path, name: &str) -> Result<Tmpfs> {
        let mountpoint = top.join(name);
        fs::create_dir(&mountpoint)?;
        succeed(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&mountpoint))?;
        Ok(Tmpfs { mountpoint })
    }

    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        if let Err(error) = succeed(Command::new("umount").arg(&self.mountpoint)) {
            eprintln!("larder: {error:#}");
        }
    }
}
