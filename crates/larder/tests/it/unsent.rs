//! What is written and not closed: when it is at the server, and what says whether it is.

use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::harness::{Kind, Mount, Server, eventually, said};

/// A program that writes what it is sent to a file and keeps it open. (What a test has open itself
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
