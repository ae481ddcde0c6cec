//! Data that is written and not closed: when it is at the server, and which commands show that.

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::harness::{Kind, Mount, Server, eventually, said};

/// A program that writes its input to a file and keeps it open. (A file that a test itself has open
/// is flushed when it starts a program.)
pub(crate) struct Writer {
    child: Child,
    input: Option<ChildStdin>,
}

impl Writer {
    pub(crate) fn new(mount: &Mount, name: &str) -> Writer {
        let output = fs::File::create(mount.path(name)).unwrap();
        let mut child = Command::new("cat");
        let mut child = child.stdin(Stdio::piped()).stdout(output).spawn().unwrap();
        let input = child.stdin.take();
        Writer { child, input }
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.input.take();
        let _ = self.child.wait();
    }
}

fn at_server(server: &Server, name: &str) -> String {
    fs::read_to_string(server.path(name)).unwrap()
}

/// The kernel writes the file itself, the daemon does, or a daemon without a cache does.
#[test]
fn a_log_that_stays_open_is_at_the_server_in_time() {
    for (kind, options) in [
        (Kind::Larder, &["wback=1"][..]),
        (Kind::Larder, &["wback=1", "nopassthrough"]),
        (Kind::Samba, &["wback=1"]),
        (Kind::Ganesha, &["wback=1"]),
    ] {
        let server = Server::start(kind);
        let mount = Mount::new(&server, options);
        let mut writer = Writer::new(&mount, "log");
        for lines in ["one\n", "one\ntwo\n", "one\ntwo\nthree\n"] {
            writer.write(lines.lines().last().unwrap());
            writer.write("\n");
            eventually("it is at the server", || at_server(&server, "log") == lines);
            eventually("nothing is unsent", || mount.status()["dirty"]["files"] == 0);
        }
    }
}

#[test]
fn a_sync_returns_when_open_files_are_at_the_server() {
    let server = Server::start(Kind::Larder);
    fs::create_dir(server.path("dir")).unwrap();
    let mount = Mount::new(&server, &["wback=3600", "timeo=5", "retrans=1"]);
    let at = |name: &str| mount.path(name).to_str().unwrap().to_owned();
    let mut writers = ["dir/inside", "outside"].map(|name| Writer::new(&mount, name));
    for writer in &mut writers {
        writer.write("text");
    }
    eventually("it is written", || mount.status()["dirty"]["bytes"] == 8);

    let (code, told) = said(&mount, &["sync", &at("dir")]);
    assert!(code == Some(0) && told.contains("1 files, 4 B sent"), "{code:?} {told}");
    assert_eq!(
        (at_server(&server, "dir/inside"), at_server(&server, "outside")),
        ("text".into(), String::new())
    );
    assert_eq!(said(&mount, &["sync", &at("outside")]).0, Some(0));
    assert_eq!(at_server(&server, "outside"), "text");
    assert_eq!(said(&mount, &["sync"]), (Some(0), String::new()));

    writers[0].write(", and more");
    eventually("it is written", || mount.status()["dirty"]["files"] == 1);
    server.freeze();
    let (code, told) = said(&mount, &["sync", &at("")]);
    let is_told = told.contains("did not reach the server") && told.trim_end().lines().count() == 1;
    assert!(code == Some(1) && is_told, "{code:?} {told}");
    server.thaw();
    eventually("the server is back", || said(&mount, &["sync", &at("")]).0 == Some(0));
    assert_eq!(at_server(&server, "dir/inside"), "text, and more");
}

/// Unmounts with `--detach`, once a process that another test is just starting no longer uses the
/// mount.
fn detach(mount: &Mount) -> String {
    let mut told = String::new();
    eventually("nobody uses it", || {
        let (code, text) = said(mount, &["umount", "--detach", mount.path("").to_str().unwrap()]);
        told = text;
        assert!(code == Some(0) || told.contains("in use"), "{code:?} {told}");
        code == Some(0)
    });
    told
}

#[test]
fn an_unmount_that_detaches_leaves_unsent_data_to_the_next_mount() {
    let mut server = Server::start(Kind::Larder);
    let mut mount = Mount::new(&server, &["exclusive", "class=generated"]);
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("closed"), "only here").unwrap();
    let opened = fs::File::create(mount.path("open")).unwrap();
    let (code, told) = said(&mount, &["umount", "--detach", mount.path("").to_str().unwrap()]);
    assert!(code == Some(1) && told.contains("in use"), "{code:?} {told}");
    (&opened).write_all(b"to the end").unwrap();
    drop(opened);
    let told = detach(&mount);
    assert!(
        told.contains("in 2 files did not reach the server; the next mount sends it"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(!server.path("closed").exists() && !server.path("open").exists());
    // Also of a server that is away, as without --detach.
    mount.mount();
    assert_eq!(fs::read_to_string(mount.path("closed")).unwrap(), "only here");
    // What was left may be at the server already.
    fs::write(mount.path("later"), "new").unwrap();
    server.kill();
    assert!(detach(&mount).contains("did not reach the server"));
    server.restart();
    mount.mount();
    assert_eq!(said(&mount, &["sync", mount.path("").to_str().unwrap()]).0, Some(0));
    let at_server = ["closed", "open", "later"].map(|name| at_server(&server, name));
    assert_eq!(at_server, ["only here", "to the end", "new"]);
    assert_eq!(detach(&mount), "", "nothing is left to say");
    mount.mount();
}

#[test]
fn without_a_cache_on_disk_nothing_is_left_to_the_next_mount() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["plain"]);
    let (code, told) = said(&mount, &["umount", "--detach", mount.path("").to_str().unwrap()]);
    assert!(code == Some(1) && told.contains("without a cache on disk"), "{code:?} {told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(mount.path("").join(".").is_dir() && mount.status()["state"] == "mounted");
}

#[test]
fn gauges_tell_for_how_long_the_oldest_byte_is_unsaved() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &["wback=3600"]);
    let place = mount.path("").to_str().unwrap().trim_end_matches('/').to_owned();
    let gauge = |name: &str| {
        let (code, told) = said(&mount, &["status", "--prometheus", &place]);
        assert_eq!(code, Some(0), "{told}");
        let begin = format!("larder_{name}{{mount=\"{place}\"");
        let line = told.lines().find(|line| line.starts_with(&begin)).map(str::to_owned);
        let line = line.unwrap_or_else(|| panic!("no {name} in {told}"));
        line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    assert_eq!([gauge("up"), gauge("unsaved_bytes"), gauge("oldest_unsaved_seconds")], [1, 0, 0]);
    let mut writer = Writer::new(&mount, "log");
    writer.write("text");
    eventually("it is counted", || gauge("unsaved_bytes") == 4);
    eventually("it grows old", || gauge("oldest_unsaved_seconds") >= 1);
    assert_eq!(mount.status()["dirty"]["oldest_s"].as_u64().map(|age| age >= 1), Some(true));
    assert_eq!(said(&mount, &["sync", &place]).0, Some(0));
    drop(writer);
    eventually("it is sent", || gauge("unsaved_files") == 0);
    assert_eq!(gauge("oldest_unsaved_seconds"), 0);
}

/// A mount with files that were made on this machine, and that the server lacks.
fn with_unsent_files(server: &Server, paths: impl Iterator<Item = String>, text: &str) -> Mount {
    let mount = Mount::new(server, &["exclusive", "class=generated"]);
    fs::create_dir(mount.path("first")).unwrap();
    paths.for_each(|path| fs::write(mount.path(&path), text).unwrap());
    mount
}

/// First they came in one line, of which a command reads no more than a MiB.
#[test]
fn all_that_is_unsaved_is_listed_however_much() {
    let (server, names) = (Server::start(Kind::Larder), 3000);
    let mount = with_unsent_files(&server, (0..names).map(|name| format!("{name:0>250}")), "");
    let (code, told) = said(&mount, &["status", "--unsaved", "--json"]);
    assert!(code == Some(0) && told.len() > 1 << 20, "{} bytes", told.len());
    let told: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
    assert_eq!(told.len(), names);
}

/// First it gave up after two seconds, whatever was under way.
#[test]
fn unmounting_waits_for_what_the_server_still_takes() {
    let (server, names) = (Server::start(Kind::Larder), 3000);
    let mount = with_unsent_files(&server, (0..names).map(|name| format!("first/{name}")), "text");
    assert_eq!(
        said(&mount, &["umount", mount.path("").to_str().unwrap()]),
        (Some(0), String::new())
    );
    assert_eq!(fs::read_dir(server.path("first")).unwrap().count(), names);
}
