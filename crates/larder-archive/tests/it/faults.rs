//! A server that is away, refuses, or has other bytes than were put.

use std::io;
use std::time::Duration;

use crate::world::{Hooked, MIB5, PREFIX, VOLUME, World, archive, bytes, files, get, put, version};
use larder_archive::{Error, Receipt, Refusal};
use larder_testkit::Versitygw;

#[tokio::test]
async fn a_put_goes_on_when_the_server_is_killed_and_comes_back() {
    let World { mut server, archive } = World::start();
    let (version, bytes) = (version(1, 1), bytes(5 * MIB5, 1));
    let before = |read| {
        if [2, 3, 5].contains(&read) {
            server.kill().unwrap();
            server.begin().unwrap();
        }
        Ok(())
    };
    let mut source = Hooked { bytes: bytes.clone(), reads: 0, before };
    let receipt = archive.put(&version, bytes.len() as u64, &mut source).await.unwrap();
    assert!(get(&archive, &version, receipt).await.unwrap() == bytes);
}

#[tokio::test]
async fn a_put_that_fails_is_made_again() {
    let mut world = World::start();
    let impatient = world.impatient();
    let (version, bytes) = (version(1, 1), bytes(5 * MIB5, 1));
    for at in 1..=5 {
        let server = &mut world.server;
        let before = |read| {
            if read == at {
                server.kill().unwrap();
            }
            Ok(())
        };
        let mut source = Hooked { bytes: bytes.clone(), reads: 0, before };
        let error = impatient.put(&version, bytes.len() as u64, &mut source).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("address"), "{error}");
        world.server.begin().unwrap();
    }
    let receipt = put(&world.archive, &version, &bytes).await;
    assert!(get(&world.archive, &version, receipt).await.unwrap() == bytes);
    // What a put left that failed, the delete of the version removes.
    world.archive.delete(&version).await.unwrap();
    assert_eq!(files(&world.server.bucket().join(PREFIX)), 0);
}

#[tokio::test]
async fn bytes_that_cannot_be_read_are_not_put() {
    let world = World::start();
    let bytes = bytes(2 * MIB5, 1);
    for (at, is_short) in [(1, false), (2, false), (2, true)] {
        let before = |read| match read == at && !is_short {
            true => Err(io::Error::other("the disk is away")),
            false => Ok(()),
        };
        let bytes = if is_short { bytes.slice(..MIB5 + 1) } else { bytes.clone() };
        let mut source = Hooked { bytes, reads: 0, before };
        let put = world.archive.put(&version(1, 1), 2 * MIB5 as u64, &mut source).await;
        assert!(matches!(put, Err(Error::Source(_))));
        assert_eq!(files(&world.server.bucket().join(PREFIX)), 0);
    }
}

#[tokio::test]
async fn a_store_that_refuses_says_in_one_line_what_to_do() {
    let world = World::start();
    let version = version(1, 1);
    for (bucket, secret, expected, says) in [
        (Versitygw::BUCKET, "not-this-one", Refusal::Credentials, "check the credentials"),
        ("elsewhere", Versitygw::SECRET, Refusal::Bucket, "create it first"),
    ] {
        let archive = archive(&world.server, bucket, secret, Duration::ZERO);
        let receipt = Receipt { bytes: 1, root: [0; 32] };
        let errors = [
            archive.reach(VOLUME).await.unwrap_err(),
            archive.put(&version, 1, &mut bytes(1, 0)).await.unwrap_err(),
            archive.put(&version, 2 * MIB5 as u64, &mut bytes(2 * MIB5, 0)).await.unwrap_err(),
            get(&archive, &version, receipt).await.unwrap_err(),
            archive.delete(&version).await.unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error, Error::Refused { why, .. } if why == expected), "{text}");
            assert!(text.contains(says) && text.lines().count() == 1, "{text}");
            assert!(!text.contains(secret) && !text.contains(Versitygw::ACCESS), "{text}");
        }
    }
}

#[tokio::test]
async fn altered_objects_are_refused() {
    let world = World::start();
    let (whole, other) = (version(1, 1), version(1, 2));
    let bytes = bytes(3 * MIB5 + 5, 1);
    let receipt = put(&world.archive, &whole, &bytes).await;
    let foreign = put(&world.archive, &other, &crate::world::bytes(3 * MIB5 + 5, 2)).await;
    assert_ne!(receipt, foreign);
    for name in ["00000000", "00000001", "sums"] {
        let path = world.object(&whole, name);
        let kept = std::fs::read(&path).unwrap();
        let mut changed = kept.clone();
        *changed.last_mut().unwrap() ^= 1;
        let cut = kept[..kept.len() - 1].to_vec();
        let exchanged = std::fs::read(world.object(&other, name)).unwrap();
        for (what, altered) in
            [("changed", changed), ("cut", cut), ("empty", vec![]), ("exchanged", exchanged)]
        {
            // In place: what the server knows of an object is in attributes of this file.
            std::fs::write(&path, &altered).unwrap();
            let read = get(&world.archive, &whole, receipt).await.map(|read| read.len());
            assert!(matches!(read, Err(Error::Altered(_))), "{name} {what}: {read:?}");
        }
        std::fs::remove_file(&path).unwrap();
        let read = get(&world.archive, &whole, receipt).await.map(|read| read.len());
        assert!(matches!(read, Err(Error::Missing(_))), "{name}: {read:?}");
        put(&world.archive, &whole, &bytes).await;
        assert!(get(&world.archive, &whole, receipt).await.unwrap() == bytes);
    }
    // Another version's receipt reads nothing here.
    let read = get(&world.archive, &whole, foreign).await.map(|read| read.len());
    assert!(matches!(read, Err(Error::Altered(_))), "{read:?}");
}
