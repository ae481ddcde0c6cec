//! How much memory this process can still take: what the machine has available, and the limits of
//! the cgroups that the process is in (version 2, and the memory controller of version 1).
//!
//! An estimate of this moment: other processes take and return memory. Pages that the kernel can
//! drop at once count as available. [`headroom`] is for a process that can give memory back, and
//! leaves some to others.

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

/// What a process that can give memory back may still take, or is to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// How many bytes; less than 0: so many are to be given back.
    pub bytes: i64,
    /// Whether processes of the machine, or of a cgroup that this process is in, spend much of
    /// their time waiting for memory.
    pub is_stalled: bool,
}

/// Of each limit this much stays free: for what the process needs besides, and for what is taken
/// between two looks. A full memory disk of 64 MiB was killed by the kernel where 70 MiB were
/// allowed, and not with 76 MiB.
const RESERVE: u64 = 16 << 20;
/// Of the machine itself, this part of its memory stays free, if that is more.
const MACHINE_RESERVE_PART: u64 = 32;
/// From this part of the last 10 s on, in percent, in which all processes waited, these are
/// stalled.
const STALLED_PERCENT: f64 = 10.0;

/// The memory that this process can still take.
///
/// # Errors
/// If the kernel does not report it.
pub fn available_memory() -> io::Result<AvailableMemory> {
    available_under(Path::new("/"))
}

/// What this process may still take if others are to have some left, or is to give back.
///
/// # Errors
/// If the kernel does not report it.
pub fn headroom() -> io::Result<Headroom> {
    headroom_under(Path::new("/"))
}

fn headroom_under(root: &Path) -> io::Result<Headroom> {
    let machine = fs::read_to_string(root.join("proc/meminfo"))?;
    let total = bytes_of(&machine, "MemTotal:").ok_or(io::ErrorKind::InvalidData)?;
    let mut headroom = Headroom { bytes: i64::MAX, is_stalled: false };
    for AvailableMemory { bytes, cgroup } in all_under(root)? {
        let (reserve, pressure) = match &cgroup {
            None => {
                let reserve = RESERVE.max(total / MACHINE_RESERVE_PART);
                (reserve, root.join("proc/pressure/memory"))
            }
            Some(dir) => (RESERVE, dir.join("memory.pressure")),
        };
        headroom.bytes = headroom.bytes.min(bytes.cast_signed().saturating_sub_unsigned(reserve));
        // A kernel that does not measure it has no such file, nor has a group of version 1.
        headroom.is_stalled |= fs::read_to_string(pressure).is_ok_and(|text| is_stalled(&text));
    }
    Ok(headroom)
}

/// Whether a report of pressure stall information says that all processes wait for much of the
/// time.
fn is_stalled(pressure: &str) -> bool {
    let full = pressure.lines().find_map(|line| line.strip_prefix("full avg10="));
    let percent = full.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
    percent.is_some_and(|percent| percent >= STALLED_PERCENT)
}

/// What is available with `/proc` and `/sys` in another directory.
fn available_under(root: &Path) -> io::Result<AvailableMemory> {
    let all = all_under(root)?.into_iter();
    all.min_by_key(|one| one.bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// What the machine has available, and what each cgroup leaves that has a limit.
fn all_under(root: &Path) -> io::Result<Vec<AvailableMemory>> {
    let machine = fs::read_to_string(root.join("proc/meminfo"))?;
    let bytes = bytes_of(&machine, "MemAvailable:").ok_or(io::ErrorKind::InvalidData)?;
    let mut all = vec![AvailableMemory { bytes, cgroup: None }];
    // A system without cgroups has no such file.
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    for (version, top, path) in groups.lines().filter_map(of_memory) {
        // The limit of each group above holds, too. Groups that cannot be seen from here are left
        // out.
        for group in Path::new(path).ancestors() {
            let dir = root.join(top).join(group.strip_prefix("/").unwrap_or(group));
            if let Some(bytes) = version.left(&dir) {
                all.push(AvailableMemory { bytes, cgroup: Some(dir) });
            }
        }
    }
    Ok(all)
}

/// A line of proc_meminfo(5), in bytes.
fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
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
    /// Its files for what is used and for the limits, and the word in `memory.stat` for pages of
    /// files that were not used lately. Above `memory.high` the kernel slows processes down.
    fn names(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Version::One => {
                ("memory.usage_in_bytes", &["memory.limit_in_bytes"], "total_inactive_file")
            }
            Version::Two => ("memory.current", &["memory.max", "memory.high"], "inactive_file"),
        }
    }

    /// How many bytes the processes of a group can still take. `None` if it has no limit.
    fn left(self, dir: &Path) -> Option<u64> {
        let (used, limits, inactive) = self.names();
        let number =
            |name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        let limit = limits.iter().filter_map(|name| number(name)).min()?;
        let used = number(used)?;
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

    /// A machine with 8 of 16 GiB available, and these files.
    fn with_files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo =
            ("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
        for (path, text) in std::iter::once(&meminfo).chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn machine(files: &[(&str, &str)]) -> AvailableMemory {
        let root = with_files(files);
        let found = available_under(root.path()).unwrap();
        let inner = |dir: &Path| dir.strip_prefix(root.path()).unwrap().to_owned();
        AvailableMemory { cgroup: found.cgroup.as_deref().map(inner), ..found }
    }

    /// What a process may take of that machine.
    fn headroom_of(files: &[(&str, &str)]) -> Headroom {
        let root = with_files(files);
        headroom_under(root.path()).unwrap()
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

    /// The narrowest limit decides, after each was left its reserve; and either kind of stall
    /// counts.
    #[test]
    fn some_memory_is_left_to_others() {
        let (gib, mib) = (GIB.cast_signed(), 1 << 20);
        let free = Headroom { bytes: 8 * gib - gib / 2, is_stalled: false };
        assert_eq!(headroom_of(&[]), free);
        let group = |max: &'static str, high: &'static str, pressure: &'static str| {
            [
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/memory.max", max),
                ("sys/fs/cgroup/a/memory.high", high),
                ("sys/fs/cgroup/a/memory.current", "104857600\n"),
                ("sys/fs/cgroup/a/memory.pressure", pressure),
            ]
        };
        let calm = "some avg10=80.00 avg60=0.00 avg300=0.00 total=5\n\
                    full avg10=9.99 avg60=0.00 avg300=0.00 total=5\n";
        let stalled = "some avg10=80.00 avg60=0.00 avg300=0.00 total=5\n\
                       full avg10=10.00 avg60=0.00 avg300=0.00 total=5\n";
        for (max, high, pressure, bytes, is_stalled) in [
            ("max", "max", calm, free.bytes, false),
            ("209715200", "max", calm, 84 * mib, false),
            ("209715200", "125829120", calm, 4 * mib, false),
            ("max", "104857600", calm, -16 * mib, false),
            ("104857600", "max", calm, -16 * mib, false),
            ("209715200", "max", stalled, 84 * mib, true),
        ] {
            let found = headroom_of(&group(max, high, pressure));
            assert_eq!(found, Headroom { bytes, is_stalled }, "{max} {high}");
        }
        let machine = headroom_of(&[("proc/pressure/memory", stalled)]);
        assert_eq!(machine, Headroom { is_stalled: true, ..free });
        assert!(headroom().is_ok());
    }
}
