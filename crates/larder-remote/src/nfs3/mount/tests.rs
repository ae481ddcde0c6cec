//! Sizes. Mounting itself is tried on a real server (`tests/it`).

use super::*;

#[test]
fn sizes_are_chosen_within_both_limits() {
    let info = |preferred, max| FSINFO3resok {
        obj_attributes: None,
        rtmax: max,
        rtpref: preferred,
        rtmult: 512,
        wtmax: max,
        wtpref: preferred,
        wtmult: 512,
        dtpref: 1 << 30,
        maxfilesize: 1 << 40,
        time_delta: nfs3::nfstime3 { seconds: 0, nseconds: 1 },
        properties: fsf3::LINK | fsf3::CANSETTIME,
    };
    let check = |options: &MountOptions, info: &FSINFO3resok, size: u32| {
        let limits = limits(options, info, None);
        assert_eq!((limits.read_max, limits.write_max), (size, size));
        assert!(limits.links && !limits.symlinks);
    };
    let mut options = MountOptions::new("h", "/p");
    check(&options, &info(64 << 20, 64 << 20), 1 << 20);
    check(&options, &info(0, 65536), 65536);
    check(&options, &info(32768, 65536), 32768);
    check(&options, &info(0, 0), PAYLOAD_BYTES_MIN);
    options.read_max = 8192;
    options.write_max = 8192;
    check(&options, &info(32768, 65536), 8192);
    let mut options = MountOptions::new("h", "/p");
    options.transport = Transport::Udp;
    check(&options, &info(64 << 20, 64 << 20), DATAGRAM_PAYLOAD_BYTES_MAX);
}
