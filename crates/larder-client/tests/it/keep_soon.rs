//! Files that this machine's disk is to have a moment after their close, which does not wait for it
//! (class generated where close waits for memory).

use std::time::Duration;

use larder_client::{Here, Options, Start};
use larder_io::{Fault, Image};
use larder_vfs::{FileSystem, Ino, Remote};

use crate::kept::{at_server, beside, generated_on, level};
use crate::rig::{Rig, WRITE, pass, pattern, root};
use larder_class::Level;

/// Within this time after a close the disk has it.
const SOON: Duration = Duration::from_secs(1);

fn generated() -> Options {
    let options = generated_on(Here { memory: true, ..Here::DISK });
    assert_eq!(options.classes.mount().raised, "");
    options
}

/// Lets the disk get what was closed.
async fn kept(rig: &Rig, name: &str) {
    pass(&rig.clock, SOON).await;
    for _ in 0..100_000 {
        if level(rig, name).await == Level::Local {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{name} is not kept");
}

#[tokio::test(start_paused = true)]
async fn a_close_waits_for_no_sync_and_its_time_is_kept() {
    let rig = Rig::new(generated()).await;
    let long = pattern(1, 3 << 20);
    let syncs = rig.disk.syncs();
    rig.put("short", b"bytes").await;
    rig.put("long", &long).await;
    assert_eq!(rig.disk.syncs(), syncs, "a close waits for the disk");
    assert_eq!(
        (level(&rig, "short").await, level(&rig, "long").await),
        (Level::Memory, Level::Memory)
    );
    pass(&rig.clock, SOON - Duration::from_millis(1)).await;
    assert_eq!(rig.disk.syncs(), syncs, "earlier than its class asks for");
    kept(&rig, "short").await;
    kept(&rig, "long").await;
    assert_eq!(rig.server.calls("write"), 0);
    let rig = rig.crash().await;
    rig.sent().await;
    assert_eq!(at_server(&rig, "short").await, b"bytes");
    assert!(at_server(&rig, "long").await == long);
    assert_eq!(rig.set_aside().len(), 0);
}

/// Before its time a crash of the machine may lose what was closed, and nothing else comes of it:
/// the server has a file without bytes or all of them.
#[tokio::test]
async fn a_crash_before_that_leaves_all_or_nothing() {
    for kind in [Image::Synced, Image::Written, Image::Torn(7)] {
        for bytes in [pattern(2, 5_000), pattern(3, 3 << 20)] {
            let rig = Rig::new(generated()).await;
            rig.put("file", &bytes).await;
            let next = rig.boot(rig.last(kind), rig.server.another_client()).await;
            next.sent().await;
            let there = at_server(&next, "file").await;
            assert!(there.is_empty() || there == bytes, "{kind:?}: {} bytes", there.len());
            assert_eq!(next.set_aside().len(), 0, "{kind:?}");
        }
    }
}

/// Files that are closed one after the other share the syncs; what was removed by then costs none.
#[tokio::test(start_paused = true)]
async fn files_share_syncs() {
    let rig = Rig::new(generated()).await;
    let syncs = rig.disk.syncs();
    for no in 0..200 {
        rig.put(&format!("{no}"), b"bytes").await;
    }
    kept(&rig, "199").await;
    for no in 0..200 {
        kept(&rig, &format!("{no}")).await;
    }
    let taken = rig.disk.syncs() - syncs;
    println!("{taken} syncs for 200 files");
    assert!(taken <= 2, "{taken} syncs");

    let syncs = rig.disk.syncs();
    rig.put("gone", &pattern(1, 3 << 20)).await;
    rig.remove("gone").await.unwrap();
    pass(&rig.clock, SOON * 2).await;
    assert_eq!(rig.disk.syncs(), syncs);
}

/// Another client looks into a directory before the time is over: this disk has the files in it
/// before their names are at the server.
#[tokio::test(start_paused = true)]
async fn who_looks_into_a_directory_waits_until_this_disk_has_its_files() {
    let rig = Rig::exclusive(generated()).await;
    let top = rig.server.root().await.unwrap().handle;
    rig.server.set_excludes(true);
    rig.server.exclude(&root(), &top).await.unwrap();
    let long = pattern(4, 3 << 20);
    rig.put("short", b"bytes").await;
    rig.put("long", &long).await;
    rig.server.recall(&top).await;
    let levels = (level(&rig, "short").await, level(&rig, "long").await);
    assert_eq!(levels, (Level::Local, Level::Local));
    let rig = rig.crash().await;
    rig.client.sync(&|_| true).await.unwrap();
    assert_eq!(at_server(&rig, "short").await, b"bytes");
    assert!(at_server(&rig, "long").await == long);
}

/// An fsync, and whoever sends a file, find it as one that close has kept.
#[tokio::test(start_paused = true)]
async fn who_comes_before_finds_a_kept_file() {
    let rig = Rig::new(generated()).await;
    rig.put("synced", b"bytes").await;
    let open = rig.open(&root(), "synced", WRITE).await.unwrap();
    rig.client.fsync(&root(), open.ino, None).wait().await.unwrap();
    assert_eq!(level(&rig, "synced").await, Level::Local);
    open.close().await.unwrap();
    rig.put("sent", b"bytes").await;
    let written = rig.stat("sent").await.attr.mtime;
    rig.client.sync(&|_| true).await.unwrap();
    assert_eq!(at_server(&rig, "sent").await, b"bytes");
    assert_eq!(rig.stat("sent").await.attr.mtime, written, "as programs saw it before");

    rig.put("renamed", b"bytes").await;
    rig.rename("renamed", "other").await.unwrap();
    assert_eq!(at_server(&rig, "other").await, b"bytes");
    rig.put("linked", b"bytes").await;
    let linked = rig.find("linked").await.unwrap();
    rig.client.link(&root(), linked, Ino::ROOT, "link".as_ref()).wait().await.unwrap();
    assert_eq!(at_server(&rig, "link").await, b"bytes");
}

/// What another client has changed since is not overwritten, by the next process neither.
#[tokio::test]
async fn another_clients_change_is_seen_before_it_is_sent() {
    for dies in [None, Some(Start::Resume), Some(Start::NewMount)] {
        let rig = Rig::new(generated()).await;
        rig.put("file", b"first").await;
        rig.client.sync(&|_| true).await.unwrap();
        let open = rig.open(&root(), "file", WRITE).await.unwrap();
        open.write(0, b"OURS").await.unwrap();
        open.close().await.unwrap();
        rig.foreigner().await.put("file", b"theirs").await;
        let rig = match dies {
            Some(start) => rig.kill(start).await,
            None => rig,
        };
        let _ = rig.client.sync(&|_| true).await;
        rig.sent().await;
        rig.client.sync(&|_| true).await.unwrap();
        assert_eq!(at_server(&rig, "file").await, b"theirs", "{dies:?}");
        let ours = (beside(&rig, "file").await, rig.set_aside().len());
        assert_eq!(ours, (vec![b"OURSt".to_vec()], 0), "{dies:?}");
    }
}

/// What the disk does not take in its time is sent; a process that ends before has it kept.
#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_take_it_and_a_process_that_ends() {
    let rig = Rig::new(generated()).await;
    rig.put("file", b"bytes").await;
    rig.disk.inject(Fault::EioSyncs);
    pass(&rig.clock, SOON).await;
    rig.sent().await;
    rig.disk.heal();
    assert_eq!(at_server(&rig, "file").await, b"bytes");

    let rig = Rig::new(generated()).await;
    rig.put("left", b"bytes").await;
    rig.client.keep_unsent().await;
    assert_eq!(rig.server.calls("write"), 0);
    let rig = rig.crash().await;
    rig.sent().await;
    assert_eq!(at_server(&rig, "left").await, b"bytes");
}

/// A file that is written beside another one and takes its name: after a crash of the machine that
/// name has the former bytes or the new ones.
#[tokio::test]
async fn a_file_that_replaces_another_one_brings_its_bytes() {
    for bytes in [pattern(2, 5_000), pattern(3, 3 << 20)] {
        for kind in [Image::Synced, Image::Written, Image::Torn(7), Image::Torn(8)] {
            let rig = Rig::exclusive(generated()).await;
            rig.put("first", b"").await;
            rig.put("file", b"former").await;
            rig.client.keep_unsent().await;
            rig.put("beside", &bytes).await;
            rig.rename("beside", "file").await.unwrap();
            rig.checkpoint();
            let next = rig.boot(rig.last(kind), rig.server.another_client()).await;
            next.client.sync(&|_| true).await.unwrap();
            let there = at_server(&next, "file").await;
            assert!(there == b"former" || there == bytes, "{kind:?}: {} bytes", there.len());
            assert_eq!(next.set_aside().len(), 0, "{kind:?}");
        }
    }
}
