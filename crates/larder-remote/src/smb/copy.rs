//! Copies within the server: FSCTL_SRV_REQUEST_RESUME_KEY and FSCTL_SRV_COPYCHUNK_WRITE (MS-SMB2,
//! 2.2.31 and 3.3.5.15.6).
//!
//! The source is named by a key, which belongs to an open of it in the same session: so both ends
//! are opened by one connection, that of the target. A server without the controls, or one that
//! takes less at once than MS-SMB2 has it, is one that does not copy.

use super::link::{Link, garbled};
use super::share::Share;
use super::status::Failure;
use super::wire;
use larder_vfs::{Access, CopyEnd, Cred, Error, Handle, RemoteCopied};
use smb2::msg::ioctl::IoctlResponse;
use smb2::types::FileId;
use smb2::types::status::NtStatus;
use std::ops::Range;
use std::sync::Arc;

/// Longest chunk that servers take, in bytes (MS-SMB2, 3.3.3: `ServerSideCopyMaxChunkSize`).
const CHUNK_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of all chunks of a request (`ServerSideCopyMaxDataSize`).
const REQUEST_BYTES_MAX: u64 = 16 << 20;
/// Most bytes that one call copies: its caller has a deadline, and asks again for the rest.
const CALL_BYTES_MAX: u64 = 64 << 20;
/// Length of a key, and of the reply that brings it.
const KEY_BYTES: usize = 24;
const KEY_REPLY_BYTES: u32 = 32;
const COPIED_REPLY_BYTES: u32 = 12;

/// An open of one end of a copy. For a file with ranges that we have locked it is the open that has
/// the locks: by another open the server would refuse us its bytes.
enum End {
    Locked(Arc<super::files::ServerOpen>),
    Own(super::share::Opened),
}

impl End {
    fn id(&self) -> FileId {
        match self {
            End::Locked(open) => open.id,
            End::Own(opened) => opened.open.id,
        }
    }
}

impl Share {
    /// Copies a range, durably.
    pub(super) async fn copy_range(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        (from, to): (CopyEnd<'_>, CopyEnd<'_>),
        len: u64,
    ) -> Result<RemoteCopied, Failure> {
        self.shape.may_with_file(cred, Access::READ)?;
        self.shape.may_with_file(cred, Access::MODIFY)?;
        // Arguments that are wrong whatever the file's size is are not sent to the server.
        from.check(&to, len.min(1), u64::MAX, self.limits.file_size_max)?;
        let (source, size) = self.source(link, from.file).await?;
        let len = from.check(&to, len, size, self.limits.file_size_max)?.min(CALL_BYTES_MAX);
        let changing = self.files.changing(to.file);
        let target = match self.lock_open(link, to.file).await? {
            Some(open) => End::Locked(open),
            None => End::Own(self.open_to_change(link, cred, to.file, wire::WRITE).await?),
        };
        if len > 0 {
            let key = resume_key(link, source.id()).await?;
            let range = from.offset..from.offset + len;
            copy(link, &key, range, (target.id(), to.offset)).await?;
        }
        let after = match target {
            End::Locked(open) => {
                link.ask(wire::flush(open.id)).await?.check()?;
                open.info().await?
            }
            End::Own(opened) => opened.open.finish(vec![wire::flush(opened.open.id)]).await?,
        };
        let was = changing.done(Some(after));
        Ok(RemoteCopied { len, change: self.change(was, Some(after)) })
    }

    /// An open to copy from, and the size of its file.
    async fn source(&self, link: &Arc<Link>, file: &Handle) -> Result<(End, u64), Failure> {
        if let Some(open) = self.lock_open(link, file).await? {
            let size = open.info().await?.size;
            return Ok((End::Locked(open), size));
        }
        let opened = self.open_file(link, file, wire::READ, wire::NON_DIRECTORY_FILE).await?;
        let size = opened.info.size;
        Ok((End::Own(opened), size))
    }
}

/// The key that identifies an open in requests to copy from it.
async fn resume_key(link: &Arc<Link>, source: FileId) -> Result<[u8; KEY_BYTES], Failure> {
    let op = wire::control(source, wire::REQUEST_RESUME_KEY, Vec::new(), KEY_REPLY_BYTES);
    let told = link.ask(op).await?.read::<IoctlResponse>().map_err(not_copied)?.output_data;
    let key = told.get(..KEY_BYTES).and_then(|key| key.try_into().ok());
    key.ok_or_else(|| garbled(smb2::Error::invalid_data("resume key")))
}

async fn copy(
    link: &Arc<Link>,
    key: &[u8; KEY_BYTES],
    range: Range<u64>,
    (target, at): (FileId, u64),
) -> Result<(), Failure> {
    for start in range.clone().step_by(REQUEST_BYTES_MAX as usize) {
        let part = start..range.end.min(start + REQUEST_BYTES_MAX);
        let chunks = chunks(key, &part, at + (start - range.start));
        let op = wire::control(target, wire::COPYCHUNK_WRITE, chunks, COPIED_REPLY_BYTES);
        let reply = link.ask(op).await?;
        // Only of the first request nothing has been done.
        let told = match reply.read::<IoctlResponse>() {
            Err(failure) if start == range.start => return Err(not_copied(failure)),
            told => told?.output_data,
        };
        let copied = told.get(8..12).and_then(|bytes| bytes.try_into().ok());
        if copied.map(|bytes| u64::from(u32::from_le_bytes(bytes))) != Some(part.end - part.start) {
            tracing::warn!(?told, "senseless answer to an SMB copy");
            return Err(Failure::Is(Error::Io));
        }
    }
    Ok(())
}

/// SRV_COPYCHUNK_COPY (MS-SMB2, 2.2.31.1): copies a range of the source to `at` in the target.
fn chunks(key: &[u8; KEY_BYTES], range: &Range<u64>, at: u64) -> Vec<u8> {
    let mut request = key.to_vec();
    let starts: Vec<u64> = range.clone().step_by(CHUNK_BYTES_MAX as usize).collect();
    let count = u32::try_from(starts.len()).expect("a request has few chunks");
    request.extend([count, 0].into_iter().flat_map(u32::to_le_bytes));
    for start in starts {
        let len = CHUNK_BYTES_MAX.min(range.end - start);
        request.extend(
            [start, at + (start - range.start), len].into_iter().flat_map(u64::to_le_bytes),
        );
    }
    request
}

/// The meaning of a server's refusal of a request that copying needs.
fn not_copied(failure: Failure) -> Failure {
    match failure {
        Failure::Status(
            NtStatus::INVALID_PARAMETER
            | NtStatus::INVALID_DEVICE_REQUEST
            | NtStatus::NOT_SUPPORTED
            | NtStatus::NOT_IMPLEMENTED
            | NtStatus::OBJECT_NAME_NOT_FOUND,
        ) => Failure::Is(Error::NotSupported),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range() {
        let key = std::array::from_fn(|at| at as u8);
        let request = chunks(&key, &(5..5 + 2 * CHUNK_BYTES_MAX + 7), 100);
        let number = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().unwrap());
        assert_eq!((&request[..24], number(24), request.len()), (&key[..], 3, 32 + 3 * 24));
        let told: Vec<[u64; 3]> = (0..3)
            .map(|chunk| std::array::from_fn(|field| number(32 + 24 * chunk + 8 * field)))
            .collect();
        let chunk = CHUNK_BYTES_MAX;
        assert_eq!(
            told,
            [[5, 100, chunk], [5 + chunk, 100 + chunk, chunk], [5 + 2 * chunk, 100 + 2 * chunk, 7]]
        );
        assert_eq!(chunks(&key, &(9..10), 0).len(), 32 + 24);
        let whole = chunks(&key, &(0..REQUEST_BYTES_MAX), 0);
        assert_eq!(whole.len(), 32 + 16 * 24);
    }

    #[test]
    fn a_server_that_cannot_copy_is_told_from_one_that_fails() {
        for status in [NtStatus::INVALID_PARAMETER, NtStatus::NOT_SUPPORTED] {
            let failure = not_copied(Failure::Status(status));
            assert_eq!(failure, Failure::Is(Error::NotSupported));
        }
        for failure in [Failure::Lost, Failure::Status(NtStatus::DISK_FULL)] {
            assert_eq!(not_copied(failure), failure);
        }
    }
}
