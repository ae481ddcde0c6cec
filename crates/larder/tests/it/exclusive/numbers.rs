//! Inode numbers on mounts that make names here: in listings, of objects and of `..`.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;

use rustix::fs::RawDir;

use super::*;

/// Inode numbers below a directory, by path: as text, since a `Path` ignores a `.` in it.
#[derive(Debug, PartialEq)]
struct Numbers {
    /// What getdents(2) tells (`d_ino`), `.` and `..` of each directory included.
    listed: BTreeMap<String, u64>,
    /// What stat(2) tells (`st_ino`), also by way of `..`.
    found: BTreeMap<String, u64>,
}

/// The numbers below the root of a mount.
fn numbers(mount: &Mount) -> Numbers {
    let (mut listed, mut found) = (BTreeMap::new(), BTreeMap::new());
    let mut left = vec![String::new()];
    while let Some(dir) = left.pop() {
        let open = fs::File::open(mount.path(&dir)).unwrap();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&open, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_str().unwrap();
            let path = format!("{dir}{name}");
            assert_eq!(listed.insert(path.clone(), entry.ino()), None, "{path} twice");
            // What is above the mount is another file system's.
            if path != ".." {
                let about = fs::symlink_metadata(mount.path(&path)).unwrap();
                found.insert(path.clone(), about.ino());
                if about.is_dir() && name != "." && name != ".." {
                    left.push(format!("{path}/"));
                }
            }
        }
    }
    Numbers { listed, found }
}

impl Numbers {
    /// Each object has one number, whoever is asked, and `..` is the directory above.
    fn check(&self, when: &str) {
        for (path, number) in &self.found {
            let same = match path.strip_suffix("/..") {
                Some(dir) => format!("{}.", &dir[..dir.rfind('/').map_or(0, |at| at + 1)]),
                None => path.clone(),
            };
            assert_eq!(*number, self.found[&same], "{when}: {path}");
            // larder does not say in listings what is above a directory.
            if !path.ends_with("..") {
                assert_eq!(*number, self.listed[path], "{when}: {path}");
            }
        }
        let objects = self.found.iter().filter(|(path, _)| !path.ends_with('.'));
        let numbers: BTreeSet<_> = objects.clone().map(|(_, number)| number).collect();
        // One of the names is a hard link.
        assert_eq!((objects.count(), numbers.len()), (8, 7), "{when}: {self:?}");
    }
}

/// getdents(2) and stat(2) tell the same numbers while the objects wait here, when the server has
/// named them, and after a remount; and so
/// it is with `..` of each directory.
#[test]
fn inode_numbers_in_listings_stay_when_the_server_has_the_objects() {
    for kind in ALL {
        let server = Server::start(kind);
        let mut mount = Mount::new(&server, OPTIONS);
        fs::create_dir(mount.path("first")).unwrap();
        fs::create_dir_all(mount.path("first/a/b")).unwrap();
        for name in ["first/file", "first/a/file", "first/a/b/file"] {
            fs::write(mount.path(name), name).unwrap();
        }
        symlink("file", mount.path("first/a/link")).unwrap();
        fs::hard_link(mount.path("first/a/file"), mount.path("first/a/hard")).unwrap();
        let (_, told) = said(&mount, &["status", "--unsaved"]);
        assert!(told.contains("first/a/b/file"), "{kind:?}: it waits: {told}");
        let before = numbers(&mount);
        before.check(&format!("{kind:?} here"));
        sync(&mount);
        assert_eq!(numbers(&mount), before, "{kind:?}: the server has them");
        mount.remount();
        let after = numbers(&mount);
        after.check(&format!("{kind:?} by the next mount"));
        assert_eq!(after, before, "{kind:?}: by the next mount");
    }
}
