//! Crashes of the server's machine while clients retain files: what they told last may be undone.

use larder_wire::meta::calls::{self, LookedAt, Retention};
use larder_wire::meta::words::{
    ExtentState, FileId, LeaseKind, Medium, Mode, Returned, SetAttributes,
};
use larder_wire::meta::{Res, Status};
use larder_wire::xdr::Array;

use super::{B, ignore, is_there, late, rig, taken_after_crash, write};
use crate::engine::memory::MemoryEngine;
use crate::engine::{Engine, Writes};
use crate::rights::Caller;
use crate::store::records::{Inode, Retaining};
use crate::store::{Txn, key};
use crate::tests::rig::{Rig, decode, dentry, refused, size};
use crate::volume::{self, Lost};
use crate::whereabouts::Whereabouts;

const ROOT: FileId = FileId::ROOT;
const CLIENT: [u8; 16] = [1; 16];

/// Makes a volatile file, of which the client retains so many bytes.
fn retained(rig: &mut Rig, text: &str, bytes: u64) -> FileId {
    let opened = rig.create_volatile(ROOT, text).unwrap();
    rig.retain_bytes(opened.file.after.file, bytes);
    rig.close(opened.open).unwrap();
    opened.file.after.file
}

/// The same, long before what comes next.
fn retained_long(rig: &mut Rig, text: &str, bytes: u64) -> FileId {
    let file = retained(rig, text, bytes);
    rig.sync_all();
    file
}

fn inode(engine: &MemoryEngine, file: FileId) -> Option<Inode> {
    let (view, none) = (engine.view().unwrap(), Writes::new());
    Txn::new(&*view, &none).get(&key::inode(file)).unwrap()
}

fn rename(rig: &mut Rig, from: &str, to: &str) {
    let (sequence, keep) = (rig.next(), false);
    let (from, to) = (dentry(ROOT, from), dentry(ROOT, to));
    rig.call(&Caller::root(), calls::Rename { sequence, from, to, keep }).unwrap();
}

/// The file is lost as a whole with so many bytes under this name, the volume lists it, and one
/// loss is on record for it; also for the next server.
fn check_lost(engine: &MemoryEngine, (file, name): (FileId, &str), bytes: u64) {
    let path = Some(format!("/{name}").into_bytes());
    for _ in 0..2 {
        assert_eq!(
            volume::lost(engine).unwrap(),
            [(file, Lost { bytes, path: path.clone() })].into()
        );
        let losses = volume::losses(engine).unwrap();
        assert_eq!(
            losses.iter().map(|one| (one.files, one.bytes)).collect::<Vec<_>>(),
            [(1, bytes)]
        );
        let inode = inode(engine, file).unwrap();
        assert_eq!(
            (inode.whereabouts, inode.attributes.size),
            (Whereabouts::Lost { bytes }, bytes)
        );
        assert_eq!(crate::check(engine).unwrap(), []);
        volume::take(engine).unwrap();
    }
}

/// Every number of late commits that a crash keeps of making, writing, retaining and moving a file:
/// it is lost with the bytes that its client told last, or gone, and never empty or partly there.
#[test]
fn a_crash_leaves_a_retained_file_lost_or_gone() {
    let mut rig = rig();
    let file = retained(&mut rig, "v", 5000);
    rig.retain(file, Retention::Retained(6000)).unwrap();
    write(&mut rig, file, 0..B);
    write(&mut rig, file, B..6000);
    let moved = rig.engine.late();
    rig.retain(file, Retention::Released).unwrap();
    let all = rig.engine.late();
    assert_eq!((all - moved, all >= 8), (1, true), "no disk was waited for");
    let mut seen = Vec::new();
    for kept in 0..=all {
        let engine = taken_after_crash(&rig, kept);
        assert_eq!(crate::check(&engine).unwrap(), [], "{kept}");
        let Some(inode) = inode(&engine, file) else {
            assert!(volume::lost(&engine).unwrap().is_empty(), "{kept}");
            continue;
        };
        match inode.whereabouts {
            Whereabouts::Lost { bytes } => {
                check_lost(&engine, (file, "v"), bytes);
                seen.push(bytes);
            }
            Whereabouts::AtDisks => {
                assert_eq!(kept, all, "the client has not told that it has moved all");
                let lost = volume::lost(&engine).unwrap();
                assert_eq!(lost[&file].bytes, 2 * B, "what is in memory may not be the last");
                assert_eq!(volume::losses(&engine).unwrap().len(), 1);
            }
            other => panic!("{kept}: {other:?}"),
        }
    }
    seen.dedup();
    assert_eq!(seen, [5000, 6000]);
    rig.sync_all();
    let rig = rig.crash_of_machine(0);
    assert_eq!((is_there(&rig, "v"), volume::lost(&rig.engine).unwrap().len()), (Some(file), 0));
    rig.check();
}

/// What was told long before the crash is so after it: who asks waits, and has the bytes.
#[test]
fn what_was_retained_long_before_a_crash_is_still_with_its_client() {
    let mut rig = rig();
    let file = retained_long(&mut rig, "v", 5000);
    let other = rig.begin_session([2; 16], 1).unwrap().session;
    let mut rig = rig.crash_of_machine(0);
    assert_eq!(rig.records::<Retaining>(b'c'), [(key::retaining(CLIENT, file), Retaining {})]);
    assert_eq!((volume::lost(&rig.engine).unwrap().len(), volume::losses(&rig.engine).unwrap()), {
        (0, vec![])
    });
    let mut looked = rig.look(other, file, LeaseKind::Read);
    assert!(looked.try_recv().is_err(), "it would find no bytes");
    let recalled = rig.recaller.take();
    let [recall] = recalled[..] else { panic!("{recalled:?}") };
    write(&mut rig, file, 0..5000);
    rig.retain(file, Retention::Released).unwrap();
    let keep = LeaseKind::None;
    let returned = Array(vec![Returned { file, number: recall.number, keep }]);
    let sequence = rig.next();
    rig.call(&Caller::root(), calls::ReturnLease { sequence, returned }).unwrap();
    let seen: Res<LookedAt> = decode(&looked.try_recv().unwrap());
    let seen = seen.unwrap().found.unwrap();
    assert_eq!(seen.attributes.size, 5000);
    let states = seen.layout.extents.0.iter().map(|extent| extent.state);
    assert!(states.eq([ExtentState::Committed]));
    rig.check();
}

/// A file that a client has retained for long: each thing that it tells of it, or does to its name,
/// waits for the disk once, and a crash after that leaves the file lost, whatever was undone: the
/// client may have moved or dropped the bytes since.
#[test]
fn what_its_client_does_to_a_file_that_it_retained_for_long_is_marked_before_it_is_late() {
    type Step = fn(&mut Rig, FileId);
    let steps: [(&str, u64, &str, Step); 6] = [
        ("more bytes", 9000, "v", |rig, file| {
            rig.retain(file, Retention::Retained(9000)).unwrap();
        }),
        ("a part is moved", 5000, "v", |rig, file| write(rig, file, 0..B)),
        ("attributes", 5000, "v", |rig, file| {
            rig.set(file, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
        }),
        ("another name", 5000, "w", |rig, _| rename(rig, "v", "w")),
        ("a second name", 5000, "w", |rig, file| {
            let (sequence, dentry) = (rig.next(), dentry(ROOT, "w"));
            rig.call(&Caller::root(), calls::Link { sequence, file, dentry }).unwrap();
        }),
        ("given up", 5000, "v", |rig, file| rig.retain(file, Retention::GivenUp).unwrap()),
    ];
    for (what, bytes, name, step) in steps {
        let mut rig = rig();
        let file = retained_long(&mut rig, "v", 5000);
        // The blocks that it will write are there.
        ignore(rig.alloc_on(Medium::Memory(1), file, 0..2 * B).unwrap());
        rig.sync_all();
        assert_eq!(late(&mut rig, |rig| step(rig, file)), 0, "{what}");
        let engine = taken_after_crash(&rig, 0);
        check_lost(&engine, (file, name), bytes);
        // From then on nobody waits.
        if what != "given up" {
            let next = |rig: &mut Rig| rig.retain(file, Retention::GivenUp).unwrap();
            assert_eq!(late(&mut rig, next), 0, "a loss is on record durably");
        }
    }
}

/// The removal of a file that was retained for long is durable with its answer: its client drops
/// the bytes. That of one that was made a moment before waits for nothing; undone, it leaves the
/// file lost.
#[test]
fn a_removal_of_a_retained_file_that_is_undone_leaves_it_lost() {
    let removals: [fn(&mut Rig); 2] = [
        |rig| ignore(rig.remove(ROOT, "v").unwrap()),
        |rig| {
            let opened = rig.create_volatile(ROOT, "other").unwrap();
            rig.close(opened.open).unwrap();
            rename(rig, "other", "v");
        },
    ];
    for remove in removals {
        let mut rig = rig();
        let old = retained_long(&mut rig, "v", 5000);
        remove(&mut rig);
        assert_eq!(inode(&taken_after_crash(&rig, 0), old), None, "it is gone");
        assert_eq!(rig.records::<Retaining>(b'c'), []);
        let new = retained(&mut rig, "new", 5000);
        rig.sync();
        rename(&mut rig, "new", "v");
        let before = rig.engine.late();
        remove(&mut rig);
        let made = rig.engine.late();
        assert!(made > before, "no disk is waited for");
        check_lost(&taken_after_crash(&rig, before), (new, "v"), 5000);
        let mut rig = rig.crash_of_machine(before);
        // Its client is told so, and who wants the name has it.
        rig.be_alone(new);
        assert_eq!(rig.retain(new, Retention::Retained(5000)), Err(Status::Lost));
        assert_eq!(refused(rig.alloc(new, 0..B)), Status::Lost);
        let layout = rig.layout(new, Mode::Read).unwrap().layout;
        assert_eq!(layout.extents.0[0].state, ExtentState::Lost);
        rig.set(new, size(0)).unwrap();
        assert_eq!(volume::lost(&rig.engine).unwrap().len(), 0);
        rig.check();
    }
}

/// A crash that undoes that a file was lost, or that it was emptied since: it is lost, and the
/// event is told once.
#[test]
fn a_lost_file_is_lost_after_a_crash() {
    let mut rig = rig();
    let file = retained(&mut rig, "v", 5000);
    rig.retain(file, Retention::GivenUp).unwrap();
    check_lost(&taken_after_crash(&rig, 0), (file, "v"), 5000);
    rig.set(file, size(0)).unwrap();
    assert_eq!(rig.engine.late(), 1);
    check_lost(&taken_after_crash(&rig, 0), (file, "v"), 5000);
    let mut rig = rig.crash_of_machine(0);
    let other = rig.begin_session([2; 16], 1).unwrap().session;
    let seen: Res<LookedAt> =
        decode(&rig.look(other, file, LeaseKind::Read).try_recv().expect("nobody is waited for"));
    let seen = seen.unwrap().found.unwrap();
    assert_eq!((seen.attributes.size, seen.layout.extents.0[0].state), (5000, ExtentState::Lost));
    rig.check();
}
