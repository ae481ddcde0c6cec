//! Mounts that are the only writers of their export: names are made here, and at the server later.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{
    Kind, Mount, Server, eventually, kill, larder, pattern, said, scratch, shell_as, succeed,
};
use crate::small_disk::SmallDisk;

mod conflicts;
mod gone;
mod leased;
mod links;
mod numbers;
mod stronger;

const OPTIONS: &[&str] = &["exclusive", "class=generated", "actimeo=86400"];

/// Servers on which names can be made here.
const ALL: [Kind; 3] = [Kind::Larder, Kind::Ganesha, Kind::Volume];

/// The server's files, as somebody else sees and changes them: in the exported directory, or by
/// another mount of the volume.
struct Elsewhere<'a> {
    server: &'a Server,
    mount: Option<Mount>,
}

impl Elsewhere<'_> {
    fn of(kind: Kind, server: &Server) -> Elsewhere<'_> {
        let mount = (kind == Kind::Volume).then(|| Mount::plain(server, &["noac"]));
        Elsewhere { server, mount }
    }

    fn path(&self, name: &str) -> PathBuf {
        match &self.mount {
            Some(mount) => mount.path(name),
            None => self.server.path(name),
        }
    }
}

/// The calls of a mount, except those that tell a server from time to time that it lives.
fn calls(mount: &Mount) -> BTreeMap<String, u64> {
    let mut calls = mount.calls_by_procedure();
    calls.remove("RENEW");
    calls
}

fn sync(mount: &Mount) {
    let (code, told) = said(mount, &["sync", mount.path("").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told}");
}

/// The state of each path below a directory, as programs see it: kind, mode, owner, size,
/// modification time and bytes of files, and target of links.
fn described(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut all, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let about = path.symlink_metadata().unwrap();
            let told = if kind.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_dir() {
                left.push(path.clone());
                format!("dir {:o}", about.mode())
            } else {
                let bytes = fs::read(&path).unwrap();
                let sum =
                    bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(*byte));
                format!(
                    "{:o} {}:{} {sum:x} {} {:?}",
                    about.mode(),
                    about.uid(),
                    about.gid(),
                    about.len(),
                    about.modified().unwrap()
                )
            };
            all.insert(path.strip_prefix(root).unwrap().to_owned(), told);
        }
    }
    all
}

/// Both are the same; otherwise tells what differs.
fn same(
    (one, other): (&BTreeMap<PathBuf, String>, &BTreeMap<PathBuf, String>),
    kind: Kind,
    when: &str,
) {
    let all: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let differ = all.into_iter().filter(|path| one.get(*path) != other.get(*path));
    let differ: Vec<_> = differ.map(|path| (path, one.get(path), other.get(path))).collect();
    assert!(differ.is_empty(), "{kind:?} {when}: {differ:#?}");
}

/// The same at the server as through the mount, bytes included.
fn is_at_server(server: &Elsewhere<'_>, mount: &Mount, name: &str) {
    let (here, there) = (mount.path(name), server.path(name));
    assert_eq!(described(&there), described(&here));
}

#[test]
fn what_is_made_written_and_removed_in_time_costs_no_call() {
    for kind in ALL {
        let server = Server::start(kind);
        let mount = Mount::new(&server, OPTIONS);
        // The server shows once to which user it maps the caller, which rights it grants, and what
        // exists.
        fs::create_dir(mount.path("first")).unwrap();
        fs::write(mount.path("second"), "text").unwrap();
        let before = calls(&mount);
        for count in 0..20 {
            let (dir, file) = (mount.path("dir"), mount.path("dir/file"));
            fs::create_dir(&dir).unwrap();
            fs::write(&file, format!("text {count}")).unwrap();
            let about = fs::metadata(&file).unwrap();
            symlink("file", mount.path("dir/link")).unwrap();
            fs::rename(&file, mount.path("dir/other")).unwrap();
            fs::File::open(&dir).unwrap().sync_all().unwrap();
            let renamed = fs::metadata(mount.path("dir/other")).unwrap();
            assert_eq!((renamed.ino(), renamed.len()), (about.ino(), about.len()));
            assert_eq!(fs::read(mount.path("dir/link/../other")).ok(), None, "no directory");
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
            assert_eq!(fs::metadata(&dir).unwrap().nlink(), 2);
            fs::remove_dir_all(&dir).unwrap();
            assert!(!dir.exists());
        }
        assert_eq!(calls(&mount), before, "{kind:?}");
        let there = Elsewhere::of(kind, &server);
        // Of a volume, whoever looks has what was made; elsewhere not even the second one is there.
        let seen = if kind == Kind::Volume { 2 } else { 1 };
        assert_eq!(described(&there.path("")).len(), seen);
        sync(&mount);
        assert_eq!(fs::read(there.path("second")).unwrap(), b"text");
        is_at_server(&there, &mount, "");
    }
}

/// An archive of some hundred files and its copy with all attributes: the server learns of both at
/// the sync. Both include files that the kernel wrote itself (the larger ones), and files that it
/// did not.
#[test]
fn an_untar_and_a_copy_with_attributes_cost_no_call() {
    let made = scratch("larder-untar-");
    let mut shell = Command::new("sh");
    let script = "mkdir -p tree/a tree/b && for i in $(seq 200); do
          echo content $i > tree/a/$i; chmod $((400 + i % 300)) tree/a/$i 2> /dev/null || chmod 640 tree/a/$i
          head -c $((i * 700)) /dev/zero | tr '\\0' x > tree/b/$i; ln -s ../a/$i tree/b/link$i
        done
        find tree -type f | while read f; do touch -d '2001-02-03 04:05:06' $f; done
        chown -R 1000:100 tree/b && tar cf tree.tar tree";
    succeed(shell.args(["-ec", script]).current_dir(made.path()));
    for kind in ALL {
        let server = Server::start(kind);
        let mut mount = Mount::new(&server, OPTIONS);
        fs::create_dir(mount.path("first")).unwrap();
        fs::create_dir(mount.path("second")).unwrap();
        let before = calls(&mount);
        let run = |script: &str| {
            let mut shell = Command::new("sh");
            shell.env("ARCHIVE", made.path().join("tree.tar"));
            succeed(shell.args(["-ec", script]).current_dir(mount.path("second")));
        };
        run(
            "tar xpf $ARCHIVE; cp -rp tree copy; touch -d '2002-03-04' copy/a/7; truncate -s 5 copy/b/9",
        );
        assert_eq!(calls(&mount), before, "{kind:?}");
        let untarred = mount.path("second/tree");
        assert_eq!(described(&untarred), described(&made.path().join("tree")), "{kind:?}");
        let here = described(&mount.path(""));
        // Bytes, modes, owners and times are on record, whatever process dies.
        mount.kill();
        mount.mount();
        same((&described(&mount.path("")), &here), kind, "by the next mount");
        sync(&mount);
        same((&described(&mount.path("")), &here), kind, "when the server has it");
        let there = Elsewhere::of(kind, &server);
        is_at_server(&there, &mount, "");
    }
}

/// Runs a script, which ends at the first command that fails, and shows that one. A shell does not
/// end at a failure before `&&`, so there is none.
fn script(dir: &Path, text: &str) {
    assert!(!text.contains("&&"), "a failure before && goes unseen: {text}");
    succeed(Command::new("sh").args(["-exc", text]).current_dir(dir).env("HOME", dir));
}

/// Waiting names, and names that the server has: what programs do to trees with both. (tar ends
/// with 1 if a directory's times change in the meantime, as they do when a worker dies.)
fn work(top: &Path) {
    let trees = "mkdir -p src/a/b
         for i in 1 2 3 4 5 6 7 8 9; do
           echo line $i > src/a/f$i; echo $i > src/a/b/g$i; ln -s ../f$i src/a/b/l$i
         done
         chmod 600 src/a/f1; touch -d '2001-02-03 04:05:06' src/a/f2
         tar cf tree.tar src || test $? = 1
         mkdir out; tar xf tree.tar -C out
         mv out/src/a out/moved; rm -r out/src; mv out/moved/f3 out/moved/b/f4
         ln out/moved/f5 out/hard; echo more >> out/hard; mkfifo out/pipe; rm out/pipe
         rm out/moved/b/g*; mv out/moved/f6 tree.tar";
    script(top, trees);
    let repository = "mkdir repo; cd repo; git init -q .
         git config user.email a@b.c; git config user.name a
         cp -r ../src .; git add .; git commit -qm one; echo x >> src/a/f1; git commit -qam two
         git branch side HEAD~1; git checkout -q side; git checkout -q -; git gc -q
         git fsck --strict
         status=$(git status --porcelain); test -z \"$status\"";
    script(top, repository);
}

#[test]
#[should_panic(expected = "+ cat missing")]
fn a_script_ends_at_the_first_command_that_fails_and_shows_it() {
    let dir = scratch("larder-script-");
    script(dir.path(), "cd .; cat missing; true");
}

#[test]
fn trees_are_the_same_at_the_server_after_a_sync() {
    for kind in ALL {
        let server = Server::start(kind);
        let mut mount = Mount::new(&server, OPTIONS);
        work(&mount.path(""));
        let here = described(&mount.path(""));
        sync(&mount);
        assert_eq!(described(&mount.path("")), here, "{kind:?}: nothing shows");
        assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
        let there = Elsewhere::of(kind, &server);
        is_at_server(&there, &mount, "");
        let number = |mount: &Mount| fs::metadata(mount.path("out/moved/b/f4")).unwrap().ino();
        let before = number(&mount);
        mount.remount();
        assert_eq!(number(&mount), before, "over a remount");
        is_at_server(&there, &mount, "");
    }
}

/// The process that serves a mount dies repeatedly; another one continues.
#[test]
fn nothing_is_lost_when_the_worker_is_killed() {
    for kind in ALL {
        let server = Server::start(kind);
        let mount = Mount::new(&server, OPTIONS);
        fs::create_dir(mount.path("first")).unwrap();
        std::thread::scope(|scope| {
            let working = scope.spawn(|| work(&mount.path("")));
            for _ in 0..4 {
                let worker = mount.status()["worker_pid"].as_u64();
                if let Some(worker) = worker.and_then(|pid| u32::try_from(pid).ok()) {
                    kill([worker, worker]);
                }
                // Another one serves when this has ended, whatever came of it.
                let _ = said(&mount, &["sync", mount.path("").to_str().unwrap()]);
            }
            working.join().unwrap();
        });
        sync(&mount);
        let there = Elsewhere::of(kind, &server);
        is_at_server(&there, &mount, "");
    }
}

/// The servers of a volume die repeatedly, and others continue.
#[test]
fn nothing_is_lost_when_the_servers_of_a_volume_are_killed() {
    let mut server = Server::start(Kind::Volume);
    let mount = Mount::new(&server, OPTIONS);
    fs::create_dir(mount.path("first")).unwrap();
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&mount.path("")));
        for _ in 0..3 {
            server.kill();
            server.restart();
            let _ = said(&mount, &["sync", mount.path("").to_str().unwrap()]);
        }
        working.join().unwrap();
    });
    sync(&mount);
    is_at_server(&Elsewhere::of(Kind::Volume, &server), &mount, "");
    assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
}

/// Of files that were made here, another mount of the volume reads what was closed here.
#[test]
fn who_reads_a_file_that_an_exclusive_mount_has_made_has_what_was_closed() {
    let server = Server::start(Kind::Volume);
    let (mount, there) = (Mount::new(&server, OPTIONS), Elsewhere::of(Kind::Volume, &server));
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("made"), "old").unwrap();
    assert_eq!(fs::read(there.path("made")).unwrap(), b"old");
    fs::write(mount.path("made"), "newer").unwrap();
    let (_, told) = said(&mount, &["status", "--unsaved"]);
    assert!(told.contains("made: 5 B unsent, class generated, "), "{told}");
    eventually("this machine's disk has it", || {
        let (_, told) = said(&mount, &["status", "--unsaved"]);
        told.contains("made: 5 B unsent, class generated, local")
    });
    assert_eq!(fs::read(there.path("made")).unwrap(), b"newer");
}

#[test]
fn a_tree_is_removed_while_removed_files_of_it_are_open() {
    for (kind, options) in
        ALL.map(|kind| (kind, OPTIONS)).into_iter().chain([(Kind::Volume, &[][..])])
    {
        let server = Server::start(kind);
        let (mount, there) = (Mount::new(&server, options), Elsewhere::of(kind, &server));
        crate::posix::removes_a_tree_in_use(&mount, &format!("{kind:?} {options:?}"));
        eventually("nothing is left", || {
            sync(&mount);
            fs::read_dir(there.path("")).unwrap().count() == 0
        });
    }
}

/// The owner of a file that was made here writes it at the server without an open, whatever its
/// mode is then.
#[test]
fn a_read_only_file_of_a_user_of_a_volume_is_sent_later() {
    let server = Server::start(Kind::Volume);
    let mount = Mount::new(&server, OPTIONS);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::set_permissions(mount.path("dir"), fs::Permissions::from_mode(0o777)).unwrap();
    let run = |script: &str| {
        let script = format!("cd {} && {script}", mount.path("dir").display());
        assert!(shell_as(1000, 100, &script), "{script}");
    };
    run("echo first > first; echo text > later; umask 222; echo object > object");
    run("chmod 400 later; echo text > last; chmod 444 last");
    let there = Elsewhere::of(Kind::Volume, &server);
    assert_eq!(fs::read_dir(there.path("dir")).unwrap().count(), 4);
    sync(&mount);
    assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    is_at_server(&there, &mount, "");
}

/// Makes a directory with files, and renames and removes some of them. Returns what was
/// acknowledged; a step that is refused for want of room is not.
fn work_for_room(top: &Path, round: u64) -> (BTreeMap<PathBuf, Vec<u8>>, u64) {
    let (mut acknowledged, mut refused) = (BTreeMap::new(), 0);
    let mut is_done = |done: std::io::Result<()>| match done {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
            refused += 1;
            false
        }
    };
    let dir = top.join(format!("dir{round}"));
    if !is_done(fs::create_dir(&dir)) {
        return (acknowledged, refused);
    }
    for count in 0..24_u64 {
        let size = [10, 5_000, 70_000, 300_000][(count % 4) as usize];
        let content = pattern(100 * round + count, size);
        let (made, last) = (dir.join(format!("made{count}")), dir.join(format!("last{count}")));
        if !is_done(fs::write(&made, &content)) {
            continue;
        }
        if count % 3 == 0 {
            acknowledged.insert(made, content);
        } else if is_done(fs::rename(&made, &last))
            && (count % 3 == 2 || !is_done(fs::remove_file(&last)))
        {
            acknowledged.insert(last, content);
        }
    }
    (acknowledged, refused)
}

/// The cache's disk is filled by others in the middle of the work, and the worker dies after that.
/// What was acknowledged is at the server in the end; a second after the disk was filled,
/// everything works.
#[test]
fn nothing_is_lost_when_others_fill_the_disk_of_the_cache() {
    for class in ["class=generated", "class=scratch", "class=edited"] {
        let disk = SmallDisk::for_cache(64, 4096);
        let server = Server::start(Kind::Larder);
        let mut mount = Mount::unmounted(&server, &["exclusive", class, "actimeo=86400"]);
        mount.set_cache(disk.path().join("cache"));
        mount.mount();
        let mut all = BTreeMap::new();
        for round in 0..8 {
            match round {
                2 => disk.fill_up(),
                5 => {
                    disk.free_up();
                    let worker = mount.status()["worker_pid"].as_u64().unwrap();
                    kill([u32::try_from(worker).unwrap(); 2]);
                }
                _ => {}
            }
            let (acknowledged, refused) = work_for_room(&mount.path(""), round);
            println!("{class}, round {round}: {} kept, {refused} refused", acknowledged.len());
            // Until larder looks at the disk again, the kernel may still write to it by itself.
            assert!(refused == 0 || round == 2, "{class}, round {round}: {refused}");
            all.extend(acknowledged);
        }
        sync(&mount);
        for (path, content) in &all {
            let there = server.path(path.strip_prefix(mount.path("")).unwrap().to_str().unwrap());
            assert!(fs::read(&there).unwrap() == *content, "{class}: {}", there.display());
            assert!(fs::read(path).unwrap() == *content, "{class}: {}", path.display());
        }
        is_at_server(&Elsewhere::of(Kind::Larder, &server), &mount, "");
    }
}

/// What works without a silent server, in a directory that the server has and in one that it has
/// not. `round` tells the names of several rounds apart.
const WITHOUT: &str =
    "cat kept dir/kept old/kept old/large > /dev/null; test $(stat -c %s old/large) = 200000
    ls -lR > /dev/null; test -z \"$(ls empty)\"; test ! -e dir/absent; test ! -e old/absent
    for dir in dir old .; do
      echo more >> $dir/kept; echo new > $dir/new$round; mkdir $dir/made$round
      echo new > $dir/made$round/file; ln -s kept $dir/link$round
      mv $dir/new$round $dir/moved$round; touch -d '2001-02-03' $dir/moved$round
      echo gone > $dir/gone; rm $dir/gone; chmod 600 $dir/kept; : > $dir/emptied$round
      sed -i s/more/less/ $dir/kept; sync $dir
      echo synced | dd of=$dir/kept oflag=append conv=notrunc,fsync status=none
      test \"$(cat $dir/moved$round)\" = new; test $(stat -c %a $dir/kept) = 600
    done; rm old/served$round; mv old/other$round old/else$round";

/// The network is pulled, and then the worker dies too: names and bytes that need no server go on,
/// and are there in the end.
#[test]
fn what_needs_no_server_goes_on_although_it_is_silent_and_the_worker_is_another_one() {
    for kind in [Kind::Larder, Kind::Ganesha] {
        let mut server = Server::start(kind);
        for name in ["served1", "served2", "other1", "other2"] {
            fs::create_dir_all(server.path("old")).unwrap();
            fs::write(server.path("old").join(name), "").unwrap();
        }
        fs::create_dir(server.path("empty")).unwrap();
        fs::write(server.path("old/large"), pattern(1, 200_000)).unwrap();
        // Nothing counts as fresh, and calls end after nine seconds.
        let mount = Mount::new(&server, &["exclusive", "class=generated", "actimeo=0", "timeo=30"]);
        let run = |script: &str, round: u32| {
            let mut shell = Command::new("sh");
            shell.args(["-ec", script]).current_dir(mount.path("")).env("round", round.to_string());
            succeed(&mut shell);
        };
        fs::create_dir(mount.path("first")).unwrap();
        run(
            "cat old/large > /dev/null; mkdir dir; for dir in . dir old; do
            echo kept > $dir/kept; done; ls -lR > /dev/null",
            0,
        );
        mount.landed(200_000);
        let pull = |server: &mut Server, is_pulled| match (kind, is_pulled) {
            (Kind::Larder, true) => server.freeze(),
            (Kind::Larder, false) => server.thaw(),
            _ => server.cut(is_pulled),
        };
        pull(&mut server, true);
        // The first call that needs the server finds that it is silent.
        fs::metadata(mount.path("old/never seen")).unwrap_err();
        eventually("it is known to be silent", || mount.status()["server"]["reachable"] == false);
        run(WITHOUT, 1);
        let [_, worker] = mount.pids();
        kill([worker, worker]);
        eventually("another worker serves", || mount.pids()[1] != worker);
        run(WITHOUT, 2);
        let here = described(&mount.path(""));
        assert!(here.len() > 30, "{kind:?}: {here:?}");
        pull(&mut server, false);
        eventually("it is used again", || mount.status()["server"]["reachable"] == true);
        assert_eq!(described(&mount.path("")), here, "{kind:?}: it is back");
        sync(&mount);
        is_at_server(&Elsewhere::of(kind, &server), &mount, "");
        assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    }
}

/// All processes of the mount die, and the next mount (exclusive or not) finds everything.
#[test]
fn what_a_dead_mount_left_is_there_and_goes_to_the_server() {
    let kinds = [Kind::Larder, Kind::Volume].into_iter();
    for (kind, again) in kinds.flat_map(|kind| [(kind, OPTIONS), (kind, &["class=generated"])]) {
        let server = Server::start(kind);
        let there = Elsewhere::of(kind, &server);
        let mut mount = Mount::new(&server, OPTIONS);
        fs::create_dir(mount.path("first")).unwrap();
        fs::create_dir_all(mount.path("a/b")).unwrap();
        fs::write(mount.path("a/b/file"), "text").unwrap();
        fs::set_permissions(mount.path("a"), fs::Permissions::from_mode(0o750)).unwrap();
        let number = fs::metadata(mount.path("a/b")).unwrap().ino();
        assert!(kind == Kind::Volume || !there.path("a").exists());
        mount.kill();
        mount.set_options(&server, again);
        mount.mount();
        assert_eq!(fs::read(mount.path("a/b/file")).unwrap(), b"text");
        assert_eq!(fs::metadata(mount.path("a/b")).unwrap().ino(), number);
        sync(&mount);
        is_at_server(&there, &mount, "");
    }
}

#[test]
fn where_names_cannot_be_made_here_the_option_is_refused_in_one_line() {
    let folder = scratch("larder-exclusive-");
    for (source, cache, options, part) in [
        ("//server/share", "cache", "exclusive", "exclusive means nothing to SMB"),
        ("server:/export", "none", "exclusive", "exclusive needs a cache on disk"),
        ("server:/export", "cache", "exclusive,sync", "exclusive and sync contradict"),
    ] {
        let mut command = larder();
        command.args(["mount", source]).arg(folder.path()).arg("--cache");
        let cache = if cache == "none" { cache.into() } else { folder.path().join(cache) };
        let tried = command.arg(cache).args(["-o", options]).output().unwrap();
        let told = String::from_utf8(tried.stderr).unwrap();
        assert!(!tried.status.success() && told.lines().count() == 1, "{told}");
        assert!(told.contains(part), "{told}");
    }
}

/// Another one would change the same names. A mount that only reads, or another server, is none.
#[test]
fn a_second_exclusive_mount_is_refused_in_one_line() {
    let server = Server::start(Kind::Larder);
    let mut first = Mount::new(&server, OPTIONS);
    // Commands find mounts of one user; here each mount has its own directory otherwise.
    let run = first.cache().with_file_name("run");
    let tried = |mount: &Mount| {
        let output = mount.command().env("LARDER_RUNTIME_DIR", &run).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let mut second = Mount::unmounted(&server, OPTIONS);
    let is_refused = |second: &Mount| {
        let (_, told) = tried(second);
        let [supervisor, _] = first.pids();
        assert_eq!(told.lines().count(), 1, "{told}");
        let at = first.path("").to_str().unwrap().trim_end_matches('/').to_owned();
        assert!(
            told.contains("exclusive") && told.contains(&format!("larder umount {at}")),
            "{told}"
        );
        assert!(told.contains(&format!("process {supervisor} has")), "{told}");
        assert!(!second.cache().exists(), "nothing was made");
    };
    is_refused(&second);
    second.set_url(format!("{}below", server.url()));
    is_refused(&second);
    second.set_url(server.url());
    let [_, worker] = first.pids();
    kill([worker, worker]);
    eventually("another worker serves", || first.pids()[1] != worker);
    is_refused(&second);
    // It promises nothing.
    second.set_options(&server, &["class=generated"]);
    assert_eq!(tried(&second), (true, String::new()));
    let umount = |mount: &Mount| {
        let mut umount = larder();
        umount.env("LARDER_RUNTIME_DIR", &run).arg("umount").arg(mount.path(""));
        succeed(&mut umount);
    };
    umount(&second);
    second.set_options(&server, OPTIONS);
    // At once, whatever the processes of the other one are still doing.
    first.unmount();
    assert_eq!(tried(&second), (true, String::new()));
    umount(&second);
    first.mount();
    first.kill();
    assert_eq!(tried(&second), (true, String::new()));
    umount(&second);
}
