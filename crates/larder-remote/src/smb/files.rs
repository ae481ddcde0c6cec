//! Files that are open at the server, and the leases on them.
//!
//! A lease lives as long as the open with which it was granted, so that open is kept. Opens to
//! change a file carry its key, so that our own changes do not break our own lease. On a directory
//! a watch may stand for the lease ([`super::watch`]).
//!
//! A server takes a read lease back without waiting: its message arrives late, and through one of
//! the opens under the key. Samba discards the message if that open is closed when it arrives, even
//! if others are open. So before a change the client asks for a lease that makes others wait. If it
//! is granted, no other client has the file open, and our change is the only one. If not, another
//! client may be writing just now: the lease ends with the first open under its key that is closed,
//! and a lease granted within the next moment is not believed, because a write that had begun
//! before is not reported.
//!
//! The description of a file under a lease is kept, so that the server need not be asked. Our own
//! changes make it unknown while they run; an answer that overlapped one is not kept.
//!
//! Invariants:
//! - At most [`FILES_MAX`] files are in the table; one that leaves it has no lease.
//! - A lease is ended before the watcher or the server is told anything.

use super::attr::Info;
use super::frames::LeaseKey;
use super::link::{Link, Op};
use super::status::Failure;
use super::watch::Watch;
use super::wire::Granted;
use super::{handle, wire};
use larder_io::{Clock, Monotonic};
use larder_vfs::{Handle, Lease};
use smb2::msg::close::CloseResponse;
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::FileId;
use smb2::types::flags::FileAccessMask;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Most files kept open.
pub(super) const FILES_MAX: usize = 512;

/// For this long after another client was writing, leases on a file are not believed: what that
/// client sent before has been carried out by then.
const DISTURBED_FOR: Duration = Duration::from_secs(2);

/// An open of the server. Closed when dropped.
pub(super) struct ServerOpen {
    pub(super) link: Arc<Link>,
    pub(super) id: FileId,
    /// Whether bytes can be read by it.
    pub(super) reads: bool,
    closed: AtomicBool,
    /// Whether the file is kept open through it ([`super::standing`]), whatever happens to its
    /// lease.
    keeps: AtomicBool,
    /// The file under whose lease key it was made.
    keyed: OnceLock<Weak<File>>,
}

impl ServerOpen {
    /// An open with these access rights.
    pub(super) fn new(link: Arc<Link>, id: FileId, access: u32) -> ServerOpen {
        let reads = access & FileAccessMask::FILE_READ_DATA != 0;
        let [closed, keeps] = Default::default();
        ServerOpen { link, id, reads, closed, keeps, keyed: OnceLock::new() }
    }

    /// It bears the key of the leases on this file.
    pub(super) fn bear_key(&self, file: &Arc<File>) {
        self.keyed.get_or_init(|| Arc::downgrade(file));
    }

    /// Whether it does.
    pub(super) fn bears_key(&self) -> bool {
        self.keyed.get().is_some()
    }

    /// Before it is closed.
    fn end_key(&self) {
        if let Some(file) = self.keyed.get().and_then(Weak::upgrade) {
            file.closes_keyed();
        }
    }

    /// Whether it can still be used on this connection.
    pub(super) fn is_on(&self, link: &Link) -> bool {
        let is_closed = self.closed.load(Ordering::Acquire);
        self.link.generation == link.generation && !link.is_lost() && !is_closed
    }

    /// From now on the file is kept open through it.
    pub(super) fn begin_keeping(&self) {
        self.keeps.store(true, Ordering::Release);
    }

    /// The file is no longer kept open through it.
    pub(super) fn end_keeping(&self) {
        self.keeps.store(false, Ordering::Release);
    }

    /// Closes it and waits until it is closed, also if another task closes it already. Otherwise
    /// another open of the same file may be notified of it late, and a directory above it cannot be
    /// renamed.
    pub(super) async fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.end_key();
            self.link.close_later(self.id);
        }
        self.link.closed().await;
    }

    /// Closes it on its own, for [`Link::close_given_up`].
    pub(super) async fn close_alone(self) {
        self.closed.store(true, Ordering::Release);
        self.end_key();
        // It is closed if there is no connection.
        let _ = self.link.ask(wire::close(self.id)).await;
    }

    /// Makes these last requests, closes it, and returns the final attributes. If one of them
    /// fails, it stays open.
    pub(super) async fn finish(&self, mut ops: Vec<Op>) -> Result<Info, Failure> {
        self.end_key();
        let last_things = ops.len();
        ops.extend([wire::query(self.id), wire::close(self.id)]);
        let mut replies = self.link.chain(ops).await?.into_iter();
        for _ in 0..last_things {
            replies.next().ok_or(Failure::Lost)?.check()?;
        }
        let seen = replies.next().ok_or(Failure::Lost)?.read::<QueryInfoResponse>()?;
        let closed = replies.next().ok_or(Failure::Lost)?.read::<CloseResponse>()?;
        self.closed.store(true, Ordering::Release);
        let info = Info::parse(&seen.output_buffer).map_err(super::link::garbled)?;
        // Servers may set the times only at the close. If they have none, the reply contains zero.
        if closed.last_write_time.0 == 0 {
            return Ok(info);
        }
        Ok(Info {
            accessed: closed.last_access_time.0,
            written: closed.last_write_time.0,
            changed: closed.change_time.0,
            allocation: closed.allocation_size,
            size: closed.end_of_file,
            attributes: closed.file_attributes,
            ..info
        })
    }
}

impl Drop for ServerOpen {
    fn drop(&mut self) {
        if !*self.closed.get_mut() && !self.link.is_lost() {
            self.end_key();
            self.link.close_later(self.id);
        }
    }
}

/// The opens of a file. Their lock is held until they are closed: a removal of the file may use
/// another connection.
#[derive(Default)]
pub(super) struct Opens {
    /// That of the lease.
    pub(super) read: Option<Arc<ServerOpen>>,
}

impl Opens {
    /// Closes the open of a lease that has ended, unless the file is kept open through it, and
    /// waits until it is closed.
    pub(super) async fn give_back(&mut self) {
        if let Some(read) = self.take_to_give_back() {
            read.close().await;
        }
    }

    /// Takes the open of a lease that has ended, unless the file is kept open through it.
    pub(super) fn take_to_give_back(&mut self) -> Option<Arc<ServerOpen>> {
        self.read.take().filter(|read| !read.keeps.load(Ordering::Acquire))
    }

    /// Closes it, and waits until it is.
    pub(super) async fn close(&mut self) {
        if let Some(read) = self.read.take() {
            read.close().await;
        }
    }
}

/// What is known of a file under its lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) info: Info,
    /// The rights that the server grants this login.
    pub(super) maximal: u32,
}

#[derive(Default)]
struct Held {
    lease: Option<Lease>,
    /// The watch that the lease stands for, if it is one.
    watch: Option<Arc<Watch>>,
    info: Option<Info>,
    maximal: u32,
    /// Times that a lease ended, or became one that others share.
    ends: u64,
    /// When another client was last known to write.
    disturbed: Option<Monotonic>,
    /// Changes of ours that were begun or ended.
    changes: u64,
    /// Changes of ours in flight.
    changing: u32,
    /// It was removed from the table.
    left: bool,
}

impl Held {
    fn whole_lease(&self) -> Option<Lease> {
        self.lease.clone().filter(|lease| lease.keeps_name() && lease.holds())
    }

    /// Ends the lease; returns it if it held.
    fn end(&mut self) -> Option<Lease> {
        self.ends += 1;
        self.info = None;
        self.watch = None;
        let lease = self.lease.take()?;
        let holds = lease.holds();
        lease.end();
        holds.then_some(lease)
    }
}

/// A moment, to find out whether something has happened since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    ends: u64,
    changes: u64,
    quiet: bool,
}

/// A file that is, or is about to be, open.
pub(super) struct File {
    pub(super) handle: Handle,
    pub(super) key: LeaseKey,
    pub(super) opens: tokio::sync::Mutex<Opens>,
    held: Mutex<Held>,
    used: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// A change of ours in flight.
pub(super) struct Changing {
    file: Option<Arc<File>>,
    lease: Option<Lease>,
    before: Option<Info>,
    begun: u64,
}

impl File {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease, if it holds.
    pub(super) fn lease(&self) -> Option<Lease> {
        self.held().lease.clone().filter(Lease::holds)
    }

    /// The lease, if it holds and covers the name, too.
    pub(super) fn whole_lease(&self) -> Option<Lease> {
        self.held().whole_lease()
    }

    /// The lease that covers the name, too, and what is true under it.
    pub(super) fn known(&self) -> Option<(Lease, Known)> {
        let held = self.held();
        let info = held.info.filter(|_| held.changing == 0)?;
        Some((held.whole_lease()?, Known { info, maximal: held.maximal }))
    }

    /// The rights that the server granted with the lease.
    pub(super) fn maximal(&self) -> u32 {
        self.held().maximal
    }

    /// Now.
    pub(super) fn moment(&self) -> Moment {
        let held = self.held();
        Moment { ends: held.ends, changes: held.changes, quiet: held.changing == 0 }
    }

    /// Whether a lease ended since then.
    pub(super) fn ended_since(&self, since: Moment) -> bool {
        self.held().ends != since.ends
    }

    /// Records the attributes requested at that moment, if they are still true.
    pub(super) fn saw(&self, since: Moment, info: Info) {
        let mut held = self.held();
        let same = held.ends == since.ends && held.changes == since.changes && since.quiet;
        if same && held.lease.is_some() {
            held.info = Some(info);
        }
    }

    /// Records a lease that the server granted; `None` if it was withdrawn already, or is not to be
    /// believed.
    pub(super) fn granted(&self, since: Moment, known: Known, what: Granted) -> Option<Lease> {
        let mut held = self.held();
        if held.left || held.ends != since.ends {
            tracing::debug!(?what, file = ?self.handle, "a lease was withdrawn as it was granted");
            return None;
        }
        tracing::debug!(?what, file = ?self.handle, "a lease is granted");
        let keeps_name = what != Granted::Bytes;
        let lease = match held.lease.take() {
            Some(lease) if lease.keeps_name() == keeps_name => lease,
            other => {
                // Its holder may trust the name.
                other.inspect(Lease::end);
                if keeps_name { Lease::new() } else { Lease::of_bytes() }
            }
        };
        // A read lease is withdrawn without waiting (MS-SMB2, 3.3.4.7). Names in a directory are
        // not trusted any more when its lease ends, however late that is reported.
        if what != Granted::Alone && !known.info.is_directory() {
            lease.set_ends_late(true);
        }
        held.lease = Some(lease.clone());
        held.maximal = known.maximal;
        held.info = (held.changes == since.changes && since.quiet).then_some(known.info);
        Some(lease)
    }

    /// Ends the lease; returns it if it held.
    pub(super) fn end(&self) -> Option<Lease> {
        tracing::debug!(file = ?self.handle, "a lease is returned");
        self.held().end()
    }

    /// Ends the lease if it is this one.
    pub(super) fn end_this(&self, lease: &Lease) {
        let mut held = self.held();
        if held.lease.as_ref().is_some_and(|current| current.is(lease)) {
            held.end();
        }
    }

    /// The lease that was just granted stands for this watch.
    pub(super) fn begin_watch(&self, watch: Watch) -> Arc<Watch> {
        let watch = Arc::new(watch);
        let mut held = self.held();
        if held.lease.as_ref().is_some_and(|current| watch.lease().is(current)) {
            held.watch = Some(Arc::clone(&watch));
        }
        watch
    }

    /// The watch on the directory, if it holds.
    pub(super) fn watch(&self) -> Option<Arc<Watch>> {
        self.held().watch.clone().filter(|watch| watch.holds())
    }

    /// The same for a lease that the server withdraws because another client writes.
    pub(super) fn end_disturbed(&self) -> Option<Lease> {
        tracing::debug!(file = ?self.handle, "another client writes: the lease ends");
        let mut held = self.held();
        held.disturbed = Some(self.clock.now());
        held.end()
    }

    /// Whether another client was writing a moment ago.
    pub(super) fn is_disturbed(&self) -> bool {
        let now = self.clock.now();
        self.held().disturbed.is_some_and(|when| now.since(when) < DISTURBED_FOR)
    }

    /// No other client had the file open when it was in the state `seen`, before a change of ours
    /// that was sent after that moment. If that is the state from when the lease was granted, no
    /// other client has changed it since, and none will before the lease ends.
    pub(super) fn found_alone(&self, since: Moment, seen: &Info) {
        let held = self.held();
        let is_same = held.info.is_some_and(|info| info.is_same_version(seen));
        if let Some(lease) = held.lease.as_ref().filter(|_| held.ends == since.ends && is_same) {
            lease.set_ends_late(false);
        }
    }

    /// Another client opens the file: the lease continues as a read lease, which ends late.
    pub(super) fn share(&self) {
        tracing::debug!(file = ?self.handle, "another client opens it: the lease ends late");
        let mut held = self.held();
        held.ends += 1;
        if let Some(lease) = &held.lease {
            lease.set_ends_late(true);
        }
    }

    /// An open under the key is about to be closed: a message that the server sends through it is
    /// lost.
    fn closes_keyed(&self) {
        let mut held = self.held();
        if held.lease.as_ref().is_some_and(|lease| lease.holds() && !lease.ends_late()) {
            return;
        }
        if held.end().is_some() {
            tracing::debug!(file = ?self.handle, "its open is closed: the lease ends");
            held.disturbed = Some(self.clock.now());
        }
    }
}

impl Changing {
    /// The change is over; `after` is the server's description then. Returns the state just before,
    /// if a lease proves it.
    pub(super) fn done(mut self, after: Option<Info>) -> Option<Info> {
        let file = self.file.take()?;
        let mut held = file.held();
        held.changing -= 1;
        held.changes += 1;
        let same = match (&self.lease, &held.lease) {
            (Some(then), Some(now)) => then.is(now) && !now.ends_late() && now.holds(),
            _ => false,
        };
        let alone = held.changes == self.begun + 1 && held.changing == 0;
        held.info = after.filter(|_| same && alone);
        self.before.take().filter(|_| same && alone)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        // The caller gave the change up: its outcome is not known.
        if let Some(file) = self.file.take() {
            let mut held = file.held();
            held.changing -= 1;
            held.changes += 1;
            held.info = None;
        }
    }
}

/// Every file that is open.
pub(super) struct Files {
    table: Mutex<Table>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Table {
    files: HashMap<Handle, Arc<File>>,
    keys: HashMap<LeaseKey, Handle>,
    clock: u64,
}

impl Files {
    /// An empty table. Its moments are measured by this clock.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Files {
        Files { table: Mutex::default(), clock }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if it is in the table.
    pub(super) fn get(&self, handle: &Handle) -> Option<Arc<File>> {
        let mut table = self.table();
        table.clock += 1;
        let file = table.files.get(handle)?;
        file.used.store(table.clock, Ordering::Relaxed);
        Some(Arc::clone(file))
    }

    /// The file, which is added to the table if possible; another may have to be removed.
    pub(super) fn enter(&self, handle: &Handle) -> Arc<File> {
        if let Some(file) = self.get(handle) {
            return file;
        }
        let mut table = self.table();
        if table.files.len() >= FILES_MAX {
            table.make_room();
        }
        let key = handle::hash(handle.as_bytes()).to_le_bytes();
        let file = Arc::new(File {
            handle: handle.clone(),
            key,
            opens: tokio::sync::Mutex::default(),
            held: Mutex::default(),
            used: AtomicU64::new(table.clock),
            clock: self.clock.clone(),
        });
        table.keys.insert(key, handle.clone());
        Arc::clone(table.files.entry(handle.clone()).or_insert(file))
    }

    /// The file whose leases bear this key.
    pub(super) fn by_key(&self, key: &LeaseKey) -> Option<Arc<File>> {
        let table = self.table();
        table.files.get(table.keys.get(key)?).cloned()
    }

    /// Removes a file. Its lease has ended then, and the caller must close its opens.
    pub(super) fn leave(&self, handle: &Handle) -> Option<Arc<File>> {
        self.table().leave(handle)
    }

    /// Takes all files out that `chosen` names.
    pub(super) fn leave_all(&self, chosen: impl Fn(&Handle) -> bool) -> Vec<Arc<File>> {
        let mut table = self.table();
        let handles: Vec<_> = table.files.keys().filter(|one| chosen(one)).cloned().collect();
        handles.iter().filter_map(|handle| table.leave(handle)).collect()
    }

    /// Removes all files whose connection, selected by `chosen`, is gone. Returns those whose lease
    /// held until now.
    pub(super) fn end_all(&self, chosen: impl Fn(&Handle) -> bool) -> Vec<Handle> {
        let mut table = self.table();
        let gone: Vec<_> = table.files.extract_if(|handle, _| chosen(handle)).collect();
        for (_, file) in &gone {
            table.keys.remove(&file.key);
        }
        drop(table);
        let ended = gone.iter().filter(|(_, file)| {
            file.held().left = true;
            file.end().is_some()
        });
        ended.map(|(handle, _)| handle.clone()).collect()
    }

    /// Begins a change of ours.
    pub(super) fn changing(&self, handle: &Handle) -> Changing {
        let Some(file) = self.get(handle) else {
            return Changing { file: None, lease: None, before: None, begun: 0 };
        };
        let mut held = file.held();
        let alone = held.changing == 0;
        held.changing += 1;
        held.changes += 1;
        let (lease, begun) = (held.lease.clone().filter(Lease::holds), held.changes);
        let before = held.info.filter(|_| alone && lease.is_some());
        drop(held);
        Changing { file: Some(file), lease, before, begun }
    }
}

impl Table {
    fn leave(&mut self, handle: &Handle) -> Option<Arc<File>> {
        let file = self.files.remove(handle)?;
        self.keys.remove(&file.key);
        file.held().left = true;
        file.end();
        Some(file)
    }

    /// Removes the files that were not used for the longest time: an eighth of them, so that this
    /// is rare.
    fn make_room(&mut self) {
        let mut by_age: Vec<_> = self
            .files
            .iter()
            .map(|(handle, file)| (file.used.load(Ordering::Relaxed), handle.clone()))
            .collect();
        by_age.sort_unstable_by_key(|one| one.0);
        for (_, handle) in by_age.iter().take(FILES_MAX / 8) {
            // Closed when dropped, as soon as it is no longer used.
            drop(self.leave(handle));
        }
    }
}

#[cfg(test)]
mod tests;
