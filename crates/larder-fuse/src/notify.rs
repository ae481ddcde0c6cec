//! Invalidations on their way to the kernel.
//!
//! Telling the kernel to drop an inode's pages waits for that inode's lock and pages, which may be
//! held for a request that we have not answered yet. So a call of [`Kernel`] only queues; one thread
//! does the telling, and the effect comes a little later. What is waiting already is not queued twice,
//! so the queue grows with the number of things changed, not with the number of changes.
//!
//! Limit: [`WAITING_LEN_MAX`] things. What comes beyond is dropped and reported as an error: the
//! kernel then believes what it has until its time to live is over. To wait instead could stop
//! the very threads that the kernel waits for.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use larder_vfs::{Ino, Kernel};
use zerocopy::IntoBytes;

use crate::abi::{NotifyCode, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::device::Device;

/// Most things that wait, about 100 bytes each.
const WAITING_LEN_MAX: usize = 1 << 20;

/// The queue, and what [`Kernel`] tells of the mount.
#[derive(Default)]
pub(crate) struct Invalidations {
    passthrough: AtomicBool,
    epochs: AtomicBool,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    order: VecDeque<Item>,
    /// Inodes in `order`, and whether only their attributes are meant.
    inodes: HashMap<Ino, bool>,
    /// Entries in `order`.
    entries: HashSet<Arc<(Ino, OsString)>>,
    closed: bool,
}

enum Item {
    Inode(Ino),
    Entry(Arc<(Ino, OsString)>),
    /// All names.
    Epoch,
    /// Somebody waits until everything before is told.
    Then(Then),
}

type Then = Box<dyn FnOnce() + Send>;

/// What to tell the kernel next.
#[derive(Debug, PartialEq, Eq)]
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
        self.push(|queue| queue.push_inode(ino, attributes_only));
    }

    fn invalidate_entry(&self, parent: Ino, name: &OsStr) {
        self.push(|queue| queue.push_entry(parent, name));
    }

    fn distrust_names(&self) -> bool {
        let told = self.epochs.load(Ordering::Acquire);
        if told {
            self.push(Queue::push_epoch);
        }
        told
    }

    fn after(&self, then: Then) {
        let mut queue = self.lock();
        if queue.closed {
            drop(queue);
            return then();
        }
        queue.order.push_back(Item::Then(then));
        drop(queue);
        self.changed.notify_one();
    }
}

impl Invalidations {
    /// Says whether passthrough works.
    pub(crate) fn set_passthrough(&self, works: bool) {
        self.passthrough.store(works, Ordering::Release);
    }

    /// Says whether the kernel can be told to distrust all names (7.44).
    pub(crate) fn set_epochs(&self, works: bool) {
        self.epochs.store(works, Ordering::Release);
    }

    /// Ends [`Invalidations::run`]; what waits is dropped, and whoever waits for it goes on.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut queue = self.lock();
            queue.closed = true;
            std::mem::take(&mut queue.order)
        };
        self.changed.notify_all();
        for item in waiting {
            if let Item::Then(then) = item {
                then();
            }
        }
    }

    /// Tells the kernel what is queued, until the queue is closed or the mount is gone.
    pub(crate) fn run(&self, device: &Device) {
        while let Some(message) = self.next() {
            match tell(device, &message) {
                Ok(()) => (),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => break,
                // A directory that is somebody's working directory, say: the kernel has dropped
                // what it could.
                Err(error) => tracing::debug!(%error, ?message, "invalidation"),
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

    fn next(&self) -> Option<Message> {
        let idle = |queue: &mut Queue| !queue.closed && queue.order.is_empty();
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
            *waiting &= attributes_only;
            return true;
        }
        let fits = self.order.len() < WAITING_LEN_MAX;
        if fits {
            self.inodes.insert(ino, attributes_only);
            self.order.push_back(Item::Inode(ino));
        }
        fits
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

    fn pop(&mut self) -> Option<Popped> {
        let message = match self.order.pop_front()? {
            Item::Inode(ino) => {
                let attributes_only =
                    self.inodes.remove(&ino).expect("a queued inode is in the map");
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

/// Blocks until the kernel is done. What the kernel does not know is no error.
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
        assert_eq!(invalidations.next(), Some(inode(2, false)));
        assert_eq!(invalidations.next(), Some(entry));
        assert_eq!(invalidations.next(), Some(inode(3, true)));

        invalidations.invalidate(Ino(2), true);
        assert_eq!(invalidations.next(), Some(inode(2, true)));
        invalidations.close();
        invalidations.invalidate(Ino(2), true);
        assert_eq!(invalidations.next(), None);
    }

    #[test]
    fn who_waits_goes_on_when_everything_before_is_told_or_never_will_be() {
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
        assert_eq!(invalidations.next(), Some(Message::Epoch), "once");
        assert!(!done.load(Ordering::Acquire));
        assert!(matches!(invalidations.next(), Some(Message::Inode { .. })));
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
