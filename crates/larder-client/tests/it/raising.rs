//! Files that get a stronger class, or a name of one, on a server that keeps bytes in memory.

use std::sync::Arc;
use std::time::Duration;

use larder_class::{Sources, load};
use larder_client::{Here, Options, shared_offer};
use larder_vfs::{Device, Error, FileSystem, Ino, Kind, Lookup, New, SetAttr};

use crate::rig::{Rig, root};

/// `*.o` is volatile, what else there is is not.
fn options() -> Options {
    with_rules("[[rule]]\nglob = '*.o'\nclass = 'volatile'\n")
}

fn with_rules(rules: &str) -> Options {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.toml");
    std::fs::write(&path, rules).unwrap();
    let sources = Sources { files: vec![path], ..Sources::default() };
    let classes =
        load(&sources, &shared_offer("a volume", Here::default(), Duration::from_secs(30)))
            .unwrap();
    Options { classes: Arc::new(classes), ..Options::default() }
}

/// How often bytes had to leave memory since this was asked last.
fn moved(rig: &Rig) -> u64 {
    let calls = rig.server.calls("leave_memory");
    rig.server.reset_calls();
    calls
}

/// Each way to a stronger class has the bytes moved, once; nothing else does. Also a rename of a
/// file of which this client knows nothing.
#[tokio::test]
async fn each_way_to_a_stronger_class_moves_the_bytes() {
    let rig = Rig::new(options()).await;
    for name in ["a.o", "b.o", "c.o", "d.o", "e.o", "f"] {
        rig.put(name, b"bytes").await;
    }
    moved(&rig);
    for (from, to, count) in
        [("a.o", "a2.o", 0), ("f", "f2", 0), ("f2", "f.o", 0), ("a2.o", "a", 1), ("a", "a3", 0)]
    {
        rig.rename(from, to).await.unwrap();
        assert_eq!(moved(&rig), count, "{from} {to}");
    }
    let ino = rig.find("b.o").await.unwrap();
    rig.client.link(&root(), ino, Ino::ROOT, "b".as_ref()).wait().await.unwrap();
    assert_eq!(moved(&rig), 1, "a link");
    let ino = rig.find("c.o").await.unwrap();
    for (class, count) in [(Some("volatile"), 0), (Some("edited"), 1), (None, 0)] {
        rig.client.set_class(&root(), ino, class).await.unwrap();
        assert_eq!(moved(&rig), count, "{class:?}");
    }
    let file = rig.create("g.o").await;
    file.write(0, b"bytes").await.unwrap();
    moved(&rig);
    for (class, count) in [("volatile", 0), ("edited", 1), ("edited", 0)] {
        let hint = rig.client.hint_class(&root(), file.ino, file.id, class.to_owned());
        hint.wait().await.unwrap();
        assert_eq!(moved(&rig), count, "a hint of {class}");
    }
    file.close().await.unwrap();
    // Somebody else changed the directory: what its names stand for is in doubt.
    let other = rig.foreigner().await;
    other.put("x", b"").await;
    rig.advance(60);
    rig.find("x").await.unwrap();
    moved(&rig);
    rig.rename("e.o", "e").await.unwrap();
    assert_eq!(moved(&rig), 1, "a name in doubt");
}

/// One object of each kind that has no bytes, under these names.
async fn make_bare(rig: &Rig, names: [&str; 3]) {
    let new = [New::Directory, New::Symlink("x".into()), New::Node(Kind::Fifo, Device::default())];
    for (name, new) in names.into_iter().zip(new) {
        let made =
            rig.client.make(&root(), Ino::ROOT, name.as_ref(), new, SetAttr::default()).wait();
        made.await.unwrap();
    }
}

/// The server is told what it may lose, by the class that a file of that name would have: files,
/// directories, links and special files. Names that wait on this machine have a directory that
/// outlives what they promise.
#[tokio::test]
async fn the_server_is_told_which_objects_it_may_lose() {
    let rig = Rig::new(options()).await;
    make_bare(&rig, ["dir", "link", "fifo"]).await;
    rig.put("file", b"").await;
    assert_eq!(rig.server.made_volatile(), 0);
    make_bare(&rig, ["dir.o", "link.o", "fifo.o"]).await;
    assert_eq!(rig.server.made_volatile(), 3);
    rig.put("file.o", b"").await;
    assert_eq!(rig.server.made_volatile(), 4);
    let rig = Rig::new(Options { sync: true, ..options() }).await;
    make_bare(&rig, ["dir.o", "link.o", "fifo.o"]).await;
    assert_eq!(rig.server.made_volatile(), 0, "nothing may be lost");
    let rig = Rig::exclusive(options()).await;
    make_bare(&rig, ["dir.o", "link.o", "fifo.o"]).await;
    assert_eq!(rig.server.made_volatile(), 0, "names may wait in them");
}

/// Directories, links and special files get a stronger class as files do, at the server.
#[tokio::test]
async fn what_has_no_bytes_is_raised_too() {
    let rig = Rig::new(options()).await;
    make_bare(&rig, ["dir.o", "link.o", "fifo.o"]).await;
    for (from, to, count) in [
        ("dir.o", "dir2.o", 0),
        ("dir2.o", "dir", 1),
        ("dir", "dir2", 0),
        ("link.o", "link", 1),
        ("fifo.o", "fifo", 1),
    ] {
        moved(&rig);
        rig.rename(from, to).await.unwrap();
        assert_eq!(moved(&rig), count, "{from} {to}");
    }
    make_bare(&rig, ["dir.o", "link.o", "fifo.o"]).await;
    let ino = rig.find("link.o").await.unwrap();
    moved(&rig);
    rig.client.link(&root(), ino, Ino::ROOT, "other".as_ref()).wait().await.unwrap();
    assert_eq!(moved(&rig), 1, "a link");
    let ino = rig.find("dir.o").await.unwrap();
    for (class, count) in [("volatile", 0), ("edited", 1)] {
        rig.client.set_class(&root(), ino, Some(class)).await.unwrap();
        assert_eq!(moved(&rig), count, "{class}");
    }
}

/// What is in `out` is volatile, except `keep`, and so is `*.o` everywhere else.
const OUT: &str = "[[rule]]\nglob = 'keep'\nclass = 'edited'\n\
                   [[rule]]\nglob = 'out/'\nclass = 'volatile'\n\
                   [[rule]]\nglob = '*.o'\nclass = 'volatile'\n";

/// Makes `out` with four files that a rule makes volatile by this directory, two of them below
/// another one, with `*.o`, which is volatile anywhere, and one that is not volatile.
async fn tree(rig: &Rig) {
    let dir = async |parent: Ino, name: &str| {
        let made =
            rig.client.make(&root(), parent, name.as_ref(), New::Directory, SetAttr::default());
        made.wait().await.unwrap().ino
    };
    let out = dir(Ino::ROOT, "out").await;
    let below = dir(out, "below").await;
    for (parent, name) in [
        (out, "a"),
        (out, "b"),
        (out, "x.o"),
        (out, "keep"),
        (below, "c"),
        (below, "d"),
        (below, "y.o"),
    ] {
        let file = rig.create_in(parent, name).await;
        file.write(0, b"bytes").await.unwrap();
        file.close().await.unwrap();
    }
}

/// A directory gets a name or a class by which files below it are more durable: the server is told
/// of each of these, and of no others.
#[tokio::test]
async fn a_directory_has_what_is_below_it_moved_where_that_is_to_be_more_durable() {
    let rig = Rig::new(with_rules(OUT)).await;
    tree(&rig).await;
    moved(&rig);
    for (from, to, count) in
        [("out", "out2", 4), ("out2", "other", 0), ("other", "out", 0), ("out", "release", 4)]
    {
        rig.rename(from, to).await.unwrap();
        assert_eq!(moved(&rig), count, "{from} {to}");
    }
    let ino = rig.find("release").await.unwrap();
    // `x.o` and `y.o` and the directory itself; then all but these two; then all.
    for (class, count) in [
        (Some("edited"), 3),
        (Some("volatile"), 0),
        (None, 6),
        (Some("scratch"), 0),
        (Some("critical"), 8),
    ] {
        rig.client.set_class(&root(), ino, class).await.unwrap();
        assert_eq!(moved(&rig), count, "{class:?}");
    }
    // What is set for the directory goes with it.
    rig.rename("release", "out").await.unwrap();
    assert_eq!(moved(&rig), 0);
}

/// What has a class of its own keeps it, a process that writes through an open file goes on in the
/// stronger class, and where the server refuses, the directory keeps its name and class.
#[tokio::test]
async fn below_a_directory_what_is_open_goes_on_in_the_stronger_class() {
    let rig = Rig::new(with_rules(OUT)).await;
    tree(&rig).await;
    let out = rig.find("out").await.unwrap();
    let own = rig.client.lookup(&root(), out, "a".as_ref()).wait().await.unwrap();
    let Lookup::Found(own) = own else { panic!("it is there") };
    rig.client.set_class(&root(), own.ino, Some("volatile")).await.unwrap();
    let file = rig.create_in(out, "open").await;
    file.write(0, b"bytes").await.unwrap();
    rig.server.fail_next(1, Error::NoSpace);
    assert_eq!(rig.rename("out", "out2").await, Err(Error::NoSpace));
    assert!(rig.find("out").await.is_some());
    rig.server.fail_next(1, Error::NoSpace);
    assert_eq!(rig.client.set_class(&root(), out, Some("edited")).await, Err(Error::NoSpace));
    let class = || rig.client.class(file.ino).unwrap().class.name.clone();
    assert_eq!(class(), "volatile");
    moved(&rig);
    rig.rename("out", "out2").await.unwrap();
    // `b`, `c`, `d` and the open one.
    assert_eq!((moved(&rig), class()), (4, "edited".to_owned()));
    let hint = rig.client.hint_class(&root(), file.ino, file.id, "edited".to_owned());
    hint.wait().await.unwrap();
    assert_eq!(moved(&rig), 0, "it is in that class");
    file.close().await.unwrap();
}

/// No rule is about directories: nothing is listed.
#[tokio::test]
async fn a_directory_is_not_read_if_its_name_decides_nothing() {
    let rig = Rig::new(options()).await;
    tree(&rig).await;
    rig.server.reset_calls();
    rig.rename("out", "release").await.unwrap();
    assert_eq!((rig.server.calls("readdir"), moved(&rig)), (0, 0));
}

/// Where the server cannot move the bytes, the file keeps its name and class, and who has it open
/// goes on in that class.
#[tokio::test]
async fn a_raise_that_the_server_refuses_changes_nothing() {
    let rig = Rig::new(options()).await;
    let file = rig.create("a.o").await;
    let ino = file.ino;
    let class = || rig.client.class(ino).unwrap().class.name.clone();
    for error in [Error::NoSpace, Error::Lost] {
        rig.server.fail_next(1, error);
        assert_eq!(rig.rename("a.o", "a").await, Err(error));
        assert_eq!(rig.names().await, ["a.o"]);
        rig.server.fail_next(1, error);
        assert_eq!(rig.client.set_class(&root(), ino, Some("edited")).await, Err(error));
        assert_eq!(class(), "volatile");
    }
    moved(&rig);
    // It is still open in the weaker class, so this is a raise.
    let hint = rig.client.hint_class(&root(), ino, file.id, "edited".to_owned());
    hint.wait().await.unwrap();
    assert_eq!(moved(&rig), 1);
    file.close().await.unwrap();
}

/// A file that gets a name of a class with an archive, or with an earlier time for it, is due there
/// from then on; if the server has none, the file keeps its name.
#[tokio::test]
async fn a_name_of_a_class_with_an_archive_has_the_file_put_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.toml");
    let text = "[class.hour]\nlike = 'volatile'\narchive = '1h'\n\
                [class.day]\nlike = 'volatile'\narchive = '1d'\n\
                [[rule]]\nglob = '*.h'\nclass = 'hour'\n[[rule]]\nglob = '*.d'\nclass = 'day'\n\
                [[rule]]\nglob = '*.o'\nclass = 'volatile'\n";
    std::fs::write(&path, text).unwrap();
    let sources = Sources { files: vec![path], ..Sources::default() };
    let classes =
        load(&sources, &shared_offer("a volume", Here::default(), Duration::from_secs(30)))
            .unwrap();
    let rig = Rig::new(Options { classes: Arc::new(classes), ..Options::default() }).await;
    let archived = || {
        let calls = rig.server.calls("in_archive");
        rig.server.reset_calls();
        calls
    };
    for name in ["a.o", "b", "c.o"] {
        rig.put(name, b"bytes").await;
    }
    archived();
    for (from, to, count) in [
        ("a.o", "a2.o", 0),
        ("a2.o", "a.d", 1),
        ("a.d", "a2.d", 0),
        ("a2.d", "a.h", 1),
        ("a.h", "a.d", 0),
        ("b", "b.h", 1),
        ("b.h", "b", 0),
    ] {
        rig.rename(from, to).await.unwrap();
        assert_eq!(archived(), count, "{from} {to}");
    }
    let ino = rig.find("c.o").await.unwrap();
    rig.client.link(&root(), ino, Ino::ROOT, "c.h".as_ref()).wait().await.unwrap();
    assert_eq!(archived(), 1, "a link");

    let file = rig.create("e").await;
    file.write(0, b"bytes").await.unwrap();
    rig.server.fail_next(1, Error::NotSupported);
    assert_eq!(rig.rename("e", "e.h").await, Err(Error::NotSupported));
    assert!(rig.find("e").await.is_some());
    rig.rename("e", "e.h").await.unwrap();
    file.close().await.unwrap();
}
