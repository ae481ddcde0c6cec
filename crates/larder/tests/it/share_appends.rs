//! Two clients of a share that append to one file. `LARDER_ROUNDS` makes more rounds.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Kind, Mount, Server, eventually, succeed};

/// Longest time of a call on a share whose server answers. Servers wait half a minute for a client
/// that does not return its lease.
const CALL_MAX: Duration = Duration::from_secs(15);

fn rounds() -> u32 {
    std::env::var("LARDER_ROUNDS").map_or(200, |rounds| rounds.parse().unwrap())
}

/// Each appends to the other's file content, which the other sometimes has truncated.
#[test]
fn appends_of_two_clients_go_to_the_end_and_do_not_wait_for_leases() {
    let server = Server::start(Kind::Samba);
    let mounts = [Mount::new(&server, &[]), Mount::new(&server, &[])];
    fs::write(mounts[0].path("log"), "").unwrap();
    let (mut model, mut slowest, mut state) = (String::new(), Duration::ZERO, 1_u64);
    for round in 0..rounds() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mount = &mounts[(state >> 33) as usize % 2];
        // The notification about the other's change is in flight.
        eventually("this one sees the file as it is", || {
            fs::read_to_string(mount.path("log")).is_ok_and(|seen| seen == model)
        });
        let (log, begin) = (mount.path("log"), Instant::now());
        let script = if (state >> 40) % 8 == 0 {
            model.clear();
            format!(": >{}", log.display())
        } else {
            writeln!(model, "line {round}").unwrap();
            format!("echo line {round} >>{}", log.display())
        };
        succeed(Command::new("sh").args(["-ec", &script]));
        slowest = slowest.max(begin.elapsed());
        let stored = fs::read_to_string(server.path("log")).unwrap();
        assert_eq!(stored, model, "round {round}");
    }
    println!("slowest call {slowest:?}");
    assert!(slowest < CALL_MAX, "{slowest:?}");
}

/// They may overwrite each other's bytes then, but neither waits for the other's lease.
#[test]
fn two_clients_that_append_at_the_same_time_do_not_wait_for_each_other() {
    let server = Server::start(Kind::Samba);
    let mounts = [Mount::new(&server, &[]), Mount::new(&server, &[])];
    fs::write(mounts[0].path("log"), "").unwrap();
    let script = r"
import os, sys, time
slowest = 0
for i in range(int(sys.argv[2])):
    begin = time.monotonic()
    try:
        with open(sys.argv[1], 'ab') as f:
            f.write(b'line\n')
        open(sys.argv[1], 'rb').read()
    except OSError as error:
        # A reader is told that what he reads has changed.
        if error.errno != 116:
            raise
    slowest = max(slowest, time.monotonic() - begin)
print(slowest)
";
    let spawn = |mount: &Mount| {
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).arg(mount.path("log")).arg(rounds().to_string());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let both: Vec<_> = mounts.iter().map(spawn).collect();
    for one in both {
        let output = one.wait_with_output().unwrap();
        assert!(output.status.success());
        let slowest: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        println!("slowest round {slowest:.1} s");
        assert!(slowest < CALL_MAX.as_secs_f64(), "{slowest} s");
    }
}
