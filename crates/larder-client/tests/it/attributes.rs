//! Attributes, rights, links and space: what is requested, what is cached, and what counts while
//! the server is out of reach.

use std::ffi::OsStr;

use larder_client::Options;
use larder_vfs::{
    Access, Cred, Error, FileSystem, Handle, Ino, Lookup, New, OpenFlags, RenameFlags, SetAttr,
    SetTime, Time,
};

use crate::rig::{READ, Rig, WRITE, pattern, root};

fn user() -> Cred {
    Cred::new(1000, 1000, &[])
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

async fn directory(rig: &Rig, parent: Ino, name: &str) -> Ino {
    let made = rig.client.make(&root(), parent, name.as_ref(), New::Directory, mode(0o755));
    made.wait().await.unwrap().ino
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_is_asked_for_once_a_second_and_held_while_the_server_is_away() {
    let rig = Rig::new(Options::default()).await;
    let statfs = async || rig.client.statfs(&root(), Ino::ROOT).wait().await;
    rig.server.time_out();
    assert_eq!(statfs().await.err(), Some(Error::TimedOut), "nothing is held");
    rig.server.reconnect();
    rig.server.fail_next(1, Error::Io);
    assert_eq!(statfs().await.err(), Some(Error::Io));
    let before = statfs().await.unwrap();
    rig.foreigner().await.put("file", &[1; 100_000]).await;
    rig.server.reset_calls();
    assert_eq!(statfs().await.unwrap(), before);
    assert_eq!(rig.server.calls("statfs"), 0);
    rig.advance(1);
    let after = statfs().await.unwrap();
    assert!(before.bytes_free - after.bytes_free >= 100_000);
    assert_eq!(rig.server.calls("statfs"), 1);
    rig.advance(100);
    rig.server.fail_next(1, Error::TimedOut);
    assert_eq!(statfs().await.unwrap(), after, "no answer to this question");
    rig.server.time_out();
    assert_eq!(statfs().await.unwrap(), after, "out of reach");
    rig.server.reconnect();
    rig.server.fail_next(1, Error::Io);
    assert_eq!(statfs().await.err(), Some(Error::Io), "what the server says is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_symbolic_link_is_read_once_per_version() {
    let rig = Rig::new(Options::default()).await;
    let other = rig.foreigner().await;
    let link = async |target: &str| {
        let new = New::Symlink(target.into());
        let made = other.client.make(&root(), Ino::ROOT, "link".as_ref(), new, mode(0o777));
        made.wait().await.unwrap();
    };
    link("one").await;
    let ino = rig.find("link").await.unwrap();
    for _ in 0..3 {
        assert_eq!(rig.client.readlink(&root(), ino).wait().await.unwrap(), "one");
        rig.advance(60);
    }
    assert_eq!(rig.server.calls("readlink"), 1, "what it says stays as long as its version");
    let rig = rig.remount().await;
    rig.server.time_out();
    assert_eq!(rig.client.readlink(&root(), ino).wait().await.unwrap(), "one", "as last seen");
    rig.server.reconnect();
    other.remove("link").await.unwrap();
    link("another").await;
    rig.advance(60);
    let now = rig.find("link").await.unwrap();
    assert_eq!(rig.client.readlink(&root(), now).wait().await.unwrap(), "another");
    assert_eq!(rig.client.readlink(&root(), ino).wait().await, Err(Error::Stale));
    // One that was made here was never read.
    let new = New::Symlink("ours".into());
    let made = rig.client.make(&root(), Ino::ROOT, "ours".as_ref(), new, mode(0o777));
    let made = made.wait().await.unwrap().ino;
    rig.server.reset_calls();
    assert_eq!(rig.client.readlink(&root(), made).wait().await.unwrap(), "ours");
    assert_eq!(rig.server.calls_total(), 0);
}

/// While the server is away its last decision counts, and the mode bits where there is none; user 0
/// gets no more than those unless the server is known not to squash root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_judged_by_what_is_known_while_the_server_is_away() {
    let all = Access::READ | Access::MODIFY | Access::EXTEND;
    for asks_before in [false, true] {
        for (bits, of_root, of_user) in [
            (0o600, all, Access::NONE),
            (0o644, all, Access::READ),
            (0o446, Access::READ, all),
            (0o060, Access::NONE, Access::NONE),
        ] {
            let rig = Rig::new(Options::default()).await;
            let other = rig.foreigner().await;
            other.put("file", b"x").await;
            other.set("file", mode(bits)).await;
            let ino = rig.find("file").await.unwrap();
            let access =
                async |cred: &Cred| rig.client.access(cred, ino, all).wait().await.unwrap();
            if asks_before {
                assert_eq!(access(&root()).await, all, "the server lets the superuser pass");
                assert_eq!(access(&user()).await, of_user, "{bits:o}");
            }
            rig.server.time_out();
            rig.advance(1000);
            let of_root = if asks_before { all } else { of_root };
            assert_eq!(access(&root()).await, of_root, "{bits:o}, asked before: {asks_before}");
            assert_eq!(access(&user()).await, of_user, "{bits:o}, asked before: {asks_before}");
            let expected =
                if of_user.contains(Access::READ) { None } else { Some(Error::AccessDenied) };
            let opened = rig.client.open(&user(), ino, READ).wait().await;
            assert_eq!(opened.err(), expected, "{bits:o}, asked before: {asks_before}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_above_is_found_whichever_client_moved_this_one() {
    let rig = Rig::new(Options::default()).await;
    let (one, two) =
        (directory(&rig, Ino::ROOT, "one").await, directory(&rig, Ino::ROOT, "two").await);
    let inner = directory(&rig, one, "inner").await;
    let above =
        async |rig: &Rig, ino| match rig.client.lookup(&root(), ino, "..".as_ref()).wait().await {
            Ok(Lookup::Found(entry)) => Ok(entry.ino),
            Ok(Lookup::Absent { .. }) => Err(Error::NotFound),
            Err(error) => Err(error),
        };
    assert_eq!(above(&rig, inner).await, Ok(one));
    assert_eq!(above(&rig, one).await, Ok(Ino::ROOT));
    assert_eq!(above(&rig, Ino::ROOT).await, Ok(Ino::ROOT), "there is nothing above the root");
    let (from, to) = ((one, OsStr::new("inner")), (two, OsStr::new("moved")));
    rig.client.rename(&root(), from, to, RenameFlags::default()).wait().await.unwrap();
    assert_eq!(above(&rig, inner).await, Ok(two), "we moved it");
    // A front door that has only the handle, and a client that has never seen the directory.
    let handle = rig.client.handle(inner).wait().await.unwrap();
    let stranger = rig.foreigner().await;
    let inner = stranger.client.resolve(&handle).wait().await.unwrap();
    let up = above(&stranger, inner).await.unwrap();
    assert_eq!(stranger.client.handle(up).wait().await, rig.client.handle(two).wait().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_means_its_file_for_as_long_as_that_is_there() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"content").await;
    let ino = rig.find("file").await.unwrap();
    let handle = rig.client.handle(ino).wait().await.unwrap();
    let before = rig.server.calls_total();
    assert_eq!(rig.client.resolve(&handle).wait().await, Ok(ino));
    assert_eq!(rig.server.calls_total(), before, "it is known");
    let rig = rig.remount().await;
    assert_eq!(rig.client.resolve(&handle).wait().await, Ok(ino), "after a remount, too");
    let unknown = Handle::new(b"no such handle");
    assert_eq!(rig.client.resolve(&unknown).wait().await, Err(Error::Stale));
    rig.rename("file", "moved").await.unwrap();
    assert_eq!(rig.client.resolve(&handle).wait().await, Ok(ino));
    rig.remove("moved").await.unwrap();
    assert_eq!(rig.client.resolve(&handle).wait().await, Err(Error::Stale));
    assert_eq!(rig.client.handle(ino).wait().await, Err(Error::Stale));
}

/// ftruncate(2) is judged by the credentials of the open file, and truncate(2) by those of the
/// caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_cut_with_the_identity_that_opened_it() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"0123456789").await;
    rig.set("file", SetAttr { uid: Some(0), mode: Some(0o600), ..SetAttr::default() }).await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let set = rig.client.setattr(&user(), open.ino, None, cut(1)).wait().await;
    assert_eq!(set.err(), Some(Error::AccessDenied));
    assert_eq!(open.read(0, 100).await.unwrap(), b"0123456789", "nothing was cut here either");
    assert_eq!(rig.stat("file").await.attr.size, 10);
    let set = rig.client.setattr(&user(), open.ino, Some(open.id), cut(4)).wait().await;
    assert_eq!(set.unwrap().0.attr.size, 4);
    open.write(6, b"!").await.unwrap();
    assert_eq!(open.read(0, 100).await.unwrap(), b"0123\0\0!");
    let set = rig.client.setattr(&user(), open.ino, Some(open.id), cut(8)).wait().await;
    assert_eq!(set.unwrap().0.attr.size, 8, "what was unsent went first");
    assert_eq!(open.read(0, 100).await.unwrap(), b"0123\0\0!\0");
    open.close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, b"0123\0\0!\0");
}

/// A time that is set stays, even if what was written before is sent later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_is_set_is_not_moved_by_bytes_that_were_written_before() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"before").await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"AFTER").await.unwrap();
    let time = Time { sec: 1_234_567, nsec: 89 };
    let set = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    let told = rig.client.setattr(&root(), open.ino, Some(open.id), set).wait().await.unwrap();
    assert_eq!(told.0.attr.mtime, time);
    open.close().await.unwrap();
    assert_eq!(rig.stat("file").await.attr.mtime, time);
    let other = rig.foreigner().await;
    assert_eq!(other.stat("file").await.attr.mtime, time);
    assert_eq!(other.cat("file").await, b"AFTERe");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_nothing_asks_no_server() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"x").await;
    let ino = rig.find("file").await.unwrap();
    rig.server.reset_calls();
    let set = rig.client.setattr(&root(), ino, None, SetAttr::default()).wait().await;
    assert_eq!(set.unwrap().0.attr.size, 1);
    assert_eq!(rig.server.calls_total(), 0);
}

/// Both names show the second link, its number and its bytes at once, and so does the remaining one
/// when one is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_file_are_one_file() {
    let rig = Rig::new(Options::default()).await;
    rig.put("one", b"content").await;
    let dir = directory(&rig, Ino::ROOT, "dir").await;
    let ino = rig.find("one").await.unwrap();
    let before = rig.stat("one").await.attr;
    let linked = rig.client.link(&root(), ino, dir, "two".as_ref()).wait().await.unwrap();
    assert_eq!((linked.ino, linked.fresh.attr.nlink), (ino, 2));
    for name in ["one", "dir/two"] {
        let attr = rig.stat(name).await.attr;
        assert_eq!((attr.nlink, attr.fileid, attr.mtime), (2, before.fileid, before.mtime));
        assert!(attr.ctime > before.ctime, "a link moves it");
    }
    rig.server.reset_calls();
    assert_eq!(rig.cat("dir/two").await, b"content");
    assert_eq!(rig.server.calls("read"), 0, "what is held of it is held");
    rig.put("dir/two", b"changed").await;
    assert_eq!(rig.cat("one").await, b"changed");
    rig.remove("one").await.unwrap();
    assert_eq!(rig.stat("dir/two").await.attr.nlink, 1);
    assert_eq!(rig.find("dir/two").await, Some(ino));
    assert_eq!(rig.cat("dir/two").await, b"changed");
    let again = rig.client.link(&root(), ino, dir, "two".as_ref()).wait().await;
    assert_eq!(again.err(), Some(Error::Exists));
    assert_eq!(rig.stat("dir/two").await.attr.nlink, 1, "nothing was linked");
}

/// The server has no call for them (RFC 1813), so they are refused, and nothing is renamed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renames_that_no_server_knows_are_refused() {
    let rig = Rig::new(Options::default()).await;
    rig.put("one", b"1").await;
    rig.put("two", b"2").await;
    for (no_replace, exchange) in [(true, false), (false, true), (true, true)] {
        let flags = RenameFlags { no_replace, exchange };
        let (from, to) = ((Ino::ROOT, OsStr::new("one")), (Ino::ROOT, OsStr::new("two")));
        let renamed = rig.client.rename(&root(), from, to, flags).wait().await;
        assert_eq!(renamed, Err(Error::InvalidArgument));
    }
    assert_eq!((rig.cat("one").await, rig.cat("two").await), (b"1".to_vec(), b"2".to_vec()));
    assert_eq!(rig.server.calls("rename"), 0);
}

/// What `larder status` shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_opens_are_counted_by_where_their_bytes_came_from() {
    let rig =
        Rig::new(Options { fill_after: None, readahead_bytes_max: 0, ..Options::default() }).await;
    rig.foreigner().await.put("file", &pattern(1, 100_000)).await;
    rig.foreigner().await.put("empty", b"").await;
    let before = rig.client.status();
    assert_eq!((before.open_files, before.reachable, before.opens_for_reading), (0, true, 0));
    rig.cat("file").await;
    rig.landed("file").await;
    let cold = rig.client.status();
    assert_eq!((cold.read_bytes_cached, cold.read_bytes_remote), (0, 100_000));
    assert_eq!((cold.opens_for_reading, cold.opens_of_whole_files), (1, 0));
    rig.cat("file").await;
    rig.cat("empty").await;
    let warm = rig.client.status();
    assert_eq!((warm.read_bytes_cached, warm.read_bytes_remote), (100_000, 100_000));
    assert_eq!((warm.opens_for_reading, warm.opens_of_whole_files), (2, 1), "empty ones are none");
    assert_eq!((warm.opens_passthrough, warm.opens_other), (0, 3), "no kernel reads past us");
    let open = rig.open(&root(), "file", OpenFlags::WRITE).await.unwrap();
    open.write(10, b"unsent").await.unwrap();
    let busy = rig.client.status();
    assert_eq!((busy.open_files, busy.unsent.files, busy.unsent.bytes), (1, 1, 6));
    assert_eq!(busy.opens_for_reading, 2, "this one is for writing");
    open.close().await.unwrap();
    rig.server.time_out();
    let after = rig.client.status();
    assert_eq!((after.open_files, after.unsent.files, after.reachable), (0, 0, false));
}
