//! Data: READ, WRITE and COMMIT, continued until all is done.

use super::timer;
use super::{Nfs3, convert};
use bytes::{Bytes, BytesMut};
use larder_vfs::{
    Change, Committed, Cred, Error, RemoteRead, RemoteWritten, Result, Stability, Verifier,
};
use larder_wire::nfs3::{COMMIT3args, READ3args, WRITE3args, nfs_fh3};
use std::ops::Range;

/// How often data is sent again because the server rebooted between the pieces of one write.
const REWRITES_MAX: u32 = 4;

impl Nfs3 {
    pub(super) async fn read_all(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead> {
        let first = self.read_once(cred, file, offset, len).await?;
        if first.eof || first.data.len() == len as usize {
            return Ok(first);
        }
        let mut whole = BytesMut::with_capacity(len as usize);
        let mut last = first;
        loop {
            whole.extend_from_slice(&last.data);
            let got = u32::try_from(whole.len()).unwrap_or(len);
            if last.eof || got >= len {
                return Ok(RemoteRead { data: whole.freeze(), ..last });
            }
            last = self.read_once(cred, file, offset + u64::from(got), len - got).await?;
        }
    }

    /// Reads as much as one request returns.
    async fn read_once(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead> {
        let count = len.min(self.limits.read_max);
        let answer = self.answer(cred, &READ3args { file, offset, count }, timer::READ).await?;
        // A server that gives nothing before the end would be asked for ever.
        let stuck = count > 0 && answer.data.is_empty() && !answer.eof;
        if stuck || answer.data.len() > count as usize {
            tracing::warn!(server = %self.client.config().server, ?file, offset, "senseless READ");
            return Err(Error::Io);
        }
        let attr = convert::post_op(answer.file_attributes);
        Ok(RemoteRead { data: answer.data.0, eof: answer.eof, attr })
    }

    pub(super) async fn write_all(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<RemoteWritten> {
        for _ in 0..REWRITES_MAX {
            if let Some(written) = self.write_pass(cred, file, offset, &data, stability).await? {
                return Ok(written);
            }
        }
        Err(Error::Io)
    }

    /// Writes all of the data once. Returns nothing if the server may have lost a part in the
    /// meantime.
    async fn write_pass(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<Option<RemoteWritten>> {
        let mut written = self.write_once(cred, file, offset, data, stability).await?;
        let mut done = written.1;
        while done < data.len() {
            let (at, rest) = (offset + done as u64, data.slice(done..));
            let (next, count) = self.write_once(cred, file, at, &rest, stability).await?;
            done += count;
            let same_boot = next.verifier == written.0.verifier;
            let durable = written.0.stability == Stability::FileSync;
            if !same_boot && !durable {
                return Ok(None);
            }
            // No reply reports what happened between the two requests.
            let last = written.0.change.after.map(|attr| attr.validator());
            let is_next = last.is_some_and(|last| next.change.follows(&last));
            let before = written.0.change.before.filter(|_| is_next);
            let change = Change { before, after: next.change.after };
            let stability = convert::weaker(written.0.stability, next.stability);
            written.0 = RemoteWritten { stability, verifier: next.verifier, change };
        }
        let mut written = written.0;
        if convert::weaker(written.stability, stability) != stability {
            // The server promised less than was asked, which it must not (RFC 1813, 3.3.7).
            let range = offset..offset + data.len() as u64;
            let committed = self.commit_range(cred, file, range).await?;
            if committed.verifier != written.verifier {
                return Ok(None);
            }
            written.stability = Stability::FileSync;
        }
        Ok(Some(written))
    }

    /// Writes as much as one request accepts, and returns how much that was.
    async fn write_once(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        offset: u64,
        data: &Bytes,
        stability: Stability,
    ) -> Result<(RemoteWritten, usize)> {
        let wanted = data.len().min(self.limits.write_max as usize);
        let args = WRITE3args {
            file,
            offset,
            count: u32::try_from(wanted).expect("bounded by write_max"),
            stable: convert::stable_how(stability),
            data: data.slice(..wanted).into(),
        };
        let answer = self.answer(cred, &args, timer::WRITE).await?;
        let count = answer.count as usize;
        if count > wanted || (count == 0 && wanted > 0) {
            tracing::warn!(server = %self.client.config().server, ?file, offset, "senseless WRITE");
            return Err(Error::Io);
        }
        let written = RemoteWritten {
            stability: convert::stability(answer.committed),
            verifier: Verifier(u64::from_be_bytes(answer.verf)),
            change: convert::change(&answer.file_wcc),
        };
        Ok((written, count))
    }

    pub(super) async fn commit_range(
        &self,
        cred: &Cred,
        file: nfs_fh3,
        range: Range<u64>,
    ) -> Result<Committed> {
        let (offset, count) = match u32::try_from(range.end.saturating_sub(range.start)) {
            Ok(0) => (0, 0),
            Ok(count) => (range.start, count),
            // 0 means up to the end.
            Err(_) => (range.start, 0),
        };
        let args = COMMIT3args { file, offset, count };
        let answer = self.answer(cred, &args, timer::COMMIT).await?;
        Ok(Committed {
            verifier: Verifier(u64::from_be_bytes(answer.verf)),
            change: convert::change(&answer.file_wcc),
        })
    }
}
