//! The process dies; another one continues the mount, or makes a new one.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use larder_client::{Options, Start};
use larder_vfs::{Error, FileSystem, Ino, New, OpenId, Remote, SetAttr};

use crate::rig::{Open, PATIENCE, READ, Random, Rig, WRITE, pattern, root};

mod over_another;
mod own_outages;
mod own_requests;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_files_numbers_and_unsent_data_outlive_the_process() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 300_000);
    rig.put("old", &bytes).await;
    let new = rig.create("new").await;
    new.write(0, b"never sent").await.unwrap();
    let old = rig.open(&root(), "old", WRITE).await.unwrap();
    old.write(100_000, b"changed").await.unwrap();
    let reader = rig.open(&root(), "old", READ).await.unwrap();
    let names = [new.names(), old.names(), reader.names()];
    let rig = rig.kill(Start::Resume).await;
    assert_eq!(rig.server.calls_total(), 0, "the server is asked nothing");
    assert_eq!(rig.client.status().open_files, 3);
    for (name, (ino, _)) in ["new", "old"].iter().zip(&names) {
        assert_eq!(rig.find(name).await, Some(*ino));
    }
    let [new, old, reader] = names.map(|names| rig.again(names));
    // The process that died had them in memory only.
    assert!(rig.server.calls_total() <= 1, "what was fresh is fresh, but for the user's rights");
    assert_eq!(rig.stat("new").await.attr.size, 10);
    assert_eq!(new.read(0, 100).await.unwrap(), b"never sent");
    assert_eq!(reader.read(100_000, 7).await.unwrap(), b"changed");
    assert_eq!(reader.read(0, 5).await.unwrap(), bytes[..5]);
    let ids: Vec<OpenId> = names.iter().map(|names| names.1).collect();
    let another = rig.open(&root(), "old", READ).await.unwrap();
    assert!(!ids.contains(&another.names().1), "no number is given twice");
    another.close().await.unwrap();
    new.write(10, b", now it is").await.unwrap();
    for open in [new, old, reader] {
        open.close().await.unwrap();
    }
    assert_eq!(rig.client.status().open_files, 0);
    let mut changed = bytes;
    changed[100_000..100_007].copy_from_slice(b"changed");
    let other = rig.foreigner().await;
    assert_eq!(other.cat("new").await, b"never sent, now it is");
    assert!(other.cat("old").await == changed);
    assert!(rig.cat("old").await == changed);
    let rig = rig.kill(Start::Resume).await;
    assert_eq!(rig.client.status().open_files, 0, "what was released stays released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clean_data_is_used_after_a_resume_and_foreign_changes_are_seen() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 100_000);
    rig.put("file", &bytes).await;
    rig.checkpoint();
    let rig = rig.kill(Start::Resume).await;
    assert!(rig.cat("file").await == bytes);
    assert_eq!(rig.server.calls("read"), 0);
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"ours").await.unwrap();
    let names = open.names();
    let other = rig.foreigner().await;
    let foreign = other.open(&root(), "file", WRITE).await.unwrap();
    foreign.write(50_000, b"theirs").await.unwrap();
    foreign.close().await.unwrap();
    let rig = rig.kill(Start::Resume).await;
    rig.again(names).close().await.unwrap();
    let mut both = bytes;
    both[..4].copy_from_slice(b"ours");
    both[50_000..50_006].copy_from_slice(b"theirs");
    rig.advance(100);
    assert!(rig.cat("file").await == both);
}

/// What was opened before this mount sent its own changes is read on after the process died; what
/// another client changed is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_changes_before_the_kill_do_not_end_a_reader() {
    for is_ours in [true, false] {
        let rig = Rig::new(Options::default()).await;
        rig.put("file", &pattern(1, 300_000)).await;
        let reader = rig.open(&root(), "file", READ).await.unwrap();
        assert_eq!(reader.read(0, 4096).await.unwrap().len(), 4096);
        let names = reader.names();
        let change = async |rig: &Rig| {
            let writer = rig.open(&root(), "file", WRITE).await.unwrap();
            writer.write(200_000, b"changed").await.unwrap();
            writer.close().await.unwrap();
        };
        match is_ours {
            true => change(&rig).await,
            false => change(&rig.foreigner().await).await,
        }
        rig.advance(100);
        rig.stat("file").await;
        let rig = rig.kill(Start::Resume).await;
        let read = rig.again(names).read(200_000, 7).await;
        match is_ours {
            true => assert_eq!(read.unwrap(), b"changed"),
            false => assert_eq!(read, Err(Error::Changed)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_file_is_removed_at_its_release_after_a_resume() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    open.write(0, b"kept").await.unwrap();
    rig.remove("file").await.unwrap();
    let names = open.names();
    let rig = rig.kill(Start::Resume).await;
    let open = rig.again(names);
    assert_eq!(open.read(0, 10).await.unwrap(), b"kept");
    assert_eq!(rig.foreigner().await.names().await.len(), 1, "it has a hidden name");
    open.close().await.unwrap();
    assert_eq!(rig.foreigner().await.names().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_needs_no_server() {
    let rig = Rig::new(Options::default()).await;
    rig.put("held", b"held").await;
    rig.checkpoint();
    let open = rig.create("file").await;
    open.write(0, b"unsent").await.unwrap();
    let names = open.names();
    let server = rig.server.another_client();
    server.time_out();
    rig.server.shutdown();
    let rig = rig.on_image(rig.image(), server, Start::Resume).await;
    let open = rig.again(names);
    assert_eq!(open.flush().await, Err(Error::TimedOut));
    assert_eq!(open.read(0, 10).await.unwrap(), b"unsent");
    assert_eq!(rig.cat("held").await, b"held");
    rig.server.reconnect();
    open.close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, b"unsent");
}

/// A new mount needs no server either, if an earlier mount has reached it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_mount_needs_no_server_that_is_known() {
    let rig = Rig::new(Options::default()).await;
    rig.put("held", b"held").await;
    assert_eq!(rig.cat("held").await, b"held");
    rig.names().await;
    rig.foreigner().await.put("other", b"not held").await;
    rig.advance(3600);
    rig.server.time_out();
    let rig = rig.remount().await;
    assert_eq!(rig.names().await, ["held"]);
    assert_eq!(rig.cat("held").await, b"held");
    let open = rig.open(&root(), "held", WRITE).await.unwrap();
    open.write(0, b"edit").await.unwrap();
    assert_eq!(open.close().await, Err(Error::TimedOut));
    rig.server.reconnect();
    rig.sent().await;
    rig.advance(3600);
    assert_eq!(rig.names().await, ["held", "other"]);
    assert_eq!(rig.cat("other").await, b"not held");
    assert_eq!(rig.foreigner().await.cat("held").await, b"edit");
}

/// A user who works without the server and shuts the machine down in order loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_data_outlives_an_orderly_stop_and_a_boot() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 300_000);
    rig.put("edited", &bytes).await;
    let (edited, new) =
        (rig.open(&root(), "edited", WRITE).await.unwrap(), rig.create("new").await);
    rig.server.time_out();
    edited.write(100_000, b"edited").await.unwrap();
    new.write(0, b"new").await.unwrap();
    assert_eq!(edited.close().await, Err(Error::TimedOut));
    assert_eq!(new.close().await, Err(Error::TimedOut));
    let mut expected = bytes;
    expected[100_000..100_006].copy_from_slice(b"edited");
    let rig = rig.reboot().await;
    assert_eq!(rig.cat("new").await, b"new");
    rig.server.reconnect();
    rig.sent().await;
    let other = rig.foreigner().await;
    assert!(other.cat("edited").await == expected);
    assert_eq!(other.cat("new").await, b"new");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_that_was_waiting_goes_on_after_a_resume() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("file").await;
    open.write(0, b"unsent").await.unwrap();
    rig.server.time_out();
    assert_eq!(open.close().await, Err(Error::TimedOut));
    let rig = rig.kill(Start::Resume).await;
    rig.sent().await;
    assert_eq!(rig.foreigner().await.cat("file").await, b"unsent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_write_back_is_reported_after_a_resume() {
    let rig = Rig::new(Options { dirty_bytes_max: 10, ..Options::default() }).await;
    let open = rig.create("file").await;
    rig.server.set_full(true);
    open.write(0, &[1; 100]).await.unwrap();
    let names = open.names();
    let noted = async {
        while !rig.has_note(Error::NoSpace) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, noted).await.unwrap();
    rig.server.set_full(false);
    let rig = rig.kill(Start::Resume).await;
    let open = rig.again(names);
    assert_eq!(open.flush().await, Err(Error::NoSpace));
    assert_eq!(open.close().await, Ok(()), "once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_mount_after_a_kill_sends_what_was_unsent_and_removes_hidden_files() {
    let rig = Rig::new(Options::default()).await;
    let mut tree = BTreeMap::new();
    for n in 0..20 {
        let (name, bytes) = (format!("file{n}"), pattern(n, 5000 * n as usize + 1));
        rig.create(&name).await.write(0, &bytes).await.unwrap();
        tree.insert(name, bytes);
    }
    rig.create("hidden").await.write(0, b"gone").await.unwrap();
    rig.remove("hidden").await.unwrap();
    let rig = rig.kill(Start::NewMount).await;
    assert_eq!(rig.client.status().open_files, 0);
    rig.sent().await;
    let other = rig.foreigner().await;
    while other.names().await.len() > tree.len() {
        tokio::task::yield_now().await;
    }
    for (name, bytes) in &tree {
        assert!(other.cat(name).await == *bytes, "{name}");
        assert!(rig.cat(name).await == *bytes, "{name}");
    }
}

/// What was written to it need not be sent, and there is nothing to report.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_file_that_was_removed_before_the_kill_is_not_written_back() {
    let rig = Rig::new(Options::default()).await;
    rig.create("hidden").await.write(0, b"gone").await.unwrap();
    rig.remove("hidden").await.unwrap();
    let other = rig.foreigner().await;
    let hidden = other.names().await.pop().unwrap();
    other.remove(&hidden).await.unwrap();
    let rig = rig.kill(Start::NewMount).await;
    rig.sent().await;
    assert_eq!(rig.server.calls("write"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_file_whose_removal_the_end_of_the_mount_interrupts_is_removed_by_the_next() {
    let rig = Rig::new(Options::default()).await;
    let open = rig.create("hidden").await;
    open.write(0, b"gone").await.unwrap();
    rig.remove("hidden").await.unwrap();
    rig.server.hold(Some("remove"));
    rig.server.reset_calls();
    let ending = async {
        while rig.server.calls("remove") == 0 {
            tokio::task::yield_now().await;
        }
        rig.server.shutdown();
    };
    let released = rig.client.release(open.ino, open.id).wait();
    assert_eq!(tokio::join!(released, ending).0, Err(Error::Shutdown));
    rig.client.end_mount();
    let rig = rig.kill(Start::NewMount).await;
    while !rig.foreigner().await.names().await.is_empty() {
        tokio::task::yield_now().await;
    }
    rig.sent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_nodes_leave_memory() {
    const KEPT: u64 = 1024;
    let rig = Rig::new(Options::default()).await;
    let mut inos = Vec::new();
    for n in 0..KEPT + 50 {
        rig.put(&format!("file{n}"), b"x").await;
        inos.push(rig.find(&format!("file{n}")).await.unwrap());
    }
    let open = rig.open(&root(), "file0", READ).await.unwrap();
    assert!(rig.client.status().nodes_in_memory > KEPT + 50);
    inos.iter().for_each(|ino| rig.client.forget(*ino, 1));
    assert_eq!(rig.client.status().nodes_in_memory, KEPT, "some, the root and what is open");
    assert_eq!(open.read(0, 1).await.unwrap(), b"x");
    rig.server.reset_calls();
    assert_eq!(rig.find("file7").await, Some(inos[7]), "the number stays");
    assert_eq!(rig.server.calls_total(), 0, "what is known stays known");
}

/// A thousand nodes would be scattered over the memory of many, and keep all of it resident.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_many_were_in_memory_none_stays() {
    // The task that looks for files to complete holds their nodes for a moment.
    let rig = Rig::new(Options { fill_after: None, ..Options::default() }).await;
    let mut inos = Vec::new();
    for n in 0..9000 {
        rig.put(&format!("file{n}"), b"x").await;
        inos.push(rig.find(&format!("file{n}")).await.unwrap());
    }
    inos.iter().for_each(|ino| rig.client.forget(*ino, 1));
    rig.client.forget(Ino::ROOT, 1);
    assert_eq!(rig.client.status().nodes_in_memory, 0);
    rig.server.reset_calls();
    assert_eq!(rig.find("file7").await, Some(inos[7]), "the number stays");
    assert_eq!(rig.server.calls_total(), 0, "who may search the directory is known");
}

/// A kill at every change of the cache's disk while a file is written back, and truncated or
/// extended: the next process reads what was written, and so does the server in the end. The kernel
/// sends the truncation again, as it was not answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_every_change_of_a_write_back_shows_nothing_wrong() {
    let sizes = [(0, None), (50_000, None), (200_000, None), (50_000, Some(30_000))];
    for (size, cut) in sizes.into_iter().chain([(200_000, Some(160_000)), (10, Some(300_000))]) {
        let rig = Rig::recording(Options::default()).await;
        rig.put("file", &pattern(1, size)).await;
        rig.checkpoint();
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(20_000, &pattern(2, 60_000)).await.unwrap();
        open.write(150_000, &pattern(3, 100)).await.unwrap();
        let (first, expected) = (rig.disk.logged(), open.read(0, 1 << 20).await.unwrap());
        assert_eq!(expected.len(), size.max(150_100));
        let expected = finish(&open, cut, expected).await;
        rig.checkpoint();
        let mut points = 0;
        for point in rig.disk.crash_points().filter(|point| point.logged() >= first) {
            let image = point.image(larder_io::Image::Written);
            let next = rig.on_image(image, rig.server.another_client(), Start::Resume).await;
            let again = next.again(open.names());
            let at = point.logged() - first;
            if cut.is_some() {
                finish(&again, cut, Vec::new()).await;
            }
            assert!(again.read(0, 1 << 20).await.unwrap() == expected, "{size} {cut:?} {at}");
            again.write(10, b"one more").await.unwrap();
            again.close().await.unwrap();
            let mut longer = expected.clone();
            longer[10..18].copy_from_slice(b"one more");
            assert!(next.foreigner().await.cat("file").await == longer, "{size} {at}");
            next.advance(100);
            assert!(next.cat("file").await == longer, "{size} {at}");
            rig.foreigner().await.put("file", &expected).await;
            points += 1;
        }
        assert!(points > 5, "{points}");
    }
}

/// A kill at every change of the cache's disk while a name is changed: whatever was on record by
/// then, the next process finds under each name what the server has. What the name stood for before
/// the change is on record, too, and so is the directory's version after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_every_change_of_a_name_shows_no_name_as_it_was() {
    for change in ["create", "symlink", "remove", "rename", "replace", "link"] {
        let rig = Rig::recording(Options::default()).await;
        for name in ["one", "two"] {
            rig.put(name, name.as_bytes()).await;
        }
        let two = rig.find("two").await.unwrap();
        // What a rename replaces has a further name: it is not gone.
        rig.client.link(&root(), two, Ino::ROOT, "three".as_ref()).wait().await.unwrap();
        for name in ["one", "two", "three", "new"] {
            assert_eq!(rig.find(name).await.is_some(), name != "new");
        }
        rig.checkpoint();
        let (first, new) = (rig.disk.logged(), OsStr::new("new"));
        match change {
            "create" => rig.put("new", b"new").await,
            "symlink" => {
                let link = New::Symlink("one".into());
                let made = rig.client.make(&root(), Ino::ROOT, new, link, SetAttr::default());
                made.wait().await.unwrap();
            }
            "remove" => rig.remove("two").await.unwrap(),
            "rename" => rig.rename("two", "new").await.unwrap(),
            "replace" => rig.rename("one", "two").await.unwrap(),
            _ => drop(rig.client.link(&root(), two, Ino::ROOT, new).wait().await.unwrap()),
        }
        let expected = seen(&rig.foreigner().await).await;
        let mut points = 0;
        for point in rig.disk.crash_points().filter(|point| point.logged() >= first) {
            for start in [Start::Resume, Start::NewMount] {
                let image = point.image(larder_io::Image::Written);
                let next = rig.on_image(image, rig.server.another_client(), start).await;
                // For this long a process that goes on with the mount trusts what it has.
                next.advance(60);
                let at = point.logged() - first;
                assert_eq!(seen(&next).await, expected, "{change}, {start:?}, change {at}");
            }
            points += 1;
        }
        assert!(points > 3, "{change}: {points}");
    }
}

/// The inode number at the server of what each name stands for.
async fn seen(rig: &Rig) -> Vec<Option<u64>> {
    let mut seen = Vec::new();
    for name in ["one", "two", "three", "new"] {
        seen.push(match rig.find(name).await {
            Some(_) => Some(rig.stat(name).await.attr.fileid),
            None => None,
        });
    }
    seen
}

/// Closes a descriptor, or truncates the file first. Returns the resulting content.
async fn finish(open: &Open<'_>, cut: Option<usize>, mut content: Vec<u8>) -> Vec<u8> {
    if let Some(cut) = cut {
        open.truncate(cut as u64).await.unwrap();
        content.resize(cut, 0);
    }
    open.flush().await.unwrap();
    content
}

/// An open file: the kernel's names for it, its name if it still has one, and its content.
type Held = ((Ino, OpenId), Option<String>, Vec<u8>);

/// Random work by one machine; now and then the process dies and the next one continues. In the end
/// the server has what the applications wrote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_across_kills_loses_nothing() {
    let first = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in first.map_or(1..7, |seed: u64| seed..seed + 1) {
        let mut random = Random(seed);
        let mut rig = Rig::new(Options { dirty_bytes_max: 50_000, ..Options::default() }).await;
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut open: Vec<Held> = Vec::new();
        for step in 0..150 {
            let name = format!("file{}", random.below(4));
            let is_open = open.iter().any(|(_, held, _)| held.as_ref() == Some(&name));
            match random.below(12) {
                0..=1 if !is_open => {
                    let bytes = files.get(&name).cloned().unwrap_or_default();
                    let opened = match files.contains_key(&name) {
                        true => rig.open(&root(), &name, WRITE).await.unwrap(),
                        false => rig.create(&name).await,
                    };
                    open.push((opened.names(), Some(name.clone()), bytes.clone()));
                    files.insert(name, bytes);
                }
                2..=6 if !open.is_empty() => {
                    let at = random.below(open.len() as u64) as usize;
                    let (names, _, bytes) = &mut open[at];
                    let start = random.below(60_000);
                    let data = pattern(seed * 1000 + step, random.below(20_000) as usize + 1);
                    rig.again(*names).write(start, &data).await.unwrap();
                    let end = start as usize + data.len();
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[start as usize..end].copy_from_slice(&data);
                }
                7 if !open.is_empty() => {
                    let at = random.below(open.len() as u64) as usize;
                    let (names, name, bytes) = open.swap_remove(at);
                    rig.again(names).close().await.unwrap();
                    name.map(|name| files.insert(name, bytes));
                }
                8 if files.remove(&name).is_some() => {
                    rig.remove(&name).await.unwrap();
                    for (_, held, _) in &mut open {
                        *held = held.take().filter(|held| *held != name);
                    }
                }
                9 if !open.is_empty() => {
                    let at = random.below(open.len() as u64) as usize;
                    let (names, _, bytes) = &mut open[at];
                    let size = random.below(70_000);
                    rig.again(*names).truncate(size).await.unwrap();
                    bytes.resize(size as usize, 0);
                }
                10 => rig.checkpoint(),
                11 => rig = rig.kill(Start::Resume).await,
                _ => {}
            }
            for (names, _, bytes) in &open {
                let found = rig.again(*names).read(0, 1 << 20).await.unwrap();
                assert!(found == *bytes, "seed {seed} step {step}");
            }
        }
        for (names, name, bytes) in open {
            rig.again(names).close().await.unwrap();
            name.map(|name| files.insert(name, bytes));
        }
        let other = rig.foreigner().await;
        assert_eq!(other.names().await, files.keys().cloned().collect::<Vec<_>>(), "seed {seed}");
        for (name, bytes) in &files {
            assert!(other.cat(name).await == *bytes, "seed {seed} {name}");
        }
    }
}
