//! Cases on locks: this client is one holder, another client is the second.

use std::ops::Range;

use crate::LockMode::{Exclusive, Shared};
use crate::{Error, Handle, LOCK_END, LockChange, LockMode, Remote, Result};

use super::bench::{Bench, Outcome, refused, same, works};

super::table! {
    exclusive_locks_exclude_other_clients [Locks];
    shared_locks_exclude_exclusive_ones_only [Locks];
    locks_of_one_client_do_not_exclude_each_other [Locks];
    a_refused_lock_changes_nothing [Locks];
    a_part_of_a_shared_lock_is_unlocked_by_itself [Locks];
    several_ranges_are_locked_at_once [Locks];
    the_owner_of_a_lock_reads_and_writes_the_file [Locks];
    attributes_come_from_after_the_lock [Locks];
    locks_stay_with_a_renamed_file [Locks];
    locks_up_to_the_last_byte [Locks];
}

fn change(range: Range<u64>, mode: Option<LockMode>) -> LockChange {
    LockChange { range, mode }
}

/// The two holders, and a file that both use.
struct Two {
    bench: Bench,
    file: Handle,
}

impl Two {
    async fn new(bench: Bench) -> Outcome<Two> {
        Two::on(bench, "a").await
    }

    async fn on(bench: Bench, name: &str) -> Outcome<Two> {
        let file = bench.file(name, b"0123456789").await?;
        let two = Two { bench, file };
        two.found_there(name).await?;
        Ok(two)
    }

    /// The other client has to learn the name.
    async fn found_there(&self, name: &str) -> Outcome {
        let found = self.there()?.lookup(&self.bench.owner, &self.bench.dir, name.as_ref()).await;
        let found = works("lookup", found)?.found.map(|found| found.handle);
        same("found by the other client", found, Some(self.file.clone()))
    }

    /// This client.
    fn here(&self) -> &dyn Remote {
        &*self.bench.remote
    }

    /// The other client.
    fn there(&self) -> Outcome<&dyn Remote> {
        let elsewhere = self.bench.elsewhere.as_deref();
        elsewhere.ok_or_else(|| "the traits name no second client".to_owned())
    }

    async fn try_change(
        &self,
        remote: &dyn Remote,
        range: Range<u64>,
        mode: Option<LockMode>,
    ) -> Result<()> {
        let changes = [change(range, mode)];
        remote.lock(&self.bench.owner, &self.file, &changes).await.map(drop)
    }

    async fn locks(&self, remote: &dyn Remote, range: Range<u64>, mode: LockMode) -> Outcome {
        let what = format!("lock {range:?} {mode:?}");
        works(&what, self.try_change(remote, range, Some(mode)).await)
    }

    async fn unlocks(&self, remote: &dyn Remote, range: Range<u64>) -> Outcome {
        works(&format!("unlock {range:?}"), self.try_change(remote, range, None).await)
    }

    async fn is_refused(&self, remote: &dyn Remote, range: Range<u64>, mode: LockMode) -> Outcome {
        let what = format!("lock {range:?} {mode:?}");
        refused(&what, self.try_change(remote, range, Some(mode)).await, &[Error::Locked])
    }

    /// Also checks that the server reports how the range is held.
    async fn may_not(
        &self,
        remote: &dyn Remote,
        range: Range<u64>,
        mode: LockMode,
        held: LockMode,
    ) -> Outcome {
        self.is_refused(remote, range.clone(), mode).await?;
        let told = remote.test_lock(&self.bench.owner, &self.file, range.clone(), mode).await;
        same(&format!("who has {range:?}"), works("test", told)?, Some(held))
    }

    async fn is_free(&self, remote: &dyn Remote, range: Range<u64>, mode: LockMode) -> Outcome {
        let told = remote.test_lock(&self.bench.owner, &self.file, range.clone(), mode).await;
        same(&format!("who has {range:?}"), works("test", told)?, None)
    }
}

async fn exclusive_locks_exclude_other_clients(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (here, there) = (two.here(), two.there()?);
    two.is_free(here, 0..10, Exclusive).await?;
    two.locks(here, 2..6, Exclusive).await?;
    for mode in [Shared, Exclusive] {
        two.may_not(there, 0..3, mode, Exclusive).await?;
        two.may_not(there, 5..6, mode, Exclusive).await?;
    }
    two.locks(there, 0..2, Exclusive).await?;
    two.locks(there, 6..7, Exclusive).await?;
    two.is_refused(here, 0..10, Exclusive).await?;
    two.unlocks(here, 0..LOCK_END).await?;
    two.is_free(there, 2..6, Exclusive).await?;
    two.locks(there, 2..6, Exclusive).await
}

async fn shared_locks_exclude_exclusive_ones_only(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (here, there) = (two.here(), two.there()?);
    two.locks(here, 0..10, Shared).await?;
    two.is_free(there, 0..10, Shared).await?;
    two.may_not(there, 9..20, Exclusive, Shared).await?;
    two.locks(there, 5..10, Shared).await?;
    two.is_refused(here, 0..10, Exclusive).await?;
    two.unlocks(there, 5..10).await?;
    two.locks(here, 0..10, Exclusive).await?;
    two.may_not(there, 0..1, Shared, Exclusive).await?;
    two.locks(here, 0..10, Shared).await?;
    two.locks(there, 0..1, Shared).await
}

async fn locks_of_one_client_do_not_exclude_each_other(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let here = two.here();
    for (range, mode) in [(0..8, Exclusive), (4..12, Shared), (2..6, Exclusive), (0..12, Shared)] {
        two.locks(here, range.clone(), mode).await?;
        two.is_free(here, range, Exclusive).await?;
    }
    two.may_not(two.there()?, 11..12, Exclusive, Shared).await
}

async fn a_refused_lock_changes_nothing(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (here, there) = (two.here(), two.there()?);
    two.locks(there, 8..9, Exclusive).await?;
    two.locks(here, 0..2, Shared).await?;
    two.may_not(here, 0..10, Exclusive, Exclusive).await?;
    // Ranges that were free are still free, and shared ones still shared.
    two.locks(there, 2..8, Exclusive).await?;
    two.locks(there, 0..2, Shared).await?;
    two.is_refused(there, 0..2, Exclusive).await
}

/// A part of an exclusive lock may stay locked as long as the rest.
async fn a_part_of_a_shared_lock_is_unlocked_by_itself(bench: Bench) -> Outcome {
    for mode in [Shared, Exclusive] {
        let two = Two::on(bench.clone(), &format!("{mode:?}")).await?;
        let (here, there) = (two.here(), two.there()?);
        two.locks(here, 0..30, mode).await?;
        two.unlocks(here, 10..20).await?;
        two.may_not(there, 9..10, Exclusive, mode).await?;
        two.may_not(there, 20..21, Exclusive, mode).await?;
        if mode == Shared {
            two.locks(there, 10..20, Exclusive).await?;
            two.unlocks(there, 10..20).await?;
        }
        two.unlocks(here, 5..40).await?;
        two.may_not(there, 4..5, Exclusive, mode).await?;
        two.unlocks(here, 0..5).await?;
        two.locks(there, 0..40, Exclusive).await?;
    }
    Ok(())
}

async fn several_ranges_are_locked_at_once(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (here, there, owner) = (two.here(), two.there()?, &two.bench.owner);
    two.locks(there, 20..21, Exclusive).await?;
    let modes = [Some(Exclusive), Some(Shared), None];
    let all: Vec<_> =
        (0..3).zip(modes).map(|(at, mode)| change(at * 5..at * 5 + 5, mode)).collect();
    works("lock", here.lock(owner, &two.file, &all).await)?;
    two.may_not(there, 0..5, Shared, Exclusive).await?;
    two.locks(there, 5..10, Shared).await?;
    two.locks(there, 10..15, Exclusive).await?;
    let part = [change(30..31, Some(Exclusive)), change(20..22, Some(Shared))];
    refused("lock", here.lock(owner, &two.file, &part).await, &[Error::Locked])?;
    two.locks(there, 30..31, Exclusive).await
}

async fn the_owner_of_a_lock_reads_and_writes_the_file(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (bench, file) = (&two.bench, &two.file);
    two.locks(two.here(), 0..LOCK_END, Exclusive).await?;
    bench.put(file, 3, b"abc").await?;
    bench.put_unstable(file, 8, b"de").await?;
    works("commit", bench.remote.commit(&bench.owner, file, None, 0..0).await)?;
    bench.reads(file, 0, 99, b"012abc67de", true).await?;
    two.unlocks(two.here(), 0..5).await?;
    bench.put(file, 4, b"xyz").await?;
    bench.reads(file, 0, 99, b"012axyz7de", true).await
}

async fn attributes_come_from_after_the_lock(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (here, there, owner) = (two.here(), two.there()?, &two.bench.owner);
    for (remote, other, len) in [(here, there, 11), (there, here, 12), (here, there, 13)] {
        let exclusive = [change(0..LOCK_END, Some(Exclusive))];
        let attr = works("lock", remote.lock(owner, &two.file, &exclusive).await)?;
        same("size", attr.size, len - 1)?;
        let (data, at) = (bytes::Bytes::from_static(b"+"), len - 1);
        let stability = crate::Stability::FileSync;
        works("write", remote.write(owner, &two.file, None, at, data, stability).await)?;
        let nothing = [change(0..LOCK_END, None)];
        let attr = works("unlock", remote.lock(owner, &two.file, &nothing).await)?;
        same("size", attr.size, len)?;
        two.is_free(other, 0..LOCK_END, Exclusive).await?;
    }
    Ok(())
}

async fn locks_stay_with_a_renamed_file(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let dir = &two.bench.dir;
    two.locks(two.here(), 0..5, Exclusive).await?;
    works("rename", two.bench.rename((dir, "a"), (dir, "b")).await)?;
    two.found_there("b").await?;
    two.may_not(two.there()?, 4..6, Shared, Exclusive).await?;
    let other = Two::on(two.bench.clone(), "a").await?;
    other.locks(other.there()?, 0..5, Exclusive).await
}

async fn locks_up_to_the_last_byte(bench: Bench) -> Outcome {
    let two = Two::new(bench).await?;
    let (here, there) = (two.here(), two.there()?);
    two.locks(here, LOCK_END - 1..LOCK_END, Exclusive).await?;
    two.locks(there, 0..LOCK_END - 1, Exclusive).await?;
    two.may_not(there, 0..LOCK_END, Shared, Exclusive).await
}
