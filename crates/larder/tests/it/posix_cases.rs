//! What each system call does on a mount, case by case: rights, names, times (after pjdfstest) and
//! locks (after Connectathon's lock tests), by several users and processes.
//!
//! The cases are texts in `posix_cases/`, one step on a line: an actor, a call, and its expected
//! result:
//!
//! ```text
//! case NAME
//!   needs FEATURE...               left out where a server does not have it
//!   ACTOR CALL ARGUMENT...         succeeds
//!   ACTOR CALL ARGUMENT... = A|B   answers one of these, an errno or a value; `=` alone: nothing
//!   ACTOR CALL ARGUMENT... -> NAME the value is kept; `= =NAME` is the same one, `= >NAME` a higher one
//!   ACTOR begin CALL ARGUMENT...   is not waited for until `ACTOR end`; `ACTOR blocked` waits until it waits for a lock
//!   ACTOR exit, ACTOR kill         the process ends; the next step of the actor begins another one
//!   repeat N                       the steps below that are indented further
//! ```
//!
//! `posix_cases/actor.py` makes the calls. All cases pass on a local directory, so they demand
//! nothing that Linux does not do. What a server cannot do is listed in a table here, with the
//! reason; a row that is not needed is a failure, too.

mod cases;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::harness::{Kind, Mount, Server, eventually, scratch};
use cases::{Case, Expected, Step};

const RIGHTS: &str = include_str!("posix_cases/rights.txt");
const NAMES: &str = include_str!("posix_cases/names.txt");
const LOCKS: &str = include_str!("posix_cases/locks.txt");
const SHARED_LOCKS: &str = include_str!("posix_cases/shared_locks.txt");
/// The same, with reads and writes that locks of another mount prevent.
const LOCKS_OF_SHARES: &str = concat!(
    include_str!("posix_cases/shared_locks.txt"),
    "\n",
    include_str!("posix_cases/mandatory_locks.txt")
);

/// The program of an actor.
const PROGRAM: &str = include_str!("posix_cases/actor.py");

/// User, group, and further groups of each actor. There are several processes of root, for locks.
const ACTORS: [(&str, &[&str]); 6] = [
    ("root", &["0", "0"]),
    ("ann", &["4001", "4001", "4011"]),
    ("bob", &["4002", "4002"]),
    ("p1", &["0", "0"]),
    ("p2", &["0", "0"]),
    ("p3", &["0", "0"]),
];

/// What a server cannot do, with the reasons.
#[derive(Clone, Copy)]
struct Limits {
    /// Features of cases (`needs`).
    lacks: &'static [(&'static str, &'static str)],
    /// Single cases that fail.
    fails: &'static [(&'static str, &'static str)],
}

const NO_LIMITS: Limits = Limits { lacks: &[], fails: &[] };
const GANESHA: Limits = Limits { lacks: &[], fails: &[] };
const SAMBA: Limits = Limits {
    lacks: &[
        ("modes", "a share has no modes of single files"),
        ("owners", "a share has no owners of single files"),
        ("fifos", "a share has no special files"),
        ("devices", "a share has no special files"),
        ("ctime", "Samba tells the modification time for the change time"),
        ("dirlinks", "Samba counts no directories in a directory's links"),
        ("anynames", "Windows has names that a share refuses or does not tell apart"),
    ],
    fails: &[(
        "no file is that large",
        "Samba says of a size that is too large that the disk is full",
    )],
};

/// A process that makes calls.
struct Actor {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Actor {
    fn start(ids: &[&str], dir: &Path) -> Actor {
        let mut command = Command::new("python3");
        command.args(["-Sc", PROGRAM]).args(ids).current_dir("/");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut actor = Actor { process, input, output };
        actor.reset(dir);
        actor
    }

    /// Closes its open files, and changes to a directory.
    fn reset(&mut self, dir: &Path) {
        self.begin(&format!("reset {}", dir.display()));
        let said = self.end();
        assert_eq!(said, "", "{}", dir.display());
    }

    fn begin(&mut self, call: &str) {
        writeln!(self.input, "{call}").unwrap();
    }

    /// The value or errno that it returned, with commas for spaces; `EDIED` if it died.
    fn end(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap();
        if read == 0 {
            return "EDIED".to_owned();
        }
        line.trim_end().split_once(' ').map_or("", |(_, value)| value).replace(' ', ",")
    }

    fn waits_for_lock(&self) -> bool {
        let place = fs::read_to_string(format!("/proc/{}/wchan", self.process.id())).unwrap();
        // The kernel keeps locks itself, or has asked a mount that passes them on.
        ["setlk", "lock_inode_wait", "fuse", "request_wait_answer"]
            .iter()
            .any(|it| place.contains(it))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The actors of a case that were needed so far, and the values that were kept.
struct Stage {
    dir: PathBuf,
    /// The same directory on another mount, where `p2` is.
    elsewhere: Option<PathBuf>,
    actors: BTreeMap<&'static str, Actor>,
    kept: BTreeMap<String, String>,
}

impl Stage {
    fn new() -> Stage {
        let (actors, kept) = (BTreeMap::new(), BTreeMap::new());
        Stage { dir: PathBuf::from("/"), elsewhere: None, actors, kept }
    }

    /// Begins another case in another directory.
    fn reset(&mut self, dir: &Path, elsewhere: Option<PathBuf>) {
        self.kept.clear();
        (self.dir, self.elsewhere) = (dir.to_owned(), elsewhere);
        let mut actors = std::mem::take(&mut self.actors);
        actors.iter_mut().for_each(|(name, actor)| actor.reset(self.dir_of(name)));
        self.actors = actors;
    }

    fn dir_of(&self, actor: &str) -> &Path {
        self.elsewhere.as_ref().filter(|_| actor == "p2").unwrap_or(&self.dir)
    }

    fn actor(&mut self, name: &str) -> &mut Actor {
        let (name, ids) = ACTORS.iter().find(|(known, _)| *known == name).expect("a known actor");
        let dir = self.dir_of(name).to_owned();
        self.actors.entry(name).or_insert_with(|| Actor::start(ids, &dir))
    }

    /// Takes a step; returns its result.
    fn answer(&mut self, step: &Step) -> String {
        let actor = self.actor(&step.actor);
        match step.call.split_once(' ').map_or((&*step.call, ""), |(first, rest)| (first, rest)) {
            ("begin", call) => actor.begin(call),
            ("end", _) => return actor.end(),
            ("blocked", _) => {
                eventually(&format!("blocked: {step}"), || actor.waits_for_lock());
            }
            ("exit" | "kill", _) => {
                if step.call == "exit" {
                    actor.begin("exit");
                    actor.process.wait().unwrap();
                }
                self.actors.remove(&*step.actor);
            }
            _ => {
                actor.begin(&step.call);
                return actor.end();
            }
        }
        String::new()
    }

    /// Takes a step; `Err` has the result that was not the expected one.
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let mut said = self.answer(step);
        if let Some((before, pid)) = said.rsplit_once("pid:") {
            let holder = self.actors.iter().find(|(_, it)| it.process.id().to_string() == pid);
            said = holder.map_or(said.clone(), |(name, _)| format!("{before}{name}"));
        }
        let number = |text: &str| text.parse::<u64>().ok();
        let right = match &step.expected {
            Expected::Success => !cases::is_errno(&said),
            Expected::OneOf(values) => values.contains(&said),
            Expected::Kept(name) => {
                self.kept.insert(name.clone(), said.clone());
                !cases::is_errno(&said)
            }
            Expected::Same(name) => self.kept[name] == said,
            Expected::Higher(name) => {
                number(&said).is_some_and(|it| it > number(&self.kept[name]).unwrap())
            }
        };
        right.then_some(()).ok_or_else(|| format!("line {}: {step}: answered {said}", step.line))
    }

    fn play(&mut self, case: &Case) -> Result<(), String> {
        case.steps.iter().try_for_each(|step| self.step(step))
    }
}

/// Plays all cases below a directory, and reports those whose results differ from `limits`.
fn play(
    stage: &mut Stage,
    (dir, elsewhere): (&Path, Option<&Path>),
    who: &str,
    text: &'static str,
    limits: Limits,
) {
    let mut complaints = Vec::new();
    for (number, case) in cases::parse(text).iter().enumerate() {
        let lacks = |need| limits.lacks.iter().any(|(feature, _)| *feature == need);
        if case.needs.iter().copied().any(lacks) {
            continue;
        }
        let place = dir.join(format!("case-{number}"));
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        stage.reset(&place, elsewhere.map(|dir| dir.join(format!("case-{number}"))));
        let expected = limits.fails.iter().find(|(name, _)| *name == case.name);
        let played = stage.play(case);
        if played.is_err() {
            // Some may have begun a call that was not ended.
            stage.actors.clear();
        }
        match (played, expected) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Ok(()), Some((_, reason))) => {
                complaints.push(format!("{}: did not fail: {reason}", case.name));
            }
            (Err(why), None) => complaints.push(format!("{}: {why}", case.name)),
        }
    }
    // Nobody keeps a mount busy.
    stage.reset(Path::new("/"), None);
    assert!(complaints.is_empty(), "{who}:\n{}", complaints.join("\n"));
}

/// Plays them on two kinds of mounts of a server.
fn play_on(kind: Kind, text: &'static str, limits: Limits) {
    let mut stage = Stage::new();
    for options in [&[][..], &["plain"]] {
        let server = Server::start(kind);
        let modes = ["file_mode=0777", "dir_mode=0777"];
        let more = if kind == Kind::Samba { &modes[..] } else { &[] };
        let mount = Mount::new(&server, &[options, more].concat());
        if kind == Kind::Volume {
            // The root of a new volume is its owner's.
            fs::set_permissions(mount.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        }
        let who = format!("{kind:?} {options:?}");
        play(&mut stage, (&mount.path(""), None), &who, text, limits);
    }
}

#[test]
fn the_cases_hold_on_a_local_directory() {
    let dir = scratch("larder-cases-");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut stage = Stage::new();
    for (name, text) in [("rights", RIGHTS), ("names", NAMES), ("locks", LOCKS)] {
        let dir = dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        play(&mut stage, (&dir, None), "a local directory", text, NO_LIMITS);
    }
}

#[test]
fn rights_are_those_of_posix_on_our_export() {
    play_on(Kind::Larder, RIGHTS, NO_LIMITS);
}

#[test]
fn rights_are_those_of_posix_on_ganesha() {
    play_on(Kind::Ganesha, RIGHTS, GANESHA);
}

#[test]
fn names_and_times_are_those_of_posix_on_our_export() {
    play_on(Kind::Larder, NAMES, NO_LIMITS);
}

#[test]
fn names_and_times_are_those_of_posix_on_ganesha() {
    play_on(Kind::Ganesha, NAMES, GANESHA);
}

#[test]
fn names_and_times_are_those_of_posix_on_samba() {
    play_on(Kind::Samba, NAMES, SAMBA);
}

#[test]
fn processes_of_a_mount_lock_files_of_our_export() {
    play_on(Kind::Larder, LOCKS, NO_LIMITS);
}

#[test]
fn processes_of_a_mount_lock_files_of_ganesha() {
    play_on(Kind::Ganesha, LOCKS, GANESHA);
}

#[test]
fn processes_of_a_mount_lock_files_of_samba() {
    play_on(Kind::Samba, LOCKS, SAMBA);
}

#[test]
fn rights_are_those_of_posix_on_a_volume() {
    play_on(Kind::Volume, RIGHTS, NO_LIMITS);
}

#[test]
fn names_and_times_are_those_of_posix_on_a_volume() {
    play_on(Kind::Volume, NAMES, NO_LIMITS);
}

#[test]
fn processes_of_a_mount_lock_files_of_a_volume() {
    play_on(Kind::Volume, LOCKS, NO_LIMITS);
}

/// Actor p2 is on another mount, with a cache of its own.
#[test]
fn processes_of_two_mounts_of_a_share_exclude_each_other() {
    let mut stage = Stage::new();
    for options in [&[][..], &["plain"], &["nolease"]] {
        let server = Server::start(Kind::Samba);
        let (one, two) = (Mount::new(&server, options), Mount::new(&server, options));
        let (here, elsewhere) = (one.path(""), two.path(""));
        let who = format!("two mounts {options:?}");
        play(&mut stage, (&here, Some(&elsewhere)), &who, LOCKS_OF_SHARES, NO_LIMITS);
    }
}

/// The same on a volume, where locks are advisory.
#[test]
fn processes_of_two_mounts_of_a_volume_exclude_each_other() {
    let mut stage = Stage::new();
    for options in [&[][..], &["plain"]] {
        let server = Server::start(Kind::Volume);
        let (one, two) = (Mount::new(&server, options), Mount::new(&server, options));
        let (here, elsewhere) = (one.path(""), two.path(""));
        let who = format!("two mounts of a volume {options:?}");
        play(&mut stage, (&here, Some(&elsewhere)), &who, SHARED_LOCKS, NO_LIMITS);
    }
}
