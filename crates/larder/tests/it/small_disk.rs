//! A small disk of its own for a test: an ext4 in a file. Unmounted when it is dropped.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::harness::{run, scratch};

/// A mounted ext4.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// One with this size and this many inodes, for a cache.
    pub(crate) fn for_cache(size_mib: u32, inodes: u32) -> SmallDisk {
        SmallDisk::new(size_mib, &["-N", &inodes.to_string()])
    }

    /// One made with these options of mkfs.ext4(8).
    pub(crate) fn new(size_mib: u32, options: &[&str]) -> SmallDisk {
        let dir = scratch("larder-disk-");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        fs::create_dir(&at).unwrap();
        let image_file = fs::File::create(&image).unwrap();
        image_file.set_len(u64::from(size_mib) << 20).unwrap();
        let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
        run("mkfs.ext4", &[&["-q"], options, &[image]].concat());
        run("mount", &["-o", "loop", image, at]);
        fs::remove_dir(dir.path().join("at/lost+found")).unwrap();
        SmallDisk { dir }
    }

    /// Its root.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("at")
    }

    /// Another program takes all that is free.
    pub(crate) fn fill_up(&self) {
        let mut file = fs::File::options().create(true).append(true).open(self.others()).unwrap();
        let page = [1; 4096];
        while file.write_all(&page).is_ok() {}
        let _ = file.sync_data();
        while file.write_all(&page).is_ok() {}
    }

    /// It gives that back.
    pub(crate) fn free_up(&self) {
        fs::remove_file(self.others()).unwrap();
    }

    fn others(&self) -> PathBuf {
        self.path().join("others")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}
