//! Cases on the room that ranges of files take, and on holes. A server that cannot do part of this
//! must say so.

use crate::{Change, Error, Handle, New, Result, Seek, SpaceChange, SpaceKind, Time};

use super::bench::{Bench, Outcome, holds, refused, same, works};

super::table! {
    allocated_bytes_are_zeros [Allocate];
    what_is_there_stays_when_room_is_allocated [Allocate];
    allocated_behind_the_end [Allocate];
    a_punched_range_reads_as_zeros [Punch];
    punching_behind_the_end_changes_nothing [Punch];
    a_zeroed_range_may_move_the_end [Punch, Allocate];
    what_is_written_into_a_hole_is_there [Punch];
    a_change_of_space_is_a_change [Punch];
    space_needs_rights [Punch];
    senseless_ranges_are_refused [Punch];
    holes_and_data_are_found [Holes, UnwrittenHoles];
    a_punched_hole_is_found [Holes, Punch];
    nothing_is_found_behind_the_end [Holes];
    what_is_unstable_is_data [Holes];
    without_space_that_is_said;
}

const KIB: u64 = 1024;
/// As large as any server's blocks.
const FAR: u64 = 1024 * KIB;

/// The longest tick of the clock by which a kernel sets times of files. A server may set some times
/// by a finer clock (Samba does for writes); the kernel's may be behind that by one tick.
const TICK_NS: i128 = 10_000_000;

fn ns(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

fn change(kind: SpaceKind, start: u64, end: u64) -> SpaceChange {
    SpaceChange { kind, range: start..end, keep_size: kind == SpaceKind::Punch }
}

/// Bytes, none of them zero.
fn full(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

impl Bench {
    async fn space(&self, file: &Handle, change: SpaceChange) -> Result<Change> {
        self.remote.change_space(&self.owner, file, None, &change).await
    }

    async fn seek(&self, file: &Handle, offset: u64, what: Seek) -> Result<u64> {
        self.remote.seek(&self.owner, file, None, offset, what).await
    }

    /// Checks size and bytes of a file.
    async fn has_bytes(&self, file: &Handle, wanted: &[u8]) -> Outcome {
        same("size", self.attr(file).await?.size, wanted.len() as u64)?;
        self.reads(file, 0, wanted.len() as u32 + 1, wanted, true).await
    }

    /// Checks that no hole is reported where `content` has data.
    async fn tells_of(&self, file: &Handle, content: &[u8]) -> Outcome<Vec<(u64, u64)>> {
        let (size, mut at, mut found) = (content.len() as u64, 0, Vec::new());
        loop {
            let start = match self.seek(file, at, Seek::Data).await {
                Err(Error::NoData) => size,
                start => works("data", start)?,
            };
            holds("it is further on", at <= start && start <= size)?;
            let hole = &content[at as usize..start as usize];
            holds("a hole is zeros", hole.iter().all(|byte| *byte == 0))?;
            if start == size {
                return Ok(found);
            }
            same("data at data", works("data", self.seek(file, start, Seek::Data).await)?, start)?;
            at = works("hole", self.seek(file, start, Seek::Hole).await)?;
            holds("data has bytes", start < at && at <= size)?;
            found.push((start, at));
        }
    }
}

async fn allocated_bytes_are_zeros(bench: Bench) -> Outcome {
    let file = bench.make("a", New::File).await?.handle;
    works("allocate", bench.space(&file, change(SpaceKind::Allocate, 0, 100_001)).await)?;
    bench.has_bytes(&file, &[0; 100_001]).await?;
    let attr = bench.attr(&file).await?;
    holds("it takes room", attr.used >= 100_001)?;
    let mut content = vec![0; 100_001];
    content[50_000..50_100].copy_from_slice(&full(100));
    bench.put(&file, 50_000, &full(100)).await?;
    bench.has_bytes(&file, &content).await
}

async fn what_is_there_stays_when_room_is_allocated(bench: Bench) -> Outcome {
    let mut content = full(20_000);
    let file = bench.file("a", &content).await?;
    content.resize(90_000, 0);
    bench.put(&file, 70_000, &full(20_000)).await?;
    content[70_000..].copy_from_slice(&full(20_000));
    for (start, end) in [(0, 90_000), (10_000, 30_000), (80_000, 90_000), (5, 6)] {
        works("allocate", bench.space(&file, change(SpaceKind::Allocate, start, end)).await)?;
        bench.has_bytes(&file, &content).await?;
    }
    content.resize(95_000, 0);
    works("allocate", bench.space(&file, change(SpaceKind::Allocate, 89_000, 95_000)).await)?;
    bench.has_bytes(&file, &content).await
}

async fn allocated_behind_the_end(bench: Bench) -> Outcome {
    let mut content = full(5000);
    let file = bench.file("a", &content).await?;
    let keep = SpaceChange { keep_size: true, ..change(SpaceKind::Allocate, 3000, 50_000) };
    match bench.space(&file, keep).await {
        Err(Error::NotSupported) => {}
        kept => drop(works("allocate behind the end", kept)?),
    }
    bench.has_bytes(&file, &content).await?;
    // Not from the end on.
    content.resize(40_000, 0);
    works("allocate", bench.space(&file, change(SpaceKind::Allocate, 20_000, 40_000)).await)?;
    bench.has_bytes(&file, &content).await
}

async fn a_punched_range_reads_as_zeros(bench: Bench) -> Outcome {
    let mut content = full(2 * FAR as usize + 100);
    let file = bench.file("a", &content).await?;
    let used = bench.attr(&file).await?.used;
    let end = content.len() as u64;
    for (start, stop) in [
        (64 * KIB, FAR + 64 * KIB),
        (0, 1),
        (5000, 5001),
        (4095, 8193),
        (20_000, 29_000),
        (end - 50, end),
        (end - 20_000, end - 10_000),
    ] {
        works("punch", bench.space(&file, change(SpaceKind::Punch, start, stop)).await)?;
        content[start as usize..stop as usize].fill(0);
        bench.has_bytes(&file, &content).await?;
    }
    holds("room was given up", bench.attr(&file).await?.used < used)
}

async fn punching_behind_the_end_changes_nothing(bench: Bench) -> Outcome {
    let mut content = full(10_000);
    let file = bench.file("a", &content).await?;
    works("punch", bench.space(&file, change(SpaceKind::Punch, 20_000, 90_000)).await)?;
    bench.has_bytes(&file, &content).await?;
    works("punch", bench.space(&file, change(SpaceKind::Punch, 9000, 1 << 40)).await)?;
    content[9000..].fill(0);
    bench.has_bytes(&file, &content).await
}

async fn a_zeroed_range_may_move_the_end(bench: Bench) -> Outcome {
    let mut content = full(50_000);
    let file = bench.file("a", &content).await?;
    works("zero", bench.space(&file, change(SpaceKind::Zero, 100, 9000)).await)?;
    content[100..9000].fill(0);
    bench.has_bytes(&file, &content).await?;
    works("zero", bench.space(&file, change(SpaceKind::Zero, 40_001, 60_000)).await)?;
    content[40_001..].fill(0);
    content.resize(60_000, 0);
    bench.has_bytes(&file, &content).await?;
    bench.put(&file, 41_000, &full(10)).await?;
    content[41_000..41_010].copy_from_slice(&full(10));
    bench.has_bytes(&file, &content).await
}

async fn what_is_written_into_a_hole_is_there(bench: Bench) -> Outcome {
    let mut content = full(100_000);
    let file = bench.file("a", &content).await?;
    for round in 0..3_u64 {
        let start = 8000 * round;
        works("punch", bench.space(&file, change(SpaceKind::Punch, start, start + 60_000)).await)?;
        content[start as usize..start as usize + 60_000].fill(0);
        bench.put(&file, start + 30_000, &full(5000)).await?;
        content[start as usize + 30_000..start as usize + 35_000].copy_from_slice(&full(5000));
        bench.has_bytes(&file, &content).await?;
    }
    Ok(())
}

async fn a_change_of_space_is_a_change(bench: Bench) -> Outcome {
    let file = bench.file("a", &full(50_000)).await?;
    let before = bench.attr(&file).await?;
    let told = works("punch", bench.space(&file, change(SpaceKind::Punch, 0, 40_000)).await)?;
    let after = bench.attr(&file).await?;
    holds("another version", !after.validator().same(&before.validator()))?;
    holds("the time of the data", ns(after.mtime) + TICK_NS >= ns(before.mtime))?;
    if let Some(told) = told.after {
        same("what was told", told.validator().same(&after.validator()), true)?;
    }
    holds("nobody else was before it", told.before.is_none() || told.follows(&before.validator()))
}

async fn space_needs_rights(bench: Bench) -> Outcome {
    let file = bench.file("a", &full(5000)).await?;
    let denied = [Error::AccessDenied, Error::NotPermitted];
    let punch = change(SpaceKind::Punch, 0, 4096);
    let refusal = bench.remote.change_space(&bench.other, &file, None, &punch).await;
    refused("punch by another", refusal, &denied)?;
    bench.has_bytes(&file, &full(5000)).await
}

async fn senseless_ranges_are_refused(bench: Bench) -> Outcome {
    let file = bench.file("a", &full(5000)).await?;
    let empty = bench.space(&file, change(SpaceKind::Punch, 100, 100)).await;
    refused("nothing", empty, &[Error::InvalidArgument])?;
    let dir = bench.directory("d").await?;
    let allowed = [Error::IsDirectory, Error::InvalidArgument, Error::AccessDenied];
    refused("directory", bench.space(&dir, change(SpaceKind::Punch, 0, 4096)).await, &allowed)?;
    bench.has_bytes(&file, &full(5000)).await
}

async fn holes_and_data_are_found(bench: Bench) -> Outcome {
    let mut content = vec![0; 4 * FAR as usize + 5];
    let file = bench.make("a", New::File).await?.handle;
    for at in [FAR, 3 * FAR + 100, 4 * FAR] {
        bench.put(&file, at, &full(5)).await?;
        content[at as usize..at as usize + 5].copy_from_slice(&full(5));
    }
    let found = bench.tells_of(&file, &content).await?;
    let data: u64 = found.iter().map(|(start, end)| end - start).sum();
    holds(&format!("holes are told of: {found:?}"), data <= FAR)?;
    same("data", bench.seek(&file, FAR, Seek::Data).await, Ok(FAR))?;
    same("hole", bench.seek(&file, 4 * FAR, Seek::Hole).await, Ok(4 * FAR + 5))
}

async fn a_punched_hole_is_found(bench: Bench) -> Outcome {
    let mut content = full(2 * FAR as usize);
    let file = bench.file("a", &content).await?;
    same("whole", bench.tells_of(&file, &content).await?, vec![(0, 2 * FAR)])?;
    works("punch", bench.space(&file, change(SpaceKind::Punch, 100, FAR)).await)?;
    content[100..FAR as usize].fill(0);
    let found = bench.tells_of(&file, &content).await?;
    let data: u64 = found.iter().map(|(start, end)| end - start).sum();
    holds(&format!("a hole is told of: {found:?}"), data <= FAR + 128 * KIB)
}

async fn nothing_is_found_behind_the_end(bench: Bench) -> Outcome {
    let file = bench.file("a", &full(10)).await?;
    for offset in [10, 11, 1 << 40] {
        for what in [Seek::Data, Seek::Hole] {
            refused("behind the end", bench.seek(&file, offset, what).await, &[Error::NoData])?;
        }
    }
    same("hole at the end", bench.seek(&file, 3, Seek::Hole).await, Ok(10))
}

async fn what_is_unstable_is_data(bench: Bench) -> Outcome {
    let mut content = vec![0; 2 * FAR as usize];
    let file = bench.make("a", New::File).await?.handle;
    bench.put(&file, 2 * FAR - 1, b"\0").await?;
    bench.put_unstable(&file, FAR, &full(100)).await?;
    content[FAR as usize..FAR as usize + 100].copy_from_slice(&full(100));
    bench.tells_of(&file, &content).await.map(drop)
}

/// Whatever the server can do, its methods and its answers must agree.
async fn without_space_that_is_said(bench: Bench) -> Outcome {
    let content = full(10_000);
    let file = bench.file("a", &content).await?;
    let punched = bench.space(&file, change(SpaceKind::Punch, 0, 4096)).await;
    if matches!(punched, Err(Error::NotSupported)) {
        bench.has_bytes(&file, &content).await?;
    }
    let hole = bench.seek(&file, 5000, Seek::Hole).await;
    match bench.remote.tells_holes() {
        true => same("hole", hole, Ok(10_000)),
        false => same("hole", hole, Err(Error::NotSupported)),
    }
}
