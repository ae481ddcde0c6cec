//! Requests as larder makes them, and the few structures that the library lacks.

use super::attr::ALL_INFORMATION;
use super::frames::{LEASE_HANDLE, LEASE_READ, LEASE_WRITE, LeaseKey};
use super::link::Op;
use smb2::msg::change_notify::ChangeNotifyRequest;
use smb2::msg::close::{CloseRequest, SMB2_CLOSE_FLAG_POSTQUERY_ATTRIB};
use smb2::msg::create::{CreateDisposition, CreateRequest, ImpersonationLevel, ShareAccess};
use smb2::msg::create_context::{CreateContext, find, pack_contexts, parse_contexts};
use smb2::msg::echo::EchoRequest;
use smb2::msg::flush::FlushRequest;
use smb2::msg::ioctl::{IoctlRequest, SMB2_0_IOCTL_IS_FSCTL};
use smb2::msg::lock::{LockElement, LockRequest};
use smb2::msg::query_directory::{
    FileInformationClass, QueryDirectoryFlags, QueryDirectoryRequest,
};
use smb2::msg::query_info::{InfoType, QueryInfoRequest};
use smb2::msg::read::ReadRequest;
use smb2::msg::set_info::SetInfoRequest;
use smb2::msg::write::WriteRequest;
use smb2::pack::{Pack, ReadCursor, WriteCursor};
use smb2::types::flags::FileAccessMask;
use smb2::types::{Command, FileId, OplockLevel};
use std::ops::Range;

/// The file of the request before, in a chain.
pub(super) const PREVIOUS: FileId = FileId::SENTINEL;
/// Largest answer to QUERY_INFO and QUERY_DIRECTORY that one credit pays for, in bytes.
pub(super) const ANSWER_BYTES: u32 = 1 << 16;

/// CREATE options (MS-SMB2, 2.2.13).
pub(super) const DIRECTORY_FILE: u32 = 0x1;
pub(super) const NON_DIRECTORY_FILE: u32 = 0x40;
pub(super) const OPEN_REPARSE_POINT: u32 = 0x20_0000;

/// Information classes (MS-FSCC, 2.4 and 2.5).
pub(super) const BASIC_INFORMATION: u8 = 4;
pub(super) const RENAME_INFORMATION: u8 = 10;
pub(super) const LINK_INFORMATION: u8 = 11;
pub(super) const DISPOSITION_INFORMATION: u8 = 13;
pub(super) const FULL_EA_INFORMATION: u8 = 15;
pub(super) const END_OF_FILE_INFORMATION: u8 = 20;
pub(super) const FS_ATTRIBUTE_INFORMATION: u8 = 5;
pub(super) const FS_VOLUME_INFORMATION: u8 = 1;
pub(super) const FS_FULL_SIZE_INFORMATION: u8 = 7;

/// Controls (MS-FSCC, 2.3).
pub(super) const SET_SPARSE: u32 = 0x9_00c4;
pub(super) const SET_ZERO_DATA: u32 = 0x9_80c8;
pub(super) const QUERY_RANGES: u32 = 0x9_40cf;

/// Controls of the server itself (MS-SMB2, 2.2.31).
pub(super) const REQUEST_RESUME_KEY: u32 = 0x14_0078;
pub(super) const COPYCHUNK_WRITE: u32 = 0x14_80f2;

/// The changes that a watch on a directory reports: names of files, and of directories. What it is
/// trusted for is its names and its own attributes, which change with them: a change of a file in
/// it is told by the lease on that file.
const CHANGES: u32 = 0x1 | 0x2;

const LEASE_CONTEXT: &[u8] = b"RqLs";
/// The server is taking the lease back and waits for our answer (MS-SMB2, 2.2.14.2.10).
const LEASE_BREAKING: u32 = 2;
const MAXIMAL_ACCESS_CONTEXT: &[u8] = b"MxAc";

/// Access to the attributes of a file, which never breaks a lease.
pub(super) const LOOK: u32 = FileAccessMask::FILE_READ_ATTRIBUTES;
/// Access to read it.
pub(super) const READ: u32 = FileAccessMask::FILE_READ_DATA | LOOK;
/// Access to write it.
pub(super) const WRITE: u32 = FileAccessMask::FILE_WRITE_DATA
    | FileAccessMask::FILE_APPEND_DATA
    | FileAccessMask::FILE_WRITE_ATTRIBUTES
    | LOOK;
/// Access to read its extended attributes.
pub(super) const READ_XATTRS: u32 = FileAccessMask::FILE_READ_EA | LOOK;
/// Access to set them.
pub(super) const WRITE_XATTRS: u32 = FileAccessMask::FILE_WRITE_EA | LOOK;
/// Access to its data in any form: an open without it takes no part in leases.
pub(super) const DATA: u32 = FileAccessMask::FILE_READ_DATA
    | FileAccessMask::FILE_WRITE_DATA
    | FileAccessMask::FILE_APPEND_DATA;
/// Access to change anything of it.
pub(super) const CHANGE: u32 = FileAccessMask::FILE_WRITE_DATA
    | FileAccessMask::FILE_APPEND_DATA
    | FileAccessMask::FILE_WRITE_EA
    | FileAccessMask::FILE_WRITE_ATTRIBUTES;
/// Access to set its attributes.
pub(super) const SET: u32 = FileAccessMask::FILE_WRITE_ATTRIBUTES | LOOK;
/// Access to remove or rename it.
pub(super) const DELETE: u32 = FileAccessMask::DELETE | LOOK;

/// How a file is to be opened.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    pub(super) path: String,
    pub(super) access: u32,
    pub(super) disposition: CreateDisposition,
    pub(super) options: u32,
    /// Attributes of a new file.
    pub(super) attributes: u32,
    pub(super) lease: Option<LeaseRequest>,
    /// Whether the caller's rights are asked for.
    pub(super) maximal: bool,
    /// No other client may have its data open: a client that only keeps it open for later uses is
    /// asked to close it first (MS-SMB2, 3.3.5.9: a sharing violation breaks leases that keep
    /// handles).
    pub(super) alone: bool,
}

/// A lease to read and to keep open.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseRequest {
    pub(super) key: LeaseKey,
    /// Other clients are to be kept waiting, too, until it is returned.
    pub(super) alone: bool,
    /// In the form of SMB 3.
    pub(super) v2: bool,
}

impl Opening {
    /// Opens an existing object.
    pub(super) fn existing(path: String, access: u32) -> Opening {
        let disposition = CreateDisposition::FileOpen;
        let (options, attributes, lease) = (0, 0, None);
        let (maximal, alone) = (false, false);
        Opening { path, access, disposition, options, attributes, lease, maximal, alone }
    }

    pub(super) fn op(&self) -> Op {
        let mut contexts = Vec::new();
        if let Some(LeaseRequest { key, alone, v2 }) = self.lease {
            let mut data = key.to_vec();
            let write = if alone { LEASE_WRITE } else { 0 };
            data.extend((LEASE_READ | LEASE_HANDLE | write).to_le_bytes());
            data.resize(if v2 { 52 } else { 32 }, 0);
            contexts.push(CreateContext::new(LEASE_CONTEXT, data));
        }
        if self.maximal {
            contexts.push(CreateContext::new(MAXIMAL_ACCESS_CONTEXT, Vec::new()));
        }
        let oplock = if self.lease.is_some() { OplockLevel::Lease } else { OplockLevel::None };
        let everybody = ShareAccess::FILE_SHARE_READ
            | ShareAccess::FILE_SHARE_WRITE
            | ShareAccess::FILE_SHARE_DELETE;
        let share = if self.alone { 0 } else { everybody };
        Op::new(
            Command::Create,
            CreateRequest {
                requested_oplock_level: oplock,
                impersonation_level: ImpersonationLevel::Impersonation,
                desired_access: FileAccessMask::new(self.access),
                file_attributes: self.attributes,
                share_access: ShareAccess(share),
                create_disposition: self.disposition,
                create_options: self.options,
                name: self.path.clone(),
                create_contexts: pack_contexts(&contexts),
            },
        )
    }
}

/// What a lease covers (MS-SMB2, 2.2.13.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granted {
    /// The file and its name: the lease is withdrawn before the file is written, renamed or
    /// removed.
    Whole,
    /// All of this, and no other client has the file open: the server keeps another client that
    /// wants to open it waiting until the lease is returned.
    Alone,
    /// Its bytes alone: another file may have its name. Servers grant this beside an open that is
    /// not under this lease.
    Bytes,
}

impl Granted {
    /// What a lease in this state covers, if anything.
    pub(super) fn by(state: u32) -> Option<Granted> {
        let has = |bit| state & bit != 0;
        match (has(LEASE_READ), has(LEASE_HANDLE), has(LEASE_WRITE)) {
            (true, true, true) => Some(Granted::Alone),
            (true, true, false) => Some(Granted::Whole),
            (true, false, _) => Some(Granted::Bytes),
            (false, ..) => None,
        }
    }
}

/// What the answer to CREATE grants: the lease, and the rights if they are reported.
///
/// A lease that is just being withdrawn grants nothing: an open that crosses our acknowledgement
/// gets the state from before, and no further message says that it is over.
pub(super) fn granted(contexts: &[u8]) -> (Option<Granted>, Option<u32>) {
    let contexts = parse_contexts(contexts).unwrap_or_default();
    let number = |name, at| {
        let data: &[u8] = &find(&contexts, name)?.data;
        let bytes: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let told = number(MAXIMAL_ACCESS_CONTEXT, 0) == Some(0);
    let maximal = told.then(|| number(MAXIMAL_ACCESS_CONTEXT, 4)).flatten();
    let breaking = number(LEASE_CONTEXT, 20).is_some_and(|flags| flags & LEASE_BREAKING != 0);
    let state = number(LEASE_CONTEXT, 16).filter(|_| !breaking).unwrap_or(0);
    (Granted::by(state), maximal)
}

/// CLOSE, which returns the final attributes.
pub(super) fn close(file_id: FileId) -> Op {
    Op::new(Command::Close, CloseRequest { flags: SMB2_CLOSE_FLAG_POSTQUERY_ATTRIB, file_id })
}

/// ECHO, which does nothing.
pub(super) fn echo() -> Op {
    Op::new(Command::Echo, EchoRequest)
}

/// QUERY_INFO for all that there is to know of a file.
pub(super) fn query(file_id: FileId) -> Op {
    query_class(file_id, InfoType::File, ALL_INFORMATION, ANSWER_BYTES)
}

/// QUERY_INFO for all extended attributes of a file, of at most this many bytes.
pub(super) fn query_xattrs(file_id: FileId, bytes_max: u32) -> Op {
    query_class(file_id, InfoType::File, FULL_EA_INFORMATION, bytes_max)
}

/// QUERY_INFO for something of the volume.
pub(super) fn query_volume(file_id: FileId, class: u8) -> Op {
    query_class(file_id, InfoType::Filesystem, class, ANSWER_BYTES)
}

fn query_class(file_id: FileId, info_type: InfoType, file_info_class: u8, bytes_max: u32) -> Op {
    let request = QueryInfoRequest {
        info_type,
        file_info_class,
        output_buffer_length: bytes_max,
        additional_information: 0,
        flags: 0,
        file_id,
        input_buffer: Vec::new(),
    };
    Op::new(Command::QueryInfo, request).with_payload(bytes_max as usize)
}

/// SET_INFO.
pub(super) fn set(file_id: FileId, class: u8, buffer: Vec<u8>) -> Op {
    let request = SetInfoRequest {
        info_type: InfoType::File,
        file_info_class: class,
        additional_information: 0,
        file_id,
        buffer,
    };
    Op::new(Command::SetInfo, request)
}

/// `FileBasicInformation`; zeros leave things as they are.
pub(super) fn basic(accessed: u64, written: u64, attributes: u32) -> Vec<u8> {
    let mut cursor = WriteCursor::new();
    for time in [0, accessed, written, 0] {
        cursor.write_u64_le(time);
    }
    cursor.write_u32_le(attributes);
    cursor.write_u32_le(0);
    cursor.into_inner()
}

/// `FileRenameInformation` and `FileLinkInformation`, which have the same layout.
pub(super) fn target(path: &str, replace: bool) -> Vec<u8> {
    let mut cursor = WriteCursor::new();
    cursor.write_u64_le(u64::from(replace));
    cursor.write_u64_le(0);
    let bytes = path.encode_utf16().count() * 2;
    cursor.write_u32_le(u32::try_from(bytes).unwrap_or(u32::MAX));
    cursor.write_utf16_le(path);
    // Windows requires at least as many bytes as the structure has with its padding.
    cursor.align_to(8);
    cursor.into_inner()
}

/// FLUSH.
pub(super) fn flush(file_id: FileId) -> Op {
    Op::new(Command::Flush, FlushRequest { file_id })
}

/// IOCTL for a control of file systems, which returns at most this many bytes.
pub(super) fn control(file_id: FileId, control: u32, input_data: Vec<u8>, bytes_max: u32) -> Op {
    let request = IoctlRequest {
        ctl_code: control,
        file_id,
        max_input_response: 0,
        max_output_response: bytes_max,
        flags: SMB2_0_IOCTL_IS_FSCTL,
        input_data,
    };
    Op::new(Command::Ioctl, request).with_payload(bytes_max as usize)
}

/// LOCK, of ranges with the flags of MS-SMB2, 2.2.26.1: either all lock, or all unlock.
pub(super) fn lock(file_id: FileId, elements: Vec<(Range<u64>, u32)>) -> Op {
    let element = |(range, flags): (Range<u64>, u32)| LockElement {
        offset: range.start,
        length: range.end - range.start,
        flags,
    };
    let locks = elements.into_iter().map(element).collect();
    Op::new(Command::Lock, LockRequest { lock_sequence: 0, file_id, locks })
}

/// READ.
pub(super) fn read(file_id: FileId, offset: u64, length: u32) -> Op {
    let request = ReadRequest {
        padding: 0x50,
        flags: 0,
        length,
        offset,
        file_id,
        minimum_count: 0,
        channel: 0,
        remaining_bytes: 0,
        read_channel_info: Vec::new(),
    };
    Op::new(Command::Read, request).with_payload(length as usize)
}

/// WRITE.
pub(super) fn write(file_id: FileId, offset: u64, data: Vec<u8>) -> Op {
    let bytes = data.len();
    let request = WriteRequest {
        // After the header and the fixed part.
        data_offset: 112,
        offset,
        file_id,
        channel: 0,
        remaining_bytes: 0,
        write_channel_info_offset: 0,
        write_channel_info_length: 0,
        flags: 0,
        data,
    };
    Op::new(Command::Write, request).with_payload(bytes)
}

/// QUERY_DIRECTORY, with ids.
pub(super) fn list(file_id: FileId, bytes: u32) -> Op {
    let request = QueryDirectoryRequest {
        file_information_class: FileInformationClass::FileIdBothDirectoryInformation,
        flags: QueryDirectoryFlags(0),
        file_index: 0,
        file_id,
        output_buffer_length: bytes,
        file_name: "*".into(),
    };
    Op::new(Command::QueryDirectory, request).with_payload(bytes as usize)
}

/// CHANGE_NOTIFY, for changes in one directory.
pub(super) fn notify(file_id: FileId) -> Op {
    let request = ChangeNotifyRequest {
        flags: 0,
        output_buffer_length: ANSWER_BYTES,
        file_id,
        completion_filter: CHANGES,
    };
    Op::new(Command::ChangeNotify, request)
}

/// Acknowledges that a lease was taken back (MS-SMB2, 2.2.24.2).
struct LeaseAcknowledgement {
    key: LeaseKey,
    left: u32,
}

impl Pack for LeaseAcknowledgement {
    fn pack(&self, cursor: &mut WriteCursor) {
        cursor.write_u16_le(36);
        cursor.write_u16_le(0);
        cursor.write_u32_le(0);
        cursor.write_bytes(&self.key);
        cursor.write_u32_le(self.left);
        cursor.write_u64_le(0);
    }
}

/// OPLOCK_BREAK: the acknowledgement for a lease.
pub(super) fn acknowledge(key: LeaseKey, left: u32) -> Op {
    Op::new(Command::OplockBreak, LeaseAcknowledgement { key, left })
}

/// The data of a READ's answer, without copying it.
pub(super) fn data(mut body: Vec<u8>) -> Option<bytes::Bytes> {
    let start = usize::from(*body.get(2)?).checked_sub(super::frames::HEADER_BYTES)?;
    let length = u32::from_le_bytes(body.get(4..8)?.try_into().ok()?) as usize;
    if start < 16 || body.len() < start.checked_add(length)? {
        return None;
    }
    body.truncate(start + length);
    Some(bytes::Bytes::from(body).slice(start..))
}

/// What FileFsAttributeInformation reports: whether names are case sensitive, and the longest
/// component.
pub(super) fn volume_attributes(bytes: &[u8]) -> smb2::Result<(bool, u32)> {
    let mut cursor = ReadCursor::new(bytes);
    let attributes = cursor.read_u32_le()?;
    Ok((attributes & 1 != 0, cursor.read_u32_le()?))
}

/// The serial number of FileFsVolumeInformation.
pub(super) fn volume_serial(bytes: &[u8]) -> smb2::Result<u32> {
    let mut cursor = ReadCursor::new(bytes);
    cursor.skip(8)?;
    cursor.read_u32_le()
}

/// Total bytes, those available to the caller, and free bytes of FileFsFullSizeInformation.
pub(super) fn space(bytes: &[u8]) -> smb2::Result<(u64, u64, u64)> {
    let mut cursor = ReadCursor::new(bytes);
    let (total, available, free) =
        (cursor.read_u64_le()?, cursor.read_u64_le()?, cursor.read_u64_le()?);
    let unit = u64::from(cursor.read_u32_le()?) * u64::from(cursor.read_u32_le()?);
    let bytes = |units: u64| units.saturating_mul(unit);
    Ok((bytes(total), bytes(available), bytes(free)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_acknowledgement_has_its_length() {
        let mut cursor = WriteCursor::new();
        LeaseAcknowledgement { key: [7; 16], left: 1 }.pack(&mut cursor);
        let bytes = cursor.into_inner();
        assert_eq!((bytes.len(), bytes[0], bytes[8], bytes[24]), (36, 36, 7, 1));
    }

    #[test]
    fn a_target_has_the_length_of_its_name() {
        let bytes = target("a\\\u{1f980}", true);
        assert_eq!((bytes[0], bytes[16], bytes.len() % 8), (1, 8, 0));
        assert_eq!(&bytes[20..24], b"a\0\\\0");
    }

    #[test]
    fn data_lies_where_the_answer_says() {
        let mut body = vec![17, 0, 80, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        body.extend(b"abcd");
        assert_eq!(data(body.clone()).unwrap(), "abc");
        body[2] = 81;
        assert_eq!(data(body.clone()).unwrap(), "bcd");
        for (at, byte) in [(2, 82), (2, 79), (2, 0), (4, 5), (7, 255)] {
            let mut wrong = body.clone();
            wrong[at] = byte;
            assert_eq!(data(wrong), None, "{at}");
        }
    }

    #[test]
    fn a_lease_vouches_for_what_it_allows_unless_it_is_being_taken_back() {
        let vouches = |state: u32, flags: u32, bytes: usize| {
            let mut data = vec![7; 16];
            data.extend(state.to_le_bytes());
            data.extend(flags.to_le_bytes());
            data.resize(bytes, 0);
            granted(&pack_contexts(&[CreateContext::new(LEASE_CONTEXT, data)])).0
        };
        for bytes in [32, 52] {
            // A flag of another meaning: the key of the directory is set.
            for flags in [0, 4] {
                let whole = LEASE_READ | LEASE_HANDLE;
                assert_eq!(vouches(whole, flags, bytes), Some(Granted::Whole));
                assert_eq!(vouches(whole | LEASE_WRITE, flags, bytes), Some(Granted::Alone));
                assert_eq!(vouches(LEASE_READ, flags, bytes), Some(Granted::Bytes));
                assert_eq!(vouches(LEASE_HANDLE, flags, bytes), None);
                assert_eq!(vouches(0, flags, bytes), None);
            }
            assert_eq!(vouches(LEASE_READ | LEASE_HANDLE, LEASE_BREAKING, bytes), None);
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = data(bytes.clone());
            let _ = granted(&bytes);
            let _ = space(&bytes);
            let _ = volume_serial(&bytes);
            let _ = volume_attributes(&bytes);
        }
    }
}
