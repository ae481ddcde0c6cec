//! [`Place`]: what a file is to be like that the server gets, beside another client's, of bytes
//! that were set aside ([`larder_cache::Beside::wanted`]).

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use larder_cache::codec::{Reader, Writer};
use larder_vfs::{Cred, Ino, Time};

use super::record::{Record, name, put_time, time};
use super::session::{cred, put_cred};

/// Where a file is to be, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The directory in which the changed file was last seen.
    pub(crate) dir: Ino,
    /// The changed file's name there.
    pub(crate) name: OsString,
    /// Its owner.
    pub(crate) uid: u32,
    /// Its group.
    pub(crate) gid: u32,
    /// Its permissions.
    pub(crate) mode: u32,
    /// When the bytes were written.
    pub(crate) mtime: Time,
    /// On whose behalf the server is asked.
    pub(crate) writer: Cred,
}

impl Record for Place {
    const FORMAT: u8 = 1;

    fn put(&self, out: &mut Writer) {
        out.u64(self.dir.0);
        out.bytes(self.name.as_bytes());
        for value in [self.uid, self.gid, self.mode] {
            out.u32(value);
        }
        put_time(out, self.mtime);
        put_cred(out, &self.writer);
    }

    fn take(format: u8, input: &mut Reader<'_>) -> Option<Place> {
        if format != Place::FORMAT {
            return None;
        }
        Some(Place {
            dir: Ino(input.u64()?),
            name: name(input)?,
            uid: input.u32()?,
            gid: input.u32()?,
            mode: input.u32()?,
            mtime: time(input)?,
            writer: cred(input)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_encoding_and_hostile_bytes_do_not_panic() {
        let place = Place {
            dir: Ino(7),
            name: "a".into(),
            uid: 1,
            gid: 2,
            mode: 0o640,
            mtime: Time { sec: -1, nsec: 5 },
            writer: Cred { pid: 7, ..Cred::new(1, 2, &[3, 4]) },
        };
        let bytes = place.encode();
        assert_eq!(Place::decode(&bytes), Some(place));
        for len in 0..bytes.len() {
            assert_eq!(Place::decode(&bytes[..len]), None);
            for value in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[len] = value;
                let _ = Place::decode(&changed);
            }
        }
    }
}
