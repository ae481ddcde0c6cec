//! Bytes of files whose directory is gone at the server before it has them.

use std::ffi::OsStr;

use larder_cache::ConflictKind;
use larder_client::Start;
use larder_vfs::{Error, FileSystem, Ino, New, Removal, SetAttr};

use crate::kept::generated;
use crate::rig::{PATIENCE, Rig, WRITE, pattern, root};

/// What becomes of the process that made the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Lives,
    Dies,
    Crashes,
}

async fn make_dir(rig: &Rig, name: &str) -> Ino {
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let made = rig.client.make(&root(), Ino::ROOT, OsStr::new(name), New::Directory, set);
    made.wait().await.unwrap().ino
}

/// Removes a directory with one file in it, or none.
async fn remove_dir(other: &Rig, name: &str, file: Option<&str>) {
    let dir = other.find(name).await.unwrap();
    if let Some(file) = file {
        other.client.remove(&root(), dir, file.as_ref(), Removal::File).wait().await.unwrap();
    }
    let removed = other.client.remove(&root(), Ino::ROOT, name.as_ref(), Removal::Directory);
    removed.wait().await.unwrap();
}

/// Everything is brought to the server or set aside, over as many attempts as that takes.
async fn brought(rig: &Rig) {
    let sent = async {
        while let Err(error) = rig.in_vain(rig.client.sync(&|_| true)).await {
            assert!(matches!(error, Error::Stale | Error::TimedOut), "{error}");
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.expect("it ends");
}

/// The directory that is kept beside the one that is gone.
async fn kept(other: &Rig) -> (String, Ino) {
    let names = other.names().await;
    let name = names.iter().find(|name| name.starts_with("dir.conflict-here-"));
    let name = name.unwrap_or_else(|| panic!("{names:?}")).clone();
    let dir = other.find(&name).await.unwrap();
    (name, dir)
}

fn kinds(rig: &Rig) -> Vec<ConflictKind> {
    rig.cache().conflicts(0, usize::MAX).into_iter().map(|found| found.conflict.kind).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_new_file_are_at_the_server_beside_its_directory_that_is_gone() {
    let bytes = pattern(3, 100_000);
    for (is_offline, fate) in [false, true]
        .into_iter()
        .flat_map(|one| [Fate::Lives, Fate::Dies, Fate::Crashes].map(|fate| (one, fate)))
    {
        let rig = match is_offline {
            false => Rig::exclusive(generated()).await,
            true => Rig::offline(generated()).await,
        };
        make_dir(&rig.foreigner().await, "dir").await;
        rig.put("first", b"").await;
        let dir = rig.find("dir").await.unwrap();
        rig.names_in(dir).await;
        if is_offline {
            rig.server.time_out();
        }
        let open = rig.create_in(dir, "new").await;
        open.write(0, &bytes).await.unwrap();
        open.close().await.unwrap();
        rig.server.reconnect();
        remove_dir(&rig.foreigner().await, "dir", None).await;
        let rig = match fate {
            Fate::Lives => rig,
            Fate::Dies => rig.kill(Start::NewMount).await,
            Fate::Crashes => rig.crash().await,
        };
        brought(&rig).await;
        let case = format!("{is_offline} {fate:?}");
        let other = rig.foreigner().await;
        let (name, dir) = kept(&other).await;
        assert_eq!(other.names_in(dir).await, ["new"], "{case}");
        assert!(other.cat(&format!("{name}/new")).await == bytes, "{case}");
        assert!(rig.cat(&format!("{name}/new")).await == bytes, "{case}");
        assert_eq!(kinds(&rig), [ConflictKind::Gone], "{case}");
        assert_eq!((rig.set_aside(), rig.client.unsaved()), (vec![], vec![]), "{case}");
    }
}

/// A program goes on writing to its open file, wherever that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_open_when_its_directory_goes_is_written_on() {
    let rig = Rig::exclusive(generated()).await;
    make_dir(&rig.foreigner().await, "dir").await;
    rig.put("first", b"").await;
    let dir = rig.find("dir").await.unwrap();
    let open = rig.create_in(dir, "new").await;
    open.write(0, b"one").await.unwrap();
    remove_dir(&rig.foreigner().await, "dir", None).await;
    brought(&rig).await;
    open.write(3, b"two").await.unwrap();
    assert_eq!(open.read(0, 9).await.unwrap(), b"onetwo");
    open.close().await.unwrap();
    brought(&rig).await;
    let other = rig.foreigner().await;
    let (name, _) = kept(&other).await;
    assert_eq!(other.cat(&format!("{name}/new")).await, b"onetwo");
    assert_eq!(kinds(&rig), [ConflictKind::Gone]);
}

/// A file of the server's goes with its directory: what was written to it here is set aside, or is
/// where the file was moved here, and nothing waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_a_file_that_went_with_its_directory_are_kept() {
    for is_renamed in [false, true] {
        let rig = Rig::exclusive(generated()).await;
        let other = rig.foreigner().await;
        let dir = make_dir(&other, "dir").await;
        let open = other.create_in(dir, "old").await;
        open.write(0, b"theirs").await.unwrap();
        open.close().await.unwrap();
        rig.put("first", b"").await;
        let open = rig.open(&root(), "dir/old", WRITE).await.unwrap();
        open.write(0, b"ours").await.unwrap();
        open.close().await.unwrap();
        if is_renamed {
            let dir = rig.find("dir").await.unwrap();
            let (from, to) = ((dir, OsStr::new("old")), (Ino::ROOT, OsStr::new("moved")));
            rig.client.rename(&root(), from, to, Default::default()).wait().await.unwrap();
        }
        remove_dir(&other, "dir", Some("old")).await;
        brought(&rig).await;
        let mut kept: Vec<_> = rig.set_aside().into_iter().map(|(_, bytes)| bytes).collect();
        for name in other.names().await {
            if name.starts_with("moved.conflict-here-") {
                kept.push(other.cat(&name).await);
            }
        }
        assert_eq!(kept, [b"ours\0\0"], "{is_renamed}: the rest was never here");
        assert_eq!(rig.set_aside().is_empty(), is_renamed);
        assert_eq!(rig.client.unsaved(), [], "{is_renamed}");
        assert_eq!(kinds(&rig).len(), 1 + usize::from(is_renamed), "{is_renamed}");
    }
}

/// The server was restored with other handles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_at_a_server_with_other_handles() {
    let rig = Rig::exclusive(generated()).await;
    make_dir(&rig.foreigner().await, "dir").await;
    rig.put("first", b"").await;
    let dir = rig.find("dir").await.unwrap();
    let open = rig.create_in(dir, "new").await;
    open.write(0, b"bytes").await.unwrap();
    open.close().await.unwrap();
    rig.server.give_new_handles();
    brought(&rig).await;
    let other = rig.foreigner().await;
    assert_eq!(other.names().await, ["dir", "first"]);
    assert_eq!(other.cat("dir/new").await, b"bytes");
    assert_eq!((kinds(&rig), rig.client.unsaved()), (vec![], vec![]));
}

/// The client finds its file again under another handle, and what waits for it with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_that_wait_are_set_on_a_file_with_another_handle() {
    let rig = Rig::offline(generated()).await;
    rig.put("file", b"bytes").await;
    rig.client.sync(&|_| true).await.unwrap();
    rig.server.time_out();
    rig.set("file", SetAttr { mode: Some(0o600), ..SetAttr::default() }).await;
    let file = rig.find("file").await.unwrap();
    rig.server.give_new_handles();
    rig.advance(3600);
    rig.server.reconnect();
    let told = rig.client.getattr(&root(), file).wait().await.unwrap();
    assert_eq!(told.attr.mode, 0o600);
    brought(&rig).await;
    assert_eq!(rig.foreigner().await.stat("file").await.attr.mode, 0o600);
    assert_eq!((kinds(&rig), rig.client.unsaved()), (vec![], vec![]));
}
