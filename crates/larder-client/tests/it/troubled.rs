//! One call to the server goes wrong, each one in turn: it is refused, or carried out and not
//! answered. What was acknowledged to a caller is done, what was reported as late is done later,
//! nothing else changes, and what is shown afterwards is what the server has.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{
    Error, FileSystem, Ino, Lookup, MemRemote, New, OpenFlags, Remote, RemoteLimits, Removal,
    RenameFlags, Result, SetAttr, Stability, Trouble,
};

use crate::rig::{PATIENCE, Rig, WRITE, root};

/// More calls than any work makes.
const CALLS_MAX: u64 = 200;

const TROUBLES: [Trouble; 6] = [
    Trouble::Unanswered,
    Trouble::Refused(Error::TimedOut),
    Trouble::Refused(Error::Stale),
    Trouble::Refused(Error::Io),
    Trouble::Refused(Error::AccessDenied),
    Trouble::Refused(Error::NoSpace),
];

const OLD: &[u8] = b"old content";
const NEW: &[u8] = b"NEW";
const MIXED: &[u8] = b"NEW content";
/// Longer than one request.
const LONG: &[u8] = b"LONG AS OLD";
const REQUEST_BYTES: u32 = 4;

/// What a name stands for; `None`: there is no such name.
type Content = Option<&'static [u8]>;
/// What names may stand for at the server in the end.
type Allowed = Vec<(&'static str, Vec<Content>)>;

/// Work on names that no other work touches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Make,
    Change,
    Append,
    Synced,
    Long,
    Rewrite,
    Cut,
    Rename,
    Replace,
    Remove,
    Link,
    Directory,
    RemoveOpen,
    ReplaceOpen,
    RemoveTree,
}

const WORKS: [Work; 15] = [
    Work::Make,
    Work::Change,
    Work::Append,
    Work::Synced,
    Work::Long,
    Work::Rewrite,
    Work::Cut,
    Work::Rename,
    Work::Replace,
    Work::Remove,
    Work::Link,
    Work::Directory,
    Work::RemoveOpen,
    Work::ReplaceOpen,
    Work::RemoveTree,
];

fn name(name: &str) -> (Ino, &OsStr) {
    (Ino::ROOT, OsStr::new(name))
}

/// Finds a file as a caller does, which may get an error.
async fn look(rig: &Rig, name: &str) -> Result<Ino> {
    match rig.client.lookup(&root(), Ino::ROOT, OsStr::new(name)).wait().await? {
        Lookup::Found(entry) => Ok(entry.ino),
        Lookup::Absent { .. } => Err(Error::NotFound),
    }
}

/// What the server may have of a file with content `before` that a caller wrote and closed.
fn sent(closed: Result<()>, before: &'static [u8], after: &'static [u8]) -> Vec<Content> {
    match closed {
        // Late data is sent.
        Ok(()) | Err(Error::TimedOut) => vec![Some(after)],
        Err(_) => vec![Some(before), Some(after)],
    }
}

/// Opens `old`, writes and closes it.
async fn write(rig: &Rig, data: &[u8], flags: OpenFlags, stability: Stability) -> Allowed {
    let after = match data {
        LONG => LONG,
        _ if flags.append => b"old contentNEW",
        _ => MIXED,
    };
    let Ok(ino) = look(rig, "old").await else { return vec![("old", vec![Some(OLD)])] };
    let Ok(opened) = rig.client.open(&root(), ino, flags).wait().await else {
        return vec![("old", vec![Some(OLD)])];
    };
    let (id, at) = (opened.id, if flags.append { OLD.len() as u64 } else { 0 });
    let written = rig.client.write(&root(), ino, Some(id), at, data, stability).wait().await;
    let flushed = rig.client.flush(&root(), ino, id, None).wait().await;
    rig.client.release(ino, id).wait().await.unwrap();
    let told = written.map(drop).and(flushed);
    vec![("old", sent(told, OLD, after))]
}

/// Makes `new`, writes and closes it.
async fn make(rig: &Rig) -> Allowed {
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let exclusive = OpenFlags { exclusive: true, ..WRITE };
    let (dir, at) = name("new");
    let made = rig.client.create(&root(), dir, at, set, exclusive).wait().await;
    let Ok((entry, opened)) = made else { return vec![("new", vec![None, Some(b"")])] };
    let open = rig.again((entry.ino, opened.id));
    open.write(0, NEW).await.unwrap();
    vec![("new", sent(open.close().await, b"", NEW))]
}

/// Cuts `old` by its open, writes and closes it.
async fn rewrite(rig: &Rig) -> Allowed {
    let Ok(ino) = look(rig, "old").await else { return vec![("old", vec![Some(OLD)])] };
    let flags = OpenFlags { truncate: true, ..WRITE };
    let Ok(opened) = rig.client.open(&root(), ino, flags).wait().await else {
        return vec![("old", vec![Some(OLD), Some(b"")])];
    };
    let open = rig.again((ino, opened.id));
    open.write(0, NEW).await.unwrap();
    vec![("old", sent(open.close().await, b"", NEW))]
}

async fn cut(rig: &Rig) -> Allowed {
    let Ok(ino) = look(rig, "old").await else { return vec![("old", vec![Some(OLD)])] };
    let set = SetAttr { size: Some(3), ..SetAttr::default() };
    match rig.client.setattr(&root(), ino, None, set).wait().await {
        Ok((fresh, _)) => {
            assert_eq!(fresh.attr.size, 3);
            vec![("old", vec![Some(&OLD[..3])])]
        }
        Err(_) => vec![("old", vec![Some(OLD), Some(&OLD[..3])])],
    }
}

/// Moves `old` to a new directory and removes both there while the file is open.
async fn remove_tree(rig: &Rig) -> Allowed {
    let (client, cred, (dir, at)) = (&rig.client, root(), name("dir"));
    let Ok(ino) = look(rig, "old").await else { return vec![] };
    let Ok(opened) = client.open(&cred, ino, WRITE).wait().await else { return vec![] };
    let open = rig.again((ino, opened.id));
    let both = |removed| vec![("old", vec![None, Some(OLD)]), ("dir", removed)];
    let allowed = async {
        let made = client.make(&cred, dir, at, New::Directory, SetAttr::default()).wait().await;
        let Ok(made) = made else { return both(vec![None, Some(b"/" as &[u8])]) };
        let file = (made.ino, OsStr::new("file"));
        let moved = client.rename(&cred, name("old"), file, RenameFlags::default()).wait().await;
        if moved.is_err() {
            return both(vec![Some(b"/")]);
        }
        let removed = client.remove(&cred, file.0, file.1, Removal::File).wait().await;
        let all = client.remove(&cred, dir, at, Removal::Directory).wait().await;
        match (removed, all) {
            (_, Ok(())) => both(vec![None]),
            (_, Err(Error::TimedOut)) => both(vec![None, Some(b"/")]),
            // It is not empty, or its removal was refused.
            _ => both(vec![Some(b"/")]),
        }
    };
    let allowed = allowed.await;
    let was_to_come = rig.server.is_trouble_to_come();
    let read = open.read(0, 100).await;
    let is_troubled = was_to_come && !rig.server.is_trouble_to_come();
    assert!(is_troubled || read.as_deref() == Ok(OLD), "{read:?}");
    let _ = client.release(open.ino, open.id).wait().await;
    allowed
}

/// Hidden names at the server, where any work makes some.
async fn hidden(rig: &Rig) -> Vec<String> {
    let mut names = rig.names().await;
    if let Some(dir) = rig.find("dir").await {
        names.extend(rig.names_in(dir).await);
    }
    names.retain(|name| name.starts_with(".nfs"));
    names
}

impl Work {
    /// Does the work, and returns what it may result in.
    async fn done(self, rig: &Rig) -> Allowed {
        let unstable = Stability::Unstable;
        match self {
            Work::Make => make(rig).await,
            Work::Change => write(rig, NEW, WRITE, unstable).await,
            Work::Append => write(rig, NEW, OpenFlags { append: true, ..WRITE }, unstable).await,
            Work::Synced => write(rig, LONG, WRITE, Stability::FileSync).await,
            Work::Long => write(rig, LONG, WRITE, unstable).await,
            Work::Rewrite => rewrite(rig).await,
            Work::Cut => cut(rig).await,
            Work::RemoveOpen | Work::ReplaceOpen => self.on_open(rig).await,
            Work::RemoveTree => remove_tree(rig).await,
            _ => self.on_names(rig).await,
        }
    }

    async fn on_names(self, rig: &Rig) -> Allowed {
        let (client, flags, set) = (&rig.client, RenameFlags::default(), SetAttr::default());
        let ((dir, old), cred) = (name("old"), root());
        let told = match self {
            Work::Rename => client.rename(&cred, (dir, old), name("to"), flags).wait().await,
            Work::Replace => client.rename(&cred, name("small"), (dir, old), flags).wait().await,
            Work::Remove => client.remove(&cred, dir, old, Removal::File).wait().await,
            Work::Link => {
                let Ok(ino) = look(rig, "old").await else { return vec![] };
                let linked = client.link(&cred, ino, dir, OsStr::new("second")).wait().await;
                linked.map(|entry| assert_eq!((entry.ino, entry.fresh.attr.nlink), (ino, 2)))
            }
            _ => {
                let made = client.make(&cred, dir, OsStr::new("dir"), New::Directory, set);
                made.wait().await.map(drop)
            }
        };
        // (name, before, after)
        let changes: &[(&str, Content, Content)] = match self {
            Work::Rename => &[("old", Some(OLD), None), ("to", None, Some(OLD))],
            Work::Replace => &[("small", Some(NEW), None), ("old", Some(OLD), Some(NEW))],
            Work::Remove => &[("old", Some(OLD), None)],
            Work::Link => &[("second", None, Some(OLD))],
            _ => &[("dir", None, Some(b"/"))],
        };
        let allowed = |before, after| if told.is_ok() { vec![after] } else { vec![before, after] };
        changes.iter().map(|(name, before, after)| (*name, allowed(*before, *after))).collect()
    }

    /// `old` loses its name while it is open.
    async fn on_open(self, rig: &Rig) -> Allowed {
        let (client, flags) = (&rig.client, RenameFlags::default());
        let Ok(ino) = look(rig, "old").await else { return vec![] };
        let Ok(opened) = client.open(&root(), ino, WRITE).wait().await else { return vec![] };
        let open = rig.again((ino, opened.id));
        let (dir, at) = name("old");
        let told = match self {
            Work::RemoveOpen => client.remove(&root(), dir, at, Removal::File).wait().await,
            _ => client.rename(&root(), name("small"), (dir, at), flags).wait().await,
        };
        // Whatever became of its name.
        let was_to_come = rig.server.is_trouble_to_come();
        let read = open.read(0, 100).await;
        let is_troubled = was_to_come && !rig.server.is_trouble_to_come();
        assert!(is_troubled || read.as_deref() == Ok(OLD), "{told:?}: {read:?}");
        let flushed = open.flush().await;
        assert!(flushed.is_ok(), "nothing was written: {flushed:?}");
        let _ = client.release(open.ino, open.id).wait().await;
        let is_late = told == Err(Error::TimedOut);
        match (self, told) {
            (Work::RemoveOpen, Ok(())) => vec![("old", vec![None])],
            (Work::RemoveOpen, Err(_)) => vec![("old", vec![None, Some(OLD)])],
            (_, Ok(())) => vec![("small", vec![None]), ("old", vec![Some(NEW)])],
            (_, Err(_)) => {
                let mut old = vec![Some(OLD), Some(NEW)];
                // It was hidden, and it is unknown whether it was replaced.
                old.extend(is_late.then_some(None));
                vec![("small", vec![None, Some(NEW)]), ("old", old)]
            }
        }
    }
}

/// What a fresh client finds: names with contents, or `/`.
async fn tree(rig: &Rig) -> BTreeMap<String, (Vec<u8>, u64, u32, u32)> {
    let mut tree = BTreeMap::new();
    let names = rig.names().await;
    // A hidden name whose removal went wrong may stay.
    for name in names.into_iter().filter(|name| !name.starts_with(".nfs")) {
        let attr = rig.stat(&name).await.attr;
        let content = match attr.kind {
            larder_vfs::Kind::Directory => b"/".to_vec(),
            _ => rig.cat(&name).await,
        };
        tree.insert(name, (content, attr.fileid, attr.mode, attr.nlink));
    }
    tree
}

/// Whom the client talks to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// One as of NFSv3.
    Plain,
    /// One that gives leases.
    Leasing,
    /// One that knows opens.
    Opening,
    /// One that reaches files by their names only.
    Naming,
}

/// A fresh server with `old` and `small`, and a client that has read one of them.
async fn rig(kind: Kind) -> Rig {
    let (opens, by_name) = (kind == Kind::Opening, kind == Kind::Naming);
    let limits = RemoteLimits { opens, by_name, ..MemRemote::new().limits() };
    let options =
        Options { fill_after: None, write_bytes_max: REQUEST_BYTES, ..Options::default() };
    let rig = Rig::of_server(MemRemote::with_limits(limits), options).await;
    if kind == Kind::Leasing {
        rig.server.give_leases();
    }
    let other = rig.foreigner().await;
    other.put("old", OLD).await;
    other.put("small", NEW).await;
    rig.cat("small").await;
    rig.advance(7);
    rig
}

/// Returns whether the work made that many calls.
async fn run(kind: Kind, work: Work, calls: u64, trouble: Trouble) -> bool {
    let rig = rig(kind).await;
    rig.server.trouble_after(calls, trouble);
    let allowed = work.done(&rig).await;
    let has_come = !rig.server.is_trouble_to_come();
    rig.server.trouble_after(u64::MAX, trouble);
    tokio::time::timeout(PATIENCE, rig.sent()).await.unwrap();
    let other = rig.foreigner().await;
    for name in ["old", "new", "to", "second", "dir", "small"] {
        let seen = rig.find(name).await.is_some();
        assert_eq!(seen, other.find(name).await.is_some(), "{name} is shown at once");
    }
    rig.advance(60);
    let there = tree(&other).await;
    assert_eq!(tree(&rig).await, there);
    if trouble == Trouble::Unanswered {
        assert_eq!(hidden(&other).await, [""; 0], "nobody has it open any more");
    }
    for (name, contents) in &allowed {
        let content = there.get(*name).map(|(content, ..)| &content[..]);
        assert!(contents.contains(&content), "{name}: {content:?}");
    }
    if work == Work::Rename {
        let copies = there.values().filter(|(content, ..)| content == OLD).count();
        assert_eq!(copies, 1, "{there:?}");
    }
    has_come
}

async fn every_call(kind: Kind, works: &[Work], troubles: &[Trouble]) {
    for work in works {
        for trouble in troubles {
            let mut calls = 0;
            while calls < CALLS_MAX {
                println!("{kind:?}, {work:?}, {trouble:?} after {calls} calls");
                if !run(kind, *work, calls, *trouble).await {
                    break;
                }
                calls += 1;
            }
            assert!((1..CALLS_MAX).contains(&calls), "{work:?} asks nobody");
        }
    }
}

#[tokio::test]
async fn a_call_that_goes_wrong_spoils_no_bytes() {
    every_call(Kind::Plain, &WORKS[..7], &TROUBLES).await;
}

#[tokio::test]
async fn a_call_that_goes_wrong_spoils_no_names() {
    every_call(Kind::Plain, &WORKS[7..], &TROUBLES).await;
}

#[tokio::test]
async fn a_call_that_goes_wrong_spoils_nothing_under_leases() {
    every_call(Kind::Leasing, &WORKS, &TROUBLES[..3]).await;
}

#[tokio::test]
async fn a_call_that_goes_wrong_spoils_nothing_where_the_server_knows_opens() {
    every_call(Kind::Opening, &WORKS, &TROUBLES[..3]).await;
}

#[tokio::test]
async fn a_call_that_goes_wrong_spoils_nothing_where_files_have_names_only() {
    every_call(Kind::Naming, &WORKS, &TROUBLES[..3]).await;
}
