//! Checks inodes: each is under its number, and everything that belongs to a file has one.

use std::collections::BTreeMap;

use larder_wire::meta::Status;
use larder_wire::meta::words::{FileId, Kind};

use super::{Check, FaultKind, directory, number, shown};
use crate::archive::file;
use crate::inode;
use crate::store::key;
use crate::store::records::{Entry, Extent, Inode, Listed, Xattr};

/// The records that belong to a file.
#[derive(Clone, Copy, Debug, Default)]
struct Belongings {
    /// It has names in it.
    is_directory: bool,
    /// Where its last extent ends.
    end: u64,
}

impl Check<'_> {
    /// Reads all inodes, and makes one for records that belong to a file without one.
    pub(super) fn load_inodes(&mut self) -> Result<(), Status> {
        for (key, mut inode) in self.all::<Inode>(b'i')? {
            let file = FileId(number(&key)?);
            let said = inode.file();
            inode.attributes.file = file;
            self.inodes.insert(file, inode);
            if said != file {
                let what = format!("{} says that it is {}", shown(file), shown(said));
                self.mend(FaultKind::Number, Some(file), what, "it is told its number".into());
                self.change(file);
            }
        }
        for (file, belongings) in self.belongings()? {
            self.need_inode(file, belongings);
        }
        let last = self.inodes.last_key_value().map_or(0, |(last, _)| last.0);
        // What the archive has of a file must not count as a later one's.
        let next = last.max(self.archived()?).saturating_add(1);
        if next > self.volume.next_file {
            let what = format!("{} was never given", shown(FileId(next - 1)));
            let remedy = format!("the next one is {next}");
            self.mend(FaultKind::Number, Some(FileId(next - 1)), what, remedy);
            self.volume.next_file = next;
            self.write_volume();
        }
        Ok(())
    }

    /// Mends what is on record of the archive: files that do not exist need nothing there. Returns
    /// the highest number of a file that is on record.
    fn archived(&mut self) -> Result<u64, Status> {
        let (wanted, unneeded) = file::all(&self.txn)?;
        let files = wanted.iter().map(|(file, _)| *file);
        let gone: Vec<FileId> = files.filter(|file| !self.inodes.contains_key(file)).collect();
        for file in &gone {
            let what = format!("{} is to be in the archive, and is not there", shown(*file));
            self.mend(FaultKind::Inode, Some(*file), what, "nothing of it is kept there".into());
            file::OnRecord::note(&mut self.txn, *file, file::Event::Gone)?;
        }
        let files =
            wanted.iter().map(|(file, _)| file).chain(unneeded.iter().map(|(file, _)| file));
        Ok(files.map(|file| file.0).max().unwrap_or(0))
    }

    /// The records of each file besides its inode. The root must exist.
    fn belongings(&self) -> Result<BTreeMap<FileId, Belongings>, Status> {
        let mut all: BTreeMap<FileId, Belongings> = BTreeMap::new();
        all.entry(FileId::ROOT).or_default().is_directory = true;
        for (key, _) in self.all::<Entry>(b'e')? {
            all.entry(directory(&key)?).or_default().is_directory = true;
        }
        for (key, _) in self.all::<Listed>(b'l')? {
            all.entry(directory(&key)?).or_default().is_directory = true;
        }
        for (key, _) in self.all::<Extent>(b'x')? {
            // The number of a file is where that of a directory is.
            let of = all.entry(directory(&key)?).or_default();
            of.end = of.end.max(number(&key)?);
        }
        for (key, _) in self.all::<Xattr>(b'a')? {
            all.entry(directory(&key)?).or_default();
        }
        Ok(all)
    }

    fn need_inode(&mut self, file: FileId, belongings: Belongings) {
        let there = self.inodes.get(&file);
        if there.is_some_and(|inode| inode.is_directory() || file != FileId::ROOT) {
            return;
        }
        let Belongings { is_directory, end } = belongings;
        let (kind, remedy) = match is_directory {
            true => (Kind::Directory, "a directory is made of it".to_owned()),
            false => (Kind::File, format!("a file of {end} bytes is made of it")),
        };
        let what = match there {
            Some(_) => "the root is no directory".to_owned(),
            None => format!("{} has no inode, and something belongs to it", shown(file)),
        };
        self.mend(FaultKind::Inode, Some(file), what, remedy);
        let mode = if file == FileId::ROOT { 0o755 } else { 0o700 };
        let inode = self.new_inode(file, kind, mode);
        self.add_inode(inode);
        if !is_directory && let Some(inode) = self.change(file) {
            inode.attributes.size = end;
        }
    }

    /// An inode of the superuser's. Counts are set when all is counted.
    pub(super) fn new_inode(&self, file: FileId, kind: Kind, mode: u32) -> Inode {
        inode::empty(file, FileId::ROOT, kind, mode, self.now)
    }

    pub(super) fn add_inode(&mut self, inode: Inode) {
        let file = inode.file();
        self.inodes.insert(file, inode);
        self.changed.insert(file);
        self.made.insert(file);
    }

    /// A number that no file ever had.
    pub(super) fn next_number(&mut self) -> FileId {
        let file = FileId(self.volume.next_file);
        self.volume.next_file += 1;
        self.write_volume();
        file
    }

    fn write_volume(&mut self) {
        self.txn.put(key::volume(), &self.volume);
    }
}
