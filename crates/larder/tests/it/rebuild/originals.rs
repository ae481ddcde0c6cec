//! Rules of freshness `original`: the inputs are there as they were, whatever became of them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Lossy, USER, is_lost, larder_in, said};
use crate::harness::{eventually, pattern, succeed};

/// Reads all inputs; waits until another process opens and closes the pipe; then changes one of the
/// inputs itself, and reads it again.
const SCRIPT: &str = "\
cat changed truncated replaced removed weak.o secret \"$OUTSIDE\" > out-all
cat \"$PIPE\"
tr a-z A-Z < own > own-new
mv own-new own
cat own >> out-all
";

/// Copies of inputs in a volume.
fn copies(root: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(root.join(".larder/contents")).unwrap();
    all.map(|entry| entry.unwrap().path()).collect()
}

/// The command runs and its rule is recorded while the metadata server is killed. Then another
/// client changes, cuts, replaces and removes the inputs, of which one is lost with its memory
/// disk, and the metadata server is killed again.
#[test]
fn inputs_are_there_as_they_were_whatever_other_clients_make_of_them() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount();
    let dir = mount.path("project");
    fs::create_dir(&dir).unwrap();
    let large = pattern(1, 3 << 20);
    fs::write(dir.join("changed"), &large).unwrap();
    for name in ["truncated", "replaced", "removed", "weak.o", "own", "secret"] {
        fs::write(dir.join(name), format!("as {name} was\n")).unwrap();
    }
    fs::set_permissions(dir.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let here = |name: &str| lossy.rules.path().join(name);
    let (outside, pipe) = (here("outside"), here("pipe"));
    fs::write(&outside, "as outside was\n").unwrap();
    succeed(Command::new("mkfifo").arg(&pipe));

    let args = ["run", "--freshness", "original", "--env", "OUTSIDE", "--env", "PIPE", "--"];
    let mut run = larder_in(&mount, &dir, &[&args[..], &["sh", "-c", SCRIPT]].concat());
    let mut run = run.env("OUTSIDE", &outside).env("PIPE", &pipe).spawn().unwrap();
    let mut opened = None;
    eventually("the command has read its inputs", || {
        let open = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        opened = open.ok();
        opened.is_some() || run.try_wait().unwrap().is_some()
    });
    lossy.server.kill();
    drop(opened);
    lossy.server.restart();
    assert!(run.wait().unwrap().success());
    let mut bytes = Vec::new();
    File::open(dir.join("out-all")).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes.starts_with(&large) && bytes.ends_with(b"as outside was\nAS OWN WAS\n"));
    let kept = copies(&mount.path(""));
    assert_eq!(kept.len(), 8, "{kept:?}");
    for copy in &kept {
        assert_eq!(fs::metadata(copy).unwrap().mode() & 0o7777, 0o400, "others cannot read it");
    }

    let other = lossy.mount();
    let there = |name: &str| other.path("project").join(name);
    let file = File::options().write(true).open(there("changed")).unwrap();
    file.write_all_at(b"changed in place", 1 << 20).unwrap();
    drop(file);
    File::options().write(true).open(there("truncated")).unwrap().set_len(2).unwrap();
    fs::write(there("replacement"), "another file").unwrap();
    fs::rename(there("replacement"), there("replaced")).unwrap();
    fs::remove_file(there("removed")).unwrap();
    fs::write(there("secret"), "changed").unwrap();
    fs::remove_file(there("own")).unwrap();
    File::options().append(true).open(&outside).unwrap().write_all(b"more").unwrap();

    lossy.lose_and_notice(&mut mount);
    assert!(is_lost(&dir.join("out-all")) && is_lost(&dir.join("weak.o")));
    succeed(&mut larder_in(&mount, &dir, &["rebuild", "out-all"]));
    assert!(fs::read(dir.join("out-all")).unwrap() == bytes);
    // Other inputs stay what they are.
    assert_eq!(fs::read(dir.join("secret")).unwrap(), b"changed");
    assert!(!dir.join("own").exists() && is_lost(&dir.join("weak.o")));

    // Without the copies there is no way.
    copies(&mount.path("")).iter().for_each(|copy| fs::remove_file(copy).unwrap());
    lossy.lose_and_notice(&mut mount);
    let output = larder_in(&mount, &dir, &["rebuild", "out-all"]).output().unwrap();
    assert!(said(&output).contains("is missing"), "{}", said(&output));
    assert!(is_lost(&dir.join("out-all")));
}

/// What other users put in the place of a copy, or what was broken off, is not taken for it.
#[test]
fn a_copy_of_an_input_is_its_users_own() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount();
    let dir = mount.path("project");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("source"), "bytes").unwrap();
    std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    // Makes the directories.
    let run = |output: &str| {
        let script = format!("cat source > {output}");
        let args = ["run", "--freshness", "original", "--", "sh", "-c", &script];
        larder_in(&mount, &dir, &args)
    };
    succeed(&mut run("out-first"));
    let copy = copies(&mount.path("")).pop().unwrap();
    let name = copy.file_name().unwrap().to_str().unwrap();
    let hash = name.strip_suffix("-0").unwrap();
    let theirs = copy.with_file_name(format!("{hash}-{USER}"));
    fs::write(&theirs, "other").unwrap();
    let output = run("out-theirs").uid(USER).gid(USER).output().unwrap();
    assert!(!output.status.success());
    assert!(said(&output).contains("somebody else's file is in the place of"), "{}", said(&output));
    fs::remove_file(&theirs).unwrap();
    succeed(run("out-theirs").uid(USER).gid(USER));
    assert_eq!(fs::metadata(&theirs).unwrap().uid(), USER);
    // What was broken off.
    fs::remove_file(&copy).unwrap();
    fs::write(&copy, "by").unwrap();
    succeed(&mut run("out-root"));
    fs::remove_file(dir.join("source")).unwrap();

    lossy.lose_and_notice(&mut mount);
    succeed(&mut larder_in(&mount, &dir, &["rebuild", "."]));
    for output in ["out-first", "out-theirs", "out-root"] {
        assert_eq!(fs::read_to_string(dir.join(output)).unwrap(), "bytes", "{output}");
    }
}
