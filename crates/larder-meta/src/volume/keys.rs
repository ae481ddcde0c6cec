//! Which epoch the disks' keys have.
//!
//! Owners of the volume and key epochs are numbered together. Each owner begins with the key epoch
//! of its own number, and each rotation takes the next number. What is on record is never less than
//! what a disk was told: so no epoch is used twice, and the next owner's is accepted by every disk.

use larder_wire::capability::KeyEpoch;

use super::error::{VolumeError, unreadable};
use crate::store::records::{self, Owner, Volume};
use crate::store::{Txn, key};

/// Takes the next number, for an owner. The key epoch is that of its number from now on.
pub(super) fn of_next_owner(txn: &mut Txn<'_>) -> Result<u64, VolumeError> {
    let (last, volume) = last(txn)?;
    if volume.key_epoch != 0 {
        txn.put(key::volume(), &Volume { key_epoch: 0, ..volume });
    }
    Ok(last + 1)
}

/// Takes the next number, for a key epoch of the present owner.
pub(crate) fn rotate(txn: &mut Txn<'_>) -> Result<KeyEpoch, VolumeError> {
    let (last, volume) = last(txn)?;
    let key_epoch = last + 1;
    txn.put(key::volume(), &Volume { key_epoch, ..volume });
    Ok(records::key_epoch(key_epoch))
}

/// The last number that was taken.
fn last(txn: &Txn<'_>) -> Result<(u64, Volume), VolumeError> {
    let volume = txn.get::<Volume>(&key::volume()).map_err(unreadable)?.ok_or(VolumeError::None)?;
    let owner = txn.get::<Owner>(&key::owner()).map_err(unreadable)?;
    Ok((owner.map_or(0, |owner| owner.epoch).max(volume.key_epoch), volume))
}

#[cfg(test)]
mod tests {
    use larder_wire::meta::words::{Time, VolumeId};

    use super::*;
    use crate::engine::memory::MemoryEngine;
    use crate::engine::{Engine, Writes};
    use crate::volume::{self, Owned};

    fn rotate_once(engine: &MemoryEngine, owned: &Owned) -> KeyEpoch {
        let view = engine.view().unwrap();
        let none = Writes::new();
        let mut txn = Txn::new(&*view, &none);
        let key = rotate(&mut txn).unwrap();
        engine.commit(&txn.finish().0, &owned.owner).unwrap();
        key
    }

    fn recorded(engine: &MemoryEngine) -> u64 {
        let view = engine.view().unwrap();
        let none = Writes::new();
        last(&Txn::new(&*view, &none)).unwrap().1.key_epoch
    }

    /// Each sequence of six rotations and new owners: each number is one higher than the one
    /// before, whatever it is for. Only an owner that has rotated leaves a key epoch in the
    /// volume's record, and the next owner takes it away.
    #[test]
    fn no_number_is_used_twice() {
        for code in 0..1 << 6 {
            let engine = MemoryEngine::new();
            volume::create(&engine, VolumeId([1; 16]), 1, Time::default()).unwrap();
            let mut owned = volume::take(&engine).unwrap();
            let mut last = records::key_epoch(owned.epoch());
            for step in 0..6 {
                let next = if code & 1 << step == 0 {
                    owned = volume::take(&engine).unwrap();
                    assert_eq!(recorded(&engine), 0);
                    records::key_epoch(owned.epoch())
                } else {
                    let key = rotate_once(&engine, &owned);
                    assert_eq!(recorded(&engine), u64::from(key.0));
                    key
                };
                assert_eq!(next.0, last.0 + 1, "{code:b} {step}");
                last = next;
            }
        }
    }
}
