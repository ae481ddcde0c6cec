//! Targets: directories with names.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use larder_io::mountinfo::mounted_around;

use crate::rpc::Counter;
use crate::suite::Test;

/// A directory to be measured.
#[derive(Clone)]
pub struct Target {
    /// Name in the report.
    pub name: String,
    /// The directory.
    pub dir: PathBuf,
    /// The same directory on the server, which bypasses the target.
    pub back: Option<PathBuf>,
    /// The directory as its further clients see it, each through a mount of its own. Copies beyond
    /// these, and the first, work in `dir`.
    pub clients: Vec<PathBuf>,
    /// The cost of its processes to the machine so far.
    pub costs: Option<Costs>,
    /// The source of its RPC counts.
    pub counter: Counter,
    /// Directories on local disks from which its bytes come: none of them may be in the page cache
    /// when a cold test begins.
    pub disks: Vec<PathBuf>,
    /// Mounts it again, if that can be done.
    pub restart: Option<Restart>,
    /// Command or options that made it, for the report.
    pub options: String,
    /// Version of what serves it, for the report.
    pub version: String,
    /// What its clients make or write may be on their machines alone, until it is removed there.
    pub changes_wait: bool,
    /// The tests that it runs: those that one of these chooses. Empty: all.
    pub tests: &'static [Chosen],
}

/// Some of a suite's tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Of these names; empty: of any.
    pub names: &'static [&'static str],
    /// Of one of these numbers of copies; empty: of any number.
    pub copies: &'static [u32],
}

impl Chosen {
    /// Whether a test is one of them.
    fn includes(self, test: &Test) -> bool {
        (self.names.is_empty() || self.names.contains(&test.name))
            && (self.copies.is_empty() || self.copies.contains(&test.copies))
    }
}

/// Whether a test is among what is chosen.
pub fn includes(chosen: &[Chosen], test: &Test) -> bool {
    chosen.is_empty() || chosen.iter().any(|one| one.includes(test))
}

/// The cost of processes so far, by name with unit: CPU time, changes of thread, calls, commits.
pub type Costs = Arc<dyn Fn() -> BTreeMap<String, f64> + Send + Sync>;

/// Unmounts and mounts again so many of its clients, the first ones; with `true` after emptying
/// their disk caches.
pub type Restart = Arc<dyn Fn(usize, bool) -> Result<()> + Send + Sync>;

impl Target {
    /// A directory without further information.
    pub fn new(name: &str, dir: &Path) -> Target {
        Target {
            name: name.to_owned(),
            dir: dir.to_path_buf(),
            back: None,
            clients: Vec::new(),
            costs: None,
            counter: Counter::None,
            disks: Vec::new(),
            restart: None,
            options: String::new(),
            version: String::new(),
            changes_wait: false,
            tests: &[],
        }
    }

    /// From the command line: `NAME=DIR`, and after commas `back=DIR` (the same directory on the
    /// server) and `export=IP:PORT` (our NFS server that counts its RPCs). A mount of ours is
    /// recognised by asking.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(typed: &str, larder: &Path) -> Result<Target> {
        let (name, rest) = typed
            .split_once('=')
            .filter(|(name, rest)| !name.is_empty() && !rest.is_empty())
            .with_context(|| format!("{typed}: a target is written NAME=DIR"))?;
        let mut parts = rest.split(',');
        let dir = directory(parts.next().unwrap_or_default())?;
        let mut target = Target::new(name, &dir);
        target.counter = Counter::of_mount(larder, &dir);
        target.options = mount_of(&dir).unwrap_or_default();
        for part in parts {
            match part.split_once('=') {
                Some(("back", back)) => target.back = Some(directory(back)?),
                Some(("export", address)) => {
                    target.counter =
                        Counter::Export { larder: larder.into(), address: address.into() };
                }
                _ => bail!("{part}: a target takes back=DIR and export=IP:PORT"),
            }
        }
        let disk = target.back.clone().unwrap_or_else(|| dir.clone());
        if is_local(&disk) {
            target.disks.push(disk);
        }
        Ok(target)
    }

    /// Whether it runs a test.
    pub fn runs(&self, test: &Test) -> bool {
        includes(self.tests, test)
    }

    /// Where a copy works, from 0.
    pub fn of_copy(&self, copy: u32) -> &Path {
        let further = (copy as usize).checked_sub(1).and_then(|at| self.clients.get(at));
        further.unwrap_or(&self.dir)
    }

    /// The cost of its processes so far, by name with unit: `server_cpu_s`.
    pub fn costs(&self) -> BTreeMap<String, f64> {
        self.costs.as_ref().map(|costs| costs()).unwrap_or_default()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.dir.display())
    }
}

fn directory(typed: &str) -> Result<PathBuf> {
    let dir = Path::new(typed).canonicalize().with_context(|| typed.to_owned())?;
    ensure!(dir.is_dir(), "{typed} is no directory");
    Ok(dir)
}

/// Type, source and options of the mount on which a directory is, as the kernel reports them.
pub fn mount_of(dir: &Path) -> Option<String> {
    let mount = mounted_around(dir).ok()??;
    Some(format!("{} {} {}", mount.kind, mount.source, mount.options))
}

/// Whether bytes of a directory come from a disk of this machine through its page cache.
fn is_local(dir: &Path) -> bool {
    let kind = mount_of(dir).unwrap_or_default();
    ["ext4 ", "xfs ", "btrfs ", "overlay "].iter().any(|local| kind.starts_with(local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_refused_in_words() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().canonicalize().unwrap();
        let larder = Path::new("/nonexistent");
        let shown = dir.display();
        let target =
            Target::parse(&format!("x={shown},back={shown},export=127.0.0.1:1"), larder).unwrap();
        assert_eq!(
            (target.name.as_str(), target.dir, target.back.as_deref()),
            ("x", dir.clone(), Some(&*dir))
        );
        assert!(matches!(target.counter, Counter::Export { .. }));
        for (typed, word) in [
            ("x", "NAME=DIR"),
            ("=y", "NAME=DIR"),
            ("x=", "NAME=DIR"),
            ("x=/nonexistent", "/nonexistent"),
            ("x=/etc/passwd", "no directory"),
            (&format!("x={shown},colour=red"), "back=DIR"),
        ] {
            let error = Target::parse(typed, larder).unwrap_err();
            assert!(format!("{error:#}").contains(word), "{typed}: {error:#}");
        }
    }

    #[test]
    fn every_client_has_its_directory() {
        let mut target = Target::new("x", Path::new("/0"));
        target.clients = vec!["/1".into(), "/2".into()];
        let dirs = [0, 1, 2, 3].map(|copy| target.of_copy(copy).to_path_buf());
        assert_eq!(dirs, ["/0", "/1", "/2", "/0"].map(PathBuf::from));
        assert!(target.costs().is_empty());
    }

    #[test]
    fn the_innermost_mount_is_found() {
        assert!(mount_of(Path::new("/proc/self")).unwrap().starts_with("proc "));
        assert!(mount_of(Path::new("/")).is_some());
    }
}
