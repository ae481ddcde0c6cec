//! The page cache: drops it, and proves that it was dropped. And memory that a host must supply.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Bytes that may stay resident after caches were dropped: pages of directories and indices that a
/// running server uses again at once. Far less than any file that a test reads to measure speed.
const RESIDENT_BYTES_MAX: u64 = 256 << 10;

/// Writes everything back and makes the kernel drop clean pages, names and inodes. Returns `false`
/// if we may not do that (only root may).
///
/// # Errors
/// If the kernel refuses for another reason.
pub fn drop_all() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")?;
    Ok(true)
}

/// Writes to `bytes` of memory and frees them. A virtual machine gives memory that it does not use
/// back to its host, and each page that it uses again must be supplied anew, which takes longer
/// than what is measured: 1 GiB took up to two seconds.
pub fn touch(bytes: usize) {
    const PAGE_BYTES: usize = 4096;
    let mut pages = vec![0; bytes];
    pages.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1u8);
    std::hint::black_box(&pages);
}

/// Bytes of all regular files under `dirs` that are in the page cache.
///
/// # Errors
/// If a file cannot be looked at.
pub fn resident_bytes(dirs: &[PathBuf]) -> Result<u64> {
    let mut total = 0;
    for dir in dirs {
        add_resident(dir, &mut total)?;
    }
    Ok(total)
}

fn add_resident(dir: &Path, total: &mut u64) -> Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| dir.display().to_string())?,
    };
    for entry in entries {
        let path = entry?.path();
        // A file that a cache removes in the meantime is not resident.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            add_resident(&path, total)?;
        } else if metadata.is_file() && metadata.len() > 0 {
            let Ok(file) = File::open(&path) else { continue };
            *total += larder_io::pages::resident_bytes(&file)
                .with_context(|| format!("cannot ask what is in memory of {}", path.display()))?;
        }
    }
    Ok(())
}

/// Drops everything and verifies that for the files from which a target's bytes come; returns the
/// text for the record.
///
/// # Errors
/// If more than a trace stayed: then a cold test would not be cold.
pub fn drop_and_verify(disks: &[PathBuf]) -> Result<String> {
    if !drop_all()? {
        return Ok("not dropped (only root can)".to_owned());
    }
    if disks.is_empty() {
        return Ok("dropped".to_owned());
    }
    let mut resident = resident_bytes(disks)?;
    if resident > RESIDENT_BYTES_MAX {
        // Pages under writeback or held by a reader stay the first time.
        drop_all()?;
        resident = resident_bytes(disks)?;
    }
    let kib = resident >> 10;
    ensure!(
        resident <= RESIDENT_BYTES_MAX,
        "{kib} KiB stayed in the page cache when it was dropped"
    );
    // Checking a file's pages has brought its name and inode back.
    drop_all()?;
    Ok(format!("dropped, {kib} KiB resident"))
}

/// Reads all files of a directory into the page cache, as far as they can be read.
pub fn bring_in(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => bring_in(&entry.path()),
            Ok(kind) if kind.is_file() => {
                let file = fs::File::open(entry.path());
                let _ = file.map(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_resident_and_what_is_dropped_is_not() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let dirs = [dir.path().to_path_buf()];
        // Others may make the kernel forget in between.
        let is_resident = (0..100).any(|_| {
            fs::write(dir.path().join("sub/file"), vec![1; 1 << 20]).unwrap();
            resident_bytes(&dirs).unwrap() >= 1 << 20
        });
        assert!(is_resident);
        assert_eq!(resident_bytes(&[dir.path().join("missing")]).unwrap(), 0);
        if rustix::process::geteuid().is_root() {
            assert!(drop_and_verify(&dirs).unwrap().starts_with("dropped, "));
            assert!(resident_bytes(&dirs).unwrap() <= RESIDENT_BYTES_MAX);
        }
    }
}
