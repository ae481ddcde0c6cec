//! Random work by several users, through the client and directly on a server: if no other client is
//! there, both give the same answers and the same errors, and leave the same tree.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use larder_client::Options;
use larder_vfs::{
    Access, Cred, Direct, Error, FileSystem, Ino, Kind, Lookup, MemRemote, New, OpenFlags, Removal,
    RenameFlags, Result, SetAttr, Stability,
};

use crate::rig::{Random, Rig, pattern};

const STEPS: usize = 250;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// User 11 is in the group of user 10.
const USERS: u64 = 4;

fn user(number: u64) -> Cred {
    match number {
        0 => Cred::root(),
        1 => Cred::new(10, 10, &[]),
        2 => Cred::new(11, 11, &[10]),
        _ => Cred::new(12, 12, &[]),
    }
}

type Path = Vec<&'static str>;

#[derive(Clone, Debug)]
enum Step {
    Look(Path),
    List(Path),
    Make(Path, New),
    Write(Path, u64, Vec<u8>),
    Read(Path),
    Set(Path, SetAttr),
    Remove(Path, Removal),
    Rename(Path, Path),
    Link(Path, Path),
    Judge(Path),
}

/// The answer that a caller gets.
#[derive(Debug, PartialEq)]
enum Told {
    Done,
    Attributes(Kind, u64, (u32, u32, u32), u32, Option<u64>),
    Names(Vec<(OsString, u64)>),
    Bytes(Vec<u8>),
    Target(OsString),
    Rights(Access),
}

fn path(random: &mut Random) -> Path {
    (0..[1, 1, 2, 2, 2, 3][random.below(6) as usize])
        .map(|_| NAMES[random.below(3) as usize])
        .collect()
}

fn mode(random: &mut Random) -> u32 {
    [0o777, 0o777, 0o755, 0o775, 0o750, 0o711, 0o666, 0o640, 0o222, 0][random.below(10) as usize]
}

fn step(random: &mut Random) -> Step {
    let at = path(random);
    match random.below(20) {
        0..3 => Step::Look(at),
        3 | 4 => Step::List(at),
        5..8 => Step::Make(at, New::Directory),
        8 => Step::Make(at, New::Symlink("target".into())),
        9 => Step::Make(at, New::FileExclusive),
        10 | 11 => {
            let bytes = pattern(random.below(u64::MAX), 1 + random.below(5000) as usize);
            Step::Write(at, random.below(4000), bytes)
        }
        12 | 13 => Step::Read(at),
        14 => Step::Set(at, SetAttr { mode: Some(mode(random)), ..SetAttr::default() }),
        15 => {
            let none = SetAttr::default();
            Step::Set(
                at,
                match random.below(3) {
                    0 => SetAttr { uid: Some(10 + random.below(3) as u32), ..none },
                    1 => SetAttr { gid: Some(10 + random.below(3) as u32), ..none },
                    _ => SetAttr { size: Some(random.below(9000)), ..none },
                },
            )
        }
        16 => Step::Remove(at, [Removal::File, Removal::Directory][random.below(2) as usize]),
        17 => Step::Rename(at, path(random)),
        18 => Step::Link(at, path(random)),
        _ => Step::Judge(at),
    }
}

/// The directory of a path, and its last name.
async fn parent<'a>(fs: &dyn FileSystem, cred: &Cred, path: &'a Path) -> Result<(Ino, &'a OsStr)> {
    let (last, above) = path.split_last().unwrap();
    Ok((find(fs, cred, above).await?, OsStr::new(*last)))
}

async fn find(fs: &dyn FileSystem, cred: &Cred, path: &[&str]) -> Result<Ino> {
    let mut ino = Ino::ROOT;
    for name in path {
        ino = match fs.lookup(cred, ino, OsStr::new(name)).wait().await? {
            Lookup::Found(entry) => entry.ino,
            Lookup::Absent { .. } => return Err(Error::NotFound),
        };
    }
    Ok(ino)
}

/// The kernel has looked up what it opens.
async fn need(fs: &dyn FileSystem, cred: &Cred, ino: Ino, kind: Kind) -> Result<()> {
    match fs.getattr(cred, ino).wait().await?.attr.kind {
        is if is == kind => Ok(()),
        Kind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::NotDirectory),
    }
}

async fn list(fs: &dyn FileSystem, cred: &Cred, ino: Ino) -> Result<Told> {
    need(fs, cred, ino, Kind::Directory).await?;
    fs.opendir(cred, ino).wait().await?;
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let page = fs.readdir(cred, ino, offset, 300, true).wait().await?;
        let Some(last) = page.last() else { break };
        offset = last.offset;
        names.extend(page.into_iter().map(|entry| (entry.name, entry.fileid)));
    }
    names.sort();
    Ok(Told::Names(names))
}

async fn act(fs: &dyn FileSystem, cred: &Cred, step: &Step) -> Result<Told> {
    match step {
        Step::Look(at) => {
            let ino = find(fs, cred, at).await?;
            let attr = fs.getattr(cred, ino).wait().await?.attr;
            let size = (attr.kind == Kind::File).then_some(attr.size);
            let owner = (attr.mode, attr.uid, attr.gid);
            return Ok(Told::Attributes(attr.kind, attr.fileid, owner, attr.nlink, size));
        }
        Step::List(at) => {
            return list(fs, cred, find(fs, cred, at).await?).await;
        }
        Step::Make(at, new) => {
            let (dir, name) = parent(fs, cred, at).await?;
            let set = SetAttr { mode: Some(0o775), ..SetAttr::default() };
            fs.make(cred, dir, name, new.clone(), set).wait().await?;
        }
        Step::Write(at, offset, bytes) => {
            let ino = find(fs, cred, at).await?;
            need(fs, cred, ino, Kind::File).await?;
            let open = fs.open(cred, ino, OpenFlags::WRITE).wait().await?.id;
            let unstable = Stability::Unstable;
            fs.write(cred, ino, Some(open), *offset, bytes, unstable).wait().await?;
            fs.flush(cred, ino, open, None).wait().await?;
            fs.release(ino, open).wait().await?;
        }
        Step::Read(at) => {
            let ino = find(fs, cred, at).await?;
            if fs.getattr(cred, ino).wait().await?.attr.kind == Kind::Symlink {
                return fs.readlink(cred, ino).wait().await.map(Told::Target);
            }
            need(fs, cred, ino, Kind::File).await?;
            let open = fs.open(cred, ino, OpenFlags::READ).wait().await?.id;
            let bytes = fs.read(cred, ino, Some(open), 0, 1 << 20).wait().await?.to_vec();
            fs.release(ino, open).wait().await?;
            return Ok(Told::Bytes(bytes));
        }
        Step::Set(at, set) => {
            let ino = find(fs, cred, at).await?;
            fs.setattr(cred, ino, None, *set).wait().await?;
        }
        Step::Remove(at, what) => {
            let (dir, name) = parent(fs, cred, at).await?;
            fs.remove(cred, dir, name, *what).wait().await?;
        }
        Step::Rename(from, to) => {
            // The kernel carries out nothing if both are the same file.
            let same = [find(fs, cred, from).await, find(fs, cred, to).await];
            if same[0].is_ok() && same[0] == same[1] {
                return Ok(Told::Done);
            }
            let (from, to) = (parent(fs, cred, from).await?, parent(fs, cred, to).await?);
            fs.rename(cred, from, to, RenameFlags::default()).wait().await?;
        }
        Step::Link(at, to) => {
            let ino = find(fs, cred, at).await?;
            let (dir, name) = parent(fs, cred, to).await?;
            fs.link(cred, ino, dir, name).wait().await?;
        }
        Step::Judge(at) => {
            let ino = find(fs, cred, at).await?;
            return fs.access(cred, ino, Access::ALL).wait().await.map(Told::Rights);
        }
    }
    Ok(Told::Done)
}

/// A tree of a few directories that every user may change.
async fn begin(fs: &dyn FileSystem) {
    for at in [vec!["a"], vec!["b"], vec!["a", "a"]] {
        let (dir, name) = parent(fs, &user(0), &at).await.unwrap();
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        fs.make(&user(0), dir, name, New::Directory, set).wait().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_of_several_users_is_as_without_a_client() {
    let first = std::env::var("LARDER_SEED").ok().map(|seed| seed.parse().unwrap());
    let mut done = 0;
    for seed in first.map_or(1..25, |seed: u64| seed..seed + 1) {
        println!("LARDER_SEED={seed}");
        for leases in [false, true] {
            done += run(seed, leases).await;
        }
    }
    println!("{done} steps succeeded");
    assert!(first.is_some() || done > 1500, "too few steps succeed: {done}");
}

async fn run(seed: u64, leases: bool) -> usize {
    let mut random = Random(seed);
    let mut rig = Rig::new(Options::default()).await;
    if leases {
        rig.server.give_leases();
    }
    let plain = Direct::new(Arc::new(MemRemote::new())).await.unwrap();
    begin(&rig.client).await;
    begin(&plain).await;
    let mut done = 0;
    for number in 0..STEPS {
        rig.clock.advance(Duration::from_micros(1));
        if random.below(20) == 0 {
            rig.advance(random.below(40));
        }
        if random.below(60) == 0 {
            rig = rig.remount().await;
        }
        let (cred, step) = (user(random.below(USERS)), step(&mut random));
        let expected = act(&plain, &cred, &step).await;
        let told = act(&rig.client, &cred, &step).await;
        assert_eq!(told, expected, "step {number}, user {}: {step:?}", cred.uid);
        done += usize::from(told.is_ok());
    }
    done
}
