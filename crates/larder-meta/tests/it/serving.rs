//! The program over sockets.

use std::sync::Arc;

use larder_io::{Disk, MemDisk};
use larder_wire::meta::calls;
use larder_wire::meta::words::FileId;
use larder_wire::meta::{BLOCK_BYTES, Status};
use larder_wire::xdr::Array;
use tokio::task::JoinSet;

use crate::client::{Client, create, dentry, engine, serve};

const ROOT: FileId = FileId::ROOT;

fn memory() -> Arc<dyn Disk> {
    Arc::new(MemDisk::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_made_found_and_removed() {
    let client = Client::connect(serve(engine(&memory())).await, 1, 1).await;
    let opened = client.create((0, 1), ROOT, "a").await.unwrap();
    let file = opened.file.after.file;
    assert!(opened.created);
    assert_eq!(opened.layout.extents.0[0].length, BLOCK_BYTES);
    assert_eq!(opened.layout.grants.0.len(), 1);
    assert_eq!(client.lookup(ROOT, "a").await, Some(file));
    let renewed = client.call(calls::Renew { session: client.session }).await;
    // The first owner was the one that added the disk.
    assert_eq!(renewed.unwrap().server_boot, 2);
    let close = calls::Close { sequence: client.sequence(0, 2), opens: Array(vec![opened.open]) };
    client.call(close).await.unwrap();
    let remove = calls::Remove { sequence: client.sequence(0, 3), dentry: dentry(ROOT, "a") };
    client.call(remove).await.unwrap();
    assert_eq!(client.lookup(ROOT, "a").await, None);
    let gone = client.call(calls::GetAttr { session: client.session, file }).await;
    assert_eq!(gone, Err(Status::Stale));
}

/// A call that is sent again over another connection, by a client that does not know its outcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_comes_by_another_connection_is_carried_out_once() {
    let address = serve(engine(&memory())).await;
    let one = Client::connect(address, 1, 1).await;
    let call = create(one.sequence(0, 1), ROOT, "a");
    let first = one.call(call.clone()).await.unwrap();
    let two = Client::connect(address, 1, 1).await;
    assert_eq!(one.session, two.session);
    assert_eq!(two.call(call.clone()).await.unwrap(), first);
    one.rpc.shutdown();
    assert_eq!(two.call(call).await.unwrap(), first);
    assert_eq!(two.lookup(ROOT, "a").await, Some(first.file.after.file));
}

/// Several clients make, rename and remove the same few names in one directory. A client that was
/// told that it made a name is the only one until the name was removed.
#[tokio::test(flavor = "multi_thread")]
async fn many_make_and_take_the_same_names() {
    const CALLERS: u32 = 8;
    const ROUNDS: u32 = 60;
    let disk = memory();
    let address = serve(engine(&disk)).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(async move {
            let client = Client::connect(address, caller as u8, 1).await;
            let (mut made, mut taken, mut sequence) = (0, 0, 0);
            for round in 0..ROUNDS {
                let name = format!("n{}", (caller + round) % 3);
                sequence += 1;
                match client.create((0, sequence), ROOT, &name).await {
                    Ok(opened) => {
                        made += 1;
                        sequence += 1;
                        let bearer = client.sequence(0, sequence);
                        let close =
                            calls::Close { sequence: bearer, opens: Array(vec![opened.open]) };
                        client.call(close).await.unwrap();
                    }
                    Err(status) => assert_eq!(status, Status::Exists),
                }
                sequence += 1;
                let bearer = client.sequence(0, sequence);
                let removed = client
                    .call(calls::Remove { sequence: bearer, dentry: dentry(ROOT, &name) })
                    .await;
                match removed {
                    Ok(_) => taken += 1,
                    Err(status) => assert_eq!(status, Status::NotFound),
                }
            }
            (made, taken)
        });
    }
    let (mut made, mut taken) = (0, 0);
    while let Some(done) = callers.join_next().await {
        let (one_made, one_taken) = done.unwrap();
        (made, taken) = (made + one_made, taken + one_taken);
    }
    let client = Client::connect(address, 100, 1).await;
    let (session, bytes_max) = (client.session, 4096);
    let list = calls::ReadDir { session, dir: ROOT, cookie: 0, bytes_max, attributes: true };
    let left = client.call(list).await.unwrap().entries.0.len();
    assert_eq!(made, taken + left);
    let dir = client.call(calls::GetAttr { session, file: ROOT }).await.unwrap();
    // One version for each change.
    assert_eq!(dir.change.0, 1 + (made + taken) as u64);
}
