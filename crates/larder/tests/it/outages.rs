//! The network is pulled in the middle of work, and the worker, the whole daemon, the server or
//! nothing is killed meanwhile: work goes on, no call hangs, cached files are read, and all that
//! was acknowledged arrives when the network is back, nothing of it twice. `LARDER_OUTAGE=60` keeps
//! the network away for 60 s before the kill, and again after it. In [`faults`] it is drawn what
//! happens, over and over, and a checker knows every operation that was acknowledged.

mod faults;
mod scene;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{
    Kind, Mount, Server, eventually, eventually_or, kill, pattern, run, said, succeed, tree,
};

/// No call takes longer: one that needs the server ends after some seconds, and a few of them may
/// come one after the other.
const LIMIT: Duration = Duration::from_secs(45);
/// How many edits there are at least while the network is away, before and after the kill.
const EDITS_MIN: u32 = 5;
/// How many files are edited, over and over.
const EDITED: u64 = 5;
/// Files that are cached, and how long they are.
const CACHED: u64 = 8;
const CACHED_BYTES: usize = 50_000;
/// How many of the last calls a failure tells of.
const ENDS_KEPT: usize = 40;

/// What is killed while the network is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Nothing,
    Worker,
    /// The worker goes on alone for a while, and is killed then.
    Supervisor,
    /// Supervisor and worker: the mount is made again, without its server.
    Daemon,
    /// The same, and the machine: the next mount finds the session log of another boot.
    Boot,
    /// It is another process when the network is back.
    Server,
}

/// What the threads of one test have done, and how long a call took at most.
#[derive(Debug, Default)]
struct Work {
    stops: AtomicBool,
    /// There may be no mount at the moment.
    is_mounting: AtomicBool,
    /// How often the mount was made again.
    mounts: AtomicU32,
    /// A rename counts when its directory was synced: the machine will crash.
    syncs: bool,
    edits: AtomicU32,
    reads: AtomicU32,
    late: AtomicU32,
    longest_ms: AtomicU32,
    /// How the last [`ENDS_KEPT`] calls ended.
    ends: Mutex<VecDeque<String>>,
    /// The contents that each file may have: what was acknowledged last, and what was not since.
    contents: Mutex<BTreeMap<String, Vec<u64>>>,
}

fn content(number: u64) -> Vec<u8> {
    pattern(number, 1 + (number as usize * 7_001) % 60_000)
}

impl Work {
    /// Answers whether it was done. What needs the server while that is away is late, and what a
    /// dead daemon had is lost.
    fn does(&self, call: impl FnOnce() -> io::Result<()>) -> bool {
        let may_fail = self.is_mounting.load(Ordering::SeqCst);
        let mounts = self.mounts.load(Ordering::SeqCst);
        let begun = Instant::now();
        let answer = call();
        let took = u32::try_from(begun.elapsed().as_millis()).unwrap();
        self.longest_ms.fetch_max(took, Ordering::Relaxed);
        self.notes_end(took, &answer);
        match answer {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                self.late.fetch_add(1, Ordering::Relaxed);
                false
            }
            Err(_) if may_fail || self.is_mounting.load(Ordering::SeqCst) => false,
            Err(_) if self.mounts.load(Ordering::SeqCst) != mounts => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn notes_end(&self, took_ms: u32, answer: &io::Result<()>) {
        let mut ends = self.ends.lock().unwrap();
        if ends.len() == ENDS_KEPT {
            ends.pop_front();
        }
        ends.push_back(format!("  {:?}: {took_ms} ms: {answer:?}", std::thread::current().id()));
    }

    fn goes_on(&self) -> bool {
        !self.stops.load(Ordering::Relaxed)
    }

    /// A file is given a content.
    fn gives(&self, path: &str, number: u64, call: impl FnOnce() -> io::Result<()>) -> bool {
        let mut contents = self.contents.lock().unwrap();
        contents.entry(path.to_owned()).or_default().push(number);
        drop(contents);
        let is_done = self.does(call);
        if is_done {
            self.contents.lock().unwrap().insert(path.to_owned(), vec![number]);
        }
        is_done
    }

    /// Writes a file. What close(2) says of it is lost in `fs::write`.
    fn puts(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = fs::File::create(path)?;
        file.write_all(bytes)?;
        if self.syncs { file.sync_all() } else { Ok(()) }
    }

    /// Makes files, and replaces some as editors do.
    fn write(&self, mount: &Mount) {
        let mut made = 0;
        for number in (0_u64..).take_while(|_| self.goes_on()) {
            let bytes = content(number);
            let path = format!("made/{made}");
            // A file that was begun may have any part of its bytes.
            let is_made = self.does(|| self.puts(&mount.path(&path), &bytes));
            if is_made {
                self.contents.lock().unwrap().insert(path, vec![number]);
                made += 1;
            }
            let (new, path) = (mount.path("edited/new"), format!("edited/{}", number % EDITED));
            let replaces = || {
                fs::rename(&new, mount.path(&path))?;
                if self.syncs { fs::File::open(mount.path("edited"))?.sync_all() } else { Ok(()) }
            };
            if self.does(|| self.puts(&new, &bytes)) && self.gives(&path, number, replaces) {
                self.edits.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reads what is cached.
    fn read(&self, mount: &Mount) {
        for number in (0..CACHED).cycle().take_while(|_| self.goes_on()) {
            let read = || {
                let bytes = fs::read(mount.path(&format!("cached/{number}")))?;
                assert!(bytes == pattern(number, CACHED_BYTES), "{number}");
                Ok(())
            };
            let is_mounting = || self.is_mounting.load(Ordering::SeqCst);
            let was_mounting = is_mounting();
            let is_read = self.does(read);
            assert!(is_read || was_mounting || is_mounting(), "what is cached needs no server");
            self.reads.fetch_add(u32::from(is_read), Ordering::Relaxed);
        }
    }

    /// Has the threads end when it is dropped, in a test that fails, too.
    fn until_dropped(&self) -> impl Drop {
        struct Stops<'a>(&'a AtomicBool);
        impl Drop for Stops<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        Stops(&self.stops)
    }

    fn edits_again(&self, mount: &Mount, server: &Server) {
        let edits = self.edits.load(Ordering::Relaxed);
        let goes_on = || self.edits.load(Ordering::Relaxed) >= edits + EDITS_MIN;
        eventually_or("work goes on", goes_on, || scene::told(self, mount, server));
    }

    /// Work goes on for as long as the network is to be away.
    fn goes_on_for(&self, time: Duration, mount: &Mount, server: &Server) {
        let until = Instant::now() + time;
        self.edits_again(mount, server);
        while Instant::now() < until {
            self.edits_again(mount, server);
        }
    }

    fn kill(&self, killed: Killed, mount: &Mount, server: &mut Server) {
        match killed {
            Killed::Nothing => {}
            Killed::Worker => {
                let [_, worker] = mount.pids();
                kill([worker, worker]);
                eventually("another one answers", || mount.pids()[1] != worker);
            }
            Killed::Supervisor | Killed::Daemon | Killed::Boot => {
                let [supervisor, worker] = mount.pids();
                let mut left = [supervisor, worker];
                if killed == Killed::Supervisor {
                    kill([supervisor, supervisor]);
                    self.edits_again(mount, server);
                    left = [worker, worker];
                }
                self.is_mounting.store(true, Ordering::SeqCst);
                self.mounts.fetch_add(1, Ordering::SeqCst);
                kill(left);
                run("umount", &["-l", mount.path("").to_str().unwrap()]);
                if killed == Killed::Boot {
                    end_boot(&mount.cache());
                }
                succeed(&mut mount.command());
                self.is_mounting.store(false, Ordering::SeqCst);
            }
            Killed::Server => server.kill(),
        }
    }

    /// The server has what was acknowledged: under its name, or, if that may have met another
    /// client's change, beside that.
    fn check(&self, server: &Server, may_meet: bool) {
        let all = tree(&server.path(""));
        for (path, numbers) in &*self.contents.lock().unwrap() {
            let beside = format!("{path}.conflict-");
            let is_of_it = |name: &str| name == path || may_meet && name.starts_with(&beside);
            let held = all.iter().filter(|(name, _)| is_of_it(name.to_str().unwrap()));
            let is_one = |bytes: &Vec<u8>| numbers.iter().any(|number| *bytes == content(*number));
            let lengths: Vec<_> = held.clone().map(|(name, bytes)| (name, bytes.len())).collect();
            assert!(
                held.clone().any(|(_, bytes)| is_one(bytes)),
                "{path}: {numbers:?}: {lengths:?}"
            );
        }
    }
}

/// Makes the session log of a cache that of another boot (`docs/formats/cache.md`).
fn end_boot(cache: &Path) {
    const BOOT_AT: usize = 16;
    const SUM_AT: usize = 48;
    for slot in 0..3 {
        let path = cache.join(format!("log.{slot}"));
        let mut log = fs::read(&path).unwrap_or_default();
        if log.len() > SUM_AT {
            log[BOOT_AT] ^= 1;
            let sum = crc32c::crc32c(&log[..SUM_AT]).to_le_bytes();
            log[SUM_AT..][..sum.len()].copy_from_slice(&sum);
            fs::write(&path, log).unwrap();
        }
    }
}

/// Prints what the daemon logged if the test fails.
struct Log<'a>(&'a Mount);

impl Drop for Log<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.log());
        }
    }
}

/// Reads and lists all there is at first.
fn warm(mount: &Mount) {
    for number in 0..CACHED {
        fs::read(mount.path(&format!("cached/{number}"))).unwrap();
    }
    for dir in ["", "cached", "made", "edited"] {
        fs::read_dir(mount.path(dir)).unwrap().for_each(drop);
    }
}

/// Each name of a conflict that the server has is listed.
fn lists_conflicts(server: &Server, mount: &Mount) {
    let (code, told) = said(mount, &["conflicts", mount.path("").to_str().unwrap()]);
    assert_eq!(code, Some(0), "{told}");
    for path in tree(&server.path("")).into_keys() {
        let path = path.to_str().unwrap();
        let is_listed = told.contains(&format!("/{path}: "));
        assert!(!path.contains(".conflict-") || is_listed, "{path} is not listed: {told}");
    }
}

fn an_outage(options: &[&str], killed: Killed) {
    let mut server = Server::start(Kind::Ganesha);
    for dir in ["cached", "made", "edited"] {
        fs::create_dir(server.path(dir)).unwrap();
    }
    for number in 0..CACHED {
        let bytes = pattern(number, CACHED_BYTES);
        fs::write(server.path(&format!("cached/{number}")), bytes).unwrap();
    }
    let options = [options, &["timeo=10", "retrans=1", "actimeo=86400"]].concat();
    let mut mount = Mount::new(&server, &options);
    warm(&mount);
    mount.landed(CACHED * CACHED_BYTES as u64);
    if killed == Killed::Boot {
        // Only what is on the disk outlives the machine.
        mount.remount();
        warm(&mount);
    }
    let seconds = std::env::var("LARDER_OUTAGE").map_or(0, |seconds| seconds.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let work = Work { syncs: killed == Killed::Boot, ..Work::default() };
    let _log = Log(&mount);
    std::thread::scope(|scope| {
        scope.spawn(|| work.write(&mount));
        scope.spawn(|| work.read(&mount));
        let stops = work.until_dropped();
        work.edits_again(&mount, &server);
        server.cut(true);
        let is_reachable = || mount.status()["server"]["reachable"] == true;
        eventually("it is away", || !is_reachable());
        work.goes_on_for(time, &mount, &server);
        work.kill(killed, &mount, &mut server);
        work.goes_on_for(time, &mount, &server);
        server.cut(false);
        if killed == Killed::Server {
            server.restart();
        }
        eventually("it is used again", is_reachable);
        work.edits_again(&mount, &server);
        drop(stops);
    });
    let longest = Duration::from_millis(work.longest_ms.load(Ordering::Relaxed).into());
    let [edits, reads, late] =
        [&work.edits, &work.reads, &work.late].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{options:?}, {killed:?}, {} s: {edits} edits, {reads} reads of cached files, {late} calls \
         late (ETIMEDOUT), the longest call took {longest:?}",
        2 * time.as_secs()
    );
    assert!(longest < LIMIT, "{longest:?}");
    // A call may still be late: then what it has not brought is sent again.
    eventually("the server has all", || {
        let (code, told) = said(&mount, &["sync", mount.path("").to_str().unwrap()]);
        println!("sync: {told}");
        code == Some(0)
    });
    assert_eq!(said(&mount, &["status", "--unsaved"]), (Some(0), String::new()));
    // What the server was asked for as it fell silent may be there, and after a crash of the
    // machine nobody knows that it was asked for here.
    let may_meet = killed == Killed::Boot && !options.contains(&"exclusive");
    work.check(&server, may_meet);
    lists_conflicts(&server, &mount);
    let files = work.contents.lock().unwrap().len();
    println!("{files} files with acknowledged contents: all are at the server");
    assert!(tree(&server.path("")) == tree(&mount.path("")), "the trees differ");
}

const EXCLUSIVE: &[&str] = &["exclusive", "class=generated"];
const OFFLINE: &[&str] = &["offline"];

#[test]
fn work_on_an_exclusive_mount_outlives_an_outage() {
    an_outage(EXCLUSIVE, Killed::Nothing);
}

#[test]
fn work_on_an_exclusive_mount_outlives_an_outage_and_the_worker() {
    an_outage(EXCLUSIVE, Killed::Worker);
}

#[test]
fn work_on_an_exclusive_mount_outlives_an_outage_and_the_daemon() {
    an_outage(&[EXCLUSIVE, &["bg"]].concat(), Killed::Daemon);
}

#[test]
fn work_on_an_exclusive_mount_outlives_an_outage_and_a_reboot() {
    an_outage(&[EXCLUSIVE, &["bg"]].concat(), Killed::Boot);
}

#[test]
fn work_on_an_exclusive_mount_outlives_an_outage_and_the_server() {
    an_outage(EXCLUSIVE, Killed::Server);
}

#[test]
fn work_on_an_offline_mount_outlives_an_outage() {
    an_outage(OFFLINE, Killed::Nothing);
}

#[test]
fn work_on_an_offline_mount_outlives_an_outage_and_the_worker() {
    an_outage(OFFLINE, Killed::Worker);
}

#[test]
fn work_on_an_offline_mount_outlives_an_outage_and_the_daemon() {
    an_outage(OFFLINE, Killed::Daemon);
}

#[test]
fn work_on_an_offline_mount_outlives_an_outage_and_a_reboot() {
    an_outage(OFFLINE, Killed::Boot);
}

#[test]
fn work_on_an_offline_mount_outlives_an_outage_and_the_server() {
    an_outage(OFFLINE, Killed::Server);
}

/// How many names arrive in their order. getdents(2) lists so many at once, in one moment.
const ORDERED: usize = 300;

/// How many of the names o1, o2, ... a directory has, which are to be the first ones.
fn first_ones(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|one| one.unwrap().file_name());
    let numbers = names.filter_map(|name| name.to_str()?.strip_prefix('o')?.parse::<usize>().ok());
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    let wanted: Vec<_> = (1..=numbers.len()).collect();
    assert!(numbers == wanted, "out of order: {numbers:?}");
    numbers.len()
}

/// A program makes one file after the other without the network, and syncs each. Whoever looks at
/// the server's directory afterwards finds a file only if the earlier ones are there, too.
#[test]
fn names_that_were_made_in_an_outage_arrive_in_their_order() {
    let mut server = Server::start(Kind::Ganesha);
    fs::create_dir(server.path("dir")).unwrap();
    let options = [EXCLUSIVE, &["timeo=10", "retrans=1", "actimeo=86400"]].concat();
    let mount = Mount::new(&server, &options);
    let _log = Log(&mount);
    let sync = || {
        let mut sync = mount.larder();
        sync.arg("sync").arg(mount.path("")).stdin(Stdio::null()).stdout(Stdio::null());
        sync
    };
    // The server shows what may be done there.
    fs::write(mount.path("dir/first"), "text").unwrap();
    succeed(&mut sync());
    server.cut(true);
    for count in 1..=ORDERED {
        let mut file = fs::File::create(mount.path(&format!("dir/o{count}"))).unwrap();
        file.write_all(&content(count as u64)).unwrap();
        file.sync_all().unwrap();
    }
    assert_eq!(first_ones(&server.path("dir")), 0);
    server.cut(false);
    let (mut looks, mut between) = (0, 0);
    eventually("the server has all", || {
        let mut syncing = sync().spawn().unwrap();
        loop {
            let ended = syncing.try_wait().unwrap();
            let count = first_ones(&server.path("dir"));
            looks += 1;
            between += u32::from(count > 0 && count < ORDERED);
            if let Some(ended) = ended {
                return ended.success();
            }
        }
    });
    println!("{ORDERED} names, {looks} looks, {between} while some of them were there");
    assert!(between > 0, "nobody looked in time");
    for count in 1..=ORDERED {
        let bytes = fs::read(server.path(&format!("dir/o{count}"))).unwrap();
        assert!(bytes == content(count as u64), "o{count}: {} bytes", bytes.len());
    }
}

/// What two mounts do to the same files, of which both have all bytes cached.
fn change(mount: &Mount, number: u64) {
    // Written anew, and changed in part.
    fs::write(mount.path("dir/anew"), content(number)).unwrap();
    let mut file = fs::File::options().write(true).open(mount.path("dir/edited")).unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
    file.sync_all().unwrap();
}

/// The files of the next test, with all their bytes at the server, and at the start of each.
fn furnish(server: &Server) -> Vec<u8> {
    fs::create_dir(server.path("dir")).unwrap();
    let edited = pattern(1, CACHED_BYTES);
    for name in ["anew", "edited"] {
        fs::write(server.path("dir").join(name), &edited).unwrap();
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(server.path("dir").join(name), mode).unwrap();
    }
    edited
}

/// A mount that holds all of these files.
fn mount_with_all(server: &Server) -> Mount {
    let options = [OFFLINE, EXCLUSIVE, &["timeo=10", "retrans=1", "actimeo=1"]].concat();
    let mount = Mount::new(server, &options);
    for name in ["anew", "edited"] {
        fs::read(mount.path("dir").join(name)).unwrap();
    }
    fs::read_dir(mount.path("dir")).unwrap().for_each(drop);
    mount.landed(2 * CACHED_BYTES as u64);
    mount
}

/// Stops the server, changes the files on each mount, and waits until the server has all.
fn change_without(server: &mut Server, mounts: &[Mount; 2], kills: bool) {
    server.kill();
    let is_reachable = |mount: &Mount| mount.status()["server"]["reachable"] == true;
    for mount in mounts {
        // A call has to notice.
        let _ = fs::metadata(mount.path("unknown"));
        eventually("it is away", || !is_reachable(mount));
    }
    for (mount, number) in mounts.iter().zip([3, 4]) {
        change(mount, number);
    }
    server.restart();
    for mount in mounts {
        if kills {
            let [_, worker] = mount.pids();
            kill([worker, worker]);
            eventually("another one answers", || mount.pids()[1] != worker);
        }
        eventually("it is used again", || is_reachable(mount));
        eventually("the server has all", || {
            said(mount, &["sync", mount.path("").to_str().unwrap()]).0 == Some(0)
        });
    }
}

/// The server has both versions of each file, with the permissions that it had: the names under
/// which conflicts are kept.
fn kept_twice(server: &Server, before: &[u8]) -> Vec<String> {
    let entries = fs::read_dir(server.path("dir")).unwrap();
    let mut names: Vec<String> =
        entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let there = |name: &str| fs::read(server.path("dir").join(name)).unwrap();
    let edit = |number: u64| [&number.to_le_bytes()[..], &before[8..]].concat();
    let versions = [("anew", [content(3), content(4)]), ("edited", [edit(3), edit(4)])];
    for (wanted, mut versions) in versions {
        let of_it =
            |name: &&String| **name == wanted || name.starts_with(&format!("{wanted}.conflict-"));
        let mut found: Vec<_> = names.iter().filter(of_it).map(|name| there(name)).collect();
        found.sort();
        versions.sort();
        assert!(found == versions, "{names:?}");
        assert!(names.iter().any(|name| name == wanted), "{names:?}");
    }
    for name in &names {
        let about = fs::metadata(server.path("dir").join(name)).unwrap();
        assert_eq!(about.permissions().mode() & 0o7777, 0o640, "{name}");
    }
    names.retain(|name| name.contains(".conflict-"));
    names
}

/// The same files are changed on two mounts while their server is stopped. When it is back, it has
/// both versions of each, byte for byte: one under the name, one under the name of a conflict,
/// which both mounts list.
#[test]
fn what_two_mounts_wrote_without_the_server_is_there_twice_and_listed_on_both() {
    two_write_without_the_server(false);
}

/// The same, and the worker of each is killed as the server comes back.
#[test]
fn what_two_mounts_wrote_is_there_twice_if_their_workers_die() {
    two_write_without_the_server(true);
}

fn two_write_without_the_server(kills: bool) {
    let mut server = Server::start(Kind::Ganesha);
    let before = furnish(&server);
    let mounts = [(); 2].map(|()| mount_with_all(&server));
    let _logs = mounts.each_ref().map(Log);
    change_without(&mut server, &mounts, kills);
    let kept = kept_twice(&server, &before);
    for mount in &mounts {
        eventually("both list the same", || tree(&server.path("")) == tree(&mount.path("")));
        let (code, told) = said(mount, &["conflicts", mount.path("").to_str().unwrap()]);
        // That the emptying of a file is given up is told, too.
        let about = told.lines().filter(|line| line.contains("kept beside")).count();
        assert!(code == Some(0) && about == kept.len(), "{kills}: {told}");
        for name in &kept {
            let (wanted, _) = name.split_once(".conflict-").unwrap();
            let line = told.lines().find(|line| line.contains(&format!("/dir/{name}: ")));
            let line = line.unwrap_or_else(|| panic!("{name} is not listed: {told}"));
            assert!(line.contains(&format!("kept beside {wanted}")), "{line}");
        }
        assert_eq!(mount.status()["cache"]["set_aside"], 0);
        assert_eq!(said(mount, &["status", "--unsaved"]), (Some(0), String::new()));
    }
    println!("kills: {kills}: {kept:?}");
}
