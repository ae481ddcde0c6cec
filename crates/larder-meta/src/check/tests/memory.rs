//! How much memory a check takes: a process of its own checks, and says what it took.

use std::path::Path;
use std::sync::Arc;

use larder_io::{Disk as IoDisk, RealDisk};
use larder_wire::meta::words::{Kind, VolumeId};

use super::*;
use crate::engine::embedded::{Embedded, Sizes};
use crate::inode;
use crate::volume::NewDisk;

/// The directory of the store, in the process that checks.
const STORE: &str = "LARDER_META_CHECKED";
const PER_DIRECTORY: u64 = 200;
/// Far less than the records of a file, which take more than a thousand.
const PER_FILE_MAX: u64 = 200;

fn open(dir: &Path) -> Embedded {
    let disk: Arc<dyn IoDisk> = Arc::new(RealDisk::open(dir).unwrap());
    // What the tree's cache takes is not the check's.
    let sizes = Sizes { cache_bytes: 1 << 20, ..Sizes::default() };
    Embedded::open(&disk, sizes).unwrap()
}

/// Whoever it is.
fn owner(view: &dyn View) -> crate::engine::Owner {
    crate::engine::Owner { key: key::owner(), value: view.get(&key::owner()).unwrap() }
}

fn name(txn: &mut Txn<'_>, dir: FileId, cookie: u64, file: FileId) {
    let text = format!("a name of file {}", file.0);
    txn.put(key::entry(dir, text.as_bytes()), &Entry { file, cookie });
    let name = Opaque::copy_from_slice(text.as_bytes());
    txn.put(key::listed(dir, cookie), &Listed { file, name });
}

/// A directory with files of a block each, which lie all over the disk.
fn fill(txn: &mut Txn<'_>, cookie: u64, files: std::ops::Range<u64>, blocks: u64) {
    let dir = FileId(files.start - 1);
    let mut inode = inode::empty(dir, FileId::ROOT, Kind::Directory, 0o755, Time::default());
    (inode.entries, inode.next_cookie) = (PER_DIRECTORY, PER_DIRECTORY + 1);
    txn.put(key::inode(dir), &inode);
    name(txn, FileId::ROOT, cookie, dir);
    for (cookie, file) in (1..).zip(files.clone()) {
        let file = FileId(file);
        let mut inode = inode::empty(file, dir, Kind::File, 0o644, Time::default());
        (inode.attributes.size, inode.attributes.used) = (B, B);
        txn.put(key::inode(file), &inode);
        name(txn, dir, cookie, file);
        // Prime to the number of blocks.
        let block = (file.0 - dir.0 - 1 + PER_DIRECTORY * (dir.0 / (PER_DIRECTORY + 1))) * 7919;
        let extent = Extent { valid: B, disk: DISK, position: block % blocks * B };
        txn.put(key::extent(file, B), &extent);
    }
}

/// A volume with so many files.
fn make(dir: &Path, files: u64) {
    let engine = open(dir);
    volume::create(&engine, VolumeId([7; 16]), 1, Time::default()).unwrap();
    let disk =
        NewDisk { id: [1; 16], address: "disk:1".into(), bytes: files * B, is_memory: false };
    volume::add_disk(&engine, &disk).unwrap();
    let directories = files / PER_DIRECTORY;
    let commit = |work: &dyn Fn(&mut Txn<'_>)| {
        let (view, none) = (engine.view().unwrap(), Writes::new());
        let mut txn = Txn::new(&*view, &none);
        work(&mut txn);
        engine.commit_late(&txn.finish().0, &owner(&*view)).unwrap();
    };
    commit(&|txn| {
        for (key, _) in txn.scan_all::<Blocks>(&[Pool::Free.tag()]).unwrap() {
            txn.delete(key);
        }
        change(txn, FileId::ROOT, |root| {
            (root.entries, root.next_cookie) = (directories, directories + 1);
            root.attributes.links += directories as u32;
        });
        let mut volume: Volume = txn.get(&key::volume()).unwrap().unwrap();
        volume.next_file = 2 + directories * (PER_DIRECTORY + 1);
        txn.put(key::volume(), &volume);
    });
    for number in 0..directories {
        let first = 3 + number * (PER_DIRECTORY + 1);
        commit(&|txn| fill(txn, number + 1, first..first + PER_DIRECTORY, files));
    }
}

/// Faults, and the most memory that the process ever had.
fn checked(dir: &Path) -> (u64, u64) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "check::tests::memory::this_process_checks"]);
    let done = child.args(["--ignored", "--nocapture"]).env(STORE, dir).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let told =
        text.lines().find_map(|line| line.split_once("took ")).expect("it says what it took");
    let (faults, bytes) = told.1.split_once(' ').unwrap();
    (faults.parse().unwrap(), bytes.parse().unwrap())
}

#[test]
#[ignore = "the process that another test starts"]
fn this_process_checks() {
    let dir = std::env::var_os(STORE).expect("a store");
    let faults = check(&open(Path::new(&dir))).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("took {} {}", faults.len(), kib * 1024);
}

#[test]
fn a_check_takes_a_few_bytes_for_each_file() {
    let dir = tempfile::tempdir().unwrap();
    // What does not grow, such as what the store's log has, is in both.
    let sizes = [15_000, 45_000];
    let [little, much] = sizes.map(|files| {
        let dir = dir.path().join(files.to_string());
        std::fs::create_dir(&dir).unwrap();
        make(&dir, files);
        let (faults, took) = checked(&dir);
        assert_eq!(faults, 0);
        // Two files with one block, and a name that is not listed.
        let engine = open(&dir);
        let (view, none) = (engine.view().unwrap(), Writes::new());
        let mut txn = Txn::new(&*view, &none);
        let (_, theirs) = extent(&txn, FileId(4));
        txn.put(key::extent(FileId(3), B), &theirs);
        txn.delete(key::listed(FileId(2), 3));
        engine.commit(&txn.finish().0, &owner(&*view)).unwrap();
        drop((view, engine));
        let (faults, of_damaged) = checked(&dir);
        assert_eq!(faults, 3, "shared blocks, blocks that are nowhere, and a name");
        took.max(of_damaged)
    });
    let each = much.saturating_sub(little) / (sizes[1] - sizes[0]);
    println!("{each} bytes for each file; {little} and {much} in all");
    assert!(each <= PER_FILE_MAX, "{each} bytes for each file: {little} and {much} in all");
}
