//! The journal: what was made here, as far as the server does not have it, which of the server's
//! objects were made here, and which of its names were taken away.
//!
//! It is a set of records, one for each object and each name taken, and each change of names is one
//! group of records that is written whole or not at all. So there is nothing to replay on this
//! machine, and an object that is removed before the server has it leaves nothing. The order in
//! which the server gets objects follows from the records: a directory before its entries, and
//! otherwise by number, which is the order in which they were made.
//!
//! Nothing here does I/O: [`Journal::take_changes`] returns the changes to write, in order.
//!
//! Invariants:
//! - no two objects have the same dentry, no two the same handle of the server, and no other name
//!   of a file has the dentry of either;
//! - no name of the server is taken twice, and what was moved here has a dentry of its own, too;
//! - a waiting object is in a directory of the server, or in one that the journal has, and so is
//!   another name of a file, which the journal or the server has;
//! - numbers are assigned once, even over a crash.

mod recover;
mod rehome;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};

use larder_vfs::{Handle, Validator};

use crate::doubt::{Doubt, Doubts};
use crate::linked::{Linked, Links};
use crate::met::Met;
use crate::object::{
    Altered, Body, Dentry, Dir, Given, Named, Object, ObjectNo, Stage, Taken, Waiting,
};
use crate::record::JournalState;
use crate::taken::TakenNames;

/// Numbers are reserved in blocks of this size.
const NUMBER_BLOCK: u64 = 1024;
/// The record of the head.
const JOURNAL: u64 = 0;
/// First bytes of handles of objects that were made here.
const HANDLE_MAGIC: &[u8; 8] = b"larder\0n";

/// A record's number, and its new content; `None`: it is removed.
pub(crate) type Change = (u64, Option<Vec<u8>>);

/// See the module.
#[derive(Debug)]
pub(crate) struct Journal {
    id: [u8; 16],
    next: u64,
    reserved: u64,
    objects: BTreeMap<ObjectNo, Object>,
    /// Waiting objects, by directory.
    waiting: HashMap<Dir, BTreeMap<OsString, ObjectNo>>,
    waiting_count: usize,
    /// How many of them are directories, where some are.
    subdirectories: HashMap<Dir, u32>,
    /// Objects that the server has: by its handle, by its inode number, by its last known dentry.
    by_handle: HashMap<Handle, ObjectNo>,
    by_fileid: HashMap<u64, ObjectNo>,
    by_dentry: HashMap<Dentry, ObjectNo>,
    taken: TakenNames,
    links: Links,
    /// Attributes that were set on objects that the server has.
    altered: BTreeMap<ObjectNo, Altered>,
    altered_by_handle: HashMap<Handle, ObjectNo>,
    doubts: Doubts,
    changes: Vec<Change>,
    left: Vec<Dentry>,
    met: Vec<Met>,
}

impl Journal {
    fn index(&mut self, no: ObjectNo, object: &Object) {
        match &object.stage {
            Stage::Waiting(waiting) => {
                if waiting.body == Body::Directory {
                    *self.subdirectories.entry(object.dentry.dir.clone()).or_default() += 1;
                }
                let names = self.waiting.entry(object.dentry.dir.clone()).or_default();
                let other = names.insert(object.dentry.name.clone(), no);
                assert_eq!(other, None, "two objects have one name");
                self.waiting_count += 1;
            }
            Stage::Named(named) => {
                self.by_handle.insert(named.handle.clone(), no);
                self.by_fileid.insert(named.fileid, no);
                self.by_dentry.insert(object.dentry.clone(), no);
            }
        }
    }

    fn unindex(&mut self, no: ObjectNo, object: &Object) {
        match &object.stage {
            Stage::Waiting(waiting) => {
                if waiting.body == Body::Directory {
                    let count = self.subdirectories.get_mut(&object.dentry.dir);
                    let count = count.expect("it is counted");
                    *count -= 1;
                    if *count == 0 {
                        self.subdirectories.remove(&object.dentry.dir);
                    }
                }
                let names = self.waiting.get_mut(&object.dentry.dir).expect("it is indexed");
                assert_eq!(names.remove(&object.dentry.name), Some(no), "it is indexed");
                if names.is_empty() {
                    self.waiting.remove(&object.dentry.dir);
                }
                self.waiting_count -= 1;
            }
            Stage::Named(named) => {
                self.by_handle.remove(&named.handle);
                if self.by_fileid.get(&named.fileid) == Some(&no) {
                    self.by_fileid.remove(&named.fileid);
                }
                if self.by_dentry.get(&object.dentry) == Some(&no) {
                    self.by_dentry.remove(&object.dentry);
                }
            }
        }
    }

    /// The records to write since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// The dentries of which something waited no more, or otherwise, since the last call: until the
    /// changes are on the disk, a crash brings back what waited there.
    pub(crate) fn take_left(&mut self) -> Vec<Dentry> {
        std::mem::take(&mut self.left)
    }

    fn put(&mut self, no: ObjectNo, object: Option<Object>) {
        if let Some(before) = self.objects.remove(&no) {
            self.unindex(no, &before);
            if let Stage::Waiting(_) = before.stage {
                self.left.push(before.dentry);
            }
        }
        self.changes.push((no.0, object.as_ref().map(Object::encode)));
        if let Some(object) = object {
            self.index(no, &object);
            self.objects.insert(no, object);
        }
    }

    /// How many changes wait, and how many records there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let others = self.taken.count() + self.links.count() + self.altered.len();
        (self.waiting_count + others, self.objects.len() + others)
    }

    /// Names of the server's that were taken away.
    pub(crate) fn taken(&self) -> &TakenNames {
        &self.taken
    }

    /// A name of the server's is taken away.
    pub(crate) fn take(&mut self, taken: Taken) -> ObjectNo {
        let no = self.next_number();
        self.put_taken(no, Some(taken));
        no
    }

    /// The object whose name was taken is somewhere else, or was removed, or the change no longer
    /// waits.
    pub(crate) fn put_taken(&mut self, no: ObjectNo, taken: Option<Taken>) {
        self.changes.push((no.0, taken.as_ref().map(Taken::encode)));
        if let Some(before) = self.taken.get(no) {
            self.left.push(before.origin.clone());
            self.left.extend(before.dentry.clone());
        }
        self.taken.put(no, taken);
    }

    /// Other names of files, which the server lacks.
    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// A file gets another name.
    pub(crate) fn link(&mut self, linked: Linked) -> ObjectNo {
        let no = self.next_number();
        self.put_link(no, Some(linked));
        no
    }

    /// Another name of a file is at another dentry, or was removed, or the server has it.
    pub(crate) fn put_link(&mut self, no: ObjectNo, linked: Option<Linked>) {
        self.changes.push((no.0, linked.as_ref().map(Linked::encode)));
        self.left.extend(self.links.get(no).map(|before| before.dentry.clone()));
        self.links.put(no, linked);
    }

    /// A waiting file loses its name: it gets the other one with this number.
    ///
    /// # Panics
    /// If that is not one of its names.
    pub(crate) fn take_link(&mut self, no: ObjectNo, link: ObjectNo) {
        let linked = self.links.get(link).expect("it is a name").clone();
        assert_eq!(linked.file, Dir::Made(no), "it is a name of this file");
        self.put_link(link, None);
        self.change_object(no, |object| object.dentry = linked.dentry);
    }

    /// Whether the object with this handle at the server has lost its last name here.
    pub(crate) fn is_gone(&self, handle: &Handle) -> bool {
        self.taken.has_none(handle) && self.links.count_of(&self.identity(handle)) == 0
    }

    /// Whose identity the object with this handle has, of the server or of ours.
    pub(crate) fn identity(&self, handle: &Handle) -> Dir {
        self.dir(handle)
    }

    /// Attributes that were set on the object with this handle at the server.
    pub(crate) fn altered(&self, handle: &Handle) -> Option<(ObjectNo, &Altered)> {
        let no = self.altered_by_handle.get(handle)?;
        Some((*no, &self.altered[no]))
    }

    /// The same by number.
    pub(crate) fn get_altered(&self, no: ObjectNo) -> Option<&Altered> {
        self.altered.get(&no)
    }

    /// Attributes of something of the server's were set.
    pub(crate) fn alter(&mut self, altered: Altered) -> ObjectNo {
        let known = self.altered_by_handle.get(&altered.handle).copied();
        let no = known.unwrap_or_else(|| self.next_number());
        self.put_altered(no, Some(altered));
        no
    }

    /// Other attributes were set, or the change no longer waits.
    pub(crate) fn put_altered(&mut self, no: ObjectNo, altered: Option<Altered>) {
        self.changes.push((no.0, altered.as_ref().map(Altered::encode)));
        if let Some(before) = self.altered.remove(&no) {
            self.altered_by_handle.remove(&before.handle);
        }
        if let Some(altered) = altered {
            self.altered_by_handle.insert(altered.handle.clone(), no);
            self.altered.insert(no, altered);
        }
    }

    /// Objects that the server may have changed for us.
    pub(crate) fn doubts(&self) -> &Doubts {
        &self.doubts
    }

    /// The server may have changed an object, under the number of what was known of that.
    pub(crate) fn doubt(&mut self, no: Option<ObjectNo>, doubt: Doubt) {
        let no = no.unwrap_or_else(|| self.next_number());
        self.put_doubt(no, Some(doubt));
    }

    /// More, or nothing any more, may have been changed.
    pub(crate) fn put_doubt(&mut self, no: ObjectNo, doubt: Option<Doubt>) {
        self.changes.push((no.0, doubt.as_ref().map(Doubt::encode)));
        self.doubts.put(no, doubt);
    }

    /// All that was set, also what the server has by now, if that is its version still.
    pub(crate) fn all_altered(&self) -> impl Iterator<Item = &Altered> {
        self.altered.values()
    }

    /// Changes of attributes that the server does not have, in the order in which they were made.
    pub(crate) fn altered_waiting(&self) -> impl Iterator<Item = ObjectNo> {
        self.altered.iter().filter(|(_, one)| !one.is_done).map(|(no, _)| *no)
    }

    /// The server's handle of the object that clients know by `handle`, if the server has it.
    pub(crate) fn server_handle<'a>(&'a self, handle: &'a Handle) -> Option<&'a Handle> {
        match self.number_in(handle) {
            Some(no) => self.named(no).map(|named| &named.handle),
            None => Some(handle),
        }
    }

    /// Whether the server has other names in a directory than there are.
    pub(crate) fn is_changed(&self, dir: &Dir) -> bool {
        self.waiting.contains_key(dir) || self.taken.is_in(dir) || self.links.count_in(dir) > 0
    }

    pub(crate) fn get(&self, no: ObjectNo) -> Option<&Object> {
        self.objects.get(&no)
    }

    /// The dentry of an object; `None` if it is no longer at its last known one.
    pub(crate) fn dentry_of(&self, no: ObjectNo) -> Option<&Dentry> {
        let Object { dentry, stage, .. } = self.objects.get(&no)?;
        let is_there = match stage {
            Stage::Waiting(_) => true,
            Stage::Named(_) => self.by_dentry.get(dentry) == Some(&no),
        };
        is_there.then_some(dentry)
    }

    /// The object, if it is waiting.
    pub(crate) fn waiting(&self, no: ObjectNo) -> Option<(&Dentry, &Waiting)> {
        match self.objects.get(&no)? {
            Object { dentry, stage: Stage::Waiting(waiting), .. } => Some((dentry, waiting)),
            Object { stage: Stage::Named(_), .. } => None,
        }
    }

    /// The object as the server has it, if it was made here.
    pub(crate) fn named(&self, no: ObjectNo) -> Option<&Named> {
        match &self.objects.get(&no)?.stage {
            Stage::Named(named) => Some(named),
            Stage::Waiting(_) => None,
        }
    }

    /// All objects, in the order in which they were made.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (ObjectNo, &Object)> {
        self.objects.iter().map(|(no, object)| (*no, object))
    }

    /// Waiting objects in a directory, by name.
    pub(crate) fn waiting_in(&self, dir: &Dir) -> impl Iterator<Item = (&OsStr, ObjectNo)> {
        let names = self.waiting.get(dir).into_iter().flatten();
        names.map(|(name, no)| (name.as_os_str(), *no))
    }

    /// How many changes of names wait in a directory.
    pub(crate) fn count_in(&self, dir: &Dir) -> usize {
        let waiting = self.waiting.get(dir).map_or(0, BTreeMap::len);
        waiting + self.taken.count_in(dir) + self.links.count_in(dir)
    }

    /// The directories in which objects wait, or other names of files do.
    pub(crate) fn dirs_with_waiting(&self) -> impl Iterator<Item = &Dir> {
        self.waiting.keys().chain(self.links.dirs())
    }

    /// How many directories wait in a directory.
    pub(crate) fn subdirectories(&self, dir: &Dir) -> u32 {
        self.subdirectories.get(dir).copied().unwrap_or(0)
    }

    /// The waiting object with this name.
    pub(crate) fn waiting_at(&self, dir: &Dir, name: &OsStr) -> Option<ObjectNo> {
        self.waiting.get(dir)?.get(name).copied()
    }

    /// The object made here that has this handle at the server.
    pub(crate) fn of_server(&self, handle: &Handle) -> Option<ObjectNo> {
        self.by_handle.get(handle).copied()
    }

    /// The object made here that has this inode number at the server.
    pub(crate) fn of_fileid(&self, fileid: u64) -> Option<ObjectNo> {
        self.by_fileid.get(&fileid).copied()
    }

    /// The handle by which clients of this module know an object.
    pub(crate) fn handle(&self, no: ObjectNo) -> Handle {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(HANDLE_MAGIC);
        bytes[8..24].copy_from_slice(&self.id);
        bytes[24..].copy_from_slice(&no.0.to_be_bytes());
        Handle::new(&bytes)
    }

    /// The same of an object of the server's or of ours.
    pub(crate) fn client_handle(&self, object: &Dir) -> Handle {
        match object {
            Dir::Server(handle) => handle.clone(),
            Dir::Made(no) => self.handle(*no),
        }
    }

    /// The server's handle of an object, unless that waits.
    pub(crate) fn handle_at_server(&self, object: &Dir) -> Option<Handle> {
        match object {
            Dir::Server(handle) => Some(handle.clone()),
            Dir::Made(no) => self.named(*no).map(|named| named.handle.clone()),
        }
    }

    /// How the temporary names that this journal gives at the server begin.
    pub(crate) fn own_names_begin(&self) -> String {
        let id: String = self.id[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        format!(".larder-{id}-")
    }

    /// Whether a handle is one of [`Journal::handle`], and of which object; that may be gone.
    pub(crate) fn number_in(&self, handle: &Handle) -> Option<ObjectNo> {
        let rest = handle.as_bytes().strip_prefix(HANDLE_MAGIC)?.strip_prefix(&self.id)?;
        Some(ObjectNo(u64::from_be_bytes(rest.try_into().ok()?)))
    }

    /// The directory that a handle names, of the server or of ours.
    pub(crate) fn dir(&self, handle: &Handle) -> Dir {
        let no = self.number_in(handle).or_else(|| self.of_server(handle));
        no.map_or_else(|| Dir::Server(handle.clone()), Dir::Made)
    }

    /// Whether `inner` is `outer`, or below it with only waiting directories in between.
    pub(crate) fn is_within(&self, inner: &Dir, outer: ObjectNo) -> bool {
        let mut at = inner.clone();
        while let Dir::Made(no) = at {
            if no == outer {
                return true;
            }
            let Some((dentry, _)) = self.waiting(no) else { return false };
            at = dentry.dir.clone();
        }
        false
    }

    /// Makes an object.
    ///
    /// # Panics
    /// If something waits to have that name.
    pub(crate) fn make(&mut self, dentry: Dentry, waiting: Waiting) -> ObjectNo {
        let no = self.next_number();
        self.put(no, Some(Object { dentry, stage: Stage::Waiting(waiting), given: None }));
        no
    }

    fn next_number(&mut self) -> ObjectNo {
        let no = ObjectNo(self.next);
        self.next += 1;
        if self.next > self.reserved {
            self.reserved = self.next + NUMBER_BLOCK;
            let head = JournalState { id: self.id, next: self.reserved };
            self.changes.push((JOURNAL, Some(head.encode())));
        }
        no
    }

    /// Changes a waiting object.
    pub(crate) fn change(&mut self, no: ObjectNo, waiting: Waiting) {
        assert!(self.waiting(no).is_some(), "it waits");
        self.change_object(no, |object| object.stage = Stage::Waiting(waiting));
    }

    /// A caller has set a modification time over the bytes of a waiting object.
    pub(crate) fn give(&mut self, no: ObjectNo, given: Given) {
        self.change_object(no, |object| object.given = Some(given));
    }

    fn change_object(&mut self, no: ObjectNo, change: impl FnOnce(&mut Object)) {
        let mut object = self.objects[&no].clone();
        change(&mut object);
        self.put(no, Some(object));
    }

    /// Forgets an object that was removed, with all its names.
    ///
    /// # Panics
    /// If a waiting object is in it.
    pub(crate) fn forget(&mut self, no: ObjectNo) {
        assert!(!self.waiting.contains_key(&Dir::Made(no)), "there is something in it");
        let links: Vec<_> = self.links.of(&Dir::Made(no)).map(|(link, _)| link).collect();
        links.into_iter().for_each(|link| self.put_link(link, None));
        self.put(no, None);
    }

    /// Gives a waiting object another name, replacing a waiting object that had that.
    ///
    /// # Panics
    /// If that is a directory with entries.
    pub(crate) fn rename(&mut self, no: ObjectNo, to: Dentry) {
        assert!(self.waiting(no).is_some(), "it waits");
        if let Some(replaced) = self.waiting_at(&to.dir, &to.name).filter(|other| *other != no) {
            self.forget(replaced);
        }
        self.change_object(no, |object| object.dentry = to);
    }

    /// The server has an object now, under this name. Whatever had its handle or its number before
    /// no longer has it.
    pub(crate) fn name(&mut self, no: ObjectNo, name: OsString, named: Named) {
        assert!(self.waiting(no).is_some(), "it waits");
        let same = [self.of_server(&named.handle), self.of_fileid(named.fileid)];
        for other in same.into_iter().flatten() {
            self.gone(other);
        }
        self.change_object(no, |object| {
            object.dentry.name = name;
            object.stage = Stage::Named(named);
        });
    }

    /// The server has renamed an object. Nothing happens if that is not known here. Returns an
    /// object that was made here and may be gone, as by [`Journal::removed`].
    pub(crate) fn renamed(&mut self, from: &Dentry, to: &Dentry) -> Option<ObjectNo> {
        if from == to {
            return None;
        }
        let lost = self.removed(to);
        if let Some(no) = self.by_dentry.get(from).copied() {
            self.change_object(no, |object| object.dentry = to.clone());
        }
        lost
    }

    /// The server has removed a name. Returns the object that was made here and known by it, if it
    /// is not known to have another one: it is gone, unless another client has moved it.
    pub(crate) fn removed(&mut self, dentry: &Dentry) -> Option<ObjectNo> {
        let no = self.by_dentry.remove(dentry)?;
        let has_others = self.named(no).is_none_or(|named| named.is_linked)
            || self.links.count_of(&Dir::Made(no)) > 0;
        (!has_others).then_some(no)
    }

    /// An object that was made here is gone at the server. Nothing happens as long as something
    /// waits in it.
    pub(crate) fn gone(&mut self, no: ObjectNo) {
        if self.named(no).is_some() && !self.is_changed(&Dir::Made(no)) {
            self.put(no, None);
        }
    }

    /// The object at the server has a new version because of a change of ours: it is shown as
    /// before, if its bytes are the same.
    pub(crate) fn follow_version(&mut self, no: ObjectNo, now: Validator) {
        let Some(Named { shown, .. }) = self.named(no) else { return };
        let then = shown.server;
        if (then.size, then.mtime) != (now.size, now.mtime) || then == now {
            return;
        }
        self.change_object(no, |object| {
            if let Stage::Named(named) = &mut object.stage {
                named.shown.server = now;
            }
        });
    }

    /// The server has given an object another name.
    pub(crate) fn linked(&mut self, no: ObjectNo) {
        if self.named(no).is_none() {
            return;
        }
        self.change_object(no, |object| {
            if let Stage::Named(named) = &mut object.stage {
                named.is_linked = true;
            }
        });
    }

    /// Another client's change was met, by the changes that are written next.
    pub(crate) fn meet(&mut self, met: Met) {
        self.met.push(met);
    }

    /// What was met since the last call.
    pub(crate) fn take_met(&mut self) -> Vec<Met> {
        std::mem::take(&mut self.met)
    }
}
