//! Copies within a volume: what disks do by themselves, and what passes the client.

use bytes::Bytes;
use larder_io::Image;
use larder_remote::native::Native;
use larder_testkit::Volume;
use larder_vfs::{CopyEnd, Cred, Handle, New, Remote, Removal, SetAttr, Stability};
use larder_wire::Procedure;
use larder_wire::meta::calls::AllocNear;
use larder_wire::seal::Setup;

use super::{calls, eventually, make, mount, pattern};

const MIB: usize = 1 << 20;

/// No data of a copy passes the client, but what is not a whole block of both files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disks_copy_what_they_have() {
    let volumes = [(Volume::new(Setup::Private), 1), (Volume::with_copies(Setup::Secure, 2), 2)];
    for (volume, disks) in volumes {
        let (native, root) = (mount(&volume).await, Cred::root());
        let data = pattern(5_000_001);
        let (from, to) = (make(&native, "from").await, make(&native, "to").await);
        let whole = Bytes::from(data.clone());
        native.write(&root, &from, None, 0, whole, Stability::FileSync).await.unwrap();
        let moved = |name| calls(&native, name);
        let (read, written, copied) = (moved("READ"), moved("WRITE"), moved("WRITE_FROM"));
        let ends = [CopyEnd::unopened(&from, 0), CopyEnd::unopened(&to, 0)];
        let done = native.copy_range(&root, ends[0], ends[1], 5_000_001).await.unwrap();
        assert_eq!(done.len, 5_000_001);
        // With copies the last block is merged.
        let edges = disks - 1;
        assert_eq!((moved("READ") - read, moved("WRITE") - written), (edges, edges * disks));
        let copied = moved("WRITE_FROM") - copied;
        // A MiB each, and as many more as there are extents.
        assert!((5 * disks..=7 * disks).contains(&copied), "{copied}");
        let other = mount(&volume).await;
        let found = other.read(&root, &to, None, 0, 6_000_000).await.unwrap();
        assert!(found.data == data && found.eof);
        // Apart from each other within a block: through the client, and right.
        let (one, other_end) = (CopyEnd::unopened(&from, 1), CopyEnd::unopened(&to, 10_000));
        let done = native.copy_range(&root, one, other_end, 100_000).await.unwrap();
        assert_eq!(done.len, 100_000);
        let found = other.read(&root, &to, None, 9_000, 102_000).await.unwrap().data;
        assert!(found[..1000] == data[9_000..10_000] && found[1000..101_000] == data[1..100_001]);
        assert!(found[101_000..] == data[110_000..111_000]);
    }
}

/// How often data was read and written, was copied by disks, and room was asked for.
fn counts(native: &Native) -> [u64; 5] {
    ["READ", "WRITE", "WRITE_FROM", "ALLOC_NEAR", "ALLOC"].map(|name| calls(native, name))
}

/// What [`counts`] counts while a new file of this name becomes a copy of one.
async fn copied(native: &Native, from: &Handle, name: &str, len: usize) -> [u64; 5] {
    let (root, dir) = (Cred::root(), native.root().await.unwrap().handle);
    let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    // Its first bytes have blocks, which are often elsewhere.
    let made = native.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
    let (to, token) = (made.found.handle, made.token);
    let before = counts(native);
    let mut at = 0;
    while at < len as u64 {
        let target = CopyEnd { file: &to, open: token.as_ref(), offset: at };
        let source = CopyEnd::unopened(from, at);
        at += native.copy_range(&root, source, target, len as u64 - at).await.unwrap().len;
    }
    let after = counts(native);
    std::array::from_fn(|at| after[at] - before[at])
}

/// Another mount finds these bytes.
async fn finds(other: &Native, name: &str, data: &[u8]) {
    let (root, dir) = (Cred::root(), other.root().await.unwrap().handle);
    let found = other.lookup(&root, &dir, name.as_ref()).await.unwrap().found.unwrap();
    let mut at = 0;
    while at < data.len() {
        let read = other.read(&root, &found.handle, None, at as u64, MIB as u32).await.unwrap();
        assert!(
            !read.data.is_empty() && read.data == data[at..at + read.data.len()],
            "{name} {at}"
        );
        at += read.data.len();
    }
}

/// The disks of a volume take turns, and a copy is on those of its source all the same: no data
/// passes the client, also with copies, where each disk of a set copies what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_lies_where_its_source_lies() {
    for (copies, sets) in [(1, 3), (2, 2)] {
        let mut volume = Volume::with_sets(Setup::Secure, (copies, sets), 64 << 20);
        let (native, other, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
        let data = pattern(6 * MIB + 3 * 4096);
        let from = make(&native, "from").await;
        let whole = Bytes::from(data.clone());
        native.write(&root, &from, None, 0, whole, Stability::FileSync).await.unwrap();
        for name in ["one", "two", "three"] {
            let [read, written, by_disks, asked, _] =
                copied(&native, &from, name, data.len()).await;
            assert_eq!((read, written), (0, 0), "{copies} {name}");
            assert!((7..=9).contains(&(by_disks / u64::from(copies))), "{copies} {by_disks}");
            assert_eq!(asked, 1, "{copies} {name}");
            finds(&other, name, &data).await;
        }
        // Elsewhere in the file, over the ends of stripes.
        let before = counts(&native);
        let to = make(&native, "shifted").await;
        let ends = [CopyEnd::unopened(&from, 4096), CopyEnd::unopened(&to, 3 * 4096)];
        let len = 3 * MIB as u64;
        assert_eq!(native.copy_range(&root, ends[0], ends[1], len).await.unwrap().len, len);
        assert_eq!(counts(&native)[..2], before[..2], "{copies}");
        let expected = [&[0; 3 * 4096][..], &data[4096..4096 + 3 * MIB]].concat();
        finds(&other, "shifted", &expected).await;
        volume.kill();
        assert_eq!(volume.check(), Vec::<String>::new());
    }
}

/// What has no room where its source is lies elsewhere, and passes the client. The files of one MiB
/// each take turns; those on all disks but one are removed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_elsewhere_if_its_sources_disk_is_full() {
    let volume = Volume::with_sets(Setup::Secure, (1, 3), 4 * MIB as u64);
    let (native, other, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
    let dir = native.root().await.unwrap().handle;
    let data = pattern(MIB);
    let mut files = Vec::new();
    for number in 0..12 {
        let file = make(&native, &format!("f{number}")).await;
        let whole = Bytes::from(data.clone());
        native.write(&root, &file, None, 0, whole, Stability::FileSync).await.unwrap();
        files.push(file);
    }
    for number in (0..12).filter(|number| number % 3 != 0) {
        let name = format!("f{number}");
        native.remove(&root, &dir, name.as_ref(), Removal::File).await.unwrap();
    }
    eventually("there is room", async || {
        native.statfs(&root, &dir).await.unwrap().bytes_free >= 8 * MIB as u64
    })
    .await;
    for name in ["one", "two", "three"] {
        let [read, written, by_disks, ..] = copied(&native, &files[3], name, MIB).await;
        assert_eq!((read > 0, written > 0, by_disks), (true, true, 0), "{name}");
        finds(&other, name, &data).await;
    }
}

/// A metadata server of an earlier version is asked once, and lets disks take turns: the copy is
/// right, and most of it passes the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_an_earlier_version_places_copies_by_turns() {
    let mut volume = Volume::with_sets(Setup::Secure, (1, 3), 64 << 20);
    volume.kill_meta(Image::Written);
    volume.be_earlier_than(AllocNear::NUMBER);
    volume.start();
    let (native, other, root) = (mount(&volume).await, mount(&volume).await, Cred::root());
    let data = pattern(4 * MIB);
    let from = make(&native, "from").await;
    let whole = Bytes::from(data.clone());
    native.write(&root, &from, None, 0, whole, Stability::FileSync).await.unwrap();
    let mut asked = 0;
    for name in ["one", "two"] {
        let [read, .., near, alloc] = copied(&native, &from, name, data.len()).await;
        asked += near;
        assert!(read > 0 && alloc > 0, "{read} {alloc}");
        finds(&other, name, &data).await;
    }
    assert_eq!(asked, 1);
}
