//! What is put is read back, listed and deleted.

use crate::world::{MIB5, PREFIX, VOLUME, World, bytes, files, get, put, version};
use larder_archive::{Receipt, Version};

#[tokio::test]
async fn a_version_reads_as_it_was_put() {
    let world = World::start();
    world.archive.reach(VOLUME).await.unwrap();
    // Empty, one section, several sections of one object, several objects; on and beside each end.
    for (ino, length) in
        [0, 1, MIB5 - 1, MIB5, MIB5 + 1, 2 * MIB5, 2 * MIB5 + 1, 4 * MIB5, 4 * MIB5 + 4711]
            .into_iter()
            .enumerate()
    {
        let (version, bytes) = (version(ino as u64, 1), bytes(length, 3));
        let receipt = put(&world.archive, &version, &bytes).await;
        assert_eq!(receipt.bytes, length as u64);
        let read = get(&world.archive, &version, receipt).await.unwrap();
        assert!(read == bytes, "{length} bytes");
        // The same again is the same receipt: a put that was not noted is made again.
        assert_eq!(put(&world.archive, &version, &bytes).await, receipt);
        // Objects are plain bytes, which other programs can read.
        let first = std::fs::read(world.object(&version, "00000000")).unwrap();
        assert!(first == bytes[..length.min(2 * MIB5)]);
    }
}

#[tokio::test]
async fn versions_are_listed_and_deleted_one_by_one() {
    let world = World::start();
    let mut put_here: Vec<(Version, Receipt)> = Vec::new();
    let long = bytes(2 * MIB5 + 1, 0);
    for (ino, data_version) in [(1, 1), (1, 2), (1, 0x10), (0x10, 1), (2, 1)] {
        let bytes = if ino == 2 { long.clone() } else { bytes(10, data_version as u8) };
        let version = version(ino, data_version);
        put_here.push((version, put(&world.archive, &version, &bytes).await));
    }
    // Another volume's, and what others have put beside.
    let foreign = Version { volume: [7; 16], ..version(1, 1) };
    put(&world.archive, &foreign, &bytes(1, 0)).await;
    std::fs::write(world.server.bucket().join(PREFIX).join("readme"), "ours").unwrap();

    let listed = async || {
        let mut listed = Vec::new();
        world.archive.versions(VOLUME, |version| listed.push(version)).await.unwrap();
        listed
    };
    put_here.sort_by_key(|(version, _)| *version);
    while !put_here.is_empty() {
        let expected: Vec<_> = put_here.iter().map(|(version, _)| *version).collect();
        assert_eq!(listed().await, expected);
        let (deleted, _) = put_here.remove(put_here.len() / 2);
        world.archive.delete(&deleted).await.unwrap();
        // Again, as by somebody who died before noting it.
        world.archive.delete(&deleted).await.unwrap();
        for (version, receipt) in &put_here {
            assert_eq!(
                get(&world.archive, version, *receipt).await.unwrap().len() as u64,
                receipt.bytes
            );
        }
    }
    assert_eq!(listed().await, []);
    assert_eq!(files(&world.server.bucket().join(PREFIX)), 2);
}
