//! Invalidations to be sent to the kernel.
//!
//! Telling the kernel to drop an inode's pages waits for the locks of those pages, and telling it
//! to drop a name waits for the lock of its directory. A request that we have not answered yet may
//! hold either: a read or a write its pages, a create or an unlink its directory. So a call of
//! [`Kernel`] only queues, and threads of this module notify the kernel. An invalidation that is
//! already queued is not queued twice, so a queue grows with the number of things changed, not with
//! the number of changes.
//!
//! There are two queues, each sent by one thread: inodes (and epochs, which wait for nothing), and
//! names. An open waits for its inode ([`Kernel::told`]), and must not wait for a name whose
//! directory another call has locked. The kernel holds no lock that a notification needs while it
//! waits for an open (`fuse_open` in `fs/fuse/file.c` of 6.18: the inode's lock is taken for an
//! open with `O_TRUNC` only with `WRITEBACK_CACHE` or DAX, which we do not use; the notification
//! takes no inode's lock at all).
//!
//! Answers to requests that the kernel made before an inode's invalidation bring nothing old back:
//! the notification raises the inode's attribute version, and the kernel ignores attributes and
//! ends of file in replies to requests that it made under an older one (`fuse_change_attributes`,
//! `fuse_read_update_size`).
//!
//! The one exception is an answer that says where a file ends: the kernel is to heed it, so that
//! its reader sees no zeros. While such an answer is on its way, its inode is *held*
//! ([`Kernel::hold`]): the inode's invalidation, and all that is queued behind it, is sent after
//! the answer was.
//!
//! A thread that waits for such a lock cannot be killed, and the lock is held until a request is
//! answered. So if this process is killed meanwhile, it cannot end before another one answers; and
//! that needs what ours has open (the lock of the cache). Therefore each queue has a *teller*: a
//! thread that has nothing open but the device. All other descriptors are closed when the process
//! is killed.
//!
//! Limit: [`WAITING_LEN_MAX`] queued invalidations. More are dropped and reported as an error: the
//! kernel then trusts what it has until its time to live is over. Waiting instead could stop the
//! very threads that the kernel waits for.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use larder_vfs::{Hold, Ino, Kernel, Told};
use tokio::sync::oneshot;
use zerocopy::IntoBytes;

use crate::abi::{NotifyCode, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::device::Device;

/// Most things that wait, about 100 bytes each.
const WAITING_LEN_MAX: usize = 1 << 20;

/// The queued invalidations, and the properties of the mount that [`Kernel`] reports.
#[derive(Default)]
pub(crate) struct Invalidations {
    passthrough: AtomicBool,
    epochs: AtomicBool,
    /// Inodes and epochs.
    pub(crate) inodes: Arc<Lane>,
    /// Names.
    pub(crate) entries: Lane,
}

/// A queue that one thread sends.
#[derive(Default)]
pub(crate) struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// How many answers hold inodes.
    holding: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    order: VecDeque<Item>,
    /// Inodes in `order`.
    inodes: HashMap<Ino, Waiting>,
    /// Entries in `order`.
    entries: HashSet<Arc<(Ino, OsString)>>,
    /// Inodes with answers on their way, and how many.
    held: HashMap<Ino, usize>,
    /// The inode for which the notification is being sent, and the tasks that wait for it.
    telling: Option<(Ino, Waiters)>,
    closed: bool,
}

/// An inode whose notification is queued.
struct Waiting {
    /// Only its attributes are meant.
    attributes_only: bool,
    waiters: Waiters,
}

/// Go on when they are dropped.
type Waiters = Vec<oneshot::Sender<()>>;

/// An inode is held.
struct Holding {
    lane: Arc<Lane>,
    ino: Ino,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.lane.holding.fetch_sub(1, Ordering::Relaxed);
        self.lane.lock().release(self.ino);
        self.lane.changed.notify_all();
    }
}

enum Item {
    Inode(Ino),
    Entry(Arc<(Ino, OsString)>),
    /// All names.
    Epoch,
    /// A task waits until everything before has been sent.
    Then(Then),
}

type Then = Box<dyn FnOnce() + Send>;

/// The next notification for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Inode { ino: Ino, attributes_only: bool },
    Entry { parent: Ino, name: OsString },
    Epoch,
}

impl Kernel for Invalidations {
    fn passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Acquire)
    }

    fn invalidate(&self, ino: Ino, attributes_only: bool) {
        self.inodes.push(|queue| queue.push_inode(ino, attributes_only));
    }

    fn told(&self, ino: Ino) -> Option<Told> {
        let told = self.inodes.lock().waiter(ino)?;
        // Dropped when it has been sent, or when nothing more will be sent.
        Some(Box::pin(async move { drop(told.await) }))
    }

    fn hold(&self, ino: Ino) -> Hold {
        self.inodes.holding.fetch_add(1, Ordering::Relaxed);
        *self.inodes.lock().held.entry(ino).or_default() += 1;
        Box::new(Holding { lane: Arc::clone(&self.inodes), ino })
    }

    fn invalidate_entry(&self, parent: Ino, name: &OsStr) {
        self.entries.push(|queue| queue.push_entry(parent, name));
    }

    fn distrust_names(&self) -> bool {
        let told = self.epochs.load(Ordering::Acquire);
        if told {
            self.inodes.push(Queue::push_epoch);
        }
        told
    }

    fn after(&self, then: Then) {
        let mut queue = self.inodes.lock();
        if queue.closed {
            drop(queue);
            return then();
        }
        queue.order.push_back(Item::Then(then));
        drop(queue);
        self.inodes.changed.notify_one();
    }
}

impl Invalidations {
    /// Says whether passthrough works.
    pub(crate) fn set_passthrough(&self, works: bool) {
        self.passthrough.store(works, Ordering::Release);
    }

    /// Sets whether the kernel can be told to distrust all names (7.44).
    pub(crate) fn set_epochs(&self, works: bool) {
        self.epochs.store(works, Ordering::Release);
    }

    /// Ends [`Lane::run`] of both; what is queued is dropped, and tasks that wait for it continue.
    pub(crate) fn close(&self) {
        self.inodes.close();
        self.entries.close();
    }
}

impl Lane {
    /// Sends the kernel what is queued, until the queue is closed or the mount is gone.
    pub(crate) fn run(&self, device: &Device) {
        thread::scope(|scope| {
            let (ask, asked) = mpsc::sync_channel::<Message>(1);
            let (answer, told) = mpsc::sync_channel(1);
            let work = move || {
                keep_only(device);
                for message in asked {
                    if answer.send(tell(device, &message)).is_err() {
                        break;
                    }
                }
            };
            let teller = thread::Builder::new().name("larder-tell".into());
            match teller.spawn_scoped(scope, work) {
                Ok(_) => self.have_told(&ask, &told),
                Err(error) => tracing::error!(%error, "the kernel is told nothing: no thread"),
            }
        });
        self.close();
    }

    /// Whether an answer is on its way that is to be sent first.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::Relaxed) > 0
    }

    /// Gives the teller what is queued, one message after the other.
    fn have_told(&self, ask: &SyncSender<Message>, told: &Receiver<io::Result<()>>) {
        while let Some(message) = self.next() {
            let shown = message.clone();
            let Some(told) = ask.send(message).ok().and_then(|()| told.recv().ok()) else { break };
            match told {
                Ok(()) => (),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => break,
                // For example a directory that is the working directory of a process: the kernel
                // has dropped what it could.
                Err(error) => tracing::debug!(%error, message = ?shown, "invalidation"),
            }
        }
    }

    fn close(&self) {
        let waiting = {
            let mut queue = self.lock();
            queue.closed = true;
            queue.telling = None;
            queue.inodes.clear();
            std::mem::take(&mut queue.order)
        };
        self.changed.notify_all();
        for item in waiting {
            if let Item::Then(then) = item {
                then();
            }
        }
    }

    fn push(&self, queue_it: impl FnOnce(&mut Queue) -> bool) {
        let mut queue = self.lock();
        if queue.closed {
            return;
        }
        let fits = queue_it(&mut queue);
        drop(queue);
        if !fits {
            tracing::error!("too many invalidations wait for the kernel; one is dropped");
        }
        self.changed.notify_one();
    }

    /// Waits for the next notification. The last one has taken effect by now.
    fn next(&self) -> Option<Message> {
        let idle = |queue: &mut Queue| !queue.closed && !queue.is_ready();
        self.lock().telling = None;
        loop {
            let mut queue =
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            if queue.closed {
                return None;
            }
            match queue.pop()? {
                Popped::Message(message) => return Some(message),
                Popped::Then(then) => {
                    drop(queue);
                    then();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push_inode(&mut self, ino: Ino, attributes_only: bool) -> bool {
        if let Some(waiting) = self.inodes.get_mut(&ino) {
            waiting.attributes_only &= attributes_only;
            return true;
        }
        let fits = self.order.len() < WAITING_LEN_MAX;
        if fits {
            self.inodes.insert(ino, Waiting { attributes_only, waiters: Vec::new() });
            self.order.push_back(Item::Inode(ino));
        }
        fits
    }

    /// Waits for the notification of `ino` that is queued, or just being sent.
    fn waiter(&mut self, ino: Ino) -> Option<oneshot::Receiver<()>> {
        let waiters = match (self.inodes.get_mut(&ino), &mut self.telling) {
            (Some(waiting), _) => &mut waiting.waiters,
            (None, Some((telling, waiters))) if *telling == ino => waiters,
            _ => return None,
        };
        let (waiter, told) = oneshot::channel();
        waiters.push(waiter);
        Some(told)
    }

    fn push_entry(&mut self, parent: Ino, name: &OsStr) -> bool {
        let entry = Arc::new((parent, name.to_owned()));
        if self.entries.contains(&entry) {
            return true;
        }
        let fits = self.order.len() < WAITING_LEN_MAX;
        if fits {
            self.entries.insert(Arc::clone(&entry));
            self.order.push_back(Item::Entry(entry));
        }
        fits
    }

    fn push_epoch(&mut self) -> bool {
        if !matches!(self.order.back(), Some(Item::Epoch)) {
            self.order.push_back(Item::Epoch);
        }
        true
    }

    /// Whether the next item may be sent.
    fn is_ready(&self) -> bool {
        match self.order.front() {
            None => false,
            Some(Item::Inode(ino)) => !self.held.contains_key(ino),
            Some(_) => true,
        }
    }

    /// One of the answers that hold `ino` was sent, or never will be.
    fn release(&mut self, ino: Ino) {
        if let Entry::Occupied(mut held) = self.held.entry(ino) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    fn pop(&mut self) -> Option<Popped> {
        let message = match self.order.pop_front()? {
            Item::Inode(ino) => {
                let Waiting { attributes_only, waiters } =
                    self.inodes.remove(&ino).expect("a queued inode is in the map");
                self.telling = Some((ino, waiters));
                Message::Inode { ino, attributes_only }
            }
            Item::Entry(entry) => {
                self.entries.remove(&entry);
                let (parent, name) = Arc::unwrap_or_clone(entry);
                Message::Entry { parent, name }
            }
            Item::Epoch => Message::Epoch,
            Item::Then(then) => return Some(Popped::Then(then)),
        };
        Some(Popped::Message(message))
    }
}

enum Popped {
    Message(Message),
    Then(Then),
}

/// Gives this thread a table of descriptors of its own, with the device alone. Without the right
/// system call it shares that of the process.
#[allow(unsafe_code)]
fn keep_only(device: &Device) {
    let device = device.as_fd().as_raw_fd().cast_unsigned();
    let (after, before) = (device + 1..=u32::MAX, device.checked_sub(1).map(|last| 0..=last));
    for (all, flags) in [(Some(after), libc::CLOSE_RANGE_UNSHARE), (before, 0)] {
        let Some(all) = all else { continue };
        // SAFETY: the first call makes the table this thread's own, without which there is no
        // second one; this thread uses no other descriptor than the device's.
        let done = unsafe { libc::syscall(libc::SYS_close_range, *all.start(), *all.end(), flags) };
        if done != 0 {
            return;
        }
    }
}

/// Blocks until the kernel is done. It is no error if the kernel does not know the object.
fn tell(device: &Device, message: &Message) -> io::Result<()> {
    let told = match message {
        Message::Inode { ino, attributes_only } => {
            // A negative offset stands for "attributes only" (`fuse_reverse_inval_inode`).
            let off = if *attributes_only { -1 } else { 0 };
            let out = NotifyInvalInodeOut { ino: ino.0, off, len: 0 };
            device.notify(NotifyCode::InvalInode, &[out.as_bytes()])
        }
        Message::Entry { parent, name } => {
            let namelen = name.len() as u32;
            let out = NotifyInvalEntryOut { parent: parent.0, namelen, flags: 0 };
            device.notify(NotifyCode::InvalEntry, &[out.as_bytes(), name.as_bytes(), b"\0"])
        }
        Message::Epoch => device.notify(NotifyCode::IncEpoch, &[]),
    };
    match told {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        told => told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_not_queued_twice() {
        let invalidations = Invalidations::default();
        invalidations.invalidate(Ino(2), true);
        invalidations.invalidate_entry(Ino(1), OsStr::new("a"));
        invalidations.invalidate_entry(Ino(1), OsStr::new("a"));
        invalidations.invalidate(Ino(3), true);
        invalidations.invalidate(Ino(2), false);
        invalidations.invalidate(Ino(2), true);

        let inode = |number, attributes_only| Message::Inode { ino: Ino(number), attributes_only };
        let entry = Message::Entry { parent: Ino(1), name: "a".into() };
        let Invalidations { inodes, entries, .. } = &invalidations;
        assert_eq!(inodes.next(), Some(inode(2, false)));
        assert_eq!(entries.next(), Some(entry));
        assert_eq!(inodes.next(), Some(inode(3, true)));

        invalidations.invalidate(Ino(2), true);
        assert_eq!(inodes.next(), Some(inode(2, true)));
        invalidations.close();
        invalidations.invalidate(Ino(2), true);
        assert_eq!((inodes.next(), entries.next()), (None, None));
    }

    /// Whether no open would wait for it any more.
    fn is_told(told: &mut Told) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        told.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn a_wait_for_an_inode_ends_when_the_kernel_has_dropped_it() {
        let invalidations = Invalidations::default();
        assert!(invalidations.told(Ino(2)).is_none());
        invalidations.invalidate(Ino(2), true);
        invalidations.invalidate(Ino(3), true);
        let mut queued = invalidations.told(Ino(2)).unwrap();
        assert!(!is_told(&mut queued));
        invalidations.inodes.next();
        let mut telling = invalidations.told(Ino(2)).unwrap();
        assert!(!is_told(&mut queued) && !is_told(&mut telling), "it is just being told");
        // Queued again while it is being sent: the latest request counts.
        invalidations.invalidate(Ino(2), false);
        let mut again = invalidations.told(Ino(2)).unwrap();
        invalidations.inodes.next();
        assert!(is_told(&mut queued) && is_told(&mut telling) && !is_told(&mut again));
        let mut other = invalidations.told(Ino(3)).unwrap();
        invalidations.close();
        assert!(is_told(&mut again) && is_told(&mut other), "it never will be");
        assert!(invalidations.told(Ino(2)).is_none());
    }

    #[test]
    fn what_is_held_is_told_when_its_last_answer_was_sent() {
        let invalidations = Arc::new(Invalidations::default());
        let holds = [invalidations.hold(Ino(2)), invalidations.hold(Ino(2))];
        invalidations.invalidate(Ino(1), true);
        invalidations.invalidate(Ino(2), true);
        assert!(invalidations.inodes.is_holding());
        let (sent, sending) = mpsc::channel();
        let sender = Arc::clone(&invalidations);
        let thread = thread::spawn(move || {
            while let Some(message) = sender.inodes.next() {
                sent.send(message).unwrap();
            }
        });
        let told = |ino| Message::Inode { ino: Ino(ino), attributes_only: true };
        assert_eq!(sending.recv(), Ok(told(1)), "another one is not held");
        let [first, second] = holds;
        drop(first);
        assert!(!invalidations.inodes.lock().is_ready() && sending.try_recv().is_err());
        drop(second);
        assert_eq!(sending.recv(), Ok(told(2)));
        assert!(!invalidations.inodes.is_holding());
        invalidations.close();
        thread.join().unwrap();
    }

    #[test]
    fn a_wait_ends_when_everything_before_was_sent_or_never_will_be() {
        let invalidations = Invalidations::default();
        let done = Arc::new(AtomicBool::new(false));
        let tell = |done: &Arc<AtomicBool>| -> Then {
            let done = done.clone();
            Box::new(move || done.store(true, Ordering::Release))
        };
        invalidations.set_epochs(true);
        assert!(invalidations.distrust_names() && invalidations.distrust_names());
        invalidations.after(tell(&done));
        invalidations.invalidate(Ino(2), true);
        assert_eq!(invalidations.inodes.next(), Some(Message::Epoch), "once");
        assert!(!done.load(Ordering::Acquire));
        assert!(matches!(invalidations.inodes.next(), Some(Message::Inode { .. })));
        assert!(done.load(Ordering::Acquire));

        let dropped = Arc::new(AtomicBool::new(false));
        invalidations.after(tell(&dropped));
        invalidations.close();
        assert!(dropped.load(Ordering::Acquire));
        let late = Arc::new(AtomicBool::new(false));
        invalidations.after(tell(&late));
        assert!(late.load(Ordering::Acquire));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut queue = Queue::default();
        queue.push_inode(Ino(5), true);
        for _ in 1..WAITING_LEN_MAX {
            queue.order.push_back(Item::Inode(Ino(6)));
        }
        assert!(!queue.push_inode(Ino(7), true));
        assert!(!queue.push_entry(Ino(1), OsStr::new("a")));
        assert!(queue.push_inode(Ino(5), false), "it waits already");
    }
}
