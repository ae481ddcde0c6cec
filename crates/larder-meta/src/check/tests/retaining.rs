//! Damage to what is on record of files whose bytes a client has, or had.

use larder_wire::meta::FILE_BYTES_MAX;
use larder_wire::meta::calls::Retention;
use larder_wire::meta::words::Mode;

use super::*;
use crate::retained::NO_DISK;
use crate::store::records::Retaining;
use crate::whereabouts::{NOBODY, Whereabouts};

const CLIENT: [u8; 16] = [1; 16];
const BYTES: u64 = 5000;

/// `/lost` was lost with its client, which retains `/retained`, and has begun to move `/moving`.
struct Files {
    rig: Rig,
    retained: FileId,
    moving: FileId,
    lost: FileId,
}

fn files() -> Files {
    let mut rig = Rig::new(64);
    let [retained, moving, lost] = ["retained", "moving", "lost"].map(|text| {
        let opened = rig.create(&Caller::root(), FileId::ROOT, text).unwrap();
        rig.close(opened.open).unwrap();
        rig.retain_bytes(opened.file.after.file, BYTES);
        opened.file.after.file
    });
    rig.write(moving, 0..B).unwrap();
    rig.retain(lost, Retention::GivenUp).unwrap();
    rig.check();
    Files { rig, retained, moving, lost }
}

impl Files {
    fn whereabouts(&self) -> [Whereabouts; 3] {
        let of = |file| inode(&self.rig.engine, file).whereabouts;
        [self.retained, self.moving, self.lost].map(of)
    }
}

const RETAINED: Whereabouts = Whereabouts::Retained { client: CLIENT, bytes: BYTES };
const MOVING: Whereabouts = Whereabouts::Moving { client: CLIENT, bytes: BYTES };
const LOST: Whereabouts = Whereabouts::Lost { bytes: BYTES };

/// What a repair makes of the three files.
type After = [Whereabouts; 3];
/// Description, faults that are found, how the damage is done, and what a repair leaves.
type Damage = (&'static str, &'static [FaultKind], fn(&mut Txn<'_>, &Files), After);

fn put(txn: &mut Txn<'_>, client: [u8; 16], file: FileId) {
    txn.put(key::retaining(client, file), &Retaining {});
}

/// Blocks that were free are a file's.
fn give_blocks(txn: &mut Txn<'_>, file: FileId) {
    let extent = a_free_block(txn);
    txn.put(key::extent(file, B), &extent);
    change(txn, file, |inode| (inode.attributes.size, inode.attributes.used) = (B, B));
}

const SAME: After = [RETAINED, MOVING, LOST];

const DAMAGED: &[Damage] = &[
    ("nothing", &[], |_, _| {}, SAME),
    (
        "the record of a file that is retained",
        &[Is::Retained],
        |txn, files| txn.delete(key::retaining(CLIENT, files.retained)),
        SAME,
    ),
    (
        "the record of a lost file",
        &[Is::Retained],
        |txn, files| txn.delete(key::retaining(NOBODY, files.lost)),
        SAME,
    ),
    ("a record of no file", &[Is::Retained], |txn, _| put(txn, CLIENT, FileId(500)), SAME),
    (
        "another client's record",
        &[Is::Retained],
        |txn, files| put(txn, [9; 16], files.moving),
        SAME,
    ),
    (
        "a record that the file is lost",
        &[Is::Retained],
        |txn, files| put(txn, NOBODY, files.retained),
        SAME,
    ),
    (
        "a file that the disks have",
        &[Is::Retained],
        |txn, files| change(txn, files.retained, |inode| inode.whereabouts = Whereabouts::AtDisks),
        [Whereabouts::AtDisks, MOVING, LOST],
    ),
    (
        "a file with another client, which has no session",
        &[Is::Session, Is::Retained],
        |txn, files| {
            let client = [9; 16];
            change(txn, files.retained, |inode| {
                inode.whereabouts = Whereabouts::Retained { client, bytes: BYTES };
            });
        },
        [LOST, MOVING, LOST],
    ),
    (
        "the client's session",
        &[Is::Session, Is::Session, Is::Session],
        |txn, files| txn.delete(key::session(files.rig.session)),
        [LOST, LOST, LOST],
    ),
    (
        "bytes at the disks",
        &[Is::Retained],
        |txn, files| give_blocks(txn, files.retained),
        [MOVING, MOVING, LOST],
    ),
    (
        "the size of a lost file",
        &[Is::Size],
        |txn, files| change(txn, files.lost, |inode| inode.attributes.size = 1),
        SAME,
    ),
    (
        "a directory that is retained",
        &[Is::Retained],
        |txn, _| change(txn, FileId::ROOT, |inode| inode.whereabouts = RETAINED),
        SAME,
    ),
];

/// Each damage, the exact faults that are found, and what a repair makes of it: bytes that nobody
/// can have are lost, which is on record once; others are where they were.
#[test]
fn what_clients_retain_is_mended_and_what_none_can_have_is_lost() {
    for (what, wanted, damaging, after) in DAMAGED {
        let files = files();
        let engine = &files.rig.engine;
        assert_eq!(files.whereabouts(), SAME);
        damage(engine, |txn| damaging(txn, &files));
        let found = check(engine).unwrap();
        assert_eq!(kinds(&found), *wanted, "{what}: {found:?}");
        mends(engine);
        assert_eq!(files.whereabouts(), *after, "{what}");
        let newly = after.iter().filter(|one| **one == LOST).count() - 1;
        let mut losses = volume::losses(engine).unwrap();
        assert_eq!(losses.len(), 1 + usize::from(newly > 0), "{what}");
        if newly > 0 {
            let loss = losses.pop().unwrap();
            assert_eq!((loss.disk, loss.files, loss.bytes), {
                (NO_DISK, newly as u64, newly as u64 * BYTES)
            });
            assert_eq!(loss.at_s, LATER.seconds);
        }
        let lost = volume::lost(engine).unwrap();
        let is_lost = after.iter().zip([files.retained, files.moving, files.lost]);
        let is_lost = is_lost.filter(|(one, _)| **one == LOST).map(|(_, file)| (file, BYTES));
        assert!(lost.iter().map(|(file, lost)| (*file, lost.bytes)).eq(is_lost), "{what}");
        for file in lost.keys() {
            assert_eq!(inode(engine, *file).attributes.size, BYTES, "{what}");
        }
    }
}

/// A repair does not show a file empty that was lost with its inode's client: whoever reads it is
/// told so by the next server.
#[test]
fn who_reads_what_a_repair_found_lost_is_told() {
    let Files { rig, retained, .. } = files();
    damage(&rig.engine, |txn| txn.delete(key::session(rig.session)));
    mends(&rig.engine);
    let mut rig = Rig::over(rig.engine.clone(), std::sync::Arc::clone(&rig.disks), true);
    rig.session = rig.begin_session([3; 16], 1).unwrap().session;
    let layout = rig.layout(retained, Mode::Read).unwrap().layout;
    let states: Vec<_> = layout.extents.0.iter().map(|one| (one.length, one.state)).collect();
    assert_eq!(states, [(BYTES, larder_wire::meta::words::ExtentState::Lost)]);
    rig.check();
}

/// The name of a file whose inode is gone goes as other such names do, with what a client retained.
#[test]
fn what_is_retained_of_a_lost_inode_is_forgotten() {
    let files = files();
    damage(&files.rig.engine, |txn| txn.delete(key::inode(files.retained)));
    assert_eq!(kinds(&mends(&files.rig.engine)), [Is::Retained, Is::Name]);
}

/// A record says how many bytes of a file a client has: more than a file can have make no sense,
/// and are not mended.
#[test]
fn more_bytes_than_a_file_can_have_are_no_record() {
    let files = files();
    let most = |bytes| {
        damage(&files.rig.engine, |txn| {
            change(txn, files.lost, |inode| inode.whereabouts = Whereabouts::Lost { bytes });
        });
        check(&files.rig.engine).map(|found| kinds(&found))
    };
    assert_eq!(most(FILE_BYTES_MAX).unwrap(), [Is::Size]);
    assert!(matches!(most(FILE_BYTES_MAX + 1), Err(VolumeError::Unreadable)));
}
