//! Extended attributes.

use bytes::Bytes;
use larder_client::Options;
use larder_vfs::{Cred, Error, FileSystem, Ino, Result, SetXattr, XattrOnly};

use crate::rig::{Rig, WRITE, root};

async fn set(rig: &Rig, cred: &Cred, ino: Ino, value: Option<&str>, only: XattrOnly) -> Result<()> {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    let set = SetXattr { name: "x".into(), value, only: Some(only) };
    rig.client.set_xattr(cred, ino, set).wait().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extended_attribute_that_is_set_leaves_the_cached_bytes() {
    let rig = Rig::new(Options { has_xattrs: true, ..Options::default() }).await;
    rig.put("file", b"content").await;
    let ino = rig.find("file").await.unwrap();
    assert_eq!(rig.cat("file").await, b"content");
    set(&rig, &root(), ino, Some("1"), XattrOnly::New).await.unwrap();
    rig.server.reset_calls();
    assert_eq!(rig.cat("file").await, b"content");
    assert_eq!(rig.server.calls("read"), 0);

    // Bytes that are not sent are neither sent by it nor lost.
    let open = rig.open(&root(), "file", WRITE).await.unwrap();
    open.write(0, b"CON").await.unwrap();
    set(&rig, &root(), ino, Some("2"), XattrOnly::Existing).await.unwrap();
    assert_eq!(rig.server.calls("write"), 0);
    open.close().await.unwrap();
    let foreigner = rig.foreigner().await;
    assert_eq!(foreigner.cat("file").await, b"CONtent");
    let there = foreigner.find("file").await.unwrap();
    let held = foreigner.client.xattr(&root(), there, "x".as_ref()).wait().await;
    assert_eq!(held, Ok(Some(Bytes::from_static(b"2"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attribute_that_the_first_try_set_is_a_success() {
    let rig = Rig::new(Options { has_xattrs: true, ..Options::default() }).await;
    rig.put("file", b"content").await;
    let (ino, again) = (rig.find("file").await.unwrap(), Cred { retried: true, ..root() });
    let (new, existing) = (XattrOnly::New, XattrOnly::Existing);
    set(&rig, &root(), ino, Some("1"), new).await.unwrap();
    assert_eq!(set(&rig, &root(), ino, Some("1"), new).await, Err(Error::Exists));
    assert_eq!(set(&rig, &again, ino, Some("1"), new).await, Ok(()));
    assert_eq!(set(&rig, &again, ino, Some("2"), new).await, Err(Error::Exists), "another's");
    set(&rig, &root(), ino, None, existing).await.unwrap();
    assert_eq!(set(&rig, &root(), ino, None, existing).await, Err(Error::NoAttribute));
    assert_eq!(set(&rig, &again, ino, None, existing).await, Ok(()));
    assert_eq!(set(&rig, &again, ino, Some("1"), existing).await, Err(Error::NoAttribute));
}
