//! Extended attributes: what SMB calls extended attributes of a file (MS-FSCC, 2.4.15).
//!
//! A server returns all of them at once, with their values, and accepts changes one by one. It
//! cannot check and change in one step, so another client may come in between if a change depends
//! on what exists. Samba keeps them as `user.` attributes of its own file system. Names are ASCII
//! and differ by more than case, and an attribute with an empty value does not exist, so it cannot
//! be set.

use super::attr::Info;
use super::link::{Link, Reply, garbled};
use super::share::Share;
use super::status::{self, Failure};
use super::wire::{self, Opening, PREVIOUS};
use bytes::Bytes;
use larder_vfs::{Access, Change, Cred, Error, Handle, SetXattr};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::pack::{ReadCursor, WriteCursor};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

/// A name and its value.
type Xattr = (OsString, Bytes);

impl Share {
    /// All extended attributes of a file, in one round trip.
    pub(super) async fn xattrs(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
    ) -> Result<Vec<Xattr>, Failure> {
        let keyed = self.own_key(link, file, wire::READ_XATTRS);
        let lease = keyed.map(|keyed| keyed.request);
        let opening = Opening { lease, ..Opening::existing(self.path(file)?, wire::READ_XATTRS) };
        let look = wire::query(PREVIOUS);
        let all = wire::query_xattrs(PREVIOUS, link.answer_max());
        let replies = link.chain(vec![opening.op(), look, all, wire::close(PREVIOUS)]).await?;
        let [created, seen, all, _] = &replies[..] else { return Err(Failure::Lost) };
        created.check().map_err(|failure| self.gone(file, failure))?;
        let info = &seen.read::<QueryInfoResponse>()?.output_buffer;
        let info = Info::parse(info).map_err(garbled)?;
        self.verify(file, &info)?;
        self.may(cred, &info, Access::READ)?;
        listed(all)
    }

    /// Sets or removes an attribute. `again` says that an earlier attempt may have done it.
    pub(super) async fn set_xattr(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        set: &SetXattr,
        again: bool,
    ) -> Result<Change, Failure> {
        let element = element(set)?;
        let changing = self.files.changing(file);
        let opened = self.open_file(link, file, wire::READ_XATTRS | wire::WRITE_XATTRS, 0).await?;
        self.may(cred, &opened.info, Access::MODIFY)?;
        let id = opened.open.id;
        if set.only.is_some() {
            let all = listed(&link.ask(wire::query_xattrs(id, link.answer_max())).await?)?;
            let held = value_of(all, &set.name);
            if !(again && set.is_done(held.as_ref())) {
                set.judge(held.as_ref())?;
            }
        }
        let change = wire::set(id, wire::FULL_EA_INFORMATION, element);
        let after = opened.open.finish(vec![change]).await?;
        let was = changing.done(Some(after));
        Ok(self.change(was, Some(after)))
    }

    fn may(&self, cred: &Cred, info: &Info, wanted: Access) -> larder_vfs::Result<()> {
        match info.is_directory() {
            true => self.shape.may_in_directory(cred, wanted),
            false => self.shape.may_with_file(cred, wanted),
        }
    }
}

/// `FILE_FULL_EA_INFORMATION` of one attribute; without a value it is removed.
fn element(set: &SetXattr) -> larder_vfs::Result<Vec<u8>> {
    set.check_lengths()?;
    let name = set.name.as_bytes();
    let value = set.value.as_deref();
    if !name.is_ascii() || value.is_some_and(<[u8]>::is_empty) {
        return Err(Error::NotSupported);
    }
    let value = value.unwrap_or_default();
    let mut cursor = WriteCursor::new();
    cursor.write_u32_le(0);
    cursor.write_u8(0);
    cursor.write_u8(u8::try_from(name.len()).map_err(|_| Error::NameTooLong)?);
    cursor.write_u16_le(u16::try_from(value.len()).map_err(|_| Error::TooLarge)?);
    cursor.write_bytes(name);
    cursor.write_u8(0);
    cursor.write_bytes(value);
    Ok(cursor.into_inner())
}

/// The extended attributes in a reply.
fn listed(reply: &Reply) -> Result<Vec<Xattr>, Failure> {
    match reply.read::<QueryInfoResponse>() {
        Ok(told) => parse(&told.output_buffer).map_err(garbled),
        Err(Failure::Status(status::NO_EAS_ON_FILE)) => Ok(Vec::new()),
        Err(failure) => Err(failure),
    }
}

/// A list of `FILE_FULL_EA_INFORMATION`.
fn parse(list: &[u8]) -> smb2::Result<Vec<Xattr>> {
    let (mut found, mut rest) = (Vec::new(), list);
    while !rest.is_empty() {
        let mut cursor = ReadCursor::new(rest);
        let next = cursor.read_u32_le()? as usize;
        cursor.read_u8()?;
        let (name_len, value_len) = (cursor.read_u8()?, cursor.read_u16_le()?);
        let name = cursor.read_bytes(usize::from(name_len))?.to_vec();
        cursor.read_u8()?;
        let value = Bytes::copy_from_slice(cursor.read_bytes(usize::from(value_len))?);
        found.push((OsString::from_vec(name), value));
        rest = match next {
            0 => &[],
            next if (cursor.position()..=rest.len()).contains(&next) => &rest[next..],
            _ => return Err(smb2::Error::invalid_data("attributes that lie over each other")),
        };
    }
    Ok(found)
}

/// The value of `name` among all.
pub(super) fn value_of(all: Vec<Xattr>, name: &OsStr) -> Option<Bytes> {
    all.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(name: &str, value: &[u8]) -> SetXattr {
        SetXattr { name: name.into(), value: Some(Bytes::copy_from_slice(value)), only: None }
    }

    #[test]
    fn what_is_sent_is_read_back_and_cut_off_lists_are_refused() {
        let mut first = element(&put("one", b"first")).unwrap();
        while !first.len().is_multiple_of(4) {
            first.push(0);
        }
        let next = u32::try_from(first.len()).unwrap();
        first[..4].copy_from_slice(&next.to_le_bytes());
        let second = element(&put("two", &[0; 1000])).unwrap();
        let list = [first, second].concat();
        let all = parse(&list).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(value_of(all.clone(), "one".as_ref()).unwrap(), "first");
        assert_eq!(value_of(all.clone(), "TWO".as_ref()).unwrap(), [0; 1000][..]);
        assert_eq!(value_of(all, "three".as_ref()), None);
        for len in 1..list.len() {
            let all = parse(&list[..len]);
            assert!(len == next as usize || all.is_err(), "{len}");
        }
        assert_eq!(parse(&[]).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_said_is_refused() {
        for (set, error) in [
            (put("\u{e4}", b"x"), Error::NotSupported),
            (put(&"n".repeat(251), b"x"), Error::NameTooLong),
            (put("x", b""), Error::NotSupported),
            (put("x", &[0; 65_536]), Error::TooLarge),
        ] {
            assert_eq!(element(&set), Err(error), "{:?}", set.name);
        }
    }
}
