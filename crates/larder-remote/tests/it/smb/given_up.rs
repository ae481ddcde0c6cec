//! Calls that their callers give up, as they do at their deadlines: nothing of them stays behind.

use super::proxy::behind_a_proxy;
use super::setup::{Setup, eventually};
use bytes::Bytes;
use larder_remote::smb::{MountOptions, Smb};
use larder_testkit::SambaOptions;
use larder_vfs::{
    Access, Deadline, Error, Handle, Intent, New, Remote, Removal, SetAttr, Stability,
};
use std::ffi::OsStr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Longest wait for what should be at once.
const SOON: Duration = Duration::from_secs(60);

/// How often a call may end before it has waited as often as it must.
const EARLY_MAX: u32 = 20;

/// A directory with a file, an empty directory, and a file that the call does not touch.
struct Place {
    dir: Handle,
    file: Handle,
    sub: Handle,
    calm: Handle,
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;
type Begin = for<'a> fn(&'a Setup, &'a Place) -> Call<'a>;

/// Drops the answer of a call of [`Remote`].
macro_rules! call {
    (|$setup:ident, $at:ident| $call:expr) => {{
        fn begin<'a>($setup: &'a Setup, $at: &'a Place) -> Call<'a> {
            Box::pin(async move { $call.await.map(drop) })
        }
        begin as Begin
    }};
}

fn name(name: &'static str) -> &'static OsStr {
    OsStr::new(name)
}

/// Every kind of call that opens something at the server.
fn calls() -> Vec<(&'static str, Begin)> {
    vec![
        ("getattr", call!(|on, at| on.smb.getattr(&on.cred, &at.file))),
        ("setattr", {
            call!(|on, at| {
                let cut = SetAttr { size: Some(2), ..SetAttr::default() };
                on.smb.setattr(&on.cred, &at.file, cut, None)
            })
        }),
        ("access", call!(|on, at| on.smb.access(&on.cred, &at.file, Access::READ))),
        ("access of a directory", call!(|on, at| on.smb.access(&on.cred, &at.dir, Access::READ))),
        ("open", call!(|on, at| on.smb.open(&on.cred, &at.file, Intent::READ))),
        ("lookup", call!(|on, at| on.smb.lookup(&on.cred, &at.dir, name("file")))),
        ("read", call!(|on, at| on.smb.read(&on.cred, &at.file, None, 0, 100))),
        ("write", {
            const DATA: Bytes = Bytes::from_static(b"written");
            call!(|on, at| on.smb.write(&on.cred, &at.file, None, 0, DATA, Stability::FileSync))
        }),
        ("commit", call!(|on, at| on.smb.commit(&on.cred, &at.file, None, 0..0))),
        ("make", {
            call!(|on, at| {
                on.smb.make(&on.cred, &at.dir, name("new"), New::File, SetAttr::default())
            })
        }),
        ("mkdir", {
            call!(|on, at| {
                on.smb.make(&on.cred, &at.dir, name("new"), New::Directory, SetAttr::default())
            })
        }),
        ("remove", {
            call!(|on, at| on.smb.remove(&on.cred, &at.dir, name("file"), Removal::File))
        }),
        ("rmdir", {
            call!(|on, at| on.smb.remove(&on.cred, &at.dir, name("sub"), Removal::Directory))
        }),
        ("rename", {
            call!(|on, at| {
                on.smb.rename(&on.cred, (&at.dir, name("file")), (&at.sub, name("moved")))
            })
        }),
        ("rename of a directory", {
            call!(|on, at| {
                on.smb.rename(&on.cred, (&at.dir, name("sub")), (&at.dir, name("moved")))
            })
        }),
        ("link", call!(|on, at| on.smb.link(&on.cred, &at.file, &at.dir, name("new")))),
        ("readdir", {
            call!(|on, at| on.smb.readdir(&on.cred, &at.dir, Default::default(), 4096))
        }),
    ]
}

/// Lets a call go on until it has waited so many times, and gives it up. Returns whether it has
/// ended by then.
pub(super) async fn give_up_after(mut waits: u32, mut call: Call<'_>) -> bool {
    std::future::poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending if waits == 0 => Poll::Ready(false),
        Poll::Pending => {
            waits -= 1;
            Poll::Pending
        }
    })
    .await
}

/// The wait at which a call is given up.
pub(super) struct Point {
    /// The number of the waits before it.
    pub(super) waits: u32,
    waits_min: u32,
    early: u32,
}

impl Point {
    /// The first one of a call that waits at least so often.
    pub(super) fn first(waits_min: u32) -> Point {
        Point { waits: 0, waits_min, early: 0 }
    }

    /// The next one; `None` if the call has no more. If the thread was interrupted between a
    /// request and the first look for its answer, the answer is there and the call does not wait.
    /// A call that ended too early for that reason is made once more.
    pub(super) fn next(self, has_ended: bool) -> Option<Point> {
        match has_ended {
            false => Some(Point { waits: self.waits + 1, ..self }),
            true if self.waits >= self.waits_min => None,
            true => {
                assert!(self.early < EARLY_MAX, "it waits {} times at most", self.waits);
                Some(Point { early: self.early + 1, ..self })
            }
        }
    }
}

/// Requests that are not answered yet.
pub(super) fn in_flight(smb: &Smb) -> u64 {
    smb.stats().connections.iter().map(|one| one.in_flight).sum()
}

impl Setup {
    async fn place(&self, path: &str) -> Place {
        let dir = self.make(path, New::Directory).await.unwrap();
        let make = async |name: &str, new| {
            let name = OsStr::new(name);
            self.smb.make(&self.cred, &dir, name, new, SetAttr::default()).await.unwrap()
        };
        let file = make("file", New::File).await.found.handle;
        let calm = make("calm", New::File).await.found.handle;
        let sub = make("sub", New::Directory).await.found.handle;
        for file in [&file, &calm] {
            self.write(file, 0, b"content", Stability::FileSync).await.unwrap();
        }
        Place { dir, file, sub, calm }
    }

    /// The calls that follow on one that was given up work, and at the server nothing is open.
    async fn is_as_before(&self, place: &Place, path: &str) {
        let (cred, root, moved) = (&self.cred, &self.root, format!("moved from {path}"));
        assert_eq!(self.read(&place.calm, 0, 100).await, "content");
        // The server refuses this while a file below is open, and the mount has it wait for calls
        // that are under way below.
        let (from, to) = ((root, path.as_ref()), (root, moved.as_ref()));
        self.smb.rename(cred, from, to).await.unwrap();
        // What is open at the server keeps a name of it.
        let on_disk = self.dir.path().join(&moved);
        let sub = |name: &str| on_disk.join(name).exists().then_some(name.to_owned());
        for (dir, names) in [("sub", ["file", "moved"]), ("moved", ["file", "moved"])] {
            let Some(dir) = sub(dir) else { continue };
            let found = self.smb.lookup(cred, &place.dir, dir.as_ref()).await.unwrap().found;
            let handle = found.unwrap().handle;
            for name in names.iter().filter(|name| on_disk.join(&dir).join(name).exists()) {
                self.smb.remove(cred, &handle, name.as_ref(), Removal::File).await.unwrap();
            }
            let name = OsStr::new(&dir);
            self.smb.remove(cred, &place.dir, name, Removal::Directory).await.unwrap();
        }
        for name in ["file", "calm", "new"].iter().filter_map(|name| sub(name)) {
            let what = match on_disk.join(&name).is_dir() {
                true => Removal::Directory,
                false => Removal::File,
            };
            self.smb.remove(cred, &place.dir, name.as_ref(), what).await.unwrap();
        }
        let is_empty = || std::fs::read_dir(&on_disk).unwrap().next().is_none();
        eventually("all names are gone", is_empty).await;
        self.smb.remove(cred, root, moved.as_ref(), Removal::Directory).await.unwrap();
        self.comes_to(&[]).await;
        eventually("all is answered", || in_flight(&self.smb) == 0).await;
    }

    fn reconnects(&self) -> u64 {
        self.smb.stats().connections.iter().map(|one| one.reconnects).sum()
    }
}

/// Each kind of call is given up at each point at which it waits. (whether files have leases, how
/// many connections there are)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_given_up_leaves_nothing_behind() {
    for (leases, connections) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let change = |options: &mut MountOptions| {
            (options.leases, options.connections) = (leases, connections);
        };
        let setup = Setup::new(|_| (), change).await;
        for (kind, begin) in calls() {
            let mut next = Some(Point::first(1));
            while let Some(point) = next {
                let path = format!("{kind} {}", point.waits);
                let place = setup.place(&path).await;
                let has_ended = give_up_after(point.waits, begin(&setup, &place)).await;
                println!("{path}, leases: {leases}, {connections} connections");
                let after = tokio::time::timeout(SOON, setup.is_as_before(&place, &path)).await;
                assert!(after.is_ok(), "what follows hangs");
                next = point.next(has_ended);
            }
        }
        assert_eq!(setup.reconnects(), 0);
    }
}

/// The server answers no call before its caller's deadline, and carries it out later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ends_at_its_callers_deadline_leaves_nothing_behind() {
    for leases in [false, true] {
        let mut setup = Setup::new(|_| (), |options| options.leases = leases).await;
        let patient = setup.cred.clone();
        for (kind, begin) in calls() {
            println!("{kind}, leases: {leases}");
            let place = setup.place(kind).await;
            setup.server.freeze().unwrap();
            let limit = Duration::from_millis(100);
            setup.cred.deadline = Some(Deadline::new(Instant::now(), limit));
            let ended = tokio::time::timeout(SOON, begin(&setup, &place)).await;
            assert_eq!(ended, Ok(Err(Error::TimedOut)));
            setup.cred = patient.clone();
            setup.server.thaw().unwrap();
            let after = tokio::time::timeout(SOON, setup.is_as_before(&place, kind)).await;
            assert!(after.is_ok(), "what follows hangs");
        }
        assert_eq!(setup.reconnects(), 0, "the limit of the mount was not over");
    }
}

/// What was given up is still under way on a slow connection when a directory above it is renamed
/// over another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_renamed_although_a_call_below_was_given_up() {
    let change = |options: &mut MountOptions| (options.leases, options.connections) = (false, 3);
    let strict = |samba: &mut SambaOptions| samba.share_lines = "strict rename = yes";
    let (setup, proxy) = behind_a_proxy(strict, change).await;
    let keeps_open = |kind| ["setattr", "access", "open", "write", "make", "link"].contains(&kind);
    for (kind, begin) in calls().into_iter().filter(|(kind, _)| keeps_open(*kind)) {
        for slow in 1..=3 {
            let path = format!("{kind}, {slow}");
            println!("{path}");
            let place = setup.place(&path).await;
            proxy.slow.store(slow, Ordering::SeqCst);
            give_up_after(0, begin(&setup, &place)).await;
            setup.is_as_before(&place, &path).await;
            proxy.slow.store(0, Ordering::SeqCst);
        }
    }
}
