//! Files in the memory of this machine: a directory of the tmpfs at /dev/shm for each
//! cache. It outlives our processes, and ends with the boot (or earlier: systemd-logind empties the
//! files of users who log out).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use larder_cache::MemoryDir;
use larder_io::{Disk, FsKind, RealDisk};

use crate::runtime_dir::make_private;

const TMPFS: &str = "/dev/shm";

/// This part of the machine's memory, unless an option says how much.
const SHARE: u64 = 8;

/// Whether this machine has memory for files.
pub(crate) fn is_there() -> bool {
    let kind = RealDisk::open(Path::new(TMPFS)).and_then(|disk| disk.kind());
    kind.is_ok_and(|kind| kind == FsKind::TMPFS)
}

/// The directory in memory that belongs to a cache, for this many bytes or a share of the machine's
/// memory. `None` where there is none, or others could tamper with it, which is logged.
pub(crate) fn of(cache: &Path, bytes_max: Option<u64>) -> Option<MemoryDir> {
    if !is_there() {
        return None;
    }
    let made = directory(cache).and_then(|dir| {
        make_private(&dir, "directory for files in memory")?;
        Ok(RealDisk::open(&dir)?)
    });
    match made {
        Ok(disk) => {
            let bytes_max = bytes_max.unwrap_or_else(|| memory_bytes() / SHARE);
            Some(MemoryDir { disk: Arc::new(disk), bytes_max })
        }
        Err(error) => {
            tracing::warn!("no files in memory: {error:#}");
            None
        }
    }
}

/// After its cache was closed: it is empty then, if all went well. Anything that is left stays.
pub(crate) fn remove(cache: &Path) {
    let Ok(dir) = directory(cache) else { return };
    let data = dir.join("data");
    let inner = std::fs::read_dir(&data).into_iter().flatten().flatten();
    let inner: Vec<PathBuf> = inner.map(|entry| entry.path()).collect();
    for empty in inner.iter().chain([&data, &dir]) {
        let _ = std::fs::remove_dir(empty);
    }
}

/// The name depends on the cache directory itself, whatever path leads to it.
fn directory(cache: &Path) -> Result<PathBuf> {
    let (uid, held) = (rustix::process::geteuid().as_raw(), std::fs::metadata(cache)?);
    let mine = Path::new(TMPFS).join(format!("larder-{uid}"));
    make_private(&mine, "directory for files in memory")?;
    Ok(mine.join(format!("{:x}-{:x}", held.dev(), held.ino())))
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}
