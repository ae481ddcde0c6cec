//! The runtime directory, for the files of running mounts and exports: only its owner may enter it.
//!
//! For each mount files that share a name: `.sock`, where its daemon listens; `.json`, the
//! [`Record`] that outlives a dead daemon; `.log`; `.sole`, if no other may change names
//! ([`crate::sole`]). The record is written before the socket is bound and removed after it; a
//! socket that refuses connections belongs to a daemon that died. If the mount is out of the name
//! space, and its daemon still serves open files, the names include the process id too
//! ([`RuntimeDir::detach`]), because the mountpoint is free for another mount. An export and a
//! server of a volume have only a socket, whose name begins with its [`Kind`].

use std::fs::{DirBuilder, File};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::control::daemon_lives;
use crate::mountpoint;

/// Overrides the directory; for tests and containers.
const VARIABLE: &str = "LARDER_RUNTIME_DIR";

/// Longest part of a log's name that identifies the mount.
const NAME_CHARS_MAX: usize = 100;

/// A longer log is moved aside when its mount begins again.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How long the log of a mount that is gone is kept.
const LOG_AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The kind of the file of a sole mount.
const SOLE: &str = "sole";

/// Servers that have only a socket here, and no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An export, by its address.
    Export,
    /// A metadata server, by its address.
    Volume,
    /// A metadata server that stands by, by its process.
    Standby,
    /// A disk, by its address.
    Disk,
}

impl Kind {
    /// How the names of the sockets begin.
    fn prefix(self) -> &'static str {
        match self {
            Kind::Export => "export-",
            Kind::Volume => "volume-",
            Kind::Standby => "standby-",
            Kind::Disk => "disk-",
        }
    }
}

/// The directory of this user's running mounts and exports.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeDir(PathBuf);

/// What is known of a mount, even when its daemon is dead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Where it is mounted; for people, if it is not UTF-8.
    pub(crate) mountpoint: PathBuf,
    /// What is mounted.
    pub(crate) source: String,
    /// Its cache directory, if it has one.
    pub(crate) cache: Option<PathBuf>,
    /// Process of the daemon.
    pub(crate) pid: u32,
    /// Where the daemon logs, if not to its terminal.
    pub(crate) log: Option<PathBuf>,
    /// The mount is out of the name space, and the daemon still serves it: its files are named by
    /// its process then.
    #[serde(default)]
    pub(crate) is_detached: bool,
    /// Nothing is mounted yet: the daemon tries to reach the server.
    #[serde(default)]
    pub(crate) is_trying: bool,
}

impl RuntimeDir {
    /// The directory of this user: `/run/larder` for root, else `$XDG_RUNTIME_DIR/larder`, else one
    /// in the directory for temporary files. It is made if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or if others could tamper with it.
    pub(crate) fn open() -> Result<RuntimeDir> {
        let uid = rustix::process::geteuid().as_raw();
        let path = match (std::env::var_os(VARIABLE), std::env::var_os("XDG_RUNTIME_DIR")) {
            (Some(path), _) => PathBuf::from(path),
            (None, _) if uid == 0 => PathBuf::from("/run/larder"),
            (None, Some(path)) => PathBuf::from(path).join("larder"),
            (None, None) => std::env::temp_dir().join(format!("larder-{uid}")),
        };
        RuntimeDir::at(path)
    }

    /// Uses `path`, which is made if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made, or if others could tamper with it.
    pub(crate) fn at(path: PathBuf) -> Result<RuntimeDir> {
        make_private(&path, "runtime directory")?;
        Ok(RuntimeDir(path))
    }

    /// Where the daemon of `mountpoint` listens.
    pub(crate) fn socket(&self, mountpoint: &Path) -> PathBuf {
        self.file(mountpoint, "sock")
    }

    /// Where the daemon of a record listens.
    pub(crate) fn socket_of(&self, record: &Record) -> PathBuf {
        match record.is_detached {
            true => self.detached(&record.mountpoint, record.pid, "sock"),
            false => self.socket(&record.mountpoint),
        }
    }

    /// Where the daemon of `mountpoint` logs by default: a name that identifies the mount.
    pub(crate) fn log(&self, mountpoint: &Path) -> PathBuf {
        let readable = mountpoint.to_string_lossy().trim_matches('/').replace('/', "-");
        let mut readable: String = readable.chars().take(NAME_CHARS_MAX).collect();
        if readable.is_empty() {
            readable.push_str("root");
        }
        self.0.join(format!("{readable}-{}.log", mountpoint::short_name(mountpoint)))
    }

    /// Before a mount begins to log: its previous log is moved aside if it is long, so that there
    /// are at most two; and the logs of mounts that have been gone for a while are removed.
    pub(crate) fn tidy_logs(&self, mountpoint: &Path) {
        let log = self.log(mountpoint);
        if log.metadata().is_ok_and(|held| held.len() > LOG_BYTES_MAX) {
            let _ = std::fs::rename(&log, log.with_extension("log.old"));
        }
        for path in self.entries().unwrap_or_default() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.strip_suffix(".old").unwrap_or(&name);
            let Some(name) = name.strip_suffix(".log") else { continue };
            let hash = name.rsplit_once('-').map_or(name, |(_, hash)| hash);
            let is_mounted = self.0.join(hash).with_extension("json").exists();
            let modified = path.metadata().and_then(|held| held.modified());
            let age = modified.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
            if !is_mounted && age > LOG_AGE_MAX {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Where the export that listens at `address` answers.
    pub(crate) fn export_socket(&self, address: SocketAddr) -> PathBuf {
        self.socket_named(Kind::Export, &address.to_string())
    }

    /// Where the server of this kind and name answers.
    pub(crate) fn socket_named(&self, kind: Kind, name: &str) -> PathBuf {
        let name = mountpoint::short_name(Path::new(name));
        self.0.join(format!("{}{name}.sock", kind.prefix()))
    }

    /// The sockets of all servers of a kind, including dead ones.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn sockets(&self, kind: Kind) -> Result<Vec<PathBuf>> {
        let names = self.entries()?.into_iter();
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            name.starts_with(kind.prefix().as_bytes()) && name.ends_with(b".sock")
        };
        let mut sockets: Vec<PathBuf> = names.filter(is_one).collect();
        sockets.sort_unstable();
        Ok(sockets)
    }

    /// The file of a mount that is the only one that changes names in its export.
    pub(crate) fn sole_file(&self, mountpoint: &Path) -> PathBuf {
        self.file(mountpoint, SOLE)
    }

    /// The files of all sole mounts, including dead ones.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn sole_files(&self) -> Result<Vec<PathBuf>> {
        let mut paths = self.entries()?;
        paths.retain(|path| path.extension().is_some_and(|kind| kind == SOLE));
        Ok(paths)
    }

    /// Removes the socket of a server that is gone.
    ///
    /// # Errors
    /// If the directory cannot be locked.
    pub(crate) fn remove_if_dead(&self, socket: &Path) -> Result<()> {
        let _locked = self.lock()?;
        if !daemon_lives(socket) {
            let _ = std::fs::remove_file(socket);
        }
        Ok(())
    }

    /// Excludes other processes that call this, until the returned value is dropped: between
    /// finding a dead export's socket and removing it, no living one may replace it.
    ///
    /// # Errors
    /// If the directory cannot be locked.
    pub(crate) fn lock(&self) -> Result<File> {
        let shown = || format!("cannot lock {}", self.0.display());
        let dir = File::open(&self.0).with_context(shown)?;
        rustix::fs::flock(&dir, rustix::fs::FlockOperation::LockExclusive).with_context(shown)?;
        Ok(dir)
    }

    fn entries(&self) -> Result<Vec<PathBuf>> {
        let shown = || self.0.display().to_string();
        let entries = std::fs::read_dir(&self.0).with_context(shown)?;
        entries.map(|entry| Ok(entry.with_context(shown)?.path())).collect()
    }

    fn file(&self, mountpoint: &Path, kind: &str) -> PathBuf {
        self.0.join(mountpoint::short_name(mountpoint)).with_extension(kind)
    }

    fn detached(&self, mountpoint: &Path, pid: u32, kind: &str) -> PathBuf {
        self.0.join(format!("{}-{pid}.{kind}", mountpoint::short_name(mountpoint)))
    }

    /// Renames the files of a mount that is out of the name space after its daemon's process, so
    /// that the mountpoint is free.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn detach(&self, mountpoint: &Path) -> Result<()> {
        let Some(mut record) = self.get(mountpoint) else { return Ok(()) };
        record.is_detached = true;
        let path = self.detached(mountpoint, record.pid, "json");
        std::fs::write(&path, serde_json::to_vec(&record)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let sole = self.detached(mountpoint, record.pid, SOLE);
        let _ = std::fs::rename(self.sole_file(mountpoint), sole);
        if std::fs::rename(self.socket(mountpoint), self.socket_of(&record)).is_err() {
            // It has ended just now, and removed its traces.
            self.remove_detached(mountpoint, record.pid);
        }
        self.remove(mountpoint);
        Ok(())
    }

    /// Removes what [`RuntimeDir::detach`] left of a mount whose daemon was this process.
    pub(crate) fn remove_detached(&self, mountpoint: &Path, pid: u32) {
        for kind in ["sock", "json", SOLE] {
            let _ = std::fs::remove_file(self.detached(mountpoint, pid, kind));
        }
    }

    /// Writes the record of a mount, replacing an older one at once.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn put(&self, mountpoint: &Path, record: &Record) -> Result<()> {
        let (path, new) = (self.file(mountpoint, "json"), self.file(mountpoint, "new"));
        std::fs::write(&new, serde_json::to_vec(record)?)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The record of a mount, if there is one.
    pub(crate) fn get(&self, mountpoint: &Path) -> Option<Record> {
        read(&self.file(mountpoint, "json"))
    }

    /// All records, sorted by mountpoint.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn list(&self) -> Result<Vec<Record>> {
        let mut paths = self.entries()?;
        paths.retain(|path| path.extension().is_some_and(|kind| kind == "json"));
        let mut records: Vec<_> = paths.iter().filter_map(|path| read(path)).collect();
        records.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
        Ok(records)
    }

    /// Removes the files of a mount, except its log. Missing files are not an error.
    pub(crate) fn remove(&self, mountpoint: &Path) {
        for kind in ["sock", "json", "new", SOLE] {
            let _ = std::fs::remove_file(self.file(mountpoint, kind));
        }
    }
}

/// Makes a directory, which errors call `what`, for this user alone, if it does not exist.
///
/// # Errors
/// If it cannot be made, or if others could tamper with it.
pub(crate) fn make_private(path: &Path, what: &str) -> Result<()> {
    let shown = path.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot make the {what} {shown}"))?;
    let held = std::fs::symlink_metadata(path).with_context(|| shown.to_string())?;
    let uid = rustix::process::geteuid().as_raw();
    ensure!(
        held.is_dir() && held.uid() == uid,
        "the {what} {shown} is not a directory of user {uid}: remove it, or name another one"
    );
    ensure!(
        held.mode() & 0o077 == 0,
        "the {what} {shown} is open to others: close it with chmod 700 {shown}"
    );
    Ok(())
}

/// A record that cannot be decoded counts as missing: it is incomplete or from another version.
fn read(path: &Path) -> Option<Record> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn record(mountpoint: &str) -> Record {
        Record {
            mountpoint: mountpoint.into(),
            source: "nfs://server/".to_owned(),
            cache: None,
            pid: 1,
            log: None,
            is_detached: false,
            is_trying: false,
        }
    }

    #[test]
    fn records_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        for mountpoint in ["/b", "/a"] {
            dir.put(Path::new(mountpoint), &record(mountpoint)).unwrap();
        }
        std::fs::write(folder.path().join("larder/broken.json"), "{").unwrap();
        let listed: Vec<_> = dir.list().unwrap().into_iter().map(|r| r.mountpoint).collect();
        assert_eq!(listed, [Path::new("/a"), Path::new("/b")]);
        dir.remove(Path::new("/a"));
        assert_eq!(dir.get(Path::new("/a")), None);
        assert_eq!(dir.get(Path::new("/b")), Some(record("/b")));
    }

    #[test]
    fn logs_tell_their_mount_and_do_not_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        let (here, gone, kept) = (Path::new("/mnt/films"), Path::new("/gone"), Path::new("/kept"));
        let name = dir.log(here).file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("mnt-films-") && name.ends_with(".log"), "{name}");
        assert!(dir.log(Path::new("/")).to_str().unwrap().contains("root-"));
        dir.put(kept, &record("/kept")).unwrap();
        let log = |mountpoint| std::fs::File::create(dir.log(mountpoint)).unwrap();
        log(here).set_len(LOG_BYTES_MAX + 1).unwrap();
        let long_ago = std::time::SystemTime::now() - 2 * LOG_AGE_MAX;
        log(gone).set_modified(long_ago).unwrap();
        log(kept).set_modified(long_ago).unwrap();
        dir.tidy_logs(here);
        assert!(!dir.log(here).exists() && dir.log(here).with_extension("log.old").exists());
        assert!(!dir.log(gone).exists() && dir.log(kept).exists());
    }

    /// Its mountpoint is free then, and it is listed until its files are removed.
    #[test]
    fn a_detached_mount_goes_by_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        let at = Path::new("/a");
        dir.put(at, &record("/a")).unwrap();
        std::fs::write(dir.socket(at), "").unwrap();
        dir.detach(at).unwrap();
        assert!(dir.get(at).is_none() && !dir.socket(at).exists());
        dir.put(at, &Record { pid: 2, ..record("/a") }).unwrap();
        let listed = dir.list().unwrap();
        let [old] = &listed.iter().filter(|one| one.is_detached).collect::<Vec<_>>()[..] else {
            panic!("{listed:?}")
        };
        assert!(old.pid == 1 && dir.socket_of(old).exists());
        dir.remove_detached(at, 1);
        assert_eq!(dir.list().unwrap().len(), 1);
        assert_eq!(dir.get(at).unwrap().pid, 2);
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder");
        assert!(RuntimeDir::at(path.clone()).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(RuntimeDir::at(path).is_err());
    }
}
