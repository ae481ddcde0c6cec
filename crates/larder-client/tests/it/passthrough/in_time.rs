//! What the kernel writes itself to files that stay open is at the server in time.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use larder_class::{Sources, load};
use larder_client::{Client, Here, Options, Start, offer};
use larder_io::SimClock;
use larder_vfs::{Ino, LocalFile, MemRemote, OpenId};
use tempfile::TempDir;

use super::{Passthrough, close, content_of, create, with_clock, with_kernel};
use crate::rig::pass;

const SECOND: Duration = Duration::from_secs(1);
/// Time in which all that can be done is done.
const MOMENT: Duration = Duration::from_millis(1);

/// The deadline of the class of all files of these tests, in seconds.
const DEADLINE_S: u64 = 10;

/// `f_type` of a tmpfs (statfs(2)).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The kernel does not report what it writes to a file that stays open: it is looked for in time. A
/// file that the kernel no longer writes is not read again and again.
#[tokio::test(start_paused = true)]
async fn what_the_kernel_writes_to_an_open_file_reaches_the_server_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let server = Arc::new(MemRemote::new());
    let clock = Arc::new(SimClock::new());
    let (client, _) =
        with_clock(folder.path(), server.clone(), Start::NewMount, clock.clone()).await;
    let (ino, open, local) = create(&client, "log").await;
    for (offset, line) in [(0, "first\n"), (6, "second\n")] {
        rustix::io::pwrite(local.as_fd(), line.as_bytes(), offset).unwrap();
        pass(&clock, Duration::from_secs(61)).await;
        assert!(content_of(&server, "log").await.ends_with(line.as_bytes()));
        assert_eq!(client.status().unsent.files, 0);
    }
    let calls = server.calls_total();
    pass(&clock, Duration::from_secs(3600)).await;
    assert_eq!(server.calls_total(), calls);
    close(&client, ino, open).await;
}

/// A file that the kernel writes, of a class that has its bytes at the server within ten seconds.
struct Log {
    server: Arc<MemRemote>,
    clock: Arc<SimClock>,
    client: Client,
    ino: Ino,
    open: OpenId,
    local: LocalFile,
    _folder: TempDir,
}

impl Log {
    async fn create() -> Log {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        let class = format!("[class.log]\nlike = 'edited'\ndurable = '{DEADLINE_S}s'");
        std::fs::write(&path, class).unwrap();
        let sources = Sources { files: vec![path], class: Some("log".into()), rules: None };
        let classes = load(&sources, &offer("a mount", Here::DISK, 30 * SECOND)).unwrap();
        let options = Options { classes: Arc::new(classes), ..Options::default() };
        let folder = tempfile::tempdir().unwrap();
        let (server, clock) = (Arc::new(MemRemote::new()), Arc::new(SimClock::new()));
        let (start, kernel) = ((Start::NewMount, options), Arc::new(Passthrough));
        let (client, _) =
            with_kernel(folder.path(), server.clone(), start, clock.clone(), kernel).await;
        let (ino, open, local) = create(&client, "log").await;
        Log { server, clock, client, ino, open, local, _folder: folder }
    }

    /// Lets the kernel write at each second from 0 to 20, and a second pass after each: after the
    /// first look, the server takes up to two for a WRITE. At each second the caller checks what
    /// the server has, which is told how many of the writes are due by then.
    async fn live(self, mut write: impl FnMut(u64), check: impl Fn(&[u8], u64)) {
        for second in 0..=20 + DEADLINE_S {
            let due = (second + 1).saturating_sub(DEADLINE_S);
            check(&content_of(&self.server, "log").await, due);
            if second <= 20 {
                write(second);
            }
            let is_odd = !second.is_multiple_of(2);
            if second > DEADLINE_S && is_odd {
                self.server.hold(Some("write"));
            }
            pass(&self.clock, SECOND - MOMENT).await;
            if !is_odd {
                self.server.hold(None);
            }
            pass(&self.clock, MOMENT).await;
        }
        self.server.hold(None);
        close(&self.client, self.ino, self.open).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_byte_that_the_kernel_writes_is_at_the_server_within_its_deadline() {
    let log = Log::create().await;
    let local = log.local.clone();
    let write = |second| {
        rustix::io::pwrite(local.as_fd(), &[second as u8 + 1], second).unwrap();
    };
    let check = |found: &[u8], due: u64| {
        assert!(found.len() as u64 >= due, "{} of {due} are there in time", found.len());
        assert!(found.iter().zip(1..).all(|(byte, wanted)| *byte == wanted));
    };
    log.live(write, check).await;
}

/// A process that maps a file, and stores a byte at each position that it is told.
struct Mapping {
    process: Child,
    stored: BufReader<ChildStdout>,
}

impl Mapping {
    fn of(file: &LocalFile) -> Mapping {
        const SCRIPT: &str = "import mmap, sys\n\
                              with open(sys.argv[1], 'r+b') as file:\n\
                              \x20   page = mmap.mmap(file.fileno(), 4096)\n\
                              for line in sys.stdin:\n\
                              \x20   page[int(line)] = int(line) + 1\n\
                              \x20   print(flush=True)\n";
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd());
        let mut process = Command::new("python3")
            .args(["-c", SCRIPT, &path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stored = BufReader::new(process.stdout.take().unwrap());
        Mapping { process, stored }
    }

    fn store(&mut self, at: u64) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{at}").unwrap();
        let mut line = String::new();
        self.stored.read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "it lives");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Without its input it ends.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Waits until the kernel's clock for times of files has moved on since the file was written: a few
/// milliseconds.
fn await_next_time(file: &LocalFile, folder: &TempDir) {
    let written = rustix::fs::fstat(file.as_fd()).unwrap();
    let written = (written.st_mtime, written.st_mtime_nsec);
    let probe = std::fs::File::create(folder.path().join("probe")).unwrap();
    loop {
        rustix::io::pwrite(probe.as_fd(), b"x", 0).unwrap();
        let now = rustix::fs::fstat(probe.as_fd()).unwrap();
        if (now.st_mtime, now.st_mtime_nsec) > written {
            return;
        }
    }
}

/// A program stores bytes in a mapping, and never calls msync. In a tmpfs, nothing tells of them
/// before the next close, fsync or msync.
#[tokio::test(start_paused = true)]
async fn what_is_stored_in_a_mapping_is_at_the_server_within_its_deadline() {
    let log = Log::create().await;
    if rustix::fs::fstatfs(log.local.as_fd()).unwrap().f_type == TMPFS_MAGIC {
        println!("not tested: temporary files are in a tmpfs");
        return;
    }
    rustix::io::pwrite(log.local.as_fd(), &[0; 4096], 0).unwrap();
    let (local, folder) = (log.local.clone(), tempfile::tempdir().unwrap());
    let mut mapping = Mapping::of(&local);
    let write = |second| {
        await_next_time(&local, &folder);
        mapping.store(second);
    };
    let check = |found: &[u8], due: u64| {
        let stored = found.iter().zip(1..=due).all(|(byte, wanted)| u64::from(*byte) == wanted);
        assert!(stored && found.len() as u64 >= due, "{due} were due: {:?}", found.get(..32));
    };
    log.live(write, check).await;
}
