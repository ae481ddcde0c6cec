//! Data: READ, WRITE and FLUSH, in pieces that the server accepts, several at once.
//!
//! - A read uses the open that a lease came with, or the one that a token stands for, or opens the
//!   file for itself, in one message with the READ where it fits.
//! - Writes of a burst share an open, until they are committed ([`super::burst`]).
//! - Written bytes count as unstable until FLUSH. The verifier is the connection's generation: the
//!   server may have been restarted between two of them. All writes of a file go by one channel.

use super::attr::{Info, Shape};
use super::burst::{ToCommit, Writer};
use super::files::{File, ServerOpen};
use super::link::{Link, Reply, garbled};
use super::locks;
use super::share::Share;
use super::status::Failure;
use super::wire::{self, Opening, PREVIOUS};
use bytes::{Bytes, BytesMut};
use larder_vfs::{
    Access, Attr, Before, Change, Committed, Cred, Error, Handle, RemoteRead, RemoteWritten,
    Result, Stability, Token, Verifier,
};
use smb2::msg::create::CreateResponse;
use smb2::msg::query_info::QueryInfoResponse;
use smb2::msg::write::WriteResponse;
use smb2::types::FileId;
use smb2::types::status::NtStatus;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Most requests of one call in flight at the same time.
const DEPTH_MAX: usize = 8;

/// A part of a read or a write: where it begins in the whole, and how long it is.
type Part = (usize, usize);

/// Cuts `length` bytes into parts of at most `part_max`.
fn parts(length: usize, part_max: usize) -> impl Iterator<Item = Part> {
    (0..length).step_by(part_max).map(move |start| (start, part_max.min(length - start)))
}

fn before(info: Option<Info>, shape: &Shape) -> Option<Before> {
    let attr = info?.attr(shape);
    let Attr { size, mtime, ctime, change, data_change, .. } = attr;
    Some(Before { size, mtime, ctime, change, data_change })
}

impl Share {
    /// How a file changed: its attributes before, if a lease proves them, and after.
    pub(super) fn change(&self, was: Option<Info>, after: Option<Info>) -> Change {
        let after: Option<Attr> = after.map(|info| info.attr(&self.shape));
        Change { before: before(was, &self.shape), after }
    }

    pub(super) async fn read(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        token: Option<&Token>,
        (offset, len): (u64, u32),
    ) -> Result<RemoteRead, Failure> {
        self.shape.may_with_file(cred, Access::READ)?;
        if offset > self.limits.file_size_max - u64::from(len) {
            // The server would take such an offset for a mistake.
            let attr = self.look_at(link, file, false).await?.info.attr(&self.shape);
            return Ok(RemoteRead { data: Bytes::new(), eof: true, attr: Some(attr) });
        }
        if let Some(read) = self.read_locked(link, file, offset, len).await? {
            return Ok(read);
        }
        let read = self.read_unlocked(link, file, token, (offset, len)).await;
        if !locks::is_conflict(&read) || !self.locks.has(file) {
            return read;
        }
        // It was locked here meanwhile.
        match self.read_locked(link, file, offset, len).await? {
            Some(again) => Ok(again),
            None => read,
        }
    }

    /// Reads through the open that has the locks of the file; `None` if there is none.
    async fn read_locked(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        offset: u64,
        len: u32,
    ) -> Result<Option<RemoteRead>, Failure> {
        let Some(open) = self.lock_open(link, file).await? else { return Ok(None) };
        let (data, short) = match self.read_open(link, open.id, offset, len).await {
            // It was unlocked meanwhile.
            Err(Failure::Status(NtStatus::FILE_CLOSED)) => return Ok(None),
            read => read?,
        };
        let info = open.info().await?;
        let eof = short || offset + data.len() as u64 >= info.size;
        Ok(Some(RemoteRead { data, eof, attr: Some(info.attr(&self.shape)) }))
    }

    /// Reads a file with no range locked here.
    async fn read_unlocked(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        token: Option<&Token>,
        (offset, len): (u64, u32),
    ) -> Result<RemoteRead, Failure> {
        if let Some(entry) = self.files.get(file) {
            let open = entry.opens.lock().await.read.clone().filter(|open| open.is_on(link));
            if let Some(open) = open {
                match self.read_leased(link, &entry, open.id, offset, len).await {
                    // The server has closed the open: the file is opened again.
                    Err(Failure::Status(NtStatus::FILE_CLOSED)) => (),
                    Err(Failure::Status(NtStatus::INVALID_DEVICE_REQUEST)) => {
                        return Err(Failure::Is(Error::IsDirectory));
                    }
                    read => return read,
                }
            }
        }
        if let Some(open) = self.by_token(link, file, token).await {
            match self.read_opened(link, &open, offset, len).await {
                // The server closed it.
                Err(Failure::Status(NtStatus::FILE_CLOSED)) => (),
                read => return read,
            }
        }
        match len <= self.limits.read_max {
            true => self.read_at_once(link, file, offset, len).await,
            false => self.read_in_parts(link, file, offset, len).await,
        }
    }

    /// Reads through the open that a lease came with.
    async fn read_leased(
        &self,
        link: &Arc<Link>,
        entry: &File,
        id: FileId,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead, Failure> {
        let (data, short) = self.read_open(link, id, offset, len).await?;
        let end = offset + data.len() as u64;
        let eof = short
            || match entry.known() {
                Some((_, known)) => end >= known.info.size,
                None => received(link.ask(wire::read(id, end, 1)).await?, 1)?.is_empty(),
            };
        Ok(RemoteRead { data, eof, attr: None })
    }

    /// Reads data and attributes, in one message where possible.
    async fn read_opened(
        &self,
        link: &Arc<Link>,
        open: &ServerOpen,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead, Failure> {
        let (data, short, info) = if len <= self.limits.read_max {
            let ops = vec![wire::read(open.id, offset, len.max(1)), wire::query(open.id)];
            let mut replies = link.chain(ops).await?.into_iter();
            let data = received(replies.next().ok_or(Failure::Lost)?, len)?;
            let seen = replies.next().ok_or(Failure::Lost)?.read::<QueryInfoResponse>()?;
            let short = data.len() < len as usize;
            (data, short, Info::parse(&seen.output_buffer).map_err(garbled)?)
        } else {
            let (data, short) = self.read_open(link, open.id, offset, len).await?;
            (data, short, open.info().await?)
        };
        let eof = short || offset + data.len() as u64 >= info.size;
        Ok(RemoteRead { data, eof, attr: Some(info.attr(&self.shape)) })
    }

    /// Opens, reads data and attributes, and closes, in one message.
    async fn read_at_once(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead, Failure> {
        let options = wire::NON_DIRECTORY_FILE;
        // Reading breaks no read lease, so no lease has to be named.
        let opening = Opening { options, ..Opening::existing(self.path(file)?, wire::READ) };
        let read = wire::read(PREVIOUS, offset, len.max(1));
        let ops = vec![opening.op(), read, wire::query(PREVIOUS), wire::close(PREVIOUS)];
        let mut replies = link.chain(ops).await?.into_iter();
        let mut next = || replies.next().ok_or(Failure::Lost);
        let opened = next()?.read::<CreateResponse>();
        opened.map_err(|failure| self.gone(file, failure))?;
        let read = next()?;
        let seen = next()?.read::<QueryInfoResponse>()?;
        let info = Info::parse(&seen.output_buffer).map_err(garbled)?;
        self.verify(file, &info)?;
        let data = received(read, len)?;
        let end = offset + data.len() as u64;
        let eof = data.len() < len as usize || end >= info.size;
        Ok(RemoteRead { data, eof, attr: Some(info.attr(&self.shape)) })
    }

    /// Opens, reads in parts and closes.
    async fn read_in_parts(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        offset: u64,
        len: u32,
    ) -> Result<RemoteRead, Failure> {
        let opened = self.open_file(link, file, wire::READ, wire::NON_DIRECTORY_FILE).await?;
        let read = self.read_open(link, opened.open.id, offset, len).await;
        let info = opened.open.finish(Vec::new()).await;
        let (data, short) = read?;
        let info = info?;
        let eof = short || offset + data.len() as u64 >= info.size;
        Ok(RemoteRead { data, eof, attr: Some(info.attr(&self.shape)) })
    }

    /// Reads through an open, and returns whether there was less than requested: then the file ends
    /// there.
    async fn read_open(
        &self,
        link: &Arc<Link>,
        id: FileId,
        offset: u64,
        len: u32,
    ) -> Result<(Bytes, bool), Failure> {
        if len <= self.limits.read_max {
            let data = received(link.ask(wire::read(id, offset, len.max(1))).await?, len)?;
            let short = data.len() < len as usize;
            return Ok((data, short));
        }
        let mut whole = BytesMut::with_capacity(len as usize);
        let mut todo = parts(len as usize, self.limits.read_max as usize);
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < DEPTH_MAX {
                let Some((start, length)) = todo.next() else { break };
                let (link, length) = (Arc::clone(link), u32::try_from(length).unwrap_or(u32::MAX));
                let op = wire::read(id, offset + start as u64, length);
                let asking = async move { received(link.ask(op).await?, length) };
                under_way.push_back((length, Task(tokio::spawn(asking))));
            }
            let Some((length, task)) = under_way.pop_front() else { break };
            let data = task.done().await?;
            whole.extend_from_slice(&data);
            // A server may return less than requested only at the end: what was beyond it is gone.
            if data.len() < length as usize {
                return Ok((whole.freeze(), true));
            }
        }
        Ok((whole.freeze(), false))
    }

    pub(super) async fn write(
        &self,
        target: &Target<'_>,
        cred: &Cred,
        data: &Bytes,
    ) -> Result<RemoteWritten, Failure> {
        let Target { link, file, offset, .. } = *target;
        self.shape.may_with_file(cred, Access::MODIFY)?;
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.limits.file_size_max) {
            return Err(Failure::Is(Error::FileTooLarge));
        }
        let verifier = self.verifier(link);
        if data.is_empty() {
            let after = Some(self.look_at(link, file, false).await?.info);
            let change = self.change(None, after);
            return Ok(RemoteWritten { stability: Stability::FileSync, verifier, change });
        }
        if let Some(written) = self.write_locked(target, data).await? {
            return Ok(written);
        }
        let written = self.write_unlocked(target, cred, data).await;
        if !locks::is_conflict(&written) || !self.locks.has(file) {
            return written;
        }
        // It was locked here meanwhile.
        match self.write_locked(target, data).await? {
            Some(again) => Ok(again),
            None => written,
        }
    }

    /// Writes through the open that has the locks of the file; `None` if there is none.
    async fn write_locked(
        &self,
        target: &Target<'_>,
        data: &Bytes,
    ) -> Result<Option<RemoteWritten>, Failure> {
        let Target { link, file, offset, stability, .. } = *target;
        let Some(open) = self.lock_open(link, file).await? else { return Ok(None) };
        let changing = self.files.changing(file);
        match write_parts(link, open.id, offset, data, self.limits.write_max).await {
            // It was unlocked meanwhile.
            Err(Failure::Status(NtStatus::FILE_CLOSED)) => return Ok(None),
            written => written?,
        }
        if stability != Stability::Unstable {
            link.ask(wire::flush(open.id)).await?.check()?;
        }
        let after = open.info().await?;
        let was = changing.done(Some(after));
        let (verifier, change) = (self.verifier(link), self.change(was, Some(after)));
        Ok(Some(RemoteWritten { stability, verifier, change }))
    }

    /// Writes to a file with no range locked here.
    async fn write_unlocked(
        &self,
        target: &Target<'_>,
        cred: &Cred,
        data: &Bytes,
    ) -> Result<RemoteWritten, Failure> {
        let Target { link, file, offset, stability, .. } = *target;
        let changing = self.files.changing(file);
        let mut writer = self.writer(target, cred).await?;
        let open = Arc::clone(writer.open());
        let unstable = stability == Stability::Unstable;
        let mut done = write_parts(link, open.id, offset, data, self.limits.write_max).await;
        if done.is_ok() && !unstable {
            done = match link.ask(wire::flush(open.id)).await {
                Ok(reply) => reply.check(),
                Err(failure) => Err(failure),
            };
        }
        if let Err(failure) = done {
            writer.failed().await;
            return Err(failure);
        }
        let unused = writer.done(unstable).await;
        // Times are final when it is closed.
        let after = match unused {
            Some(open) => open.finish(Vec::new()).await.ok(),
            None => None,
        };
        let was = changing.done(after);
        let (verifier, change) = (self.verifier(link), self.change(was, after));
        let stability = if unstable { Stability::Unstable } else { Stability::FileSync };
        Ok(RemoteWritten { stability, verifier, change })
    }

    /// The open through which to write a file: that of its token's burst, if there is one.
    async fn writer(&self, target: &Target<'_>, cred: &Cred) -> Result<Writer, Failure> {
        let Target { link, file, token, .. } = *target;
        let opening = async {
            let opened = self.open_to_change(link, cred, file, wire::WRITE).await?;
            Ok(Arc::new(opened.open))
        };
        match self.burst_of(file, token) {
            Some(burst) => burst.write(link, opening).await,
            None => Ok(Writer::alone(opening.await?)),
        }
    }

    pub(super) async fn commit(
        &self,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        token: Option<&Token>,
    ) -> Result<Committed, Failure> {
        let changing = self.files.changing(file);
        if let Some(open) = self.lock_open(link, file).await? {
            link.ask(wire::flush(open.id)).await?.check()?;
            let after = Some(open.info().await?);
            let change = self.change(changing.done(after), after);
            return Ok(Committed { verifier: self.verifier(link), change });
        }
        let burst = match self.burst_of(file, token) {
            Some(burst) => burst.to_commit(link).await,
            None => ToCommit::Nothing,
        };
        let open = match burst {
            ToCommit::Last(open) => open,
            ToCommit::Shared(open) => {
                link.ask(wire::flush(open.id)).await?.check()?;
                let change = self.change(changing.done(None), None);
                return Ok(Committed { verifier: self.verifier(link), change });
            }
            // To flush a file, one must be allowed to write.
            ToCommit::Nothing => {
                let opened = self.open_to_change(link, cred, file, wire::WRITE).await?;
                Arc::new(opened.open)
            }
        };
        let after = open.finish(vec![wire::flush(open.id)]).await?;
        let was = changing.done(Some(after));
        Ok(Committed { verifier: self.verifier(link), change: self.change(was, Some(after)) })
    }

    /// Unstable writes on this connection are safe as long as this is unchanged.
    fn verifier(&self, link: &Link) -> Verifier {
        Verifier(self.mount_id.wrapping_add(link.generation))
    }
}

/// The target of a write, and how it is written.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) link: &'a Arc<Link>,
    pub(super) file: &'a Handle,
    pub(super) token: Option<&'a Token>,
    pub(super) offset: u64,
    pub(super) stability: Stability,
}

/// Writes in parts, and waits for all of them.
async fn write_parts(
    link: &Arc<Link>,
    id: FileId,
    offset: u64,
    data: &Bytes,
    write_max: u32,
) -> Result<(), Failure> {
    let mut todo = parts(data.len(), write_max as usize);
    let mut under_way = VecDeque::new();
    let mut failed = None;
    loop {
        while under_way.len() < DEPTH_MAX && failed.is_none() {
            let Some((start, length)) = todo.next() else { break };
            let (link, part) = (Arc::clone(link), data.slice(start..start + length));
            let at = offset + start as u64;
            under_way.push_back(Task(tokio::spawn(write_part(link, id, at, part))));
        }
        match under_way.pop_front() {
            Some(task) => failed = failed.or(task.done().await.err()),
            None => return failed.map_or(Ok(()), Err),
        }
    }
}

/// Writes all of a part, also if the server takes it piecemeal.
async fn write_part(
    link: Arc<Link>,
    id: FileId,
    mut offset: u64,
    mut part: Bytes,
) -> Result<(), Failure> {
    while !part.is_empty() {
        let reply = link.ask(wire::write(id, offset, part.to_vec())).await?;
        let count = reply.read::<WriteResponse>()?.count as usize;
        if count == 0 || count > part.len() {
            tracing::warn!(offset, count, "senseless answer to an SMB WRITE");
            return Err(Failure::Is(Error::Io));
        }
        offset += count as u64;
        part = part.slice(count..);
    }
    Ok(())
}

/// The data that a READ returned; none beyond the end of the file.
fn received(reply: Reply, asked: u32) -> Result<Bytes, Failure> {
    if reply.status == NtStatus::END_OF_FILE {
        return Ok(Bytes::new());
    }
    let data = wire::data(reply.into_body()?).ok_or(Failure::Is(Error::Io))?;
    match data.len() > asked as usize {
        true => Err(Failure::Is(Error::Io)),
        false => Ok(data),
    }
}

/// A task that ends with the call that began it. What it has sent stays in flight.
struct Task<T>(JoinHandle<Result<T, Failure>>);

impl<T> Task<T> {
    async fn done(mut self) -> Result<T, Failure> {
        (&mut self.0).await.unwrap_or(Err(Failure::Lost))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_whole() {
        for (length, part_max) in [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 7)] {
            let mut end = 0;
            for (start, part) in parts(length, part_max) {
                assert_eq!(start, end);
                assert!((1..=part_max).contains(&part));
                end = start + part;
            }
            assert_eq!(end, length);
        }
    }
}
