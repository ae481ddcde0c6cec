//! A disk that refuses what the metadata server grants: for longer than a client tries, or since
//! its machine lacks memory.

use std::ffi::OsStr;
use std::time::Duration;

use larder_client::Client;
use larder_io::{Headroom, Image};
use larder_vfs::{
    Cred, Entry, Error, FileSystem, Ino, Lookup, Medium, OpenFlags, SetAttr, Stability, StoredPart,
};
use larder_wire::disk::words::Refusal;
use tokio::runtime::Builder;

use crate::world::World;

const FLAGS: OpenFlags = OpenFlags { write: true, read: true, ..OpenFlags::WRITE };

/// So many files are written where memory comes and goes, and more until a disk has refused one.
const FILES: usize = 10;
/// By then one has been refused.
const FILES_MAX: usize = 200;
/// How long each is.
const LENGTH: usize = 300_000;

/// The file of this name in the root directory.
async fn find(client: &Client, name: &str) -> Ino {
    let found = client.lookup(&Cred::root(), Ino::ROOT, OsStr::new(name)).wait().await.unwrap();
    let Lookup::Found(Entry { ino, .. }) = found else { panic!("{name} is not there") };
    ino
}

/// All bytes of a file.
async fn whole(client: &Client, ino: Ino) -> Vec<u8> {
    let root = Cred::root();
    let open = client.open(&root, ino, OpenFlags::READ).wait().await.unwrap().id;
    let mut seen = Vec::new();
    loop {
        let at = seen.len() as u64;
        let read = client.read(&root, ino, Some(open), at, 1 << 20).wait().await.unwrap();
        if read.is_empty() {
            break;
        }
        seen.extend_from_slice(&read);
    }
    client.release(ino, open).wait().await.unwrap();
    seen
}

/// The writer is told that its data is late, not that it is lost; the data arrives once the disk
/// trusts the metadata server again.
#[test]
fn what_a_disk_refuses_for_long_is_kept_and_tried_again() {
    let mut world = World::new(2);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let life = |world: &World, client: usize| world.lives(client).borrow().clone().unwrap();
    let (writer, reader) = (life(&world, 0).client, life(&world, 1).client);
    let (root, name) = (Cred::root(), OsStr::new("file"));
    let bytes = vec![7; 300_000];
    let (ino, open) = runtime.block_on(async {
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let made = writer.create(&root, Ino::ROOT, name, set, FLAGS).wait().await.unwrap();
        (made.0.ino, made.1.id)
    });
    world.volume.kill_disks(Image::Written);
    world.volume.start_distrustful_disk();
    runtime.block_on(async {
        let write = writer.write(&root, ino, Some(open), 0, &bytes, Stability::Unstable);
        write.wait().await.unwrap();
        let closed = writer.flush(&root, ino, open, None).wait().await;
        assert_eq!(closed, Err(Error::TimedOut));
    });
    world.volume.kill_disks(Image::Written);
    world.volume.start();
    runtime.block_on(async {
        writer.fsync(&root, ino, None).wait().await.unwrap();
        writer.release(ino, open).wait().await.unwrap();
        let there = find(&reader, "file").await;
        assert!(whole(&reader, there).await == bytes);
    });
}

/// What a file of [`LENGTH`] bytes has, unlike others.
fn content(number: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| u8::try_from((at / 1000 + number) % 251).unwrap()).collect()
}

/// A memory disk's machine lacks memory all of a sudden: before the metadata server knows that, and
/// after, the client writes to the other disk, and no caller learns of it. Another client finds the
/// whole file there. Each round is another chance to be faster than the metadata server.
#[test]
fn what_a_memory_disk_refuses_goes_to_another_disk() {
    for disks in [1, 2] {
        let world = World::with_memory(2, disks);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let life = |client: usize| world.lives(client).borrow().clone().unwrap();
        let (writer, reader) = (life(0).client, life(1).client);
        let (root, set) = (Cred::root(), SetAttr { mode: Some(0o644), ..SetAttr::default() });
        let memory = world.volume.disks();
        let much = Headroom { bytes: 1 << 40, is_stalled: false };
        let none = Headroom { bytes: -(1 << 40), is_stalled: false };
        let refused = || -> u64 {
            let all = memory..memory + disks;
            all.map(|at| world.volume.refusals(at, Refusal::NoSpace)).sum()
        };
        let mut files = 0;
        while files < FILES || refused() == 0 {
            assert!(files < FILES_MAX, "no memory disk refuses anything");
            let name = format!("f{files}.v");
            let made = writer.create(&root, Ino::ROOT, OsStr::new(&name), set, FLAGS).wait();
            let (entry, opened) = runtime.block_on(made).unwrap();
            let now = if files % 2 == 0 { none } else { much };
            world.volume.note_headroom(memory, now);
            runtime.block_on(async {
                let (ino, open, bytes) = (entry.ino, opened.id, content(files));
                let write = writer.write(&root, ino, Some(open), 0, &bytes, Stability::Unstable);
                write.wait().await.unwrap();
                writer.flush(&root, ino, open, None).wait().await.unwrap();
                writer.release(ino, open).wait().await.unwrap();
            });
            files += 1;
        }
        for number in 0..files {
            runtime.block_on(async {
                let there = find(&reader, &format!("f{number}.v")).await;
                let stored = reader.stored(&root, there, Duration::from_secs(60)).await.unwrap();
                assert!(whole(&reader, there).await == content(number), "{number}");
                let on_disk = StoredPart {
                    medium: Medium::Disk,
                    bytes: LENGTH as u64,
                    disks: vec![1],
                    is_lost: false,
                };
                // What was written while there was no memory for it is on the disk that lasts.
                assert!(number % 2 == 1 || stored == [on_disk], "{number}: {stored:?}");
            });
        }
    }
}
