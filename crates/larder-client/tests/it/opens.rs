//! A server that has opens: what is requested from it, what uses the tokens, and when the opens are
//! closed.

use larder_client::Start;
use larder_io::SimDisk;
use larder_vfs::{MemRemote, Remote, RemoteLimits};

use crate::rig::{READ, Rig, WRITE, pattern, root};

async fn rig() -> Rig {
    let limits = RemoteLimits { opens: true, ..MemRemote::new().limits() };
    Rig::on_server(MemRemote::with_limits(limits), SimDisk::new(), Start::NewMount).await
}

#[tokio::test]
async fn an_open_asks_once_and_its_token_goes_with_the_bytes() {
    let rig = rig().await;
    rig.foreigner().await.put("file", b"0123456789").await;
    rig.find("file").await.unwrap();
    rig.server.reset_calls();
    let open = rig.open(&root(), "file", READ).await.unwrap();
    assert_eq!((rig.server.calls("open"), rig.server.calls("access")), (1, 0));
    assert_eq!(rig.server.opens(), 1);
    assert_eq!(open.read(0, 99).await.unwrap(), b"0123456789");
    assert_eq!((rig.server.calls("read"), rig.server.calls_opened("read")), (1, 1));
    open.close().await.unwrap();
    assert_eq!((rig.server.opens(), rig.server.calls("close")), (0, 1));
}

#[tokio::test]
async fn what_is_written_goes_by_the_token_of_the_writers_open() {
    let rig = rig().await;
    let open = rig.create("file").await;
    assert_eq!((rig.server.calls("open"), rig.server.opens()), (0, 1), "it was made open");
    let reader = rig.open(&root(), "file", READ).await.unwrap();
    open.write(0, b"0123456789").await.unwrap();
    open.flush().await.unwrap();
    assert_eq!((rig.server.calls("write"), rig.server.calls_opened("write")), (1, 1));
    open.write(0, &pattern(1, 3 << 20)).await.unwrap();
    open.flush().await.unwrap();
    let (written, committed) = (rig.server.calls("write"), rig.server.calls("commit"));
    assert!(written > 2 && committed == 1);
    assert_eq!(rig.server.calls_opened("write"), written);
    assert_eq!(rig.server.calls_opened("commit"), committed);
    open.close().await.unwrap();
    reader.close().await.unwrap();
    assert_eq!(rig.server.opens(), 0);
}

/// Sent when the file is no longer open, the data uses an open of its own.
#[tokio::test]
async fn what_is_sent_late_is_opened_for_and_closed() {
    let rig = rig().await;
    rig.put("file", b"short").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, &pattern(1, 3 << 20)).await.unwrap();
    rig.server.time_out();
    open.close().await.unwrap_err();
    rig.server.reconnect();
    rig.server.reset_calls();
    rig.sent().await;
    assert!(rig.server.calls("write") > 1);
    assert_eq!(rig.server.calls_opened("write"), rig.server.calls("write"));
    assert_eq!(rig.server.calls("open"), 1);
    assert_eq!(rig.server.opens(), 0);
    assert_eq!(rig.foreigner().await.cat("file").await, pattern(1, 3 << 20));
}

#[tokio::test]
async fn the_next_process_opens_what_is_open() {
    let rig = rig().await;
    rig.put("file", b"0123456789").await;
    let open = rig.open(&root(), "file", READ).await.unwrap();
    let names = open.names();
    let rig = rig.kill(Start::Resume).await;
    while rig.server.opens() == 0 {
        tokio::task::yield_now().await;
    }
    let open = rig.again(names);
    assert_eq!(open.read(0, 99).await.unwrap(), b"0123456789");
    open.close().await.unwrap();
    assert_eq!(rig.server.opens(), 0);
}

/// Attributes that are still trusted, and rights that are known, are not requested again; the
/// server is told of the open all the same.
#[tokio::test]
async fn an_open_that_asks_nothing_is_an_open() {
    let rig = rig().await;
    rig.server.give_leases();
    rig.put("file", b"0123456789").await;
    for opens in 1..=2 {
        let open = rig.open(&root(), "file", READ).await.unwrap();
        rig.server.reset_calls();
        let again = rig.open(&root(), "file", READ).await.unwrap();
        assert_eq!(rig.server.calls("access"), 0, "round {opens}");
        assert_eq!((rig.server.calls("open"), rig.server.opens()), (1, 2));
        again.close().await.unwrap();
        open.close().await.unwrap();
        assert_eq!(rig.server.opens(), 0);
    }
}
