//! The setup of a volume: stated when it is made, told to its disks by their keys, and shown.

use std::fs;

use crate::harness::{Mount, eventually, larder, pattern, succeed};
use crate::server::Server;
use crate::several_disks::{Volume, refusal, status};

/// What `larder status` shows of the server.
fn shown(server: &Server) -> String {
    let mut command = server.larder_here();
    let done = succeed(command.args(["status", &server.address().to_string()]));
    String::from_utf8(done.stdout).unwrap()
}

/// A volume that is made `private`: the keys of its disks state it, and so the disks have it. A
/// disk that is told another one beside such a key does not start. One that was started with
/// another one all the same is not used, and the log and the status say what to do.
#[test]
fn a_private_volume_has_private_disks_and_no_others() {
    let mut volume = Volume::created(&["--setup", "private"], 2);
    let stated = fs::read_to_string(&volume.disks[1].key).unwrap();
    assert!(stated.starts_with("larder disk key 2\n") && stated.ends_with("setup private\n"));
    for other in ["secure", "off"] {
        let said = refusal(volume.disks[0].command_with("64M").args(["--setup", other]));
        let wanted = "is of a volume with setup private: leave --setup out";
        assert!(said.contains(wanted) && !volume.disks[0].store.exists(), "{said}");
    }
    volume.disks[0].start();
    // As if the key had been copied by hand into a file of version 1.
    let without = stated.replace("disk key 2", "disk key 1").replace("setup private\n", "");
    fs::write(&volume.disks[1].key, without).unwrap();
    volume.disks[1].start();
    let server = Server::meta(&["--engine", &volume.engine()]);
    let line = "its setup is secure, and that of the volume is private: start it with --setup private and an empty store";
    eventually("the status tells it", || {
        let told = status(&server);
        let disk = &told["disks"][1];
        disk["state"] == "away" && disk["problem"] == line && disk["status"]["setup"] == "secure"
    });
    let (log, text) = (server.log(), shown(&server));
    assert_eq!(log.matches(line).count(), 1, "{log}");
    assert!(text.contains(&format!(": away: {line}\n")), "{text}");
    assert!(text.lines().any(|line| line == "setup     private"), "{text}");

    let mount = Mount::new(&server, &[]);
    fs::write(mount.path("a"), pattern(1, 3 << 20)).unwrap();
    assert!(fs::read(Mount::plain(&server, &[]).path("a")).unwrap() == pattern(1, 3 << 20));
    let told = status(&server);
    let disks = &told["disks"];
    assert_eq!(
        (&told["setup"], &disks[0]["status"]["setup"]),
        (&"private".into(), &"private".into())
    );
    assert!(disks[0]["status"]["written_bytes"].as_u64().unwrap() >= 3 << 20);
    assert_eq!(disks[1]["status"]["written_bytes"], 0);

    volume.disks[1].kill();
    fs::remove_file(&volume.disks[1].store).unwrap();
    fs::write(&volume.disks[1].key, stated).unwrap();
    volume.disks[1].start();
    eventually("the disk is used", || status(&server)["disks"][1]["state"] == "up");
    fs::write(mount.path("b"), pattern(2, 6 << 20)).unwrap();
    assert!(fs::read(Mount::plain(&server, &[]).path("b")).unwrap() == pattern(2, 6 << 20));
    assert!(status(&server)["disks"][1]["status"]["written_bytes"].as_u64().unwrap() > 0);
}

/// The volume of `larder serve` has the setup that it was made with, also after a restart; another
/// one is refused then.
#[test]
fn a_served_volume_keeps_the_setup_that_it_was_made_with() {
    let mut server = Server::volume(&["--setup", "private", "--size", "64M", "--memory", "8M"]);
    let setups = |server: &Server| {
        let told = status(server);
        let of = |disk: usize| told["disks"][disk]["status"]["setup"].clone();
        [told["setup"].clone(), of(0), of(1)]
    };
    assert_eq!(setups(&server), ["private", "private", "private"]);
    let mount = Mount::new(&server, &["hard"]);
    fs::write(mount.path("a"), pattern(1, 1 << 20)).unwrap();
    drop(mount);
    server.end();
    let mut other = larder();
    other.args(["serve", "--setup", "secure", "--listen", "127.0.0.1:0"]).arg(server.volume_dir());
    let said = refusal(&mut other);
    assert!(said.contains("the volume has the setup private: leave --setup out"), "{said}");
    server.restart();
    assert_eq!(setups(&server), ["private", "private", "private"]);
    assert!(fs::read(Mount::plain(&server, &[]).path("a")).unwrap() == pattern(1, 1 << 20));
}
