//! A writer that dies between its write to a disk and the commit.

use std::ffi::OsStr;

use larder_io::Image;
use larder_vfs::{Cred, Entry, FileSystem, Ino, Lookup, OpenFlags, SetAttr, Stability};
use tokio::runtime::Builder;

use crate::world::{Life, World};

const FLAGS: OpenFlags = OpenFlags { write: true, read: true, ..OpenFlags::WRITE };
const NAME: &str = "file";
const WRITER: usize = 0;

/// Opens the file as a reader, and returns what it read.
async fn read(life: &Life) -> Vec<u8> {
    let (client, root) = (&life.client, Cred::root());
    let found = client.lookup(&root, Ino::ROOT, OsStr::new(NAME)).wait().await.unwrap();
    let Lookup::Found(Entry { ino, .. }) = found else { panic!("not there") };
    let open = client.open(&root, ino, OpenFlags::READ).wait().await.unwrap().id;
    let seen = client.read(&root, ino, Some(open), 0, 100).wait().await.unwrap().to_vec();
    client.release(ino, open).wait().await.unwrap();
    seen
}

/// A writer writes a file in place and dies before the commit. One reader has read the file before,
/// another after. They agree about the file once the writer is gone, whichever servers die with it,
/// and whether or not the disk kept the bytes.
#[test]
fn readers_agree_about_what_a_dead_writer_left() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (meta_dies, disk) in [
        (false, None),
        (true, None),
        (false, Some(Image::Synced)),
        (true, Some(Image::Synced)),
        (true, Some(Image::Written)),
    ] {
        let mut world = World::new(4);
        let life = |world: &World, client: usize| world.lives(client).borrow().clone().unwrap();
        runtime.block_on(async {
            let maker = life(&world, 3).client;
            let (root, set) = (Cred::root(), SetAttr { mode: Some(0o644), ..SetAttr::default() });
            let made = maker.create(&root, Ino::ROOT, OsStr::new(NAME), set, FLAGS).wait().await;
            let (ino, open) = made.map(|made| (made.0.ino, made.1.id)).unwrap();
            let write = maker.write(&root, ino, Some(open), 0, &[1; 100], Stability::Unstable);
            write.wait().await.unwrap();
            maker.flush(&root, ino, open, None).wait().await.unwrap();
            maker.release(ino, open).wait().await.unwrap();
            assert_eq!(read(&life(&world, 1)).await, [1; 100]);
            life(&world, WRITER).write_to_disks(NAME, &[2; 100]).await;
            assert_eq!(read(&life(&world, 2)).await, [2; 100], "it is written in place");
            assert_eq!(read(&life(&world, 1)).await, [1; 100], "under one version");
        });
        world.kill_client(WRITER, Image::Written);
        if meta_dies {
            world.volume.kill_meta(Image::Synced);
        }
        if let Some(image) = disk {
            world.volume.kill_disks(image);
        }
        world.volume.start();
        // When the client starts again, the server ends its earlier session, and with it the
        // uncommitted write.
        world.begin(WRITER);
        runtime.block_on(async {
            let [mut one, mut two] = [read(&life(&world, 1)).await, read(&life(&world, 2)).await];
            // The server gives the file a new version a little later.
            world
                .until(async || {
                    (one, two) = (read(&life(&world, 1)).await, read(&life(&world, 2)).await);
                    one == two
                })
                .await;
            assert_eq!(read(&life(&world, 3)).await, one);
        });
    }
}
