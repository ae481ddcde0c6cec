//! A small machine for a server: a disk of a stated speed, and little memory.
//!
//! A server on a large machine holds every file of a benchmark in memory, and no curve of its rate
//! over the size of a file has a knee. Here its data lies on a loop device, and its processes are
//! in a control group whose memory (page cache included) is limited and whose reads and writes of
//! that device are throttled. The image of the disk is read and written directly, so that the
//! memory of the machine holds no second copy.
//!
//! Version 2 of control groups is used where its `memory` and `io` controllers are there, else
//! version 1. Of version 1 (Documentation/admin-guide/cgroup-v1): what the kernel writes back by
//! itself is not throttled, only what the server waits for, as in COMMIT.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::succeed;

/// Size of the disk, in bytes: a sparse file.
const DISK_BYTES: u64 = 4 << 30;

/// The file with the limit of a group's memory: in version 2 and 1.
const MEMORY_LIMITS: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];

/// How often the memory of a growing group is adjusted.
const GROWTH_LOOK: Duration = Duration::from_millis(20);

/// Where control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The resources of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Memory, in bytes, page cache included.
    pub memory_bytes: u64,
    /// The rates at which its disk reads and writes, in bytes per second.
    pub disk_bytes_per_s: u64,
}

/// A disk that is throttled for the processes in its groups. When dropped, it is removed; its
/// servers must have ended.
#[derive(Debug)]
pub(super) struct Disk {
    confinement: Confinement,
    device: PathBuf,
    mountpoint: PathBuf,
}

impl Disk {
    /// Makes an empty file system in `dir`.
    ///
    /// # Errors
    /// If we are not root, or the error of losetup(8), mkfs(8) or mount(8).
    pub(super) fn create(dir: &Path, confinement: Confinement) -> Result<Disk> {
        let (image, mountpoint) = (dir.join("disk.img"), dir.join("disk"));
        File::create(&image)?.set_len(DISK_BYTES)?;
        fs::create_dir(&mountpoint)?;
        succeed(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(&image);
        let device = PathBuf::from(succeed(&mut losetup)?.trim());
        let disk = Disk { confinement, device, mountpoint };
        succeed(Command::new("mount").arg(&disk.device).arg(&disk.mountpoint))?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub(super) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// A group for a server of its own, with the whole of the memory.
    ///
    /// # Errors
    /// If control groups cannot be made here.
    pub(super) fn group(&self) -> Result<Group> {
        self.group_of(self.confinement.memory_bytes)
    }

    /// The same for a server whose processes have memory of their own beside it, which grows with
    /// what they take.
    ///
    /// # Errors
    /// If control groups cannot be made here.
    pub(super) fn growing_group(&self, own: OwnMemory) -> Result<Group> {
        let memory_bytes = self.confinement.memory_bytes;
        let mut group = self.group_of(memory_bytes + own.beside(0))?;
        group.growth = Some(Growth::start(group.dirs.clone(), memory_bytes, own));
        Ok(group)
    }

    fn group_of(&self, memory_bytes: u64) -> Result<Group> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("larder-bench-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let device = fs::metadata(&self.device)?.rdev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let rate = self.confinement.disk_bytes_per_s;
        let mut group = Group { dirs: Vec::new(), growth: None };
        for Setting { dir, file, value } in
            settings(Path::new(CGROUPS), &device, memory_bytes, rate)?
        {
            let dir = dir.join(&name);
            if !group.dirs.contains(&dir) {
                fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
                group.dirs.push(dir.clone());
            }
            let path = dir.join(file);
            fs::write(&path, value).with_context(|| format!("cannot set {}", path.display()))?;
        }
        Ok(group)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for (program, at) in [("umount", &self.mountpoint), ("losetup", &self.device)] {
            let mut command = Command::new(program);
            if program == "losetup" {
                command.arg("--detach");
            }
            // Usually there is nothing left to report: a server that did not end.
            if let Err(error) = succeed(command.arg(at)) {
                eprintln!("larder: {error:#}");
            }
        }
    }
}

/// A control group, or one for each resource.
#[derive(Debug)]
pub(super) struct Group {
    dirs: Vec<PathBuf>,
    growth: Option<Growth>,
}

/// What the processes of a group may take for themselves, beside the memory of the machine that
/// they share with the page cache, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnMemory {
    /// More than they have taken.
    pub(super) ahead_bytes: u64,
    /// In all: beyond that the kernel kills one.
    pub(super) most_bytes: u64,
}

impl OwnMemory {
    /// What they may take if they have taken this much.
    fn beside(self, taken_bytes: u64) -> u64 {
        (taken_bytes + self.ahead_bytes).min(self.most_bytes)
    }
}

/// Has the memory of a group grow with what its processes take. Ends when it is dropped.
#[derive(Debug)]
struct Growth {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Growth {
    /// A thread that adjusts the limits until the sender is dropped.
    fn start(dirs: Vec<PathBuf>, memory_bytes: u64, own: OwnMemory) -> Growth {
        let (end, ended) = mpsc::channel::<()>();
        let follow = move || {
            while ended.recv_timeout(GROWTH_LOOK) == Err(RecvTimeoutError::Timeout) {
                for dir in &dirs {
                    // A group of another resource has neither file.
                    let Ok(stat) = fs::read_to_string(dir.join("memory.stat")) else { continue };
                    let limit = memory_bytes + own.beside(taken(&stat).unwrap_or(0));
                    let file = MEMORY_LIMITS.map(|file| dir.join(file));
                    let file = file.iter().find(|file| file.exists());
                    // It is raised again at the next look if this fails.
                    let _ = file.map(|file| fs::write(file, limit.to_string()));
                }
            }
        };
        Growth { end: Some(end), thread: Some(std::thread::spawn(follow)) }
    }
}

/// What the processes of a group take, by its `memory.stat`, in bytes: in version 2 and 1.
fn taken(stat: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| ["anon", "rss"].contains(name))?.1.parse().ok()
}

/// A command that joins the group, if there is one, and then becomes the given command. Other
/// settings of that are lost: input, output, environment.
pub(super) fn confine(group: Option<&Group>, command: Command) -> Command {
    match group {
        None => command,
        Some(group) => {
            let join: String = group
                .dirs
                .iter()
                .map(|dir| format!("echo $$ >{}/cgroup.procs && ", dir.display()))
                .collect();
            let mut confined = Command::new("sh");
            confined.args(["-c", &format!("{join}exec \"$@\""), "sh"]);
            confined.arg(command.get_program()).args(command.get_args());
            confined
        }
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.growth.take());
        for dir in &self.dirs {
            let gone =
                crate::process::wait_for("the group's end", crate::process::START_MAX, || {
                    Ok(fs::remove_dir(dir).ok())
                });
            if gone.is_err() {
                eprintln!("larder: cannot remove {}: somebody is in it", dir.display());
            }
        }
    }
}

/// A file of a control group, and the value written to it.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    /// Where the group is made.
    dir: PathBuf,
    file: &'static str,
    value: String,
}

/// The settings that limit memory and disk, in the available version.
fn settings(top: &Path, device: &str, memory_bytes: u64, rate: u64) -> Result<Vec<Setting>> {
    let setting = |dir: PathBuf, file, value: String| Setting { dir, file, value };
    if let Ok(controllers) = fs::read_to_string(top.join("cgroup.controllers")) {
        let has = |name| controllers.split_whitespace().any(|one| one == name);
        ensure!(
            has("memory") && has("io"),
            "control groups have no memory and io controllers here"
        );
        fs::write(top.join("cgroup.subtree_control"), "+memory +io")
            .context("cannot hand on the memory and io controllers")?;
        let limits = format!("{device} rbps={rate} wbps={rate}");
        return Ok(vec![
            setting(top.to_path_buf(), "memory.max", memory_bytes.to_string()),
            setting(top.to_path_buf(), "io.max", limits),
        ]);
    }
    let (memory, blkio) = (top.join("memory"), top.join("blkio"));
    if !memory.is_dir() || !blkio.is_dir() {
        bail!("there are no control groups for memory and disks below {}", top.display());
    }
    let limit = format!("{device} {rate}");
    Ok(vec![
        setting(memory, "memory.limit_in_bytes", memory_bytes.to_string()),
        setting(blkio.clone(), "blkio.throttle.read_bps_device", limit.clone()),
        setting(blkio, "blkio.throttle.write_bps_device", limit),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_growing_group_follows_what_its_processes_take() {
        const MIB: u64 = 1 << 20;
        let own = OwnMemory { ahead_bytes: 32 * MIB, most_bytes: 1000 * MIB };
        for (taken, beside) in [(0, 32), (88, 120), (500, 532), (968, 1000), (2000, 1000)] {
            assert_eq!(own.beside(taken * MIB), beside * MIB, "{taken}");
        }
        assert_eq!(taken("cache 7\nrss 300\nrss_huge 5\n"), Some(300));
        assert_eq!(taken("anon 300\nfile 7\n"), Some(300));
        assert_eq!(taken("cache 7\n"), None);
        let dir = tempfile::tempdir().unwrap();
        let limit = dir.path().join("memory.max");
        fs::write(&limit, "0").unwrap();
        fs::write(dir.path().join("memory.stat"), format!("anon {}\n", 500 * MIB)).unwrap();
        let growth = Growth::start(vec![dir.path().to_owned()], 60 * MIB, own);
        let wanted = (592 * MIB).to_string();
        crate::process::wait_for("the limit", crate::process::START_MAX, || {
            Ok(fs::read_to_string(&limit).ok().filter(|limit| *limit == wanted))
        })
        .unwrap();
        drop(growth);
    }

    #[test]
    fn both_versions_of_control_groups_are_set_as_they_want_it() {
        let top = tempfile::tempdir().unwrap();
        let set = || {
            settings(top.path(), "7:0", 100, 60)
                .map(|all| all.into_iter().map(|one| (one.file, one.value)).collect::<Vec<_>>())
        };
        assert!(set().unwrap_err().to_string().contains("no control groups"));
        for dir in ["memory", "blkio"] {
            fs::create_dir(top.path().join(dir)).unwrap();
        }
        let one = |file, value: &str| (file, value.to_owned());
        let version_1 = [
            one("memory.limit_in_bytes", "100"),
            one("blkio.throttle.read_bps_device", "7:0 60"),
            one("blkio.throttle.write_bps_device", "7:0 60"),
        ];
        assert_eq!(set().unwrap(), version_1);
        fs::write(top.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        assert!(set().unwrap_err().to_string().contains("no memory and io"));
        fs::write(top.path().join("cgroup.controllers"), "cpu io memory\n").unwrap();
        let version_2 = [one("memory.max", "100"), one("io.max", "7:0 rbps=60 wbps=60")];
        assert_eq!(set().unwrap(), version_2);
    }
}
