//! Checks inodes: each is under its number, and everything that belongs to a file has one.

use std::collections::BTreeMap;

use larder_wire::meta::Status;
use larder_wire::meta::words::{FileId, Kind};

use super::{Check, FaultKind, directory, number, shown};
use crate::archive::file;
use crate::inode;
use crate::store::key;
use crate::store::records::{Archived, Entry, Extent, Inode, Listed, Unneeded, Xattr};

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
        let mut last = FileId(0);
        for one in self.all::<Inode>(b'i') {
            let (key, mut inode) = one?;
            last = FileId(number(&key)?);
            let said = inode.file();
            inode.attributes.file = last;
            self.note_inode(&inode);
            if said != last {
                let what = format!("{} says that it is {}", shown(last), shown(said));
                self.mend(FaultKind::Number, Some(last), what, "it is told its number".into());
                self.changed.insert(last, inode);
            }
        }
        for (file, belongings) in self.belongings()? {
            self.need_inode(file, belongings)?;
            last = last.max(file);
        }
        let last = last.0;
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
        let (mut last, mut gone) = (0, Vec::new());
        for one in self.all::<Archived>(b'z') {
            let file = FileId(number(&one?.0)?);
            last = last.max(file.0);
            if !self.files.contains(file) {
                gone.push(file);
            }
        }
        for one in self.all::<Unneeded>(b'q') {
            last = last.max(directory(&one?.0)?.0);
        }
        for file in gone {
            let what = format!("{} is to be in the archive, and is not there", shown(file));
            self.mend(FaultKind::Inode, Some(file), what, "nothing of it is kept there".into());
            file::OnRecord::note(&mut self.txn, file, file::Event::Gone)?;
        }
        Ok(last)
    }

    /// The records besides an inode of files that lack one, or whose inode cannot be right.
    fn belongings(&self) -> Result<BTreeMap<FileId, Belongings>, Status> {
        let mut lacking: BTreeMap<FileId, Belongings> = BTreeMap::new();
        // The root must exist.
        if !self.is_directory(FileId::ROOT) {
            lacking.entry(FileId::ROOT).or_default().is_directory = true;
        }
        // The number of a file is where that of a directory is.
        let lacks = |key: &[u8]| -> Result<Option<FileId>, Status> {
            Ok(Some(directory(key)?).filter(|file| !self.files.contains(*file)))
        };
        let names = self.all::<Entry>(b'e').map(|one| one.map(|(key, _)| key));
        let listed = self.all::<Listed>(b'l').map(|one| one.map(|(key, _)| key));
        for key in names.chain(listed) {
            if let Some(dir) = lacks(&key?)? {
                lacking.entry(dir).or_default().is_directory = true;
            }
        }
        for one in self.all::<Extent>(b'x') {
            let (key, _) = one?;
            if let Some(file) = lacks(&key)? {
                let of = lacking.entry(file).or_default();
                of.end = of.end.max(number(&key)?);
            }
        }
        for one in self.all::<Xattr>(b'a') {
            if let Some(file) = lacks(&one?.0)? {
                lacking.entry(file).or_default();
            }
        }
        Ok(lacking)
    }

    fn need_inode(&mut self, file: FileId, belongings: Belongings) -> Result<(), Status> {
        let Belongings { is_directory, end } = belongings;
        let (kind, remedy) = match is_directory {
            true => (Kind::Directory, "a directory is made of it".to_owned()),
            false => (Kind::File, format!("a file of {end} bytes is made of it")),
        };
        let what = match self.files.contains(file) {
            true => "the root is no directory".to_owned(),
            false => format!("{} has no inode, and something belongs to it", shown(file)),
        };
        self.mend(FaultKind::Inode, Some(file), what, remedy);
        let mode = if file == FileId::ROOT { 0o755 } else { 0o700 };
        let inode = self.new_inode(file, kind, mode);
        self.add_inode(inode);
        if !is_directory && let Some(inode) = self.change(file)? {
            inode.attributes.size = end;
        }
        Ok(())
    }

    /// An inode of the superuser's. Counts are set when all is counted.
    pub(super) fn new_inode(&self, file: FileId, kind: Kind, mode: u32) -> Inode {
        inode::empty(file, FileId::ROOT, kind, mode, self.now)
    }

    pub(super) fn add_inode(&mut self, inode: Inode) {
        let file = inode.file();
        self.note_inode(&inode);
        self.changed.insert(file, inode);
        self.made.insert(file);
    }

    fn note_inode(&mut self, inode: &Inode) {
        self.files.insert(inode.file());
        if inode.is_directory() {
            self.parents.insert(inode.file(), inode.parent);
        }
        if inode.whereabouts.found_under().is_some() {
            self.retained.insert(inode.file());
        }
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
