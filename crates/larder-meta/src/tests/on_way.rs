//! Commits of bytes that may still be in flight to the disks.

use larder_wire::meta::calls::{self, CommitExtents};
use larder_wire::meta::words::{DiskId, ExtentState, FileId, Layout, Mode, Sequence};
use larder_wire::meta::{BLOCK_BYTES, Res, Status};
use tokio::sync::oneshot;

use super::rig::{Rig, decode, refused};
use crate::change::Reply;
use crate::disks::CapabilityName;
use crate::rights::Caller;

const ROOT: FileId = FileId::ROOT;
const B: u64 = BLOCK_BYTES;

/// A rig whose disks answer when the test says so, with a file that has two blocks to be written.
struct OnWay {
    rig: Rig,
    file: FileId,
    layout: Layout,
    call: CommitExtents,
}

fn name(layout: &Layout, at: usize) -> CapabilityName {
    use larder_wire::capability::{CapabilityId, GroupId};
    let capability = &layout.grants.0[at].capability.0;
    let id = u32::from_be_bytes(capability[4..8].try_into().unwrap());
    CapabilityName { group: GroupId(1), id: CapabilityId(id) }
}

impl OnWay {
    fn new(mut rig: Rig) -> OnWay {
        let opened = rig.create(&Caller::root(), ROOT, "new").unwrap();
        let file = opened.file.after.file;
        rig.close(opened.open).unwrap();
        let layout = rig.alloc(file, 0..2 * B).unwrap().layout;
        let mut call = rig.committing(file, &layout, 0..B + 1);
        call.on_way = true;
        rig.is_quick = false;
        OnWay { rig, file, layout, call }
    }

    fn one() -> OnWay {
        OnWay::new(Rig::new(64))
    }

    /// Sends the commit.
    fn send(&mut self) -> oneshot::Receiver<Reply> {
        self.rig.group(vec![(&Caller::root(), self.call.clone().into())]).pop().unwrap()
    }

    /// Writes the blocks at all disks.
    fn write(&self) {
        let extent = self.layout.extents.0[0];
        let bytes = extent.position..extent.position + extent.length;
        for at in 0..self.layout.grants.0.len() {
            assert!(self.rig.disks.write(name(&self.layout, at), &bytes, 7));
        }
    }

    fn size(&self) -> u64 {
        self.rig.attributes(self.file).unwrap().size
    }
}

fn answer(reply: &mut oneshot::Receiver<Reply>) -> Option<Res<calls::FileChanged>> {
    reply.try_recv().ok().map(|reply| decode(&reply))
}

#[test]
fn a_commit_of_what_is_on_its_way_waits_for_the_disks() {
    for is_written in [true, false] {
        let mut on_way = OnWay::one();
        let mut reply = on_way.send();
        assert!(answer(&mut reply).is_none(), "the disk has said nothing");
        assert_eq!(on_way.size(), 0);
        // Other calls proceed in the meantime, and a repeated call joins the first.
        on_way.rig.is_quick = true;
        let mut again = on_way.send_again();
        assert!(answer(&mut again).is_none());
        if is_written {
            on_way.write();
        }
        on_way.rig.acknowledge_all();
        let replies = [answer(&mut reply), answer(&mut again)].map(Option::unwrap);
        assert_eq!(replies[0], replies[1]);
        match is_written {
            true => assert_eq!(replies[0].as_ref().unwrap().file.after.size, B + 1),
            false => assert_eq!(replies[0], Err(Status::NotWritten)),
        }
        let state = on_way.rig.layout(on_way.file, Mode::Write).unwrap().layout.extents.0[0].state;
        assert_eq!(state == ExtentState::Committed, is_written);
        assert_eq!(on_way.size(), if is_written { B + 1 } else { 0 });
        // Refused, it can be made as any other.
        let done = on_way.rig.commit(on_way.file, &on_way.layout, 0..B + 1);
        assert_eq!(done.unwrap().file.after.size, B + 1);
        on_way.rig.check();
    }
}

impl OnWay {
    /// Sends it once more, without waiting for anything.
    fn send_again(&mut self) -> oneshot::Receiver<Reply> {
        let quick = std::mem::replace(&mut self.rig.is_quick, false);
        let reply = self.send();
        self.rig.is_quick = quick;
        reply
    }
}

/// What may come between a commit and the disks' report: no block becomes part of the file that is
/// not the session's and written by then.
#[test]
fn what_comes_between_a_commit_and_the_disks_word_is_heeded() {
    type Between = (&'static str, fn(&mut OnWay), Status);
    let betweens: [Between; 4] = [
        ("its session ends", end, Status::BadSession),
        ("the file is removed", remove, Status::Stale),
        ("the disk goes", |on_way| on_way.rig.disks.go_away(DiskId(1)), Status::NotWritten),
        (
            "the disk loses it",
            |on_way| {
                let extent = on_way.layout.extents.0[0];
                let bytes = extent.position..extent.position + extent.length;
                on_way.rig.disks.clear_now(DiskId(1), &bytes);
            },
            Status::NotWritten,
        ),
    ];
    for (what, between, status) in betweens {
        let mut on_way = OnWay::one();
        let mut reply = on_way.send();
        on_way.write();
        between(&mut on_way);
        on_way.rig.acknowledge_all();
        let answered = answer(&mut reply).expect(what);
        assert_eq!(refused(answered), status, "{what}");
        on_way.rig.check();
    }
}

fn remove(on_way: &mut OnWay) {
    let sequence = Sequence { slot: 1, ..on_way.rig.next() };
    let dentry = super::rig::dentry(ROOT, "new");
    drop(on_way.rig.group_call(calls::Remove { sequence, dentry }));
}

fn end(on_way: &mut OnWay) {
    let session = on_way.rig.session;
    drop(on_way.rig.group_call(calls::EndSession { session }));
}

/// The server dies while a commit waits, or when it was carried out and not answered: sent again,
/// it waits again, or gets its answer.
#[test]
fn a_commit_of_what_is_on_its_way_outlives_the_server() {
    for is_carried_out in [false, true] {
        let mut on_way = OnWay::one();
        drop(on_way.send());
        on_way.write();
        if is_carried_out {
            on_way.rig.acknowledge_all();
        }
        on_way.rig.is_quick = true;
        let mut rig = on_way.rig.crash();
        rig.is_quick = false;
        on_way.rig = rig;
        assert_eq!(on_way.size(), if is_carried_out { B + 1 } else { 0 });
        let mut reply = on_way.send();
        on_way.rig.acknowledge_all();
        assert_eq!(answer(&mut reply).unwrap().unwrap().file.after.size, B + 1);
        on_way.rig.check();
    }
}

/// Each disk that is to have a copy is waited for, and no other.
#[test]
fn a_commit_with_copies_waits_for_each_disk_that_it_names() {
    for (named, written, is_committed) in
        [(&[1, 2][..], 2, true), (&[1, 2], 1, false), (&[1], 1, true)]
    {
        let mut on_way = OnWay::new(Rig::with_copies(2, &[64, 64]));
        let named = named.iter().map(|disk| DiskId(*disk)).collect();
        on_way.call.copies = larder_wire::xdr::Array(named);
        let mut reply = on_way.send();
        let extent = on_way.layout.extents.0[0];
        let bytes = extent.position..extent.position + extent.length;
        for at in 0..written {
            assert!(on_way.rig.disks.write(name(&on_way.layout, at), &bytes, 7));
        }
        on_way.rig.acknowledge_all();
        let answered = answer(&mut reply).unwrap();
        assert_eq!(answered.is_ok(), is_committed, "{answered:?}");
        on_way.rig.check();
    }
}

/// Nonsense is refused, in flight or not.
#[test]
fn a_commit_of_nonsense_on_its_way_is_refused() {
    for (position, length) in
        [(u64::MAX, 1), (0, u64::MAX), (u64::MAX - B, B), (1 << 60, B), (B, 0)]
    {
        let mut on_way = OnWay::one();
        let part = &mut on_way.call.written.0[0];
        (part.position, part.length) = (position, length);
        let mut reply = on_way.send();
        on_way.rig.acknowledge_all();
        assert!(answer(&mut reply).unwrap().is_err());
        assert_eq!(on_way.size(), 0);
        on_way.rig.check();
    }
}
