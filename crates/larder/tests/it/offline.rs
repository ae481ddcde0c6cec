//! Mounts that work without their server: because a user wants that, or because it is away.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Kind, Mount, Server, eventually, said, succeed};

const OPTIONS: &[&str] = &["offline"];

/// Cached content is found, also by the next process.
fn warm(mount: &Mount) {
    let mut shell = Command::new("sh");
    let script = "ls -lRA . > /dev/null && find . -type f -exec cat {} + > /dev/null";
    succeed(shell.args(["-ec", script]).current_dir(mount.path("")));
}

fn switched(mount: &Mount, word: &str) -> String {
    let (code, told) = said(mount, &[word, mount.path("").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told}");
    told
}

/// Everything below a directory, as programs see it.
fn seen(root: &Path) -> Vec<String> {
    let mut shell = Command::new("sh");
    let script = "find . -type f -exec sh -c 'echo $1 $(stat -c \"%a %s %Y\" $1) $(md5sum < $1)' - {} \\; \
                  -o -type l -printf '%p -> %l\\n' -o -printf '%p\\n' | sort";
    let output = succeed(shell.args(["-ec", script]).current_dir(root));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn is_at_server(server: &Server, mount: &Mount) {
    assert_eq!(seen(&server.path("")), seen(&mount.path("")));
}

fn append(path: &Path, text: &str) {
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// No call is sent: cached content is served, names are made here, and what needs the server fails
/// at once. Then the server gets all of it, even if every process and the machine's memory of the
/// mount were lost in the meantime.
#[test]
fn names_are_made_and_files_written_without_the_server() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        fs::create_dir_all(server.path("dir/inner")).unwrap();
        fs::write(server.path("dir/file"), "old").unwrap();
        fs::write(server.path("dir/inner/other"), "other").unwrap();
        let mut mount = Mount::new(&server, OPTIONS);
        warm(&mount);
        fs::create_dir(server.path("unseen")).unwrap();
        fs::write(server.path("unseen/file"), "unseen").unwrap();
        fs::metadata(mount.path("unseen")).unwrap();
        fs::read_dir(mount.path("")).unwrap().for_each(drop);
        switched(&mount, "offline");
        assert_eq!(mount.status()["server"]["offline"], true);
        let before = mount.all_calls();
        assert_eq!(fs::read(mount.path("dir/file")).unwrap(), b"old");
        fs::create_dir(mount.path("dir/made")).unwrap();
        fs::write(mount.path("dir/made/new"), "new").unwrap();
        fs::write(mount.path("dir/top"), "top").unwrap();
        fs::rename(mount.path("dir/top"), mount.path("dir/inner/moved")).unwrap();
        symlink("file", mount.path("dir/link")).unwrap();
        fs::write(mount.path("gone"), "gone").unwrap();
        fs::remove_file(mount.path("gone")).unwrap();
        fs::write(mount.path("dir/file"), "old and new").unwrap();
        fs::File::open(mount.path("dir/inner")).unwrap().sync_all().unwrap();
        let number = fs::metadata(mount.path("dir/made/new")).unwrap().ino();
        let here = seen(&mount.path("dir"));
        assert_eq!(here.len(), 8, "{here:?}");
        assert!(!mount.path("dir/absent").exists());
        let begun = Instant::now();
        let error = fs::metadata(mount.path("unseen/file")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert_eq!(mount.all_calls(), before, "{kind:?}");
        for round in 0..3 {
            match round {
                0 => {
                    let (_, told) = said(&mount, &["umount", mount.path("").to_str().unwrap()]);
                    assert!(told.contains("did not reach the server"), "{told}");
                    mount.mount();
                }
                1 => {
                    mount.kill();
                    mount.mount();
                }
                _ => {}
            }
            assert_eq!(seen(&mount.path("dir")), here, "{kind:?} {round}");
            assert_eq!(mount.status()["server"]["offline"], true);
        }
        assert!(!server.path("dir/made").exists());
        let told = switched(&mount, "online");
        assert!(told.contains("the server has what was changed here"), "{told}");
        is_at_server(&server, &mount);
        assert_eq!(fs::read(server.path("dir/file")).unwrap(), b"old and new");
        assert_eq!(fs::metadata(mount.path("dir/made/new")).unwrap().ino(), number);
        assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    }
}

/// Automatically: a silent server is soon found to be away, and used again when it answers.
#[test]
fn a_silent_server_is_done_without_and_gets_all_when_it_is_back() {
    let server = Server::start(Kind::Larder);
    fs::create_dir(server.path("dir")).unwrap();
    fs::write(server.path("dir/file"), "old").unwrap();
    let mount = Mount::new(&server, OPTIONS);
    warm(&mount);
    server.freeze();
    let begun = Instant::now();
    fs::write(mount.path("dir/first"), "first").unwrap_or_default();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let begun = Instant::now();
    for count in 0..20 {
        fs::write(mount.path(&format!("dir/new{count}")), "new").unwrap();
    }
    append(&mount.path("dir/file"), " and new");
    assert!(begun.elapsed() < Duration::from_secs(2), "at once: {:?}", begun.elapsed());
    server.thaw();
    eventually("the server has it", || {
        fs::read(server.path("dir/file")).is_ok_and(|bytes| bytes == b"old and new")
            && (0..20).all(|count| server.path(&format!("dir/new{count}")).exists())
    });
    switched(&mount, "online");
    is_at_server(&server, &mount);
}

#[test]
fn a_mount_that_needs_its_server_is_told_so_in_one_line() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let (code, told) = said(&mount, &["offline", mount.path("").to_str().unwrap()]);
    assert!(code == Some(1) && told.lines().count() == 1, "{told}");
    assert!(told.contains("mount it with -o offline"), "{told}");
}

/// A tree with a repository.
const TREE: &str = "mkdir tree && cd tree && mkdir sub old old/inner empty && git init -q .
    git config user.email a@b.c && git config user.name a && git config gc.auto 0
    for name in a b c d e f; do echo one $name > sub/$name; done
    for name in 1 2 3; do echo old $name > old/inner/$name; done; echo file > file
    git add . && git commit -qm one && rm -f .git/hooks/*.sample";

/// What an editor, a shell, a package manager and git do to the tree.
const WORK: &str = "cd tree; sed -i s/one/uno/ sub/a; echo truncated > sub/b
    mv sub/c sub/c~; echo rewritten > sub/c; rm sub/c~
    mv sub/d moved; rm sub/e; chmod 600 sub/f; rmdir empty; ln -s sub/a link
    mkdir -p modules/x/y; for i in $(seq 30); do echo $i > modules/x/y/$i; done
    rm -r old; mkdir old; echo new > old/file; mv modules/x modules/z
    echo more >> file; git add -A; git commit -qm two; test -z \"$(git status --porcelain)\"
    git checkout -q -b side HEAD~1; git checkout -q -; git fsck --strict";

fn script(dir: &Path, script: &str) {
    let mut shell = Command::new("sh");
    for name in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
        shell.env(name, "2001-02-03T04:05:06Z");
    }
    succeed(shell.args(["-ec", script]).current_dir(dir).env("HOME", dir));
}

/// The same without times, and without git's records of them.
fn contents(root: &Path) -> Vec<String> {
    let mut shell = Command::new("sh");
    let script = "find . -name index -prune -o -name logs -prune -o -type f -exec sh -c \
                  'echo $1 $(stat -c \"%a %s\" $1) $(md5sum < $1)' - {} \\; \
                  -o -type l -printf '%p -> %l\\n' -o -printf '%p\\n' | sort";
    let output = succeed(shell.args(["-ec", script]).current_dir(root));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Editors replace and rewrite files of the server, trees are removed and moved, git commits. The
/// processes of the mount die in between. In the end the server has the same tree as a local disk.
#[test]
fn ordinary_work_without_the_server_is_there_in_the_end() {
    let reference = crate::harness::scratch("larder-reference-");
    script(reference.path(), TREE);
    script(reference.path(), WORK);
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        script(&server.path(""), TREE);
        let mut mount = Mount::new(&server, OPTIONS);
        warm(&mount);
        let before = contents(&server.path(""));
        switched(&mount, "offline");
        script(&mount.path(""), WORK);
        assert_eq!(contents(&mount.path("")), contents(reference.path()), "{kind:?}");
        assert_eq!(contents(&server.path("")), before, "{kind:?}: nothing is sent");
        mount.kill();
        mount.mount();
        assert_eq!(contents(&mount.path("")), contents(reference.path()), "{kind:?}");
        switched(&mount, "online");
        assert_eq!(contents(&server.path("")), contents(reference.path()), "{kind:?}");
        is_at_server(&server, &mount);
        assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    }
}

/// Two machines change the same files while both are without the server. Nothing is lost when both
/// are back.
#[test]
fn what_two_mounts_did_without_the_server_is_kept_twice_where_it_meets() {
    let server = Server::start(Kind::Larder);
    for name in ["both", "removed", "moved"] {
        fs::write(server.path(name), format!("old {name}")).unwrap();
    }
    let mounts = [Mount::new(&server, OPTIONS), Mount::new(&server, OPTIONS)];
    for mount in &mounts {
        warm(mount);
        switched(mount, "offline");
    }
    let [one, two] = &mounts;
    for (mount, text) in [(one, "one"), (two, "two")] {
        fs::write(mount.path("made"), text).unwrap();
        fs::write(mount.path("both"), text).unwrap();
        fs::rename(mount.path("moved"), mount.path(&format!("moved by {text}"))).unwrap();
    }
    append(&one.path("removed"), " and kept");
    fs::remove_file(two.path("removed")).unwrap();
    switched(one, "online");
    let (code, told) = said(two, &["online", two.path("").to_str().unwrap()]);
    assert_eq!(code, Some(0), "everything is there: {told}");
    let all = || {
        let entries = fs::read_dir(server.path("")).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = entries.map(|path| fs::read_to_string(path).unwrap()).collect();
        all.sort();
        all
    };
    let texts = ["old moved", "old removed and kept", "one", "one", "two", "two"];
    assert_eq!(all(), texts, "{told}");
    assert_eq!(fs::read(server.path("made")).unwrap(), b"one");
    assert_eq!(fs::read(server.path("both")).unwrap(), b"one");
    assert!(told.contains("made.conflict-") && told.contains("kept beside made"), "{told}");
    let conflicts = two.status()["conflicts"].as_array().unwrap().clone();
    assert!(conflicts.iter().any(|one| one["wanted"] == "made"), "{conflicts:?}");
    let what = |what: &str| conflicts.iter().filter(|one| one["what"] == what).count();
    assert_eq!((what("made"), what("removed"), what("written")), (1, 1, 1), "{conflicts:?}");
    // Each gave the same file another name: it has that of the one that came first, and is there
    // once.
    let renamed: Vec<_> = conflicts.iter().filter(|one| one["what"] == "renamed").collect();
    assert!(renamed.len() == 1 && renamed[0]["wanted"] == "moved by two", "{conflicts:?}");
    assert_eq!(fs::read(server.path("moved by one")).unwrap(), b"old moved");
    assert!(!server.path("moved").exists() && !server.path("moved by two").exists());
    // The bytes of the other machine.
    let written = conflicts.iter().find(|one| one["what"] == "written").unwrap();
    let kept = written["path"].as_str().unwrap();
    assert!(kept.starts_with("both.conflict-") && written["wanted"] == "both", "{written}");
    assert_eq!(fs::read(server.path(kept)).unwrap(), b"two");
    assert!(written["set_aside"].is_null(), "{written}");
    assert_eq!(two.status()["cache"]["set_aside"], 0);
    for mount in &mounts {
        eventually("both see the same", || seen(&mount.path("")) == seen(&server.path("")));
    }
    // The one that came first has looked into the directory, and lists what the other one kept.
    for (wanted, path) in [("made", path_of(&conflicts, "made")), ("both", kept.to_owned())] {
        let listed = one.status()["conflicts"].as_array().cloned().unwrap_or_default();
        let is_it = |found: &&serde_json::Value| found["path"] == path.as_str();
        let found = listed.iter().find(is_it).unwrap_or_else(|| panic!("{path}: {listed:?}"));
        assert!(found["what"] == "elsewhere" && found["wanted"] == wanted, "{found}");
    }
}

/// Where the only conflict of a kind is kept.
fn path_of(conflicts: &[serde_json::Value], what: &str) -> String {
    let one = conflicts.iter().find(|one| one["what"] == what).unwrap();
    one["path"].as_str().unwrap().to_owned()
}

/// Another client changed a file that was not changed here while this mount was without the server:
/// the first read after that has the new version, however long attributes are trusted.
#[test]
fn what_another_client_changed_meanwhile_is_read_at_once_when_the_server_is_back() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let server = Server::start(kind);
        fs::create_dir(server.path("dir")).unwrap();
        let names = ["dir/shorter", "dir/longer", "dir/replaced", "dir/kept"];
        for name in names {
            fs::write(server.path(name), format!("old {name}")).unwrap();
        }
        let mount = Mount::new(&server, &["offline", "actimeo=86400"]);
        let other = Mount::plain(&server, &["hard"]);
        warm(&mount);
        switched(&mount, "offline");
        fs::write(other.path("dir/shorter"), "new").unwrap();
        fs::write(other.path("dir/longer"), "new, and longer than it was").unwrap();
        fs::write(other.path("new"), "another file").unwrap();
        fs::rename(other.path("new"), other.path("dir/replaced")).unwrap();
        for name in names {
            let held = fs::read_to_string(mount.path(name)).unwrap();
            assert_eq!(held, format!("old {name}"), "{kind:?}: without the server");
        }
        fs::write(mount.path("dir/ours"), "ours").unwrap();
        switched(&mount, "online");
        for name in names {
            let there = fs::read_to_string(server.path(name)).unwrap();
            assert_eq!(fs::read_to_string(mount.path(name)).unwrap(), there, "{kind:?} {name}");
            let size = fs::metadata(mount.path(name)).unwrap().len();
            assert_eq!(size, there.len() as u64, "{kind:?} {name}");
        }
        assert_eq!(fs::read(server.path("dir/ours")).unwrap(), b"ours");
        assert!(mount.status()["conflicts"].is_null(), "{kind:?}: nothing met anything");
    }
}
