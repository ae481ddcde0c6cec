//! What the holder of a lock sees on a client that has unsent bytes of the file.

use std::ffi::OsStr;

use larder_vfs::{
    Cred, Entry, FileSystem, Ino, Lock, LockKind, LockMode, LockOwner, Lookup, OpenFlags, OpenId,
    SetAttr, Stability,
};
use tokio::runtime::Builder;

use crate::world::{Life, World};

const FLAGS: OpenFlags = OpenFlags { write: true, read: true, ..OpenFlags::WRITE };
const NAME: &str = "file";
const ROUNDS: u8 = 20;

/// Opens the file.
async fn open(life: &Life) -> (Ino, OpenId) {
    let (client, root) = (&life.client, Cred::root());
    let found = client.lookup(&root, Ino::ROOT, OsStr::new(NAME)).wait().await.unwrap();
    let Lookup::Found(Entry { ino, .. }) = found else { panic!("not there") };
    (ino, client.open(&root, ino, FLAGS).wait().await.unwrap().id)
}

async fn write(life: &Life, (ino, open): (Ino, OpenId), offset: u64, bytes: &[u8]) {
    let unstable = Stability::Unstable;
    let written = life.client.write(&Cred::root(), ino, Some(open), offset, bytes, unstable);
    written.wait().await.unwrap();
}

async fn close(life: &Life, (ino, open): (Ino, OpenId)) {
    life.client.flush(&Cred::root(), ino, open, None).wait().await.unwrap();
    life.client.release(ino, open).wait().await.unwrap();
}

/// One client writes a byte and closes. The other one, which had the file open and cached before,
/// writes another byte of the block and does not send it, and locks and reads the first one. Then
/// the file is longer.
#[test]
fn a_holder_sees_what_was_closed_elsewhere_beside_unsent_bytes() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for copies in [1, 2] {
        let world = World::with_copies(2, copies);
        let [here, there] = [0, 1].map(|client| world.lives(client).borrow().clone().unwrap());
        runtime.block_on(async {
            let (root, set) = (Cred::root(), SetAttr { mode: Some(0o644), ..SetAttr::default() });
            let made = here.client.create(&root, Ino::ROOT, OsStr::new(NAME), set, FLAGS);
            let (ino, mine) = made.wait().await.map(|made| (made.0.ino, made.1.id)).unwrap();
            write(&here, (ino, mine), 0, &[0; 100]).await;
            here.client.fsync(&root, ino, None).wait().await.unwrap();
            for round in 1..=ROUNDS {
                let theirs = open(&there).await;
                write(&there, theirs, 10, &[round]).await;
                write(&there, theirs, 100 + u64::from(round), &[round]).await;
                close(&there, theirs).await;
                write(&here, (ino, mine), 20, &[round]).await;
                let owner = LockOwner { kind: LockKind::Range, id: 1 };
                let lock = Lock { owner, pid: 1, range: 10..11, mode: LockMode::Exclusive };
                here.client.lock(ino, mine, lock, None).wait().await.unwrap();
                let seen = here.client.read(&root, ino, Some(mine), 0, 1000).wait().await.unwrap();
                let end = 101 + usize::from(round);
                assert_eq!((seen[10], seen[20], seen.len()), (round, round, end), "{copies}");
                here.client.unlock(ino, mine, owner, 10..11).wait().await.unwrap();
            }
            close(&here, (ino, mine)).await;
        });
    }
}
