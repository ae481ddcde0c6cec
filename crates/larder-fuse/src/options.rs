//! What the kernel is told of a mount.

use std::path::PathBuf;

use rustix::mount::MountFlags;

/// How to mount. [`MountOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What is mounted, as `/proc/mounts` shows it.
    pub source: String,
    /// Nothing may be written.
    pub read_only: bool,
    /// Users other than the one who mounts may use the mount. Default: if that one is root.
    pub allow_other: bool,
    /// The kernel checks mode bits before it asks. Default: yes; without it [`access`] is asked, and
    /// the file system must refuse by itself.
    ///
    /// [`access`]: larder_vfs::FileSystem::access
    pub default_permissions: bool,
    /// Most bytes in one read or write request. Default: 1 MiB, the kernel's own limit.
    pub io_bytes_max: u32,
    /// How far the kernel reads ahead, in bytes. Set where we may (root), else the kernel's 128 KiB.
    pub readahead_bytes: u32,
    /// Threads that read requests, each on its own descriptor. Default: 2: one was as fast on two
    /// cores, the second keeps the mount alive while a warm answer has to wait for the local disk.
    pub threads: usize,
    /// Set-uid bits mean nothing.
    pub no_suid: bool,
    /// Device files mean nothing.
    pub no_dev: bool,
    /// Nothing may be executed.
    pub no_exec: bool,
    /// Reading does not change access times.
    pub no_atime: bool,
    /// Directory that local files of passthrough opens are in. It is tried at mount time whether
    /// the kernel takes files from there; `None`: no passthrough.
    pub probe_dir: Option<PathBuf>,
}

impl MountOptions {
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
            no_suid: false,
            no_dev: false,
            no_exec: false,
            no_atime: false,
            probe_dir: None,
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

    /// Options that the FUSE driver reads, and `fusermount3` too.
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
