//! Data of class `generated`: a close keeps it on the client's disk, and the file is leased to that
//! client alone.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use larder_io::Image;
use larder_vfs::{Cred, Entry, Error, FileSystem, Ino, Lookup, OpenFlags, SetAttr, Stability};
use tokio::runtime::{Builder, Runtime};

use crate::world::{Life, World};

const NAME: &str = "file";
const SIZE: usize = 100;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn life(world: &World, client: usize) -> Life {
    world.lives(client).borrow().clone().unwrap()
}

/// Makes the file, or opens and overwrites it, and closes it.
async fn write(life: &Life, byte: u8) {
    let (client, root, name) = (&life.client, Cred::root(), OsStr::new(NAME));
    let (ino, open) = match client.lookup(&root, Ino::ROOT, name).wait().await.unwrap() {
        Lookup::Found(Entry { ino, .. }) => {
            (ino, client.open(&root, ino, OpenFlags::WRITE).wait().await.unwrap().id)
        }
        Lookup::Absent { .. } => {
            let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
            let made = client.create(&root, Ino::ROOT, name, set, OpenFlags::WRITE).wait().await;
            made.map(|made| (made.0.ino, made.1.id)).unwrap()
        }
    };
    let write = client.write(&root, ino, Some(open), 0, &[byte; SIZE], Stability::Unstable);
    write.wait().await.unwrap();
    client.flush(&root, ino, open, None).wait().await.unwrap();
    client.release(ino, open).wait().await.unwrap();
}

/// Opens the file, reads it and closes it.
async fn read(life: &Life) -> Vec<u8> {
    read_named(life, OsStr::new(NAME)).await
}

async fn read_named(life: &Life, name: &OsStr) -> Vec<u8> {
    let (client, root) = (&life.client, Cred::root());
    let found = client.lookup(&root, Ino::ROOT, name).wait().await.unwrap();
    let Lookup::Found(Entry { ino, .. }) = found else { panic!("not there") };
    let open = client.open(&root, ino, OpenFlags::READ).wait().await.unwrap().id;
    let seen = client.read(&root, ino, Some(open), 0, 1000).wait().await.unwrap().to_vec();
    client.release(ino, open).wait().await.unwrap();
    seen
}

fn unsaved(life: &Life) -> usize {
    life.client.unsaved().len()
}

/// A close keeps what another client then reads, and the other way round; nobody loses anything,
/// although nobody waited for the server but for the other one.
#[test]
fn a_reader_has_what_was_kept_before_it_opened_the_file() {
    let world = World::generated(2);
    let [one, two] = [life(&world, 0), life(&world, 1)];
    runtime().block_on(async {
        for byte in 0..20 {
            let (writer, reader) = if byte % 2 == 0 { (&one, &two) } else { (&two, &one) };
            write(writer, byte).await;
            assert_eq!(unsaved(writer), 1, "{byte}");
            write(writer, byte + 100).await;
            assert_eq!(read(reader).await, [byte + 100; SIZE]);
            assert_eq!(unsaved(writer), 0, "{byte}");
        }
        assert_eq!(one.cache.set_aside().len() + two.cache.set_aside().len(), 0);
    });
}

/// Two clients write and read one file at the same time: each reads what one of them has closed.
#[test]
fn two_who_keep_the_same_file_give_it_to_each_other() {
    let world = World::generated(2);
    let lives = [life(&world, 0), life(&world, 1)];
    let runtime = runtime();
    runtime.block_on(write(&lives[0], 0));
    let players = lives.clone().map(|life| {
        runtime.spawn(async move {
            for byte in 0..40 {
                write(&life, byte).await;
                let seen = read(&life).await;
                assert!(seen.len() == SIZE && seen.iter().all(|it| *it == seen[0]), "{seen:?}");
            }
        })
    });
    runtime.block_on(async {
        for player in players {
            player.await.unwrap();
        }
        assert_eq!(read(&lives[0]).await, read(&lives[1]).await);
    });
    assert_eq!(lives.map(|life| life.cache.set_aside().len()), [0, 0]);
}

/// A client dies with what it kept, alone or with its machine, and perhaps the metadata server with
/// it. Others go on once its session is over. When it is back it sends what it kept; what somebody
/// else wrote meanwhile stays, and the bytes of both are at the server.
#[test]
fn what_was_kept_outlives_its_client_and_overwrites_nothing() {
    let runtime = runtime();
    for (image, meta_dies, is_changed) in [
        (Image::Written, false, false),
        (Image::Written, false, true),
        (Image::Synced, false, false),
        (Image::Synced, false, true),
        (Image::Synced, true, true),
    ] {
        let what = format!("{image:?} {meta_dies} {is_changed}");
        let mut world = World::generated(2);
        let [one, two] = [life(&world, 0), life(&world, 1)];
        runtime.block_on(async {
            write(&one, 1).await;
            one.client.sync(&|_| true).await.unwrap();
            write(&one, 2).await;
            assert_eq!(unsaved(&one), 1, "{what}");
        });
        drop(one);
        world.kill_client(0, image);
        if meta_dies {
            world.volume.kill_meta(Image::Synced);
            world.volume.start();
        }
        runtime.block_on(async {
            assert_eq!(read(&two).await, [1; SIZE], "{what}");
            if is_changed {
                write(&two, 3).await;
                two.client.sync(&|_| true).await.unwrap();
            }
        });
        world.begin(0);
        let one = life(&world, 0);
        runtime.block_on(async {
            let sent = one.client.sync(&|_| true).await;
            assert!(matches!(sent, Ok(()) | Err(Error::Changed)), "{what}: {sent:?}");
            world.until(async || unsaved(&one) == 0).await;
            let wanted = if is_changed { 3 } else { 2 };
            for reader in [&one, &two] {
                assert_eq!(read(reader).await, [wanted; SIZE], "{what}");
            }
            world.until(async || one.cache.set_aside().is_empty()).await;
            let conflicts = one.cache.conflicts(0, 9);
            assert_eq!(conflicts.len(), usize::from(is_changed), "{what}");
            for found in conflicts {
                let name = OsStr::from_bytes(&found.conflict.name);
                assert_ne!(name, NAME, "{what}");
                assert_eq!(read_named(&two, name).await, [2; SIZE], "{what}");
            }
        });
    }
}

/// After a restart of the metadata server nobody has a lease: what was kept is sent, and others
/// read it.
#[test]
fn what_was_kept_outlives_the_metadata_server() {
    let runtime = runtime();
    let mut world = World::generated(2);
    let [one, two] = [life(&world, 0), life(&world, 1)];
    runtime.block_on(write(&one, 1));
    world.volume.kill_meta(Image::Synced);
    world.volume.start();
    runtime.block_on(async {
        world.until(async || read(&two).await == [1; SIZE]).await;
        assert_eq!(one.cache.set_aside().len(), 0);
    });
}
