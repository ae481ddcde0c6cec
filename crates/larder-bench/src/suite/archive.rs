//! An archive of a source tree, packed and unpacked with the system's tar(1).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::command::run;
use super::{Outcome, Size, WorkDir};
use crate::data::{Pattern, Random};

/// The directory in the archive.
const TOP: &str = "unpacked";
const ARCHIVE: &str = "archive.tar";

/// The content of an archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Archive {
    files: u32,
    /// Of all files together, about; their sizes differ.
    bytes: u64,
}

impl Archive {
    /// One of 4.3 MB with about 400 files and directories; small, a tenth of it.
    pub(super) fn of(size: Size) -> Archive {
        Archive { files: size.pick(60, 370), bytes: size.pick(300_000, 3_700_000) }
    }

    /// One of this many files, with this average size.
    pub(super) fn of_files(files: u32, mean_bytes: u64) -> Archive {
        Archive { files, bytes: u64::from(files) * mean_bytes }
    }

    /// Its description, in words.
    pub(super) fn shown(self) -> String {
        format!("an archive of {} files, {:.1} MB together", self.files, self.bytes as f64 / 1e6)
    }

    fn path(i: u32) -> PathBuf {
        PathBuf::from(format!("d{}/e{}/f{i}", i % 6, i % 30))
    }

    fn len(self, i: u32) -> u64 {
        let mean = self.bytes / u64::from(self.files);
        Random(u64::from(i)).below(2 * mean)
    }

    /// Every copy of a test has contents of its own.
    fn content(self, copy: u32, i: u32) -> Vec<u8> {
        Pattern((u64::from(copy) << 32) + 1000 + u64::from(i)).bytes(self.len(i) as usize)
    }

    /// Packs it into a place.
    pub(super) fn furnish(self, place: &WorkDir) -> Result<()> {
        let top = place.at(TOP);
        for i in 0..self.files {
            let path = top.join(Archive::path(i));
            fs::create_dir_all(path.parent().unwrap_or(&top))?;
            fs::write(path, self.content(place.copy, i))?;
        }
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-cf"]);
        run(tar.arg(place.at(ARCHIVE)).arg("-C").arg(&place.dir).arg(TOP))?;
        Ok(fs::remove_dir_all(top)?)
    }

    /// Whether a tree has all its files, in full length.
    ///
    /// # Errors
    /// The first one that is missing or of another length.
    pub(super) fn check_names(self, top: &Path) -> Result<()> {
        for i in 0..self.files {
            let path = top.join(Archive::path(i));
            let len = path.metadata().with_context(|| path.display().to_string())?.len();
            ensure!(len == self.len(i), "{len} bytes in {}", path.display());
        }
        Ok(())
    }

    /// Unpacks it.
    pub(super) fn unpack(self, place: &WorkDir) -> Result<Outcome> {
        let mut tar = Command::new("tar");
        run(tar.arg("-xf").arg(place.at(ARCHIVE)).arg("-C").arg(&place.dir))?;
        let (top, copy) = (unpacked(place), place.copy);
        Outcome::checked_at_end(move || {
            for i in 0..self.files {
                let path = top.join(Archive::path(i));
                let wrong = || format!("wrong bytes in {}", path.display());
                let read = fs::read(&path).with_context(wrong)?;
                ensure!(read == self.content(copy, i), wrong());
            }
            Ok(())
        })
    }
}

/// Where it is unpacked.
pub(super) fn unpacked(place: &WorkDir) -> PathBuf {
    place.at(TOP)
}

/// Reads the archive of a place, and tar as [`warm_up`] does.
pub(super) fn read(place: &WorkDir) -> Result<&'static str> {
    fs::read(place.at(ARCHIVE))?;
    warm_up(place)?;
    Ok("archive and tar read")
}

/// Packs and unpacks an archive aside, so that tar is in memory: it is no part of what is measured.
pub(super) fn warm_up(_: &WorkDir) -> Result<&'static str> {
    let archive = Archive { files: 1, bytes: 1 };
    let dir = tempfile::tempdir()?;
    let place = WorkDir::aside(&dir);
    archive.furnish(&place)?;
    archive.unpack(&place)?;
    Ok("then tar read")
}
