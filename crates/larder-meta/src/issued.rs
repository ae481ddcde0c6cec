//! Which capabilities are valid, and what they cover.
//!
//! In memory only: those of an earlier life of the server are void
//! ([`crate::disks::Disks::void_all`]).

use std::collections::HashMap;
use std::time::Instant;

use larder_wire::meta::words::{DiskId, FileId, Mode, SessionId};

use crate::disks::CapabilityName;
use crate::store::txn::Revoked;

/// A file's list is searched for expired capabilities when it has grown to this many times what was
/// left last.
const GROWTH: usize = 2;
/// Shortest list that is searched for expired capabilities.
const LENGTH_MIN: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Issued {
    session: SessionId,
    disk: DiskId,
    mode: Mode,
    name: CapabilityName,
    until: Instant,
}

/// What a capability is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    pub(crate) session: SessionId,
    pub(crate) file: FileId,
    pub(crate) mode: Mode,
}

/// A capability that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The session, and the file.
    pub(crate) on: (SessionId, FileId),
    /// The disk, and the capability's name there.
    pub(crate) capability: (DiskId, CapabilityName),
}

#[derive(Debug, Default)]
struct List {
    issued: Vec<Issued>,
    /// The length at which the list is searched for expired ones.
    limit: usize,
}

/// All capabilities that may be good.
#[derive(Debug, Default)]
pub(crate) struct Table(HashMap<FileId, List>);

impl Table {
    /// A capability was given out, until some time after `until`.
    pub(crate) fn add(
        &mut self,
        Purpose { session, file, mode }: Purpose,
        capability: (DiskId, CapabilityName),
        until: Instant,
        now: Instant,
    ) {
        let list = self.0.entry(file).or_default();
        let (disk, name) = capability;
        list.issued.push(Issued { session, disk, mode, name, until });
        if list.issued.len() > list.limit.max(LENGTH_MIN) {
            list.issued.retain(|issued| issued.until > now);
            list.limit = list.issued.len() * GROWTH;
        }
    }

    /// Capabilities end: these have to be revoked.
    pub(crate) fn take(&mut self, revoked: Revoked) -> Vec<Taken> {
        match revoked {
            Revoked::File(file) => self.take_of(file, |_| true),
            Revoked::Session(session, file) => {
                self.take_of(file, |issued| issued.session == session)
            }
            Revoked::All(session) => {
                let files: Vec<FileId> = self.0.keys().copied().collect();
                let of = |file| self.take_of(file, |issued| issued.session == session);
                files.into_iter().flat_map(of).collect()
            }
        }
    }

    /// Ends those under which a disk may be written for a file.
    pub(crate) fn take_writers(&mut self, file: FileId, disk: DiskId) -> Vec<Taken> {
        self.take_of(file, |issued| issued.disk == disk && issued.mode.writes())
    }

    /// All on a disk end.
    pub(crate) fn take_on(&mut self, disk: DiskId) -> Vec<Taken> {
        let files: Vec<FileId> = self.0.keys().copied().collect();
        let of = |file| self.take_of(file, |issued| issued.disk == disk);
        files.into_iter().flat_map(of).collect()
    }

    /// How many capabilities a session has on a file.
    pub(crate) fn count(&self, session: SessionId, file: FileId) -> usize {
        let list = self.0.get(&file).into_iter().flat_map(|list| &list.issued);
        list.filter(|issued| issued.session == session).count()
    }

    fn take_of(&mut self, file: FileId, is_meant: impl Fn(&Issued) -> bool) -> Vec<Taken> {
        let Some(list) = self.0.get_mut(&file) else { return Vec::new() };
        let gone: Vec<Issued> = list.issued.extract_if(.., |issued| is_meant(issued)).collect();
        if list.issued.is_empty() {
            self.0.remove(&file);
        }
        let taken = |issued: Issued| Taken {
            on: (issued.session, file),
            capability: (issued.disk, issued.name),
        };
        gone.into_iter().map(taken).collect()
    }

    /// Forgets expired ones.
    pub(crate) fn expire(&mut self, now: Instant) {
        for list in self.0.values_mut() {
            list.issued.retain(|issued| issued.until > now);
        }
        self.0.retain(|_, list| !list.issued.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_wire::capability::{CapabilityId, GroupId};

    use super::*;

    fn name(number: u32) -> CapabilityName {
        CapabilityName { group: GroupId(1), id: CapabilityId(number) }
    }

    #[test]
    fn what_ends_is_what_was_meant() {
        let (one, two) = (SessionId([1; 16]), SessionId([2; 16]));
        let start = Instant::now();
        let later = start + Duration::from_secs(60);
        let mut table = Table::default();
        let id = |number| (DiskId(1), name(number));
        for (number, session, file) in [(1, one, 1), (2, two, 1), (3, one, 2), (4, two, 2)] {
            let (file, mode) = (FileId(file), Mode::Read);
            table.add(Purpose { session, file, mode }, id(number), later, start);
        }
        let taken =
            |session, file, number| Taken { on: (session, FileId(file)), capability: id(number) };
        assert_eq!(table.take(Revoked::Session(one, FileId(1))), [taken(one, 1, 1)]);
        assert_eq!(table.take(Revoked::File(FileId(1))), [taken(two, 1, 2)]);
        assert_eq!(table.take(Revoked::All(two)), [taken(two, 2, 4)]);
        table.expire(start);
        assert_eq!(table.take(Revoked::File(FileId(2))), [taken(one, 2, 3)]);
        assert_eq!(table.take(Revoked::File(FileId(2))), []);
    }

    #[test]
    fn expired_ones_do_not_pile_up() {
        let (session, file) = (SessionId([1; 16]), FileId(1));
        let start = Instant::now();
        let mut table = Table::default();
        for number in 0..10_000 {
            let now = start + Duration::from_secs(number);
            let until = now + Duration::from_secs(10);
            let purpose = Purpose { session, file, mode: Mode::Read };
            table.add(purpose, (DiskId(1), name(number as u32)), until, now);
            assert!(table.0[&file].issued.len() <= 32);
        }
    }
}
