//! Two mounts of a volume, one or both of which make names on their machines: under leases of the
//! metadata server, each sees at once what the other one was told is done.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{OPTIONS, calls, described, sync};
use crate::harness::{Kind, Mount, Server, eventually, kill, said};
use crate::several_disks::status;

/// Longest wait for a lease whose holder lives: for what waits on its machine, and the kernel.
const RETURNED_WITHIN: Duration = Duration::from_secs(13);

/// A volume, a mount that makes names on its machine, and another one.
struct Two {
    server: Server,
    here: Mount,
    there: Mount,
}

impl Two {
    /// The other mount has these options.
    fn new(options: &[&str]) -> Two {
        let server = Server::start(Kind::Volume);
        let (here, there) = (Mount::new(&server, OPTIONS), Mount::new(&server, options));
        let two = Two { server, here, there };
        // The server shows to which user it maps the caller.
        for (mount, name) in [(&two.here, "here"), (&two.there, "there")] {
            fs::create_dir(mount.path(name)).unwrap();
            fs::create_dir(mount.path(&format!("{name}/first"))).unwrap();
        }
        two
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

fn set<const COUNT: usize>(names: [&str; COUNT]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn make_new(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

/// Does something, which must not take longer than a living holder of a lease may take.
fn in_time<T>(what: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = what();
    assert!(begun.elapsed() < RETURNED_WITHIN, "{:?}", begun.elapsed());
    done
}

/// What costs no call on one mount is there at once on the other one: names, bytes, and that
/// something was removed or renamed; to both it is one file system.
#[test]
fn what_is_made_here_is_there_at_once() {
    for options in [&["noac"][..], &["class=edited"], OPTIONS] {
        let two = Two::new(options);
        let (here, there) = (two.here.path("here"), two.there.path("here"));
        fs::write(here.join("warm"), "").unwrap();
        let before = calls(&two.here);
        for name in ["a", "b", "c"] {
            fs::write(here.join(name), format!("text of {name}")).unwrap();
        }
        fs::remove_file(here.join("b")).unwrap();
        fs::rename(here.join("c"), here.join("d")).unwrap();
        fs::create_dir(here.join("dir")).unwrap();
        fs::write(here.join("dir/inner"), "inner text").unwrap();
        assert_eq!(calls(&two.here), before, "{options:?}");
        assert_eq!(names(&there), set(["a", "d", "dir", "first", "warm"]));
        assert_eq!(fs::read(there.join("a")).unwrap(), b"text of a");
        assert_eq!(fs::read(there.join("d")).unwrap(), b"text of c");
        assert_eq!(fs::metadata(there.join("dir/inner")).unwrap().len(), 10);
        assert_eq!(fs::read(there.join("dir/inner")).unwrap(), b"inner text");
        // The other way, and back.
        fs::write(there.join("dir/theirs"), "their text").unwrap();
        assert_eq!(names(&here.join("dir")), set(["inner", "theirs"]));
        assert_eq!(fs::read(here.join("dir/theirs")).unwrap(), b"their text");
        fs::write(here.join("dir/inner"), "newer text").unwrap();
        assert_eq!(fs::read(there.join("dir/inner")).unwrap(), b"newer text");
        fs::remove_file(there.join("dir/inner")).unwrap();
        assert_eq!(names(&here.join("dir")), set(["theirs"]));
        fs::remove_file(here.join("dir/theirs")).unwrap();
        fs::remove_dir(there.join("dir")).unwrap();
        assert!(!here.join("dir").exists());
        assert_eq!(described(&here), described(&there), "{options:?}");
        assert_eq!(said(&two.here, &["status", "--unsaved"]).0, Some(0));
    }
}

/// Classes that need no more than memory: what is made, written and removed costs no call, and
/// nobody waits for a disk. Another mount sees each name with its bytes at once; what stays goes to
/// the memory disk.
#[test]
fn what_needs_only_memory_costs_no_call_and_is_there_at_once() {
    for class in ["class=volatile", "class=scratch"] {
        let server = Server::volume(&["--size", "64M", "--memory", "64M"]);
        let here = Mount::new(&server, &["exclusive", class, "actimeo=86400"]);
        let there = Mount::plain(&server, &["noac"]);
        fs::create_dir(here.path("dir")).unwrap();
        let kept = vec![7; 1 << 20];
        fs::write(here.path("dir/kept"), &kept).unwrap();
        let before = calls(&here);
        for count in 0..20 {
            let path = here.path(&format!("dir/{count}"));
            fs::write(&path, "bytes").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"bytes");
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(calls(&here), before, "{class}");
        assert_eq!(names(&there.path("dir")), set(["kept"]));
        assert!(fs::read(there.path("dir/kept")).unwrap() == kept, "{class}");
        fs::write(here.path("dir/kept"), "over it").unwrap();
        assert_eq!(fs::read(there.path("dir/kept")).unwrap(), b"over it", "{class}");
        fs::write(here.path("dir/more"), &kept).unwrap();
        sync(&here);
        let told = status(&server);
        let [all, free] =
            ["memory_bytes", "memory_free_bytes"].map(|it| told[it].as_u64().unwrap());
        assert!(all - free >= 1 << 20, "{class}: {told}");
    }
}

/// Both mounts make the same names, as programs take locks: each name is made by one of them, and
/// the other one is told so. What both append to is whole.
#[test]
fn of_two_that_make_one_name_one_does() {
    const NAMES: usize = 40;
    let two = Two::new(OPTIONS);
    fs::create_dir(two.here.path("both")).unwrap();
    let dirs = [two.here.path("both"), two.there.path("both")];
    let (one, other) = std::thread::scope(|scope| {
        let tries = dirs.each_ref().map(|dir| {
            scope.spawn(move || -> Vec<bool> {
                let tried = (0..NAMES).map(|count| {
                    let path = dir.join(format!("lock{count}"));
                    match make_new(&path, dir.to_str().unwrap()) {
                        Ok(()) => true,
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
                            false
                        }
                    }
                });
                tried.collect()
            })
        });
        let [one, other] = tries.map(|tries| tries.join().unwrap());
        (one, other)
    });
    for (count, (one, other)) in one.iter().zip(&other).enumerate() {
        assert!(one != other, "lock{count}: {one} {other}");
        let winner = if *one { &dirs[0] } else { &dirs[1] };
        for dir in &dirs {
            let text = fs::read(dir.join(format!("lock{count}"))).unwrap();
            assert_eq!(text, winner.to_str().unwrap().as_bytes(), "lock{count}");
        }
    }
    assert_eq!(names(&dirs[0]).len(), NAMES, "nothing is kept beside anything");
    assert_eq!(names(&dirs[1]).len(), NAMES);
}

/// One mount looks again and again while the other one works: it sees every name that was
/// acknowledged before it looked, and nobody waits longer than a lease takes.
#[test]
fn who_looks_while_names_are_made_sees_all_that_were_acknowledged() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    const FILES: usize = 120;
    let two = Two::new(&["noac"]);
    let made = AtomicUsize::new(0);
    let (here, there) = (two.here.path("here"), two.there.path("here"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in 0..FILES {
                in_time(|| fs::write(here.join(format!("f{count}")), format!("text {count}")))
                    .unwrap();
                made.store(count + 1, SeqCst);
            }
        });
        loop {
            let before = made.load(SeqCst);
            let seen = in_time(|| names(&there));
            let missing = (0..before).find(|count| !seen.contains(&format!("f{count}")));
            assert_eq!(missing, None, "{before} were made");
            if let Some(last) = before.checked_sub(1) {
                let text = in_time(|| fs::read(there.join(format!("f{last}")))).unwrap();
                assert_eq!(text, format!("text {last}").as_bytes());
            }
            if before == FILES {
                break;
            }
        }
    });
}

/// What a mount asks for a listing does not grow with what it lists, nor with what the other mount
/// alone knows of it: each question may wait for the lease on the directory, which the other mount
/// takes again to make the next name. Who wants the attributes waits for them, then.
#[test]
fn a_listing_beside_a_maker_of_names_asks_the_same_however_many_there_are() {
    let two = Two::new(&["noac"]);
    let (here, there) = (two.here.path("here"), two.there.path("here"));
    let asked = |mount: &Mount| {
        let calls = mount.calls_by_procedure();
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        ["LOOK", "LOOKUP", "GETATTR", "READDIR"].map(of).iter().sum::<u64>()
    };
    let mut made = 0;
    for files in [10, 100, 101, 102] {
        for count in made..files {
            fs::write(here.join(format!("f{count}")), "text").unwrap();
        }
        made = files;
        let before = asked(&two.there);
        assert_eq!(in_time(|| names(&there)).len(), files + 1);
        let asked = asked(&two.there) - before;
        assert!(asked <= 4, "{asked} questions for {files} names");
        let last = there.join(format!("f{}", files - 1));
        assert_eq!(in_time(|| fs::metadata(&last)).unwrap().len(), 4);
    }
}

/// Who waits for a lease of a mount whose processes die goes on: the next worker begins another
/// session, and of a dead mount the session is over after its time. Then all names are there that
/// were acknowledged, once the holder is back.
#[test]
fn who_waits_for_a_dead_holder_goes_on() {
    let mut two = Two::new(&["noac"]);
    fs::write(two.here.path("here/one"), "one").unwrap();
    let worker = two.here.pids()[1];
    kill([worker, worker]);
    eventually("another worker serves", || two.here.pids()[1] != worker);
    eventually("its names are there", || {
        in_time(|| names(&two.there.path("here"))).contains("one")
    });
    // The other mount may look between the name and the bytes: nobody holds it up any more.
    eventually("its bytes are there", || {
        in_time(|| fs::read(two.there.path("here/one"))).is_ok_and(|bytes| bytes == b"one")
    });
    fs::write(two.here.path("here/two"), "two").unwrap();
    two.here.kill();
    // The session of a dead client lasts 30 s.
    let begun = Instant::now();
    let seen = names(&two.there.path("here"));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert!(seen.contains("one"));
    fs::write(two.there.path("here/three"), "three").unwrap();
    two.here.mount();
    assert_eq!(names(&two.here.path("here")), set(["first", "one", "three", "two"]));
    sync(&two.here);
    assert_eq!(names(&two.there.path("here")), set(["first", "one", "three", "two"]));
    assert_eq!(fs::read(two.there.path("here/two")).unwrap(), b"two");
}

/// The metadata server and the disk die, and another one begins: nobody has a lease then, and what
/// was acknowledged is made there.
#[test]
fn names_under_leases_outlive_the_servers() {
    let mut two = Two::new(&["noac"]);
    fs::write(two.here.path("here/one"), "one").unwrap();
    two.server.kill();
    two.server.restart();
    fs::write(two.here.path("here/two"), "two").unwrap();
    eventually("its names are there", || {
        let seen = names(&two.there.path("here"));
        seen.contains("one") && seen.contains("two")
    });
    sync(&two.here);
    assert_eq!(described(&two.there.path("here")), described(&two.here.path("here")));
    assert_eq!(said(&two.here, &["status", "--unsaved"]), (Some(0), String::new()));
}

/// More bytes than can be sent in time: the other mount sees the names soon, and each file that it
/// opens whole.
#[test]
fn a_listing_does_not_wait_for_bytes() {
    let two = Two::new(&["noac"]);
    let bytes = vec![7; 24 << 20];
    for name in ["large", "larger"] {
        let mut file = File::create(two.here.path(&format!("here/{name}"))).unwrap();
        file.write_all(&bytes).unwrap();
    }
    assert_eq!(in_time(|| names(&two.there.path("here"))), set(["first", "large", "larger"]));
    for name in ["large", "larger"] {
        let read = in_time(|| fs::read(two.there.path(&format!("here/{name}")))).unwrap();
        assert!(read == bytes, "{name}: {} bytes", read.len());
    }
}
