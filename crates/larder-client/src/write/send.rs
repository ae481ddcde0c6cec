//! Sends dirty bytes: the requests of one write-back, until one boot of the server has all of them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_cache::CachedFile;
use larder_vfs::{Change, Cred, Error, Intent, Result, Stability, Token, Verifier, Volatile};
use tokio::task::JoinSet;

use crate::core::Core;
use crate::limits::Transferring;
use crate::names::on_handle;
use crate::node::{Node, unchanged};

/// Write requests of one file in flight at the same time.
const REQUESTS_MAX: usize = 8;

/// The requests of a limited write-back are no longer than what passes in this part of a second, so
/// that the link is free in between, nor shorter than the least length, in bytes.
const LIMITED_PARTS: u64 = 4;
const LIMITED_BYTES_MIN: u64 = 16 << 10;

/// How often everything is sent again because the server restarted in between.
const RESENDS_MAX: u32 = 8;

/// The result of a round of requests.
pub(crate) struct Sent {
    changes: Vec<Change>,
    verifiers: Vec<Verifier>,
    stable: bool,
    result: Result<()>,
}

impl Core {
    /// Sends `dirty` until one boot of the server has all of it on its disk.
    pub(crate) async fn send_until_stable(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        file: &Arc<CachedFile>,
        cred: &Cred,
        dirty: &[Range<u64>],
    ) -> Sent {
        let (open, is_own) = self.open_to_send(node, transfer, cred, dirty).await;
        let sent = self.send_by(node, transfer, file, (cred, open.as_ref()), dirty).await;
        if let Some(own) = open.filter(|_| is_own) {
            // What is durable was committed; the server closes the open by itself at some time, if
            // not now.
            let _ = self.remote.close(cred, own).await;
        }
        sent
    }

    /// An open at the server through which to send: that of an open file that may write, or, if one
    /// request is not enough, a new one, which must be closed.
    async fn open_to_send(
        &self,
        node: &Node,
        transfer: &Transferring<'_>,
        cred: &Cred,
        dirty: &[Range<u64>],
    ) -> (Option<Token>, bool) {
        let others = self.open_files.token(node.ino, true);
        let is_one = || self.pieces(dirty, transfer.is_limited()).len() < 2;
        if others.is_some() || !self.remote.limits().opens || is_one() {
            return (others, false);
        }
        let opened = on_handle!(self, cred, node, handle =>
            self.remote.open(cred, &handle, Intent::WRITE));
        // Without one it is sent all the same, or the server says why not.
        (opened.ok().and_then(|opened| opened.token), true)
    }

    async fn send_by(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        file: &Arc<CachedFile>,
        (cred, open): (&Cred, Option<&Token>),
        dirty: &[Range<u64>],
    ) -> Sent {
        debug_assert!(!dirty.is_empty(), "without a request nothing proves that bytes are stable");
        let mut changes = Vec::new();
        let mut recovered = false;
        for _ in 0..RESENDS_MAX {
            let handle = node.handle();
            let mut sent = self.send(node, transfer, file, (cred, open), dirty).await;
            let cred = &cred.until(transfer.extend(cred.deadline));
            changes.append(&mut sent.changes);
            if let (Err(Error::Stale), Ok(handle), false) = (&sent.result, handle, recovered) {
                recovered = true;
                match self.recover(cred, node, &handle).await {
                    Ok(_) => continue,
                    Err(error) => sent.result = Err(error),
                }
            }
            sent.changes = std::mem::take(&mut changes);
            if sent.result.is_err() || sent.stable {
                return sent;
            }
            let everything = 0..0;
            let answer = on_handle!(self, cred, node, handle =>
                self.remote.commit(cred, &handle, open, everything.clone()));
            match answer {
                Ok(committed) => {
                    debug_assert!(!sent.verifiers.is_empty(), "a commit is compared with writes");
                    sent.changes.extend(unchanged(committed.change));
                    if sent.verifiers.iter().all(|verifier| *verifier == committed.verifier) {
                        return sent;
                    }
                    tracing::warn!(ino = node.ino.0, "the server restarted; sending again");
                    changes = sent.changes;
                }
                Err(error) => return Sent { result: Err(error), ..sent },
            }
        }
        Sent { changes, verifiers: Vec::new(), stable: false, result: Err(Error::Io) }
    }

    /// `dirty`, cut into requests; shorter ones, if they keep to a limit on bytes per second.
    pub(crate) fn pieces(&self, dirty: &[Range<u64>], is_limited: bool) -> Vec<Range<u64>> {
        let mut request_max =
            u64::from(self.options.write_bytes_max.min(self.remote.limits().write_max));
        if let Some(rate) = self.options.rate.get().filter(|_| is_limited) {
            request_max = request_max.min((rate / LIMITED_PARTS).max(LIMITED_BYTES_MIN));
        }
        let pieces: Vec<_> =
            dirty.iter().flat_map(|range| cut(range.clone(), request_max)).collect();
        debug_assert_eq!(bytes_of(&pieces), bytes_of(dirty), "the requests carry all dirty bytes");
        pieces
    }

    /// Sends `dirty` once: stable if it is one request, else several at a time.
    async fn send(
        &self,
        node: &Arc<Node>,
        transfer: &Transferring<'_>,
        file: &Arc<CachedFile>,
        (cred, open): (&Cred, Option<&Token>),
        dirty: &[Range<u64>],
    ) -> Sent {
        let mut sent = Sent { changes: vec![], verifiers: vec![], stable: true, result: Ok(()) };
        sent.result = self.say_archived(node, cred).await;
        let pieces = self.pieces(dirty, transfer.is_limited());
        let stability = match (self.in_memory(node), pieces.len()) {
            (Some(volatile), _) => Stability::Shared(volatile),
            (None, 1) => Stability::FileSync,
            (None, _) => Stability::Unstable,
        };
        let mut under_way = JoinSet::new();
        for piece in pieces {
            if under_way.len() == REQUESTS_MAX {
                sent.take(under_way.join_next().await, transfer);
            }
            if sent.result.is_err() {
                break;
            }
            transfer.pass(&self.options.rate, piece.end - piece.start).await;
            match read_dirty(file, &piece) {
                Ok(data) => {
                    let cred = cred.until(transfer.extend(cred.deadline));
                    let by = (cred, open.cloned());
                    let request = self.write_request(node, by, piece.start, data, stability);
                    under_way.spawn_on(request, &self.runtime);
                }
                Err(error) => sent.result = Err(error),
            }
        }
        while let Some(done) = under_way.join_next().await {
            sent.take(Some(done), transfer);
        }
        sent
    }

    /// How unsent bytes are kept if they need not be on the server's disk: by the classes of all
    /// open and closed files that may have written them, provided that no caller was told that some
    /// are late.
    fn in_memory(&self, node: &Node) -> Option<Volatile> {
        let open = self.open_files.wanted(node.ino);
        let (is_late, since, wanted) = {
            let state = node.state();
            let unsent = state.unsent();
            let is_late = unsent.is_late() || unsent.failure().is_some();
            (is_late, unsent.since(), unsent.left().and(open))
        };
        let wanted = wanted.in_memory().filter(|_| !self.options.sync && !is_late);
        let mut volatile = wanted.or_else(|| self.volatile_if_retained(node))?;
        // The time of the oldest bytes counts, and has begun when they were written.
        let age = since
            .map_or(Duration::ZERO, |since| self.clock.instant().saturating_duration_since(since));
        volatile.due = volatile.due.map(|due| due.saturating_sub(age));
        (volatile.due != Some(Duration::ZERO)).then_some(volatile)
    }

    /// Tells the server within which time the unsent bytes are to be in the archive, if their class
    /// says so.
    pub(super) async fn say_archived(&self, node: &Node, cred: &Cred) -> Result<()> {
        let of_opens = self.open_files.archive_within(node.ino);
        // If nobody has it open any more, the strongest class that it can have counts.
        let may_be_any = !self.set_classes.is_empty();
        let is_open = self.open_files.any_of(node.ino, |open| open.flags.write);
        let of_any = || self.options.classes.archive_within(may_be_any);
        let within = if is_open { of_opens } else { of_any() };
        let Some(within) = within else { return Ok(()) };
        let since = node.state().unsent().since();
        let now = self.clock.instant();
        let age = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let handle = node.handle()?;
        self.remote.archive_within(cred, &handle, within.saturating_sub(age)).await
    }

    fn write_request(
        &self,
        node: &Arc<Node>,
        (cred, open): (Cred, Option<Token>),
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> impl Future<Output = Result<larder_vfs::RemoteWritten>> + Send + 'static + use<> {
        let (remote, node) = (self.remote.clone(), node.clone());
        let budget = self.transfer_budget.clone();
        async move {
            let kib = u32::try_from(data.len().div_ceil(1024)).unwrap_or(u32::MAX);
            let (room, cred) = budget.take(kib, &cred).await?;
            let handle = node.handle()?;
            let open = open.as_ref();
            let written = remote.write(&cred, &handle, open, offset, data, stability).await?;
            room.progress();
            Ok(written)
        }
    }
}

impl Sent {
    /// The changes that the server reported, and whether it has everything.
    pub(super) fn into_parts(self) -> (Vec<Change>, Result<()>) {
        (self.changes, self.result)
    }

    fn take(
        &mut self,
        done: Option<Result<Result<larder_vfs::RemoteWritten>, tokio::task::JoinError>>,
        transfer: &Transferring<'_>,
    ) {
        match done.map(|done| done.unwrap_or(Err(Error::Io))) {
            Some(Ok(written)) => {
                transfer.progress();
                self.changes.push(written.change);
                self.verifiers.push(written.verifier);
                self.stable &= written.stability != Stability::Unstable;
            }
            Some(Err(error)) => self.result = Err(error),
            None => {}
        }
    }
}

/// Dirty bytes to send.
fn read_dirty(file: &CachedFile, range: &Range<u64>) -> Result<Bytes> {
    let len = usize::try_from(range.end - range.start).expect("a request is short");
    let mut buffer = vec![0; len];
    file.read_dirty(range.start, &mut buffer).map_err(|error| {
        tracing::error!(%error, "cannot read back dirty bytes from the cache disk");
        Error::Io
    })?;
    Ok(buffer.into())
}

/// How many bytes these ranges have.
fn bytes_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Cuts a range into requests.
fn cut(range: Range<u64>, request_max: u64) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (range.start, range.end);
    let count = (end - start).div_ceil(request_max);
    (0..count).map(move |i| {
        let from = start + i * request_max;
        from..end.min(from + request_max)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a range are its bytes in order, in every small case.
    #[test]
    fn pieces_are_the_whole() {
        for range in (0..6).flat_map(|a| (a + 1..7).map(move |b| a..b)) {
            for max in 1..4 {
                let pieces: Vec<_> = cut(range.clone(), max).collect();
                assert!(pieces.iter().cloned().flatten().eq(range.clone()));
                assert!(pieces.iter().all(|piece| piece.end - piece.start <= max));
            }
        }
    }
}
