//! Two clients of a volume: what one of them made is there for the other, and what is lost is made
//! again for both, once.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use super::{Lossy, MADE, attribute, larder_in, project, said, told};
use crate::harness::{Mount, succeed};
use crate::server::Server;

/// Holds a mount namespace. It has a copy of every mount, and an unmount outside would wait for
/// that of ours.
const HOLD: &str = "umount --all --lazy --no-canonicalize --types fuse.larder 2>/dev/null; \
    echo ready; exec cat";

/// A client of a volume at the path where another mount has it: in a mount namespace, with a cache
/// and a runtime directory of its own, as on another machine.
struct Elsewhere {
    holder: Child,
    mount: Mount,
}

impl Elsewhere {
    /// Mounts the volume at the path of `at`.
    fn new(server: &Server, at: &Mount) -> Elsewhere {
        let mut mount = Mount::unmounted(server, &["user_xattr", "hard"]);
        mount.set_mountpoint(at.path("").to_str().unwrap().trim_end_matches('/'));
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--propagation", "private", "sh", "-c", HOLD]);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let elsewhere = Elsewhere { holder, mount };
        succeed(&mut elsewhere.inside(&elsewhere.mount.command()));
        elsewhere
    }

    /// This command, to be run in the namespace: a process that enters one is in its root directory
    /// then.
    fn inside(&self, command: &Command) -> Command {
        let process = self.holder.id().to_string();
        let mut inside = Command::new("nsenter");
        inside.args(["--mount", "--target", &process, "sh", "-c", "cd \"$0\" && exec \"$@\""]);
        inside.arg(command.get_current_dir().unwrap_or(Path::new("/")));
        inside.arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }

    /// A tool that must succeed there; what it says.
    fn run(&self, tool: &str, path: &Path) -> Vec<u8> {
        succeed(&mut self.inside(Command::new(tool).arg(path))).stdout
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let mut umount = self.mount.larder();
        umount.arg("umount").arg(self.mount.path(""));
        drop(self.inside(&umount).output());
        // The namespace ends with its last process.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        // Outside, another mount is at that path, and stays.
        self.mount.set_mountpoint("mnt");
    }
}

/// Runs `larder run --shared`. Returns whether it put in place what was made before.
fn was_made_before(mut command: Command) -> bool {
    said(&succeed(&mut command)).contains("larder: made before, 1 file(s)")
}

/// Gives the one entry of a rule in the lists of works a later time than all others have.
fn list_as_newest(mount: &Mount, rule: &str) {
    let entries = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let works: Vec<_> = entries(&mount.path(".larder/works")).collect();
    let listed: Vec<_> = works.iter().flat_map(|work| entries(work)).collect();
    let is_of_rule =
        |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(rule);
    let of_rule: Vec<_> = listed.iter().filter(is_of_rule).collect();
    assert!(listed.len() == 2 && of_rule.len() == 1, "{listed:?}");
    let listed = fs::File::options().write(true).open(of_rule[0]).unwrap();
    listed.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
}

/// What one client made, another one puts in place, while both have the volume mounted; a command
/// whose results always differ shows that it did not run. If the kept copy is gone, it runs once:
/// its new results are put in place after that, whichever of the two rules is tried first.
#[test]
fn what_one_client_made_is_put_in_place_on_another() {
    const SCRIPT: &str = "cat source /proc/sys/kernel/random/uuid > tool; chmod 750 tool";
    let lossy = Lossy::new();
    let mount = lossy.mount();
    let elsewhere = Elsewhere::new(&lossy.server, &mount);
    let dir = mount.path("project");
    let tool = dir.join("tool");
    let shared = ["run", "--shared", "--", "sh", "-c", SCRIPT];
    let run = |mount: &Mount| larder_in(mount, &dir, &shared);
    let is_there = |client: &Elsewhere| was_made_before(client.inside(&run(&client.mount)));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("source"), "one").unwrap();
    assert!(!was_made_before(run(&mount)));
    let (first, seen) = (fs::read(&tool).unwrap(), fs::metadata(&tool).unwrap());
    assert!(first.starts_with(b"one"));
    assert!(elsewhere.run("cat", &tool) == first);

    elsewhere.run("rm", &tool);
    assert!(is_there(&elsewhere));
    assert!(elsewhere.run("cat", &tool) == first && fs::read(&tool).unwrap() == first);
    let now = fs::metadata(&tool).unwrap();
    assert_ne!(now.ino(), seen.ino(), "it is another file");
    assert_eq!(now.mode() & 0o7777, 0o750);
    let rule_of_first = attribute(&tool)[..64].to_owned();

    let kept = fs::read_dir(mount.path(".larder/outputs")).unwrap();
    let kept: Vec<_> = kept.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    fs::remove_file(&kept[0]).unwrap();
    fs::remove_file(&tool).unwrap();
    assert!(!is_there(&elsewhere));
    let second = elsewhere.run("cat", &tool);
    assert!(second.starts_with(b"one") && second != first);
    assert!(fs::read(&tool).unwrap() == second);

    fs::remove_file(&tool).unwrap();
    assert!(was_made_before(run(&mount)), "the newer rule's copy is there");
    assert!(fs::read(&tool).unwrap() == second);
    list_as_newest(&mount, &rule_of_first);
    fs::remove_file(&tool).unwrap();
    assert!(was_made_before(run(&mount)), "the rule that is tried first has lost its copy");
    assert!(fs::read(&tool).unwrap() == second);
}

/// make(1) only looks at what it made before, so a second run finds lost files up to date, also
/// while they are made again. The first reader on any mount has all of them made by one run, byte
/// by byte as they were.
#[test]
fn what_is_lost_between_two_makes_is_made_once_by_who_reads_it_first() {
    let mut lossy = Lossy::new();
    let mut mount = lossy.mount_with(&["rebuild"]);
    let mut other = lossy.mount_with(&["rebuild"]);
    let dir = project(&mount);
    let counted = lossy.rules.path().join("count");
    let count = format!("COUNT={}", counted.display());
    let make = |mount: &Mount| {
        let args = ["run", "--", "make", &count];
        let output = succeed(&mut larder_in(mount, &mount.path("project"), &args));
        String::from_utf8(output.stdout).unwrap()
    };
    let read = |mount: &Mount| MADE.map(|name| fs::read(mount.path("project").join(name)).unwrap());
    let file = |name: &str| fs::metadata(dir.join(name)).unwrap();
    make(&mount);
    let (bytes, made) = (read(&mount), MADE.map(file));

    lossy.lose(&mut mount);
    other.remount();
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| read(&other));
        let here = scope.spawn(|| (make(&mount), read(&mount)));
        (here.join().unwrap(), there.join().unwrap())
    });
    assert!(here.0.contains("is up to date"), "{}", here.0);
    assert!(here.1 == bytes && there == bytes);
    let runs = || [&mount, &other].map(|mount| told(mount, "made")).iter().sum::<u64>();
    assert_eq!(runs(), 1, "one run made all");
    for (name, was) in MADE.into_iter().zip(&made) {
        let now = file(name);
        assert_eq!((now.mtime(), now.mtime_nsec()), (was.mtime(), was.mtime_nsec()), "{name}");
    }
    for mount in [&mount, &other] {
        assert!(make(mount).contains("is up to date"));
    }
    assert_eq!(runs(), 1);
    // The recipes ran in the first make, and then where nobody outside sees it.
    assert_eq!(fs::read_to_string(&counted).unwrap().lines().count(), 2);
}
