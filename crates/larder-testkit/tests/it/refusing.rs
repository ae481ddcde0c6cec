//! A disk that refuses what the metadata server grants: for longer than a client tries, or since
//! its machine lacks memory.

use std::ffi::OsStr;

use larder_io::{Headroom, Image};
use larder_vfs::{Cred, Entry, Error, FileSystem, Ino, Lookup, OpenFlags, SetAttr, Stability};
use tokio::runtime::Builder;

use crate::world::World;

const FLAGS: OpenFlags = OpenFlags { write: true, read: true, ..OpenFlags::WRITE };

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
        let found = reader.lookup(&root, Ino::ROOT, name).wait().await.unwrap();
        let Lookup::Found(Entry { ino: there, .. }) = found else { panic!("not there") };
        let opened = reader.open(&root, there, OpenFlags::READ).wait().await.unwrap().id;
        let mut seen = Vec::new();
        while seen.len() < bytes.len() {
            let at = seen.len() as u64;
            let read = reader.read(&root, there, Some(opened), at, 1 << 20).wait().await.unwrap();
            assert!(!read.is_empty(), "it ends at {at}");
            seen.extend_from_slice(&read);
        }
        assert!(seen == bytes);
        reader.release(there, opened).wait().await.unwrap();
    });
}

/// A memory disk's machine lacks memory all of a sudden: before the metadata server knows that, and
/// after, the client writes to the other disk, and no caller learns of it. Each round is another
/// chance to be faster than the metadata server.
#[test]
fn what_a_memory_disk_refuses_goes_to_another_disk() {
    for disks in [1, 2] {
        let world = World::with_memory(1, disks);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let client = world.lives(0).borrow().clone().unwrap().client;
        let (root, set) = (Cred::root(), SetAttr { mode: Some(0o644), ..SetAttr::default() });
        let memory = world.volume.disks();
        let much = Headroom { bytes: 1 << 40, is_stalled: false };
        let mut files = Vec::new();
        for round in 0..10_u8 {
            let (bytes, name) = (vec![round + 1; 300_000], format!("f{round}.v"));
            let made = client.create(&root, Ino::ROOT, OsStr::new(&name), set, FLAGS).wait();
            let (entry, opened) = runtime.block_on(made).unwrap();
            let none = Headroom { bytes: -(1 << 40), is_stalled: false };
            let now = if round % 2 == 0 { none } else { much };
            world.volume.note_headroom(memory, now);
            runtime.block_on(async {
                let (ino, open) = (entry.ino, opened.id);
                let write = client.write(&root, ino, Some(open), 0, &bytes, Stability::Unstable);
                write.wait().await.unwrap();
                client.flush(&root, ino, open, None).wait().await.unwrap();
                client.release(ino, open).wait().await.unwrap();
            });
            files.push((entry.ino, bytes));
        }
        for (ino, bytes) in files {
            let read = runtime.block_on(async {
                let opened = client.open(&root, ino, OpenFlags::READ).wait().await.unwrap().id;
                let read = client.read(&root, ino, Some(opened), 0, 300_000).wait().await.unwrap();
                client.release(ino, opened).wait().await.unwrap();
                read
            });
            assert!(!read.is_empty() && read[..] == bytes[..read.len()]);
        }
    }
}
