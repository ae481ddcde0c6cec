//! Opens a cache in a directory: for a mount, or for maintenance while it is not mounted.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use larder_cache::{Cache, Config, Descriptors, Limits, Marks, OpenError};
use larder_client::parent_in_record;
use larder_io::{BootId, RealClock, RealDisk};

use crate::control::daemon_lives;
use crate::memory_dir;
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

/// Opens the cache of `source` at `dir`, which is made if it does not exist, with the directories
/// above, and removed again with them if no cache can be made in it. Existing content is recognised
/// first: a directory that is refused is not changed. At most `scratch_bytes_max` are in memory.
/// `mountpoint`, if there is one, must not be in it, nor it in `mountpoint`.
///
/// # Errors
/// If the directory cannot be used; see [`OpenError`].
pub(crate) fn open(
    dir: &Path,
    source: &Source,
    (limits, scratch_bytes_max): (&CacheLimits, Option<u64>),
    mountpoint: Option<&Path>,
) -> Result<Opened> {
    let shown = || format!("cannot use the cache directory {}", dir.display());
    let made: Vec<&Path> = dir.ancestors().take_while(|one| is_missing(one)).collect();
    // It contains bytes of all users: only its owner may read it.
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
        config.memory = memory_dir::of(&dir, scratch_bytes_max);
        config.boot = BootId::current();
        config.descriptors = Descriptors::within(larder_io::descriptors::raise_limit());
        config.parent_in_record = parent_in_record;
        let disk = Arc::new(RealDisk::open(&dir)?);
        let opened = Cache::open(disk, Arc::new(RealClock), config);
        let cache = opened.map_err(|error| explained(error, &dir))?;
        Ok(Opened { cache, dir })
    })();
    if opened.is_err() {
        for dir in made {
            // Only empty ones go.
            let _ = std::fs::remove_dir(dir);
        }
    }
    opened.with_context(shown)
}

/// Whether no object has this name; a relative one is looked up in the working directory.
fn is_missing(path: &Path) -> bool {
    !path.as_os_str().is_empty()
        && path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Opens a cache that is not mounted, whatever its volume.
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
        // Files that a mount left in memory are part of its unsent data.
        let memory = memory_dir::of(dir, Some(0));
        let checkpoint_interval = None;
        let config =
            Config { checkpoint_interval, memory, boot, parent_in_record, ..Config::new(identity) };
        Cache::open(Arc::new(disk), Arc::new(RealClock), config)
    };
    match open(&[]) {
        // A cache reports its volume when it is opened for another one.
        Err(OpenError::OtherVolume { found }) => {
            let identity = identity_shown_as(&found).with_context(shown)?;
            open(identity.as_bytes()).with_context(shown)
        }
        opened => opened.with_context(shown),
    }
}

/// The identity, which is always a source as we write it, from the form in which an error shows it:
/// `volume`, then hexadecimal digits.
fn identity_shown_as(found: &str) -> Option<String> {
    let digits = found.strip_prefix("volume ")?;
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

/// The error as people need it: with the name of the volume, and the process that has the cache.
fn explained(error: OpenError, dir: &Path) -> anyhow::Error {
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
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
            open(
                &dir,
                &Source::parse(source).unwrap(),
                (&CacheLimits::default(), None),
                Some(&mountpoint),
            )
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
        assert!(open(&dir, &source, (&CacheLimits::default(), None), Some(&mountpoint)).is_err());
        assert!(!dir.exists());
    }

    #[test]
    fn what_is_no_cache_is_not_made_one() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open_offline(folder.path()).is_err());
        assert!(open_offline(&folder.path().join("missing")).is_err());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    /// Opens a directory that is not a cache in both ways: as a mount does, and as a command does.
    fn refused_both_ways(dir: &Path) -> [String; 2] {
        let source = Source::parse("nfs://server/a").unwrap();
        let mounted =
            open(dir, &source, (&CacheLimits::default(), None), None).map(|_| ()).unwrap_err();
        let offline = open_offline(dir).map(|_| ()).unwrap_err();
        [mounted, offline].map(|error| format!("{error:#}"))
    }

    #[test]
    fn a_refused_directory_is_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (etc, link) = (folder.path().join("etc"), folder.path().join("link"));
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(etc.join("passwd"), "root").unwrap();
        std::os::unix::fs::symlink(&etc, &link).unwrap();
        for mode_before in [0o755, 0o1777, 0o2775] {
            std::fs::set_permissions(&etc, Permissions::from_mode(mode_before)).unwrap();
            for dir in [&etc, &link] {
                for told in refused_both_ways(dir) {
                    assert!(told.contains("cache"), "{told}");
                }
                assert_eq!(mode(&etc), mode_before, "{}", dir.display());
                assert_eq!(etc.read_dir().unwrap().count(), 1, "{}", dir.display());
            }
        }
    }

    #[test]
    fn an_empty_directory_that_all_may_write_to_is_no_place_for_a_cache() {
        let folder = tempfile::tempdir().unwrap();
        let tmp = folder.path().join("tmp");
        std::fs::create_dir(&tmp).unwrap();
        std::fs::set_permissions(&tmp, Permissions::from_mode(0o1777)).unwrap();
        let [told, _] = refused_both_ways(&tmp);
        assert!(told.contains("others may write"), "{told}");
        assert_eq!((mode(&tmp), tmp.read_dir().unwrap().count()), (0o1777, 0));
    }

    #[test]
    fn what_others_may_have_put_into_a_cache_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, source) = (folder.path().join("cache"), Source::parse("nfs://server/a").unwrap());
        let opened = open(&dir, &source, (&CacheLimits::default(), None), None).unwrap();
        opened.cache.close().unwrap();
        assert_eq!(mode(&dir), 0o700);
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        for told in refused_both_ways(&dir) {
            assert!(told.contains("others may write"), "{told}");
        }
        assert_eq!(mode(&dir), 0o777);
        // Others could read it: it is still our cache, and becomes private again.
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        open_offline(&dir).unwrap().close().unwrap();
        assert_eq!(mode(&dir), 0o700);
    }

    #[test]
    fn a_directory_of_another_user_is_refused_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("cache");
        std::fs::create_dir(&dir).unwrap();
        if std::os::unix::fs::chown(&dir, Some(12345), None).is_err() {
            // Without root there is no directory of another user here that could be damaged.
            return;
        }
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        let [told, _] = refused_both_ways(&dir);
        assert!(told.contains("belongs to user 12345"), "{told}");
        assert_eq!((mode(&dir), dir.read_dir().unwrap().count()), (0o755, 0));
    }

    #[test]
    fn directories_that_were_made_for_a_refused_cache_go_again() {
        let folder = tempfile::tempdir().unwrap();
        let within = folder.path().canonicalize().unwrap();
        let source = Source::parse("nfs://server/a").unwrap();
        let dir = folder.path().join("some/where/cache");
        assert!(open(&dir, &source, (&CacheLimits::default(), None), Some(&within)).is_err());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
