//! Mounts that are out of the name space, and still served: they can be found, and ended.

use std::fs::{self, File};
use std::io::Read;

use crate::harness::{Kind, Mount, Server, eventually, run, said};

/// What `status` reports for all mounts.
fn states(mount: &Mount) -> Vec<(String, u64)> {
    let (_, text) = said(mount, &["status", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let state = |one: &serde_json::Value| {
        (one["state"].as_str().unwrap().to_owned(), one["pid"].as_u64().unwrap())
    };
    all.as_array().unwrap().iter().map(state).collect()
}

/// By `larder umount --lazy`, or by umount(8): `status` lists it, a new mount of its cache names
/// it, and `umount --pid` ends it, and not the mount that was made at its place in the meantime.
#[test]
fn a_detached_mount_is_found_and_can_be_ended() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "here").unwrap();
    for ours in [true, false] {
        let mut mount = Mount::new(&server, &[]);
        let path = mount.path("");
        let path = path.to_str().unwrap().trim_end_matches('/');
        let mut open = File::open(mount.path("file")).unwrap();
        let pid = mount.pids()[0];
        match ours {
            true => drop(said(&mount, &["umount", "--lazy", path])),
            false => drop(run("umount", &["--lazy", path])),
        }
        let detached = vec![("detached".to_owned(), u64::from(pid))];
        assert_eq!(states(&mount), detached, "ours {ours}");
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "here", "it is served");

        let refused = mount.command().output().unwrap();
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(told.contains(&format!("larder umount --pid {pid}")), "ours {ours}: {told}");
        let cache = mount.cache();
        mount.set_cache(cache.with_file_name("another"));
        mount.mount();
        assert_eq!(states(&mount).len(), 2, "ours {ours}");

        let (code, told) = said(&mount, &["umount", "--pid", &pid.to_string()]);
        assert_eq!((code, told.as_str()), (Some(0), ""), "ours {ours}");
        eventually("it is gone", || states(&mount).len() == 1);
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"here", "the new one stays");
        assert_eq!(states(&mount)[0].0, "mounted");
        drop(open);
        mount.unmount();
        mount.set_cache(cache);
        mount.mount();
        assert_eq!(fs::read(mount.path("file")).unwrap(), b"here");
    }
    let mount = Mount::new(&server, &[]);
    let (code, told) = said(&mount, &["umount", "--pid", &mount.pids()[0].to_string()]);
    assert!(code == Some(1) && told.contains("serves the mount on"), "{told}");
}
