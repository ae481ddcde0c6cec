//! The cost of a mount's RPCs, slice by slice, and as its server counts them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Kind, Mount, Server, eventually, larder, pattern, run, scratch, succeed};

/// A recording that runs.
struct Recording {
    child: Child,
    folder: TempDir,
}

/// A row of a recording, by the names of its columns.
struct Row(Vec<(String, u64)>);

impl Row {
    fn get(&self, column: &str) -> u64 {
        self.0.iter().find(|(name, _)| name == column).unwrap().1
    }
}

impl Recording {
    /// Records a mount; returns when it has begun.
    fn start(mount: &Mount, args: &[&str]) -> Recording {
        let folder = scratch("larder-series-");
        let mut command = mount.larder();
        command.arg("stat").arg(mount.path("")).args(args).arg("--out");
        command.arg(folder.path().join("rows")).stdin(Stdio::null()).stdout(Stdio::piped());
        let recording = Recording { child: command.spawn().unwrap(), folder };
        eventually("it records", || recording.file().metadata().is_ok_and(|file| file.len() > 0));
        recording
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("rows")
    }

    /// The rows that are written.
    fn rows(&self) -> Vec<Row> {
        let text = fs::read_to_string(self.file()).unwrap();
        // The last line may be incomplete.
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let names: Vec<_> = lines.next().unwrap().split(',').collect();
        let row = |line: &str| {
            let values = line.split(',').map(|value| value.parse().unwrap());
            Row(names.iter().map(ToString::to_string).zip(values).collect())
        };
        lines.map(row).collect()
    }

    fn sum(&self, column: &str) -> u64 {
        self.rows().iter().map(|row| row.get(column)).sum()
    }

    /// Waits for its end; returns its output.
    fn end(&mut self) -> String {
        let mut said = String::new();
        let mut stdout = BufReader::new(self.child.stdout.take().unwrap());
        while stdout.read_line(&mut said).unwrap() > 0 {}
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{said}");
        assert!(fs::read(self.file()).unwrap().ends_with(b"\n"), "rows are written whole");
        said
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn connection(stat: &Value, column: &str) -> u64 {
    let connections = stat["connections"].as_array().unwrap();
    connections.iter().map(|one| one[column].as_u64().unwrap()).sum()
}

fn calls(stat: &Value) -> u64 {
    stat["rpc"].as_object().unwrap().values().map(|one| one["calls"].as_u64().unwrap()).sum()
}

#[test]
fn a_recording_agrees_with_the_counts() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), pattern(1, 8 << 20)).unwrap();
    let mount = Mount::plain(&server, &["nconnect=2", "rsize=65536"]);
    let before = mount.json(&["stat"]);
    let mut recording = Recording::start(&mount, &["--series", "1ms"]);
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 8 << 20);
    fs::write(mount.path("other"), pattern(2, 100_000)).unwrap();
    let after = mount.json(&["stat"]);

    let made = calls(&after) - calls(&before);
    assert!(made > 100, "{made}");
    let counted = |column| connection(&after, column) - connection(&before, column);
    eventually("all calls are in the rows, and that they were answered", || {
        ["offered", "completed"].iter().all(|column| recording.sum(column) >= counted(column))
    });
    run("kill", &["-INT", &recording.child.id().to_string()]);
    let said = recording.end();
    let rows = recording.rows();
    assert!(said.starts_with(&format!("{} rows in ", rows.len())), "{said}");
    assert!(said.ends_with(" 0 slices dropped\n"), "{said}");

    let end = mount.json(&["stat"]);
    assert_eq!(calls(&end), calls(&after), "the mount was at rest");
    for column in ["offered", "completed", "retransmits", "timeouts"] {
        assert_eq!(recording.sum(column), counted(column), "{column}");
    }
    assert_eq!(recording.sum("offered"), made);
    for number in [0, 1] {
        let of_one = rows.iter().filter(|row| row.get("connection") == number);
        let times: Vec<_> = of_one.map(|row| row.get("time_us")).collect();
        assert!(times.iter().copied().eq((0..times.len() as u64).map(|n| n * 1000)));
        assert!(times.len() > 1);
    }
    let busiest = rows.iter().map(|row| row.get("in_flight")).max().unwrap();
    assert!(rows.iter().all(|row| row.get("window") >= busiest.max(1)));
}

/// Requests of SMB are counted in the same series.
#[test]
fn a_recording_of_a_share_agrees_with_the_counts() {
    let server = Server::start(Kind::Samba);
    fs::write(server.path("file"), pattern(1, 4 << 20)).unwrap();
    let mount = Mount::plain(&server, &["rsize=65536"]);
    let before = mount.json(&["stat"]);
    let mut recording = Recording::start(&mount, &["--series", "1ms"]);
    assert_eq!(fs::read(mount.path("file")).unwrap().len(), 4 << 20);
    fs::write(mount.path("other"), pattern(2, 100_000)).unwrap();
    // Files that are closed in the background count as open for a moment.
    let at_rest =
        || connection(&mount.json(&["stat"]), "in_flight") <= connection(&before, "in_flight");
    eventually("the mount is at rest", at_rest);
    let after = mount.json(&["stat"]);
    let counted = |column| connection(&after, column) - connection(&before, column);
    assert!(counted("completed") > 30 && calls(&after) - calls(&before) > 30);
    eventually("all requests are in the rows, and that they were answered", || {
        ["offered", "completed"].iter().all(|column| recording.sum(column) >= counted(column))
    });
    run("kill", &["-INT", &recording.child.id().to_string()]);
    recording.end();
    let end = mount.json(&["stat"]);
    for column in ["offered", "completed", "retransmits", "timeouts"] {
        let counted = connection(&end, column) - connection(&before, column);
        assert_eq!(recording.sum(column), counted, "{column}");
    }
    assert!(recording.rows().iter().any(|row| row.get("in_flight") > 0));
    assert!(recording.rows().iter().all(|row| row.get("window") >= row.get("in_flight")));
}

#[test]
fn a_server_that_stalls_is_seen_in_a_recording() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "abc").unwrap();
    let mount = Mount::plain(&server, &[]);
    let mut recording = Recording::start(&mount, &["--series", "10ms"]);
    server.freeze();
    let path = mount.path("file");
    let reader = std::thread::spawn(move || fs::read(path).unwrap());
    let waits = |row: &Row| row.get("in_flight") > 0 && row.get("completed") == 0;
    eventually("a call waits", || recording.rows().iter().filter(|row| waits(row)).count() > 20);
    server.thaw();
    assert_eq!(reader.join().unwrap(), b"abc");
    let rests = |row: &Row| row.get("in_flight") == 0;
    eventually("no call waits", || recording.rows().last().is_some_and(rests));
    run("kill", &["-TERM", &recording.child.id().to_string()]);
    recording.end();
    assert_eq!(recording.sum("offered"), recording.sum("completed"));
}

#[test]
fn a_recording_ends_when_its_time_is_over_and_with_the_mount() {
    let server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &[]);
    let mut short = Recording::start(&mount, &["--series", "100us", "--for", "5ms"]);
    assert!(short.end().starts_with("50 rows in "));
    assert_eq!(short.rows().last().unwrap().get("time_us"), 4900);

    let mut long = Recording::start(&mount, &["--series", "1s"]);
    fs::write(mount.path("file"), "abc").unwrap();
    mount.unmount();
    long.end();
    assert!(long.sum("offered") > 0, "the last slice is told of although it is not over");

    mount.mount();
    let mut lost = Recording::start(&mount, &["--series", "1ms"]);
    mount.kill();
    let status = lost.child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "its daemon is dead");
}

/// Calls of each procedure that are in both counts.
fn by_procedure(stat: &Value) -> Vec<(String, u64)> {
    let rpc = stat["rpc"].as_object().unwrap();
    rpc.iter().map(|(name, one)| (name.clone(), one["calls"].as_u64().unwrap())).collect()
}

#[test]
fn an_export_counts_the_calls_that_a_mount_makes() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), pattern(1, 5 << 20)).unwrap();
    let mount = Mount::plain(&server, &[]);
    fs::read(mount.path("file")).unwrap();
    fs::write(mount.path("other"), pattern(2, 1 << 20)).unwrap();
    fs::metadata(mount.path("missing")).unwrap_err();

    let made = mount.json(&["stat"]);
    let output = succeed(server.stat().arg("--json"));
    let served: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(served["rpc"]["READ"]["calls"].as_u64().unwrap() > 0);
    assert_eq!(by_procedure(&served), by_procedure(&made));
    assert_eq!(served["mount"]["MNT"]["calls"], 1);
    let read = &served["rpc"]["READ"];
    assert!(read["bytes_sent"].as_u64().unwrap() > 5 << 20);
    assert!(read["bytes_received"].as_u64().unwrap() > 0);
    assert_eq!(served["dir"], server.path("").to_str().unwrap().trim_end_matches('/'));
    let shown = String::from_utf8(succeed(&mut server.stat()).stdout).unwrap();
    assert!(shown.contains("READ ") && shown.contains("MOUNT MNT "), "{shown}");
}

/// An export at a free port, which it reports.
struct Anywhere {
    child: Child,
    address: SocketAddr,
}

impl Anywhere {
    fn start(runtime: &Path, dir: &Path) -> Anywhere {
        let mut command = larder();
        command.env("LARDER_RUNTIME_DIR", runtime).arg("export").arg(dir);
        command.args(["--listen", "127.0.0.1:0"]).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("exported")).unwrap();
        let address = line.rsplit("address=").next().unwrap().trim().parse().unwrap();
        Anywhere { child, address }
    }

    fn terminate(&mut self) {
        run("kill", &["-TERM", &self.child.id().to_string()]);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Anywhere {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn an_export_at_any_port_is_found_and_what_dead_ones_left_is_removed() {
    let (scratch, dir) = (scratch("larder-run-"), scratch("larder-export-"));
    let runtime = scratch.path().join("run");
    let ask = |export: &Anywhere| {
        let mut command = larder();
        command.env("LARDER_RUNTIME_DIR", &runtime);
        command.args(["stat", "--export", &export.address.to_string()]).output().unwrap()
    };
    let sockets = || fs::read_dir(&runtime).unwrap().count();
    let mut first = Anywhere::start(&runtime, dir.path());
    let mut second = Anywhere::start(&runtime, dir.path());
    assert_eq!(sockets(), 2);
    assert!(ask(&first).status.success() && ask(&second).status.success());

    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let Output { status, stderr, .. } = ask(&first);
    let line = String::from_utf8_lossy(&stderr);
    assert_eq!((status.code(), line.contains("no export of this user")), (Some(1), true), "{line}");

    let mut third = Anywhere::start(&runtime, dir.path());
    assert_eq!(sockets(), 2, "the socket of the dead one is gone");
    assert!(ask(&second).status.success() && ask(&third).status.success());
    second.terminate();
    third.terminate();
    assert_eq!(sockets(), 0);
}
