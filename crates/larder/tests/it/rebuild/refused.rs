//! Rules that cannot be carried out: each is reported in one line, and the file stays lost.

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{Lossy, USER, is_lost, larder_in, said};
use crate::harness::{Mount, succeed};

/// Files, and why each stays lost.
const REFUSED: [(&str, &str, &str); 17] = [
    ("out-missing", "missing-input", "its input gone is missing"),
    ("out-changed", "changed-input", "its input changed has changed"),
    ("out-of-lost", "missing-input", "its input was-lost.o is lost, too, and no rule"),
    ("out-a", "cycle", "it would be made from itself: out-a from out-b from out-a"),
    ("out-self", "cycle", "it would be made from itself: out-self from out-self"),
    ("out-not-made", "not-made", "the command ended well, but did not make out-not-made"),
    ("out-link", "not-made", "did not make out-link"),
    ("out-failed", "failed", "the command ended with status 3: it broke"),
    (HANGS, "timeout", "did not end within 0.3 s, and was killed"),
    ("out-unseen", "failed", "No such file or directory"),
    ("out-beside", "failed", "unrecorded: No such file or directory"),
    ("out-source", "failed", "Read-only file system"),
    ("out-network", "failed", "Network is unreachable"),
    ("out-uuid", "other-bytes", "the command made other bytes than out-uuid had"),
    ("out-overwritten", "overwritten", "it was changed after its rule had made it"),
    ("out-no-rule", "no-rule", "no rule says how it was made"),
    ("out-removed", "no-rule", "no rule says how it was made"),
];

/// The one whose command does not end by itself.
const HANGS: &str = "out-hang";

/// How long its command may run, and how long it may take until this is reported.
const GIVEN_UP: Range<Duration> = Duration::from_millis(300)..Duration::from_secs(5);

/// Makes these files, and then takes away or changes inputs of some. One of the commands connects
/// to the listener while it is recorded.
fn prepare(lossy: &Lossy, mount: &Mount) -> TcpListener {
    let dir = mount.path("");
    let larder = |args: &[&str]| {
        succeed(&mut larder_in(mount, &dir, args));
    };
    let write = |name: &str| fs::write(dir.join(name), format!("bytes of {name}")).unwrap();
    let secret = lossy.rules.path().join("secret");
    fs::write(&secret, "unrecorded").unwrap();
    let secret = secret.to_str().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    ["source", "unrecorded", "gone", "changed", "was-lost.o"].into_iter().for_each(write);
    let run = |output: &str, script: &str| {
        larder(&["run", "--", "sh", "-c", &format!("{script} > {output}")]);
    };
    run("out-missing", "cat gone");
    run("out-changed", "cat changed");
    run("out-of-lost", "cat was-lost.o");
    let connects = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected'");
    run("out-network", &connects);
    let by_hand = |output: &str, options: &[&str], script: &str| {
        write(output);
        larder(&[&["class", "rebuild", output], options, &["--", "sh", "-c", script]].concat());
    };
    write("out-b");
    by_hand("out-a", &["--from", "out-b"], "cat out-b > out-a");
    by_hand("out-b", &["--from", "out-a"], "cat out-a > out-b");
    by_hand("out-self", &["--from", "out-self"], "echo >> out-self");
    by_hand("out-not-made", &[], "echo > out-other");
    by_hand("out-link", &[], &format!("ln -s {secret} out-link"));
    by_hand("out-failed", &[], "echo first >&2; echo 'it broke' >&2; exit 3");
    by_hand(HANGS, &["--timeout", "300ms"], "sleep 1000 & sleep 1000");
    by_hand("out-unseen", &["--from", "source"], &format!("cat {secret} > out-unseen"));
    by_hand("out-beside", &["--from", "source"], "cat source unrecorded > out-beside");
    by_hand("out-source", &["--from", "source"], "echo >> source && echo > out-source");
    let uuid = "cat /proc/sys/kernel/random/uuid > out-uuid";
    larder(&["run", "--freshness", "original", "--", "sh", "-c", uuid]);
    run("out-overwritten", "cat source");
    write("out-overwritten");
    write("out-no-rule");
    by_hand("out-removed", &[], "echo > out-removed");
    larder(&["class", "rebuild", "--remove", "out-removed"]);
    fs::remove_file(dir.join("gone")).unwrap();
    fs::write(dir.join("changed"), "others").unwrap();
    listener
}

/// A command that hangs is reported when its time is over: not before, and not long after.
fn is_in_time(name: &str, begin: Instant) {
    let took = begin.elapsed();
    assert!(name != HANGS || GIVEN_UP.contains(&took), "{name}: {took:?}");
}

/// The command that connects to the listener did so when it was recorded, and not again.
fn has_one_connection(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_ok(), "the recorded run has connected");
    let again = listener.accept().map(|(_, from)| from);
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// Each rule that cannot be carried out is reported in one line, and the file stays lost.
#[test]
fn what_cannot_be_made_again_says_why_and_stays_lost() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount();
    let listener = prepare(&lossy, &mount);
    let dir = mount.path("");
    lossy.lose_and_notice(&mut mount);
    for (name, word, why) in REFUSED {
        let begin = Instant::now();
        let output = larder_in(&mount, &dir, &["rebuild", name]).output().unwrap();
        is_in_time(name, begin);
        let line = said(&output);
        assert!(line.contains(why) && line.lines().count() == 1, "{name}: {line}");
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(is_lost(&dir.join(name)), "{name}");
        let output = larder_in(&mount, &dir, &["rebuild", "--json", name]).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told[0]["outcome"], word, "{told}");
    }
    has_one_connection(&listener);
    let left = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_str().unwrap().starts_with(".larder-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The same where a process reads the file on a mount with `rebuild`: it gets an error, and there
/// is one line in `larder status`. If the command hangs, the read ends in time, also that of a file
/// which was opened before the loss.
#[test]
fn who_reads_what_cannot_be_made_again_is_told_in_time() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount_with(&["rebuild"]);
    let listener = prepare(&lossy, &mount);
    let reader = lossy.mount_with(&["rebuild"]);
    // It is not read yet: the kernel has none of its bytes.
    let mut open = File::open(reader.path(HANGS)).unwrap();
    lossy.lose(&mut mount);
    lossy.notices();
    let begin = Instant::now();
    let error = open.read(&mut [0; 8]).unwrap_err();
    is_in_time(HANGS, begin);
    assert_eq!(error.raw_os_error(), Some(Errno::NOTRECOVERABLE.raw_os_error()));

    for (name, _, _) in REFUSED {
        let begin = Instant::now();
        assert!(is_lost(&mount.path(name)), "{name}");
        is_in_time(name, begin);
    }
    has_one_connection(&listener);
    let shown = String::from_utf8(succeed(mount.larder().arg("status")).stdout).unwrap();
    let lost = |path: &str| -> Vec<_> { shown.lines().filter(|one| one.contains(path)).collect() };
    assert_eq!(lost("  lost     ").len(), REFUSED.len(), "{shown}");
    for (name, _, why) in REFUSED {
        let lines = lost(&format!("  lost     {}: ", mount.path(name).display()));
        assert!(matches!(lines[..], [line] if line.contains(why)), "{name}: {shown}");
    }
}

/// Files of a user in a directory of that user: how they are to be made, and why they stay lost.
const REFUSED_TO_USER: [(&str, &str, &str); 3] = [
    ("out-failed", "echo 'it broke' >&2; exit 3", "ended with status 3: it broke"),
    ("out-not-made", "true", "did not make project/out-not-made"),
    ("out-shadow", "cat /etc/shadow > out-shadow", "Permission denied"),
];

/// A user who is not root gets one line for each file, too, and cannot make a file of root. A
/// command may do what the user may.
#[test]
fn a_user_is_told_why_a_file_stays_lost() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount();
    let dir = mount.path("project");
    fs::create_dir(&dir).unwrap();
    let as_root = ["run", "--", "sh", "-c", "echo bytes > out-root"];
    succeed(&mut larder_in(&mount, &dir, &as_root));
    chown(&dir, Some(USER), Some(USER)).unwrap();
    for (name, script, _) in REFUSED_TO_USER {
        fs::write(dir.join(name), "bytes").unwrap();
        chown(dir.join(name), Some(USER), Some(USER)).unwrap();
        let by_hand = ["class", "rebuild", name, "--", "sh", "-c", script];
        succeed(larder_in(&mount, &dir, &by_hand).uid(USER).gid(USER));
    }

    lossy.lose_and_notice(&mut mount);
    let of_root = ("out-root", "project/out-root belongs to user 0, and only that user makes it");
    let of_user = REFUSED_TO_USER.map(|(name, _, why)| (name, why));
    for (name, why) in of_user.into_iter().chain([of_root]) {
        let mut rebuild = larder_in(&mount, &dir, &["rebuild", name]);
        let output = rebuild.uid(USER).gid(USER).output().unwrap();
        let line = said(&output);
        assert!(line.contains(why) && line.lines().count() == 1, "{name}: {line}");
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(is_lost(&dir.join(name)), "{name}");
    }
}
