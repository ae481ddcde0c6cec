//! `larder volume check`: a volume that is damaged behind its server's back is repaired and served
//! again.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use larder_io::{Disk, RealDisk};
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::engine::{Engine, Owner, Writes};

use crate::harness::{Mount, larder, pattern};
use crate::server::{Kind, Server};

fn check(meta: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command: Command = larder();
    command.args(["volume", "check", "--engine", &format!("embedded:{}", meta.display())]);
    let done = command.args(arguments).output().unwrap();
    (done.status.code(), String::from_utf8([done.stdout, done.stderr].concat()).unwrap())
}

/// Loses all names of the root (`docs/formats/meta-store.md`).
fn lose_names(meta: &Path) {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(meta).unwrap());
    let engine = Embedded::open(&disk, Sizes::default()).unwrap();
    let view = engine.view().unwrap();
    let mut writes = Writes::new();
    for tag in [b'e', b'l'] {
        let root = [&[tag][..], &1_u64.to_be_bytes()].concat();
        let behind = [&[tag][..], &2_u64.to_be_bytes()].concat();
        let lose = &mut |key: &[u8], _: &[u8]| {
            writes.insert(key.to_vec(), None);
            std::ops::ControlFlow::Continue(())
        };
        view.scan(&root, &behind, lose).unwrap();
    }
    assert!(!writes.is_empty());
    let owner = Owner { key: b"w".to_vec(), value: view.get(b"w").unwrap() };
    engine.commit(&writes, &owner).unwrap();
}

#[test]
fn a_damaged_volume_is_repaired_and_served_again() {
    let mut server = Server::start(Kind::Volume);
    let meta = server.volume_dir().join("meta");
    let mut mount = Mount::new(&server, &[]);
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/file"), pattern(1, 100_000)).unwrap();
    fs::write(mount.path("other"), pattern(2, 5000)).unwrap();
    mount.unmount();
    let (code, said) = check(&meta, &["--repair"]);
    assert!(code == Some(8) && said.contains("another process"), "{said}");
    server.kill();
    assert_eq!(check(&meta, &["-n"]), (Some(0), "nothing is wrong\n".to_owned()));

    lose_names(&meta);
    let (code, said) = check(&meta, &[]);
    assert!(code == Some(4) && said.contains("nothing names file"), "{said}");
    let (code, json) = check(&meta, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(code == Some(4) && json["left"] == json["faults"].as_array().unwrap().len(), "{json}");
    assert_eq!(json["faults"][0]["kind"], "unnamed");
    let (code, said) = check(&meta, &["--repair"]);
    assert!(code == Some(1) && said.contains("it is now lost+found/#"), "{said}");
    assert_eq!(check(&meta, &["--repair"]), (Some(0), "nothing is wrong\n".to_owned()));

    server.restart();
    let mount = Mount::new(&server, &[]);
    let mut found: Vec<_> = fs::read_dir(mount.path("lost+found"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort_by_key(|path| !path.is_dir());
    let [dir, other] = &found[..] else { panic!("{found:?}") };
    assert!(fs::read(dir.join("file")).unwrap() == pattern(1, 100_000));
    assert!(fs::read(other).unwrap() == pattern(2, 5000));
    fs::rename(other, mount.path("other")).unwrap();
    fs::write(mount.path("new"), pattern(3, 50_000)).unwrap();
}
