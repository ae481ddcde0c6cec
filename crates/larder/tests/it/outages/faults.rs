//! Rounds of mixed work in which the network is cut, the worker, the supervisor, both, or the
//! server is killed, or two of these one after the other, while names are on their way to the
//! server. Then the network is mended and the server started again.
//!
//! Each [`Actor`] works in a directory of its own, and knows which of its operations were
//! acknowledged. What an operation without an answer was about stays as that operation left it:
//! there the server may have either state. Of everything else it has what was acknowledged, and
//! nothing more. `LARDER_ROUNDS=1000` makes more rounds, `LARDER_SEED=N` those of an earlier run.
//!
//! Left out: a crash of the machine, after which only what was synced counts. The other tests of
//! outages have it, and the crash images of the cache and of the names.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::process::Child;
use std::time::SystemTime;

use super::*;
use crate::rounds::Random;

/// Rounds unless asked otherwise.
const ROUNDS: u64 = 3;
/// Threads, each with a directory of its own.
const ACTORS: u64 = 2;
/// Names that each directory may have, besides those of which nothing is certain.
const NAMES: u64 = 10;
/// The longest line of a file, in bytes.
const LINE_BYTES_MAX: u64 = 9_000;

/// What happens in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Cut,
    Kill(Killed),
}

const FAULTS: [Fault; 5] = [
    Fault::Cut,
    Fault::Kill(Killed::Worker),
    Fault::Kill(Killed::Supervisor),
    Fault::Kill(Killed::Daemon),
    Fault::Kill(Killed::Server),
];

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Dir,
    /// By its place in [`Actor::files`].
    File(usize),
}

/// How many lines a file has: those that were acknowledged, and one more while that is not known.
#[derive(Clone, Copy, Debug)]
struct Lines {
    sure: u64,
    tried: u64,
}

/// Names, and what each leads to.
type Names = Vec<(String, Option<Object>)>;

/// What the server has under a name.
struct Found {
    ino: u64,
    /// `None` for a directory.
    bytes: Option<Vec<u8>>,
}

/// What the server has wrong.
enum Wrong {
    /// It was acknowledged, and is not there.
    Lost(String),
    /// It is there, and nobody has asked for it.
    Invented(String),
}

/// A thread that changes what is below a directory, and what it was told of that.
struct Actor<'a> {
    work: &'a Work,
    mount: &'a Mount,
    random: Random,
    /// Tells its bytes from those of the other ones.
    number: u64,
    /// Its calls go to a server that is killed. What that was asked for comes again, and in NFSv3
    /// it cannot know that what it finds then is the work of the first request: that is no answer.
    comes_again: bool,
    /// Its directory's path below the mountpoint.
    top: String,
    names: BTreeMap<String, Object>,
    files: Vec<Lines>,
    /// The names of operations without an answer, before these and after them.
    doubts: Vec<[Names; 2]>,
    /// All of those names. Nothing is done to them any more.
    unsure: BTreeSet<String>,
    acknowledged: u64,
    /// What was done, for the message of a failure.
    history: Vec<String>,
}

impl Actor<'_> {
    /// Does things until the work ends.
    fn work(mut self) -> Self {
        while self.work.goes_on() {
            // Each call would fail.
            eventually("it is mounted", || !self.work.is_mounting.load(Ordering::SeqCst));
            self.step();
        }
        self
    }

    fn step(&mut self) {
        let path = self.draw();
        if self.unsure.contains(&path) {
            return;
        }
        match self.names.get(&path).copied() {
            None => self.make(path),
            Some(Object::Dir) => self.remove_dir(path),
            Some(Object::File(id)) => match self.random.below(8) {
                0..=2 => self.append(&path, id),
                3 | 4 => self.rename(path, id),
                5 => self.link(path, id),
                _ => {
                    let at = self.mount.path(&path);
                    self.change(vec![(path, None)], || fs::remove_file(at));
                }
            },
        }
    }

    /// A path that may have an object.
    fn draw(&mut self) -> String {
        let is_dir =
            |(path, object): (&String, &Object)| (*object == Object::Dir).then(|| path.clone());
        let mut dirs: Vec<_> = self.names.iter().filter_map(is_dir).collect();
        dirs.push(self.top.clone());
        let dir = &dirs[self.random.below(dirs.len() as u64) as usize];
        // However many may not be touched any more, there is always something to do.
        let names = NAMES + self.unsure.len() as u64;
        format!("{dir}/n{}", self.random.below(names))
    }

    /// Another path, to which a file may be renamed.
    fn target(&mut self, id: usize) -> Option<String> {
        let to = self.draw();
        let is_taken = match self.names.get(&to) {
            None => false,
            // rename(2) of a file to another name of it does nothing.
            Some(Object::File(other)) => *other == id,
            Some(Object::Dir) => true,
        };
        (!is_taken && !self.unsure.contains(&to)).then_some(to)
    }

    fn make(&mut self, path: String) {
        let at = self.mount.path(&path);
        let is_in_top = path.rsplit_once('/').is_some_and(|(dir, _)| dir == self.top);
        if is_in_top && self.random.below(4) == 0 {
            self.change(vec![(path, Some(Object::Dir))], || fs::create_dir(at));
            return;
        }
        let id = self.files.len();
        self.files.push(Lines { sure: 0, tried: 1 });
        let (line, syncs) = (self.line(id, 0), self.random.below(2) == 0);
        let is_made = self.change(vec![(path, Some(Object::File(id)))], || {
            let mut file = fs::File::create_new(at)?;
            file.write_all(&line)?;
            if syncs { file.sync_all() } else { Ok(()) }
        });
        self.files[id].sure += u64::from(is_made);
    }

    fn remove_dir(&mut self, path: String) {
        let below = format!("{path}/");
        let has = |name: Option<&String>| name.is_some_and(|name| name.starts_with(&below));
        let is_empty = !has(self.names.range(below.clone()..).next().map(|(name, _)| name))
            && !has(self.unsure.range(below.clone()..).next());
        if is_empty {
            let at = self.mount.path(&path);
            self.change(vec![(path, None)], || fs::remove_dir(at));
        }
    }

    fn append(&mut self, path: &str, id: usize) {
        let Lines { sure, tried } = self.files[id];
        if sure < tried {
            return;
        }
        self.files[id].tried += 1;
        let (line, syncs) = (self.line(id, sure), self.random.below(2) == 0);
        let at = self.mount.path(path);
        let what = format!("append {id} to {path}");
        let is_there = self.is_acknowledged(what, || {
            let mut file = fs::File::options().append(true).open(at)?;
            file.write_all(&line)?;
            if syncs { file.sync_all() } else { Ok(()) }
        });
        self.files[id].sure += u64::from(is_there);
    }

    fn rename(&mut self, path: String, id: usize) {
        let Some(to) = self.target(id) else { return };
        let [from_path, to_path] = [&path, &to].map(|name| self.mount.path(name));
        let after = vec![(path, None), (to, Some(Object::File(id)))];
        self.change(after, || fs::rename(from_path, to_path));
    }

    fn link(&mut self, path: String, id: usize) {
        let to = self.draw();
        if self.unsure.contains(&to) || self.names.contains_key(&to) {
            return;
        }
        let [from_path, to_path] = [&path, &to].map(|name| self.mount.path(name));
        self.change(vec![(to, Some(Object::File(id)))], || fs::hard_link(from_path, to_path));
    }

    /// Does something that leaves these names so.
    fn change(&mut self, after: Names, call: impl FnOnce() -> io::Result<()>) -> bool {
        let held =
            |(path, _): &(String, Option<Object>)| (path.clone(), self.names.get(path).copied());
        let before: Names = after.iter().map(held).collect();
        let is_done = self.is_acknowledged(format!("{before:?} -> {after:?}"), call);
        for (path, object) in &after {
            self.names.remove(path);
            if let (true, Some(object)) = (is_done, object) {
                self.names.insert(path.clone(), *object);
            }
        }
        if !is_done {
            self.unsure.extend(after.iter().map(|(path, _)| path.clone()));
            self.doubts.push([before, after]);
        }
        is_done
    }

    /// What close(2) says of a file is lost, so nothing counts during which the daemon was killed.
    fn is_acknowledged(&mut self, what: String, call: impl FnOnce() -> io::Result<()>) -> bool {
        let begun = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let mounts = self.work.mounts.load(Ordering::SeqCst);
        let comes_again = self.comes_again;
        let call = || {
            call().map_err(|error| match error.kind() {
                ErrorKind::NotFound | ErrorKind::AlreadyExists if comes_again => {
                    ErrorKind::TimedOut.into()
                }
                _ => error,
            })
        };
        let is_done = self.work.does(call)
            && !self.work.is_mounting.load(Ordering::SeqCst)
            && self.work.mounts.load(Ordering::SeqCst) == mounts;
        self.history.push(format!("{begun:?}: {what}: acknowledged: {is_done}"));
        if is_done {
            self.acknowledged += 1;
            self.work.edits.fetch_add(1, Ordering::Relaxed);
        }
        is_done
    }

    fn line(&self, id: usize, number: u64) -> Vec<u8> {
        let id = id as u64;
        let bytes = 1 + (id * 31 + number * 977) % LINE_BYTES_MAX;
        pattern((self.number << 40) | (id << 20) | number, usize::try_from(bytes).unwrap())
    }

    fn lines(&self, id: usize, count: u64) -> Vec<u8> {
        (0..count).flat_map(|number| self.line(id, number)).collect()
    }

    /// Whether a name leads to what it is to lead to.
    fn compare(
        &self,
        path: &str,
        found: Option<&Found>,
        object: Option<Object>,
    ) -> Result<(), Wrong> {
        let lost = |what: &str| Err(Wrong::Lost(format!("{path}: {object:?}: {what}")));
        let invented = |what: &str| Err(Wrong::Invented(format!("{path}: {object:?}: {what}")));
        let (found, object) = match (found, object) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return lost("nothing is there"),
            (Some(_), None) => return invented("something is there"),
            (Some(found), Some(object)) => (found, object),
        };
        match (&found.bytes, object) {
            (None, Object::Dir) => Ok(()),
            (None, Object::File(_)) | (Some(_), Object::Dir) => lost("it is of another kind"),
            (Some(bytes), Object::File(id)) => {
                let Lines { sure, tried } = self.files[id];
                let (count, sure, tried) =
                    (bytes.len(), self.lines(id, sure), self.lines(id, tried));
                if !bytes.starts_with(&sure) {
                    return lost(&format!("{count} bytes, {} acknowledged", sure.len()));
                }
                if !tried.starts_with(bytes) {
                    return invented(&format!("{count} bytes, {} written", tried.len()));
                }
                Ok(())
            }
        }
    }

    /// What the server has wrong of all this.
    fn check(&self, server: &Server) -> Vec<Wrong> {
        let found = found_below(server, &self.top);
        let is_right = |path: &str, object| self.compare(path, found.get(path), object);
        let sure = self.names.iter().map(|(path, object)| is_right(path, Some(*object)));
        let mut wrong: Vec<_> = sure.filter_map(Result::err).collect();
        for states in &self.doubts {
            let of = |names: &Names| -> Vec<_> {
                let all = names.iter().map(|(path, object)| is_right(path, *object));
                all.filter_map(Result::err).collect()
            };
            let [before, after] = states.each_ref().map(of);
            if !before.is_empty() {
                wrong.extend(after);
            }
        }
        let nobodys = found
            .keys()
            .filter(|path| !self.names.contains_key(*path) && !self.unsure.contains(*path));
        wrong.extend(nobodys.map(|path| Wrong::Invented(path.clone())));
        // The names of a file lead to one file.
        let mut inodes: BTreeMap<usize, u64> = BTreeMap::new();
        for (path, object) in &self.names {
            if let (Object::File(id), Some(found)) = (object, found.get(path)) {
                let first = *inodes.entry(*id).or_insert(found.ino);
                if first != found.ino {
                    wrong.push(Wrong::Lost(format!("{path} is no link any more")));
                }
            }
        }
        if !wrong.is_empty() {
            println!("what was done in {}:\n  {}", self.top, self.history.join("\n  "));
        }
        wrong
    }
}

/// All that the server has below a directory, by the path in the export.
fn found_below(server: &Server, top: &str) -> BTreeMap<String, Found> {
    let (mut all, mut left) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(server.path(&dir)).into_iter().flatten() {
            let entry = entry.unwrap();
            let path = format!("{dir}/{}", entry.file_name().to_str().unwrap());
            // What is hidden may go at any time.
            let Ok(about) = entry.metadata() else { continue };
            let bytes = match about.is_dir() {
                true => None,
                false => fs::read(entry.path()).ok(),
            };
            if about.is_dir() {
                left.push(path.clone());
            }
            all.insert(path, Found { ino: about.ino(), bytes });
        }
    }
    all
}

/// One fault, or two different ones.
fn draw_faults(random: &mut Random) -> Vec<Fault> {
    let mut draw = || FAULTS[random.below(FAULTS.len() as u64) as usize];
    let (first, second) = (draw(), draw());
    if first == second { vec![first] } else { vec![first, second] }
}

/// Begins to send all that waits, so that what happens next happens in the middle of that.
fn begin_sync(mount: &Mount) -> Child {
    let mut sync = mount.larder();
    sync.arg("sync").arg(mount.path(""));
    sync.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Faults happen to the work of these actors, and are over in the end.
fn suffer<'a>(
    actors: Vec<Actor<'a>>,
    faults: &[Fault],
    (work, mount, server): (&'a Work, &'a Mount, &mut Server),
) -> Vec<Actor<'a>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            actors.into_iter().map(|actor| scope.spawn(move || actor.work())).collect();
        let stops = work.until_dropped();
        work.edits_again(mount, server);
        let mut syncing = begin_sync(mount);
        for fault in faults {
            match fault {
                Fault::Cut => server.cut(true),
                Fault::Kill(killed) => work.kill(*killed, mount, server),
            }
            work.edits_again(mount, server);
        }
        if faults.contains(&Fault::Cut) {
            server.cut(false);
        }
        if faults.contains(&Fault::Kill(Killed::Server)) {
            server.restart();
        }
        let is_reachable = || mount.status()["server"]["reachable"] == true;
        eventually_or("it is used again", is_reachable, || scene::told(work, mount, server));
        work.edits_again(mount, server);
        drop(stops);
        eventually("a sync ends", || syncing.try_wait().unwrap().is_some());
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// One round in a directory of its own. Returns how many operations were acknowledged.
fn a_round(
    number: u64,
    is_exclusive: bool,
    random: &mut Random,
    (mount, server): (&Mount, &mut Server),
) -> u64 {
    let work = Work::default();
    let round = format!("r{number}");
    fs::create_dir(mount.path(&round)).unwrap();
    let faults = draw_faults(random);
    println!("round {number}: {faults:?}");
    let comes_again = !is_exclusive && faults.contains(&Fault::Kill(Killed::Server));
    let mut begin = |actor: u64| {
        let top = format!("{round}/a{actor}");
        fs::create_dir(mount.path(&top)).unwrap();
        Actor {
            work: &work,
            mount,
            random: Random(random.below(u64::MAX)),
            number: number * ACTORS + actor,
            comes_again,
            top,
            names: BTreeMap::new(),
            files: Vec::new(),
            doubts: Vec::new(),
            unsure: BTreeSet::new(),
            acknowledged: 0,
            history: Vec::new(),
        }
    };
    let actors: Vec<_> = (0..ACTORS).map(&mut begin).collect();
    let actors = suffer(actors, &faults, (&work, mount, server));
    let longest = Duration::from_millis(work.longest_ms.load(Ordering::Relaxed).into());
    assert!(longest < LIMIT, "{longest:?}");
    eventually("the server has all", || {
        let (code, told) = said(mount, &["sync", mount.path("").to_str().unwrap()]);
        println!("sync: {}", told.trim_end());
        code == Some(0)
    });
    assert_eq!(said(mount, &["status", "--unsaved"]), (Some(0), String::new()));
    // The kernel tells of a close later than the process goes on.
    let is_hidden = |path: String| path.contains("/.");
    let is_held = || found_below(server, &round).into_keys().any(is_hidden);
    eventually("no removed file is held", || !is_held());
    let acknowledged: u64 = actors.iter().map(|actor| actor.acknowledged).sum();
    let doubts: usize = actors.iter().map(|actor| actor.doubts.len()).sum();
    let wrong: Vec<_> = actors.iter().flat_map(|actor| actor.check(server)).collect();
    let lost = wrong.iter().filter(|wrong| matches!(wrong, Wrong::Lost(_))).count();
    for one in &wrong {
        match one {
            Wrong::Lost(what) => println!("lost: {what}"),
            Wrong::Invented(what) => println!("invented: {what}"),
        }
    }
    println!(
        "round {number}: {faults:?}: {acknowledged} operations acknowledged, {doubts} without an \
         answer, {lost} lost, {} invented, the longest call took {longest:?}",
        wrong.len() - lost
    );
    assert!(wrong.is_empty(), "the server has something else than was acknowledged");
    let conflicts = mount.status()["conflicts"].clone();
    assert!(conflicts.is_null(), "nobody else has changed anything: {conflicts}");
    acknowledged
}

fn rounds(options: &[&str], rounds: u64) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = number("LARDER_SEED").unwrap_or(u64::from(since.subsec_nanos()));
    let rounds = number("LARDER_ROUNDS").unwrap_or(rounds);
    println!("{options:?}: LARDER_SEED={seed} LARDER_ROUNDS={rounds}");
    let mut server = Server::start(Kind::Ganesha);
    let options = [options, &["bg", "timeo=10", "retrans=1", "actimeo=86400"]].concat();
    let mount = Mount::new(&server, &options);
    let _log = Log(&mount);
    fs::read_dir(mount.path("")).unwrap().for_each(drop);
    let mut random = Random(seed);
    let is_exclusive = options.contains(&"exclusive");
    let once = |round| a_round(round, is_exclusive, &mut random, (&mount, &mut server));
    let counts = (0..rounds).map(once);
    let acknowledged: u64 = counts.sum();
    let tops = fs::read_dir(server.path("")).unwrap().count() as u64;
    assert_eq!(tops, rounds, "something else is there");
    println!(
        "{options:?}: {rounds} rounds: {acknowledged} operations acknowledged, 0 lost, 0 invented"
    );
}

#[test]
fn what_was_acknowledged_is_there_and_nothing_else_whatever_is_cut_or_killed() {
    rounds(EXCLUSIVE, ROUNDS);
}

/// In a class that waits for the server while that is there.
#[test]
fn what_an_offline_mount_acknowledged_is_there_and_nothing_else_whatever_is_cut_or_killed() {
    rounds(OFFLINE, 1);
}

/// Directories that were made just before the server fell silent are known to the process that
/// follows a killed one: names can be made in them, others are known to be free, and files read.
#[test]
fn what_is_known_outlives_the_processes_of_a_mount_whose_server_is_away() {
    let mut server = Server::start(Kind::Ganesha);
    let mount = Mount::new(&server, &["offline", "bg", "timeo=10", "retrans=1"]);
    let _log = Log(&mount);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/old"), "old").unwrap();
    server.cut(true);
    eventually("it goes on", || fs::write(mount.path("dir/new"), "new").is_ok());
    kill(mount.pids());
    run("umount", &["-l", mount.path("").to_str().unwrap()]);
    succeed(&mut mount.command());
    fs::write(mount.path("dir/newer"), "newer").unwrap();
    let all = ["new", "newer", "old"];
    for name in all {
        assert_eq!(fs::read_to_string(mount.path(&format!("dir/{name}"))).unwrap(), name);
    }
    server.cut(false);
    eventually("the server has all", || {
        said(&mount, &["sync", mount.path("").to_str().unwrap()]).0 == Some(0)
    });
    assert_eq!(tree(&server.path("dir")).len(), all.len());
    for name in all {
        assert_eq!(fs::read_to_string(server.path(&format!("dir/{name}"))).unwrap(), name);
    }
}
