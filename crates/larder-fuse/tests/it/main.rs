//! Real mounts of an observed file system. They need root and `/dev/fuse`, and fail without.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod bare;
mod data;
mod fs;
mod killed;
mod lifecycle;
mod listings;
mod model;
mod operations;

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use larder_fuse::{MountOptions, Mounted, Transport, mount};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Uid};
use tokio::runtime::{Handle, Runtime};

use crate::fs::TestFs;

/// One runtime for all mounts, as in the daemon.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

/// Names the transport of all mounts of this process.
const TRANSPORT: &str = "LARDER_TEST_TRANSPORT";

/// The longest time that the kernel may take to drop what it holds in memory.
const FORGETTING_MAX: Duration = Duration::from_secs(10);

/// Whether the kernel offers io_uring.
const URING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

fn transport() -> Transport {
    match std::env::var(TRANSPORT).as_deref() {
        Ok("uring") => Transport::Uring,
        _ => Transport::Device,
    }
}

/// Everything once more, over io_uring, in a process of its own.
#[test]
fn all_of_this_holds_over_io_uring() {
    if transport() == Transport::Uring {
        return;
    }
    let Ok(before) = std::fs::read(URING_PARAMETER) else {
        return eprintln!("this kernel has no FUSE over io_uring: {URING_PARAMETER} is not there");
    };
    std::fs::write(URING_PARAMETER, "Y").unwrap();
    let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
    let status = tests.env(TRANSPORT, "uring").arg("--test-threads=2").status();
    std::fs::write(URING_PARAMETER, before).unwrap();
    assert!(status.unwrap().success());
}

/// A mount, and its file system. Fields are dropped in this order.
struct Mount {
    mounted: Mounted,
    fs: Arc<TestFs>,
    dir: PathBuf,
    _parent: tempfile::TempDir,
}

impl Mount {
    fn new() -> Mount {
        Mount::with(|_| ())
    }

    /// With options changed by `change`.
    fn with(change: impl FnOnce(&mut MountOptions)) -> Mount {
        Mount::on(RUNTIME.handle(), change)
    }

    fn on(runtime: &Handle, change: impl FnOnce(&mut MountOptions)) -> Mount {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("mount point");
        std::fs::create_dir(&dir).unwrap();
        let fs = TestFs::new(parent.path());
        let mut options = MountOptions::new("test:/source");
        options.probe_dir = Some(parent.path().to_owned());
        options.transport = transport();
        change(&mut options);
        let mounted = mount(Arc::clone(&fs) as _, &dir, &options, runtime).unwrap();
        Mount { mounted, fs, dir, _parent: parent }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A file with this content.
    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

/// Runs `what` on a thread with these credentials.
fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], what: impl FnOnce() -> T + Send) -> T {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::thread::set_thread_groups(&groups).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            what()
        });
        thread.join().unwrap()
    })
}

/// Opens `name` in a directory that is open, so that no rights on the path to it are needed.
fn open_at(dir: &File, name: &str, flags: OFlags) -> std::io::Result<File> {
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?.into())
}

/// Longest wait for what must happen. A busy machine may stall for seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `done`.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// How often the kernel was told to drop what it holds in memory (`drop_caches`). It counts that
/// when it is done.
fn times_forgotten() -> Vec<String> {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap();
    counters.lines().filter(|line| line.starts_with("drop_")).map(str::to_owned).collect()
}

/// Checks what is true while the kernel keeps its memory: that memory is shared by all processes,
/// so if one of them had the kernel drop it in the meantime, the check is repeated.
fn while_remembered(check: impl Fn()) {
    for _ in 0..20 {
        let before = times_forgotten();
        let Err(failed) = catch_unwind(AssertUnwindSafe(&check)) else { return };
        let begin = Instant::now();
        while times_forgotten() == before {
            if begin.elapsed() > FORGETTING_MAX {
                resume_unwind(failed);
            }
            std::thread::yield_now();
        }
    }
    panic!("the kernel is made to forget all the time");
}

fn os_error<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// The lines of the mount table that name `path`.
fn mounts_at(path: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/mounts").unwrap();
    let path = path.to_str().unwrap().replace(' ', "\\040");
    table.lines().filter(|line| line.split(' ').nth(1) == Some(&path)).map(str::to_owned).collect()
}
