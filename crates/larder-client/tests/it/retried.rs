//! Requests that the kernel sends again after the process died: each with the cache as it was
//! before the first attempt, which the server carried out, and as it was after it.

use std::ffi::OsStr;

use larder_client::{Options, Start};
use larder_io::SimDisk;
use larder_vfs::{
    Cred, Device, Error, FileSystem, Ino, Kind, New, OpenFlags, Removal, RenameFlags, Result,
    SetAttr, Stability,
};

use crate::rig::{READ, Rig, WRITE, root};

fn again() -> Cred {
    Cred { retried: true, ..root() }
}

const SET: SetAttr = SetAttr {
    mode: Some(0o750),
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    in_memory: None,
    retained: false,
};

/// A request, to be made on behalf of a user.
#[derive(Clone, Debug)]
enum Request {
    Make(&'static str, New),
    Create(&'static str),
    Remove(&'static str, Removal),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
}

impl Request {
    async fn make(&self, rig: &Rig, cred: &Cred) -> Result<()> {
        let client = &rig.client;
        let name = |name: &'static str| OsStr::new(name);
        match self {
            Request::Make(at, new) => {
                let made = client.make(cred, Ino::ROOT, name(at), new.clone(), SET);
                made.wait().await.map(drop)
            }
            Request::Create(at) => {
                let flags = OpenFlags { exclusive: true, ..WRITE };
                let created = client.create(cred, Ino::ROOT, name(at), SET, flags);
                let (entry, opened) = created.wait().await?;
                client.release(entry.ino, opened.id).wait().await
            }
            Request::Remove(at, what) => {
                client.remove(cred, Ino::ROOT, name(at), *what).wait().await
            }
            Request::Rename(from, to) => {
                let (from, to) = ((Ino::ROOT, name(from)), (Ino::ROOT, name(to)));
                client.rename(cred, from, to, RenameFlags::default()).wait().await
            }
            Request::Link(file, at) => {
                let ino = rig.find(file).await.unwrap();
                client.link(cred, ino, Ino::ROOT, name(at)).wait().await.map(drop)
            }
        }
    }
}

/// `file` and `other` are there, and an empty `dir`.
async fn rig() -> Rig {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"content").await;
    rig.put("other", b"another").await;
    let dir = rig.client.make(&root(), Ino::ROOT, OsStr::new("dir"), New::Directory, SET);
    dir.wait().await.unwrap();
    rig
}

async fn resumed(rig: &Rig, image: &SimDisk) -> Rig {
    let image = image.crash(larder_io::Image::Written);
    rig.on_image(image, rig.server.another_client(), Start::Resume).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_first_try_did_is_a_success() {
    let fifo = New::Node(Kind::Fifo, Device::default());
    for request in [
        Request::Make("new", New::Directory),
        Request::Make("new", New::Symlink("target".into())),
        Request::Make("new", fifo),
        Request::Make("new", New::FileExclusive),
        Request::Create("new"),
        Request::Remove("file", Removal::File),
        Request::Remove("dir", Removal::Directory),
        Request::Rename("file", "new"),
        Request::Rename("file", "other"),
        Request::Link("file", "new"),
    ] {
        let rig = rig().await;
        rig.names().await;
        let before = rig.image();
        request.make(&rig, &root()).await.unwrap();
        for image in [before, rig.image()] {
            let next = resumed(&rig, &image).await;
            let refused = request.make(&next, &root()).await;
            let expected = [Err(Error::Exists), Err(Error::NotFound)];
            assert!(expected.contains(&refused), "{request:?} without the mark: {refused:?}");
            let next = resumed(&rig, &image).await;
            assert_eq!(request.make(&next, &again()).await, Ok(()), "{request:?}");
            let names = next.names().await;
            assert_eq!(names, rig.foreigner().await.names().await, "{request:?}");
            for name in names {
                let attr = next.stat(&name).await.attr;
                let is = rig.foreigner().await.stat(&name).await.attr;
                assert_eq!((attr.fileid, attr.mode), (is.fileid, is.mode), "{request:?} {name}");
                if name == "new" && !matches!(request, Request::Rename(..) | Request::Link(..)) {
                    assert!(attr.kind == Kind::Symlink || attr.mode == 0o750, "{request:?}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_made_is_no_success() {
    let other = New::Symlink("elsewhere".into());
    for (request, error) in [
        (Request::Make("file", New::Directory), Error::Exists),
        (Request::Make("full", New::Directory), Error::Exists),
        (Request::Make("link", other), Error::Exists),
        (Request::Make("file", New::FileExclusive), Error::Exists),
        (Request::Create("file"), Error::Exists),
        (Request::Link("file", "other"), Error::Exists),
        (Request::Rename("absent", "absent too"), Error::NotFound),
    ] {
        let rig = rig().await;
        let make = |name: &'static str, new| {
            rig.client.make(&root(), Ino::ROOT, OsStr::new(name), new, SET).wait()
        };
        let full = make("full", New::Directory).await.unwrap().ino;
        let inner = rig.client.make(&root(), full, OsStr::new("x"), New::File, SET);
        inner.wait().await.unwrap();
        make("link", New::Symlink("target".into())).await.unwrap();
        assert_eq!(request.make(&rig, &again()).await, Err(error), "{request:?}");
    }
}

/// A user who is not root gets no directory of another user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_owner_is_no_success() {
    let rig = rig().await;
    let user = Cred { retried: true, ..Cred::new(5, 5, &[]) };
    let request = Request::Make("dir", New::Directory);
    assert_eq!(request.make(&rig, &user).await, Err(Error::Exists));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_is_not_made_twice() {
    let rig = rig().await;
    let flags = OpenFlags { append: true, ..WRITE };
    let open = rig.open(&root(), "file", flags).await.unwrap();
    open.write(7, b", more").await.unwrap();
    let (ino, id) = open.names();
    let rig = resumed(&rig, &rig.image()).await;
    let unstable = Stability::Unstable;
    let write = rig.client.write(&again(), ino, Some(id), 7, b", more", unstable);
    write.wait().await.unwrap();
    rig.again((ino, id)).close().await.unwrap();
    assert_eq!(rig.foreigner().await.cat("file").await, b"content, more");
}

/// The process dies while the server is asked to hide an open file; the server may have done so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hiding_an_open_file_goes_on_where_it_ended() {
    for replaces in [false, true] {
        for carried_out in [false, true] {
            let rig = rig().await;
            let names = rig.open(&root(), "file", READ).await.unwrap().names();
            let request = match replaces {
                false => Request::Remove("file", Removal::File),
                true => Request::Rename("other", "file"),
            };
            rig.server.cut_off();
            let image = {
                let caller = root();
                let first = request.make(&rig, &caller);
                let mut first = std::pin::pin!(first);
                let asked = async {
                    while rig.server.calls("rename") == 0 {
                        rig.pass_to_next_wake();
                        tokio::task::yield_now().await;
                    }
                    rig.image()
                };
                let image = tokio::select! {
                    image = asked => image,
                    _ = &mut first => panic!("the server is silent"),
                };
                if carried_out {
                    // Only the request itself, not what comes after it.
                    rig.server.reconnect();
                    first.await.unwrap();
                }
                image
            };
            let next = resumed(&rig, &image).await;
            assert_eq!(request.make(&next, &again()).await, Ok(()));
            let open = next.again(names);
            assert_eq!(open.read(0, 100).await.unwrap(), b"content");
            open.close().await.unwrap();
            let expected: &[&str] = if replaces { &["dir", "file"] } else { &["dir", "other"] };
            assert_eq!(next.foreigner().await.names().await, expected, "{carried_out}");
            if replaces {
                assert_eq!(next.foreigner().await.cat("file").await, b"another");
            }
        }
    }
}

/// A file has two names, and loses one by a request that had no answer when the process died. Its
/// attributes were asked for again since: the name that is left is not taken for the lost one. The
/// file stays, with bytes that were not sent, and what has the lost name now stays, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_has_lost_a_name_before_keeps_the_other_one() {
    for (replaces, is_open, is_made_again) in [
        (false, false, false),
        (false, true, false),
        (false, false, true),
        (false, true, true),
        (true, false, false),
        (true, true, false),
    ] {
        let what = format!("{replaces} {is_open} {is_made_again}");
        let rig = rig().await;
        Request::Link("file", "link").make(&rig, &root()).await.unwrap();
        let names = match is_open {
            true => {
                let open = rig.open(&root(), "file", WRITE).await.unwrap();
                open.write(0, b"CONTENT").await.unwrap();
                Some(open.names())
            }
            false => None,
        };
        rig.names().await;
        let image = rig.image();
        let request = match replaces {
            false => Request::Remove("file", Removal::File),
            true => Request::Rename("other", "file"),
        };
        request.make(&rig, &root()).await.unwrap();
        if is_made_again {
            rig.foreigner().await.put("file", b"of others").await;
        }
        let next = resumed(&rig, &image).await;
        assert_eq!(next.stat("link").await.attr.nlink, 1, "{what}");
        assert_eq!(request.make(&next, &again()).await, Ok(()), "{what}");
        if let Some(names) = names {
            next.again(names).close().await.unwrap();
        }
        let content: &[u8] = if is_open { b"CONTENT" } else { b"content" };
        let mut left = vec![("link", content)];
        left.extend(replaces.then_some(("file", &b"another"[..])));
        left.extend(is_made_again.then_some(("file", &b"of others"[..])));
        left.extend((!replaces).then_some(("other", &b"another"[..])));
        for rig in [&next, &next.foreigner().await] {
            for (name, content) in &left {
                assert_eq!(rig.cat(name).await, *content, "{name} {what}");
            }
            let mut expected: Vec<_> = left.iter().map(|(name, _)| *name).collect();
            expected.push("dir");
            expected.sort_unstable();
            assert_eq!(rig.names().await, expected, "{what}");
        }
    }
}

/// An open file was renamed by a request that had no answer when the process died, and was looked
/// up under its new name since: it is not hidden as if it were what the rename replaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rename_that_was_made_before_hides_nothing() {
    let rig = rig().await;
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    let names = open.names();
    rig.names().await;
    let image = rig.image();
    let request = Request::Rename("file", "new");
    request.make(&rig, &root()).await.unwrap();
    let next = resumed(&rig, &image).await;
    assert_eq!(next.stat("new").await.attr.nlink, 1);
    assert_eq!(request.make(&next, &again()).await, Ok(()));
    next.again(names).close().await.unwrap();
    assert_eq!(next.cat("new").await, b"content");
    assert_eq!(next.names().await, ["dir", "new", "other"]);
}

/// A file was made, or emptied, and opened by a request that had no answer when the process died.
/// What others have written to it since is not emptied by the second try, which gets the same open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_emptied_once_is_not_emptied_again() {
    let flags = OpenFlags { truncate: true, ..WRITE };
    let first = Cred { request: 7, ..root() };
    for name in ["file", "new"] {
        let rig = rig().await;
        let opens = async |rig: &Rig, cred: &Cred| match rig.find(name).await {
            Some(ino) if name == "file" => {
                (ino, rig.client.open(cred, ino, flags).wait().await.unwrap().id)
            }
            _ => {
                let created = rig.client.create(cred, Ino::ROOT, OsStr::new(name), SET, flags);
                let (entry, opened) = created.wait().await.unwrap();
                (entry.ino, opened.id)
            }
        };
        let (ino, id) = opens(&rig, &first).await;
        rig.put(name, b"of others").await;
        let rig = resumed(&rig, &rig.image()).await;
        rig.server.reset_calls();
        let again = Cred { retried: true, ..first.clone() };
        assert_eq!(opens(&rig, &again).await, (ino, id), "{name}");
        assert_eq!((rig.server.calls("make"), rig.server.calls("setattr")), (0, 0), "{name}");
        rig.again((ino, id)).close().await.unwrap();
        assert_eq!(rig.cat(name).await, b"of others", "{name}");
        assert_eq!(rig.foreigner().await.cat(name).await, b"of others", "{name}");
        assert_eq!(rig.client.status().open_files, 0, "{name}");
    }
}
