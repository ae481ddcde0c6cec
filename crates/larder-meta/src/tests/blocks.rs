//! Every order of a few events around two files on a small disk.

use std::time::Duration;

use larder_wire::meta::BLOCK_BYTES;
use larder_wire::meta::calls;
use larder_wire::meta::words::{FileId, LeaseKind, Medium, Mode, OpenId};
use larder_wire::xdr::Array;

use super::rig::{Rig, size};
use crate::engine::{Engine, Writes};
use crate::rights::Caller;
use crate::store::key::Pool;
use crate::store::records::Blocks;
use crate::store::{Txn, key};

const B: u64 = BLOCK_BYTES;
const DISK_BLOCKS: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(usize),
    /// Opens a file for writing, with blocks given ahead.
    Open(usize),
    /// Closes the file that was opened last.
    Close,
    /// Closed files lose the blocks that they were given ahead.
    Tick,
    Commit(usize),
    Read(usize),
    Truncate(usize),
    EndSession,
    Acknowledge,
    Crash,
}

const STEPS: [Step; 10] = [
    Step::Allocate(0),
    Step::Allocate(1),
    Step::Commit(0),
    Step::Commit(1),
    Step::Read(0),
    Step::Truncate(0),
    Step::Truncate(1),
    Step::EndSession,
    Step::Acknowledge,
    Step::Crash,
];

/// Around a file that is opened with blocks given ahead.
const STEPS_AHEAD: [Step; 10] = [
    Step::Open(0),
    Step::Close,
    Step::Tick,
    Step::Allocate(0),
    Step::Allocate(1),
    Step::Commit(0),
    Step::Truncate(0),
    Step::EndSession,
    Step::Acknowledge,
    Step::Crash,
];

fn take(rig: Rig, files: [FileId; 2], opens: &mut Vec<OpenId>, step: Step) -> Rig {
    let (mut rig, root) = (rig, Caller::root());
    match step {
        Step::Crash => {
            opens.clear();
            return rig.crash();
        }
        Step::Open(file) => {
            let (sequence, what) = (rig.next(), calls::OpenWhat::File(files[file]));
            let (mode, lease, range) = (Mode::Write, LeaseKind::None, (0..2 * B).into());
            let call =
                calls::Open { sequence, what, mode, lease, range, allocate: Some(Medium::Disk) };
            // Refused as long as the call before is not answered.
            opens.extend(rig.ask(&root, call).and_then(Result::ok).map(|opened| opened.open));
        }
        Step::Close => {
            if let Some(open) = opens.pop() {
                let sequence = rig.next();
                rig.ask(&root, calls::Close { sequence, opens: Array(vec![open]) });
            }
        }
        Step::Tick => rig.wait(Duration::ZERO),
        Step::Allocate(file) => {
            let (sequence, open) = (rig.next(), OpenId::NONE);
            let range = (0..2 * B).into();
            rig.ask(
                &root,
                calls::Alloc { sequence, file: files[file], open, range, medium: Medium::Disk },
            );
        }
        Step::Commit(file) => {
            let given = rig.layout(files[file], Mode::Write).unwrap();
            let call = rig.committing(files[file], &given.layout, 0..B + 1);
            rig.ask(&root, call);
        }
        Step::Read(file) => drop(rig.layout(files[file], Mode::Read).unwrap()),
        Step::Truncate(file) => {
            let (sequence, open, set) = (rig.next(), OpenId::NONE, size(0));
            let call = calls::SetAttr { sequence, file: files[file], open, set, guard: None };
            rig.ask(&root, call);
        }
        Step::EndSession => {
            opens.clear();
            let session = rig.session;
            rig.ask(&root, calls::EndSession { session });
            let client = [rig.session.0[0]; 16];
            let begun = rig.ask(&root, calls::Session { client, boot: 9, slots: 4 });
            rig.session = begun.unwrap().unwrap().session;
            rig.sequence = 0;
        }
        Step::Acknowledge => drop(rig.acknowledge()),
    }
    rig
}

/// No capability that a disk accepts covers a block that is free, and each block is somewhere.
fn holds(rig: &Rig, steps: &[Step]) {
    let faults = crate::check(&rig.engine).unwrap();
    assert!(faults.is_empty(), "{faults:?} after {steps:?}");
    let view = rig.engine.view().unwrap();
    let none = Writes::new();
    let txn = Txn::new(&*view, &none);
    for (key, blocks) in txn.scan_all::<Blocks>(&[Pool::Free.tag()]).unwrap() {
        let end = key::last_number(&key).unwrap();
        let free = end - blocks.length..end;
        for covered in rig.disks.covered() {
            let apart = covered.end <= free.start || free.end <= covered.start;
            assert!(apart, "{covered:?} is covered, {free:?} is free after {steps:?}");
        }
    }
}

/// More with the variable `LARDER_META_DEPTH`.
const DEPTH: usize = 3;

#[test]
fn no_free_block_is_ever_covered() {
    every_order(&[], &STEPS);
    every_order(&[Step::Allocate(0), Step::Commit(0), Step::Read(0), Step::Allocate(1)], &STEPS);
    every_order(&[Step::Open(0)], &STEPS_AHEAD);
}

fn every_order(before: &[Step], all: &[Step; 10]) {
    let depth = std::env::var("LARDER_META_DEPTH").map_or(DEPTH, |depth| depth.parse().unwrap());
    let mut count = 0;
    let mut steps: Vec<usize> = vec![0; depth];
    // Steps before this one are those of the history before.
    let mut first_new = 0;
    loop {
        let mut rig = Rig::new(DISK_BLOCKS);
        let root = Caller::root();
        let files = ["a", "b"].map(|name| {
            let opened = rig.create(&root, FileId::ROOT, name).unwrap();
            rig.close(opened.open).unwrap();
            opened.file.after.file
        });
        let mut opens = Vec::new();
        rig.is_quick = false;
        for step in before {
            rig = take(rig, files, &mut opens, *step);
        }
        let taken: Vec<Step> = steps.iter().map(|step| all[*step]).collect();
        for (at, step) in taken.iter().enumerate() {
            rig = take(rig, files, &mut opens, *step);
            if at >= first_new {
                holds(&rig, &taken[..=at]);
            }
        }
        // In the end everything can be had back.
        rig.is_quick = true;
        rig.acknowledge_all();
        rig = take(rig, files, &mut opens, Step::EndSession);
        rig.acknowledge_all();
        for file in files {
            rig.set(file, size(0)).unwrap();
        }
        rig.set(files[0], size(1)).unwrap();
        assert_eq!(rig.free_bytes(), DISK_BLOCKS * B, "after {taken:?}");
        count += 1;
        let Some(next) = steps.iter().rposition(|step| *step + 1 < all.len()) else { break };
        first_new = next;
        steps[next] += 1;
        steps[next + 1..].fill(0);
    }
    assert_eq!(count, all.len().pow(depth as u32));
}

/// The disk has cleared blocks while the store cannot be read: that is not reported again.
#[test]
fn what_a_disk_has_cleared_is_free_although_the_store_could_not_be_read_then() {
    let mut rig = Rig::new(DISK_BLOCKS);
    let opened = rig.create(&Caller::root(), FileId::ROOT, "a").unwrap();
    let file = opened.file.after.file;
    rig.write(file, 0..B).unwrap();
    rig.close(opened.open).unwrap();
    rig.is_quick = false;
    let (sequence, open) = (rig.next(), OpenId::NONE);
    let cut = calls::SetAttr { sequence, file, open, set: size(0), guard: None };
    assert!(rig.ask(&Caller::root(), cut).is_none() && rig.acknowledge());
    rig.engine.fail_reads(true);
    rig.acknowledge_all();
    rig.engine.fail_reads(false);
    assert_eq!(rig.free_bytes(), (DISK_BLOCKS - 1) * B);
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.free_bytes(), DISK_BLOCKS * B);
    rig.check();
}
