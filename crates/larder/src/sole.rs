//! A mount that is the only one that changes names in an NFS export (`-o exclusive`), its *sole*
//! mount: a second one for the same names is refused, among the mounts of this user on this
//! machine.
//!
//! One of the mount's files in the runtime directory says so, with a lock on it. The process that
//! holds the mount holds the lock too, so the mount ceases to be the sole one with it, however it
//! ends. Mounts of other users and of other machines are not seen: what they change is found when
//! names are replayed at the server.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::runtime_dir::RuntimeDir;
use crate::source::{Protocol, Source};

/// NFS servers listen here, unless the source or an option says otherwise.
const PORT: u16 = 2049;

/// A sole mount, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SoleRecord {
    source: String,
    port: u16,
    mountpoint: PathBuf,
    pid: u32,
}

/// While a process has this, its mount is the sole one. The file goes with the other files of the
/// mount.
pub(crate) struct Sole {
    locked: File,
}

impl Drop for Sole {
    fn drop(&mut self) {
        // A process that is being started has inherited it, until its exec.
        let _ = flock(&self.locked, FlockOperation::Unlock);
    }
}

impl Sole {
    /// Makes a mount of this process the sole one of its export, if its options say so.
    ///
    /// # Errors
    /// If some of the names have another sole mount.
    pub(crate) fn take(
        runtime_dir: &RuntimeDir,
        back: &Backend,
        mountpoint: &Path,
    ) -> Result<Option<Sole>> {
        // A volume sees to it itself, directory by directory.
        let is_leased = back.source.protocol == Protocol::Native;
        if !back.options.exclusive || is_leased {
            return Ok(None);
        }
        let record = SoleRecord {
            source: back.source.to_string(),
            port: back.source.port.or(back.options.port).unwrap_or(PORT),
            mountpoint: mountpoint.to_owned(),
            pid: std::process::id(),
        };
        Sole::take_as(runtime_dir, &record).map(Some)
    }

    fn take_as(runtime_dir: &RuntimeDir, record: &SoleRecord) -> Result<Sole> {
        // No other process looks for sole mounts meanwhile, or becomes one.
        let _locked = runtime_dir.lock()?;
        for path in runtime_dir.sole_files()? {
            let Some(other) = living(&path) else {
                let _ = std::fs::remove_file(&path);
                continue;
            };
            if overlap(record, &other) {
                refuse(runtime_dir, &other)?;
            }
        }
        let path = runtime_dir.sole_file(&record.mountpoint);
        let shown = || format!("cannot write {}", path.display());
        // The mount that was here before keeps its file while its process holds it.
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, serde_json::to_vec(record)?).with_context(shown)?;
        let file = File::open(&path).with_context(shown)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(shown)?;
        Ok(Sole { locked: file })
    }
}

/// The sole mount of a file, if its process lives.
fn living(path: &Path) -> Option<SoleRecord> {
    let file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    serde_json::from_reader(file).ok()
}

/// Whether one of the exports has names of the other.
fn overlap(one: &SoleRecord, other: &SoleRecord) -> bool {
    let (Ok(a), Ok(b)) = (Source::parse(&one.source), Source::parse(&other.source)) else {
        return one.source == other.source;
    };
    let (a_path, b_path) = (Path::new(&a.export), Path::new(&b.export));
    let is_within = a_path.starts_with(b_path) || b_path.starts_with(a_path);
    a.protocol == b.protocol
        && a.host.eq_ignore_ascii_case(&b.host)
        && one.port == other.port
        && is_within
}

/// Says who has the names, and what to do.
fn refuse(
    runtime_dir: &RuntimeDir,
    SoleRecord { source, mountpoint, pid, .. }: &SoleRecord,
) -> Result<()> {
    let is_detached =
        |record: &crate::runtime_dir::Record| record.pid == *pid && record.is_detached;
    let end = match runtime_dir.list()?.iter().any(is_detached) {
        true => format!("larder umount --pid {pid}"),
        false => format!("larder umount {}", mountpoint.display()),
    };
    bail!(
        "process {pid} has {source} mounted on {} with option exclusive, and only one mount may: \
         use that one, or end it by {end}",
        mountpoint.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(source: &str, mountpoint: &str) -> SoleRecord {
        let parsed = Source::parse(source).unwrap();
        let port = parsed.port.unwrap_or(PORT);
        SoleRecord { source: parsed.to_string(), port, mountpoint: mountpoint.into(), pid: 7 }
    }

    #[test]
    fn an_export_has_one_sole_mount() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        let first = Sole::take_as(&dir, &record("nfs://server/a", "/one")).unwrap();
        for (source, is_refused) in [
            ("nfs://server/a", true),
            ("server:/a/", true),
            ("nfs://SERVER:2049/a", true),
            ("nfs://server/a/below", true),
            ("nfs://server/", true),
            ("nfs://server/ab", false),
            ("nfs://server:7/a", false),
            ("nfs://other/a", false),
        ] {
            let second = Sole::take_as(&dir, &record(source, "/two")).map(drop);
            assert_eq!(second.is_err(), is_refused, "{source}");
            let Err(error) = second else { continue };
            let told = format!("{error:#}");
            assert!(told.contains("process 7") && told.contains("/one"), "{told}");
        }
        drop(first);
        // As after a death: nobody holds it.
        assert_eq!(dir.sole_files().unwrap().len(), 2);
        let second = Sole::take_as(&dir, &record("nfs://server/a", "/two")).unwrap();
        assert_eq!(dir.sole_files().unwrap().len(), 1);
        // As after an unmount whose daemon is still ending.
        dir.remove(Path::new("/two"));
        let third = Sole::take_as(&dir, &record("nfs://server/a", "/two")).unwrap();
        drop(second);
        assert!(Sole::take_as(&dir, &record("nfs://server/a", "/three")).is_err());
        drop(third);
    }

    /// Also a mount that is out of the name space, and still served.
    #[test]
    fn a_detached_mount_stays_the_sole_one() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        let sole_record = record("nfs://server/a", "/one");
        let record = crate::runtime_dir::Record {
            mountpoint: "/one".into(),
            source: sole_record.source.clone(),
            cache: None,
            pid: 7,
            log: None,
            is_detached: false,
            is_trying: false,
        };
        dir.put(&sole_record.mountpoint, &record).unwrap();
        std::fs::write(dir.socket(&sole_record.mountpoint), "").unwrap();
        let first = Sole::take_as(&dir, &sole_record).unwrap();
        dir.detach(&sole_record.mountpoint).unwrap();
        let second = Sole::take_as(&dir, &sole_record).map(drop).unwrap_err();
        assert!(format!("{second:#}").contains("larder umount --pid 7"), "{second:#}");
        dir.remove_detached(&sole_record.mountpoint, 7);
        drop(first);
        Sole::take_as(&dir, &sole_record).unwrap();
    }
}
