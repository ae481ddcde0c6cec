//! Appending: where the end is.

use larder_client::Options;
use larder_vfs::OpenFlags;

use crate::rig::{Rig, WRITE, root};

/// The kernel remembers an end from before another client truncated the file; the client knows the
/// new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_goes_to_the_end_wherever_the_kernel_believes_it_to_be() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    other.put("file", b"a long line").await;
    assert_eq!(rig.cat("file").await, b"a long line");
    other.put("file", b"cut ").await;
    let flags = OpenFlags { append: true, ..WRITE };
    let open = rig.open(&root(), "file", flags).await.unwrap();
    open.write(11, b"one").await.unwrap();
    open.write(14, b"two").await.unwrap();
    open.close().await.unwrap();
    assert_eq!(other.cat("file").await, b"cut onetwo");
}

/// A descriptor that was open before the file was truncated learns of that when its timeout is
/// over, with one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_asks_where_the_file_ends_when_that_is_old() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    rig.put("file", b"a long line").await;
    let flags = OpenFlags { append: true, ..WRITE };
    let open = rig.open(&root(), "file", flags).await.unwrap();
    other.put("file", b"cut ").await;
    rig.advance(60);
    rig.server.reset_calls();
    open.write(11, b"one").await.unwrap();
    open.write(14, b"two").await.unwrap();
    assert_eq!((rig.server.calls("getattr"), rig.server.calls_total()), (1, 1));
    open.close().await.unwrap();
    assert_eq!(other.cat("file").await, b"cut onetwo");
}
