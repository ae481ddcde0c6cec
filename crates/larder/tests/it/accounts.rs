//! What the RPCs of a mount cost, as its server counts them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::harness::{Kind, Mount, Server, larder, pattern, run, scratch, succeed};

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

/// An export at a free port, which it told.
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
