//! Another client changes a leased file, whatever is in progress with it here: each change in each
//! state is seen at once, by name and through descriptors, and loses no byte that was written here.

use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{Error, FileSystem, Ino, SetAttr};

use crate::rig::{Open, READ, Rig, WRITE, root};

const OLD: &[u8] = b"0123456789";
const OURS: &[u8] = b"ours456789";

/// What is in progress here.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Cached,
    OpenForReading,
    OpenForWriting,
    Unsent,
    /// Written and closed.
    Sent,
}

/// What the other client does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Write,
    Cut,
    Extend,
    SetMode,
    Link,
    Rename,
    Remove,
    Replace,
}

const STATES: [State; 5] =
    [State::Cached, State::OpenForReading, State::OpenForWriting, State::Unsent, State::Sent];

const DEEDS: [Deed; 8] = [
    Deed::Write,
    Deed::Cut,
    Deed::Extend,
    Deed::SetMode,
    Deed::Link,
    Deed::Rename,
    Deed::Remove,
    Deed::Replace,
];

impl State {
    async fn begin(self, rig: &Rig) -> Option<Open<'_>> {
        match self {
            State::Cached => {
                rig.cat("file").await;
                rig.landed("file").await;
                None
            }
            State::OpenForReading => {
                let open = rig.open(&root(), "file", READ).await.unwrap();
                assert_eq!(open.read(0, 4).await.unwrap(), &OLD[..4]);
                Some(open)
            }
            State::OpenForWriting => Some(rig.open(&root(), "file", WRITE).await.unwrap()),
            State::Unsent | State::Sent => {
                let open = rig.open(&root(), "file", WRITE).await.unwrap();
                open.write(0, b"ours").await.unwrap();
                if self == State::Unsent {
                    return Some(open);
                }
                open.close().await.unwrap();
                None
            }
        }
    }

    /// What the file contains when the other client changes it.
    fn content(self) -> &'static [u8] {
        if matches!(self, State::Unsent | State::Sent) { OURS } else { OLD }
    }
}

impl Deed {
    async fn be_done(self, other: &Rig) {
        let set = SetAttr::default();
        match self {
            Deed::Write => {
                let open = other.open(&root(), "file", WRITE).await.unwrap();
                open.write(2, b"THEIRS").await.unwrap();
                open.close().await.unwrap();
            }
            Deed::Cut => other.set("file", SetAttr { size: Some(3), ..set }).await,
            Deed::Extend => other.set("file", SetAttr { size: Some(12), ..set }).await,
            Deed::SetMode => other.set("file", SetAttr { mode: Some(0o604), ..set }).await,
            Deed::Link => {
                let ino = other.find("file").await.unwrap();
                let linked = other.client.link(&root(), ino, Ino::ROOT, OsStr::new("second"));
                linked.wait().await.unwrap();
            }
            Deed::Rename => other.rename("file", "second").await.unwrap(),
            Deed::Remove => other.remove("file").await.unwrap(),
            Deed::Replace => other.rename("new", "file").await.unwrap(),
        }
    }

    /// What the change makes of `content`, if the file still exists.
    fn of(self, content: &[u8]) -> Option<Vec<u8>> {
        let mut content = content.to_vec();
        match self {
            Deed::Write => content[2..8].copy_from_slice(b"THEIRS"),
            Deed::Cut => content.truncate(3),
            Deed::Extend => content.resize(12, 0),
            Deed::SetMode | Deed::Link | Deed::Rename => {}
            Deed::Remove | Deed::Replace => return None,
        }
        Some(content)
    }
}

/// Both clients see the same, and what it should be.
async fn check(rig: &Rig, other: &Rig, state: State, deed: Deed) {
    let case = format!("{state:?}, {deed:?}");
    assert_eq!(rig.names().await, other.names().await, "{case}");
    for name in ["file", "second", "new"] {
        assert_eq!(rig.find(name).await.is_some(), other.find(name).await.is_some(), "{case}");
    }
    for name in other.names().await {
        let (seen, there) = (rig.stat(&name).await.attr, other.stat(&name).await.attr);
        let of =
            |attr: larder_vfs::Attr| (attr.fileid, attr.size, attr.mode, attr.nlink, attr.mtime);
        assert_eq!(of(seen), of(there), "{case}: {name}");
        assert_eq!(rig.cat(&name).await, other.cat(&name).await, "{case}: {name}");
    }
    let name = if deed == Deed::Rename { "second" } else { "file" };
    match deed {
        Deed::Remove => assert!(other.find("file").await.is_none()),
        Deed::Replace => assert_eq!(other.cat("file").await, b"new"),
        _ => assert_eq!(Some(other.cat(name).await), deed.of(state.content()), "{case}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_another_client_does_is_seen_at_once_in_every_state() {
    for state in STATES {
        for deed in DEEDS {
            println!("{state:?}, {deed:?}");
            let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
            rig.server.give_leases();
            let other = rig.foreigner().await;
            other.put("file", OLD).await;
            other.put("new", b"new").await;
            rig.names().await;
            let open = state.begin(&rig).await;
            deed.be_done(&other).await;
            check(&rig, &other, state, deed).await;
            let Some(open) = open else { continue };
            let read = open.read(0, 100).await;
            match deed.of(state.content()) {
                // A sequential reader is told that the file continues in another version.
                Some(content) => assert!(
                    read.as_ref() == Ok(&content) || read == Err(Error::Changed),
                    "{state:?}, {deed:?}: {read:?}"
                ),
                // The server no longer has this file; what is cached of it may be read.
                None => assert!(
                    read.as_deref() == Ok(state.content()) || read == Err(Error::Stale),
                    "{state:?}, {deed:?}: {read:?}"
                ),
            }
            let _ = open.close().await;
            check(&rig, &other, state, deed).await;
        }
    }
}
