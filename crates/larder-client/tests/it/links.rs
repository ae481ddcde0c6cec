//! Files with several names on a server that reaches files by their names only.

use std::collections::BTreeMap;

use larder_client::Start;
use larder_io::SimDisk;
use larder_vfs::{FileSystem, Ino, MemRemote, Remote, RemoteLimits};

use crate::rig::{Rig, WRITE, root};

async fn rig() -> Rig {
    let limits = RemoteLimits { by_name: true, ..MemRemote::new().limits() };
    Rig::on_server(MemRemote::with_limits(limits), SimDisk::new(), Start::NewMount).await
}

/// Names and contents.
async fn tree(rig: &Rig) -> BTreeMap<String, Vec<u8>> {
    let other = rig.foreigner().await;
    let mut tree = BTreeMap::new();
    for name in other.names().await {
        let bytes = other.cat(&name).await;
        tree.insert(name, bytes);
    }
    tree
}

/// Another client gives a file another name, under which it was not looked up here.
async fn link_elsewhere(rig: &Rig, name: &str, new: &str) {
    let other = rig.foreigner().await;
    let ino = other.find(name).await.unwrap();
    other.client.link(&root(), ino, Ino::ROOT, new.as_ref()).wait().await.unwrap();
    rig.advance(60);
}

fn is(tree: &BTreeMap<String, Vec<u8>>, wanted: &[(&str, &[u8])]) -> bool {
    tree.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).eq(wanted.iter().copied())
}

/// (whether the name is removed or replaced)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_keeps_a_name_that_leads_to_it() {
    for replaces in [false, true] {
        let rig = rig().await;
        rig.put("file", b"before").await;
        rig.put("new", b"new").await;
        link_elsewhere(&rig, "file", "other").await;
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        assert_eq!(rig.stat("file").await.attr.nlink, 2);
        open.write(0, b"AFTER").await.unwrap();
        match replaces {
            true => rig.rename("new", "file").await.unwrap(),
            false => rig.remove("file").await.unwrap(),
        }
        let names = tree(&rig).await;
        let hidden = names.keys().find(|name| name.starts_with(".nfs"));
        assert!(hidden.is_some(), "{names:?}");
        assert_eq!(rig.stat("other").await.attr.nlink, 1, "its hidden name does not count");
        open.write(5, b"!").await.unwrap();
        assert_eq!(open.read(0, 100).await.unwrap(), b"AFTER!");
        open.close().await.unwrap();
        let names = tree(&rig).await;
        let kept: &[(&str, &[u8])] = match replaces {
            true => &[("file", b"new"), ("other", b"AFTER!")],
            false => &[("new", b"new"), ("other", b"AFTER!")],
        };
        assert!(is(&names, kept), "{names:?}");
        assert_eq!(rig.cat("other").await, b"AFTER!");
        assert_eq!(rig.stat("other").await.attr.nlink, 1);
    }
}

/// Its last name is hidden like that of any open file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_file_that_loses_all_its_names_is_gone_when_it_is_closed() {
    let rig = rig().await;
    rig.put("file", b"before").await;
    link_elsewhere(&rig, "file", "other").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    rig.remove("file").await.unwrap();
    rig.remove("other").await.unwrap();
    open.write(0, b"AFTER!").await.unwrap();
    assert_eq!(open.read(0, 100).await.unwrap(), b"AFTER!");
    open.close().await.unwrap();
    assert!(tree(&rig).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_to_a_hidden_file_with_other_names_outlives_a_kill() {
    let rig = rig().await;
    rig.put("file", b"before").await;
    link_elsewhere(&rig, "file", "other").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"AFTER!").await.unwrap();
    rig.remove("file").await.unwrap();
    let rig = rig.kill(Start::NewMount).await;
    while tree(&rig).await.len() > 1 {
        tokio::task::yield_now().await;
    }
    let names = tree(&rig).await;
    assert!(is(&names, &[("other", b"AFTER!")]), "{names:?}");
}

/// rename(2) does nothing then. A kernel does not ask us; a client of an export does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_to_another_name_of_the_file_leaves_both() {
    let rig = rig().await;
    rig.put("file", b"data").await;
    link_elsewhere(&rig, "file", "other").await;
    assert_eq!(rig.stat("other").await.attr.nlink, 2);
    rig.rename("other", "file").await.unwrap();
    assert!(rig.find("other").await.is_some());
    let names = tree(&rig).await;
    assert!(is(&names, &[("file", b"data"), ("other", b"data")]), "{names:?}");
    rig.remove("other").await.unwrap();
    assert_eq!(rig.stat("file").await.attr.nlink, 1);
    rig.rename("file", "moved").await.unwrap();
    rig.server.reset_calls();
    assert!(rig.find("file").await.is_none());
    assert_eq!(rig.server.calls("lookup"), 0, "it had no other name");
}
