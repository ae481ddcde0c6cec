//! Checks which files clients retain ([`crate::retained`]): each has a client that exists, and is
//! found by its record.

use std::collections::BTreeSet;

use larder_wire::meta::Status;
use larder_wire::meta::words::{FileId, Kind};

use super::{Check, FaultKind, number, shown};
use crate::data::{Map, memory};
use crate::retained::{self, NO_DISK};
use crate::store::key;
use crate::store::records::{Inode, Loss, Retaining, Session};
use crate::whereabouts::{Client, Event, Whereabouts};

impl Check<'_> {
    /// Mends who has the bytes of files, and the records by which such files are found. What no
    /// client can have any more is lost, which is on record as a loss.
    pub(super) fn retaining(&mut self) -> Result<(), Status> {
        let clients = self.all::<Session>(b's').map(|one| Ok(one?.1.client));
        let clients: BTreeSet<Client> = clients.collect::<Result<_, Status>>()?;
        let (mut files, mut bytes) = (0, 0);
        let retained = std::mem::take(&mut self.retained);
        for file in retained.iter() {
            let Some(inode) = self.inode(file)? else { continue };
            let lost = self.mend_whereabouts(inode, &clients)?;
            files += u64::from(lost.is_some());
            bytes += lost.unwrap_or_default();
        }
        if files > 0 {
            let loss = Loss { at_s: self.now.seconds, disk: NO_DISK, files, bytes };
            memory::note_loss(&mut self.txn, &loss)?;
        }
        self.mend_retaining()
    }

    /// Mends what is said of a file, and sees that it is found. Returns how many bytes are lost
    /// with a client that does not exist, if any.
    fn mend_whereabouts(
        &mut self,
        mut inode: Inode,
        clients: &BTreeSet<Client>,
    ) -> Result<Option<u64>, Status> {
        let (file, before, size) = (inode.file(), inode.whereabouts, inode.attributes.size);
        let mut lost = None;
        if inode.attributes.kind != Kind::File {
            let what = format!("{} is no file, and a client is to have its bytes", shown(file));
            self.mend(FaultKind::Retained, Some(file), what, "it has none".into());
            retained::note(&mut self.txn, &mut inode, Event::Emptied)?;
        }
        if let Whereabouts::Retained { client, .. } = inode.whereabouts
            && !Map::File(file).overlapping(&self.txn, &(0..u64::MAX), 1)?.is_empty()
        {
            let what = format!("{} is to be with a client alone, and disks have it", shown(file));
            let remedy = "it counts as lost unless the client says that they have all".into();
            self.mend(FaultKind::Retained, Some(file), what, remedy);
            retained::note(&mut self.txn, &mut inode, Event::Committed { client })?;
        }
        if let Some(client) = inode.whereabouts.client().filter(|one| !clients.contains(one)) {
            let what = format!("{} is to be with a client that has no session", shown(file));
            self.mend(FaultKind::Session, Some(file), what, "it is lost".into());
            retained::note(&mut self.txn, &mut inode, Event::Ended { client })?;
            let is_named = inode.attributes.links > 0;
            lost = inode.whereabouts.lost().filter(|_| is_named);
        }
        if let Some(bytes) = inode.whereabouts.lost().filter(|bytes| *bytes > inode.attributes.size)
        {
            let what = format!("{} ends at {size}, and {bytes} bytes of it were lost", shown(file));
            self.mend(FaultKind::Size, Some(file), what, format!("it ends at {bytes}"));
            inode.attributes.size = bytes;
        }
        if let Some(under) = inode.whereabouts.found_under() {
            self.need_retaining(key::retaining(under, file), file)?;
        }
        if inode.whereabouts != before || inode.attributes.size != size {
            self.changed.insert(file, inode);
        }
        Ok(lost)
    }

    fn need_retaining(&mut self, key: Vec<u8>, file: FileId) -> Result<(), Status> {
        if self.txn.get::<Retaining>(&key)?.is_none() {
            let what = format!("{} is not on record with its client, or as lost", shown(file));
            self.mend(FaultKind::Retained, Some(file), what, "it is put on record".into());
            self.txn.put(key, &Retaining {});
        }
        Ok(())
    }

    /// Removes records of files that are not as these say.
    fn mend_retaining(&mut self) -> Result<(), Status> {
        for one in self.all::<Retaining>(b'c') {
            let (key, _) = one?;
            let file = FileId(number(&key)?);
            let under = self.inode(file)?.and_then(|inode| inode.whereabouts.found_under());
            if under.is_some_and(|under| key == key::retaining(under, file)) {
                continue;
            }
            let what =
                format!("{} is on record with a client, or as lost, and is not", shown(file));
            self.mend(FaultKind::Retained, Some(file), what, "the record goes".into());
            self.txn.delete(key);
        }
        Ok(())
    }
}
