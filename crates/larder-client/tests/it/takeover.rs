//! A cache that an earlier build left behind is taken over: its clean bytes are used, its unsent
//! bytes are sent, and its open files keep working.
//!
//! `takeover/dd75680.tar.xz` is the cache's directory as the build of that commit left it when it
//! was killed. `LARDER_LEAVE_CACHE=FILE cargo test -p larder-client leave_a_cache` makes such a
//! file with the present build, to be kept beside it when a format changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use larder_client::Start;
use larder_io::{Disk, OpenMode, SimDisk};
use larder_vfs::{Error, Ino, MemRemote, New, OpenId, Remote, SetAttr, Stability};

use crate::rig::{READ, Random, Rig, WRITE, root};

/// Files of the server, with their seeds and lengths.
const FILES: [(&str, u64, usize); 4] =
    [("clean", 1, 300_000), ("partly", 2, 200_000), ("closed", 3, 100_000), ("open", 4, 100_000)];

/// Bytes of a file, as the archive has them: a short pattern repeated, which compresses well. The
/// pattern is not aligned with chunks.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let pattern: Vec<u8> = (0..1000).map(|_| random.below(256) as u8).collect();
    pattern.into_iter().cycle().take(len).collect()
}

/// What the killed client had written into two of them: offset and bytes.
const CHANGE: (u64, &[u8]) = (50_000, b"written while the server was away");

/// The server to which the cache belongs. Made without a client, so that its handles, times and
/// versions do not depend on what a client does.
async fn server() -> MemRemote {
    let server = MemRemote::new();
    let (cred, dir) = (root(), server.root().await.unwrap().handle);
    for (name, seed, len) in FILES {
        let set = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let made = server.make(&cred, &dir, name.as_ref(), New::File, set).await.unwrap();
        let data = Bytes::from(content(seed, len));
        let stable = Stability::FileSync;
        server.write(&cred, &made.found.handle, None, 0, data, stable).await.unwrap();
    }
    server
}

/// Leaves a cache with clean, unsent and open files, as a killed process does. Returns its disk and
/// the file that was open.
async fn leave() -> (SimDisk, (Ino, OpenId)) {
    let rig = Rig::on_server(server().await, SimDisk::new(), Start::NewMount).await;
    rig.names().await;
    for (name, ..) in FILES.iter().filter(|file| file.0 != "partly") {
        rig.cat(name).await;
        rig.landed(name).await;
    }
    let partly = rig.open(&root(), "partly", READ).await.unwrap();
    partly.read(0, 1000).await.unwrap();
    partly.close().await.unwrap();
    rig.checkpoint();
    let [closed, open] = [
        rig.open(&root(), "closed", WRITE).await.unwrap(),
        rig.open(&root(), "open", WRITE).await.unwrap(),
    ];
    rig.server.time_out();
    closed.write(CHANGE.0, CHANGE.1).await.unwrap();
    assert_eq!(closed.close().await, Err(Error::TimedOut));
    open.write(CHANGE.0, CHANGE.1).await.unwrap();
    let names = open.names();
    rig.server.shutdown();
    (rig.image(), names)
}

/// What the server has in the end.
fn expected((name, seed, len): (&str, u64, usize)) -> Vec<u8> {
    let mut bytes = content(seed, len);
    if ["closed", "open"].contains(&name) {
        let at = CHANGE.0 as usize;
        bytes[at..at + CHANGE.1.len()].copy_from_slice(CHANGE.1);
    }
    bytes
}

async fn taken_over(disk: SimDisk, (ino, id): (Ino, OpenId), start: Start) {
    let rig = Rig::on_server(server().await, disk, start).await;
    assert!(rig.cat("clean").await == expected(FILES[0]), "{start:?}");
    assert_eq!(rig.server.calls("read"), 0, "{start:?}: clean bytes are used");
    if start == Start::Resume {
        let open = rig.again((ino, id));
        assert_eq!(open.read(CHANGE.0, CHANGE.1.len() as u32).await.unwrap(), CHANGE.1);
        open.close().await.unwrap();
    }
    rig.client.write_back_all().await.unwrap();
    rig.sent().await;
    assert!(!rig.disk.files().iter().any(|(path, _)| path.starts_with("set-aside")), "{start:?}");
    let other = rig.foreigner().await;
    for file in FILES {
        assert!(rig.cat(file.0).await == expected(file), "{start:?}: {} here", file.0);
        assert!(other.cat(file.0).await == expected(file), "{start:?}: {} there", file.0);
    }
}

/// The caches that earlier builds left, and the one that this build leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_of_an_earlier_build_is_taken_over() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/takeover");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let archive = entry.unwrap().path();
        for start in [Start::Resume, Start::NewMount] {
            let (disk, names) = unpack(&archive);
            taken_over(disk, names, start).await;
        }
        seen += 1;
    }
    assert!(seen > 0, "no archives");
    for start in [Start::Resume, Start::NewMount] {
        let (disk, names) = leave().await;
        taken_over(disk, names, start).await;
    }
}

/// Writes the archive that `LARDER_LEAVE_CACHE` names; otherwise it only checks that there is a
/// cache to write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leave_a_cache() {
    let (disk, (ino, id)) = leave().await;
    let folder = tempfile::tempdir().unwrap();
    let files = disk.files();
    assert!(files.iter().any(|(path, _)| path == "index.redb"));
    for (path, len) in files {
        let mut content = vec![0; len as usize];
        disk.open(&path, OpenMode::Existing).unwrap().read_exact_at(&mut content, 0).unwrap();
        let to = folder.path().join(&path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, content).unwrap();
    }
    std::fs::write(folder.path().join("open"), format!("{} {}", ino.0, id.0)).unwrap();
    if let Some(archive) = std::env::var_os("LARDER_LEAVE_CACHE") {
        let archive = PathBuf::from(archive);
        run_tar(&["--create", "--xz", "--sparse", "--file"], &archive, folder.path(), &["."]);
    }
}

fn unpack(archive: &Path) -> (SimDisk, (Ino, OpenId)) {
    let folder = tempfile::tempdir().unwrap();
    run_tar(&["--extract", "--xz", "--file"], archive, folder.path(), &[]);
    let open = std::fs::read_to_string(folder.path().join("open")).unwrap();
    let (ino, id) = open.split_once(' ').unwrap();
    let names = (Ino(ino.parse().unwrap()), OpenId(id.parse().unwrap()));
    let disk = SimDisk::new();
    copy(folder.path(), Path::new(""), &disk);
    (disk, names)
}

fn copy(root: &Path, dir: &Path, disk: &SimDisk) {
    for entry in std::fs::read_dir(root.join(dir)).unwrap() {
        let entry = entry.unwrap();
        let path = dir.join(entry.file_name());
        let name = path.to_str().unwrap();
        if entry.file_type().unwrap().is_dir() {
            disk.create_dir_all(name).unwrap();
            copy(root, &path, disk);
        } else if name != "open" {
            let file = disk.open(name, OpenMode::CreateNew).unwrap();
            file.write_at(&std::fs::read(entry.path()).unwrap(), 0).unwrap();
        }
    }
}

fn run_tar(options: &[&str], archive: &Path, folder: &Path, what: &[&str]) {
    let mut tar = Command::new("tar");
    tar.args(options).arg(archive).arg("--directory").arg(folder).args(what);
    assert!(tar.status().unwrap().success(), "{}", archive.display());
}
