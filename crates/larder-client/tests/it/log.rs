//! What ordinary calls put into the cache's session log, so that the next process knows it.

use std::sync::Arc;

use larder_client::Options;
use larder_io::{Disk, DiskFile, OpenMode};

use crate::rig::{READ, Rig, WRITE, pattern, root};

/// Length of a segment's header (docs/formats/cache.md).
const HEADER_BYTES: usize = 44;

/// Groups of changes in the log.
fn groups(rig: &Rig) -> usize {
    let is_log = |path: &str| path.starts_with("log.");
    let count = |file: Arc<dyn DiskFile>| {
        let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let (mut rest, mut count) = (bytes.get(HEADER_BYTES..).unwrap_or_default(), 0);
        while let Some((len, behind)) = rest.split_first_chunk() {
            rest = &behind[4 + u32::from_le_bytes(*len) as usize..];
            count += 1;
        }
        count
    };
    let logs = rig.disk.files().into_iter().filter(|(path, _)| is_log(path));
    logs.map(|(path, _)| count(rig.disk.open(&path, OpenMode::Existing).unwrap())).sum()
}

/// The counts are what the next process needs, and no more: a change of them must be explained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_calls_put_few_changes_into_the_log() {
    let rig = Rig::new(Options::default()).await;
    let bytes = pattern(1, 4000);
    rig.put("file", &bytes).await;
    rig.put("other", &bytes).await;
    // What was just written is recorded as valid, and its first change commits: outside of what is
    // counted.
    rig.checkpoint();
    let change = rig.open(&root(), "file", WRITE).await.unwrap();
    change.write(0, b"first").await.unwrap();
    change.close().await.unwrap();
    let mut at = groups(&rig);
    let mut cost = || {
        let before = std::mem::replace(&mut at, groups(&rig));
        at - before
    };

    // The open file, and that it was closed.
    assert!(rig.cat("other").await == bytes);
    assert_eq!(cost(), 2, "open, read, close");
    rig.advance(3600);
    rig.open(&root(), "other", READ).await.unwrap().close().await.unwrap();
    assert_eq!(cost(), 2, "the same when the server has to confirm the file and its directory");
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(10, b"again").await.unwrap();
    open.close().await.unwrap();
    // One of them says that a request was begun (ADR 109).
    assert_eq!(cost(), 9, "open, write, close");
    rig.put("new", &bytes).await;
    assert_eq!(cost(), 14, "create, write, close");
    rig.remove("new").await.unwrap();
    assert_eq!(cost(), 3, "unlink");
}
