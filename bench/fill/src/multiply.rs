//! Copies a directory of files within the store of a volume, which no server has meanwhile:
//! millions of files in minutes.
//!
//!     multiply METADATA FIRST END
//!
//! Directory 00000000, which `fill` made, gets copies with the numbers from FIRST up to END, each
//! in directory N / 1000, as `fill` makes them. The records are those that the metadata server
//! wrote for the first, under other numbers (docs/formats/meta-store.md), and blocks that were
//! free. `larder volume check` must find nothing afterwards.

use std::ops::ControlFlow;
use std::sync::Arc;

use larder_io::{Disk, RealDisk};
use larder_meta::engine::embedded::{Embedded, Sizes};
use larder_meta::engine::{Engine, Owner, View, Writes};
use larder_wire::meta::BLOCK_BYTES;

type Record = (Vec<u8>, Vec<u8>);

const ROOT: u64 = 1;
const DIRECTORIES_MAX: u64 = 1000;
/// Where numbers are in values, behind the format.
const FILE: usize = 4;
const COOKIE: usize = 12;
const LINKS: usize = 20;
const PARENT: usize = 120;
const ENTRIES: usize = 128;
const NEXT_COOKIE: usize = 136;
const DISK: usize = 12;
const POSITION: usize = 16;
const NEXT_FILE: usize = 20;
/// Directories in a commit.
const TOGETHER: u64 = 10;

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(*bytes[at..].first_chunk().expect("a number"))
}

fn set(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
}

fn key(tag: u8, file: u64, rest: &[u8]) -> Vec<u8> {
    [&[tag], &file.to_be_bytes()[..], rest].concat()
}

fn records(view: &dyn View, tag: u8, file: u64) -> Vec<Record> {
    let mut found = Vec::new();
    let mut each = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    view.scan(&key(tag, file, b""), &key(tag, file + 1, b""), &mut each).expect("readable");
    found
}

fn value(view: &dyn View, key: &[u8]) -> Vec<u8> {
    view.get(key).expect("readable").expect("there")
}

/// What is copied: a directory, and each file in it with its records.
struct Template {
    directory: Vec<u8>,
    /// Those of a name, a listing, an inode and extents.
    files: Vec<(Record, Record, Vec<u8>, Vec<Record>)>,
}

impl Template {
    fn read(view: &dyn View, dir: u64) -> Template {
        let listed = records(view, b'l', dir);
        let files = records(view, b'e', dir).into_iter().map(|name| {
            let (file, cookie) = (number(&name.1, FILE), number(&name.1, COOKIE));
            let listing = listed.iter().find(|(key, _)| number(key, 9) == cookie);
            let inode = value(view, &key(b'i', file, b""));
            (name, listing.expect("it is listed").clone(), inode, records(view, b'x', file))
        });
        Template { directory: value(view, &key(b'i', dir, b"")), files: files.collect() }
    }

    /// The records of a copy whose directory has a number, and its files those that follow.
    fn copy(&self, writes: &mut Writes, (dir, parent): (u64, u64), free: &mut u64) {
        let mut put = |key: Vec<u8>, value: Vec<u8>| drop(writes.insert(key, Some(value)));
        let mut directory = self.directory.clone();
        set(&mut directory, FILE, dir);
        set(&mut directory, PARENT, parent);
        put(key(b'i', dir, b""), directory);
        for (file, (name, listing, inode, extents)) in (dir + 1..).zip(&self.files) {
            for (tag, (of, value)) in [(b'e', name), (b'l', listing)] {
                let mut value = value.clone();
                set(&mut value, FILE, file);
                put(key(tag, dir, &of[9..]), value);
            }
            let mut inode = inode.clone();
            set(&mut inode, FILE, file);
            put(key(b'i', file, b""), inode);
            for (of, value) in extents {
                let mut value = value.clone();
                set(&mut value, POSITION, *free);
                *free += number(&value, FILE).next_multiple_of(BLOCK_BYTES);
                put(key(b'x', file, &of[9..]), value);
            }
        }
    }
}

/// A name in a directory, behind all others.
fn enter(writes: &mut Writes, (dir, inode): (u64, &mut [u8]), name: &str, file: u64) {
    let cookie = number(inode, NEXT_COOKIE);
    set(inode, NEXT_COOKIE, cookie + 1);
    let entries = number(inode, ENTRIES);
    set(inode, ENTRIES, entries + 1);
    let links = u32::from_be_bytes(*inode[LINKS..].first_chunk().expect("a number")) + 1;
    inode[LINKS..LINKS + 4].copy_from_slice(&links.to_be_bytes());
    let mut entry = 1_u32.to_be_bytes().to_vec();
    entry.extend_from_slice(&file.to_be_bytes());
    let mut listed = entry.clone();
    entry.extend_from_slice(&cookie.to_be_bytes());
    listed.extend_from_slice(&(name.len() as u32).to_be_bytes());
    // Names here have 4 or 8 letters, so XDR does not fill them up.
    listed.extend_from_slice(name.as_bytes());
    writes.insert(key(b'e', dir, name.as_bytes()), Some(entry));
    writes.insert(key(b'l', dir, &cookie.to_be_bytes()), Some(listed));
    writes.insert(key(b'i', dir, b""), Some(inode.to_vec()));
}

/// The longest run of free blocks: its key, where it begins, and its end.
fn longest(view: &dyn View) -> (Vec<u8>, u64, u64) {
    let mut found = (Vec::new(), 0, 0);
    let mut each = |key: &[u8], value: &[u8]| {
        let (end, length) = (number(key, 5), number(value, 4));
        if length > found.2 - found.1 {
            found = (key.to_vec(), end - length, end);
        }
        ControlFlow::Continue(())
    };
    view.scan(b"f", b"g", &mut each).expect("readable");
    found
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, metadata, first, end] = &args[..] else { panic!("multiply METADATA FIRST END") };
    let (first, end): (u64, u64) = (first.parse().expect("FIRST"), end.parse().expect("END"));
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(metadata.as_ref()).expect("a store"));
    let sizes = Sizes { layers_bytes: 16 << 20, ..Sizes::default() };
    let engine = Embedded::open(&disk, sizes).expect("a store");
    let view = engine.view().expect("readable");
    let owner = Owner { key: b"w".to_vec(), value: view.get(b"w").expect("readable") };
    let found = |dir, name: &str| {
        let entry = view.get(&key(b'e', dir, name.as_bytes())).expect("readable");
        entry.map(|entry| number(&entry, FILE))
    };
    let upper = found(ROOT, "0000").expect("a directory that fill made");
    let template = Template::read(&*view, found(upper, "00000000").expect("one that fill made"));
    let mut empty = value(&*view, &key(b'i', upper, b""));
    set(&mut empty, ENTRIES, 0);
    set(&mut empty, NEXT_COOKIE, 1);
    empty[LINKS..LINKS + 4].copy_from_slice(&2_u32.to_be_bytes());
    let mut root = value(&*view, &key(b'i', ROOT, b""));
    let mut volume = value(&*view, b"v");
    let mut next = number(&volume, NEXT_FILE);
    let (run, mut free, run_end) = longest(&*view);
    let disk = template.files.iter().find_map(|(.., extents)| extents.first());
    assert!(disk.is_none_or(|(_, value)| value[DISK..DISK + 4] == run[1..5]), "one disk");
    let mut above: Option<(u64, u64, Vec<u8>)> = None;
    let mut writes = Writes::new();
    for number in first..end {
        let in_upper = number / DIRECTORIES_MAX;
        if above.as_ref().is_none_or(|(of, ..)| *of != in_upper) {
            let name = format!("{in_upper:04}");
            let there = found(ROOT, &name);
            above = Some(match there {
                Some(file) => (in_upper, file, value(&*view, &key(b'i', file, b""))),
                None => {
                    let mut inode = empty.clone();
                    set(&mut inode, FILE, next);
                    enter(&mut writes, (ROOT, &mut root), &name, next);
                    next += 1;
                    (in_upper, next - 1, inode)
                }
            });
        }
        let (_, parent, inode) = above.as_mut().expect("set above");
        template.copy(&mut writes, (next, *parent), &mut free);
        enter(&mut writes, (*parent, inode), &format!("{number:08}"), next);
        next += 1 + template.files.len() as u64;
        if number % TOGETHER == TOGETHER - 1 || number == end - 1 {
            assert!(free < run_end, "the disk is full");
            set(&mut volume, NEXT_FILE, next);
            let length = [&1_u32.to_be_bytes()[..], &(run_end - free).to_be_bytes()].concat();
            writes.insert(run.clone(), Some(length));
            writes.insert(b"v".to_vec(), Some(volume.clone()));
            engine.commit_late(&writes, &owner).expect("committed");
            writes.clear();
        }
    }
    engine.sync().expect("durable");
}
