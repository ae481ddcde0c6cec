//! The superblock of a store: text that says what the file is, and whose.
//!
//! ```text
//! larder disk format 2
//! volume 000102030405060708090a0b0c0d0e0f
//! disk 3
//! size 1073741824
//! setup secure
//! store 0f0e0d0c0b0a09080706050403020100
//! generation 12
//! check 1a2b3c4d
//! ```
//!
//! `check` is a CRC-32C over the lines above it. The rest of the superblock's 4096 bytes is zeros.
//! The text is shorter than a sector, so it is written as a whole or not at all. A new store has
//! its length, durably, before it has a superblock: a file of the right length without one is a
//! store that was not used yet. So is a block device whose first MiB is zeros, where every file
//! system leaves its mark; its map is cleared before it has a superblock. Format 1 lacks the store
//! and its generation; such a store gets them when it is opened.

use std::io;
use std::sync::Arc;

use larder_io::{Disk, DiskFile, OpenMode};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::BLOCK_BYTES;
use larder_wire::disk::words::StoreState;
use larder_wire::seal::Setup;
use thiserror::Error;

/// Bytes of the superblock.
pub(super) const SUPERBLOCK_BYTES: u64 = 4096;
/// Of a new store these bytes are zeros.
const EMPTY_BYTES: u64 = 1 << 20;
const FORMAT: &str = "larder disk format ";
const VERSION: &str = "2";
const WITHOUT_STATE: &str = "1";

/// The volume and number of the disk to which a store belongs, and how requests to it are
/// protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The volume.
    pub volume: VolumeId,
    /// The disk's number in it.
    pub disk: DiskId,
    /// The setup of the volume.
    pub setup: Setup,
}

/// Why a store cannot be opened. Each is one line for people.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("another process uses it")]
    InUse,
    /// The file contains something else.
    #[error("it is not empty, and not the store of a disk")]
    NotAStore,
    /// The device contains something else.
    #[error(
        "this device is in use, or was: if nothing on it is needed, clear its first MiB \
         (blkdiscard -z -l 1M)"
    )]
    NotEmpty,
    /// The device is too short.
    #[error("the device has {found} bytes, and a disk of this size takes {wanted}")]
    TooSmall {
        /// Its length.
        found: u64,
        /// What the store takes.
        wanted: u64,
    },
    /// It has another format.
    #[error("it has format {0:?}; this larder knows format {VERSION}")]
    Format(String),
    /// Its superblock is damaged.
    #[error("its superblock is damaged")]
    Damaged,
    /// It belongs to another volume, to another disk, has another size, or another setup.
    #[error("its {what} is {found}, not {wanted}")]
    Other {
        /// The property that differs.
        what: &'static str,
        /// The value in its superblock.
        found: String,
        /// The expected value.
        wanted: String,
    },
    /// The file is too short.
    #[error("it has {found} bytes of the {wanted} that it had: it was truncated")]
    Truncated {
        /// Its length.
        found: u64,
        /// The length that it should have.
        wanted: u64,
    },
    /// No store can have this size.
    #[error("a size of {0} bytes: it must be a multiple of {BLOCK_BYTES}, and not zero")]
    Size(u64),
    /// The disk below failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Opens the file of a store, or makes it, and checks or writes its superblock.
pub(super) fn open(
    disk: &dyn Disk,
    name: &str,
    identity: &Identity,
    size: u64,
) -> Result<(Arc<dyn DiskFile>, StoreState), OpenError> {
    if size == 0 || !size.is_multiple_of(BLOCK_BYTES) || size > 1 << 60 {
        return Err(OpenError::Size(size));
    }
    let file = disk.open(name, OpenMode::Create)?;
    if !file.try_lock_exclusive()? {
        return Err(OpenError::InUse);
    }
    let wanted = super::layout(size).1 + size;
    let (found, is_device) = (file.len()?, file.is_device()?);
    let mut first = vec![0; found.min(EMPTY_BYTES) as usize];
    file.read_exact_at(&mut first, 0)?;
    let superblock = &first[..first.len().min(SUPERBLOCK_BYTES as usize)];
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let is_new = match is_device {
        true if is_zero(superblock) && !is_zero(&first) => return Err(OpenError::NotEmpty),
        true if is_zero(superblock) && found < wanted => {
            return Err(OpenError::TooSmall { found, wanted });
        }
        true => is_zero(superblock),
        false => (found == 0 || found == wanted) && is_zero(superblock),
    };
    if is_new {
        let state = make(disk, &*file, identity, size)?;
        return Ok((file, state));
    }
    let state = match check(superblock, identity, size) {
        Err(OpenError::NotAStore) if is_device => Err(OpenError::NotEmpty),
        state => state,
    }?;
    if found < wanted {
        return Err(OpenError::Truncated { found, wanted });
    }
    let state = match state {
        Some(state) => state,
        None => {
            let state = new_state();
            write(&*file, identity, size, state)?;
            state
        }
    };
    Ok((file, state))
}

fn new_state() -> StoreState {
    StoreState { id: larder_io::secret::random(), generation: 0 }
}

/// Writes the superblock, durably.
pub(super) fn write(
    file: &dyn DiskFile,
    identity: &Identity,
    size: u64,
    state: StoreState,
) -> io::Result<()> {
    let mut superblock = text(identity, size, state).into_bytes();
    superblock.resize(SUPERBLOCK_BYTES as usize, 0);
    file.write_at(&superblock, 0)?;
    file.sync_data()
}

fn make(
    disk: &dyn Disk,
    file: &dyn DiskFile,
    identity: &Identity,
    size: u64,
) -> Result<StoreState, OpenError> {
    let (map_bytes, start) = super::layout(size);
    match file.is_device()? {
        true => {
            let zeros = vec![0; EMPTY_BYTES as usize];
            let end = SUPERBLOCK_BYTES + map_bytes as u64;
            for at in (0..end).step_by(zeros.len()) {
                let length = (end - at).min(EMPTY_BYTES) as usize;
                file.write_at(&zeros[..length], at)?;
            }
        }
        false => file.set_len(start + size)?,
    }
    file.sync_data()?;
    disk.sync_dir("")?;
    let state = new_state();
    write(file, identity, size, state)?;
    Ok(state)
}

fn text(identity: &Identity, size: u64, state: StoreState) -> String {
    let lines: String = fields(identity, size)
        .into_iter()
        .map(|(name, value)| format!("{name} {value}\n"))
        .collect();
    let StoreState { id, generation } = state;
    let id = VolumeId(id).to_text();
    let lines = format!("{FORMAT}{VERSION}\n{lines}store {id}\ngeneration {generation}\n");
    format!("{lines}check {:08x}\n", crc32c::crc32c(lines.as_bytes()))
}

fn fields(identity: &Identity, size: u64) -> [(&'static str, String); 4] {
    [
        ("volume", identity.volume.to_text()),
        ("disk", identity.disk.0.to_string()),
        ("size", size.to_string()),
        ("setup", identity.setup.name().to_owned()),
    ]
}

/// Checks that a superblock is that of this disk, with this size. Returns which store it is, unless
/// its format lacks that.
fn check(
    superblock: &[u8],
    identity: &Identity,
    size: u64,
) -> Result<Option<StoreState>, OpenError> {
    let end = superblock.iter().position(|byte| *byte == 0).unwrap_or(superblock.len());
    let text = std::str::from_utf8(&superblock[..end]).map_err(|_| OpenError::NotAStore)?;
    let format = text.lines().next().and_then(|line| line.strip_prefix(FORMAT));
    let format = format.ok_or(OpenError::NotAStore)?;
    let (lines, check) = text.rsplit_once("check ").ok_or(OpenError::Damaged)?;
    if check.trim_end() != format!("{:08x}", crc32c::crc32c(lines.as_bytes())) {
        return Err(OpenError::Damaged);
    }
    if format != VERSION && format != WITHOUT_STATE {
        return Err(OpenError::Format(format.to_owned()));
    }
    let found = |name: &str| {
        let line = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.ok_or(OpenError::Damaged)
    };
    for (what, wanted) in fields(identity, size) {
        let found = found(what)?;
        if found != wanted {
            return Err(OpenError::Other { what, found: found.to_owned(), wanted });
        }
    }
    if format == WITHOUT_STATE {
        return Ok(None);
    }
    let id = VolumeId::from_text(found("store")?).ok_or(OpenError::Damaged)?.0;
    let generation = found("generation")?.parse().map_err(|_| OpenError::Damaged)?;
    Ok(Some(StoreState { id, generation }))
}
