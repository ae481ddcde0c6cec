//! Lists directories.

use larder_wire::meta::calls::{Entries, Entry, ReadDir};
use larder_wire::meta::words::{ATTRIBUTES_BYTES, Name};
use larder_wire::meta::{ENTRIES_MAX, Status};
use larder_wire::xdr::Array;

use crate::inode;
use crate::rights::{Caller, READ};
use crate::store::records::Listed;
use crate::store::{Txn, key};

/// About the size of an entry without its attributes, in bytes. It determines how many are read for
/// a reply: those that do not fit are read again for the next one.
const ENTRY_BYTES: usize = 32;
/// Most bytes of entries in a reply, whatever is asked for.
const BYTES_MAX: usize = 1 << 20;

/// Entries of a directory after a cookie: at least one, if there is one.
pub(crate) fn list(txn: &Txn<'_>, caller: &Caller, call: &ReadDir) -> Result<Entries, Status> {
    let &ReadDir { dir, cookie, bytes_max, attributes: with_attributes, .. } = call;
    let dir = inode::directory(txn, dir)?;
    caller.need(&dir.attributes, READ)?;
    let bytes_max = (bytes_max as usize).min(BYTES_MAX);
    let entry_bytes = ENTRY_BYTES + if with_attributes { ATTRIBUTES_BYTES } else { 0 };
    let limit = (bytes_max / entry_bytes + 2).min(ENTRIES_MAX);
    let from = key::listed(dir.file(), cookie.saturating_add(1));
    let until = key::after(&key::listed(dir.file(), u64::MAX));
    let listed = txn.scan::<Listed>(&from, &until, limit)?;
    let mut end = listed.len() < limit;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for (key, listed) in listed {
        let cookie = key::last_number(&key).ok_or(Status::Io)?;
        let name = Name::new(listed.name.0).map_err(|_| Status::Io)?;
        let attributes = match with_attributes {
            true => Some(inode::get(txn, listed.file)?.attributes),
            false => None,
        };
        let entry = Entry { name, file: listed.file, cookie, attributes };
        bytes += entry.encoded_bytes();
        if bytes > bytes_max && !entries.is_empty() {
            end = false;
            break;
        }
        entries.push(entry);
    }
    Ok(Entries { dir: dir.attributes, entries: Array(entries), end })
}
