//! The server goes away: everything ends in time, and what is cached stays readable.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{Kind, Mount, Server, eventually, pattern};

#[test]
fn umount_returns_in_time_when_the_server_is_dead() {
    for frozen in [true, false] {
        let mut server = Server::start(Kind::Larder);
        fs::write(server.path("file"), "x").unwrap();
        let mut mount = Mount::new(&server, &[]);
        fs::read(mount.path("file")).unwrap();
        if frozen {
            server.freeze();
        } else {
            server.kill();
        }
        let took = mount.unmount();
        if frozen {
            server.thaw();
        }
        assert!(took < Duration::from_secs(5), "{took:?}, frozen {frozen}");
    }
}

#[test]
fn umount_returns_in_time_while_a_call_waits_for_ever() {
    let server = Server::start(Kind::Larder);
    fs::write(server.path("file"), "x").unwrap();
    let mut mount = Mount::new(&server, &["hard"]);
    server.freeze();
    let path = mount.path("file");
    let waiting = std::thread::spawn(move || fs::read(path));
    let took = mount.unmount();
    server.thaw();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(waiting.join().unwrap().is_err());
}

#[test]
fn operations_on_a_dead_server_end_and_cached_data_stays_readable() {
    let server = Server::start(Kind::Larder);
    let bytes = pattern(1, 1 << 20);
    fs::write(server.path("cached"), &bytes).unwrap();
    fs::write(server.path("other"), &bytes).unwrap();
    let mount = Mount::new(&server, &["timeo=10", "retrans=1"]);
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    server.freeze();
    let start = Instant::now();
    let error = fs::read(mount.path("other")).unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.raw_os_error(), Some(110), "{error}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    let start = Instant::now();
    assert!(fs::read(mount.path("cached")).unwrap() == bytes);
    assert!(start.elapsed() < Duration::from_secs(1), "once it is known to be dead, no wait");
    assert_eq!(mount.status()["server"]["reachable"], false);
    assert!(mount.log().contains("not responding"), "{}", mount.log());
    server.thaw();
    eventually("the server is used again", || {
        fs::read(mount.path("other")).is_ok_and(|read| read == bytes)
    });
}

#[test]
fn server_restart_is_not_noticed() {
    let mut server = Server::start(Kind::Larder);
    fs::create_dir(server.path("dir")).unwrap();
    fs::write(server.path("dir/file"), "before").unwrap();
    let mount = Mount::new(&server, &["noac"]);
    assert_eq!(fs::read_to_string(mount.path("dir/file")).unwrap(), "before");
    server.kill();
    fs::write(server.path("dir/file"), "after, longer").unwrap();
    server.restart();
    assert_eq!(fs::read_to_string(mount.path("dir/file")).unwrap(), "after, longer");
    fs::write(mount.path("dir/new"), "x").unwrap();
    assert_eq!(fs::read_to_string(server.path("dir/new")).unwrap(), "x");
}
