//! Opening a cache in a directory: for a mount, or to look after it while it is not mounted.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use larder_cache::{Cache, Config, Descriptors, Limits, Marks, OpenError};
use larder_io::{BootId, RealClock, RealDisk};

use crate::control::daemon_lives;
use crate::options::CacheLimits;
use crate::runtime_dir::{Record, RuntimeDir};
use crate::source::Source;

/// A cache and where it is.
pub(crate) struct Opened {
    /// The cache.
    pub(crate) cache: Cache,
    /// Its directory, without symbolic links.
    pub(crate) dir: PathBuf,
}

/// Opens the cache of `source` at `dir`, which is made if it is not there, and removed again if no
/// cache can be made in it. `mountpoint`, if there is one, must not be in it, nor it in `mountpoint`.
///
/// # Errors
/// If the directory cannot be used; see [`OpenError`].
pub(crate) fn open(
    dir: &Path,
    source: &Source,
    limits: &CacheLimits,
    mountpoint: Option<&Path>,
) -> Result<Opened> {
    let shown = || format!("cannot use the cache directory {}", dir.display());
    let made = !dir.exists();
    // Bytes of all users lie in it: only its owner may look.
    DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(shown)?;
    let opened = (|| {
        let dir = dir.canonicalize()?;
        let within = |one: &Path| dir.starts_with(one) || one.starts_with(&dir);
        ensure!(
            !mountpoint.is_some_and(within),
            "it and the mountpoint must not lie in each other"
        );
        let mut config = Config::new(source.to_string().as_bytes());
        config.limits = meant(limits);
        config.boot = BootId::current();
        config.descriptors = Descriptors::within(larder_io::descriptors::raise_limit());
        let disk = Arc::new(RealDisk::open(&dir)?);
        let opened = Cache::open(disk, Arc::new(RealClock), config);
        let cache = opened.map_err(|error| told(error, &dir))?;
        Ok(Opened { cache, dir })
    })();
    if opened.is_err() && made {
        // Only an empty one goes.
        let _ = std::fs::remove_dir(dir);
    }
    opened.with_context(shown)
}

/// Opens a cache that is not mounted, whatever it is of.
///
/// # Errors
/// If there is none, or it is in use; see [`OpenError`].
pub(crate) fn open_offline(dir: &Path) -> Result<Cache> {
    let shown = || format!("cannot open the cache at {}", dir.display());
    let empty = dir.read_dir().with_context(shown)?.next().is_none();
    ensure!(!empty, "there is no cache at {}", dir.display());
    let open = |identity: &[u8]| {
        let disk = RealDisk::open(dir).map_err(OpenError::Unwritable)?;
        let boot = BootId::current();
        let config = Config { checkpoint_interval: None, boot, ..Config::new(identity) };
        Cache::open(Arc::new(disk), Arc::new(RealClock), config)
    };
    match open(&[]) {
        // A cache tells its volume to whoever comes with another one.
        Err(OpenError::OtherVolume { found }) => {
            let identity = identity_shown_as(&found).with_context(shown)?;
            open(identity.as_bytes()).with_context(shown)
        }
        opened => opened.with_context(shown),
    }
}

/// The identity, which is always a source of ours, from the way an error shows it: `volume`, then
/// hexadecimal digits.
fn identity_shown_as(found: &str) -> Option<String> {
    let digits = found.strip_prefix("volume ")?;
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

/// Says it as people need it: the volume by its name, and who has the cache.
fn told(error: OpenError, dir: &Path) -> anyhow::Error {
    match &error {
        OpenError::InUse { .. } => match user_of(dir) {
            Some(record) if record.is_detached => {
                let (shown, pid) = (record.mountpoint.display(), record.pid);
                anyhow!(
                    "it is in use by what was mounted on {shown} and is still served by process {pid}: \
                     larder umount --pid {pid} ends it"
                )
            }
            Some(record) => {
                let shown = record.mountpoint.display();
                anyhow!(
                    "it is in use by the mount on {shown}: larder umount {shown}, or choose another"
                )
            }
            None => error.into(),
        },
        OpenError::OtherVolume { found } => match identity_shown_as(found) {
            Some(source) => anyhow!("it holds {source}: choose another directory"),
            None => error.into(),
        },
        _ => error.into(),
    }
}

/// The cache's limits, as the options mean them.
fn meant(limits: &CacheLimits) -> Limits {
    let default = Limits::default();
    let marks = limits.free;
    Limits {
        bytes: limits.bytes_max.map_or(default.bytes, Marks::below),
        files: limits.files_max.map_or(default.files, Marks::below),
        free_percent: Marks {
            run: marks.run.into(),
            cull: marks.cull.into(),
            stop: marks.stop.into(),
        },
    }
}

/// The mount of this user whose living daemon has this cache.
fn user_of(dir: &Path) -> Option<Record> {
    let runtime = RuntimeDir::open().ok()?;
    let mut users = runtime.list().ok()?.into_iter();
    users.find(|record| {
        record.cache.as_deref() == Some(dir) && daemon_lives(&runtime.socket_of(record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_given_are_the_caches_own() {
        assert_eq!(meant(&CacheLimits::default()), Limits::default());
        let limits = CacheLimits { bytes_max: Some(1000), ..CacheLimits::default() };
        assert_eq!(meant(&limits).bytes, Marks { run: 850, cull: 950, stop: 1000 });
    }

    #[test]
    fn identities_are_read_back() {
        assert_eq!(identity_shown_as("volume 6e6673").as_deref(), Some("nfs"));
        assert_eq!(identity_shown_as("volume 6"), None);
        assert_eq!(identity_shown_as("6e"), None);
    }

    #[test]
    fn a_cache_is_bound_to_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, mountpoint) = (folder.path().join("cache"), folder.path().join("mnt"));
        let open = |source| {
            open(&dir, &Source::parse(source).unwrap(), &CacheLimits::default(), Some(&mountpoint))
        };
        let opened = open("nfs://server/a").unwrap();
        assert_eq!(opened.dir, dir.canonicalize().unwrap());
        let busy = format!("{:#}", open_offline(&dir).unwrap_err());
        assert!(busy.contains("in use"), "{busy}");
        opened.cache.close().unwrap();
        let other = open("nfs://server/b").map(|_| ()).unwrap_err();
        assert!(format!("{other:#}").contains("it holds nfs://server/a"), "{other:#}");
        open_offline(&dir).unwrap().close().unwrap();
    }

    #[test]
    fn a_cache_directory_that_cannot_be_is_not_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("mnt/cache");
        let source = Source::parse("nfs://server/a").unwrap();
        std::fs::create_dir(folder.path().join("mnt")).unwrap();
        let mountpoint = folder.path().join("mnt").canonicalize().unwrap();
        assert!(open(&dir, &source, &CacheLimits::default(), Some(&mountpoint)).is_err());
        assert!(!dir.exists());
    }

    #[test]
    fn what_is_no_cache_is_not_made_one() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open_offline(folder.path()).is_err());
        assert!(open_offline(&folder.path().join("missing")).is_err());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
