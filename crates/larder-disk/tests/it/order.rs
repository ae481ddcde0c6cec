//! Order: an answer to the metadata server, or to a client that reconnects, comes after everything
//! that was admitted before.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};

use larder_disk::{Identity, Store};
use larder_io::{Disk, DiskFile, FsKind, MemDisk, OpenMode, Space, Stamp};
use larder_wire::capability::{GroupId, KeyEpoch, Mode};
use larder_wire::disk::session::AskError;
use larder_wire::disk::words::{EpochHead, GroupReplaceHead, Refusal};
use larder_wire::seal::Setup;

use crate::stand::{DISK, GROUP, KEY, SIZE, Stand, VOLUME, extent, write};

/// A gate in front of a file's writes.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many writes it lets through before it is shut; none: all.
    passes: Option<usize>,
    waiting: usize,
}

impl Gate {
    /// Lets this many writes through, and no more.
    fn shut_after(&self, passes: usize) {
        self.state.lock().unwrap().passes = Some(passes);
    }

    fn open(&self) {
        self.state.lock().unwrap().passes = None;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |state| state.passes == Some(0)).unwrap();
        state.passes = state.passes.map(|passes| passes - 1);
        state.waiting -= 1;
    }

    /// Returns when a write waits at the closed gate.
    fn reached(&self) {
        let state = self.state.lock().unwrap();
        let is_free = |state: &mut State| state.waiting == 0 || state.passes != Some(0);
        drop(self.changed.wait_while(state, is_free).unwrap());
    }
}

/// A disk whose files are written through a gate.
#[derive(Debug, Default)]
struct GatedDisk {
    below: MemDisk,
    gate: Arc<Gate>,
}

#[derive(Debug)]
struct GatedFile {
    below: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl Disk for GatedDisk {
    fn open(&self, path: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let below = self.below.open(path, mode)?;
        Ok(Arc::new(GatedFile { below, gate: Arc::clone(&self.gate) }))
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.below.remove(path)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.below.rename(from, to)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.below.list(dir)
    }
    fn create_dir_all(&self, dir: &str) -> io::Result<()> {
        self.below.create_dir_all(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.below.sync_dir(dir)
    }
    fn sync_all(&self) -> io::Result<()> {
        self.below.sync_all()
    }
    fn space(&self) -> io::Result<Space> {
        self.below.space()
    }
    fn kind(&self) -> io::Result<FsKind> {
        self.below.kind()
    }
}

impl DiskFile for GatedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.below.read_at(buf, offset)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.gate.pass();
        self.below.write_at(data, offset)
    }
    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.below.set_len(len_bytes)
    }
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.below.punch_hole(range)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.below.sync_data()
    }
    fn stamp(&self) -> io::Result<Stamp> {
        self.below.stamp()
    }
    fn set_modified(&self, mtime_ns: i64) -> io::Result<()> {
        self.below.set_modified(mtime_ns)
    }

    fn try_lock_exclusive(&self) -> io::Result<bool> {
        self.below.try_lock_exclusive()
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.as_fd()
    }
}

/// What must not be answered before a write that was admitted is done.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Later {
    Revoke,
    ReplaceGroup,
    Rotate,
    Reconnect,
}

/// A write waits in the store. The later request is not answered until it is done; other clients
/// read in the meantime, and a later write is refused.
async fn comes_after_the_write(later: Later) {
    let disk = GatedDisk::default();
    let stand = Arc::new(Stand::on(&disk, Setup::Secure).await);
    stand.tell().await;
    let writer = stand.grant(Mode::ReadWrite, &[(0, 4096)]);
    let session = Arc::new(stand.session(&writer).await);
    let reader = stand.grant(Mode::Read, &[(4096, 4096)]);
    let reading = stand.session(&reader).await;

    disk.gate.shut_after(0);
    let slow = write(&session, &writer, 0, b"slow");
    let writing = std::thread::spawn({
        let stand = Arc::clone(&stand);
        move || {
            tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap()
                .block_on(async { stand.deliver(slow).await })
        }
    });
    disk.gate.reached();
    let asking = tokio::spawn({
        let (stand, writer, session) = (Arc::clone(&stand), writer.clone(), Arc::clone(&session));
        async move {
            match later {
                Later::Revoke => stand.revoke(&writer).await,
                Later::ReplaceGroup => {
                    let (victim, group) = (Some(GROUP), GroupId(11));
                    stand.order(&GroupReplaceHead { victim, group }).await.unwrap();
                }
                Later::Rotate => {
                    stand.order(&EpochHead { key: KeyEpoch(KEY.0 + 2) }).await.unwrap();
                }
                Later::Reconnect => {
                    let nonce = larder_io::secret::random();
                    stand.hail(&writer, nonce, Some(&session)).await.unwrap();
                }
            }
        }
    });
    // It is in force already, and not answered yet.
    let refusal = loop {
        tokio::task::yield_now().await;
        if let Err(refused) = stand.read(&session, &writer, 0, 4).await {
            break refused;
        }
    };
    let expected = match later {
        Later::Revoke => AskError::Refused(Refusal::Revoked),
        Later::ReplaceGroup => AskError::Refused(Refusal::OldGroup),
        Later::Rotate => AskError::Hearsay(Refusal::OldKey),
        Later::Reconnect => AskError::Hearsay(Refusal::UnknownSession),
    };
    assert_eq!(refusal, expected);
    if matches!(later, Later::Revoke | Later::Reconnect) {
        stand.read(&reading, &reader, 4096, 4).await.unwrap();
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(!asking.is_finished(), "{later:?} is answered while the write is under way");
    }
    disk.gate.open();
    asking.await.unwrap();
    let bytes = stand.device.store().read(extent(0, 4)).unwrap();
    assert_eq!(bytes, b"slow");
    writing.join().unwrap().unwrap();
}

#[tokio::test]
async fn what_a_revocation_forbids_is_not_under_way_when_it_is_answered() {
    for later in [Later::Revoke, Later::ReplaceGroup, Later::Rotate] {
        comes_after_the_write(later).await;
    }
}

/// A client that has lost its connection does not know whether one of its writes is still to
/// arrive. After it has made its next session, none does.
#[tokio::test]
async fn a_new_session_begins_after_the_writes_of_the_old_one() {
    comes_after_the_write(Later::Reconnect).await;
}

/// The first write to a block fills the rest of it with zeros, and does not overwrite what another
/// client has written there in the meantime.
#[test]
fn first_writes_of_one_block_do_not_wipe_each_other_out() {
    let disk = GatedDisk::default();
    let identity = Identity { volume: VOLUME, disk: DISK, setup: Setup::Secure };
    let store = Store::open(&disk, "disk", &identity, SIZE).unwrap();
    std::thread::scope(|scope| {
        // The zeros before its bytes and the bytes are written, those after them not yet.
        disk.gate.shut_after(2);
        scope.spawn(|| store.write(1000, &[1; 500]).unwrap());
        disk.gate.reached();
        disk.gate.shut_after(3);
        let second = scope.spawn(|| store.write(3000, &[2; 500]).unwrap());
        // Time for it to go wrong: it ends, or waits for the first.
        (0..10_000).take_while(|_| !second.is_finished()).for_each(|_| std::thread::yield_now());
        disk.gate.open();
    });
    let bytes = store.read(extent(0, 4096)).unwrap();
    assert_eq!(bytes[1000..1500], [1; 500]);
    assert_eq!(bytes[3000..3500], [2; 500]);
}
