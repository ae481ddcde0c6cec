//! The volume as a whole: making one, taking ownership, adding disks.
//!
//! - [`creation`]: making one, and what it was made as.
//! - [`error`]: why something is not done.
//! - [`keys`]: which epoch the disks' keys have.
//! - [`loss`]: what memory disks have lost.
//! - [`recovery`]: after a crash of the metadata server's machine.
//! - [`removal`]: taking disks out.
//! - [`tenure`]: whether a disk stays.

mod creation;
mod error;
pub(crate) mod keys;
pub(crate) mod loss;
mod machine;
mod recovery;
mod removal;
mod tenure;

pub use creation::{create, create_with_setup, id, setup};
pub use error::VolumeError;
pub use loss::{Loss, Lost, losses, lost};
pub use removal::{Removal, accept_store, keep_disk, remove_disk};
pub use tenure::Tenure;

use std::collections::BTreeMap;

use larder_wire::meta::words::{DiskId, VolumeId};
use larder_wire::meta::{BLOCK_BYTES, COPIES_MAX, DISKS_MAX};
use larder_wire::seal::Setup;
use larder_wire::xdr::Opaque;

use error::unreadable;

use crate::data::copies::{self, Set, Sets};
use crate::data::{self, blocks};
use crate::disks::{TrustInterval, Trusting, VolumeOwner};
use crate::engine::{self, Engine, EngineError, Writes};
use crate::late;
use crate::store::records::{Disk, Late, Owner, Volume};
use crate::store::{Record, Txn, key};

/// A disk to be added to a volume.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// The disk's own name.
    pub id: [u8; 16],
    /// `host:port`.
    pub address: String,
    /// Its size. A part that does not fill a block is not used.
    pub bytes: u64,
    /// Whether its bytes are in memory, and lost with its process: ordinary files are never placed
    /// there.
    pub is_memory: bool,
}

/// A volume that this process owns, until another takes it.
#[derive(Clone, Debug)]
pub struct Owned {
    pub(crate) id: VolumeId,
    pub(crate) epoch: u64,
    /// The owner's record that each commit expects.
    pub(crate) owner: engine::Owner,
    /// What its late commits live in ([`Engine::boot`]).
    pub(crate) boot: Option<Vec<u8>>,
    /// For how long disks are let trust what they know.
    pub(crate) trust: Trusting,
    /// The setup of the volume, if it states one.
    pub(crate) setup: Option<Setup>,
}

impl Owned {
    /// The volume.
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// Which owner of the volume this is: higher than all before it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the volume's disks are told of it.
    pub fn to_disks(&self) -> VolumeOwner {
        VolumeOwner { volume: self.id, owner: self.epoch, setup: self.setup }
    }

    /// For how long it lets the volume's disks trust what they know.
    pub fn trust(&self) -> Trusting {
        self.trust
    }

    /// Releases the volume: the next owner can begin at once. If the store cannot be reached, it
    /// can when the term is over.
    pub fn release(&self, engine: &dyn Engine) {
        if let Err(error) = engine.release(&self.owner) {
            tracing::debug!("the next owner waits for the end of the term: {error}");
        }
    }
}

/// A request to a server about the disks of its volume.
#[derive(Clone, Debug)]
pub(crate) enum DisksChange {
    /// To add one.
    Enrol { new: NewDisk, joining: Joining },
    /// To remove one: at once if it is empty, or when what is on it is on others.
    Remove(DiskId),
    /// To keep one that leaves.
    Keep(DiskId),
    /// One that leaves is empty.
    Emptied(DiskId),
}

/// What became of such a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DisksChanged {
    /// The disk that was added, or is the other one's subject.
    pub(crate) disk: DiskId,
    /// The disk that no longer belongs to the volume.
    pub(crate) gone: Option<DiskId>,
    /// How one is that was to be removed or kept.
    pub(crate) removal: Removal,
}

/// How a new disk joins the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joining {
    /// Wherever one is missing.
    #[default]
    Anywhere,
    /// In place of this disk of its set, which is forgotten.
    InsteadOf(DiskId),
    /// A memory disk that is to have the same blocks as this one.
    Beside(DiskId),
}

impl Joining {
    /// The disk that is not one of the volume's any more.
    pub fn old(self) -> Option<DiskId> {
        match self {
            Joining::InsteadOf(old) => Some(old),
            Joining::Anywhere | Joining::Beside(_) => None,
        }
    }
}

impl DisksChange {
    /// Adds, removes or keeps the disk.
    pub(crate) fn carry_out(&self, txn: &mut Txn<'_>) -> Result<DisksChanged, VolumeError> {
        let (disk, removal) = match self {
            DisksChange::Enrol { new, joining } => {
                let disk = enrol_in(txn, new, *joining)?;
                let removal = Removal { tenure: Tenure::Stays, used_bytes: 0 };
                return Ok(DisksChanged { disk, gone: joining.old(), removal });
            }
            DisksChange::Remove(disk) => (*disk, removal::remove(txn, *disk)?),
            DisksChange::Keep(disk) => (*disk, removal::keep(txn, *disk)?),
            DisksChange::Emptied(disk) => (*disk, removal::emptied(txn, *disk)?),
        };
        let gone = (removal.tenure == Tenure::Gone).then_some(disk);
        Ok(DisksChanged { disk, gone, removal })
    }
}

fn enrol_in(txn: &mut Txn<'_>, new: &NewDisk, joining: Joining) -> Result<DiskId, VolumeError> {
    match joining {
        Joining::InsteadOf(old) => put_in_place_of(txn, old, new),
        Joining::Beside(other) => put_beside(txn, other, new),
        Joining::Anywhere => put_disk(txn, new),
    }
}

/// Adds a disk to a volume that no server owns now. Once there are as many as each block has
/// copies, all of their space is free.
///
/// # Errors
/// [`VolumeError::None`], [`VolumeError::Disk`], [`VolumeError::Owned`], [`VolumeError::Engine`]
pub fn add_disk(engine: &dyn Engine, new: &NewDisk) -> Result<DiskId, VolumeError> {
    enrol(engine, new, Joining::Anywhere)
}

/// The same, and says how it joins the others. What files have on that set is stale on the new
/// disk, until a server has brought it up to date.
///
/// # Errors
/// [`VolumeError::Replaced`], and as [`add_disk`]
pub fn enrol(engine: &dyn Engine, new: &NewDisk, joining: Joining) -> Result<DiskId, VolumeError> {
    let mut added = DiskId(0);
    let owned = take_and(engine, |txn| {
        added = enrol_in(txn, new, joining)?;
        Ok(())
    })?;
    owned.release(engine);
    Ok(added)
}

fn put_disk(txn: &mut Txn<'_>, new: &NewDisk) -> Result<DiskId, VolumeError> {
    let sets = Sets::load(txn).map_err(unreadable)?;
    let (number, mut disk) = judge(txn, new)?;
    let set = sets.incomplete().filter(|_| !new.is_memory);
    disk.set = set.map_or(0, |set| set.0);
    txn.put(key::disk(number), &disk);
    let sets = Sets::load(txn).map_err(unreadable)?;
    let set = set.unwrap_or(number);
    if let Some((_, Set { disks, bytes, .. })) = sets.complete().find(|(one, _)| *one == set) {
        // What one disk has more than the others is not used.
        for (number, mut disk) in copies::all(txn).map_err(unreadable)? {
            if disks.contains(&number) && disk.blocks != bytes / BLOCK_BYTES {
                disk.blocks = bytes / BLOCK_BYTES;
                txn.put(key::disk(number), &disk);
            }
        }
        blocks::add_free(txn, set, 0..*bytes).map_err(unreadable)?;
    }
    Ok(number)
}

fn put_in_place_of(txn: &mut Txn<'_>, old: DiskId, new: &NewDisk) -> Result<DiskId, VolumeError> {
    let sets = Sets::load(txn).map_err(unreadable)?;
    let refused = |why: String| Err(VolumeError::Replaced(why));
    let Some((set, Set { disks, bytes, .. })) =
        sets.complete().find(|(_, set)| set.disks.contains(&old))
    else {
        return refused(format!("the volume has no disk {} with copies", old.0));
    };
    if sets.is_memory(set) || new.is_memory {
        return refused(
            "a memory disk has no copies to be replaced by: add it as another one".to_owned(),
        );
    }
    if !sets.are_mirrored() {
        return refused(format!("disk {} has the only copy of what is on it", old.0));
    }
    let (number, disk) = judge(txn, new)?;
    if disk.blocks * BLOCK_BYTES < *bytes {
        return refused(format!("the disk is smaller than disk {}: {bytes} bytes", old.0));
    }
    // Free blocks count as cleared: the new disk is empty.
    let all = 0..*bytes;
    let free = blocks::free_in(txn, set, &all).map_err(unreadable)?;
    let used = copies::without(std::slice::from_ref(&all), &free);
    let mut lost = used.clone();
    for other in disks.iter().filter(|other| **other != old) {
        let whole = copies::whole(txn, *other, &used).map_err(unreadable)?;
        lost = copies::without(&lost, &whole);
    }
    if !lost.is_empty() {
        let bytes: u64 = lost.iter().map(|bytes| bytes.end - bytes.start).sum();
        return refused(format!(
            "disk {} may have the only copy of {bytes} bytes: start it, and wait until volume status tells of none \
             that are stale",
            old.0
        ));
    }
    copies::remove_stale(txn, old, &(0..u64::MAX)).map_err(unreadable)?;
    txn.delete(key::disk(old));
    txn.delete(key::disk_store(old));
    txn.put(key::disk(number), &Disk { blocks: bytes / BLOCK_BYTES, set: set.0, ..disk });
    for bytes in used {
        copies::add_stale(txn, number, &bytes).map_err(unreadable)?;
    }
    Ok(number)
}

/// Adds a memory disk that is to have the same blocks as another one: each of them is on one more.
fn put_beside(txn: &mut Txn<'_>, other: DiskId, new: &NewDisk) -> Result<DiskId, VolumeError> {
    let sets = Sets::load(txn).map_err(unreadable)?;
    let refused = |why: String| Err(VolumeError::Replaced(why));
    let Some((set, Set { disks, bytes, .. })) = sets.of(other).filter(|(_, set)| set.is_memory())
    else {
        return refused(format!("the volume has no memory disk {}", other.0));
    };
    if sets.leaves(set) {
        return refused(format!("disk {} is leaving", other.0));
    }
    if !new.is_memory {
        return refused(format!("disk {} is a memory disk: add --memory", other.0));
    }
    if disks.len() >= COPIES_MAX as usize {
        return refused(format!("there are {COPIES_MAX} disks beside each other already"));
    }
    for (number, there) in copies::all(txn).map_err(unreadable)? {
        let shared = machine::shared(&there.address, new.address.as_bytes());
        if let Some(ip) = shared.filter(|_| disks.contains(&number)) {
            return refused(format!(
                "disk {} is on {ip}, too: what is on both would go with that machine; use another one",
                number.0
            ));
        }
    }
    let (number, disk) = judge(txn, new)?;
    if disk.blocks * BLOCK_BYTES < *bytes {
        return refused(format!("the disk is smaller than disk {}: {bytes} bytes", other.0));
    }
    let all = 0..*bytes;
    let free = blocks::free_in(txn, set, &all).map_err(unreadable)?;
    txn.put(key::disk(number), &Disk { blocks: bytes / BLOCK_BYTES, set: set.0, ..disk });
    for bytes in copies::without(std::slice::from_ref(&all), &free) {
        copies::add_stale(txn, number, &bytes).map_err(unreadable)?;
    }
    Ok(number)
}

/// A disk that makes sense, and its number.
fn judge(txn: &Txn<'_>, new: &NewDisk) -> Result<(DiskId, Disk), VolumeError> {
    let there = copies::all(txn).map_err(unreadable)?;
    let number = next_number(txn)?;
    let blocks = new.bytes / BLOCK_BYTES;
    let address = Opaque::copy_from_slice(new.address.as_bytes());
    match () {
        () if there.len() >= DISKS_MAX => Err(VolumeError::Disk("the volume has 256 disks")),
        () if blocks == 0 => Err(VolumeError::Disk("the disk is smaller than one block")),
        () if address.len() > 255 => Err(VolumeError::Disk("the address is too long")),
        () => {
            let (id, is_memory) = (new.id, new.is_memory);
            Ok((number, Disk { id, address, blocks, set: 0, is_memory, leaves: false }))
        }
    }
}

/// The number that the next disk gets. No disk had it before.
fn next_number(txn: &Txn<'_>) -> Result<DiskId, VolumeError> {
    let volume = txn.get::<Volume>(&key::volume()).map_err(unreadable)?.ok_or(VolumeError::None)?;
    let there = copies::all(txn).map_err(unreadable)?;
    let behind_last = there.last().map_or(1, |(last, _)| last.0 + 1);
    Ok(DiskId(behind_last.max(volume.next_disk)))
}

/// The number that the next disk gets: also under a server, as of its last commit.
///
/// # Errors
/// [`VolumeError::None`], [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn next_disk(engine: &dyn Engine) -> Result<DiskId, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    next_number(&Txn::new(&*view, &none))
}

/// The disks of a volume.
///
/// # Errors
/// [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn disks(engine: &dyn Engine) -> Result<Vec<(DiskId, NewDisk)>, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    let txn = Txn::new(&*view, &none);
    let disk = |(number, disk): (DiskId, Disk)| {
        let address = String::from_utf8_lossy(&disk.address).into_owned();
        let (id, bytes, is_memory) = (disk.id, disk.blocks * BLOCK_BYTES, disk.is_memory);
        (number, NewDisk { id, address, bytes, is_memory })
    };
    let all = copies::all(&txn).map_err(unreadable)?;
    Ok(all.into_iter().map(disk).collect())
}

/// The copies of a volume's blocks: can also be called while a server runs, and is as of its last
/// commit.
///
/// # Errors
/// [`VolumeError::None`], [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn copies(engine: &dyn Engine) -> Result<Copies, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    let txn = Txn::new(&*view, &none);
    let sets = Sets::load(&txn).map_err(unreadable)?;
    let disk = |(number, disk): (DiskId, Disk)| {
        let (set, bytes) = (copies::set_of(number, &disk), disk.blocks * BLOCK_BYTES);
        let stale_bytes = copies::stale_bytes(&txn, number)?;
        let free = blocks::free_in(&txn, set, &(0..bytes))?;
        let bytes_free = free.iter().map(|bytes| bytes.end - bytes.start).sum();
        let Disk { is_memory, leaves, .. } = disk;
        Ok((number, CopiesOn { set, bytes, bytes_free, stale_bytes, is_memory, leaves }))
    };
    let all = copies::all(&txn).map_err(unreadable)?;
    let disks = all.into_iter().map(disk).collect::<Result<_, _>>().map_err(unreadable)?;
    let missing = sets.incomplete().map_or(0, |set| sets.copies() - sets.disks(set).len());
    Ok(Copies { copies: sets.copies(), disks, missing })
}

/// How copies are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies {
    /// On how many disks each block is.
    pub copies: usize,
    /// The blocks of each disk.
    pub disks: BTreeMap<DiskId, CopiesOn>,
    /// How many disks must be added before those in incomplete sets can be used.
    pub missing: usize,
}

/// What a disk has of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiesOn {
    /// Disks with the same number have the same blocks.
    pub set: DiskId,
    /// Bytes of it that the volume uses.
    pub bytes: u64,
    /// The free ones among these.
    pub bytes_free: u64,
    /// Bytes that differ from the other disks', and are being brought up to date.
    pub stale_bytes: u64,
    /// Whether it is a memory disk.
    pub is_memory: bool,
    /// Whether it is to be removed, and its bytes that are not free go to other disks.
    pub leaves: bool,
}

/// How many bytes a volume's disks have, and how many of them are free: can also be called while a
/// server runs, and is as of its last commit. Memory disks do not count: ordinary files get no
/// space there. Of a disk that leaves, what is in use counts.
///
/// # Errors
/// [`VolumeError::Unreadable`], [`VolumeError::Engine`]
pub fn space(engine: &dyn Engine) -> Result<Space, VolumeError> {
    let view = engine.view()?;
    let none = Writes::new();
    let txn = Txn::new(&*view, &none);
    let bytes = blocks::bytes(&txn).map_err(unreadable)?;
    Ok(Space { bytes, bytes_free: blocks::free_bytes(&txn).map_err(unreadable)? })
}

/// Room of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Of all disks.
    pub bytes: u64,
    /// The free ones.
    pub bytes_free: u64,
}

/// Takes the volume: its previous owner can commit nothing any more.
///
/// # Errors
/// [`VolumeError::None`], [`VolumeError::Owned`], [`VolumeError::Unreadable`],
/// [`VolumeError::Engine`]
pub fn take(engine: &dyn Engine) -> Result<Owned, VolumeError> {
    take_trusting(engine, TrustInterval::default())
}

/// The same, to let disks trust what they know for this time.
///
/// # Errors
/// As [`take`]
pub fn take_trusting(engine: &dyn Engine, interval: TrustInterval) -> Result<Owned, VolumeError> {
    let mut longest = interval;
    let owned = take_and(engine, |txn| {
        longest = note_trust(txn, interval)?;
        data::release_all_ahead(txn).map_err(unreadable)
    })?;
    Ok(Owned { trust: Trusting { interval, longest }, ..owned })
}

/// Puts on record for how long disks will be let trust. Returns the longest time so far: a disk
/// that is away may have been told so by any earlier owner.
fn note_trust(txn: &mut Txn<'_>, interval: TrustInterval) -> Result<TrustInterval, VolumeError> {
    let volume = txn.get::<Volume>(&key::volume()).map_err(unreadable)?.ok_or(VolumeError::None)?;
    let longest = TrustInterval::from_record(volume.trust_ms).max(interval);
    let trust_ms = longest.to_record();
    if trust_ms != volume.trust_ms {
        txn.put(key::volume(), &Volume { trust_ms, ..volume });
    }
    Ok(longest)
}

/// The same to repair it.
pub(crate) fn seize(engine: &dyn Engine) -> Result<Owned, VolumeError> {
    take_and(engine, |_| Ok(()))
}

/// Takes the volume, and makes other changes in the same commit.
fn take_and(
    engine: &dyn Engine,
    also: impl FnOnce(&mut Txn<'_>) -> Result<(), VolumeError>,
) -> Result<Owned, VolumeError> {
    let process = larder_rpc::random_u64();
    let view = engine.view()?;
    let none = Writes::new();
    let mut txn = Txn::new(&*view, &none);
    let volume = txn.get::<Volume>(&key::volume()).map_err(unreadable)?.ok_or(VolumeError::None)?;
    let epoch = keys::of_next_owner(&mut txn)?;
    let owner = Owner { epoch, process };
    txn.put(key::owner(), &owner);
    let boot = engine.boot()?;
    settle(&mut txn, boot.clone(), epoch)?;
    also(&mut txn)?;
    let expected = engine::Owner { key: key::owner(), value: view.get(&key::owner())? };
    engine.commit(&txn.finish().0, &expected).map_err(|error| match error {
        // Its term is not over, or another one was faster.
        EngineError::NotOwner => match engine.owned_for() {
            Ok(left) => VolumeError::Owned(left),
            Err(error) => error.into(),
        },
        error => error.into(),
    })?;
    let owner = engine::Owner { key: key::owner(), value: Some(owner.to_bytes()) };
    let (id, setup, trust) = (VolumeId(volume.id), volume.setup, Trusting::default());
    Ok(Owned { id, epoch, owner, boot, trust, setup })
}

/// Brings in order what late commits of earlier owners have left, and puts on record what those of
/// this owner live in.
fn settle(txn: &mut Txn<'_>, boot: Option<Vec<u8>>, epoch: u64) -> Result<(), VolumeError> {
    let before = txn.get::<Late>(&key::late()).map_err(unreadable)?;
    if let Some(late) = before.filter(|late| boot.as_deref() != Some(&*late.boot)) {
        recovery::recover(txn, &late).map_err(unreadable)?;
    }
    match boot {
        Some(boot) => {
            let span = late::first_span(epoch);
            txn.put(key::late(), &Late { boot: Opaque(boot.into()), span });
        }
        None => txn.delete(key::late()),
    }
    Ok(())
}
