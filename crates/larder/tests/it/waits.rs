//! The network is cut: no call takes longer than its limit, whatever it needs, and however many
//! others wait.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_NOW};
use rustix::fs::{mknodat, statvfs, utimensat};

use crate::harness::{Kind, Mount, Server, eventually, pattern};

/// Servers behind a network that can be cut.
const KINDS: [Kind; 2] = [Kind::Ganesha, Kind::Samba];
/// Callers at once.
const CALLERS: usize = 8;

/// The files of one caller, which existed before, in directories shared with the others.
struct Work {
    /// The directory of all callers.
    shared: PathBuf,
    /// His own.
    own: PathBuf,
    caller: usize,
    /// Open for writing, and written since.
    dirty: Option<File>,
    /// The same, and stays open.
    inherited: File,
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };

type Call = fn(&mut Work) -> std::io::Result<()>;

/// What programs ask of a file system, each call as one of them makes it. A share refuses some of
/// them.
const CALLS: [(&str, Call); 28] = [
    ("stat, unknown", |work| fs::metadata(work.own.join("absent")).map(drop)),
    ("stat", |work| fs::metadata(work.own.join("known")).map(drop)),
    ("read, cached", |work| fs::read(work.own.join("known")).map(drop)),
    ("read", |work| fs::read(work.own.join("unread")).map(drop)),
    ("read, large", |work| fs::read(work.own.join("large")).map(drop)),
    ("open to write", |work| OpenOptions::new().write(true).open(work.own.join("known")).map(drop)),
    ("append", |work| {
        let path = work.own.join("known");
        OpenOptions::new().append(true).open(path)?.write_all(b"more\n")
    }),
    ("write anew", |work| fs::write(work.own.join("rewritten"), pattern(3, 100_000))),
    ("create", |work| File::create(work.shared.join(format!("new-{}", work.caller))).map(drop)),
    ("create and write", |work| fs::write(work.own.join("new"), "new")),
    ("touch", |work| {
        let path = work.own.join("known");
        OpenOptions::new().create(true).append(true).open(&path)?;
        let times = Timestamps { last_access: NOW, last_modification: NOW };
        Ok(utimensat(CWD, &path, &times, AtFlags::empty())?)
    }),
    ("chmod", |work| fs::set_permissions(work.own.join("known"), Permissions::from_mode(0o600))),
    ("chown", |work| std::os::unix::fs::chown(work.own.join("known"), Some(0), None)),
    ("truncate", |work| OpenOptions::new().write(true).open(work.own.join("known"))?.set_len(3)),
    ("mkdir", |work| fs::create_dir(work.shared.join(format!("dir-{}", work.caller)))),
    ("rmdir", |work| fs::remove_dir(work.own.join("empty"))),
    ("unlink", |work| fs::remove_file(work.own.join("going"))),
    ("unlink, open", |work| {
        let _open = File::open(work.own.join("cached"))?;
        fs::remove_file(work.own.join("cached"))
    }),
    ("rename", |work| fs::rename(work.own.join("moving"), work.own.join("moved"))),
    ("rename to others", |work| {
        let to = work.shared.join(format!("moved-{}", work.caller));
        fs::rename(work.own.join("travelling"), to)
    }),
    ("link", |work| fs::hard_link(work.own.join("known"), work.own.join("link"))),
    ("symlink", |work| symlink("known", work.own.join("symlink"))),
    ("mkfifo", |work| Ok(mknodat(CWD, work.own.join("fifo"), FileType::Fifo, Mode::RUSR, 0)?)),
    ("ls", |work| fs::read_dir(&work.own)?.try_for_each(|entry| entry?.metadata().map(drop))),
    ("df", |work| Ok(statvfs(&work.shared).map(drop)?)),
    ("fsync", |work| {
        let file = work.dirty.as_ref().unwrap();
        file.write_all_at(b"synced", 0)?;
        file.sync_all()
    }),
    ("close", |work| {
        let file = work.dirty.take().unwrap();
        file.write_all_at(b"closed", 100)
    }),
    ("fork and exec", |work| {
        // Which closes the parent's file on exec.
        work.inherited.write_all_at(b"written by the parent\n", 0)?;
        Command::new("true").stdin(Stdio::null()).status().map(drop)
    }),
];

/// The duration of one call.
#[derive(Debug)]
struct Took {
    #[expect(dead_code, reason = "shown when it was too long")]
    name: &'static str,
    time: Duration,
    outcome: std::io::Result<()>,
}

impl Work {
    /// Makes the files of a caller, and has the mount list them.
    fn new(server: &Server, mount: &Mount, round: usize, caller: usize) -> Work {
        let own = format!("own-{round}-{caller}");
        let at_server = |name: &str| server.path(&own).join(name);
        fs::create_dir(server.path(&own)).unwrap();
        fs::create_dir(at_server("empty")).unwrap();
        for name in ["known", "cached", "unread", "rewritten", "going", "moving", "travelling"] {
            fs::write(at_server(name), pattern(1, 40_000)).unwrap();
        }
        fs::write(at_server("large"), pattern(2, 4 << 20)).unwrap();
        let own = mount.path(&own);
        for name in ["known", "cached"] {
            fs::read(own.join(name)).unwrap();
        }
        let dirty = Some(File::create(own.join("dirty")).unwrap());
        let inherited = File::create(own.join("inherited")).unwrap();
        Work { shared: mount.path("shared"), own, caller, dirty, inherited }
    }

    fn time(&mut self, (name, call): (&'static str, Call)) -> Took {
        let begin = Instant::now();
        let outcome = call(self);
        Took { name, time: begin.elapsed(), outcome }
    }
}

/// A server with its network, a mount of it, and the limit of the mount's calls.
struct Stand {
    server: Server,
    mount: Mount,
    round: usize,
}

impl Stand {
    /// With this limit, in tenths of a second, which is a multiple of three.
    fn new(kind: Kind, limit_ds: u32) -> Stand {
        let server = Server::start(kind);
        fs::create_dir(server.path("shared")).unwrap();
        let timeout = format!("timeo={}", limit_ds / 3);
        let mut options = vec![&*timeout, "actimeo=0"];
        options.extend((kind == Kind::Ganesha).then_some("retrans=2"));
        let mount = Mount::new(&server, &options);
        Stand { server, mount, round: 0 }
    }

    /// Cuts the network, has this many concurrent callers make these calls, one after another, and
    /// restores it. Returns how long the calls took, and how long it took after that until the
    /// server was used again.
    fn cut(
        &mut self,
        callers: usize,
        calls: impl Fn(usize) -> Vec<usize> + Sync,
    ) -> (Vec<Took>, Duration) {
        self.round += 1;
        let mut work: Vec<_> = (0..callers)
            .map(|caller| Work::new(&self.server, &self.mount, self.round, caller))
            .collect();
        self.server.cut(true);
        let (calls, begin) = (&calls, &Barrier::new(callers));
        let took = std::thread::scope(|scope| {
            let callers: Vec<_> = work
                .iter_mut()
                .map(|work| {
                    scope.spawn(move || {
                        begin.wait();
                        let calls = calls(work.caller).into_iter();
                        calls.map(|number| work.time(CALLS[number])).collect::<Vec<_>>()
                    })
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        self.server.cut(false);
        let mended = Instant::now();
        let probe = self.mount.path(&format!("shared/probe-{}", self.round));
        eventually("the server is used again", || fs::write(&probe, "back").is_ok());
        (took, mended.elapsed())
    }
}

/// Concurrent callers make every call one after another, each in an order of its own. The first
/// call waits for the limit, and no later call waits for a server that is known to be away. Without
/// that, they took a multiple of the limit.
#[test]
fn no_call_outlasts_its_limit_while_the_network_is_cut() {
    for kind in KINDS {
        let limit = Duration::from_secs(3);
        let mut stand = Stand::new(kind, 30);
        let all = |caller: usize| {
            let first = caller * CALLS.len() / CALLERS;
            (0..CALLS.len()).map(|at| (first + at) % CALLS.len()).collect()
        };
        let (took, _) = stand.cut(CALLERS, all);
        // Far from two limits, for a machine that stands still for a moment.
        let late: Vec<_> = took.iter().filter(|one| one.time > limit * 5 / 3).collect();
        assert!(late.is_empty(), "{kind:?}: {late:#?}");
        let waited = took.iter().filter(|one| one.time > limit / 2).count();
        assert!(waited > 0, "{kind:?}: the network was not cut");
        let waits = took.iter().filter(|one| one.time > limit * 2 / 3).count();
        assert!(waits < 4 * CALLERS, "{kind:?}: each waits anew: {took:#?}");
        let timed_out =
            |one: &Took| one.outcome.as_ref().is_err_and(|it| it.kind() == ErrorKind::TimedOut);
        assert!(took.iter().any(timed_out), "{kind:?}: {took:#?}");
        let written = stand.server.path("own-1-0").join("dirty");
        let sent = || fs::read(&written).is_ok_and(|it| it.starts_with(b"synced"));
        eventually("what was written is sent", sent);
    }
}

/// Each call alone, as the first after the cut, and by eight callers at once, with a limit of 6 s:
/// `LARDER_WAITS=full` runs it, in a quarter of an hour, and prints how long each took; a part of a
/// call's name runs that call only.
#[test]
fn each_call_ends_within_its_limit_when_the_network_is_cut() {
    let Ok(wanted) = std::env::var("LARDER_WAITS") else { return };
    let is_wanted = |name: &str| wanted == "full" || name.contains(&wanted);
    for kind in KINDS {
        let mut stand = Stand::new(kind, 60);
        let mut worst = Duration::ZERO;
        for (number, (name, _)) in CALLS.iter().enumerate().filter(|(_, (name, _))| is_wanted(name))
        {
            for callers in [1, CALLERS] {
                let (took, back) = stand.cut(callers, |_| vec![number]);
                let longest = took.iter().map(|one| one.time).max().unwrap();
                let outcome = &took[0].outcome;
                println!(
                    "{kind:?} {name:20} x{callers}: {longest:6.2?}, back {back:6.2?}, {outcome:?}"
                );
                worst = worst.max(longest);
            }
        }
        println!("{kind:?} worst: {worst:.2?}");
        assert!(worst <= Duration::from_secs(7), "{kind:?}: {worst:?}");
    }
}
