//! Two mounts of one export: random operations on a few files, one after the other, by either of
//! them, and each answer is one that the model allows.
//!
//! `model` says which answers are allowed, `script` makes the list of operations from a seed,
//! `play` does them. Operations do not overlap, as if each were done under a lock of both machines.
//! At the end both mounts are made again, and they and the server's directory are the same byte for
//! byte.
//!
//! `LARDER_SEED=N LARDER_OPERATIONS=N` does the first operations of an earlier run,
//! `LARDER_MOUNTS=TEXT` those configurations whose description has that text in it (all of them,
//! with an empty text), `LARDER_CALLS=N` makes this many calls in each, `LARDER_CHECK_ALL=1` checks
//! all files of the server after each operation, and `LARDER_KEEP_LOGS=DIR` keeps the logs of both
//! mounts when an answer is wrong.

mod layers;
mod model;
mod play;
mod script;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Mount, eventually, tree};
use crate::rounds::{LATE_MAX, Of, Random, URING_PARAMETER, mount_over};
use model::{Ages, Model};
use play::{Kind, Play};

/// Calls of the kernel that the operations make in each configuration, unless asked otherwise.
const CALLS: u64 = 2500;

/// The seed unless asked otherwise.
const SEED: u64 = 4;

/// Last operations that are shown when one fails, unless `LARDER_SHOWN` sets another number.
const SHOWN: usize = 40;

/// Set in the process of its own that a test runs in.
const ALONE: &str = "LARDER_TWO_MOUNTS_ALONE";

/// A server, and how it is mounted twice.
type Configuration = (Of, &'static [&'static str]);

/// Kinds of mounts of an NFS server. What is trusted is trusted longer than a run takes, or not at
/// all.
const NFS: [&[&str]; 6] = [
    &["actimeo=0"],
    &["noac"],
    &["actimeo=0", "nopassthrough"],
    &["plain"],
    &["actimeo=0", "transport=uring"],
    &[],
];

/// The same of a share.
const SMB: [&[&str]; 7] = [
    &["actimeo=0"],
    &["actimeo=0", "nolease"],
    &["noac"],
    &["nopassthrough"],
    &["actimeo=0", "transport=uring"],
    &[],
    &["plain"],
];

/// The same of a volume.
const VOLUME: [&[&str]; 6] =
    [&["noac"], &["actimeo=0"], &[], &["nopassthrough"], &["plain"], &["transport=uring"]];

/// The properties that depend on server and options.
fn kind((of, options): Configuration) -> (Kind, Ages) {
    let has = |option| options.contains(&option);
    let (is_share, is_volume) = (of == Of::Samba, of == Of::Volume);
    let leases = is_share && !has("nolease");
    let ages = if has("noac") || has("actimeo=0") && !leases {
        Ages { names: Duration::ZERO, sizes: Duration::ZERO }
    } else if is_volume {
        // A change waits until no client has a lease on the earlier state; a client that has only
        // listed a file has none.
        Ages { names: Duration::ZERO, sizes: Duration::from_secs(5) }
    } else if leases {
        Ages { names: LATE_MAX, sizes: LATE_MAX }
    } else {
        Ages { names: Duration::from_secs(30), sizes: Duration::from_secs(5) }
    };
    let kind =
        Kind { writes_at_once: has("noac"), leases, opens_hinder: is_share, opens_keep: is_volume };
    (kind, ages)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Does all operations; `Err` says which one got a wrong answer.
fn run(configuration: Configuration, seed: u64) -> Result<String, String> {
    let (of, options) = configuration;
    let (kind, ages) = kind(configuration);
    let kernel_writes = !options.iter().any(|option| ["nopassthrough", "plain"].contains(option));
    let server = of.start();
    // A volume has no directory at its server: a further mount shows its content.
    let third = (of == Of::Volume).then(|| Mount::plain(&server, &["noac"]));
    let truth = third.as_ref().map_or_else(|| server.path(""), |third| third.path(""));
    let mount = || mount_over(Mount::unmounted(&server, options), options);
    let mut mounts = [mount(), mount()];
    let tops = [0, 1].map(|who| mounts[who].path(""));
    let model = Model::new(ages, kernel_writes, kind.leases || kind.opens_keep);
    let mut play = Play::new(kind, model, tops, truth.clone());
    let checks_all = number("LARDER_CHECK_ALL").is_some();
    let (mut random, mut done) = (Random(seed), Vec::new());
    let (last, calls) = (number("LARDER_OPERATIONS"), number("LARDER_CALLS").unwrap_or(CALLS));
    for count in 1.. {
        if play.acts.get() >= calls || last.is_some_and(|last| count > last) {
            break;
        }
        let step = script::next(&mut random);
        let (text, before) = (play.describe(&step), play.acts.get());
        let outcome =
            play.step(step).and_then(|()| if checks_all { play.compare_all() } else { Ok(()) });
        done.extend(text.filter(|_| play.acts.get() > before));
        if let Err(wrong) = outcome {
            if let Ok(to) = std::env::var("LARDER_KEEP_LOGS") {
                for (who, mount) in mounts.iter().enumerate() {
                    std::fs::write(format!("{to}/{who}.log"), mount.log()).unwrap();
                }
            }
            let shown = number("LARDER_SHOWN").map_or(SHOWN, |shown| shown as usize);
            let shown = done[done.len().saturating_sub(shown)..].join("\n  ");
            return Err(format!(
                "  {shown}\n{wrong}\nLARDER_SEED={seed} LARDER_OPERATIONS={count}"
            ));
        }
    }
    play.end().map_err(|wrong| format!("at the last close: {wrong}, LARDER_SEED={seed}"))?;
    let remarks =
        format!("{} calls, {} late, {} stale reads", play.acts.get(), play.late, play.stale);
    drop(play);
    for mount in &mut mounts {
        mount.unmount();
    }
    let mounts = mounts.map(|mount| mount_over(mount, options));
    // The kernel may drop the last releases when a mount ends. The next mount removes files with a
    // hidden name.
    eventually("no hidden name is left", || !has_hidden_names(&truth));
    let there = tree(&truth);
    for (who, mount) in mounts.iter().enumerate() {
        let seen = tree(&mount.path(""));
        let others = seen.iter().filter(|(path, bytes)| there.get(*path) != Some(*bytes));
        let mut others: Vec<_> = others.map(|(path, _)| path).collect();
        others.extend(there.keys().filter(|path| !seen.contains_key(*path)));
        if !others.is_empty() {
            return Err(format!(
                "mount {who} ends with other files: {others:?}, LARDER_SEED={seed}"
            ));
        }
    }
    Ok(remarks)
}

/// Whether there are names of removed files that were open.
fn has_hidden_names(root: &Path) -> bool {
    let dirs = [""].into_iter().chain(script::DIRS);
    let mut entries = dirs.filter_map(|dir| fs::read_dir(root.join(dir)).ok()).flatten();
    entries.any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(".nfs"))
}

/// Runs a test of this file in a process of its own. A process that another test is just starting
/// shares our open files until it runs its program: a file that we have closed would stay open for
/// a moment, and the model considers a file closed when close(2) has returned.
fn alone(test: &str, work: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return work();
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    tests.args(["--exact", &format!("two_mounts::{test}"), "--include-ignored", "--nocapture"]);
    let done = tests.env(ALONE, "1").output().unwrap();
    println!("{}", String::from_utf8_lossy(&done.stdout));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Does so in each configuration, and prints how many operations there were.
fn hold(chosen: &[Configuration], all: &[Configuration]) {
    let seed = number("LARDER_SEED").unwrap_or(SEED);
    let wanted: Vec<Configuration> = match std::env::var("LARDER_MOUNTS") {
        Err(_) => chosen.to_vec(),
        Ok(text) => {
            let has = |configuration: &&Configuration| format!("{configuration:?}").contains(&text);
            all.iter().filter(has).copied().collect()
        }
    };
    let mut failed = Vec::new();
    for configuration in wanted {
        let is_over_uring = configuration.1.contains(&"transport=uring");
        if is_over_uring && !Path::new(URING_PARAMETER).exists() {
            continue;
        }
        let begin = Instant::now();
        let outcome = run(configuration, seed);
        let seconds = begin.elapsed().as_secs();
        let (Ok(text) | Err(text)) = &outcome;
        println!("{configuration:?}: LARDER_SEED={seed}, {seconds} s: {text}");
        failed.extend(outcome.is_err().then_some(configuration));
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn two_mounts_of_an_nfs_export_agree_with_a_model() {
    let servers = [Of::Own, Of::Shared, Of::Ganesha];
    let all: Vec<_> = servers.into_iter().flat_map(|of| NFS.map(|options| (of, options))).collect();
    let chosen =
        [(Of::Own, NFS[0]), (Of::Own, NFS[1]), (Of::Shared, NFS[2]), (Of::Ganesha, NFS[0])];
    alone("two_mounts_of_an_nfs_export_agree_with_a_model", || hold(&chosen, &all));
}

#[test]
fn two_mounts_of_a_share_agree_with_a_model() {
    let all = SMB.map(|options| (Of::Samba, options));
    alone("two_mounts_of_a_share_agree_with_a_model", || hold(&all[..4], &all));
}

#[test]
fn two_mounts_of_a_volume_agree_with_a_model() {
    let all = VOLUME.map(|options| (Of::Volume, options));
    alone("two_mounts_of_a_volume_agree_with_a_model", || hold(&all[..1], &all));
}
