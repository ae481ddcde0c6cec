//! Set-uid bits, which a write drops.

use larder_client::Options;
use larder_vfs::{Cred, Error, FileSystem, SetAttr};

use crate::rig::{Rig, WRITE};

/// The kernel drops the bits on behalf of the writer, a user who may not set modes; the server
/// drops them when it gets the bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_is_not_the_owner_drops_set_uid() {
    let rig = Rig::new(Options::default()).await;
    rig.put("file", b"program").await;
    rig.set("file", SetAttr { mode: Some(0o6777), ..SetAttr::default() }).await;
    let (ino, bob) = (rig.find("file").await.unwrap(), Cred::new(1000, 1000, &[]));
    let drop_bits = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    let by_bob = |set: SetAttr| rig.client.setattr(&bob, ino, None, set).wait();
    assert_eq!(by_bob(drop_bits).await.unwrap_err(), Error::NotPermitted, "who does not write");

    let open = rig.open(&bob, "file", WRITE).await.unwrap();
    rig.server.reset_calls();
    let (dropped, _) = by_bob(drop_bits).await.unwrap();
    assert_eq!((dropped.attr.mode, dropped.ttl.is_zero()), (0o777, true));
    assert_eq!(rig.server.calls_total(), 0);
    open.write(0, b"other").await.unwrap();
    assert_eq!(rig.stat("file").await.attr.mode, 0o777);
    for other in [0o776, 0o2776, 0o7777] {
        let set = SetAttr { mode: Some(other), ..SetAttr::default() };
        assert_eq!(by_bob(set).await.unwrap_err(), Error::NotPermitted, "{other:o}");
    }
    open.close().await.unwrap();

    // A cut comes in one call.
    rig.set("file", SetAttr { mode: Some(0o6777), ..SetAttr::default() }).await;
    by_bob(SetAttr { size: Some(1), ..drop_bits }).await.unwrap();
    assert_eq!(rig.stat("file").await.attr.size, 1);
}
