//! Sources, options and sizes. Mounting itself is tried on a real server (`tests/it`).

use super::*;

#[test]
fn sources_are_read() {
    let check = |source: &str, host: &str, port: Option<u16>, path: &str| {
        let options = MountOptions::parse(source).unwrap();
        assert_eq!((&*options.host, options.port, &*options.path), (host, port, path), "{source}");
    };
    check("nfs://server/export", "server", None, "/export");
    check("nfs://server:2050/a/b", "server", Some(2050), "/a/b");
    check("nfs://[fe80::1]:2050/a", "fe80::1", Some(2050), "/a");
    check("nfs://[fe80::1]/a", "fe80::1", None, "/a");
    check("server:/export", "server", None, "/export");
    check("[::1]:/export", "::1", None, "/export");
    check("nfs://server/a?port=7,soft", "server", Some(7), "/a");
}

#[test]
fn options_are_those_of_nfs5() {
    let options = MountOptions::parse(
        "nfs://h/p?proto=udp,hard,timeo=25,retrans=4,rsize=8192,wsize=4096,nconnect=3,noresvport,\
         mountport=9,nordirplus,failfast",
    )
    .unwrap();
    assert_eq!((options.transport, options.recovery), (Transport::Udp, Recovery::Hard));
    assert_eq!(
        (options.timeout, options.retransmissions),
        (Some(Duration::from_millis(2500)), Some(4))
    );
    assert_eq!((options.read_max, options.write_max, options.connections), (8192, 4096, 3));
    assert_eq!((options.source_port, options.mount_port), (SourcePort::Any, Some(9)));
    assert!(!options.readdirplus && options.fail_fast);
}

#[test]
fn what_cannot_be_read_says_why() {
    let check = |source: &str, why: &str| {
        let error = MountOptions::parse(source).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    check("/export", "neither nfs://");
    check("nfs://server", "path is missing");
    check("nfs:///export", "host is missing");
    check(":/export", "host is missing");
    check("nfs://server:x/export", "not a number");
    check("nfs://server/export?rsize=big", "not a number");
    check("nfs://server/export?vers=4", "no such option");
}

#[test]
fn sizes_are_settled_within_both_limits() {
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
