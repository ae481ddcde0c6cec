//! `larder disk`: its command line, and a disk that is ended and killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use larder_disk_client::{Control, DISK_PROGRAM, DiskClient, DiskControl};
use larder_rpc::{CallOptions, Config, RpcClient, SourcePort, Transport};
use larder_wire::capability::{
    BootEpoch, Capability, CapabilityId, Extent, Extents, GroupId, KeyEpoch, Mode,
};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::disk::session::Granted;
use larder_wire::disk::words::Trust;
use tempfile::TempDir;

use crate::harness::{larder, pattern, succeed};

/// A disk's files: its key, its store, and where the store is made.
struct Place {
    dir: TempDir,
    key: PathBuf,
    store: PathBuf,
}

/// A disk that serves, until it is dropped.
struct Serving {
    process: Child,
    address: SocketAddr,
    /// Read continuously; otherwise the process might wait for a reader.
    _log: BufReader<ChildStderr>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let (key, store) = (dir.path().join("key"), dir.path().join("store"));
        succeed(larder().args(["disk", "key", "--disk", "3"]).arg(&key));
        Place { dir, key, store }
    }

    fn command(&self, store: &Path, size: &str) -> Command {
        let mut command = larder();
        command.args(["disk", "--listen", "127.0.0.1:0", "--size", size]);
        command.arg("--store").arg(store).arg("--key").arg(&self.key);
        command
    }

    fn serve(&self) -> Serving {
        serve(self.command(&self.store, "1M"))
    }

    /// The line with which it refuses to serve.
    fn refusal(&self, store: &Path, size: &str) -> String {
        let Output { status, stderr, .. } = self.command(store, size).output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
        said
    }

    fn key_file(&self) -> DiskKeyFile {
        DiskKeyFile::from_text(&fs::read_to_string(&self.key).unwrap()).unwrap()
    }
}

fn serve(mut command: Command) -> Serving {
    let mut process = command.env("LARDER_LOG", "info").stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    let address = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
    let plain: String =
        address.chars().filter(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
    Serving { process, address: plain.parse().unwrap(), _log: log }
}

impl Serving {
    async fn rpc(&self) -> RpcClient {
        let mut config = Config::new(self.address, Transport::Tcp, DISK_PROGRAM);
        config.source_port = SourcePort::Any;
        RpcClient::connect(config).await.unwrap()
    }

    /// Takes control, and makes a capability for the first MiB.
    async fn grant(&self, key: &DiskKeyFile) -> Granted {
        self.grant_bytes(key, 1 << 20).await
    }

    /// The same for so many bytes.
    async fn grant_bytes(&self, key: &DiskKeyFile, bytes: u64) -> Granted {
        let DiskKeyFile { volume, disk, master, .. } = key.clone();
        let control = Control { master, volume, disk, owner: 1 };
        let control = DiskControl::new(self.rpc().await, control);
        control.rotate(KeyEpoch(1)).await.unwrap();
        control.replace_group(None, GroupId(1)).await.unwrap();
        let (done, boot) = control.refresh(None).await.unwrap();
        let trust = Trust { boot, until_ms: done.clock_ms + 60_000 };
        control.refresh(Some(trust)).await.unwrap();
        Granted::mint(&key.master, capability(key, boot, bytes))
    }

    fn status(&self, key: &Path) -> serde_json::Value {
        let mut command = larder();
        command.args(["disk", "status", "--json", &self.address.to_string()]);
        let output = succeed(command.arg("--key").arg(key));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn capability(key: &DiskKeyFile, boot: BootEpoch, bytes: u64) -> Capability {
    Capability {
        volume: key.volume,
        disk: key.disk,
        boot,
        key: KeyEpoch(1),
        group: GroupId(1),
        id: CapabilityId(0),
        mode: Mode::ReadWrite,
        expiry_ms: u64::MAX,
        extents: Extents::new(vec![Extent::new(0, bytes).unwrap()]).unwrap(),
    }
}

/// What was written is there after an orderly end, and what was flushed even after `kill -9`.
#[test]
fn a_disk_keeps_what_it_is_given() {
    let place = Place::new();
    let key = place.key_file();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = CallOptions::default();
    let mut expected = vec![0; 300];
    for (round, is_killed) in [false, true, false].into_iter().enumerate() {
        let mut serving = place.serve();
        runtime.block_on(async {
            let granted = serving.grant(&key).await;
            let client = DiskClient::new(serving.rpc().await);
            let found = client.read(&granted, 5000, 300, options).await.unwrap();
            assert_eq!(found, expected, "round {round}");
            let at = round * 100;
            expected[at..at + 100].fill(round as u8 + 1);
            let data = vec![round as u8 + 1; 100];
            client.write(&granted, 5000 + at as u64, data.into(), false, options).await.unwrap();
            if is_killed {
                client.flush(&granted, options).await.unwrap();
            }
        });
        let status = serving.status(&place.key);
        assert_eq!((&status["setup"], &status["written_bytes"]), (&"secure".into(), &4096.into()));
        if is_killed {
            serving.process.kill().unwrap();
            serving.process.wait().unwrap();
        } else {
            let pid = rustix::process::Pid::from_child(&serving.process);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            assert!(serving.process.wait().unwrap().success());
        }
    }
}

/// Two clients at the same time write and read as many bytes in a second as `--rate` allows, and no
/// more.
#[test]
fn a_disk_with_a_rate_is_no_faster() {
    const RATE: u64 = 16 << 20;
    const PART: u64 = 1 << 20;
    const PARTS: u64 = 8;
    let place = Place::new();
    let mut command = place.command(&place.store, "8M");
    command.args(["--rate", "16MB/s"]);
    let serving = serve(command);
    let (key, options) = (place.key_file(), CallOptions::default());
    let data = |part: u64| pattern(part, PART as usize);
    let least = Duration::from_secs(1).mul_f64(0.8 * (PARTS * PART) as f64 / RATE as f64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let granted = &serving.grant_bytes(&key, PARTS * PART).await;
        let clients = [serving.rpc().await, serving.rpc().await].map(DiskClient::new);
        let write = async |client: &DiskClient, parts: Range<u64>| {
            for part in parts {
                let bytes = data(part).into();
                client.write(granted, part * PART, bytes, false, options).await.unwrap();
            }
        };
        let read = async |client: &DiskClient, parts: Range<u64>| {
            for part in parts {
                let found = client.read(granted, part * PART, PART as u32, options).await.unwrap();
                assert!(found == data(part), "part {part}");
            }
        };
        let begin = Instant::now();
        tokio::join!(write(&clients[0], 0..4), write(&clients[1], 4..PARTS));
        let (written, begin) = (begin.elapsed(), Instant::now());
        assert_eq!(serving.status(&place.key)["written_bytes"], PARTS * PART);
        tokio::join!(read(&clients[0], 4..PARTS), read(&clients[1], 0..4));
        for (what, took) in [("writing", written), ("reading", begin.elapsed())] {
            assert!(took >= least, "{what} took {took:?}, which is less than {least:?}");
        }
    });
}

#[test]
fn a_disk_that_cannot_serve_says_why_in_one_line() {
    let place = Place::new();
    let serving = place.serve();
    let check = |said: String, word: &str| assert!(said.contains(word), "{said}");
    check(place.refusal(&place.store, "1M"), "another process uses it");
    drop(serving);
    check(place.refusal(&place.store, "2M"), "its size is 1048576, not 2097152");
    check(place.refusal(&place.store, "1000"), "must be a multiple of 4096");
    check(place.refusal(place.dir.path(), "1M"), "it is no file");
    check(place.refusal(&place.key, "1M"), "not the store of a disk");
    fs::OpenOptions::new().write(true).open(&place.store).unwrap().set_len(70_000).unwrap();
    check(place.refusal(&place.store, "1M"), "it was truncated");

    let other = Place::new();
    let memory = other.command(Path::new("memory"), "1M");
    let serving = serve(memory);
    let mut command = larder();
    command.args(["disk", "status", &serving.address.to_string()]).arg("--key").arg(&place.key);
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    check(said, "the capability is for another volume");

    fs::set_permissions(&place.key, fs::Permissions::from_mode(0o640)).unwrap();
    check(place.refusal(Path::new("memory"), "1M"), "mode 640): chmod 600 it");
    let again = larder().args(["disk", "key", "--disk", "3"]).arg(&place.key).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
}
