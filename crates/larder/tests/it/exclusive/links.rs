//! Hard links on mounts that make names here.

use std::collections::HashMap;

use super::*;

/// For each file below a directory: its first path, and how many names it has.
fn links(root: &Path) -> BTreeMap<PathBuf, (PathBuf, u64)> {
    let mut firsts: HashMap<u64, PathBuf> = HashMap::new();
    let mut all = BTreeMap::new();
    for path in described(root).into_keys() {
        let about = root.join(&path).symlink_metadata().unwrap();
        if !about.is_dir() {
            let first = firsts.entry(about.ino()).or_insert_with(|| path.clone()).clone();
            all.insert(path, (first, about.nlink()));
        }
    }
    all
}

/// The same as [`described`] without times.
fn untimed(all: &BTreeMap<PathBuf, String>) -> BTreeMap<PathBuf, String> {
    let untimed = |told: &String| told.split(" SystemTime").next().unwrap().to_owned();
    all.iter().map(|(path, told)| (path.clone(), untimed(told))).collect()
}

fn run(dir: &Path, script: &str) {
    succeed(Command::new("sh").args(["-ec", script]).current_dir(dir).env("HOME", dir));
}

/// Mounts, and directories in which nothing is to be asked any more.
fn mounted(server: &Server) -> Mount {
    let mount = Mount::new(server, OPTIONS);
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("second"), "text").unwrap();
    mount
}

#[test]
fn a_hard_link_costs_no_call_before_its_time() {
    for kind in ALL {
        let server = Server::start(kind);
        let mount = mounted(&server);
        let path = |name: &str| mount.path("first").join(name);
        fs::write(path("warm"), "text").unwrap();
        let before = calls(&mount);
        for count in 0..10 {
            fs::write(path("file"), format!("text {count}")).unwrap();
            fs::hard_link(path("file"), path("link")).unwrap();
            let (file, link) = (fs::metadata(path("file")), fs::metadata(path("link")));
            let (file, link) = (file.unwrap(), link.unwrap());
            assert_eq!((file.ino(), file.nlink(), link.nlink()), (link.ino(), 2, 2));
            let again = fs::hard_link(path("file"), path("link"));
            assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
            // The first name goes, the other one gets another name and is written.
            fs::remove_file(path("file")).unwrap();
            assert_eq!(fs::metadata(path("link")).unwrap().nlink(), 1);
            fs::rename(path("link"), path("last")).unwrap();
            fs::write(path("last"), "more").unwrap();
            assert_eq!(fs::read(path("last")).unwrap(), b"more");
            fs::remove_file(path("last")).unwrap();
        }
        assert_eq!(calls(&mount), before, "{kind:?}");
        fs::hard_link(mount.path("second"), path("link")).unwrap();
        let again = calls(&mount);
        assert_eq!(again.get("LINK"), None, "{kind:?}: {again:?}");
        sync(&mount);
        let there = Elsewhere::of(kind, &server);
        is_at_server(&there, &mount, "");
        assert_eq!(links(&there.path("")), links(&mount.path("")));
    }
}

/// What programs do with links is at the server as it is here, bytes, link counts and all, over the
/// death of the mount's processes and a remount.
#[test]
fn what_programs_do_with_links_is_at_the_server_after_a_sync() {
    for kind in ALL {
        let server = Server::start(kind);
        let mut mount = mounted(&server);
        let top = mount.path("");
        run(
            &top,
            "mkdir tree && for i in 1 2 3 4 5; do head -c $((i * 40000)) /dev/zero | tr '\\0' $i > tree/$i; done
             ln -s 1 tree/soft; ln tree/soft tree/hard; cp -al tree copy; echo more >> copy/1; rm tree/2
             ln -f copy/3 tree/4; ln tree/5 tree/backup; echo new > tree/new; mv tree/new tree/5",
        );
        // As cargo does: a file is made beside, linked to its place, and loses its first name.
        run(
            &top,
            "mkdir -p target/deps && for round in 1 2; do for i in 1 2 3; do
               head -c $((i * 30000 + round)) /dev/zero > target/deps/.tmp$i
               rm -f target/deps/lib$i target/lib$i; ln target/deps/.tmp$i target/deps/lib$i
               rm target/deps/.tmp$i; ln target/deps/lib$i target/new$i; mv target/new$i target/lib$i
             done; done",
        );
        run(
            &top,
            "mkdir repo && cd repo && git init -q . && git config user.email a@b.c && git config user.name a
             cp -r ../tree . && git add . && git commit -qm one && cd .. && git clone -q --local repo clone
             git -C clone fsck --strict && test -z \"$(git -C clone status --porcelain)\"",
        );
        let here = (described(&top), links(&top));
        assert!(here.1.values().any(|(_, count)| *count > 1));
        mount.kill();
        mount.mount();
        // What the dead one had not kept is sent, and has the time of that.
        let here = (untimed(&here.0), here.1);
        same((&untimed(&described(&top)), &here.0), kind, "by the next mount");
        assert_eq!(links(&top), here.1, "{kind:?}: by the next mount");
        sync(&mount);
        same((&untimed(&described(&top)), &here.0), kind, "when the server has it");
        assert_eq!(links(&top), here.1, "{kind:?}: when the server has it");
        assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
        let there = Elsewhere::of(kind, &server);
        is_at_server(&there, &mount, "");
        assert_eq!(links(&there.path("")), here.1, "{kind:?}: at the server");
        // And what is done with the server's own.
        run(
            &top,
            "ln repo/tree/1 kept; rm -r repo; mv kept clone/tree/1; ln target/lib1 lib; rm -r target copy",
        );
        let here = (described(&top), links(&top));
        sync(&mount);
        same((&described(&top), &here.0), kind, "in the end");
        is_at_server(&there, &mount, "");
        assert_eq!(links(&there.path("")), here.1, "{kind:?}: in the end");
    }
}

/// A name whose class promises the server is there when the call returns, and so are the bytes.
#[test]
fn a_link_of_a_stronger_class_takes_the_bytes_along() {
    for kind in ALL {
        let server = Server::start(kind);
        let mount = mounted(&server);
        fs::create_dir(mount.path("safe")).unwrap();
        let safe = mount.path("safe");
        let (code, told) = said(&mount, &["class", "set", "edited", safe.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{told}");
        fs::write(mount.path("first/file"), "text").unwrap();
        fs::hard_link(mount.path("first/file"), safe.join("name")).unwrap();
        assert_eq!(calls(&mount).get("LINK"), Some(&1), "{kind:?}");
        let there = Elsewhere::of(kind, &server);
        assert_eq!(fs::read(there.path("safe/name")).unwrap(), b"text", "{kind:?}");
        sync(&mount);
        assert_eq!(links(&there.path("")), links(&mount.path("")));
    }
}

/// As git makes its objects: written, closed, linked to another name, and without the first one at
/// once, while the kernel still releases the file. The other name has the bytes.
#[test]
fn bytes_are_there_under_the_name_that_is_left() {
    for options in [OPTIONS, &["offline", "actimeo=86400"]] {
        let server = Server::start(Kind::Larder);
        let mount = Mount::new(&server, options);
        if options[0] == "offline" {
            let path = mount.path("");
            fs::read_dir(&path).unwrap().count();
            assert_eq!(said(&mount, &["offline", path.to_str().unwrap()]).0, Some(0));
        } else {
            fs::write(mount.path("first"), "").unwrap();
        }
        for count in 0..100 {
            let (made, last) = (mount.path(&format!("made{count}")), mount.path("last"));
            fs::write(&made, format!("text {count}")).unwrap();
            fs::hard_link(&made, &last).unwrap();
            fs::remove_file(&made).unwrap();
            assert_eq!(fs::read_to_string(&last).unwrap(), format!("text {count}"));
            fs::remove_file(&last).unwrap();
        }
    }
}
