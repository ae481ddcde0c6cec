//! Data that is acknowledged in this machine's memory although other clients see its file: they are
//! excluded, and it is sent when one asks.

use std::sync::Arc;
use std::time::Duration;

use larder_class::{Level, Sources, load};
use larder_client::{Here, Keeps, Options, shared_offer};
use larder_vfs::{FileSystem, Handle, Remote};

use crate::kept::{at_server, level};
use crate::rig::{Rig, pass, pattern, root};

const LONG: Duration = Duration::from_secs(86_400);

fn options(class: &str) -> Options {
    let sources = Sources { class: Some(class.into()), ..Sources::default() };
    let offer =
        shared_offer("a volume", Here { memory: true, ..Here::DISK }, Duration::from_secs(30));
    let classes = Arc::new(load(&sources, &offer).unwrap());
    Options { classes, keeps: Keeps::Alone, ..Options::default() }
}

async fn rig() -> Rig {
    let rig = Rig::new(options("scratch")).await;
    assert_eq!(rig.client.classes().mount().raised, "");
    rig.server.set_excludes(true);
    rig
}

async fn handle(rig: &Rig, name: &str) -> Handle {
    let top = rig.server.root().await.unwrap().handle;
    rig.server.lookup(&root(), &top, name.as_ref()).await.unwrap().found.unwrap().handle
}

/// How often these were called since the rig was asked last.
fn calls(rig: &Rig) -> [u64; 3] {
    let calls = ["retain", "write", "release"].map(|method| rig.server.calls(method));
    rig.server.reset_calls();
    calls
}

/// The file is sent once somebody asks, with its time; rewritten it is retained again; removed, it
/// is never sent.
#[tokio::test(start_paused = true)]
async fn what_needs_only_memory_is_sent_when_somebody_asks() {
    let rig = rig().await;
    for round in 0..3 {
        let bytes = pattern(round, 100_000);
        rig.put("file", &bytes).await;
        pass(&rig.clock, LONG).await;
        assert_eq!(calls(&rig), [1, 0, 0], "{round}");
        assert_eq!((level(&rig, "file").await, at_server(&rig, "file").await), {
            (Level::Memory, Vec::new())
        });
        assert_eq!(rig.cat("file").await, bytes);
        let written = rig.stat("file").await.attr.mtime;
        let file = handle(&rig, "file").await;
        rig.server.recall(&file).await;
        assert_eq!(at_server(&rig, "file").await, bytes);
        assert_eq!(rig.server.getattr(&root(), &file).await.unwrap().mtime, written);
        let [retained, sent, released] = calls(&rig);
        assert!((retained, released) == (0, 1) && sent > 0, "{round}");
        assert_eq!(rig.client.unsaved(), []);
    }
    rig.put("removed", b"bytes").await;
    rig.remove("removed").await.unwrap();
    pass(&rig.clock, LONG).await;
    assert_eq!(calls(&rig), [1, 0, 0]);
}

/// A file of which the server has bytes, one that is long, and one from which others cannot be
/// excluded.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_retained_is_sent_at_close() {
    let rig = rig().await;
    rig.put("there", b"bytes").await;
    rig.server.recall(&handle(&rig, "there").await).await;
    calls(&rig);
    let there = rig.find("there").await.unwrap();
    let open = rig.client.open(&root(), there, crate::rig::WRITE).wait().await.unwrap();
    rig.again((there, open.id)).write(5, b" more").await.unwrap();
    rig.again((there, open.id)).close().await.unwrap();
    assert_eq!(at_server(&rig, "there").await, b"bytes more");
    let long = pattern(2, (64 << 20) + 1);
    rig.put("long", &long).await;
    assert_eq!(rig.client.unsaved(), []);
    rig.server.set_excludes(false);
    rig.put("seen", b"bytes").await;
    assert_eq!(at_server(&rig, "seen").await, b"bytes");
    assert_eq!(calls(&rig)[0], 0);
}

/// What a stronger class keeps on this machine's disk is not lost with this machine's memory.
#[tokio::test(start_paused = true)]
async fn what_is_kept_is_not_retained_any_more() {
    let rig = rig().await;
    rig.put("file", b"bytes").await;
    assert_eq!(calls(&rig), [1, 0, 0]);
    let ino = rig.find("file").await.unwrap();
    let open = rig.client.open(&root(), ino, crate::rig::WRITE).wait().await.unwrap();
    let file = rig.again((ino, open.id));
    rig.client.hint_class(&root(), ino, open.id, "generated".into()).wait().await.unwrap();
    file.write(0, b"BYTES").await.unwrap();
    file.close().await.unwrap();
    assert!(!rig.server.retains(&handle(&rig, "file").await));
    assert!(level(&rig, "file").await >= Level::Local);
}

/// What cannot be sent when somebody asks is tried again, although its class gives it no time.
#[tokio::test(start_paused = true)]
async fn what_somebody_waits_for_is_tried_again() {
    let rig = rig().await;
    rig.put("file", b"bytes").await;
    let file = handle(&rig, "file").await;
    rig.server.time_out();
    rig.server.recall(&file).await;
    rig.server.reconnect();
    assert!(rig.server.retains(&file), "it was not sent");
    pass(&rig.clock, Duration::from_secs(60)).await;
    assert_eq!(at_server(&rig, "file").await, b"bytes");
    assert!(!rig.server.retains(&file));
}
