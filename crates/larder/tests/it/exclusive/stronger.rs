//! Names and classes that promise more than this machine's disk, on mounts that make names here.

use super::*;

/// For classes that promise more, names are at the server when they are acknowledged.
#[test]
fn names_of_stronger_classes_are_written_through() {
    for kind in [Kind::Larder, Kind::Volume] {
        names_are_written_through(kind);
    }
}

fn names_are_written_through(kind: Kind) {
    let server = Server::start(kind);
    let there = Elsewhere::of(kind, &server);
    let mount = Mount::new(&server, &["exclusive", "rules=build"]);
    fs::create_dir(mount.path("first")).unwrap();
    fs::write(mount.path("first/first.o"), "").unwrap();
    fs::write(mount.path("first/a.o"), "object").unwrap();
    fs::write(mount.path("first/b.c"), "source").unwrap();
    assert_eq!(fs::read(there.path("first/b.c")).unwrap(), b"source");
    // Whoever looks at a name of a volume has it made there.
    let is_hidden = |name| kind == Kind::Volume || !there.path(name).exists();
    assert!(is_hidden("first/a.o"));
    let (_, told) = said(&mount, &["status", "--unsaved"]);
    assert!(told.contains("first/a.o: 6 B unsent, class generated, "), "{told}");
    // A file under such a name gets the stronger promise.
    fs::rename(mount.path("first/a.o"), mount.path("first/a.c")).unwrap();
    assert_eq!(fs::read(there.path("first/a.c")).unwrap(), b"object");
    fs::create_dir_all(mount.path("target/debug")).unwrap();
    assert!(is_hidden("target/debug"));
    assert_eq!(said(&mount, &["status", "--unsaved"]).1.lines().count(), 1);
}

/// What editors do: they write a file beside another one and rename it over that. The rules give
/// the new name a stronger class than the old one: the bytes are at the server when the rename
/// returns, whether or not the server had a file of that name.
#[test]
fn a_file_that_is_renamed_to_a_name_of_a_stronger_class_is_at_the_server() {
    let folder = scratch("larder-rules-");
    let rules = folder.path().join("rules.toml");
    let written = ["edited", "critical"]
        .map(|class| format!("[[rule]]\nglob = '*.{class}'\nclass = '{class}'\n"));
    fs::write(&rules, written.concat()).unwrap();
    let rules = format!("rules={}", rules.display());
    for kind in ALL {
        let server = Server::start(kind);
        let there = Elsewhere::of(kind, &server);
        let mount = Mount::new(&server, &["exclusive", "class=generated", &rules]);
        let unsaved = || said(&mount, &["status", "--unsaved"]).1;
        fs::create_dir(mount.path("dir")).unwrap();
        for name in ["old.edited", "old.critical"] {
            fs::write(mount.path("dir").join(name), "old").unwrap();
        }
        assert_eq!(unsaved(), "", "{kind:?}");
        for (seed, name) in (1..).zip(["new.edited", "new.critical", "old.edited", "old.critical"])
        {
            let (beside, path) = (mount.path("dir/beside"), format!("dir/{name}"));
            let content = pattern(seed, 600);
            fs::write(&beside, &content).unwrap();
            let told = unsaved();
            // "At most" as long as the kernel may write it.
            let is_here =
                told.contains("dir/beside: ") && told.contains("600 B unsent, class generated");
            assert!(is_here && told.lines().count() == 1, "{kind:?} {name}: {told}");
            fs::rename(&beside, mount.path(&path)).unwrap();
            // Before anybody looks there, for whom a volume would fetch it.
            assert_eq!(unsaved(), "", "{kind:?} {name}");
            assert!(fs::read(there.path(&path)).unwrap() == content, "{kind:?} {name}");
            assert!(fs::read(mount.path(&path)).unwrap() == content, "{kind:?} {name}");
        }
        is_at_server(&there, &mount, "");
    }
}
