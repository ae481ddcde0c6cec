//! Basic work of every kind, after Connectathon's basic, general and special tests: trees that are
//! made and removed; files that lose their name while they are open; holes; offsets at 2 and 4 GiB;
//! positions in a listing that survive removals; races for a name.
//!
//! Each is done on mounts of each server, with and without a cache, and checked at the server, too.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use rustix::fs::RawDir;

use crate::harness::{Kind, Mount, Server, eventually, pattern, tree};

mod renamed;

/// Callers at once, where there are several.
const CALLERS: usize = 4;

/// A directory on a mount, and the same one on the server's disk.
pub(crate) struct Place<'a> {
    here: PathBuf,
    there: PathBuf,
    /// The same directory on another mount.
    elsewhere: PathBuf,
    kind: Kind,
    who: &'a str,
}

/// A test, and its name.
pub(crate) type Work = (&'static str, fn(&Place));

impl Place<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.here.join(name)
    }

    /// All but `names` disappears at the server: hidden names of removed files that were open.
    fn nothing_else_is_left(&self, names: &[&str]) {
        let wanted: BTreeSet<_> = names.iter().map(PathBuf::from).collect();
        let is_so = || {
            let listed = fs::read_dir(&self.there).unwrap();
            wanted == listed.map(|it| PathBuf::from(it.unwrap().file_name())).collect()
        };
        eventually(&format!("{}: only {names:?} is left", self.who), is_so);
    }
}

/// Runs these tests on a mount of each kind, each in a directory of its own.
pub(crate) fn on(kind: Kind, works: &[Work]) {
    // On a volume nobody sees that data is kept here.
    let kept = (kind == Kind::Volume).then_some(&["class=generated"][..]);
    for options in [&[][..], &["plain"]].into_iter().chain(kept) {
        let server = Server::start(kind);
        let (mount, other) = (Mount::new(&server, options), Mount::new(&server, options));
        // A volume's disk shows no files.
        let asking = (kind == Kind::Volume).then(|| Mount::new(&server, &["plain", "noac"]));
        for (name, work) in works {
            let who = format!("{kind:?} {options:?}, {name}");
            fs::create_dir(mount.path(name)).unwrap();
            let [here, elsewhere] = [&mount, &other].map(|mount| mount.path(name));
            let there = asking.as_ref().map_or_else(|| server.path(name), |it| it.path(name));
            work(&Place { here, there, elsewhere, kind, who: &who });
        }
    }
}

/// Connectathon's basic tests: trees made and removed; files described, linked, renamed, written.
pub(crate) const BASIC: [Work; 5] = [
    ("trees", trees_come_and_go),
    ("attributes", many_files_are_looked_at_and_changed),
    ("renames", many_files_are_renamed),
    ("listings", listings_are_of_what_there_is),
    ("again", the_same_names_again_and_again),
];

/// Its special tests: known mistakes of NFS clients.
pub(crate) const SPECIAL: [Work; 10] = [
    ("removed", removed_files_stay_open),
    ("renamed", renamed::open_files_stay_open),
    ("mode", a_file_without_rights_stays_open),
    ("cut", an_open_file_is_cut_from_behind),
    ("holes", holes_are_zeros),
    ("large", offsets_reach_over_two_and_four_gib),
    ("places", places_in_a_listing_outlive_removals),
    ("rewind", a_rewound_listing_and_file_are_new),
    ("first", one_of_many_is_first),
    ("moved", one_of_many_moves_it),
];

#[test]
fn basic_work_is_right_on_our_export() {
    on(Kind::Larder, &BASIC);
}

#[test]
fn basic_work_is_right_on_ganesha() {
    on(Kind::Ganesha, &BASIC);
}

#[test]
fn basic_work_is_right_on_samba() {
    on(Kind::Samba, &BASIC);
}

#[test]
fn special_work_is_right_on_our_export() {
    on(Kind::Larder, &SPECIAL);
}

#[test]
fn special_work_is_right_on_ganesha() {
    on(Kind::Ganesha, &SPECIAL);
}

#[test]
fn special_work_is_right_on_samba() {
    on(Kind::Samba, &SPECIAL);
}

fn make_tree(dir: &Path, depth: usize) {
    for file in 0..6 {
        fs::write(dir.join(format!("file.{file}")), pattern(depth as u64 * 10 + file, 300))
            .unwrap();
    }
    for sub in (0..3).filter(|_| depth > 0) {
        let sub = dir.join(format!("dir.{sub}"));
        fs::create_dir(&sub).unwrap();
        make_tree(&sub, depth - 1);
    }
}

fn remove_tree(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            remove_tree(&entry.path());
            fs::remove_dir(entry.path()).unwrap();
        } else {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn trees_come_and_go(place: &Place) {
    for _ in 0..2 {
        make_tree(&place.here, 2);
        let made = tree(&place.here);
        assert_eq!(made.len(), 6 * (1 + 3 + 9), "{}", place.who);
        assert!(made == tree(&place.there), "{}", place.who);
        remove_tree(&place.here);
        place.nothing_else_is_left(&[]);
        assert_eq!(fs::read_dir(&place.here).unwrap().count(), 0, "{}", place.who);
    }
}

fn many_files_are_looked_at_and_changed(place: &Place) {
    for number in 0..15_u64 {
        let path = place.at(&format!("file.{number}"));
        let len = number * 700;
        fs::write(&path, pattern(number, len as usize)).unwrap();
        for mode in [0o444, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let writable = fs::metadata(&path).unwrap().mode() & 0o222 != 0;
            assert_eq!(writable, mode == 0o666, "{}", place.who);
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), len, "{}", place.who);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(len / 2).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), len / 2, "{}", place.who);
        file.set_len(0).unwrap();
        file.set_len(10).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), [0; 10], "{}", place.who);
        assert_eq!(fs::read(place.there.join(format!("file.{number}"))).unwrap(), [0; 10]);
    }
    assert_eq!(fs::read_dir(&place.here).unwrap().count(), 15, "{}", place.who);
}

fn many_files_are_renamed(place: &Place) {
    for number in 0..15_u64 {
        let [file, new, link] =
            ["file", "new", "link"].map(|it| place.at(&format!("{it}.{number}")));
        fs::write(&file, pattern(number, 500)).unwrap();
        fs::rename(&file, &new).unwrap();
        assert_eq!(fs::metadata(&file).unwrap_err().kind(), ErrorKind::NotFound, "{}", place.who);
        fs::hard_link(&new, &link).unwrap();
        assert_eq!(fs::metadata(&new).unwrap().nlink(), 2, "{}", place.who);
        fs::remove_file(&new).unwrap();
        assert_eq!(fs::metadata(&link).unwrap().nlink(), 1, "{}", place.who);
        fs::rename(&link, &file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), pattern(number, 500), "{}", place.who);
    }
    assert!(tree(&place.here) == tree(&place.there), "{}", place.who);
    assert_eq!(fs::read_dir(&place.there).unwrap().count(), 15, "{}", place.who);
}

fn listings_are_of_what_there_is(place: &Place) {
    let mut model = BTreeSet::new();
    for number in 0..200 {
        let name = format!("name-{number:04}");
        File::create(place.at(&name)).unwrap();
        model.insert(name);
        if number % 3 == 0 {
            let gone = format!("name-{:04}", number / 2);
            if model.remove(&gone) {
                fs::remove_file(place.at(&gone)).unwrap();
            }
        }
        if number % 20 == 0 {
            assert_eq!(names_of(&place.here), model, "{}", place.who);
        }
    }
    for dir in [&place.here, &place.there, &place.elsewhere] {
        assert_eq!(names_of(dir), model, "{}", place.who);
    }
}

fn names_of(dir: &Path) -> BTreeSet<String> {
    let listed: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().file_name()).collect();
    let names: BTreeSet<_> = listed.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), listed.len(), "a name is listed twice");
    names
}

/// Connectathon's nfsidem and dupreq: calls that a server must not carry out twice.
fn the_same_names_again_and_again(place: &Place) {
    let at = |name| place.at(name);
    for round in 0..15_u64 {
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("dir/foo"), pattern(round, 100)).unwrap();
        fs::rename(at("dir/foo"), at("bar")).unwrap();
        fs::hard_link(at("bar"), at("foo")).unwrap();
        assert_eq!(fs::read(at("foo")).unwrap(), pattern(round, 100), "{}", place.who);
        fs::write(at("foo"), "rewritten").unwrap();
        assert_eq!(fs::read(at("bar")).unwrap(), b"rewritten", "{}", place.who);
        fs::remove_file(at("bar")).unwrap();
        assert_eq!(fs::read(at("foo")).unwrap(), b"rewritten", "{}", place.who);
        assert_eq!(fs::metadata(at("bar")).unwrap_err().kind(), ErrorKind::NotFound);
        fs::remove_dir(at("dir")).unwrap();
        fs::create_dir(at("dir")).unwrap();
        fs::rename(at("foo"), at("dir/foo")).unwrap();
        fs::remove_file(at("dir/foo")).unwrap();
        fs::remove_dir(at("dir")).unwrap();
    }
    place.nothing_else_is_left(&[]);
}

fn open_new(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn removed_files_stay_open(place: &Place) {
    let files: Vec<_> = (0..10_u64)
        .map(|number| {
            let path = place.at(&format!("file.{number}"));
            let file = open_new(&path);
            file.write_all_at(&pattern(number, 40_000), 0).unwrap();
            if number % 2 == 0 {
                file.sync_all().unwrap();
            }
            fs::remove_file(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
            file
        })
        .collect();
    // As with the kernel's NFS client, their hidden names at the server are listed in the meantime.
    let hidden = |name: &String| name.starts_with(".nfs");
    assert!(names_of(&place.here).iter().all(hidden), "{}", place.who);
    for (number, file) in files.iter().enumerate() {
        let mut bytes = pattern(number as u64, 40_000);
        file.write_all_at(b"still there", 50_000).unwrap();
        bytes.resize(50_000, 0);
        bytes.extend_from_slice(b"still there");
        file.sync_all().unwrap();
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes, "{}: {number}", place.who);
        let found = file.metadata().unwrap();
        assert_eq!((found.len(), found.nlink()), (bytes.len() as u64, 0), "{}", place.who);
        file.set_len(5).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5, "{}", place.who);
    }
    // New ones of the same names have nothing of them.
    for number in 0..10 {
        let new = open_new(&place.at(&format!("file.{number}")));
        assert_eq!(new.metadata().unwrap().len(), 0, "{}", place.who);
        fs::remove_file(place.at(&format!("file.{number}"))).unwrap();
    }
    drop(files);
    place.nothing_else_is_left(&[]);
}

/// Connectathon's op_chmod.
fn a_file_without_rights_stays_open(place: &Place) {
    let path = place.at("file");
    let file = open_new(&path);
    file.write_all_at(b"one", 0).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    file.write_all_at(b"two", 3).unwrap();
    let mut read = [0; 6];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"onetwo", "{}", place.who);
    drop(file);
    assert_eq!(fs::read(place.there.join("file")).unwrap(), b"onetwo", "{}", place.who);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    fs::write(&path, "three").unwrap();
    assert_eq!(fs::read(place.there.join("file")).unwrap(), b"three", "{}", place.who);
}

/// Connectathon's freesp: the bytes beyond the new end are gone, for every descriptor, and are
/// zeros when the file grows again.
fn an_open_file_is_cut_from_behind(place: &Place) {
    let path = place.at("file");
    let file = open_new(&path);
    let mut model = pattern(3, 200_000);
    file.write_all_at(&model, 0).unwrap();
    let reader = File::open(&path).unwrap();
    let mut end = model.len();
    while end > 10_000 {
        end = end * 2 / 3;
        file.set_len(end as u64).unwrap();
        model.truncate(end);
        assert_eq!(reader.metadata().unwrap().len(), end as u64, "{}", place.who);
        let mut read = [1; 8];
        let got = reader.read_at(&mut read, end as u64 - 4).unwrap();
        assert_eq!(&read[..got], &model[end - 4..], "{}: to {end}", place.who);
        file.write_all_at(b"x", end as u64 + 1000).unwrap();
        model.resize(end + 1000, 0);
        model.push(b'x');
        let mut all = vec![1; model.len()];
        reader.read_exact_at(&mut all, 0).unwrap();
        assert!(all == model, "{}: to {end}", place.who);
    }
    drop((file, reader));
    assert!(fs::read(place.there.join("file")).unwrap() == model, "{}", place.who);
}

/// Connectathon's holey.
fn holes_are_zeros(place: &Place) {
    let path = place.at("file");
    let file = open_new(&path);
    let mut model = Vec::new();
    for number in 0..12_u64 {
        let piece = pattern(number, 1234 * number as usize);
        file.write_all_at(&piece, model.len() as u64).unwrap();
        model.extend_from_slice(&piece);
        model.resize(model.len() + 4321 * number as usize, 0);
    }
    file.set_len(model.len() as u64).unwrap();
    let read_all = |of: &File| {
        let mut all = vec![1; model.len()];
        of.read_exact_at(&mut all, 0).unwrap();
        all
    };
    assert!(read_all(&file) == model, "{}: while open", place.who);
    file.sync_all().unwrap();
    assert!(read_all(&file) == model, "{}: synced", place.who);
    drop(file);
    for path in [&path, &place.there.join("file"), &place.elsewhere.join("file")] {
        assert!(fs::read(path).unwrap() == model, "{}: {}", place.who, path.display());
    }
}

/// Connectathon's bigfile.
fn offsets_reach_over_two_and_four_gib(place: &Place) {
    const BOUNDS: [u64; 2] = [1 << 31, 1 << 32];
    let path = place.at("file");
    let file = open_new(&path);
    for bound in BOUNDS {
        for from in [bound - 70_000, bound - 1, bound, bound + 1] {
            let bytes = pattern(from, 100_000);
            file.write_all_at(&bytes, from).unwrap();
            assert_eq!(file.metadata().unwrap().len(), from + 100_000, "{}", place.who);
            let mut read = vec![0; bytes.len()];
            file.read_exact_at(&mut read, from).unwrap();
            assert!(read == bytes, "{}: at {from}", place.who);
        }
    }
    drop(file);
    let there = File::open(place.there.join("file")).unwrap();
    let elsewhere = File::open(place.elsewhere.join("file")).unwrap();
    let here = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    for file in [&there, &elsewhere, &here] {
        for bound in BOUNDS {
            let mut model = pattern(bound - 70_000, 69_999);
            model.extend(&pattern(bound - 1, 1)[..1]);
            model.extend(&pattern(bound, 1)[..1]);
            model.extend(pattern(bound + 1, 100_000));
            let mut read = vec![1; model.len() + 1];
            file.read_exact_at(&mut read[1..], bound - 70_000).unwrap();
            file.read_exact_at(&mut read[..1], bound - 80_000).unwrap();
            assert!(read[0] == 0 && read[1..] == model, "{}: at {bound}", place.who);
        }
    }
    for bound in BOUNDS.into_iter().rev() {
        for len in [bound + 1, bound, bound - 1] {
            here.set_len(len).unwrap();
            assert_eq!(here.metadata().unwrap().len(), len, "{}", place.who);
            assert_eq!(there.metadata().unwrap().len(), len, "{}", place.who);
        }
    }
    drop(here);
    assert_eq!(fs::metadata(&path).unwrap().len(), BOUNDS[0] - 1, "{}", place.who);
    fs::remove_file(&path).unwrap();
}

/// A descriptor of a directory, which is read in small pieces.
struct Listing(File);

impl Listing {
    fn open(dir: &Path) -> Listing {
        Listing(File::open(dir).unwrap())
    }

    /// Up to this many names from the present position on, each with the position after it; without
    /// `.` and `..`.
    fn next(&self, count: usize) -> Vec<(String, u64)> {
        let mut buffer = [MaybeUninit::uninit(); 600];
        let mut names: Vec<(String, u64)> = Vec::new();
        let mut entries = RawDir::new(&self.0, &mut buffer);
        let mut begin = None;
        while let Some(entry) = entries.next() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_str().unwrap().to_owned();
            begin = Some(entry.next_entry_cookie());
            names.extend((name != "." && name != "..").then(|| (name, entry.next_entry_cookie())));
            if names.len() == count {
                break;
            }
        }
        // What else was in the buffer is read again.
        begin.into_iter().for_each(|begin| self.seek(begin));
        names
    }

    fn seek(&self, place: u64) {
        rustix::fs::seek(&self.0, rustix::fs::SeekFrom::Start(place)).unwrap();
    }
}

/// Connectathon's telldir: each name that stays is listed once, whatever is removed in the
/// meantime, and a position is found again.
fn places_in_a_listing_outlive_removals(place: &Place) {
    const NAMES: usize = 300;
    let name = |number: usize| format!("name-{number:04}");
    for number in 0..NAMES {
        File::create(place.at(&name(number))).unwrap();
    }
    let listing = Listing::open(&place.here);
    let told = listing.next(NAMES + 1);
    assert_eq!(told.len(), NAMES, "{}", place.who);
    let next_of = |listing: &Listing, index: usize| {
        listing.seek(told[index].1);
        listing.next(1).pop().map(|(name, _)| name)
    };
    for index in [0, 7, NAMES / 2, NAMES - 2, 3] {
        let next = next_of(&listing, index);
        assert_eq!(next.as_deref(), Some(&*told[index + 1].0), "{}: after {index}", place.who);
    }
    assert_eq!(next_of(&listing, NAMES - 1), None, "{}", place.who);
    // Every other one is removed while another listing is in progress: before its position, at it,
    // and after it.
    let beside = Listing::open(&place.here);
    let mut seen: Vec<_> = beside.next(NAMES / 2);
    for (removed, _) in told.iter().step_by(2) {
        fs::remove_file(place.at(removed)).unwrap();
    }
    seen.extend(beside.next(NAMES));
    for (kept, _) in told.iter().skip(1).step_by(2) {
        let times = seen.iter().filter(|(name, _)| name == kept).count();
        assert_eq!(times, 1, "{}: {kept} is told once", place.who);
    }
    let twice = seen.iter().map(|(name, _)| name).collect::<BTreeSet<_>>();
    assert_eq!(twice.len(), seen.len(), "{}: none is told twice", place.who);
    if place.kind == Kind::Ganesha {
        // It goes back one name from a position whose next name is gone, as a new mount shows, too.
        return;
    }
    // Positions after names that are gone, and after names that exist.
    for index in [0, 10, NAMES / 2, NAMES / 2 + 1, NAMES - 4, 1] {
        let next = next_of(&listing, index);
        let wanted = told.iter().skip(index + 1).find(|(name, _)| place.at(name).exists());
        let wanted = wanted.map(|(name, _)| &**name);
        assert_eq!(next.as_deref(), wanted, "{}: after {index}", place.who);
    }
}

/// Connectathon's rewind: from the beginning again, with the changes.
fn a_rewound_listing_and_file_are_new(place: &Place) {
    let listing = Listing::open(&place.here);
    let mut all = BTreeSet::new();
    let (mut writer, mut reader) = (open_new(&place.at("00")), File::open(place.at("00")).unwrap());
    all.insert("00".to_owned());
    for round in 1..20 {
        File::create(place.at(&format!("{round:02}"))).unwrap();
        all.insert(format!("{round:02}"));
        listing.seek(0);
        let told: BTreeSet<_> = listing.next(100).into_iter().map(|(name, _)| name).collect();
        assert_eq!(told, all, "{}: round {round}", place.who);
        writeln!(writer, "{round:02}").unwrap();
        reader.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count(), round, "{}: {text}", place.who);
    }
}

/// Several callers on both mounts do the same at once.
fn at_once<R: Send>(place: &Place, work: impl Fn(&Path, usize) -> R + Sync) -> Vec<R> {
    let (begin, work) = (&Barrier::new(2 * CALLERS), &work);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2 * CALLERS)
            .map(|caller| {
                let dir = [&place.here, &place.elsewhere][caller % 2];
                scope.spawn(move || {
                    begin.wait();
                    work(dir, caller)
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    })
}

/// Connectathon's excltest, by several processes at the same time: exactly one succeeds in making a
/// name.
fn one_of_many_is_first(place: &Place) {
    let exclusive = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    for round in 0..8 {
        let name = format!("file-{round}");
        let firsts = at_once(place, |dir, caller| {
            let mut made = match exclusive(&dir.join(&name)) {
                Ok(file) => file,
                Err(error) => return Err(error.kind()),
            };
            Ok(write!(made, "{caller}").map(|()| caller).unwrap())
        });
        let winners: Vec<_> = firsts.iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{}: {firsts:?}", place.who);
        let losers = firsts.iter().filter(|it| **it == Err(ErrorKind::AlreadyExists)).count();
        assert_eq!(losers, 2 * CALLERS - 1, "{}: {firsts:?}", place.who);
        for dir in [&place.here, &place.there, &place.elsewhere] {
            let text = fs::read_to_string(dir.join(&name)).unwrap();
            assert_eq!(text, winners[0].to_string(), "{}: {}", place.who, dir.display());
        }
        let made = at_once(place, |dir, _| fs::create_dir(dir.join(format!("dir-{round}"))));
        assert_eq!(made.iter().filter(|it| it.is_ok()).count(), 1, "{}: {made:?}", place.who);
        let exists = |it: &&std::io::Result<()>| {
            it.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
        };
        assert_eq!(made.iter().filter(exists).count(), 2 * CALLERS - 1, "{}: {made:?}", place.who);
    }
}

/// Of several that rename, remove or link the same name, exactly one succeeds.
fn one_of_many_moves_it(place: &Place) {
    for round in 0..8 {
        let name = format!("file-{round}");
        fs::write(place.at(&name), "it").unwrap();
        let moved = at_once(place, |dir, caller| {
            fs::rename(dir.join(&name), dir.join(format!("to-{round}-{caller}")))
        });
        assert_eq!(moved.iter().filter(|it| it.is_ok()).count(), 1, "{}: {moved:?}", place.who);
        let left: Vec<_> =
            names_of(&place.there).into_iter().filter(|it| it.starts_with("to-")).collect();
        assert_eq!(left.len(), 1, "{}: {left:?}", place.who);
        let linked = at_once(place, |dir, _| fs::hard_link(dir.join(&left[0]), dir.join("lock")));
        assert_eq!(linked.iter().filter(|it| it.is_ok()).count(), 1, "{}: {linked:?}", place.who);
        let removed = at_once(place, |dir, _| fs::remove_file(dir.join("lock")));
        assert_eq!(removed.iter().filter(|it| it.is_ok()).count(), 1, "{}: {removed:?}", place.who);
        // The other mount may not know of it yet.
        let winner = moved.iter().position(Result::is_ok).unwrap();
        let moved = [&place.here, &place.elsewhere][winner % 2].join(&left[0]);
        assert_eq!(fs::read_to_string(&moved).unwrap(), "it", "{}", place.who);
        fs::remove_file(&moved).unwrap();
    }
    place.nothing_else_is_left(&[]);
}
