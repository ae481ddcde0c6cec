//! Options of a mount for the kernel.

use std::path::PathBuf;

use rustix::mount::MountFlags;

use crate::error::MountError;

/// Whether the kernel module takes io_uring.
const URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Largest request, in bytes.
const IO_BYTES_MAX: u32 = 16 << 20;

/// How requests travel between the kernel and us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Use io_uring where the kernel has it and the mount need not survive its server, else the
    /// device.
    #[default]
    Auto,
    /// Requests are read from `/dev/fuse`, and answers written to it. A mount survives the process
    /// that serves it.
    Device,
    /// Served in place, by io_uring, on the CPU of the caller: faster. If the process dies,
    /// requests that it had accepted fail with ECONNABORTED, and the mount ends.
    Uring,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Device => "dev",
            Transport::Uring => "uring",
        })
    }
}

/// How to mount. [`MountOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The mounted source, as `/proc/mounts` shows it.
    pub source: String,
    /// Nothing may be written.
    pub read_only: bool,
    /// Users other than the mounting one may use the mount. Default: if the mounting user is root.
    pub allow_other: bool,
    /// The kernel checks mode bits before it asks. Default: yes; without it [`access`] is asked,
    /// and the file system must refuse by itself.
    ///
    /// [`access`]: larder_vfs::FileSystem::access
    pub default_permissions: bool,
    /// Most bytes in one read or write request. Default: 1 MiB, the kernel's own limit.
    pub io_bytes_max: u32,
    /// How far the kernel reads ahead, in bytes. Set where we may (root), else the kernel's 128
    /// KiB.
    pub readahead_bytes: u32,
    /// Threads that read requests, each on its own descriptor. Default: 2: one was as fast on two
    /// cores; the second keeps the mount responsive while the first has to wait for the local
    /// disk.
    pub threads: usize,
    /// How requests travel. Default: [`Transport::Auto`].
    pub transport: Transport,
    /// Another process is to continue if the one that serves dies. Default: no.
    pub survive: bool,
    /// The file system keeps the locks of processes, not the kernel. Default: no.
    pub pass_locks: bool,
    /// Set-uid bits mean nothing.
    pub no_suid: bool,
    /// Device files mean nothing.
    pub no_dev: bool,
    /// Nothing may be executed.
    pub no_exec: bool,
    /// Reading does not change access times.
    pub no_atime: bool,
    /// Directory of the local files for passthrough opens. At mount time, one file shows whether
    /// the kernel accepts files from there; `None`: no passthrough.
    pub probe_dir: Option<PathBuf>,
}

impl MountOptions {
    pub(crate) const THREADS_MAX: usize = 64;

    /// The defaults, for a mount of `source`.
    pub fn new(source: impl Into<String>) -> MountOptions {
        MountOptions {
            source: source.into(),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            default_permissions: true,
            io_bytes_max: 1 << 20,
            readahead_bytes: 1 << 20,
            threads: 2,
            transport: Transport::Auto,
            survive: false,
            pass_locks: false,
            no_suid: false,
            no_dev: false,
            no_exec: false,
            no_atime: false,
            probe_dir: None,
        }
    }

    /// Refuses values that make no sense.
    pub(crate) fn check(&self) -> Result<(), MountError> {
        let refuse = |text: String| Err(MountError::Option(text));
        if self.source.contains('\0') {
            return refuse(format!("source {:?} contains a zero byte", self.source));
        }
        if self.threads == 0 || self.threads > Self::THREADS_MAX {
            return refuse(format!("threads = {}; take 1 to 64", self.threads));
        }
        if self.io_bytes_max < 4096 || self.io_bytes_max > IO_BYTES_MAX {
            return refuse(format!("io_bytes_max = {}; take 4 KiB to 16 MiB", self.io_bytes_max));
        }
        Ok(())
    }

    /// Whether to ask the kernel for io_uring.
    pub(crate) fn uring(&self) -> Result<bool, MountError> {
        let enabled = std::fs::read_to_string(URING_PARAMETER).is_ok_and(|text| text.trim() == "Y");
        match self.transport {
            Transport::Device => Ok(false),
            Transport::Auto if self.survive => Ok(false),
            Transport::Auto => {
                if !enabled {
                    tracing::info!("{URING_PARAMETER} is not Y: requests travel by /dev/fuse");
                }
                Ok(enabled)
            }
            Transport::Uring if enabled => Ok(true),
            Transport::Uring => Err(MountError::Option(format!(
                "transport=uring: the kernel does not offer it; try: echo Y > {URING_PARAMETER}"
            ))),
        }
    }

    /// Flags of mount(2).
    pub(crate) fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.no_suid);
        flags.set(MountFlags::NODEV, self.no_dev);
        flags.set(MountFlags::NOEXEC, self.no_exec);
        flags.set(MountFlags::NOATIME, self.no_atime);
        flags
    }

    /// Options that both the FUSE driver and `fusermount3` read.
    pub(crate) fn driver(&self) -> String {
        let mut options = format!("max_read={}", self.io_bytes_max);
        for (name, wanted) in
            [("default_permissions", self.default_permissions), ("allow_other", self.allow_other)]
        {
            if wanted {
                options.push(',');
                options.push_str(name);
            }
        }
        options
    }

    /// Options in the words of `fusermount3`.
    pub(crate) fn helper(&self) -> String {
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut options = format!("fsname={source},subtype=larder,{}", self.driver());
        for (name, wanted) in [
            ("ro", self.read_only),
            ("nosuid", self.no_suid),
            ("nodev", self.no_dev),
            ("noexec", self.no_exec),
            ("noatime", self.no_atime),
        ] {
            if wanted {
                options.push(',');
                options.push_str(name);
            }
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_in_words() {
        let options = MountOptions {
            allow_other: false,
            read_only: true,
            ..MountOptions::new("server:/a,b\\c")
        };
        assert_eq!(
            options.helper(),
            "fsname=server:/a\\,b\\\\c,subtype=larder,max_read=1048576,default_permissions,ro"
        );
        assert_eq!(options.flags(), MountFlags::RDONLY);
    }
}
