//! Records of the journal as bytes: the format is that of `docs/formats/names.md`. Decoding hostile
//! bytes gives `None`, never a panic.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use larder_cache::codec::{Reader, Writer};
use larder_vfs::{Device, Handle, Kind, SetAttr, SetTime, Time, Validator};

use crate::object::{
    Altered, Body, Dentry, Dir, Given, Maker, Named, Object, ObjectNo, Shown, Stage, Taken, Waiting,
};

/// Formats of the two kinds of record.
const HEAD_FORMAT: u8 = 1;
const OBJECT_FORMAT: u8 = 2;
/// The format before, without modification times set over bytes.
const OBJECT_FORMAT_UNGIVEN: u8 = 1;

/// Of a name that was taken away; and of one that the server may have changed.
const TAKEN_FORMAT: u8 = 16;
const TAKEN_FORMAT_ASKED: u8 = 18;

/// Of attributes that were set.
const ALTERED_FORMAT: u8 = 17;
const CLAIM_FORMAT: u8 = 21;

/// Most supplementary groups in a record: a server accepts no more in a call.
const GROUPS_MAX: usize = 16;

/// Which journal it is, and which numbers it may have assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalState {
    /// A random number, which handles of its objects contain.
    pub(crate) id: [u8; 16],
    /// Numbers from here on were not given.
    pub(crate) next: u64,
}

/// Kinds as they are on record: by the number that each has in [`Kind`].
pub(crate) const KINDS: [Kind; 7] = [
    Kind::File,
    Kind::Directory,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDevice,
    Kind::BlockDevice,
];

impl JournalState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(25);
        out.u8(HEAD_FORMAT);
        out.raw(&self.id);
        out.u64(self.next);
        out.into_bytes()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<JournalState> {
        let mut input = Reader::new(bytes);
        if input.u8()? != HEAD_FORMAT {
            return None;
        }
        let head = JournalState { id: input.raw(16)?.try_into().ok()?, next: input.u64()? };
        input.end(head)
    }
}

impl Object {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(128);
        out.u8(OBJECT_FORMAT);
        put_dentry(&mut out, &self.dentry);
        out.option(self.given, |out, given| {
            put_time(out, given.mtime);
            out.i64(given.over_ns);
        });
        match &self.stage {
            Stage::Waiting(waiting) => {
                out.u8(0);
                put_waiting(&mut out, waiting);
            }
            Stage::Named(named) => {
                out.u8(1);
                put_named(&mut out, named);
            }
        }
        out.into_bytes()
    }

    /// The object; and of a record of an earlier version the name that it was to have, if another
    /// client had made that.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Object, Option<OsString>)> {
        let mut input = Reader::new(bytes);
        let format = input.u8()?;
        if ![OBJECT_FORMAT, OBJECT_FORMAT_UNGIVEN].contains(&format) {
            return None;
        }
        let dentry = dentry(&mut input)?;
        let given = match format == OBJECT_FORMAT && input.flag()? {
            true => Some(Given { mtime: time(&mut input)?, over_ns: input.i64()? }),
            false => None,
        };
        let (stage, wanted) = match input.u8()? {
            0 => (Stage::Waiting(waiting(&mut input)?), None),
            1 => (Stage::Named(named(&mut input)?), input.option(text)?),
            _ => return None,
        };
        input.end((Object { dentry, stage, given }, wanted))
    }
}

impl Taken {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(160);
        out.u8(if self.asked.is_some() { TAKEN_FORMAT_ASKED } else { TAKEN_FORMAT });
        put_dentry(&mut out, &self.origin);
        out.option(self.dentry.as_ref(), put_dentry);
        out.bytes(self.handle.as_bytes());
        out.u64(self.fileid);
        out.u8(self.kind as u8);
        out.flag(self.is_last);
        put_version(&mut out, &self.version);
        put_maker(&mut out, &self.taker);
        out.flag(self.is_attempted);
        out.flag(false);
        if let Some(asked) = &self.asked {
            put_dentry(&mut out, asked);
        }
        out.into_bytes()
    }

    /// Whether a record is one of these.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&(TAKEN_FORMAT | TAKEN_FORMAT_ASKED)))
    }

    /// The name that was taken; and of a record of an earlier version that only tells of a conflict
    /// the name that the object was to have, or its own, if it was to be removed.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Taken, Option<OsString>)> {
        let mut input = Reader::new(bytes);
        let was_asked = match input.u8()? {
            TAKEN_FORMAT => false,
            TAKEN_FORMAT_ASKED => true,
            _ => return None,
        };
        let origin = dentry(&mut input)?;
        let to = if input.flag()? { Some(dentry(&mut input)?) } else { None };
        let (handle, fileid) = (handle(&mut input)?, input.u64()?);
        let number = input.u8()?;
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == number)?;
        let is_last = input.flag()?;
        let (version, taker) = (version(&mut input)?, maker(&mut input)?);
        let is_attempted = input.flag()?;
        let wanted = input.option(text)?;
        let asked = if was_asked { Some(dentry(&mut input)?) } else { None };
        let taken = Taken {
            origin,
            dentry: to,
            handle,
            fileid,
            kind,
            is_last,
            version,
            taker,
            is_attempted,
            asked,
        };
        input.end((taken, wanted))
    }
}

impl Altered {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(160);
        out.u8(if self.claims.is_some() { CLAIM_FORMAT } else { ALTERED_FORMAT });
        out.bytes(self.handle.as_bytes());
        put_version(&mut out, &self.below);
        let SetAttr { mode, uid, gid, size, atime, mtime, in_memory: _, retained: _ } = self.set;
        for number in [mode, uid, gid] {
            out.option(number, Writer::u32);
        }
        out.option(size, Writer::u64);
        for time in [atime, mtime] {
            let time = time.and_then(|time| match time {
                SetTime::To(time) => Some(time),
                SetTime::ServerNow => None,
            });
            out.option(time, put_time);
        }
        put_time(&mut out, self.mtime);
        put_time(&mut out, self.ctime);
        out.u64(self.data_change);
        put_maker(&mut out, &self.setter);
        out.flag(self.is_attempted);
        out.flag(self.is_done);
        self.claims.iter().for_each(|version| put_version(&mut out, version));
        out.into_bytes()
    }

    /// Whether a record is one of these.
    pub(crate) fn is_one(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&(ALTERED_FORMAT | CLAIM_FORMAT)))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Altered> {
        let mut input = Reader::new(bytes);
        let is_claim = match input.u8()? {
            ALTERED_FORMAT => false,
            CLAIM_FORMAT => true,
            _ => return None,
        };
        let (handle, below) = (handle(&mut input)?, version(&mut input)?);
        let mode = input.option(Reader::u32)?;
        let (uid, gid) = (input.option(Reader::u32)?, input.option(Reader::u32)?);
        let size = input.option(Reader::u64)?;
        let (atime, mtime) = (input.option(time)?, input.option(time)?);
        let (atime, mtime) = (atime.map(SetTime::To), mtime.map(SetTime::To));
        let set = SetAttr { mode, uid, gid, size, atime, mtime, ..SetAttr::default() };
        let (mtime, ctime) = (time(&mut input)?, time(&mut input)?);
        let (data_change, setter) = (input.u64()?, maker(&mut input)?);
        let (is_attempted, is_done) = (input.flag()?, input.flag()?);
        let claims = if is_claim { Some(version(&mut input)?) } else { None };
        input.end(Altered {
            handle,
            below,
            set,
            mtime,
            ctime,
            data_change,
            setter,
            is_attempted,
            is_done,
            claims,
        })
    }
}

/// Where the identity of a directory, or of a file with several names, comes from.
pub(crate) fn put_identity(out: &mut Writer, identity: &Dir) {
    match identity {
        Dir::Server(handle) => {
            out.u8(0);
            out.bytes(handle.as_bytes());
        }
        Dir::Made(no) => {
            out.u8(1);
            out.u64(no.0);
        }
    }
}

pub(crate) fn identity(input: &mut Reader<'_>) -> Option<Dir> {
    match input.u8()? {
        0 => Some(Dir::Server(handle(input)?)),
        1 => Some(Dir::Made(ObjectNo(input.u64()?))),
        _ => None,
    }
}

pub(crate) fn put_dentry(out: &mut Writer, dentry: &Dentry) {
    put_identity(out, &dentry.dir);
    put_text(out, &dentry.name);
}

pub(crate) fn dentry(input: &mut Reader<'_>) -> Option<Dentry> {
    Some(Dentry { dir: identity(input)?, name: text(input)? })
}

pub(crate) fn put_maker(out: &mut Writer, maker: &Maker) {
    let Maker { uid, gid, groups } = maker;
    let groups = &groups[..groups.len().min(GROUPS_MAX)];
    out.u32(*uid);
    out.u32(*gid);
    out.u8(u8::try_from(groups.len()).expect("they are few"));
    groups.iter().for_each(|group| out.u32(*group));
}

pub(crate) fn maker(input: &mut Reader<'_>) -> Option<Maker> {
    let (uid, gid, count) = (input.u32()?, input.u32()?, input.u8()?);
    let groups = (0..count).map(|_| input.u32()).collect::<Option<Vec<u32>>>()?;
    Some(Maker { uid, gid, groups: groups.into() })
}

fn put_version(out: &mut Writer, version: &Validator) {
    out.option(version.change, Writer::u64);
    out.option(version.data_change, Writer::u64);
    out.u64(version.size);
    put_time(out, version.mtime);
    put_time(out, version.ctime);
}

fn version(input: &mut Reader<'_>) -> Option<Validator> {
    let change = if input.flag()? { Some(input.u64()?) } else { None };
    let data_change = if input.flag()? { Some(input.u64()?) } else { None };
    let size = input.u64()?;
    Some(Validator { change, data_change, size, mtime: time(input)?, ctime: time(input)? })
}

fn put_waiting(out: &mut Writer, waiting: &Waiting) {
    let (kind, device) = match &waiting.body {
        Body::File => (0, Device::default()),
        Body::Directory => (1, Device::default()),
        Body::Symlink(_) => (2, Device::default()),
        Body::Node(Kind::Fifo, device) => (3, *device),
        Body::Node(Kind::Socket, device) => (4, *device),
        Body::Node(Kind::CharDevice, device) => (5, *device),
        Body::Node(Kind::BlockDevice, device) => (6, *device),
        Body::Node(Kind::File | Kind::Directory | Kind::Symlink, _) => {
            unreachable!("these have bodies of their own")
        }
    };
    out.u8(kind);
    match &waiting.body {
        Body::Symlink(target) => put_text(out, target),
        Body::Node(..) => {
            out.u32(device.major);
            out.u32(device.minor);
        }
        Body::File | Body::Directory => {}
    }
    out.flag(waiting.is_attempted);
    out.u32(waiting.mode);
    out.u32(waiting.uid);
    out.u32(waiting.gid);
    for time in [waiting.atime, waiting.mtime, waiting.ctime] {
        put_time(out, time);
    }
    put_maker(out, &waiting.maker);
}

fn waiting(input: &mut Reader<'_>) -> Option<Waiting> {
    let kind = input.u8()?;
    let body = match kind {
        0 => Body::File,
        1 => Body::Directory,
        2 => Body::Symlink(text(input)?),
        3..=6 => {
            let device = Device { major: input.u32()?, minor: input.u32()? };
            let kinds = [Kind::Fifo, Kind::Socket, Kind::CharDevice, Kind::BlockDevice];
            Body::Node(kinds[usize::from(kind - 3)], device)
        }
        _ => return None,
    };
    let is_attempted = input.flag()?;
    let (mode, uid, gid) = (input.u32()?, input.u32()?, input.u32()?);
    let (atime, mtime, ctime) = (time(input)?, time(input)?, time(input)?);
    let maker = maker(input)?;
    Some(Waiting { body, mode, uid, gid, atime, mtime, ctime, maker, is_attempted })
}

fn put_named(out: &mut Writer, named: &Named) {
    out.bytes(named.handle.as_bytes());
    out.u64(named.fileid);
    let Shown { server, mtime, ctime } = named.shown;
    put_version(out, &server);
    put_time(out, mtime);
    put_time(out, ctime);
    out.flag(named.is_linked);
    out.flag(false);
}

fn named(input: &mut Reader<'_>) -> Option<Named> {
    let (handle, fileid) = (handle(input)?, input.u64()?);
    let server = version(input)?;
    let shown = Shown { server, mtime: time(input)?, ctime: time(input)? };
    let is_linked = input.flag()?;
    Some(Named { handle, fileid, shown, is_linked })
}

fn put_text(out: &mut Writer, text: &OsStr) {
    out.bytes(text.as_bytes());
}

fn text(input: &mut Reader<'_>) -> Option<OsString> {
    Some(OsString::from_vec(bytes(input)?.to_vec()))
}

fn bytes<'a>(input: &mut Reader<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(input.u32()?).ok()?;
    input.raw(len)
}

pub(crate) fn handle(input: &mut Reader<'_>) -> Option<Handle> {
    bytes(input).filter(|bytes| bytes.len() <= Handle::LEN_MAX).map(Handle::new)
}

fn put_time(out: &mut Writer, time: Time) {
    out.i64(time.sec);
    out.u32(time.nsec);
}

fn time(input: &mut Reader<'_>) -> Option<Time> {
    let time = Time { sec: input.i64()?, nsec: input.u32()? };
    (time.nsec < 1_000_000_000).then_some(time)
}

#[cfg(test)]
mod tests;
