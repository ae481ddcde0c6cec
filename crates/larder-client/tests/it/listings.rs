//! What a listing describes, and what is asked for it.

use std::time::Duration;

use larder_client::Options;
use larder_vfs::{FileSystem, Ino};

use crate::rig::{Rig, pattern, root};

/// Without an attribute cache a listing describes what it tells by the replies to this reader, in
/// one request for each part: no file is looked up alone, and none is described from before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_without_an_attribute_cache_describes_what_it_tells() {
    for leases in [false, true] {
        let rig = Rig::new(Options::default().no_attribute_cache()).await;
        if leases {
            rig.server.give_leases();
        }
        let other = rig.foreigner().await;
        for number in 0..40 {
            other.put(&format!("f{number:02}"), b"x").await;
        }
        for size in 1..4 {
            other.put("f07", &pattern(size, 100 * size as usize)).await;
            rig.client.opendir(&root(), Ino::ROOT).wait().await.unwrap();
            rig.advance(1);
            rig.server.reset_calls();
            let (mut told, mut offset, mut parts) = (0, 0, 0);
            loop {
                let part = rig.client.readdir(&root(), Ino::ROOT, offset, 1700, true);
                let part = part.wait().await.unwrap();
                let Some(last) = part.last() else { break };
                (offset, parts, told) = (last.offset, parts + 1, told + part.len());
                for one in part {
                    let entry = one.entry.expect("it is described");
                    assert_eq!(entry.fresh.ttl, Duration::ZERO, "the next one asks again");
                    let expected = if one.name == "f07" { 100 * size } else { 1 };
                    assert_eq!(entry.fresh.attr.size, expected, "{:?}, leases {leases}", one.name);
                }
            }
            assert!(told == 40 && parts > 3, "{told} in {parts}");
            assert!(rig.server.calls("readdir") <= parts, "{}", rig.server.calls("readdir"));
            assert_eq!(rig.server.calls("lookup"), 0);
        }
    }
}
