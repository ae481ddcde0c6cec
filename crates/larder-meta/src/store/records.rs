//! The store's keys and values. `docs/formats/meta-store.md` lists them.
//!
//! A key is a tag and big-endian numbers, so that records that are read together are stored
//! together. A value is the format of its kind of record and its fields in XDR; another format is
//! refused, with its number. Extents are stored by their *end*: the first one after a point is the
//! one that contains it.

use bytes::Bytes;
use larder_wire::capability::KeyEpoch;
use larder_wire::meta::words::{Attributes, DiskId, FileId, SessionId};
use larder_wire::seal::Setup;
use larder_wire::xdr::{Decode, Encode, Opaque};

use crate::whereabouts::Whereabouts;

/// When bytes are due that may stay where they are.
pub(crate) const NEVER_MS: u64 = u64::MAX;

/// A value of the store.
pub(crate) trait Record: Sized {
    /// The name of the kind in errors.
    const KIND: &'static str;
    /// Its bytes.
    fn to_bytes(&self) -> Vec<u8>;
    /// The record in these bytes, or what is wrong with them.
    fn from_bytes(bytes: Vec<u8>) -> Result<Self, String>;
}

macro_rules! records {
    ($( $(#[$meta:meta])* $name:ident, format $format:literal { $( $(#[$of:meta])* $field:ident : $type:ty ),* $(,)? }
        $( , or $next:literal { $(#[$more_of:meta])* $more:ident : $more_type:ty = $default:expr } )* )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            $( $(#[$of])* pub(crate) $field: $type, )*
            $( $(#[$more_of])* pub(crate) $more: $more_type, )*
        }

        impl Record for $name {
            const KIND: &'static str = stringify!($name);

            fn to_bytes(&self) -> Vec<u8> {
                let mut out = larder_wire::xdr::Encoder::default();
                // A record that an earlier version can read is written in the format of that
                // version.
                let needed = [$format $( , if self.$more == $default { 0 } else { $next } )*];
                let format = needed.into_iter().max().unwrap_or($format);
                out.put_u32(format);
                $( self.$field.encode(&mut out); )*
                $( if format >= $next {
                    self.$more.encode(&mut out);
                } )*
                out.finish().to_bytes().into()
            }

            fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
                let mut input = Bytes::from(bytes);
                let mut read = || -> Result<Result<Self, u32>, larder_wire::xdr::XdrError> {
                    let format = u32::decode(&mut input)?;
                    if !($format..=Self::FORMAT_MAX).contains(&format) {
                        return Ok(Err(format));
                    }
                    Ok(Ok($name {
                        $( $field: Decode::decode(&mut input)?, )*
                        $( $more: match format >= $next {
                            true => Decode::decode(&mut input)?,
                            false => $default,
                        }, )*
                    }))
                };
                match read().map_err(|error| error.to_string())? {
                    Err(format) => Err(format!("of format {format}, this version reads up to {}", Self::FORMAT_MAX)),
                    Ok(_) if !input.is_empty() => Err("longer than it should be".to_owned()),
                    Ok(record) => Ok(record),
                }
            }
        }

        impl $name {
            /// The latest format. Each contains the fields of the one before, and more.
            const FORMAT_MAX: u32 = {
                let formats = [$format $( , $next )*];
                formats[formats.len() - 1]
            };
        }
    )+ };
}

records! {
    /// The volume. There is one.
    Volume, format 2 {
        id: [u8; 16],
        /// The number of the next file; all above were never given.
        next_file: u64,
    }, or 3 {
        /// On how many disks each block is.
        copies: u32 = 1
    }, or 4 {
        /// The least number that the next disk gets: those below were given. 0 if no disk was ever
        /// removed.
        next_disk: u32 = 0
    }, or 5 {
        /// The longest time for which an owner has let disks trust what they know, in ms.
        trust_ms: u32 = crate::disks::TrustInterval::USUAL_MS
    }, or 6 {
        /// The key epoch of the disks' keys, if they were rotated since the volume was taken; 0:
        /// it is the owner's number.
        key_epoch: u64 = 0
    }, or 7 {
        /// The setup that each disk of it must have; none, if the volume was made before volumes
        /// had one: each disk has its own.
        setup: Option<Setup> = None
    }

    /// The owner of the volume. There is one such record, and each transaction expects it
    /// unchanged.
    Owner, format 1 {
        /// Raised by each process that takes the volume.
        epoch: u64,
        /// Random, of that process.
        process: u64,
    }

    /// A disk of the volume.
    Disk, format 1 { id: [u8; 16], address: Opaque<255>, blocks: u64 }, or 2 {
        /// The set to which it belongs: the number by which its blocks are named; 0 for its own
        /// number.
        set: u32 = 0
    }, or 3 {
        /// Whether its bytes are in memory, and lost with its process. Its set is then one of
        /// memory disks.
        is_memory: bool = false
    }, or 4 {
        /// Whether it is to be removed, and what is on it goes to other disks.
        leaves: bool = false
    }

    /// A file of any kind.
    Inode, format 2 {
        attributes: Attributes,
        /// Of a directory: where `..` leads. Of what is volatile and has one name: its directory.
        parent: FileId,
        /// Of a directory: how many names are in it.
        entries: u64,
        /// Of a directory: the cookie of its next name.
        next_cookie: u64,
        /// Of a symbolic link: where it leads.
        target: Opaque<4095>,
    }, or 3 {
        /// In which span of late commits it was changed last (of what is no file: made), if it may
        /// be lost ([`crate::late`]); 0: each change is durable before it is answered.
        late: u64 = 0
    }, or 4 {
        /// Of a file: who has its bytes.
        whereabouts: Whereabouts = Whereabouts::AtDisks
    }

    /// A client retains a file, or the file was lost with a client.
    Retaining, format 1 {}

    /// From where late commits may be lost: there is such a record while a server lives or after
    /// one that did not end in order.
    Late, format 1 {
        /// What late commits live in ([`crate::engine::Engine::boot`]).
        boot: Opaque<64>,
        /// No file of an earlier span has changes that are not durable.
        span: u64,
    }

    /// A name in a directory.
    Entry, format 1 { file: FileId, cookie: u64 }

    /// The same name, by its cookie.
    Listed, format 1 { file: FileId, name: Opaque<255> }

    /// A part of a file on a disk: `valid` bytes at `position`, which fill all of its blocks except
    /// after a truncation. The rest of the last block reads as zeros.
    Extent, format 1 { valid: u64, disk: DiskId, position: u64 }

    /// Blocks of a set that no file has, or stale blocks of a disk; the key says which kind.
    Blocks, format 1 { length: u64 }

    /// A file without names that was open when its last one went.
    Orphan, format 1 {}

    /// An extended attribute.
    Xattr, format 1 { value: Opaque<65_536> }

    /// A session was granted to write committed blocks of a file, and may have done so without a
    /// commit.
    InPlace, format 1 {}

    /// The boot of a memory disk to which its blocks belong: in another boot it has lost them.
    MemoryBoot, format 1 { boot: u64 }

    /// From which store a disk that is no memory disk served last: its random number, and its
    /// generation.
    DiskStore, format 1 { id: [u8; 16], generation: u64 }

    /// A file may have bytes on a set of memory disks.
    InMemory, format 1 {}, or 2 {
        /// When the first of them are due on other disks: in ms since the epoch, by the server's
        /// time ([`crate::destage::Moments`]).
        due_ms: u64 = NEVER_MS
    }

    /// A loss: a memory disk was started again, and these files had bytes that no other disk has;
    /// or the metadata server's machine crashed, and may have lost changes of these files.
    /// Losses are numbered from 1.
    Loss, format 1 {
        /// When the server noticed it: seconds since the epoch.
        at_s: i64,
        disk: DiskId,
        files: u64,
        bytes: u64,
    }

    /// A file with a version in the archive, or one that is to be there.
    Archived, format 1 {
        /// When its present version is to be there, by the server's time as in [`InMemory`].
        due_ms: u64,
        /// Within how many ms of a change of its data a version of it is to be there.
        within_ms: u64,
        /// The data version that is there; 0: none.
        version: u64,
        /// That version's receipt: its size, and the hash of its sections' hashes.
        bytes: u64,
        root: [u8; 32],
    }

    /// A version of which the archive may have something, and that no file needs there: it is being
    /// put, or is to be deleted.
    Unneeded, format 1 {}

    /// A session.
    Session, format 1 { client: [u8; 16], boot: u64, slots: u32 }

    /// The last call of a slot, if it changed something.
    Slot, format 1 { sequence: u32, procedure: u32, reply: Opaque<1_048_576> }
}

impl Extent {
    /// Bytes of its blocks.
    pub(crate) fn length(&self) -> u64 {
        self.valid.next_multiple_of(larder_wire::meta::BLOCK_BYTES)
    }
}

/// The key epoch with this number: owners and key epochs are numbered together.
pub(crate) fn key_epoch(number: u64) -> KeyEpoch {
    KeyEpoch(u32::try_from(number).unwrap_or(u32::MAX))
}

/// Keys.
pub(crate) mod key {
    use super::{DiskId, FileId, SessionId};

    /// Which blocks a record of [`super::Blocks`] is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Pool {
        /// Available for allocation.
        Free,
        /// Given up, and capabilities may still cover them.
        Draining,
    }

    impl Pool {
        pub(crate) fn tag(self) -> u8 {
            match self {
                Pool::Free => b'f',
                Pool::Draining => b'd',
            }
        }
    }

    fn join(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut key = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
        key.push(tag);
        parts.iter().for_each(|part| key.extend_from_slice(part));
        key
    }

    pub(crate) fn volume() -> Vec<u8> {
        b"v".to_vec()
    }

    pub(crate) fn owner() -> Vec<u8> {
        b"w".to_vec()
    }

    pub(crate) fn late() -> Vec<u8> {
        b"y".to_vec()
    }

    pub(crate) fn disk(disk: DiskId) -> Vec<u8> {
        join(b'k', &[&disk.0.to_be_bytes()])
    }

    pub(crate) fn memory_boot(disk: DiskId) -> Vec<u8> {
        join(b'b', &[&disk.0.to_be_bytes()])
    }

    pub(crate) fn disk_store(disk: DiskId) -> Vec<u8> {
        join(b'n', &[&disk.0.to_be_bytes()])
    }

    /// A file that may have bytes on a set of memory disks.
    pub(crate) fn in_memory(set: DiskId, file: FileId) -> Vec<u8> {
        join(b'm', &[&set.0.to_be_bytes(), &file.0.to_be_bytes()])
    }

    /// A file that is, or is to be, in the archive.
    pub(crate) fn archived(file: FileId) -> Vec<u8> {
        join(b'z', &[&file.0.to_be_bytes()])
    }

    /// A version that no file needs in the archive.
    pub(crate) fn unneeded(file: FileId, version: u64) -> Vec<u8> {
        join(b'q', &[&file.0.to_be_bytes(), &version.to_be_bytes()])
    }

    /// A file that a client retains, or that was lost with a client.
    pub(crate) fn retaining(client: [u8; 16], file: FileId) -> Vec<u8> {
        join(b'c', &[&client, &file.0.to_be_bytes()])
    }

    pub(crate) fn loss(number: u64) -> Vec<u8> {
        join(b'h', &[&number.to_be_bytes()])
    }

    pub(crate) fn inode(file: FileId) -> Vec<u8> {
        join(b'i', &[&file.0.to_be_bytes()])
    }

    pub(crate) fn entry(dir: FileId, name: &[u8]) -> Vec<u8> {
        join(b'e', &[&dir.0.to_be_bytes(), name])
    }

    pub(crate) fn listed(dir: FileId, cookie: u64) -> Vec<u8> {
        join(b'l', &[&dir.0.to_be_bytes(), &cookie.to_be_bytes()])
    }

    pub(crate) fn extent(file: FileId, end: u64) -> Vec<u8> {
        join(b'x', &[&file.0.to_be_bytes(), &end.to_be_bytes()])
    }

    pub(crate) fn provisional(session: SessionId, file: FileId, end: u64) -> Vec<u8> {
        join(b'p', &[&session.0, &file.0.to_be_bytes(), &end.to_be_bytes()])
    }

    pub(crate) fn ahead(session: SessionId, file: FileId, end: u64) -> Vec<u8> {
        join(b'g', &[&session.0, &file.0.to_be_bytes(), &end.to_be_bytes()])
    }

    pub(crate) fn blocks(pool: Pool, disk: DiskId, end: u64) -> Vec<u8> {
        join(pool.tag(), &[&disk.0.to_be_bytes(), &end.to_be_bytes()])
    }

    /// Blocks of one disk of a set that are not as on the others.
    pub(crate) fn stale(disk: DiskId, end: u64) -> Vec<u8> {
        join(b't', &[&disk.0.to_be_bytes(), &end.to_be_bytes()])
    }

    /// A session that may have written committed blocks of a file.
    pub(crate) fn in_place(file: FileId, session: SessionId) -> Vec<u8> {
        join(b'u', &[&file.0.to_be_bytes(), &session.0])
    }

    /// A file without names that is still open.
    pub(crate) fn orphan(file: FileId) -> Vec<u8> {
        join(b'o', &[&file.0.to_be_bytes()])
    }

    pub(crate) fn xattr(file: FileId, name: &[u8]) -> Vec<u8> {
        join(b'a', &[&file.0.to_be_bytes(), name])
    }

    pub(crate) fn session(session: SessionId) -> Vec<u8> {
        join(b's', &[&session.0])
    }

    pub(crate) fn slot(session: SessionId, slot: u32) -> Vec<u8> {
        join(b'r', &[&session.0, &slot.to_be_bytes()])
    }

    /// The first key that does not begin with `prefix`.
    pub(crate) fn after(prefix: &[u8]) -> Vec<u8> {
        let mut key = prefix.to_vec();
        while let Some(last) = key.pop() {
            if last < u8::MAX {
                key.push(last + 1);
                break;
            }
        }
        key
    }

    /// The big-endian number at the end of a key.
    pub(crate) fn last_number(key: &[u8]) -> Option<u64> {
        key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes))
    }
}
