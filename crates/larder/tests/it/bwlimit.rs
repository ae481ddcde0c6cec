//! `bwlimit`: what no process waits for goes to the server within a limit on bytes per second; and
//! the progress of `larder sync`, which then lasts some seconds.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Kind, Mount, Server, eventually, kill, pattern, said, tree};

const RATE: u64 = 1 << 20;
const FILES: u64 = 48;
const SIZE: u64 = 64 << 10;

/// Names and bytes wait here.
const WAITING: [&str; 3] = ["exclusive", "class=generated", "actimeo=86400"];

fn options(limit: &'static str) -> Vec<&'static str> {
    WAITING.into_iter().chain([limit]).collect()
}

/// A line of progress.
#[derive(Clone, Copy, Debug)]
struct Told {
    bytes: f64,
    bytes_total: f64,
    files: u64,
    files_total: u64,
    left_s: Option<f64>,
}

/// `1.50 MiB`, in bytes.
fn bytes(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let power = ["B", "KiB", "MiB", "GiB"].iter().position(|one| *one == unit)?;
    Some(number.parse::<f64>().ok()? * 1024_f64.powi(i32::try_from(power).ok()?))
}

/// `1min 5s`, in seconds.
fn seconds(text: &str) -> Option<f64> {
    let part = |part: &str| match (part.strip_suffix("min"), part.strip_suffix('s')) {
        (Some(minutes), _) => Some(minutes.parse::<f64>().ok()? * 60.0),
        (None, Some(seconds)) => seconds.parse::<f64>().ok(),
        (None, None) => None,
    };
    text.split(' ').map(part).sum()
}

/// `3.00 MiB of 4.00 MiB, 12 of 48 files, 1.00 MiB/s, 1s left`
fn told(line: &str) -> Option<Told> {
    let mut parts = line.trim_end().split(", ");
    let (done, total) = parts.next()?.split_once(" of ")?;
    let (files, files_total) = parts.next()?.strip_suffix(" files")?.split_once(" of ")?;
    let left_s = parts.find_map(|part| seconds(part.strip_suffix(" left")?));
    // Before it stands the bar.
    let mut words = done.rsplitn(3, ' ');
    let (unit, number) = (words.next()?, words.next()?);
    Some(Told {
        bytes: bytes(&format!("{number} {unit}"))?,
        bytes_total: bytes(total)?,
        files: files.parse().ok()?,
        files_total: files_total.parse().ok()?,
        left_s,
    })
}

/// `larder sync` at a terminal.
fn sync_at_a_terminal(mount: &Mount) -> std::process::Child {
    let larder = mount.larder();
    let typed = format!("{} sync {}", larder.get_program().display(), mount.path("").display());
    let mut script = Command::new("script");
    let env = larder.get_envs().filter_map(|(name, value)| Some((name, value?)));
    script.args(["-qec", &typed, "/dev/null"]).envs(env).env("TERM", "xterm");
    script.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// At no time the server has more than the limit allows since the first byte was written. What
/// `larder sync` tells meanwhile is right: done and total count up to what was written, and the
/// rest takes as long as it does at the limit, or longer.
#[test]
fn what_waits_keeps_to_the_limit_and_its_progress_is_told() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &options("bwlimit=1M"));
    let begin = Instant::now();
    fs::create_dir(mount.path("dir")).unwrap();
    for count in 0..FILES {
        fs::write(mount.path(&format!("dir/{count}")), pattern(count, SIZE as usize)).unwrap();
    }
    let mut sync = sync_at_a_terminal(&mount);
    let mut worst = 0.0_f64;
    eventually("the sync ends", || {
        let ended = sync.try_wait().unwrap().is_some();
        let got: u64 = tree(server.path("").as_path()).values().map(|file| file.len() as u64).sum();
        let allowed = RATE as f64 * begin.elapsed().as_secs_f64();
        worst = worst.max(got as f64 / allowed);
        assert!(got as f64 <= allowed, "{got} bytes, where {allowed} are allowed");
        ended
    });
    let took = begin.elapsed();
    let output = sync.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(took >= Duration::from_secs(FILES * SIZE / RATE), "{took:?}");
    assert_eq!(tree(&mount.path("")), tree(&server.path("")));

    let all: Vec<Told> = text.split(['\r', '\n']).filter_map(told).collect();
    println!("{took:?}, at most {worst:.2} of the limit; {all:?}");
    assert!(all.len() > 2, "{text}");
    let bytes_total = (FILES * SIZE) as f64;
    for (before, now) in all.iter().zip(&all[1..]) {
        assert!(before.bytes <= now.bytes && before.files <= now.files, "{before:?} {now:?}");
    }
    for one in &all {
        // Three digits are shown. The directory and its files may be on their way already.
        assert!(one.bytes <= one.bytes_total && one.bytes_total <= bytes_total * 1.01, "{one:?}");
        assert!(one.files <= one.files_total && one.files_total <= FILES + 2, "{one:?}");
        let least_s = (one.bytes_total - one.bytes) / RATE as f64;
        // What was done in some tenths of a second says little.
        assert!(one.left_s.is_none_or(|left_s| left_s + 1.0 >= least_s / 2.0), "{one:?}");
    }
    assert!(all.iter().any(|one| one.left_s.is_some_and(|left_s| left_s > 0.0)), "{text}");
    assert!(text.contains(" sent"), "{text}");
}

/// A limit under which the sync would take minutes: a process that waits for the server's disk does
/// not wait for it, the next worker keeps it, and without it the sync ends.
#[test]
fn the_limit_of_a_live_mount_changes() {
    const LONG: usize = 4 << 20;
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &options("bwlimit=500k"));
    let at = mount.path("").to_str().unwrap().to_owned();
    let limit = || said(&mount, &["bwlimit", &at]);
    assert_eq!(
        limit(),
        (Some(0), format!("{}: at most 500 KiB per second\n", at.trim_end_matches('/')))
    );
    let (code, text) = said(&mount, &["bwlimit", &at, "500"]);
    assert!(code == Some(2) && text.contains("500K"), "{code:?} {text}");
    assert!(said(&mount, &["bwlimit", &at, "4k"]).1.contains("4.00 KiB"));
    kill([mount.pids()[1]; 2]);
    eventually("the next worker has it", || limit().1.contains("4.00 KiB"));
    assert_eq!(mount.status()["server"]["bytes_per_second_max"], 4096);

    fs::write(mount.path("long"), pattern(1, LONG)).unwrap();
    let mut sync = mount.larder();
    let mut sync = sync.args(["sync", &at]).stdout(Stdio::null()).spawn().unwrap();
    eventually("it is on its way", || server.path("long").exists());
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).create(true).custom_flags(libc::O_SYNC);
    options.open(mount.path("short")).unwrap().write_all(b"at once").unwrap();
    assert_eq!(fs::read(server.path("short")).unwrap(), b"at once");
    assert!(sync.try_wait().unwrap().is_none(), "the others keep to the limit");
    assert!(fs::metadata(server.path("long")).unwrap().len() < LONG as u64);
    assert!(said(&mount, &["bwlimit", &at, "off"]).1.contains("no limit"));
    assert!(sync.wait().unwrap().success());
    assert!(fs::read(server.path("long")).unwrap() == pattern(1, LONG));
}
