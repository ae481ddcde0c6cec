//! Extended attributes of files, as programs see them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::harness::{Kind, Mount, Server, succeed};

fn set(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> rustix::io::Result<()> {
    rustix::fs::setxattr(path, name, value, flags)
}

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let len = rustix::fs::getxattr_query(path, name)?;
    let mut value = vec![0; len];
    assert_eq!(rustix::fs::getxattr(path, name, &mut value[..])?, len);
    Ok(value)
}

fn names(path: &Path) -> Vec<String> {
    let mut list = vec![0; rustix::fs::listxattr_query(path).unwrap()];
    let len = rustix::fs::listxattr(path, &mut list[..]).unwrap();
    assert_eq!(len, list.len());
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect();
    names.sort();
    names
}

/// The rules of xattr(7), on files and directories.
fn attributes_are_those_of_xattr_7(mount: &Mount) {
    let (file, dir) = (mount.path("file"), mount.path("dir"));
    fs::write(&file, "bytes").unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [&file, &dir] {
        assert_eq!(names(path), [""; 0]);
        set(path, "user.one", b"first", XattrFlags::empty()).unwrap();
        set(path, "user.two", &[0, 1, 255], XattrFlags::CREATE).unwrap();
        assert_eq!(set(path, "user.two", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set(path, "user.none", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
        set(path, "user.one", b"1", XattrFlags::REPLACE).unwrap();
        assert_eq!(get(path, "user.one").unwrap(), b"1");
        assert_eq!(get(path, "user.none"), Err(Errno::NODATA));
        assert_eq!(rustix::fs::removexattr(path, "user.none"), Err(Errno::NODATA));
        assert_eq!(rustix::fs::getxattr(path, "user.two", &mut [0; 2]), Err(Errno::RANGE));
        assert_eq!(rustix::fs::listxattr(path, &mut [0; 9]), Err(Errno::RANGE));
        assert_eq!(names(path), ["user.one", "user.two"]);
        assert_eq!(set(path, "user.big", &[7; 65_537], XattrFlags::empty()), Err(Errno::TOOBIG));
        for other in ["security.capability", "trusted.x", "system.posix_acl_access"] {
            assert_eq!(get(path, other), Err(Errno::OPNOTSUPP), "{other}");
            let refused = set(path, other, b"x", XattrFlags::empty());
            assert!(matches!(refused, Err(Errno::OPNOTSUPP | Errno::INVAL)), "{refused:?}");
        }
    }
}

/// What one mount sets, another one sees, and the file's data is not affected.
fn attributes_are_the_servers(one: &Mount, two: &Mount) {
    let (here, there) = (one.path("file"), two.path("file"));
    assert_eq!(get(&there, "user.two").unwrap(), [0, 1, 255]);
    rustix::fs::removexattr(&there, "user.two").unwrap();
    assert_eq!(rustix::fs::removexattr(&there, "user.two"), Err(Errno::NODATA));
    assert_eq!(names(&here), ["user.one"]);
    assert_eq!(fs::read(&there).unwrap(), b"bytes");
    // Also for a file that is open, with unsent bytes, and for one without a name.
    let mut open = fs::File::options().append(true).open(&here).unwrap();
    open.write_all(b" more").unwrap();
    set(&here, "user.one", b"set", XattrFlags::empty()).unwrap();
    fs::remove_file(&here).unwrap();
    let mut value = [0; 9];
    assert_eq!(rustix::fs::fgetxattr(&open, "user.one", &mut value), Ok(3));
    open.write_all(b" bytes").unwrap();
    assert_eq!(open.metadata().unwrap().len(), 16);
}

/// cp(1), tar(1) and rsync(1) copy attributes to the mount without a message.
fn programs_copy_attributes(mount: &Mount, local: &Path) {
    let from = local.join("from");
    fs::create_dir_all(from.join("below")).unwrap();
    for name in ["file", "below/file", "below"] {
        let path = from.join(name);
        if !path.exists() {
            fs::write(&path, name).unwrap();
        }
        set(&path, "user.of", name.as_bytes(), XattrFlags::empty()).unwrap();
    }
    let sh = |script: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", script, "sh"]).arg(&from).arg(mount.path(""));
        let told = succeed(&mut sh);
        assert_eq!(String::from_utf8_lossy(&told.stderr), "", "{script}");
    };
    sh(r#"cp -a "$1" "$2/cp" && ls -l "$2/cp" > /dev/null"#);
    sh(r#"mkdir "$2/tar" && tar --xattrs -C "$1" -cf - . | tar --xattrs -C "$2/tar" -xf -"#);
    for copy in ["cp", "tar"] {
        for name in ["file", "below/file", "below"] {
            let path = mount.path(copy).join(name);
            assert_eq!(get(&path, "user.of").unwrap(), name.as_bytes(), "{path:?}");
        }
    }
}

/// The kernel asks us for `security.capability` before each write, and we do not ask the server.
fn writes_ask_the_server_for_no_attribute(mount: &Mount) {
    let mut file = fs::File::create(mount.path("written")).unwrap();
    let asked = || mount.messages().get("GETXATTR").copied().unwrap_or(0);
    // The command that asks for the counts causes unsent data to be sent: its process inherits the
    // file, and closes it.
    let mut cost = |writes: u64| {
        let before = (asked(), calls(mount));
        (0..writes).for_each(|_| file.write_all(b"bytes").unwrap());
        assert!(asked() - before.0 <= writes);
        let mut calls = calls(mount);
        calls.retain(|name, calls| *calls > before.1.get(name).copied().unwrap_or(0));
        calls.into_keys().collect::<Vec<_>>()
    };
    cost(1);
    assert_eq!(cost(50), cost(1));
}

fn calls(mount: &Mount) -> BTreeMap<String, u64> {
    let mut calls = mount.calls_by_procedure();
    calls.retain(|_, calls| *calls > 0);
    calls
}

#[test]
fn extended_attributes_of_a_share_are_the_servers() {
    extended_attributes_are_the_servers(Kind::Samba);
}

#[test]
fn extended_attributes_of_a_volume_are_the_servers() {
    extended_attributes_are_the_servers(Kind::Volume);
}

fn extended_attributes_are_the_servers(kind: Kind) {
    let server = Server::start(kind);
    let (one, two) = (Mount::new(&server, &["user_xattr"]), Mount::new(&server, &["user_xattr"]));
    writes_ask_the_server_for_no_attribute(&one);
    attributes_are_those_of_xattr_7(&one);
    attributes_are_the_servers(&one, &two);
    let local = tempfile::tempdir_in("/var/tmp").unwrap();
    programs_copy_attributes(&one, local.path());
}

/// Names and values that a share would refuse.
#[test]
fn extended_attributes_of_a_volume_are_of_any_size_and_outlive_it() {
    let mut server = Server::start(Kind::Volume);
    let mut mount = Mount::new(&server, &["user_xattr"]);
    let file = mount.path("file");
    fs::write(&file, "bytes").unwrap();
    let values: [(&str, &[u8]); 5] = [
        ("user.empty", b""),
        ("user.\u{e4}:b", b"x"),
        ("user.Case", b"1"),
        ("user.case", b"2"),
        ("user.big", &[7; 65_536]),
    ];
    for (name, value) in values {
        set(&file, name, value, XattrFlags::empty()).unwrap();
    }
    mount.unmount();
    server.kill();
    server.restart();
    mount.mount();
    for (name, value) in values {
        assert_eq!(get(&file, name).unwrap(), value, "{name}");
    }
    assert_eq!(names(&file).len(), values.len());
}

/// The parts of xattr(7) that a share lacks.
#[test]
fn extended_attributes_that_a_share_cannot_have_are_refused() {
    let server = Server::start(Kind::Samba);
    let mount = Mount::new(&server, &["user_xattr"]);
    let file = mount.path("file");
    fs::write(&file, "bytes").unwrap();
    let put = |name: &str, value: &[u8]| set(&file, name, value, XattrFlags::empty());
    assert_eq!(put("user.empty", b""), Err(Errno::OPNOTSUPP));
    assert_eq!(put("user.\u{e4}", b"x"), Err(Errno::OPNOTSUPP));
    assert_eq!(put("user.a:b", b"x"), Err(Errno::INVAL));
    // Names differ by more than case.
    put("user.Case", b"1").unwrap();
    put("user.case", b"2").unwrap();
    assert_eq!(get(&file, "user.CASE").unwrap(), b"2");
    assert_eq!(names(&file), ["user.Case"]);
    // The file system below has a block for all of a file's.
    let refused = put("user.big", &[7; 60_000]);
    assert_eq!((refused, put("user.some", &[7; 3000])), (Err(Errno::NOSPC), Ok(())));
}

#[test]
fn a_share_has_no_extended_attributes_unless_they_are_wanted() {
    let server = Server::start(Kind::Samba);
    let mount = Mount::new(&server, &[]);
    let file = mount.path("file");
    for _ in 0..3 {
        fs::write(&file, "bytes").unwrap();
        assert_eq!(get(&file, "user.x"), Err(Errno::OPNOTSUPP));
    }
    assert!(mount.messages().get("GETXATTR").is_none_or(|asked| *asked <= 2));
}
