//! Space for ranges of files, zeros in them, and holes, as programs see them: fallocate(2) and
//! lseek(2).

use std::fs::{self, File};
use std::io::Seek as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use crate::harness::{Kind, Mount, Server, pattern, succeed};
use crate::rounds::Random;

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE;
const ALLOCATE: FallocateFlags = FallocateFlags::empty();

/// No file of [`random_work`] is longer.
const END: u64 = 400_000;

fn seek(file: &File, to: SeekFrom) -> rustix::io::Result<u64> {
    rustix::fs::seek(file, to)
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// A reported hole contains only zeros.
fn holes_are_zeros(file: &File, content: &[u8], what: &str) {
    let mut at = 0;
    while at < content.len() {
        let data = match seek(file, SeekFrom::Data(at as u64)) {
            Err(Errno::NXIO) => content.len(),
            data => usize::try_from(data.unwrap()).unwrap(),
        };
        assert!(content[at..data].iter().all(|byte| *byte == 0), "{what}: data at {at}..{data}");
        if data == content.len() {
            return;
        }
        at = usize::try_from(seek(file, SeekFrom::Hole(data as u64)).unwrap()).unwrap();
        assert!(data < at && at <= content.len(), "{what}: hole at {at} behind data at {data}");
    }
}

/// Random work through two descriptors: each read returns what a local file would. Another mount
/// sees it as soon as it opens the file, without a close here.
fn random_work(one: &Mount, two: &Mount, seed: u64) {
    let (path, there) = (one.path("file"), two.path("file"));
    let (mut random, mut model) = (Random(seed), pattern(seed, 100_000));
    fs::write(&path, &model).unwrap();
    let mut files = [open(&path), open(&path)];
    for step in 0..120_u64 {
        let what = format!("seed {seed}, step {step}");
        let who = random.below(2) as usize;
        let start = random.below(END);
        let end = (start + 1 + random.below(60_000)).min(END);
        let (from, to) = (start as usize, end as usize);
        let kind = random.below(8);
        let change = |flags| fallocate(&files[who], flags, start, end - start).unwrap();
        match kind {
            0 | 1 => change(PUNCH),
            2 => change(ZERO),
            3 => change(ALLOCATE),
            4 => files[who].set_len(start).unwrap(),
            5 => files[who] = open(&path),
            _ => files[who].write_all_at(&pattern(step, to - from), start).unwrap(),
        }
        match kind {
            4 => model.resize(from, 0),
            2 | 3 | 6 | 7 => model.resize(model.len().max(to), 0),
            _ => {}
        }
        let within = from.min(model.len())..to.min(model.len());
        match kind {
            0..=2 => model[within].fill(0),
            6 | 7 => model[within].copy_from_slice(&pattern(step, to - from)),
            _ => {}
        }
        assert!(fs::read(&path).unwrap() == model, "{what}");
        let other = &files[1 - who];
        assert_eq!(other.metadata().unwrap().len(), model.len() as u64, "{what}");
        let mut read = vec![0; model.len()];
        other.read_exact_at(&mut read, 0).unwrap();
        assert!(read == model, "{what}: the other descriptor");
        holes_are_zeros(other, &model, &what);
        if kind < 3 {
            assert!(fs::read(&there).unwrap() == model, "{what}: the other mount");
        }
    }
    drop(files);
    assert!(fs::read(&there).unwrap() == model, "seed {seed}");
    holes_are_zeros(&File::open(&there).unwrap(), &model, "the other mount");
    fs::remove_file(&path).unwrap();
}

/// The space that a range of a volume's file takes is reported, and freed again.
fn room_is_told(mount: &Mount) {
    let path = mount.path("room");
    let file = File::create(&path).unwrap();
    let (mib, used) = (1 << 20, || fs::metadata(&path).unwrap().blocks() * 512);
    fallocate(&file, ALLOCATE, 0, 8 * mib).unwrap();
    assert_eq!((file.metadata().unwrap().len(), used()), (8 * mib, 8 * mib));
    fallocate(&file, PUNCH, mib, 4 * mib).unwrap();
    assert_eq!((file.metadata().unwrap().len(), used()), (8 * mib, 4 * mib));
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(mib));
    assert_eq!(seek(&file, SeekFrom::Data(mib)), Ok(5 * mib));
    assert_eq!(seek(&file, SeekFrom::Data(8 * mib)), Err(Errno::NXIO));
    // Not beyond the end, where a file of a volume has no blocks.
    let keep = FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&file, keep, 8 * mib, 1), Err(Errno::OPNOTSUPP));
    fallocate(&file, keep, 0, 8 * mib).unwrap();
    assert_eq!(used(), 8 * mib);
    assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    // More than there is: nothing is longer than before.
    let full = fallocate(&file, ALLOCATE, 0, 1 << 50).unwrap_err();
    assert_eq!((full, file.metadata().unwrap().len()), (Errno::NOSPC, 8 * mib));
    fs::remove_file(&path).unwrap();
}

/// fallocate(1) and cp(1) succeed without a message.
fn programs_use_holes(mount: &Mount, local: &Path) {
    let sh = |script: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-ec", script, "sh"]).arg(mount.path("")).arg(local);
        let told = succeed(&mut sh);
        assert_eq!(String::from_utf8_lossy(&told.stderr), "", "{script}");
    };
    let used = |name: &str| fs::metadata(mount.path(name)).unwrap().blocks() * 512;
    fs::write(local.join("dense"), [pattern(1, 3 << 20), vec![0; 6 << 20]].concat()).unwrap();
    sh(r#"cp --sparse=always "$2/dense" "$1/sparse" && cmp "$2/dense" "$1/sparse""#);
    assert_eq!(used("sparse"), 3 << 20);
    sh(r#"cp --sparse=auto "$1/sparse" "$1/auto" && cmp "$2/dense" "$1/auto""#);
    assert_eq!(used("auto"), 3 << 20, "cp asks where the holes are");
    sh(r#"cp --reflink=auto "$1/sparse" "$1/copy" && cmp "$2/dense" "$1/copy""#);
    sh(r#"fallocate -p -o 1048576 -l 1048576 "$1/copy" && fallocate -d "$1/auto""#);
    sh(r#"cmp "$2/dense" "$1/auto" && fallocate -z -o 0 -l 4096 "$1/copy""#);
    sh(r#"fallocate -l 1048577 "$1/new" && head -c 1048577 /dev/zero | cmp - "$1/new""#);
    let wanted = [pattern(1, 3 << 20), vec![0; 6 << 20]].concat();
    let zeroed = |at: usize| at < 4096 || (1 << 20..2 << 20).contains(&at);
    let wanted: Vec<u8> =
        wanted.iter().enumerate().map(|(at, byte)| if zeroed(at) { 0 } else { *byte }).collect();
    assert!(fs::read(mount.path("copy")).unwrap() == wanted);
    sh(r#"rm "$1/sparse" "$1/auto" "$1/copy" "$1/new""#);
}

#[test]
fn space_of_a_volumes_files_is_the_servers() {
    let server = Server::start(Kind::Volume);
    let two = Mount::new(&server, &[]);
    let local = tempfile::tempdir_in("/var/tmp").unwrap();
    for (seed, options) in [(1, &[][..]), (2, &["nopassthrough"]), (3, &["plain"])] {
        let one = Mount::new(&server, options);
        random_work(&one, &two, seed);
        room_is_told(&one);
        programs_use_holes(&one, local.path());
    }
}

/// A file of a terabyte, of which 4 KiB in the middle and 4 KiB at the end were written: the rest
/// reads as zeros, is told as holes, and takes no room.
#[test]
fn a_sparse_file_of_a_terabyte_takes_the_room_of_what_is_written() {
    const TIB: u64 = 1 << 40;
    const BLOCK: u64 = 4096;
    const MIDDLE: u64 = TIB / 2;
    const LAST: u64 = TIB - BLOCK;
    let server = Server::start(Kind::Volume);
    let (one, two) = (Mount::new(&server, &[]), Mount::new(&server, &["plain"]));
    let written = [(MIDDLE, pattern(1, BLOCK as usize)), (LAST, pattern(2, BLOCK as usize))];
    let is_right = |file: &File, what: &str| {
        assert_eq!(file.metadata().unwrap().len(), TIB, "{what}");
        for from in [0, TIB / 4, MIDDLE - 5 * BLOCK, LAST - 15 * BLOCK] {
            let mut wanted = vec![0; 16 * BLOCK as usize];
            for (at, bytes) in &written {
                if (from..from + 16 * BLOCK).contains(at) {
                    let start = (at - from) as usize;
                    wanted[start..start + bytes.len()].copy_from_slice(bytes);
                }
            }
            let mut read = vec![1; wanted.len()];
            file.read_exact_at(&mut read, from).unwrap();
            assert!(read == wanted, "{what}: at {from}");
        }
        for (to, found) in [
            (SeekFrom::Hole(0), Ok(0)),
            (SeekFrom::Data(0), Ok(MIDDLE)),
            (SeekFrom::Hole(MIDDLE), Ok(MIDDLE + BLOCK)),
            (SeekFrom::Data(MIDDLE + BLOCK), Ok(LAST)),
            (SeekFrom::Hole(LAST), Ok(TIB)),
            (SeekFrom::Data(TIB), Err(Errno::NXIO)),
        ] {
            assert_eq!(seek(file, to), found, "{what}: {to:?}");
        }
    };
    let path = one.path("sparse");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(TIB).unwrap();
    for (at, bytes) in written.iter().rev() {
        file.write_all_at(bytes, *at).unwrap();
    }
    is_right(&file, "while it is open");
    drop(file);
    for mount in [&one, &two] {
        let path = mount.path("sparse");
        is_right(&File::open(&path).unwrap(), "on a mount");
        let du = succeed(Command::new("du").arg("--block-size=1").arg(&path)).stdout;
        let du = String::from_utf8(du).unwrap();
        let used: u64 = du.split_whitespace().next().unwrap().parse().unwrap();
        assert!((2 * BLOCK..=16 * BLOCK).contains(&used), "{du}");
    }
}

/// A change of space includes what a mapping shows, and what was written through one.
#[test]
fn mapped_bytes_follow_a_change_of_space() {
    let server = Server::start(Kind::Volume);
    for options in [&[][..], &["nopassthrough"]] {
        let mount = Mount::new(&server, options);
        let path = mount.path("mapped");
        fs::write(&path, pattern(1, 100_000)).unwrap();
        let script = r"
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(file, 100000)
mapped[50000:50005] = b'wrote'
mapped[70000:70005] = b'stays'
assert libc.fallocate(file, 3, 10000, 50000) == 0, ctypes.get_errno()
assert mapped[9999] != 0 and mapped[10000:60000] == bytes(50000), 'hole'
assert mapped[70000:70005] == b'stays'
mapped[20000:20005] = b'again'
mapped.flush()
os.close(file)
";
        let mut python = Command::new("python3");
        succeed(python.args(["-c", script]).arg(&path));
        let mut wanted = pattern(1, 100_000);
        wanted[10_000..60_000].fill(0);
        wanted[20_000..20_005].copy_from_slice(b"again");
        wanted[70_000..70_005].copy_from_slice(b"stays");
        assert!(fs::read(&path).unwrap() == wanted, "{options:?}");
        let other = Mount::new(&server, &[]);
        assert!(fs::read(other.path("mapped")).unwrap() == wanted, "{options:?}");
    }
}

/// A share punches holes, and reports those; it promises no space.
#[test]
fn a_share_punches_holes_and_promises_no_room() {
    let server = Server::start(Kind::Samba);
    let two = Mount::new(&server, &[]);
    for options in [&[][..], &["nopassthrough"], &["plain"]] {
        let one = Mount::new(&server, options);
        let mut content = pattern(1, 3 << 20);
        fs::write(one.path("file"), &content).unwrap();
        let file = open(&one.path("file"));
        file.write_all_at(b"unsent", 2 << 20).unwrap();
        content[2 << 20..(2 << 20) + 6].copy_from_slice(b"unsent");
        fallocate(&file, PUNCH, 5000, 1 << 20).unwrap();
        content[5000..5000 + (1 << 20)].fill(0);
        let mut read = vec![0; content.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == content, "{options:?}");
        assert!(fs::read(two.path("file")).unwrap() == content, "{options:?}");
        holes_are_zeros(&file, &content, "a share");
        let hole = seek(&file, SeekFrom::Hole(0)).unwrap();
        assert!((5000..1 << 20).contains(&hole), "{hole}");
        for flags in [ALLOCATE, ZERO, FallocateFlags::KEEP_SIZE] {
            assert_eq!(fallocate(&file, flags, 0, 4096), Err(Errno::OPNOTSUPP), "{flags:?}");
        }
        drop(file);
        assert!(fs::read(one.path("file")).unwrap() == content, "{options:?}");
    }
}

/// NFSv3 has no call for it: programs get that error, and use their fallbacks.
#[test]
fn servers_without_room_and_holes_say_so() {
    let server = Server::start(Kind::Larder);
    let mount = Mount::new(&server, &[]);
    let content = pattern(1, 50_000);
    fs::write(mount.path("file"), &content).unwrap();
    let mut file = open(&mount.path("file"));
    for flags in [ALLOCATE, PUNCH, ZERO, FallocateFlags::KEEP_SIZE] {
        assert_eq!(fallocate(&file, flags, 0, 4096), Err(Errno::OPNOTSUPP), "{flags:?}");
    }
    assert_eq!(seek(&file, SeekFrom::Hole(5)), Ok(50_000));
    assert_eq!(seek(&file, SeekFrom::Data(7)), Ok(7));
    assert_eq!(seek(&file, SeekFrom::Data(50_000)), Err(Errno::NXIO));
    assert!(mount.messages().get("LSEEK").copied().unwrap_or(0) <= 1, "the kernel remembers");
    file.rewind().unwrap();
    // The C library writes a byte of each block instead.
    let script = "import os, sys; os.posix_fallocate(os.open(sys.argv[1], os.O_RDWR), 0, 90000)";
    succeed(Command::new("python3").args(["-c", script]).arg(mount.path("file")));
    assert_eq!(fs::read(mount.path("file")).unwrap(), [content, vec![0; 40_000]].concat());
}
