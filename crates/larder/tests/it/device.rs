//! A disk whose bytes are on a block device.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use crate::harness::{Mount, pattern, scratch, succeed};
use crate::server::Server;
use crate::several_disks::{Volume, refusal};

/// A block device over a file, until it is dropped.
struct Loop {
    device: PathBuf,
    file: NamedTempFile,
}

impl Loop {
    /// One that somebody used before: none of its bytes is zero. `None` where this machine gives
    /// none.
    fn used(mib: usize) -> Option<Loop> {
        let mut file = NamedTempFile::new_in("/var/tmp").unwrap();
        let old = vec![0xaa; 1 << 20];
        (0..mib).for_each(|_| file.write_all(&old).unwrap());
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
        match made {
            Ok(made) if made.status.success() => {
                let device = String::from_utf8(made.stdout).unwrap().trim().into();
                Some(Loop { device, file })
            }
            other => {
                eprintln!("left out: no loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        succeed(Command::new("losetup").arg("--detach").arg(&self.device));
        assert!(self.file.path().exists());
    }
}

/// A device is used if nothing is on it that anybody may need, and nobody else uses it. Data is
/// there after `kill -9`, and nothing of what the device had before is ever seen.
#[test]
fn a_disk_is_on_a_device() {
    let Some(used) = Loop::used(80) else { return };
    let mut volume = Volume::with_copies(1, 1);
    let disk = &mut volume.disks[0];
    // As people name them.
    let links = scratch("larder-links-");
    let link = links.path().join("by-id");
    std::os::unix::fs::symlink(&used.device, &link).unwrap();
    disk.store.clone_from(&link);
    let said = refusal(&mut disk.command_with("64M"));
    assert!(said.contains("clear its first MiB (blkdiscard -z -l 1M)"), "{said}");
    succeed(Command::new("blkdiscard").args(["-z", "-l", "1M"]).arg(&used.device));
    let said = refusal(&mut disk.command_with("1G"));
    assert!(said.contains("a disk of this size takes"), "{said}");
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let claim = |path: &Path| File::options().read(true).custom_flags(exclusive).open(path);
    let mounted = claim(&used.device).unwrap();
    let said = refusal(&mut disk.command_with("64M"));
    assert!(said.contains("something else uses it"), "{said}");
    drop(mounted);

    disk.start();
    let server = Server::meta(&["--engine", &volume.engine()]);
    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("file"), pattern(1, 3 << 20)).unwrap();
    let sparse = File::create(mount.path("sparse")).unwrap();
    sparse.write_all_at(b"x", 100_000).unwrap();
    sparse.sync_all().unwrap();
    drop(sparse);
    volume.disks[0].kill();
    assert!(claim(&used.device).is_ok());
    volume.disks[0].start();
    assert!(claim(&used.device).is_err(), "it is the disk's");
    let reader = Mount::plain(&server, &["hard"]);
    assert!(fs::read(reader.path("file")).unwrap() == pattern(1, 3 << 20));
    let mut expected = vec![0; 100_001];
    expected[100_000] = b'x';
    assert!(fs::read(reader.path("sparse")).unwrap() == expected);
}
