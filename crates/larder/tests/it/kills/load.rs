//! Files that are written, synced, truncated, renamed and removed by one process in a directory of
//! its own, and their permitted states.
//!
//! Each 16 bytes of a file identify their origin: the worker, the file, the version and the block.
//! Only what was acknowledged may be visible; of a call that was not answered, any part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;
/// Largest file, in blocks.
const BLOCKS_MAX: usize = 12;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A generator that is the same everywhere (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// The possible contents of a file.
#[derive(Clone, Debug)]
struct Content {
    /// Its size, in blocks.
    sizes: BTreeSet<usize>,
    /// The versions of each block; 0 is zeros.
    blocks: Vec<BTreeSet<u32>>,
}

impl Content {
    fn of(blocks: Vec<u32>) -> Content {
        let sizes = BTreeSet::from([blocks.len()]);
        Content { sizes, blocks: blocks.into_iter().map(|one| BTreeSet::from([one])).collect() }
    }

    /// Its content, if it is fully known.
    fn known(&self) -> Option<Vec<u32>> {
        let size = self.sizes.first().filter(|_| self.sizes.len() == 1)?;
        let blocks = self.blocks.iter().take(*size);
        blocks.map(|one| one.first().copied().filter(|_| one.len() == 1)).collect()
    }

    /// A change to this content is in progress.
    fn begin(&mut self, next: &[u32]) {
        let before = self.sizes.last().copied().unwrap_or(0);
        self.sizes.extend(before.min(next.len())..=before.max(next.len()));
        self.blocks.resize(self.blocks.len().max(next.len()), BTreeSet::from([0]));
        for (block, versions) in self.blocks.iter_mut().enumerate() {
            match next.get(block) {
                Some(version) if versions.contains(version) && versions.len() == 1 => {}
                Some(version) => versions.extend([*version, 0]),
                None => drop(versions.insert(0)),
            }
        }
    }
}

/// A process that works in a directory.
pub(crate) struct Worker {
    number: u32,
    dir: PathBuf,
    random: Random,
    next_version: u32,
    next_file: u32,
    files: BTreeMap<u32, Content>,
    /// Which file each name may stand for.
    names: BTreeMap<&'static str, BTreeSet<Option<u32>>>,
    /// Calls that failed.
    pub(crate) errors: Vec<String>,
}

impl Worker {
    pub(crate) fn new(number: u32, dir: PathBuf, seed: u64) -> Worker {
        let names = NAMES.map(|name| (name, BTreeSet::from([None]))).into();
        let (files, errors, random) = (BTreeMap::new(), Vec::new(), Random(seed));
        Worker { number, dir, random, next_version: 1, next_file: 1, files, names, errors }
    }

    /// Takes one step. Returns whether more are possible: not when the mount is dead.
    pub(crate) fn step(&mut self) -> bool {
        let name = NAMES[self.random.below(NAMES.len())];
        let Some(there) = self.known(name) else { return true };
        let done = match (there, self.random.below(8)) {
            (None, _) => self.make(name),
            (Some(file), 0) => self.remove(name, file),
            (Some(file), 1 | 2) => self.rename(name, file),
            (Some(file), 3) => self.cut(name, file),
            (Some(file), 4) => self.append(name, file),
            (Some(file), 5) => self.replace(name, file),
            (Some(file), _) => self.overwrite(name, file),
        };
        if let Err(error) = &done {
            self.errors.push(error.to_string());
        }
        let is_dead = |error: &io::Error| {
            matches!(
                error.raw_os_error(),
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENOENT | libc::EIO | libc::ENODEV)
            )
        };
        !done.is_err_and(|error| is_dead(&error))
    }

    /// What a name stands for, if that is certain and its content is fully known.
    fn known(&self, name: &str) -> Option<Option<u32>> {
        let may = &self.names[name];
        let one = may.first().filter(|_| may.len() == 1)?;
        match one {
            Some(file) => self.files[file].known().map(|_| Some(*file)),
            None => Some(None),
        }
    }

    fn version(&mut self) -> u32 {
        self.next_version += 1;
        self.next_version
    }

    /// Writes blocks of a file that are not as they are to be.
    fn write(&self, open: &File, file: u32, before: &[u32], next: &[u32]) -> io::Result<()> {
        for (block, version) in next.iter().enumerate() {
            if *version != 0 && before.get(block) != Some(version) {
                let unit = unit(self.number, file, *version, block);
                open.write_all_at(&unit.repeat(BLOCK / unit.len()), (block * BLOCK) as u64)?;
            }
        }
        Ok(())
    }

    /// Gives a file its new content, in one of several ways, durably; `is_new`: it is empty before.
    fn become_(
        &mut self,
        name: &str,
        file: u32,
        next: Vec<u32>,
        is_new: bool,
        way: impl FnOnce(&Worker, &Path, &[u32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let content = self.files.get_mut(&file).unwrap();
        let before = content.known().unwrap();
        if is_new {
            content.begin(&[]);
        }
        content.begin(&next);
        way(self, &self.dir.join(name), &before)?;
        self.files.insert(file, Content::of(next));
        Ok(())
    }

    fn make(&mut self, name: &'static str) -> io::Result<()> {
        let file = self.next_file;
        self.next_file += 1;
        let version = self.version();
        let next = vec![version; 1 + self.random.below(BLOCKS_MAX)];
        self.files.insert(file, Content::of(Vec::new()));
        self.names.get_mut(name).unwrap().insert(Some(file));
        let syncs = self.random.below(2) == 0;
        self.become_(name, file, next.clone(), true, |worker, path, _| {
            let open = OpenOptions::new().write(true).create_new(true).open(path)?;
            worker.write(&open, file, &[], &next)?;
            finish(open, path, syncs)
        })?;
        self.names.insert(name, BTreeSet::from([Some(file)]));
        Ok(())
    }

    fn change(&mut self, name: &str, file: u32, next: Vec<u32>) -> io::Result<()> {
        let syncs = self.random.below(2) == 0;
        self.become_(name, file, next.clone(), false, |worker, path, before| {
            let open = OpenOptions::new().write(true).open(path)?;
            worker.write(&open, file, before, &next)?;
            finish(open, path, syncs)
        })
    }

    fn overwrite(&mut self, name: &str, file: u32) -> io::Result<()> {
        let version = self.version();
        let mut next = self.files[&file].known().unwrap();
        if !next.is_empty() {
            let start = self.random.below(next.len());
            let end = start + 1 + self.random.below(next.len() - start);
            next[start..end].fill(version);
        }
        self.change(name, file, next)
    }

    fn append(&mut self, name: &str, file: u32) -> io::Result<()> {
        let version = self.version();
        let mut next = self.files[&file].known().unwrap();
        if next.len() < BLOCKS_MAX {
            // Sometimes after a hole.
            let hole = self.random.below(BLOCKS_MAX - next.len());
            next.resize(next.len() + hole, 0);
            next.push(version);
        }
        self.change(name, file, next)
    }

    fn cut(&mut self, name: &str, file: u32) -> io::Result<()> {
        let mut next = self.files[&file].known().unwrap();
        next.truncate(self.random.below(next.len() + 1));
        let size = (next.len() * BLOCK) as u64;
        self.become_(name, file, next, false, |_, path, _| {
            let open = OpenOptions::new().write(true).open(path)?;
            open.set_len(size)?;
            finish(open, path, true)
        })
    }

    /// Truncated to nothing and rewritten in one open.
    fn replace(&mut self, name: &str, file: u32) -> io::Result<()> {
        let version = self.version();
        let next = vec![version; self.random.below(BLOCKS_MAX)];
        self.become_(name, file, next.clone(), true, |worker, path, _| {
            let open = File::create(path)?;
            worker.write(&open, file, &[], &next)?;
            finish(open, path, true)
        })
    }

    fn remove(&mut self, name: &'static str, file: u32) -> io::Result<()> {
        self.names.get_mut(name).unwrap().insert(None);
        fs::remove_file(self.dir.join(name))?;
        self.names.insert(name, BTreeSet::from([None]));
        self.files.remove(&file);
        Ok(())
    }

    fn rename(&mut self, from: &'static str, file: u32) -> io::Result<()> {
        let to = NAMES[self.random.below(NAMES.len())];
        let Some(there) = self.known(to).filter(|_| to != from) else { return Ok(()) };
        self.names.get_mut(from).unwrap().insert(None);
        self.names.get_mut(to).unwrap().insert(Some(file));
        fs::rename(self.dir.join(from), self.dir.join(to))?;
        self.names.insert(from, BTreeSet::from([None]));
        self.names.insert(to, BTreeSet::from([Some(file)]));
        there.map(|replaced| self.files.remove(&replaced));
        Ok(())
    }

    /// Checks that everything is in a permitted state, here and for others, and takes that state as
    /// certain.
    pub(crate) fn verify(&mut self, elsewhere: &Path) -> Result<(), String> {
        let mut certain = BTreeMap::new();
        for name in NAMES {
            let [here, there] = [&self.dir, elsewhere].map(|dir| read(&dir.join(name)));
            let (here, there) = (here?, there?);
            if here != there {
                let sizes = [&here, &there].map(|bytes| bytes.as_ref().map(Vec::len));
                return Err(format!("{name} is not the same elsewhere: {sizes:?}"));
            }
            let file = match &here {
                None => None,
                Some(bytes) => self.identify(name, bytes)?,
            };
            if !self.names[name].contains(&file) {
                return Err(format!("{name} is {file:?}, and may be {:?}", self.names[name]));
            }
            if let (Some(file), Some(bytes)) = (file, here) {
                let blocks =
                    self.judge(file, &bytes).map_err(|fault| format!("{name}: {fault}"))?;
                if certain.insert(file, Content::of(blocks)).is_some() {
                    return Err(format!("{name} is file {file}, which has another name"));
                }
            }
            self.names.insert(name, BTreeSet::from([file]));
        }
        self.files = certain;
        Ok(())
    }

    /// Which file it is: according to its bytes, or the only one that it can be.
    fn identify(&self, name: &str, bytes: &[u8]) -> Result<Option<u32>, String> {
        let mut units = bytes.chunks_exact(16).filter(|unit| unit.iter().any(|byte| *byte != 0));
        if let Some(unit) = units.next() {
            let word = |at: usize| u32::from_le_bytes(unit[at..at + 4].try_into().unwrap());
            return match word(0) == self.number {
                true => Ok(Some(word(4))),
                false => Err(format!("{name} shows bytes of somebody else: {unit:?}")),
            };
        }
        let can_be = self.names[name].iter().flatten().find(|file| {
            self.files.get(file).is_some_and(|content| self.judge_zeros(content, bytes.len()))
        });
        can_be.map(|file| Some(*file)).ok_or(format!("{name} holds zeros: {}", bytes.len()))
    }

    fn judge_zeros(&self, content: &Content, len: usize) -> bool {
        let size = len / BLOCK;
        content.sizes.contains(&size)
            && content.blocks.iter().take(size).all(|one| one.contains(&0))
    }

    /// The versions of a file's blocks, if all of them may be there.
    fn judge(&self, file: u32, bytes: &[u8]) -> Result<Vec<u32>, String> {
        let content = self.files.get(&file).ok_or(format!("file {file} was removed"))?;
        let size = bytes.len() / BLOCK;
        if !bytes.len().is_multiple_of(BLOCK) || !content.sizes.contains(&size) {
            return Err(format!(
                "{} bytes of file {file}, and may have {:?} blocks",
                bytes.len(),
                content.sizes
            ));
        }
        let mut found = Vec::new();
        for (block, (bytes, may)) in bytes.chunks(BLOCK).zip(&content.blocks).enumerate() {
            let is = |version: u32| {
                let unit = unit(self.number, file, version, block);
                let unit = if version == 0 { [0; 16] } else { unit };
                bytes.chunks(16).all(|one| one == unit)
            };
            let version = may.iter().copied().find(|version| is(*version));
            found.push(version.ok_or_else(|| {
                format!(
                    "block {block} of file {file} may be {may:?}, and begins with {:?}",
                    &bytes[..16]
                )
            })?);
        }
        Ok(found)
    }
}

fn unit(worker: u32, file: u32, version: u32, block: usize) -> [u8; 16] {
    let mut unit = [0; 16];
    for (at, word) in [worker, file, version, block as u32].into_iter().enumerate() {
        unit[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
    }
    unit
}

/// Makes durable what was written: by fsync(2) before close(2), or by that of another open.
fn finish(open: File, path: &Path, syncs: bool) -> io::Result<()> {
    if syncs {
        return open.sync_all();
    }
    drop(open);
    OpenOptions::new().write(true).open(path)?.sync_all()
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Each forbidden state is reported.
#[test]
fn what_may_not_be_seen_after_a_kill_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let first = || {
        for name in NAMES {
            drop(fs::remove_file(path(name)));
        }
        let mut worker = Worker::new(7, dir.path().to_owned(), 1);
        worker.make("a").unwrap();
        worker.make("b").unwrap();
        worker.verify(dir.path()).unwrap();
        worker
    };
    let told = |spoil: &dyn Fn(), word: &str| {
        let mut worker = first();
        spoil();
        let fault = worker.verify(dir.path()).unwrap_err();
        assert!(fault.contains(word), "{fault}");
    };
    let write = |name: &str, bytes: &[u8]| {
        OpenOptions::new().write(true).open(path(name)).unwrap().write_all_at(bytes, 0).unwrap();
    };
    told(&|| fs::remove_file(path("a")).unwrap(), "may be {Some(1)}");
    told(&|| fs::write(path("c"), unit(7, 1, 1, 0).repeat(256)).unwrap(), "may be {None}");
    told(&|| drop(fs::copy(path("b"), path("a"))), "may be {Some(1)}");
    told(&|| write("a", &unit(8, 1, 2, 0)), "somebody else");
    told(&|| write("a", &[0; BLOCK]), "begins with [0");
    told(&|| write("a", &unit(7, 1, 1, 0).repeat(256)), "begins with [7");
    told(
        &|| File::options().append(true).open(path("a")).unwrap().set_len(5000).unwrap(),
        "5000 bytes",
    );
    // Some part of an unanswered call may be visible, and nothing else.
    let mut worker = first();
    let next = vec![9; 1];
    let lost = worker.become_("a", 1, next.clone(), false, |_, _, _| Err(io::Error::other("lost")));
    assert!(lost.is_err() && worker.known("a").is_none());
    write("a", &unit(7, 1, 9, 0).repeat(256));
    worker.verify(dir.path()).unwrap();
    assert!(worker.known("a").is_some());
}
