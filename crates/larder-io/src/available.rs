//! How much memory this process can still take: what the machine has available, and the limits of
//! the cgroups that the process is in (version 2, and the memory controller of version 1).
//!
//! An estimate of this moment: other processes take and return memory. Pages that the kernel can
//! drop at once count as available.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Memory that can still be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// How many bytes.
    pub bytes: u64,
    /// The directory of the cgroup that sets the limit; `None`: the machine has no more.
    pub cgroup: Option<PathBuf>,
}

/// The memory that this process can still take.
///
/// # Errors
/// If the kernel does not report it.
pub fn available_memory() -> io::Result<AvailableMemory> {
    available_under(Path::new("/"))
}

/// The same with `/proc` and `/sys` in another directory.
fn available_under(root: &Path) -> io::Result<AvailableMemory> {
    let machine = fs::read_to_string(root.join("proc/meminfo"))?;
    let bytes = bytes_available(&machine).ok_or(io::ErrorKind::InvalidData)?;
    let mut least = AvailableMemory { bytes, cgroup: None };
    // A system without cgroups has no such file.
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for (version, top, path) in groups.lines().filter_map(of_memory) {
        // The limit of each group above holds, too. Groups that cannot be seen from here are left
        // out.
        for group in Path::new(path).ancestors() {
            let dir = root.join(top).join(group.strip_prefix("/").unwrap_or(group));
            if let Some(bytes) = version.left(&dir).filter(|bytes| *bytes < least.bytes) {
                least = AvailableMemory { bytes, cgroup: Some(dir) };
            }
        }
    }
    Ok(least)
}

/// The line `MemAvailable` of proc_meminfo(5), in bytes.
fn bytes_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What a line of cgroups(7)'s `/proc/self/cgroup` says of memory: the version, where its groups
/// are mounted, and which one it is.
fn of_memory(line: &str) -> Option<(Version, &'static str, &str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    match controllers {
        "" => Some((Version::Two, "sys/fs/cgroup", path)),
        _ if controllers.split(',').any(|one| one == "memory") => {
            Some((Version::One, "sys/fs/cgroup/memory", path))
        }
        _ => None,
    }
}

/// The version of a hierarchy of cgroups.
#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Its files for the limit, what is used, and the word in `memory.stat` for pages of files that
    /// were not used lately.
    fn names(self) -> [&'static str; 3] {
        match self {
            Version::One => {
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"]
            }
            Version::Two => ["memory.max", "memory.current", "inactive_file"],
        }
    }

    /// How many bytes the processes of a group can still take. `None` if it has no limit.
    fn left(self, dir: &Path) -> Option<u64> {
        let [limit, used, inactive] = self.names();
        let number = |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
        let (limit, used): (u64, u64) = (number(limit)?, number(used)?);
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let words = |line: &str| {
            let (word, count) = line.split_once(' ')?;
            (word == inactive).then(|| count.trim().parse::<u64>().ok())?
        };
        let dropped = stat.lines().find_map(words).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(dropped)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine with 8 GiB available, and these files.
    fn machine(files: &[(&str, &str)]) -> AvailableMemory {
        let root = tempfile::tempdir().unwrap();
        let meminfo =
            ("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
        for (path, text) in std::iter::once(&meminfo).chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = available_under(root.path()).unwrap();
        let inner = |dir: &Path| dir.strip_prefix(root.path()).unwrap().to_owned();
        AvailableMemory { cgroup: found.cgroup.as_deref().map(inner), ..found }
    }

    fn limited(bytes: u64, cgroup: &str) -> AvailableMemory {
        AvailableMemory { bytes, cgroup: Some(cgroup.into()) }
    }

    #[test]
    fn a_machine_without_limits_has_what_is_available() {
        let all = AvailableMemory { bytes: 8 * GIB, cgroup: None };
        assert_eq!(machine(&[]), all);
        assert_eq!(
            machine(&[
                ("proc/self/cgroup", "4:memory:/a\n1:cpu:/b\n0::/c/d\n"),
                ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5000\n"),
                ("sys/fs/cgroup/c/d/memory.max", "max\n"),
                ("sys/fs/cgroup/c/d/memory.current", "5000\n"),
            ]),
            all
        );
        let here = available_memory().unwrap();
        assert!(here.bytes > 1 << 20, "{here:?}");
    }

    #[test]
    fn the_narrowest_group_decides() {
        let two = [
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/outer/memory.current", "1610612736\n"),
            ("sys/fs/cgroup/outer/memory.stat", "anon 7\ninactive_file 536870912\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/inner/memory.current", "1000\n"),
        ];
        assert_eq!(machine(&two), limited(GIB, "sys/fs/cgroup/outer"));
        let narrow = ("sys/fs/cgroup/outer/inner/memory.max", "1001000\n");
        let narrow: Vec<_> = two.into_iter().chain([narrow]).collect();
        assert_eq!(machine(&narrow), limited(1_000_000, "sys/fs/cgroup/outer/inner"));
        let over = ("sys/fs/cgroup/outer/inner/memory.max", "10\n");
        let over: Vec<_> = two.into_iter().chain([over]).collect();
        assert_eq!(machine(&over), limited(0, "sys/fs/cgroup/outer/inner"));
        let one = [
            ("proc/self/cgroup", "5:cpu,memory:/a/b\n0::/\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4096\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 9\ntotal_inactive_file 4096\n"),
        ];
        assert_eq!(machine(&one), limited(GIB, "sys/fs/cgroup/memory/a"));
    }
}
