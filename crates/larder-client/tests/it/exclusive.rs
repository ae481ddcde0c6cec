//! A mount that is the only writer of names, over crashes of its machine: names and data together.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use larder_class::{Level, Sources, load};
use larder_client::{Due, Here, Options, Start, offer};
use larder_io::Image;
use larder_vfs::{
    Error, FileSystem, Ino, Kind, Lookup, MemRemote, New, OpenFlags, Remote, Result, SetAttr,
    SetTime, Time,
};

use crate::kept::generated;
use crate::rig::{Rig, WRITE, pattern, root};

/// What each name stands for.
type Files = BTreeMap<String, Seen>;

/// A file, as programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    mode: u32,
    /// The modification time, in seconds, if it is one that was given.
    given: Option<i64>,
}

/// Times that are set are this old: older than those of the clock, and of the local disk of these
/// tests, which counts from 1970 on.
const GIVEN: std::ops::Range<i64> = -600..-500;

fn given(sec: i64) -> Option<i64> {
    Some(sec).filter(|sec| GIVEN.contains(sec))
}

fn set_time(sec: i64) -> SetAttr {
    SetAttr { mtime: Some(SetTime::To(Time { sec, nsec: 0 })), ..SetAttr::default() }
}

/// The files after each step, and how long the disk's log was then. After a close they are kept.
struct Moment {
    logged: usize,
    is_kept: bool,
    files: Files,
}

const NAMES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "n5"];

/// What a mount shows under these names while its server does not answer.
async fn found(rig: &Rig) -> Files {
    let mut files = Files::new();
    for name in NAMES {
        let answer = rig.client.lookup(&root(), Ino::ROOT, OsStr::new(name)).wait().await;
        if let Ok(Lookup::Found(_)) = answer {
            let attr = rig.stat(name).await.attr;
            let bytes = rig.cat(name).await;
            let seen = Seen { bytes, mode: attr.mode, given: given(attr.mtime.sec) };
            files.insert(name.to_owned(), seen);
        }
    }
    files
}

/// Makes, renames and removes files; closes each with its bytes, after some of them got a mode and
/// a time; sets mode and time of closed ones.
async fn history(rig: &Rig) -> Vec<Moment> {
    let (mut files, mut moments) = (Files::new(), Vec::new());
    for step in 0..24_u64 {
        let (from, to) = (NAMES[(step * 5 % 6) as usize], NAMES[((step * 7 + 1) % 6) as usize]);
        match step % 3 {
            0 | 1 if !files.contains_key(from) => {
                let open = rig.create(from).await;
                let mut seen = Seen { bytes: Vec::new(), mode: 0o644, given: None };
                files.insert(from.to_owned(), seen.clone());
                let (logged, files_then) = (rig.disk.logged(), files.clone());
                moments.push(Moment { logged, is_kept: false, files: files_then });
                seen.bytes = pattern(step, 3_000 * (step as usize + 1));
                open.write(0, &seen.bytes).await.unwrap();
                if step % 2 == 0 {
                    // As tar does. The bytes are not kept yet.
                    let (time, mode) = (GIVEN.start + step as i64, 0o600);
                    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                    rig.set(from, set_time(time)).await;
                    let empty = Seen { bytes: Vec::new(), mode: 0o644, given: Some(time) };
                    files.insert(from.to_owned(), empty.clone());
                    let (logged, then) = (rig.disk.logged(), files.clone());
                    moments.push(Moment { logged, is_kept: false, files: then });
                    rig.set(from, set).await;
                    files.insert(from.to_owned(), Seen { mode, ..empty });
                    let (logged, then) = (rig.disk.logged(), files.clone());
                    moments.push(Moment { logged, is_kept: false, files: then });
                    (seen.mode, seen.given) = (mode, Some(time));
                }
                open.close().await.unwrap();
                files.insert(from.to_owned(), seen);
                let (logged, files) = (rig.disk.logged(), files.clone());
                moments.push(Moment { logged, is_kept: true, files });
                continue;
            }
            2 if files.contains_key(from) && from != to => {
                rig.rename(from, to).await.unwrap();
                let seen = files.remove(from).unwrap();
                files.insert(to.to_owned(), seen);
            }
            0 | 1 if step > 9 => {
                // As cp -p does.
                let time = GIVEN.start + 30 + step as i64;
                rig.set(from, SetAttr { mode: Some(0o640), ..set_time(time) }).await;
                let seen = files.get_mut(from).unwrap();
                (seen.mode, seen.given) = (0o640, Some(time));
            }
            _ if files.contains_key(to) => {
                rig.remove(to).await.unwrap();
                files.remove(to);
            }
            _ => continue,
        }
        let (logged, files) = (rig.disk.logged(), files.clone());
        moments.push(Moment { logged, is_kept: false, files });
    }
    moments
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_machine_crashes_closed_files_have_their_names_and_bytes() {
    let rig = Rig::exclusive(generated()).await;
    // The server reveals whether it squashes root.
    rig.put("first", b"").await;
    rig.checkpoint();
    let (begin, calls) = (rig.disk.logged(), rig.server.calls("make"));
    let mut moments = vec![Moment { logged: begin, is_kept: true, files: Files::new() }];
    moments.extend(history(&rig).await);
    assert_eq!(rig.server.calls("make"), calls, "all of it is made here");
    let mut images = 0;
    for point in rig.disk.crash_points().filter(|point| point.logged() >= begin) {
        let at = point.logged();
        let first = moments.iter().rposition(|moment| moment.is_kept && moment.logged <= at);
        let last = moments.iter().position(|moment| moment.logged > at);
        let range = first.unwrap()..=last.unwrap_or(moments.len() - 1);
        for image in [Image::Synced, Image::Torn(at as u64)] {
            let server = rig.server.another_client();
            server.time_out();
            let next = rig.boot(point.image(image), server).await;
            let files = found(&next).await;
            let is_one = moments[range.clone()].iter().any(|moment| moment.files == files);
            let sizes = |files: &Files| -> Vec<_> {
                let brief = |seen: &Seen| (seen.bytes.len(), seen.mode, seen.given);
                files.iter().map(|(name, seen)| (name.clone(), brief(seen))).collect()
            };
            let allowed: Vec<_> =
                moments[range.clone()].iter().map(|moment| sizes(&moment.files)).collect();
            assert!(is_one, "{at} {image:?}: {:?} is none of {allowed:#?}", sizes(&files));
            images += 1;
        }
    }
    println!("{images} crashes");
    assert!(images > 50);
    // The last of them are sent to the server, names and bytes.
    let files = found(&rig).await;
    let rig = rig.crash().await;
    rig.client.sync(&|_| true).await.unwrap();
    let top = rig.server.root().await.unwrap().handle;
    for (name, seen) in files {
        let there = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap();
        let read = rig.server.read(&root(), &there.handle, None, 0, 1 << 20).await.unwrap();
        assert!(read.data[..] == seen.bytes[..], "{name}");
        assert_eq!(
            (there.attr.mode, given(there.attr.mtime.sec)),
            (seen.mode, seen.given),
            "{name}"
        );
    }
    assert_eq!((rig.client.unsaved(), rig.set_aside().len()), (vec![], 0));
}

/// What the server has of a file in the root directory: its bytes, mode and time.
async fn at_server(rig: &Rig, name: &str) -> Seen {
    let top = rig.server.root().await.unwrap().handle;
    let found = rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap();
    let read = rig.server.read(&root(), &found.handle, None, 0, 1 << 20).await.unwrap();
    let given = given(found.attr.mtime.sec);
    Seen { bytes: read.data.to_vec(), mode: found.attr.mode, given }
}

async fn seen(rig: &Rig, name: &str) -> Seen {
    let attr = rig.stat(name).await.attr;
    let bytes = rig.cat(name).await;
    assert_eq!(attr.size, bytes.len() as u64);
    Seen { bytes, mode: attr.mode, given: given(attr.mtime.sec) }
}

/// Sets other attributes of some new files, whose bytes are only here. Returns the resulting
/// attributes, by name.
async fn set_beside_bytes(rig: &Rig) -> BTreeMap<&'static str, Seen> {
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let plain = Seen { bytes: b"some bytes".into(), mode: 0o600, given: None };
    let mut wanted = BTreeMap::new();
    for name in ["timed", "written again", "cut", "longer", "emptied", "renamed", "named so"] {
        rig.put(name, &plain.bytes).await;
        wanted.insert(name, plain.clone());
        if name != "renamed" {
            rig.set(name, mode).await;
        }
    }
    let mut change = |name, change: &dyn Fn(&mut Seen)| change(wanted.get_mut(name).unwrap());
    rig.set("timed", set_time(-501)).await;
    change("timed", &|seen| seen.given = Some(-501));
    rig.set("written again", set_time(-502)).await;
    rig.put("written again", b"others").await;
    change("written again", &|seen| seen.bytes = b"others".into());
    rig.set("cut", size(4)).await;
    change("cut", &|seen| seen.bytes.truncate(4));
    rig.set("longer", size(5000)).await;
    rig.set("longer", size(3000)).await;
    rig.set("longer", set_time(-503)).await;
    change("longer", &|seen| {
        seen.bytes.resize(3000, 0);
        seen.given = Some(-503);
    });
    rig.set("emptied", size(0)).await;
    change("emptied", &|seen| seen.bytes.clear());
    // No call has looked at this one since.
    rig.rename("renamed", "other").await.unwrap();
    wanted.remove("renamed");
    wanted.insert("other", Seen { mode: 0o644, ..plain.clone() });
    rig.rename("named so", "timed later").await.unwrap();
    rig.set("timed later", set_time(-504)).await;
    wanted.remove("named so");
    wanted.insert("timed later", Seen { given: Some(-504), ..plain });
    wanted
}

/// Mode, size and times of files whose bytes are only here are set without a request; the server
/// gets them, at whatever step the process dies.
#[tokio::test]
async fn attributes_are_set_beside_unsent_bytes() {
    for die in ["nothing", "resume", "mount anew", "crash"] {
        let mut rig = Rig::exclusive(generated()).await;
        // The server reveals whether it squashes root, and what exists.
        rig.put("first", b"").await;
        rig.put("second", b"").await;
        let calls = rig.server.calls_total();
        let wanted = set_beside_bytes(&rig).await;
        for (name, wants) in wanted.iter().filter(|(name, _)| **name != "other") {
            assert_eq!(seen(&rig, name).await, *wants, "{name}");
            // This keeps what was not closed since.
            let open = rig.open(&root(), name, WRITE).await.unwrap();
            rig.client.fsync(&root(), open.ino, None).wait().await.unwrap();
            open.close().await.unwrap();
        }
        assert_eq!(rig.server.calls_total(), calls, "{die}");
        rig = match die {
            "resume" => rig.kill(Start::Resume).await,
            "mount anew" => rig.kill(Start::NewMount).await,
            "crash" => rig.crash().await,
            _ => rig,
        };
        for (name, wants) in &wanted {
            assert_eq!(seen(&rig, name).await, *wants, "{name} after {die}");
        }
        rig.client.sync(&|_| true).await.unwrap();
        for (name, wants) in &wanted {
            assert_eq!(at_server(&rig, name).await, *wants, "{name} after {die}");
            assert_eq!(seen(&rig, name).await, *wants, "{name} after {die}");
        }
        assert_eq!((rig.client.unsaved(), rig.set_aside().len()), (vec![], 0));
    }
}

/// A file is made, written and closed: its name and its bytes are on this machine's disk after one
/// sync of it, with attributes that were set meanwhile, as tar does.
#[tokio::test]
async fn a_short_new_file_costs_one_sync_of_this_machines_disk() {
    for is_exclusive in [true, false] {
        let rig = match is_exclusive {
            true => Rig::exclusive(generated()).await,
            false => Rig::new(generated()).await,
        };
        // The server reveals whether it squashes root.
        rig.put("first", b"").await;
        let before = rig.cache().usage();
        for n in 0..10 {
            let name = format!("n{n}");
            let open = rig.create(&name).await;
            open.write(0, &pattern(n, 4096)).await.unwrap();
            if is_exclusive {
                rig.set(&name, SetAttr { mode: Some(0o600), ..set_time(-501) }).await;
            }
            open.close().await.unwrap();
        }
        let after = rig.cache().usage();
        let costs = (after.log_syncs - before.log_syncs, after.commits - before.commits);
        assert_eq!(costs, (10, 0), "exclusive: {is_exclusive}");
    }
}

/// Files of class `scratch` are in memory: a reboot loses them, and with them their names. No name
/// is left that shows as an empty file, here or at the server; what was put on the disk is still
/// there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_in_memory_is_gone_after_a_boot_with_its_name() {
    let sources = Sources { class: Some("scratch".into()), ..Sources::default() };
    let here = Here { disk: true, memory: true, names: true };
    let classes = load(&sources, &offer("a mount", here, Duration::from_secs(30))).unwrap();
    assert!(classes.mount().raised.is_empty());
    let rig = Rig::exclusive(Options { classes: Arc::new(classes), ..Options::default() }).await;
    rig.put("first", b"").await;
    let calls = |method| rig.server.calls(method);
    let made = calls("make");
    for name in ["n0", "n1", "n2"] {
        rig.put(name, &pattern(1, 5_000)).await;
    }
    rig.rename("n1", "n3").await.unwrap();
    rig.remove("n2").await.unwrap();
    let ino = rig.find("n0").await.unwrap();
    let told = rig.client.durability(ino).unwrap();
    assert_eq!((told.reached, told.promised), (Level::Memory, Some(Level::Memory)));
    assert_eq!(told.due, Some(Due::Unmount));
    rig.client.set_class(&root(), ino, Some("generated")).await.unwrap();
    assert_eq!(calls("write"), 1, "what is to be more durable is sent");
    rig.put("n4", b"more").await;
    assert_eq!((calls("make"), calls("write")), (made + 1, 1), "all else is here");
    rig.checkpoint();
    for image in [Image::Synced, Image::Written] {
        let next = rig.boot(rig.disk.crash(image), rig.server.another_client()).await;
        let files: Vec<_> = found(&next).await.into_keys().collect();
        assert_eq!(files, ["n0"], "{image:?}");
        assert_eq!(next.cat("n0").await, pattern(1, 5_000));
        next.client.write_back_all().await.unwrap();
        assert!(!next.names().await.iter().any(|name| name == "n3" || name == "n4"));
    }
}

/// The server as the next process finds it: it does not answer.
fn silent(rig: &Rig) -> MemRemote {
    let server = rig.server.another_client();
    server.time_out();
    server
}

/// What `ls` and `cat` show of the root directory.
async fn all_of(rig: &Rig) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for name in rig.names().await {
        let is_file = rig.stat(&name).await.attr.kind == Kind::File;
        let bytes = if is_file { rig.cat(&name).await } else { Vec::new() };
        all.insert(name, bytes);
    }
    all
}

/// The network is pulled, and the process dies, or the machine: the next one shows what is held and
/// changes it, without the server, which gets all of that when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_no_server_goes_on_beside_a_silent_one_in_the_next_process() {
    for die in ["resume", "crash"] {
        let rig = Rig::exclusive(generated()).await;
        rig.put("first", b"first").await;
        rig.client.sync(&|_| true).await.unwrap();
        for name in ["kept", "renamed", "removed", "edited", "emptied"] {
            rig.put(name, name.as_bytes()).await;
        }
        assert_eq!(rig.names().await.len(), 6);
        rig.checkpoint();
        let server = silent(&rig);
        let rig = match die {
            "resume" => rig.on_image(rig.image(), server, Start::Resume).await,
            _ => rig.boot(rig.disk.crash(Image::Synced), server).await,
        };
        assert_eq!(all_of(&rig).await.len(), 6, "{die}");
        rig.rename("renamed", "moved").await.unwrap();
        rig.remove("removed").await.unwrap();
        let open = rig.open(&root(), "edited", WRITE).await.unwrap();
        open.write(6, b" more").await.unwrap();
        rig.client.fsync(&root(), open.ino, None).wait().await.unwrap();
        open.close().await.unwrap();
        rig.put("emptied", b"anew").await;
        rig.put("made", b"made").await;
        rig.set("kept", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
        let here = all_of(&rig).await;
        let wanted: [(&str, &[u8]); 6] = [
            ("edited", b"edited more"),
            ("emptied", b"anew"),
            ("first", b"first"),
            ("kept", b"kept"),
            ("made", b"made"),
            ("moved", b"renamed"),
        ];
        let wanted: BTreeMap<_, _> =
            wanted.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect();
        assert_eq!(here, wanted, "{die}");
        assert_eq!(rig.server.calls("make"), 0, "{die}");
        // Listings are right from the first moment on, whenever it is noticed that it is back.
        rig.server.reconnect();
        assert_eq!(all_of(&rig).await, wanted, "{die}: back");
        rig.client.sync(&|_| true).await.unwrap();
        assert_eq!(all_of(&rig).await, wanted, "{die}: sent");
        let there = rig.foreigner().await;
        assert_eq!(all_of(&there).await, wanted, "{die}: at the server");
        assert_eq!(there.stat("kept").await.attr.mode, 0o600);
        assert_eq!((rig.client.unsaved(), rig.set_aside().len()), (vec![], 0));
    }
}

/// A mount that is the only writer keeps the promise of each class: what is to be at the server is
/// not acknowledged without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_makes_no_class_weaker() {
    let rig = Rig::exclusive(Options::default()).await;
    rig.put("file", b"old").await;
    rig.checkpoint();
    let rig = rig.on_image(rig.image(), silent(&rig), Start::Resume).await;
    assert_eq!(rig.cat("file").await, b"old");
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"new").await.unwrap();
    let synced = rig.client.fsync(&root(), open.ino, None).wait().await;
    assert_eq!(synced, Err(Error::TimedOut));
    let _ = open.close().await;
    assert_eq!(rig.rename("file", "other").await, Err(Error::TimedOut));
    assert_eq!(rig.remove("file").await, Err(Error::TimedOut));
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let flags = OpenFlags { truncate: true, ..WRITE };
    let made = rig.client.create(&root(), Ino::ROOT, OsStr::new("made"), set, flags).wait().await;
    assert_eq!(made.map(drop), Err(Error::TimedOut));
    assert_eq!(rig.cat("file").await, b"new");
    rig.server.reconnect();
    rig.client.sync(&|_| true).await.unwrap();
    assert_eq!(all_of(&rig.foreigner().await).await.len(), 1);
    assert_eq!(at_server(&rig, "file").await.bytes, b"new");
}

/// Class generated, and `*.db` of a class whose close waits for no server, and whose fsync does.
fn with_databases() -> Options {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.toml");
    let toml = "[class.db]\nlike = 'generated'\nclose = 'nothing'\nfsync = 'durable'\n\
                [[rule]]\nglob = '*.db'\nclass = 'db'\n";
    std::fs::write(&path, toml).unwrap();
    let sources = Sources { files: vec![path], class: Some("generated".into()), rules: None };
    let classes = load(&sources, &offer("a mount", Here::DISK, Duration::from_secs(30))).unwrap();
    Options { classes: Arc::new(classes), ..Options::default() }
}

/// An fsync of a directory.
async fn sync_dir(rig: &Rig, dir: Ino) -> Result<()> {
    rig.client.sync_names(&root(), dir).expect("names are made here").wait().await
}

/// An fsync of the root directory brings these names to the server, or asks it nothing. A second
/// one always asks nothing.
async fn brings(rig: &Rig, what: &str, is_asked: bool, wanted: &[&str]) {
    let calls = rig.server.calls_total();
    sync_dir(rig, Ino::ROOT).await.unwrap();
    assert_eq!(rig.server.calls_total() > calls, is_asked, "{what}");
    assert_eq!(rig.foreigner().await.names().await, wanted, "{what}");
    let calls = rig.server.calls_total();
    sync_dir(rig, Ino::ROOT).await.unwrap();
    assert_eq!(rig.server.calls_total(), calls, "{what}: again");
}

/// Whatever the class of the directory, and of what else is in it.
#[tokio::test]
async fn an_fsync_of_a_directory_waits_for_what_the_strongest_class_in_it_promises() {
    let rig = Rig::exclusive(with_databases()).await;
    // The server reveals whether it squashes root.
    rig.put("first", b"").await;
    rig.put("plain", b"bytes").await;
    rig.rename("plain", "other").await.unwrap();
    brings(&rig, "generated files alone", false, &["first"]).await;
    rig.put("one.db", b"bytes").await;
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let made = rig.client.make(&root(), Ino::ROOT, OsStr::new("build"), New::Directory, set);
    let build = made.wait().await.unwrap().ino;
    rig.create_in(build, "made").await.close().await.unwrap();
    let calls = rig.server.calls_total();
    sync_dir(&rig, build).await.unwrap();
    assert_eq!(rig.server.calls_total(), calls, "what is beside it is another directory's");
    brings(&rig, "made", true, &["build", "first", "one.db", "other"]).await;
    rig.rename("one.db", "two.db").await.unwrap();
    brings(&rig, "renamed", true, &["build", "first", "other", "two.db"]).await;
    rig.rename("two.db", "two").await.unwrap();
    brings(&rig, "no such class any more", true, &["build", "first", "other", "two"]).await;
    rig.rename("two", "three.db").await.unwrap();
    brings(&rig, "such a class now", true, &["build", "first", "other", "three.db"]).await;
    rig.remove("three.db").await.unwrap();
    brings(&rig, "removed", true, &["build", "first", "other"]).await;
    rig.put("file", b"bytes").await;
    let ino = rig.find("file").await.unwrap();
    let link = rig.client.link(&root(), ino, Ino::ROOT, OsStr::new("four.db"));
    link.wait().await.unwrap();
    brings(&rig, "linked", true, &["build", "file", "first", "four.db", "other"]).await;
    rig.remove("other").await.unwrap();
    brings(&rig, "removed", false, &["build", "file", "first", "four.db", "other"]).await;
}

/// The next process does not know what a dead one promised for the names that it left: an fsync of
/// a directory brings all of them to the server. What is made from then on is as ever.
#[tokio::test]
async fn what_a_dead_process_promised_for_an_fsync_of_a_directory_holds() {
    for die in ["resume", "crash"] {
        let rig = Rig::exclusive(with_databases()).await;
        rig.put("first", b"").await;
        rig.put("one.db", b"bytes").await;
        rig.checkpoint();
        let server = silent(&rig);
        let rig = match die {
            "resume" => rig.on_image(rig.image(), server, Start::Resume).await,
            _ => rig.boot(rig.disk.crash(Image::Synced), server).await,
        };
        assert_eq!(sync_dir(&rig, Ino::ROOT).await, Err(Error::TimedOut), "{die}");
        rig.server.reconnect();
        sync_dir(&rig, Ino::ROOT).await.unwrap();
        assert_eq!(rig.foreigner().await.names().await, ["first", "one.db"], "{die}");
        rig.client.sync(&|_| true).await.unwrap();
        // The server reveals to this process, too, whether it squashes root.
        rig.put("second", b"").await;
        rig.put("plain", b"bytes").await;
        sync_dir(&rig, Ino::ROOT).await.unwrap();
        let there = rig.foreigner().await.names().await;
        assert!(!there.contains(&"plain".to_owned()), "{die}: {there:?}");
    }
}
