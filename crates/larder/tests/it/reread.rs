//! Bytes that were read once are not requested again.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{BOTH, Kind, Mount, Server, kernel_remembers, pattern, write_undisturbed};

#[test]
fn cached_file_is_reread_without_read_rpc() {
    for kind in BOTH {
        let server = Server::start(kind);
        let bytes = pattern(1, 5 << 20);
        fs::write(server.path("big"), &bytes).unwrap();
        let mut mount = Mount::new(&server, &[]);

        assert!(fs::read(mount.path("big")).unwrap() == bytes, "{kind:?}: cold");
        let cold = mount.calls("READ");
        assert!(cold > 0, "{kind:?}");
        assert!(fs::read(mount.path("big")).unwrap() == bytes, "{kind:?}: again");
        assert_eq!(mount.calls("READ"), cold, "{kind:?}: again");

        mount.landed(5 << 20);
        mount.remount();
        assert!(fs::read(mount.path("big")).unwrap() == bytes, "{kind:?}: after remount");
        assert_eq!(mount.calls("READ"), 0, "{kind:?}: after remount");
    }
}

#[test]
fn partly_cached_file_survives_remount() {
    use std::os::unix::fs::FileExt;
    let server = Server::start(Kind::Larder);
    let bytes = pattern(2, 3 << 20);
    fs::write(server.path("part"), &bytes).unwrap();
    let mut mount = Mount::new(&server, &[]);
    let at = 1 << 20;
    let mut buffer = vec![0; 100_000];
    let read = |mount: &Mount, buffer: &mut [u8]| {
        let file = fs::File::open(mount.path("part")).unwrap();
        file.read_exact_at(buffer, at).unwrap();
        assert!(buffer[..] == bytes[1 << 20..][..100_000]);
    };
    read(&mount, &mut buffer);
    mount.landed(100_000);
    mount.remount();
    read(&mount, &mut buffer[..]);
    let again = mount.calls("READ");
    assert!(again <= 1, "the kernel's readahead past the part may ask once, not {again} times");
    assert!(fs::read(mount.path("part")).unwrap() == bytes);
}

/// nfs-ganesha does not report the attributes from before a WRITE: there only what one request
/// wrote whole is sure to be ours, and the rest is read again.
#[test]
fn own_writes_stay_cached() {
    for (kind, len, reads) in
        [(Kind::Larder, 3 << 20, 0), (Kind::Ganesha, 500_000, 0), (Kind::Ganesha, 3 << 20, 3)]
    {
        let server = Server::start(kind);
        let mut mount = Mount::new(&server, &[]);
        let bytes = pattern(3, len);
        write_undisturbed(&mount.path("new"), &bytes);
        assert!(fs::read(server.path("new")).unwrap() == bytes, "{kind:?}: at the server at close");
        assert!(fs::read(mount.path("new")).unwrap() == bytes);
        assert_eq!(mount.calls("READ"), reads, "{kind:?}, {len} bytes: read back");
        mount.landed(len as u64);
        mount.remount();
        assert!(fs::read(mount.path("new")).unwrap() == bytes);
        assert_eq!(mount.calls("READ"), 0, "{kind:?}, {len} bytes: read back after remount");
    }
}

#[test]
fn rewriting_a_part_uploads_the_changed_chunks_only() {
    use std::os::unix::fs::FileExt;
    let server = Server::start(Kind::Larder);
    let mut bytes = pattern(4, 4 << 20);
    fs::write(server.path("file"), &bytes).unwrap();
    let mount = Mount::new(&server, &[]);
    assert!(fs::read(mount.path("file")).unwrap() == bytes);
    let file = fs::OpenOptions::new().write(true).open(mount.path("file")).unwrap();
    file.write_all_at(b"changed", 1_000_000).unwrap();
    file.sync_all().unwrap();
    bytes[1_000_000..][..7].copy_from_slice(b"changed");
    assert!(fs::read(server.path("file")).unwrap() == bytes);
    let stat = mount.larder().args(["stat", "--json"]).arg(mount.path("")).output().unwrap();
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    let sent = stat["rpc"]["WRITE"]["bytes_sent"].as_u64().unwrap();
    assert!(sent < 64 << 10, "{sent} bytes sent for a change of 7");
}

#[test]
fn names_attributes_and_absence_are_cached() {
    let server = Server::start(Kind::Larder);
    fs::create_dir(server.path("dir")).unwrap();
    for i in 0..50 {
        fs::write(server.path(&format!("dir/{i}")), "x").unwrap();
    }
    let mount = Mount::new(&server, &["actimeo=600"]);
    let look = || {
        for entry in fs::read_dir(mount.path("dir")).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().len(), 1);
        }
        for i in 0..50 {
            assert!(!mount.path(&format!("dir/no-{i}")).exists());
        }
    };
    look();
    let before = mount.all_calls();
    look();
    assert_eq!(mount.all_calls(), before);
}

/// A process that keeps a file's pages from being reclaimed (mlock(2)): some machines reclaim page
/// cache all the time. Pages that the daemon has the kernel drop are dropped nevertheless.
struct Held(Child);

impl Held {
    fn in_memory(path: &Path) -> Held {
        let script = r"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
file = os.open(sys.argv[1], os.O_RDONLY)
size = ctypes.c_size_t(os.fstat(file).st_size)
at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, ctypes.c_long(0))
assert libc.mlock(ctypes.c_void_p(at), size) == 0, os.strerror(ctypes.get_errno())
os.close(file)
print('held', flush=True)
sys.stdin.read()
";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut said = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        Held(child)
    }

    /// Returns when the file is unmapped.
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

/// Even if the open must ask whether the file has changed, and if its lease has ended. What the
/// kernel asks for is counted, not what the server is asked for: if the machine has reclaimed some
/// pages before they are held, the daemon reads ahead of the kernel as these are read again, and
/// the last of these calls may end long after the kernel has what it wants.
#[test]
fn the_kernels_pages_of_a_plain_mount_are_kept() {
    let _remembers = kernel_remembers();
    for (kind, options) in [
        (Kind::Larder, &[][..]),
        (Kind::Larder, &["actimeo=0"]),
        (Kind::Ganesha, &["actimeo=0"]),
        (Kind::Samba, &[]),
        (Kind::Samba, &["nolease", "actimeo=0"]),
    ] {
        let server = Server::start(kind);
        let bytes = pattern(6, 24 << 20);
        fs::write(server.path("big"), &bytes).unwrap();
        let mount = Mount::plain(&server, options);
        assert!(fs::read(mount.path("big")).unwrap() == bytes);
        let cold = mount.calls("READ");
        assert!(cold >= 24, "{kind:?} {options:?}: {cold}");
        let held = Held::in_memory(&mount.path("big"));
        let asked = || mount.messages()["READ"];
        let before = asked();
        for _ in 0..3 {
            assert!(fs::read(mount.path("big")).unwrap() == bytes);
        }
        assert_eq!(asked(), before, "{kind:?} {options:?}");
        held.end();
        // What another client has changed is read.
        fs::write(server.path("big"), "short").unwrap();
        if options.contains(&"actimeo=0") {
            assert_eq!(fs::read(mount.path("big")).unwrap(), b"short");
        }
    }
}
