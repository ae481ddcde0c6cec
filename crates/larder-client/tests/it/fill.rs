//! Files that are completed while the link is quiet, and those that are not.

use larder_client::Options;
use larder_vfs::SetAttr;

use crate::rig::{PATIENCE, READ, Rig, pattern, root};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_completed_does_not_wait_for_a_quiet_link() {
    let off = Options { fill_after: None, ..Options::default() };
    let small = Options { fill_bytes_max: 1 << 20, ..Options::default() };
    for (options, bytes_max, waiting) in
        [(off, None, 0), (small, Some(1 << 20), 0), (Options::default(), Some(64 << 20), 1)]
    {
        let rig = Rig::new(options).await;
        rig.foreigner().await.put("file", &pattern(1, 3 << 20)).await;
        let open = rig.open(&root(), "file", READ).await.unwrap();
        open.read(3 << 19, 1000).await.unwrap();
        open.close().await.unwrap();
        rig.landed_in_part("file").await;
        let fill = rig.client.status().fill;
        assert_eq!((fill.bytes_max, fill.waiting), (bytes_max, waiting));
    }
}

/// The server says that a file takes few blocks, not where they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sparse_files_are_not_completed() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    other.put("file", b"the beginning").await;
    let size = Some(48 << 20);
    other.set("file", SetAttr { size, ..SetAttr::default() }).await;
    let open = rig.open(&root(), "file", READ).await.unwrap();
    open.read(0, 1000).await.unwrap();
    open.close().await.unwrap();
    rig.landed_in_part("file").await;
    assert_eq!(rig.client.status().fill.waiting, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_read_file_is_completed_while_the_link_is_quiet() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 3 << 20);
    rig.foreigner().await.put("file", &bytes).await;
    let open = rig.open(&root(), "file", READ).await.unwrap();
    // In the middle of a request's worth, which leaves two more pieces to fetch.
    open.read(3 << 19, 1000).await.unwrap();
    open.close().await.unwrap();
    rig.advance(60);
    let deadline = std::time::Instant::now() + PATIENCE;
    let limits = larder_vfs::Remote::limits(&*rig.server);
    let requests = (3_u64 << 20).div_ceil(u64::from(limits.read_max).min(1 << 20));
    while rig.server.calls("read") < requests + 2 {
        assert!(std::time::Instant::now() < deadline, "{}", rig.server.calls("read"));
        rig.pass_to_next_wake();
        tokio::task::yield_now().await;
    }
    rig.server.reset_calls();
    assert!(rig.cat("file").await == bytes);
    assert_eq!(rig.server.calls("read"), 0);
}
