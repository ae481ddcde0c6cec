//! Lost files are made again: rules, and as which user they are run, on mounts of a volume.

mod at_once;
mod clients;
mod originals;
mod refused;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::harness::{Mount, eventually, scratch, succeed};
use crate::server::Server;
use crate::several_disks::{Disk, Volume};

/// A user who is not root.
const USER: u32 = 1000;

/// Which files are in memory alone.
const RULES: &str = r#"
[[rule]]
glob = "*.o"
class = "volatile"

[[rule]]
glob = "out*"
class = "volatile"
"#;

const MAKEFILE: &str = "\
out: main.o util.o words
\tcc -o $@ main.o util.o
%.o: %.c util.h
\t@echo made >> $(COUNT)
\tcc -c -o $@ $<
words: main.c
\t@mkdir -p made/here
\ttr -c a-z '\\n' < main.c | sort -u > made/here/out-words
\ttouch words
";

/// A volume whose memory disk can be lost, and mounts of it.
struct Lossy {
    volume: Volume,
    server: Server,
    rules: tempfile::TempDir,
}

impl Lossy {
    fn new() -> Lossy {
        let mut volume = Volume::with_memory_disk();
        volume.disks.iter_mut().for_each(Disk::start);
        let server = Server::meta(&["--engine", &volume.engine()]);
        let are_there = |told: serde_json::Value| told["disks"][1]["state"] == "up";
        eventually("both disks are there", || status(&server).is_some_and(are_there));
        let rules = scratch("larder-rules-");
        fs::write(rules.path().join("rules.toml"), RULES).unwrap();
        Lossy { volume, server, rules }
    }

    /// Without a cache: lost bytes are lost there, too. Unless the mount is asked to, it runs no
    /// command.
    fn mount(&self) -> Mount {
        self.mount_with(&[])
    }

    fn mount_with(&self, options: &[&str]) -> Mount {
        let rules = format!("rules={}", self.rules.path().join("rules.toml").display());
        Mount::plain(&self.server, &[&[&rules, "user_xattr", "hard"], options].concat())
    }

    /// The memory disk is started again.
    fn lose_at_once(&mut self) {
        self.volume.disks[1].kill();
        self.volume.disks[1].start();
    }

    /// The same, and the mount knows nothing from before.
    fn lose(&mut self, mount: &mut Mount) {
        self.lose_at_once();
        mount.remount();
    }

    /// The same, and the metadata server has noticed it: it checks when it starts.
    fn lose_and_notice(&mut self, mount: &mut Mount) {
        mount.unmount();
        self.server.kill();
        self.lose_at_once();
        self.server.restart();
        self.notices();
        mount.mount();
    }

    /// Waits until the metadata server knows of a loss.
    fn notices(&self) {
        let lost =
            |told: serde_json::Value| told["lost"].as_array().is_some_and(|lost| !lost.is_empty());
        eventually("the loss is noticed", || status(&self.server).is_some_and(lost));
    }
}

/// The state of a volume. A server that was just started listens before commands find it.
fn status(server: &Server) -> Option<serde_json::Value> {
    let mut command = server.larder_here();
    command.args(["volume", "status", "--json", &server.address().to_string()]);
    let told = command.output().unwrap();
    told.status.success().then(|| serde_json::from_slice(&told.stdout).unwrap())
}

fn is_lost(path: &Path) -> bool {
    match fs::read(path) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(Errno::NOTRECOVERABLE.raw_os_error()));
            true
        }
    }
}

/// The attribute in which a file names its rule.
const RULE: &str = "user.larder.rule";

fn attribute(file: &Path) -> String {
    let mut value = vec![0; 1000];
    let len = rustix::fs::getxattr(file, RULE, &mut value[..]).unwrap();
    String::from_utf8(value[..len].to_vec()).unwrap()
}

/// A larder command in a directory.
fn larder_in(mount: &Mount, dir: &Path, args: &[&str]) -> Command {
    let mut command = mount.larder();
    command.args(args).current_dir(dir).env("LANG", "C.UTF-8");
    command
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// What a mount's status says of rebuilding.
fn told(mount: &Mount, what: &str) -> u64 {
    mount.status()["rebuild"][what].as_u64().unwrap()
}

/// What the makefile makes and a loss takes.
const MADE: [&str; 4] = ["main.o", "util.o", "out", "made/here/out-words"];

/// A directory with the makefile and what it needs.
fn project(mount: &Mount) -> PathBuf {
    let dir = mount.path("project");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("Makefile"), MAKEFILE).unwrap();
    fs::write(dir.join("util.h"), "int twice(int);\n").unwrap();
    fs::write(dir.join("util.c"), "#include \"util.h\"\nint twice(int x) { return 2 * x; }\n")
        .unwrap();
    let main = "#include <stdio.h>\n#include \"util.h\"\nint main(void) { printf(\"%d\\n\", twice(21)); }\n";
    fs::write(dir.join("main.c"), main).unwrap();
    dir
}

#[test]
fn what_make_made_is_made_again_byte_by_byte() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount();
    let dir = project(&mount);
    let counted = lossy.rules.path().join("count");
    let count = format!("COUNT={}", counted.display());
    let make = ["run", "--", "make", &count];
    succeed(&mut larder_in(&mount, &dir, &make));
    let read = || MADE.map(|name| fs::read(dir.join(name)).unwrap());
    let times = || MADE.map(|name| fs::metadata(dir.join(name)).unwrap().mtime_nsec());
    let (bytes, changed) = (read(), times());
    // A second run makes nothing, and forgets nothing.
    succeed(&mut larder_in(&mount, &dir, &make));

    lossy.lose_and_notice(&mut mount);
    assert!(MADE.iter().all(|name| is_lost(&dir.join(name))));
    let told = succeed(&mut larder_in(&mount, &dir, &["rebuild", "."]));
    let told = String::from_utf8(told.stdout).unwrap();
    assert_eq!(told.lines().count(), 4, "{told}");
    assert!(read() == bytes);
    assert_eq!(times(), changed);
    let ran = Command::new(dir.join("out")).output().unwrap();
    assert_eq!(ran.stdout, b"42\n");
    // A file that was made again is an ordinary file, and can be lost again.
    succeed(&mut larder_in(&mount, &dir, &make));
    assert_eq!(fs::read_to_string(&counted).unwrap().lines().count(), 2, "made once");
    lossy.lose_and_notice(&mut mount);
    fs::rename(dir.join("out"), dir.join("out-renamed")).unwrap();
    succeed(&mut larder_in(&mount, &dir, &["rebuild", "out-renamed"]));
    assert!(fs::read(dir.join("out-renamed")).unwrap() == bytes[2]);
}

/// Which inputs each freshness takes; the command runs as the file's owner; and once, for the first
/// request.
#[test]
fn lost_files_are_made_once_as_their_owner_from_what_freshness_says() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount();
    let dir = mount.path("project");
    fs::create_dir(&dir).unwrap();
    for name in ["source-1", "source-2", "source-3"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let run = |freshness: &str, script: &str| {
        let args = ["run", "--freshness", freshness, "--", "sh", "-c", script];
        succeed(&mut larder_in(&mount, &dir, &args));
    };
    run("original", "cat source-1 > out-original");
    run("latest", "cat source-2 > out-latest");
    run("version", "sleep .5; cat source-3 > out-slow");
    std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    let mut as_user = larder_in(&mount, &dir, &["run", "--", "sh", "-c", "id -u > out-id"]);
    succeed(as_user.uid(USER).gid(USER));
    // A user that makes root's file name a rule of that user does not get it run as root.
    let foreign = mount.path("out-foreign");
    fs::write(&foreign, "root's").unwrap();
    let named = attribute(&dir.join("out-id"));
    let (rule, place) = (&named[..64], named.rsplit(' ').next().unwrap());
    let seen = fs::metadata(&foreign).unwrap();
    let changed = seen.mtime() * 1_000_000_000 + seen.mtime_nsec();
    let named = format!("{rule} {changed} {place}");
    rustix::fs::setxattr(&foreign, RULE, named.as_bytes(), XattrFlags::empty()).unwrap();
    fs::remove_file(dir.join("source-1")).unwrap();
    fs::write(dir.join("source-2"), "later").unwrap();

    lossy.lose_and_notice(&mut mount);
    let other = lossy.mount();
    let slow = |mount: &Mount| {
        let args = ["rebuild", "project/out-slow"];
        let mut command = larder_in(mount, &mount.path(""), &args);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    // A killed rebuild leaves nothing for which others would wait, and no program.
    let mut killed = slow(&other);
    let sleeps =
        || Path::new(&format!("/var/tmp/larder-rebuild-{}-0/root/tmp", killed.id())).exists();
    eventually("it works", sleeps);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let both = [slow(&mount), slow(&other)].map(|child| child.wait_with_output().unwrap());
    assert!(both.iter().all(|one| one.status.success()));
    let made = both.map(|one| String::from_utf8(one.stdout).unwrap()).concat();
    assert_eq!(made.lines().count(), 1, "{made}");
    assert!(!Path::new(&format!("/var/tmp/larder-rebuild-{}-0", killed.id())).exists());
    succeed(&mut larder_in(&other, &other.path(""), &["rebuild", "project"]));
    for (name, bytes) in [
        ("out-original", "source-1"),
        ("out-latest", "later"),
        ("out-slow", "source-3"),
        ("out-id", "1000\n"),
    ] {
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), bytes, "{name}");
    }
    let seen = fs::metadata(dir.join("out-id")).unwrap();
    assert_eq!((seen.uid(), seen.gid()), (USER, USER));
    let output = larder_in(&mount, &dir, &["rebuild", "../out-foreign"]).output().unwrap();
    assert!(said(&output).contains("no rule says"), "{}", said(&output));
    assert!(is_lost(&mount.path("out-foreign")));
}

/// An open of a lost file waits until it was made, and reads it; on all mounts it is made once,
/// which a command shows whose results always differ. A file that cannot be made is reported and
/// listed.
#[test]
fn a_lost_file_is_made_again_when_it_is_opened() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount_with(&["rebuild"]);
    let dir = mount.path("");
    let run = |options: &[&str], script: &str| {
        let args = [&["run"], options, &["--", "sh", "-c", script]].concat();
        succeed(&mut larder_in(&mount, &dir, &args));
    };
    fs::write(dir.join("source"), "bytes").unwrap();
    run(&[], "sleep .2; cat /proc/sys/kernel/random/uuid > out-uuid");
    run(&["--freshness", "latest"], "cat source out-uuid > out-both");
    run(&[], "cp /bin/echo out-echo");
    run(&[], "cat source > out-missing; cat source > gone; cat gone >> out-missing");
    fs::write(dir.join("gone-source"), "bytes").unwrap();
    run(&[], "cat gone-source > out-gone");
    fs::remove_file(dir.join("gone-source")).unwrap();
    fs::write(dir.join("out-hang"), "").unwrap();
    let hang = ["class", "rebuild", "out-hang", "--timeout", "300ms", "--", "sleep", "1000"];
    fs::write(dir.join("out-hang"), "bytes").unwrap();
    succeed(&mut larder_in(&mount, &dir, &hang));

    lossy.lose(&mut mount);
    let other = lossy.mount_with(&["rebuild"]);
    let read = |mount: &Mount, name: &str| {
        let read = fs::read_to_string(mount.path(name));
        read.unwrap_or_else(|error| panic!("{name}: {error}: {}", mount.log()))
    };
    let (uuids, boths) = std::thread::scope(|scope| {
        let readers = [&mount, &other, &mount, &other]
            .map(|mount| scope.spawn(|| (read(mount, "out-uuid"), read(mount, "out-both"))));
        let told = readers.map(|reader| reader.join().unwrap());
        told.into_iter().unzip::<_, _, Vec<_>, Vec<_>>()
    });
    assert!(uuids[0].len() == 37 && uuids.iter().all(|one| *one == uuids[0]), "{uuids:?}");
    assert!(boths.iter().all(|one| *one == format!("bytes{}", uuids[0])), "{boths:?}");
    // Also a program that is executed.
    let said = Command::new(dir.join("out-echo")).arg("word").output().unwrap();
    assert_eq!(said.stdout, b"word\n");
    assert!(is_lost(&dir.join("out-gone")) && is_lost(&dir.join("out-hang")));
    let told = mount.status();
    let why: Vec<_> = told["stay_lost"].as_array().unwrap().iter().map(|one| &one["why"]).collect();
    assert_eq!(
        why,
        [
            "its input gone-source is missing",
            "the command did not end within 0.3 s, and was killed"
        ]
    );
    let shown = succeed(mount.larder().arg("status")).stdout;
    let line = format!("lost     {}: its input", dir.join("out-gone").display());
    assert!(String::from_utf8(shown).unwrap().contains(&line));
}

/// With the same inputs on another client, the earlier results are put in place; a command whose
/// results always differ shows whether it ran.
#[test]
fn what_a_command_made_before_is_there_for_all_clients() {
    const SCRIPT: &str = "test -f header && cat header; test -d made || mkdir made; \
        (cat source; cat /proc/sys/kernel/random/uuid) > made/tool; chmod 750 made/tool";
    let server = Server::volume(&["--size", "64M", "--memory", "64M"]);
    let mut mount = Mount::plain(&server, &["user_xattr"]);
    let dir = mount.path("project");
    let tool = dir.join("made/tool");
    // The results, and whether they were put in place.
    let shared = |mount: &Mount, option: &str, user: u32| {
        let mut command = larder_in(mount, &dir, &["run", option, "--", "sh", "-c", SCRIPT]);
        let output = command.uid(user).gid(user).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        (fs::read_to_string(&tool).unwrap(), said(&output).contains("made before, 1 file(s)"))
    };
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("source"), "one").unwrap();
    let (first, is_old) = shared(&mount, "--shared", 0);
    assert!(!is_old && first.starts_with("one"));
    fs::remove_dir_all(dir.join("made")).unwrap();
    mount.remount();
    assert_eq!(shared(&mount, "--shared", 0), (first.clone(), true));
    assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(shared(&mount, "--shared", 0), (first.clone(), true));
    // Other bytes, and something where there was nothing.
    fs::write(dir.join("source"), "two").unwrap();
    let (second, is_old) = shared(&mount, "--shared", 0);
    assert!(!is_old && second.starts_with("two"));
    fs::write(dir.join("header"), "new").unwrap();
    assert!(!shared(&mount, "--shared", 0).1);
    fs::remove_file(dir.join("header")).unwrap();
    fs::write(dir.join("source"), "one").unwrap();
    assert_eq!(shared(&mount, "--shared", 0), (first, true));
    // Root trusts other users only if it is told to.
    for path in [&dir, &dir.join("made"), &tool] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    fs::write(dir.join("source"), "three").unwrap();
    let (third, is_old) = shared(&mount, "--shared", USER);
    assert!(!is_old && third.starts_with("three"));
    fs::remove_file(&tool).unwrap();
    assert_eq!(shared(&mount, "--shared=all", 0), (third.clone(), true));
    fs::remove_file(&tool).unwrap();
    let (fourth, is_old) = shared(&mount, "--shared", 0);
    assert!(!is_old && fourth != third);
}

/// Reads in two threads, and runs another program after vfork(2).
const THREADS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *look(void *name)
{
	return open(name, O_RDONLY) < 0 ? name : NULL;
}

int main(void)
{
	pthread_t one, two;
	void *failed[2];
	int status;

	pthread_create(&one, NULL, look, "in-1");
	pthread_create(&two, NULL, look, "in-2");
	pthread_join(one, &failed[0]);
	pthread_join(two, &failed[1]);
	pid_t child = vfork();
	if (child == 0) {
		execlp("cp", "cp", "in-3", "out", (char *)NULL);
		_exit(1);
	}
	waitpid(child, &status, 0);
	return failed[0] || failed[1] || status;
}
"#;

#[test]
fn threads_and_vforks_are_watched() {
    let server = Server::volume(&["--size", "64M"]);
    let mount = Mount::plain(&server, &["user_xattr"]);
    let dir = mount.path("");
    for name in ["in-1", "in-2", "in-3", "in-4"] {
        fs::write(dir.join(name), name).unwrap();
    }
    fs::write(dir.join("t.c"), THREADS).unwrap();
    succeed(Command::new("cc").args(["-pthread", "-o", "tool", "t.c"]).current_dir(&dir));
    succeed(&mut larder_in(&mount, &dir, &["run", "--", "./tool"]));
    let shown = succeed(&mut larder_in(&mount, &dir, &["class", "rebuild", "--show", "out"]));
    let shown = String::from_utf8(shown.stdout).unwrap();
    let files: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix("file ")).collect();
    let names: Vec<_> = files.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["in-1", "in-2", "in-3", "tool"], "{shown}");
    assert!(shown.contains("\noutput out "), "{shown}");
}
