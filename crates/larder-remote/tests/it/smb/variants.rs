//! Servers that demand signing or encryption, older versions, guests.
//!
//! The differences are below the messages, so a few calls of each kind, with data in both
//! directions, cover them; the whole suite runs where every message differs.

use super::setup::{Setup, mount, options, pattern, serve};
use larder_remote::smb::{Credentials, MountOptions, Version};
use larder_testkit::SambaOptions;
use larder_vfs::{Cred, New, Remote, Removal, Stability};

/// A little of everything, and data both ways.
async fn check(
    samba: impl FnOnce(&mut SambaOptions),
    change: impl FnOnce(&mut MountOptions),
    version: Version,
) {
    let setup = Setup::new(samba, change).await;
    let (cred, root) = (&setup.cred, &setup.root);
    assert_eq!(setup.smb.version(), Some(version));
    setup.data_survives("data", 2_000_001).await;
    let dir = setup.make("dir", New::Directory).await.unwrap();
    let (from, to) = ((root, "data".as_ref()), (&dir, "moved".as_ref()));
    setup.smb.rename(cred, from, to).await.unwrap();
    let page = setup.smb.readdir(cred, &dir, Default::default(), 4096).await.unwrap();
    assert_eq!(page.entries.len(), 1);
    let moved = page.entries[0].handle.clone().unwrap();
    setup.access(&moved).await.lease.expect("a lease");
    setup.smb.remove(cred, &dir, "moved".as_ref(), Removal::File).await.unwrap();
    setup.smb.remove(cred, root, "dir".as_ref(), Removal::Directory).await.unwrap();
    assert!(setup.smb.statfs(cred, root).await.unwrap().bytes > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_demands_signing() {
    check(|samba| samba.signing = true, |options| options.sign = true, Version::V3_1_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_demands_encryption() {
    check(|samba| samba.encryption = true, |_| (), Version::V3_1_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_demands_encryption() {
    check(|_| (), |options| options.seal = true, Version::V3_1_1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_3_0_2() {
    check(|samba| samba.protocol_max = "SMB3_02", |_| (), Version::V3_0_2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_3_0_encrypted() {
    let old = |options: &mut MountOptions| {
        (options.version_max, options.seal) = (Version::V3_0, true);
    };
    check(|_| (), old, Version::V3_0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_2_1() {
    check(|samba| samba.protocol_max = "SMB2_10", |_| (), Version::V2_1).await;
    check(|_| (), |options| options.version_max = Version::V2_1, Version::V2_1).await;
}

/// Lease breaks are neither signed nor encrypted, even on such connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_broken_on_encrypted_connections() {
    let setup = Setup::new(|samba| samba.encryption = true, |_| ()).await;
    let file = setup.file("file", b"first").await;
    let lease = setup.access(&file).await.lease.expect("a lease");
    let other = mount(&options(&setup.server)).await;
    let root = other.root().await.unwrap().handle;
    other.lookup(&setup.cred, &root, "file".as_ref()).await.unwrap();
    let data = bytes::Bytes::from_static(b"second");
    other.write(&setup.cred, &file, None, 0, data, Stability::FileSync).await.unwrap();
    super::setup::eventually("the lease ends", || !lease.holds()).await;
    assert_eq!(setup.read(&file, 0, 100).await, "second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_reads_and_writes() {
    let (server, dir) = serve(|samba| samba.guest = true);
    let mut options = options(&server);
    options.credentials = Credentials::default();
    let smb = mount(&options).await;
    let (cred, root) = (Cred::root(), smb.root().await.unwrap().handle);
    let name = "file".as_ref();
    let made = smb.make(&cred, &root, name, New::FileExclusive, Default::default()).await.unwrap();
    let (file, data) = (made.found.handle, pattern(300_000));
    let content = bytes::Bytes::from(data.clone());
    smb.write(&cred, &file, None, 0, content, Stability::FileSync).await.unwrap();
    assert!(std::fs::read(dir.path().join("file")).unwrap() == data);
    assert!(smb.read(&cred, &file, None, 0, 300_000).await.unwrap().data == data);
}
