//! What goes to disks because memory disks do not take it is counted by the metadata server.

use larder_io::Headroom;
use larder_vfs::{Medium, Volatile};
use larder_wire::disk::words::Refusal;

use super::*;

const BLOCK: u64 = 4096;

/// Memory disks that have refused something are avoided for some seconds, also when they have
/// room again. What a mount writes to disks meanwhile is counted like what the server finds no
/// room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_mount_keeps_from_memory_disks_is_counted() {
    let mut volume = Volume::new(Setup::Secure);
    volume.add_memory(1);
    let (native, root) = (mount(&volume).await, Cred::root());
    let volatile = Volatile { copies: 1, due: None };
    let set = SetAttr { mode: Some(0o644), in_memory: Some(volatile), ..SetAttr::default() };
    let dir = native.root().await.unwrap().handle;
    let none = Headroom { bytes: -(1 << 40), is_stalled: false };
    let much = Headroom { bytes: 1 << 40, is_stalled: false };
    let (mut on_disk, mut kept_away) = (0, 0);
    // Now and then the server knows of the limit before the mount, or so much time passes that the
    // mount avoids nothing any more: then another round shows it.
    for round in 0..20_u64 {
        let refused = volume.refusals(1, Refusal::NoSpace);
        for (part, headroom) in [none, much].into_iter().enumerate() {
            volume.note_headroom(1, headroom);
            let name = format!("f{round}.{part}");
            let file = native.make(&root, &dir, name.as_ref(), New::File, set).await.unwrap();
            let (file, token) = (file.found.handle, file.token.unwrap());
            // More than the room that comes with the name, which counts whether it is used or not.
            let data = Bytes::from(pattern(80_000 + part * 20_000));
            let (whole, stability) = (data.len() as u64, Stability::Shared(volatile));
            native.write(&root, &file, Some(&token), 0, data, stability).await.unwrap();
            native.close(&root, token).await.unwrap();
            let stored = native.stored(&root, &file).await.unwrap();
            assert_eq!(stored.iter().map(|part| part.bytes).sum::<u64>(), whole);
            for part in stored.iter().filter(|part| part.medium == Medium::Disk) {
                on_disk += part.bytes.next_multiple_of(BLOCK);
            }
            let was_refused = volume.refusals(1, Refusal::NoSpace) > refused;
            kept_away += u32::from(part == 1 && was_refused && stored[0].medium == Medium::Disk);
            assert_eq!(volume.activity().instead.bytes, on_disk, "{name}: {stored:?}");
        }
        if kept_away > 0 {
            return;
        }
    }
    panic!("the mount never avoids the memory disk");
}
