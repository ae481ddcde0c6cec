//! What an export must not reveal: whatever handle is presented, and whatever is moved on the
//! server.

use super::*;

/// The handle that would lead to `target` if only the kernel's part of `handle` counted, which is
/// that of `own`.
fn forged(handle: &Handle, own: &Path, target: &Path) -> Handle {
    let kernel =
        |path: &Path| larder_io::handle::handle_of(fs::File::open(path).unwrap()).unwrap().0.bytes;
    let (own, target) = (kernel(own), kernel(target));
    let bytes = handle.as_bytes();
    let at = bytes.windows(own.len()).position(|part| part == own).unwrap();
    Handle::new(&[&bytes[..at], &target, &bytes[at + own.len()..]].concat())
}

#[tokio::test]
async fn a_forged_handle_reaches_nothing_beside_the_export() {
    let t = fixture!(open_to_root());
    fs::write(t.path("inside"), b"public").unwrap();
    fs::create_dir(t.path("dir")).unwrap();
    let secret = t.dir.path().join("secret");
    fs::write(&secret, b"secret").unwrap();
    fs::create_dir_all(t.dir.path().join("outside/deep")).unwrap();
    let (root, cred) = (&t.root, &Cred::root());

    let file = forged(&t.find("inside").await, &t.path("inside"), &secret);
    assert_eq!(t.remote.getattr(cred, &file).await.unwrap_err(), Error::Stale);
    assert_eq!(t.read(cred, &file).await.unwrap_err(), Error::Stale);
    assert_eq!(t.write(cred, &file, b"changed").await.unwrap_err(), Error::Stale);
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(t.remote.setattr(cred, &file, cut, None).await.unwrap_err(), Error::Stale);
    let linked = t.remote.link(cred, &file, root, "link".as_ref()).await;
    assert_eq!(linked.unwrap_err(), Error::Stale);
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert!(!t.path("link").exists());

    let outside = t.dir.path().join("outside/deep");
    let dir = forged(&t.find("dir").await, &t.path("dir"), &outside);
    assert_eq!(t.remote.getattr(cred, &dir).await.unwrap_err(), Error::Stale);
    let made = t.remote.make(cred, &dir, "new".as_ref(), New::File, SetAttr::default()).await;
    assert_eq!(made.unwrap_err(), Error::Stale);

    for garbage in [&b""[..], b"\x01", b"\x02", &[1; 64], &[2; 64], &[0; 30]] {
        let answer = t.remote.getattr(cred, &Handle::new(garbage)).await;
        assert!(matches!(answer, Err(Error::Stale | Error::InvalidArgument)), "{answer:?}");
    }
}

#[tokio::test]
async fn a_directory_that_was_moved_out_is_left() {
    let t = fixture!(open_to_root());
    fs::create_dir_all(t.path("in/sub/deep")).unwrap();
    fs::write(t.path("in/sub/file"), b"x").unwrap();
    fs::write(t.dir.path().join("beside"), b"secret").unwrap();
    let cred = &Cred::root();
    let look = async |dir: &Handle, name: &str| {
        let found = t.remote.lookup(cred, dir, name.as_ref()).await?;
        Ok(found.found.expect(name).handle)
    };
    let inside = look(&t.root, "in").await.unwrap();
    let sub = look(&inside, "sub").await.unwrap();
    let deep = look(&sub, "deep").await.unwrap();
    let file = look(&sub, "file").await.unwrap();
    assert_eq!(look(&t.root, "..").await.unwrap(), t.root, "the root is its own parent");
    assert_eq!(look(&sub, "..").await.unwrap(), inside);
    assert_eq!(look(&deep, "..").await.unwrap(), sub);

    // Its descriptor is still kept.
    fs::rename(t.path("in/sub"), t.dir.path().join("moved")).unwrap();
    for (dir, name) in [(&sub, ".."), (&sub, "file"), (&sub, "."), (&deep, ".."), (&deep, ".")] {
        assert_eq!(look(dir, name).await, Err(Error::Stale), "{name}");
    }
    assert_eq!(t.remote.getattr(cred, &sub).await.unwrap_err(), Error::Stale);
    let listed = t.remote.readdir(cred, &sub, Cookie::default(), 4096).await;
    assert_eq!(listed.unwrap_err(), Error::Stale);
    let made = t.remote.make(cred, &deep, "new".as_ref(), New::File, SetAttr::default()).await;
    assert_eq!(made.unwrap_err(), Error::Stale);
    // A file does not know where it is.
    assert_eq!(t.read(cred, &file).await.unwrap(), b"x");

    fs::rename(t.dir.path().join("moved"), t.path("back")).unwrap();
    assert_eq!(look(&sub, "..").await.unwrap(), t.root);
    assert_eq!(look(&deep, "..").await.unwrap(), sub);
    // Moved as a whole, it is the same export.
    fs::rename(t.path(""), t.dir.path().join("elsewhere")).unwrap();
    assert_eq!(look(&deep, "..").await.unwrap(), sub);
}

#[tokio::test]
async fn directories_too_deep_for_a_path_are_inside() {
    let t = fixture!(open_to_root());
    let name = "n".repeat(250);
    let (mut at, cred) = (t.root.clone(), Cred::root());
    for _ in 0..20 {
        let made = t.remote.make(&cred, &at, name.as_ref(), New::Directory, SetAttr::default());
        at = made.await.unwrap().found.handle;
    }
    let up = t.remote.lookup(&cred, &at, "..".as_ref()).await.unwrap().found.unwrap().handle;
    let down = t.remote.lookup(&cred, &up, name.as_ref()).await.unwrap();
    assert_eq!(down.found.unwrap().handle, at);
}
