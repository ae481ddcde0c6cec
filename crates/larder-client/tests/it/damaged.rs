//! A record of an earlier process is damaged, or of an unknown format: it counts as missing.
//! Nothing wrong is shown, unsent bytes are sent or set aside, and the mount works.

use larder_cache::{Cache, FileNo};
use larder_client::{Options, Start};
use larder_vfs::{Error, FileSystem, Ino, New, SetAttr};

use crate::rig::{PATIENCE, Rig, WRITE, pattern, root};

#[derive(Clone, Copy, Debug)]
enum Damage {
    Empty,
    Cut,
    Longer,
    Zeros,
    OtherFormat,
}

const DAMAGES: [Damage; 5] =
    [Damage::Empty, Damage::Cut, Damage::Longer, Damage::Zeros, Damage::OtherFormat];

impl Damage {
    fn of(self, mut record: Vec<u8>) -> Vec<u8> {
        match self {
            Damage::Empty => record.clear(),
            Damage::Cut => record.truncate(record.len() - 1),
            Damage::Longer => record.push(0),
            Damage::Zeros => record[1..].fill(0),
            Damage::OtherFormat => record[0] = 0xf0,
        }
        record
    }
}

/// Which records are damaged. Answers how many there were.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Nodes,
    Names,
    Listings,
    Opens,
    Unfinished,
    Run,
}

const KINDS: [Kind; 6] =
    [Kind::Nodes, Kind::Names, Kind::Listings, Kind::Opens, Kind::Unfinished, Kind::Run];

const NAMES: [&str; 5] = ["dir", "link", "open", "read", "removed"];

impl Kind {
    fn damage(self, cache: &Cache, damage: Damage) -> usize {
        let numbers = || (1..100).map(FileNo);
        let mut count = 0;
        let mut damaged = |record: Vec<u8>| {
            count += 1;
            damage.of(record)
        };
        match self {
            Kind::Nodes => {
                for (no, record) in numbers().filter_map(|no| Some((no, cache.node(no)?))) {
                    cache.put_node(no, &damaged(record));
                }
            }
            Kind::Names => {
                for name in NAMES.map(str::as_bytes) {
                    if let Some(record) = cache.name(FileNo::ROOT, name) {
                        cache.put_name(FileNo::ROOT, name, &damaged(record));
                    }
                }
            }
            Kind::Listings => {
                for (no, record) in numbers().filter_map(|no| Some((no, cache.listing(no, 0)?))) {
                    cache.put_listing(no, 0, &damaged(record));
                }
            }
            Kind::Opens | Kind::Unfinished | Kind::Run => {
                let tag = match self {
                    Kind::Opens => b'o',
                    Kind::Unfinished => b'n',
                    _ => b'r',
                };
                let records = cache.session_records().into_iter();
                for (key, record) in records.filter(|(key, _)| key[0] == tag) {
                    cache.put_session(&key, &damaged(record));
                }
            }
        }
        count
    }
}

const SENT: &[u8] = b"bytes that the server has";
const UNSENT: &[u8] = b"BYTES that the server has";

/// A mount with files in many states, whose process dies after its records were damaged.
async fn damaged(
    kind: Kind,
    damage: Damage,
    start: Start,
) -> (Rig, [(Ino, larder_vfs::OpenId); 2]) {
    let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let make = |name: &'static str, new| {
        rig.client.make(&root(), Ino::ROOT, name.as_ref(), new, set).wait()
    };
    let dir = make("dir", New::Directory).await.unwrap().ino;
    make("link", New::Symlink("read".into())).await.unwrap();
    rig.create_in(dir, "inner").await.close().await.unwrap();
    rig.put("read", &pattern(1, 50_000)).await;
    rig.put("open", SENT).await;
    rig.put("removed", b"removed").await;
    rig.names().await;
    rig.client.opendir(&root(), dir).wait().await.unwrap();
    rig.client.readdir(&root(), dir, 0, 4096, true).wait().await.unwrap();
    let open = rig.open(&root(), "open", WRITE).await.unwrap();
    open.write(0, &UNSENT[..5]).await.unwrap();
    let removed = rig.open(&root(), "removed", WRITE).await.unwrap();
    rig.remove("removed").await.unwrap();
    let opens = [open.names(), removed.names()];
    rig.names().await;
    assert!(kind.damage(rig.cache(), damage) > 0, "{kind:?}: there are none");
    (rig.kill(start).await, opens)
}

/// A fresh client sees everything that it should.
async fn check(rig: &Rig, case: &str) {
    let other = rig.foreigner().await;
    let names = rig.names().await;
    assert_eq!(names, other.names().await, "{case}");
    for name in names {
        let (seen, there) = (rig.stat(&name).await.attr, other.stat(&name).await.attr);
        assert_eq!((seen.kind, seen.fileid, seen.size), (there.kind, there.fileid, there.size));
        if seen.kind == larder_vfs::Kind::File {
            assert!(rig.cat(&name).await == other.cat(&name).await, "{case}: {name}");
        }
    }
    let link = rig.find("link").await.unwrap();
    assert_eq!(rig.client.readlink(&root(), link).wait().await.unwrap(), "read", "{case}");
    assert!(rig.find("dir/inner").await.is_some(), "{case}");
    assert!(rig.find("dir/absent").await.is_none(), "{case}");
}

/// They are at the server, or where people find them.
async fn unsent_is_somewhere(rig: &Rig, case: &str) {
    let at_server = rig.foreigner().await.cat("open").await;
    let is_aside = || rig.set_aside().iter().any(|(_, kept)| kept.starts_with(&UNSENT[..5]));
    assert!(at_server == UNSENT || (at_server == SENT && is_aside()), "{case}: {at_server:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_cost_the_next_mount_no_byte() {
    for kind in KINDS {
        for damage in DAMAGES {
            let case = format!("{kind:?}, {damage:?}");
            println!("{case}");
            let (rig, _) = damaged(kind, damage, Start::NewMount).await;
            tokio::time::timeout(PATIENCE, rig.sent()).await.expect(&case);
            unsent_is_somewhere(&rig, &case).await;
            rig.advance(60);
            check(&rig, &case).await;
            rig.put("open", b"goes on").await;
            assert_eq!(rig.foreigner().await.cat("open").await, b"goes on", "{case}");
        }
    }
}

/// An open file that is not known any more answers ESTALE, and one that is known has its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_cost_the_next_worker_no_byte() {
    for kind in KINDS {
        for damage in DAMAGES {
            let case = format!("{kind:?}, {damage:?}");
            println!("{case}");
            let (rig, opens) = damaged(kind, damage, Start::Resume).await;
            for (names, content) in opens.into_iter().zip([UNSENT, &b"removed"[..]]) {
                let open = rig.again(names);
                match open.read(0, 100).await {
                    Ok(bytes) => assert_eq!(bytes, content, "{case}"),
                    Err(error) => assert_eq!(error, Error::Stale, "{case}"),
                }
                let flushed = open.flush().await;
                assert!(matches!(flushed, Ok(()) | Err(Error::Stale)), "{case}: {flushed:?}");
                rig.client.release(open.ino, open.id).wait().await.unwrap();
            }
            tokio::time::timeout(PATIENCE, rig.sent()).await.expect(&case);
            unsent_is_somewhere(&rig, &case).await;
            rig.advance(60);
            check(&rig, &case).await;
        }
    }
}
