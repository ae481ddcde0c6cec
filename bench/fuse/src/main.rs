//! `fuse-floor serve MNT [dev|uring]`: mounts a file system that answers everything at once, from
//! memory. `fuse-floor load MNT OPERATION THREADS SECONDS`: how many operations a second its
//! clients get.
//!
//! What is measured is the way of a message and nothing else: no name or attribute is kept by the
//! kernel, and file data goes past the page cache. `run` compares transports by it, in turns.

mod null;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_fuse::MountOptions;
use null::{FILE_BYTES, Null};

/// O_DIRECT of open(2), on x86-64 and arm64.
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

const BLOCK: usize = 4096;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", mnt] => serve(mnt, "dev"),
        ["serve", mnt, transport] => serve(mnt, transport),
        ["load", mnt, operation, threads, seconds] => {
            let (threads, seconds) = (threads.parse().unwrap(), seconds.parse().unwrap());
            println!("{:.0}", load(Path::new(mnt), operation, threads, seconds));
        }
        _ => {
            panic!("fuse-floor serve MNT [dev|uring] | load MNT lookup|read|create THREADS SECONDS")
        }
    }
}

fn serve(mnt: &str, transport: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let mut options = MountOptions::new("null");
    options.io_bytes_max = 1 << 20;
    let mounted = mount(options, transport, mnt, &runtime);
    println!("ready");
    mounted.wait().unwrap();
}

#[cfg(feature = "former")]
fn mount(
    options: MountOptions,
    transport: &str,
    mnt: &str,
    runtime: &tokio::runtime::Runtime,
) -> larder_fuse::Mounted {
    assert_eq!(transport, "dev");
    larder_fuse::mount(Arc::new(Null::default()), Path::new(mnt), options, runtime.handle().clone())
        .unwrap()
}

#[cfg(not(feature = "former"))]
fn mount(
    mut options: MountOptions,
    transport: &str,
    mnt: &str,
    runtime: &tokio::runtime::Runtime,
) -> larder_fuse::Mounted {
    options.transport = match transport {
        "uring" => larder_fuse::Transport::Uring,
        _ => larder_fuse::Transport::Device,
    };
    larder_fuse::mount(Arc::new(Null::default()), Path::new(mnt), &options, runtime.handle())
        .unwrap()
}

/// Operations a second, of all threads together.
fn load(mnt: &Path, operation: &str, threads: usize, seconds: f64) -> f64 {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let total: u64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut work = Work::new(mnt, operation, thread);
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        work.once(count);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    total as f64 / begin.elapsed().as_secs_f64()
}

/// What one client does again and again.
enum Work {
    Lookup(std::path::PathBuf),
    Read(File, Box<Aligned>),
    Create(std::path::PathBuf),
}

#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

impl Work {
    fn new(mnt: &Path, operation: &str, thread: usize) -> Work {
        match operation {
            "lookup" => Work::Lookup(mnt.join(format!("f{thread}"))),
            "read" => {
                let file = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(mnt.join("f"));
                Work::Read(file.unwrap(), Box::new(Aligned([1; BLOCK])))
            }
            "create" => Work::Create(mnt.join(format!("new{thread}"))),
            other => panic!("no operation {other:?}"),
        }
    }

    fn once(&mut self, count: u64) {
        match self {
            Work::Lookup(path) => drop(rustix::fs::stat(&*path).unwrap()),
            Work::Read(file, buffer) => {
                // A stride that meets all blocks in no order that looks like one.
                let block = count.wrapping_mul(0x9e37_79b9) % (FILE_BYTES / BLOCK as u64);
                file.read_exact_at(&mut buffer.0, block * BLOCK as u64).unwrap();
                assert_eq!(buffer.0[0], 0);
            }
            Work::Create(path) => {
                let file = OpenOptions::new().write(true).create_new(true).open(&*path).unwrap();
                file.write_all_at(&[7; BLOCK], 0).unwrap();
                drop(file);
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}
