//! Made-up runs of all five suites, to test the report and to look at it. Nothing here was
//! measured, and every run says so. The numbers have the shape of real ones: noise of a few
//! percent, an outcome of every kind (faster, slower, no difference, failed, not measured), counted
//! and uncounted RPCs.
//!
//! The same runs each time: noise comes from a counter.

use std::collections::BTreeMap;

use larder_bench::record::{FORMAT, Link, Machine, Run, Sample, Target, Test};

/// Said in the method of every run.
pub(crate) const MADE_UP: &str =
    "Every number of this run is made up, to look at the report. Nothing was measured.";

/// A name with everything that markup, tables, commas and bidirectional text can do.
pub(crate) const HOSTILE: &str =
    "<script>alert('x')</script> & \"q\" | `b` \u{202e}אבג, מ\u{0}\n=1+1 ]]>";

/// Noise that is the same each time: multiplicative congruential (Park and Miller).
struct Noise(u64);

impl Noise {
    /// Between 1 - share and 1 + share.
    fn around(&mut self, share: f64) -> f64 {
        self.0 = self.0 * 16_807 % 2_147_483_647;
        1.0 + share * (self.0 as f64 / 2_147_483_647.0 * 2.0 - 1.0)
    }
}

/// All five suites; the fourth was interrupted.
pub(crate) fn all() -> Vec<Run> {
    vec![badros(), fscache(), mbfs(), basic5(), snapdragon()]
}

/// The same with names of targets, tests, procedures and reasons as no program should choose them.
pub(crate) fn odd() -> Vec<Run> {
    let mut runs = all();
    let long = "a-name-of-200-characters-".repeat(8);
    let rename = |name: &mut String| match name.as_str() {
        "plain" | "plain udp" | "nfs" => *name = long.clone(),
        "rclone" | "sshfs" | "local" | "unlimited cache" => *name = format!("{HOSTILE} {name}"),
        _ => (),
    };
    for run in &mut runs {
        run.method.push(HOSTILE.repeat(30));
        run.command = format!("{long} {HOSTILE}");
        run.machine.cpu.clone_from(&long);
        run.targets.iter_mut().for_each(|target| rename(&mut target.name));
        for (index, test) in run.tests.iter_mut().enumerate() {
            if index == 2 {
                test.name.clone_from(&long);
            }
            for sample in &mut test.samples {
                rename(&mut sample.target);
                if let Some(reason) = &mut sample.failed {
                    *reason = format!("{HOSTILE} {long}").repeat(5);
                }
                if let Some(rpcs) = &mut sample.rpcs {
                    rpcs.insert(HOSTILE.to_owned(), 40);
                }
            }
        }
    }
    runs
}

fn run(suite: &str, asked: &str, bits: f64, targets: &[&str]) -> Run {
    let target = |name: &&str| Target {
        name: (*name).to_owned(),
        mounted: if *name == "local" { "ext4" } else { "fuse.made-up at /mnt/made-up" }.to_owned(),
        options: if name.contains("udp") { "proto=udp" } else { "vers=3" }.to_owned(),
        version: "0.0 (made up)".to_owned(),
        furnished_behind: *name != "local",
    };
    Run {
        format: FORMAT,
        suite: suite.to_owned(),
        size: "smoke".to_owned(),
        started: "2026-11-21T15:16:30Z".to_owned(),
        elapsed_s: 754.0,
        interrupted: false,
        command: format!("larder bench {suite} --made-up"),
        larder: "larder 0.0.0 (made up)".to_owned(),
        machine: Machine {
            host: "made-up machine".to_owned(),
            cpu: "Imaginary 9000 at 3.2 GHz".to_owned(),
            cpus: 2,
            memory_bytes: 8 << 30,
            kernel: "0.0.0-made-up".to_owned(),
            distribution: "Nowhere Linux".to_owned(),
            load: 0.37,
        },
        link: Some(Link {
            kind: "netns+veth+tbf".to_owned(),
            asked: asked.to_owned(),
            rate_bits_per_s: bits,
            round_trip_us: 712.0,
        }),
        method: vec![
            MADE_UP.to_owned(),
            "Before each test the page cache was dropped, and it was verified that nothing of the \
             files is resident."
                .to_owned(),
            "Targets take turns within a round; every second round goes in reverse order."
                .to_owned(),
        ],
        targets: targets.iter().map(target).collect(),
        absent: Vec::new(),
        tests: Vec::new(),
    }
}

fn sample(target: &str, round: u32, value: f64) -> Sample {
    Sample {
        target: target.to_owned(),
        round,
        value: Some(value),
        page_cache: Some("dropped, 0 bytes resident".to_owned()),
        ..Sample::default()
    }
}

fn failed(target: &str, round: u32, reason: &str) -> Sample {
    Sample {
        target: target.to_owned(),
        round,
        failed: Some(reason.to_owned()),
        ..Sample::default()
    }
}

fn rpcs(total: f64, shares: &[(&str, f64)]) -> Option<BTreeMap<String, u64>> {
    Some(shares.iter().map(|(name, share)| ((*name).to_owned(), (total * share) as u64)).collect())
}

/// Name, seconds of the plain client, and the caching client's share of them.
const BADROS: [(&str, f64, f64); 13] = [
    ("andrew-mkdir", 0.21, 0.93),
    ("andrew-copy", 1.9, 1.02),
    ("andrew-stat", 0.8, 0.31),
    ("andrew-read", 1.4, 0.28),
    ("andrew-cpu", 14.0, 0.9),
    ("untar", 8.3, 0.97),
    ("ls", 1.1, 0.22),
    ("read-big", 5.6, 1.0),
    ("read-big-again", 5.5, 0.011),
    ("copy-big", 11.2, 0.98),
    ("random-reads", 3.4, 1.06),
    ("small-writes", 2.1, 0.013),
    ("small-rw", 4.9, 0.4),
];

/// Shares of RPCs by procedure: more procedures than a chart has colours.
const SHARES: [(&str, f64); 9] = [
    ("GETATTR", 0.18),
    ("LOOKUP", 0.2),
    ("READ", 0.42),
    ("ACCESS", 0.08),
    ("WRITE", 0.07),
    ("COMMIT", 0.02),
    ("CREATE", 0.01),
    ("READDIRPLUS", 0.01),
    ("SETATTR", 0.01),
];

/// 13 tests alone and as four copies; `rclone` gives back wrong bytes in one, `sshfs` is not
/// measured in the copies, `plain-sync` in one test only.
pub(crate) fn badros() -> Run {
    let targets = ["larder", "plain", "plain-sync", "local", "rclone", "sshfs"];
    let mut run = run("badros", "10 Mbit/s", 9.41e6, &targets);
    let mut noise = Noise(11);
    for copies in [1, 4] {
        for (name, plain, ratio) in BADROS {
            let unit = "s".to_owned();
            let mut test = Test { name: name.to_owned(), copies, unit, ..Test::default() };
            for round in 0..5 {
                badros_round(&mut test, round, (plain, ratio), &mut noise);
            }
            run.tests.push(test);
        }
    }
    run
}

fn badros_round(test: &mut Test, round: u32, (plain, ratio): (f64, f64), noise: &mut Noise) {
    let copies = f64::from(test.copies);
    let drift = noise.around(0.1) * copies.powf(0.8);
    let calls = plain * 310.0 * copies;
    let swing = noise.around(0.5);
    let targets = [
        ("larder", ratio, Some(calls * ratio.min(0.97))),
        ("plain", 1.0, Some(calls)),
        ("plain-sync", 8.0, Some(calls * 2.0)),
        ("local", 0.02 + ratio * 0.05, None),
        ("rclone", 1.5, None),
        ("sshfs", 1.2 * swing, None),
    ];
    for (target, factor, calls) in targets {
        let only = target == "plain-sync" && test.name != "small-writes";
        if only || (target == "sshfs" && test.copies == 4) {
            continue;
        }
        if target == "rclone" && test.name == "small-rw" {
            let reason = "wrong bytes at offset 1,204 of the reread file";
            test.samples.push(failed(target, round, reason));
            continue;
        }
        let value = plain * factor * drift * noise.around(0.03);
        let rpcs = calls.and_then(|calls| rpcs(calls * noise.around(0.05), &SHARES));
        let rpcs_by = rpcs.is_some().then(|| "daemon".to_owned());
        test.samples.push(Sample { rpcs, rpcs_by, ..sample(target, round, value) });
    }
}

/// Three tests, which are five published states; the rival's cache does not survive a remount.
pub(crate) fn fscache() -> Run {
    let mut run = run("fscache", "100 Mbit/s", 95.3e6, &["larder", "plain", "local", "rclone"]);
    let mut noise = Noise(12);
    let states: [(&str, &[(&str, f64)]); 3] = [
        ("COLD", &[("larder", 17.9), ("plain", 17.8), ("local", 0.22), ("rclone", 19.8)]),
        ("HOT", &[("larder", 0.19), ("plain", 17.8), ("local", 0.22), ("rclone", 17.7)]),
        ("PGCACHE", &[("larder", 0.052), ("plain", 0.055), ("local", 0.049), ("rclone", 0.31)]),
    ];
    for (name, targets) in states {
        let mut test =
            Test { name: name.to_owned(), copies: 1, unit: "s".to_owned(), ..Test::default() };
        for round in 0..7 {
            for (target, seconds) in targets {
                let mut sample = sample(target, round, seconds * noise.around(0.02));
                if *target != "local" && name != "PGCACHE" {
                    let reads = if name == "HOT" && *target == "larder" { 0.0 } else { 200.0 };
                    sample.rpcs = rpcs(1.0, &[("READ", reads), ("GETATTR", 2.0), ("LOOKUP", 1.0)]);
                    sample.rpcs_by = Some("server".to_owned());
                }
                test.samples.push(sample);
            }
        }
        run.tests.push(test);
    }
    run
}

/// Five tests at 1 to 10 clients; `sshfs` fails from 6 clients on in one of them.
pub(crate) fn mbfs() -> Run {
    let mut run = run("mbfs", "1 Gbit/s", 0.937e9, &["larder", "plain", "local", "sshfs"]);
    run.absent = vec!["juicefs: not installed (made up)".to_owned()];
    let mut noise = Noise(13);
    for (name, seconds, unit) in [
        ("large-write", 0.9, "s"),
        ("small-file", 900.0, "files/s"),
        ("untar", 2.2, "s"),
        ("edit", 1.3, "s"),
        ("andrew", 5.5, "s"),
    ] {
        for clients in [1, 2, 4, 6, 8, 10] {
            let mut test = Test {
                name: name.to_owned(),
                copies: clients,
                unit: unit.to_owned(),
                ..Test::default()
            };
            test.more_is_better = unit == "files/s";
            for round in 0..3 {
                for (target, factor, slope) in [
                    ("larder", 0.5, 0.25),
                    ("plain", 1.0, 0.75),
                    ("local", 0.3, 0.2),
                    ("sshfs", 1.4, 0.9),
                ] {
                    if target == "sshfs" && name == "untar" && clients >= 6 {
                        let reason =
                            "cannot create a directory: Transport endpoint is not connected";
                        test.samples.push(failed(target, round, reason));
                        continue;
                    }
                    let time = factor * f64::from(clients).powf(slope) * noise.around(0.06);
                    let value = if test.more_is_better { seconds / time } else { seconds * time };
                    let mut sample = sample(target, round, value);
                    sample.subtracted_s = (name == "andrew").then_some(2.5);
                    if target == "larder" || target == "plain" {
                        let calls = 400.0 * factor * f64::from(clients);
                        sample.rpcs =
                            rpcs(calls, &[("WRITE", 0.5), ("CREATE", 0.3), ("COMMIT", 0.2)]);
                        sample.rpcs_by = Some("daemon".to_owned());
                    }
                    test.samples.push(sample);
                }
            }
            run.tests.push(test);
        }
    }
    run
}

/// Rates over file sizes with knees, over UDP and TCP; interrupted before the largest size of
/// reads.
pub(crate) fn basic5() -> Run {
    let targets = ["larder udp", "plain udp", "larder tcp", "plain tcp", "local"];
    let mut run = run("basic5", "1 Gbit/s", 0.937e9, &targets);
    run.interrupted = true;
    let mut noise = Noise(14);
    let mean = |size: f64, knee: f64, fast: f64, slow: f64| {
        size / (size.min(knee) / fast + (size - knee).max(0.0) / slow)
    };
    for name in ["write", "read"] {
        let sizes = [20, 40, 60, 80, 100, 140, 180, 220, 260, 300, 340, 380, 420, 460];
        for size in sizes.map(f64::from) {
            if name == "read" && size > 450.0 {
                continue;
            }
            let at = BTreeMap::from([("file size MB".to_owned(), size)]);
            let mut test = Test {
                name: name.to_owned(),
                copies: 1,
                at,
                unit: "B/s".to_owned(),
                ..Test::default()
            };
            test.more_is_better = true;
            for round in 0..3 {
                for (target, factor) in targets.iter().zip([1.0, 0.93, 0.97, 0.9, 3.0]) {
                    let rate = match name {
                        "write" => mean(size, 90.0, 88e6, 31e6),
                        _ if size > 400.0 => 24e6,
                        _ if size > 180.0 => 61e6,
                        _ => 96e6,
                    };
                    test.samples.push(sample(target, round, rate * factor * noise.around(0.03)));
                }
            }
            run.tests.push(test);
        }
    }
    run
}

/// Bandwidth over file sizes and disks, and latencies with one sample per operation.
pub(crate) fn snapdragon() -> Run {
    let setups = ["larder secure", "larder non-secure", "nfs", "unlimited cache"];
    let mut run = run("snapdragon", "1 Gbit/s", 0.937e9, &setups);
    let mut noise = Noise(15);
    let mut push = |run: &mut Run, name: &str, copies: u32, at: (&str, f64), rates: [f64; 4]| {
        let at = BTreeMap::from([(at.0.to_owned(), at.1)]);
        let mut test =
            Test { name: name.to_owned(), copies, at, unit: "B/s".to_owned(), ..Test::default() };
        test.more_is_better = true;
        for round in 0..4 {
            for (target, rate) in setups.iter().zip(rates) {
                if *target == "nfs" && name == "scale-write" && copies > 5 {
                    test.samples.push(failed(
                        target,
                        round,
                        "server went away: Connection reset by peer",
                    ));
                    continue;
                }
                let mut sample = sample(target, round, rate * noise.around(0.04));
                sample.extra.insert("disk_cpu_idle_share".to_owned(), 0.4);
                test.samples.push(sample);
            }
        }
        run.tests.push(test);
    };
    for (name, scale) in [("read", 1.0), ("write", 0.7)] {
        for power in 0..6 {
            let size = 4.0 * 4_f64.powi(power);
            let rate = scale * 60e6 * size / (size + 90.0);
            let macs = if size > 256.0 { 0.86 } else { 0.995 };
            push(
                &mut run,
                name,
                6,
                ("file size KB", size),
                [rate * macs, rate, rate * 0.8, rate * 1.7],
            );
        }
    }
    for name in ["scale-read", "scale-write"] {
        for disks in 2..8 {
            let rate = 22e6 * f64::from(disks);
            let nfs = 30e6 + 3e6 * f64::from(disks);
            push(
                &mut run,
                name,
                disks,
                ("disks", f64::from(disks)),
                [rate * 0.99, rate, nfs, rate * 1.4],
            );
        }
    }
    run.tests.push(latencies(&setups));
    run.tests.push(percentiles(&setups));
    let mut share = Test { name: "disk-share".to_owned(), copies: 1, ..Test::default() };
    (share.unit, share.more_is_better) = ("B/s".to_owned(), true);
    share.samples = setups.iter().map(|setup| sample(setup, 0, 24e6)).collect();
    run.tests.push(share);
    run
}

fn latencies(setups: &[&str; 4]) -> Test {
    let mut noise = Noise(16);
    let mut test = Test {
        name: "latency-read".to_owned(),
        copies: 1,
        unit: "us".to_owned(),
        ..Test::default()
    };
    for operation in 0..300 {
        for (target, middle) in setups.iter().zip([640.0, 600.0, 910.0, 410.0]) {
            let tail = if operation % 17 == 0 { 3.0 } else { 1.0 };
            test.samples.push(sample(target, operation, middle * tail * noise.around(0.4)));
        }
    }
    test
}

/// One sample per round, the mean, with percentiles beside it.
fn percentiles(setups: &[&str; 4]) -> Test {
    let mut noise = Noise(17);
    let unit = "us".to_owned();
    let mut test = Test { name: "latency-write".to_owned(), copies: 1, unit, ..Test::default() };
    for round in 0..4 {
        for (target, middle) in setups.iter().zip([2100.0, 2000.0, 4300.0, 1900.0]) {
            let mean = middle * noise.around(0.05);
            let extra = [("p50_us", 0.9), ("p90_us", 1.6), ("p99_us", 3.1)];
            let extra = extra.map(|(name, factor)| (name.to_owned(), mean * factor));
            test.samples.push(Sample { extra: extra.into(), ..sample(target, round, mean) });
        }
    }
    test
}
