//! One CPU's queue, and the thread that serves it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use rustix::thread::CpuSet;
use tokio::runtime::Handle;
use zerocopy::IntoBytes;

use super::mailbox::Mailbox;
use super::slots::Slots;
use crate::abi::{URING_COMMIT_AND_FETCH, URING_REGISTER, UringCmd};
use crate::device::Device;
use crate::dispatcher::Dispatcher;
use crate::output::{Output, Response};
use crate::request::Malformed;

/// The device among the files that are registered with the ring.
const DEVICE: u32 = 0;

/// Marks the completion that says that there is mail.
const BELL: u64 = u64::MAX;

/// A ring with entries, some of which belong to the kernel.
pub(super) struct Queue {
    // Dropped first: then the kernel lets the entries go.
    ring: IoUring<Entry128>,
    slots: Slots,
    mail: Arc<Mailbox>,
    /// Where the bell is read to.
    rung: Box<AtomicU64>,
    /// For each entry, the number with which it is given back, and that of the request.
    taken: Vec<(u64, u64)>,
    /// Data of answers that are to be submitted before anything is waited for: the kernel is told
    /// something after they are dropped.
    held: Vec<Bytes>,
    /// Entries that the kernel has. The others wait for an answer, or were given back for good.
    lent: usize,
    cpu: u16,
    dispatcher: Arc<Dispatcher>,
    device: Arc<Device>,
    runtime: Handle,
}

impl Queue {
    /// Binds the thread to the CPU and lends all entries to the kernel. To be called by the thread
    /// that will call [`Queue::run`].
    ///
    /// # Errors
    /// If the system refuses the ring, or the kernel the entries.
    pub(super) fn new(
        cpu: u16,
        dispatcher: Arc<Dispatcher>,
        device: Arc<Device>,
        runtime: Handle,
        payload_max: usize,
        depth: usize,
    ) -> io::Result<Queue> {
        let mut set = CpuSet::new();
        set.set(usize::from(cpu));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            // A CPU that does not exist, or that we may not use: no caller runs on it either.
            tracing::debug!(cpu, %error, "a queue is served from elsewhere");
        }
        let ring = IoUring::<Entry128>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build((depth + 1).next_power_of_two() as u32)?;
        let mut queue = Queue {
            ring,
            slots: Slots::new(depth, payload_max)?,
            mail: Arc::new(Mailbox::new()?),
            rung: Box::default(),
            taken: vec![(0, 0); depth],
            held: Vec::new(),
            lent: 0,
            cpu,
            dispatcher,
            device,
            runtime,
        };
        queue.ring.submitter().register_files(&[queue.device.as_fd().as_raw_fd()])?;
        queue.listen_to_bell()?;
        for entry in 0..depth {
            queue.command(entry, URING_REGISTER)?;
        }
        queue.ring.submit()?;
        Ok(queue)
    }

    /// Where answers that were not ready at once are put.
    pub(super) fn mail(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mail)
    }

    /// Serves until the mount is gone, and the mailbox closed.
    ///
    /// # Errors
    /// If the ring breaks.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut completed = Vec::new();
        let runtime = self.runtime.clone();
        let _entered = runtime.enter();
        // All may wait for answers at a time, while the mount is alive.
        while self.lent > 0 || !self.mail.is_closed() {
            let wanted = usize::from(self.held.is_empty());
            match self.ring.submit_and_wait(wanted) {
                Ok(_) => self.held.clear(),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => return Err(error),
            }
            completed.extend(self.ring.completion().map(|done| (done.user_data(), done.result())));
            for (which, result) in completed.drain(..) {
                match which {
                    BELL => self.deliver_mail()?,
                    entry => self.returned(entry as usize, result)?,
                }
            }
        }
        Ok(())
    }

    fn deliver_mail(&mut self) -> io::Result<()> {
        for (entry, output) in self.mail.take() {
            self.give_back(entry, output)?;
        }
        self.listen_to_bell()
    }

    /// The kernel has given an entry back: with a request, or for good.
    fn returned(&mut self, entry: usize, result: i32) -> io::Result<()> {
        self.lent -= 1;
        if result < 0 {
            let gone = [libc::ENOTCONN, libc::ECANCELED, libc::ECONNABORTED];
            if !gone.contains(&-result) {
                let error = io::Error::from_raw_os_error(-result);
                tracing::error!(cpu = self.cpu, entry, %error, "the kernel refuses an entry");
            }
            return Ok(());
        }
        let (header, commit_id, request) = self.slots.request(entry);
        self.taken[entry] = (header.unique, commit_id);
        self.dispatcher.counts.add(header.opcode);
        let output = match request {
            Ok(request) => match self.dispatcher.answer(&request) {
                Response::Later(late) => {
                    let mail = Arc::clone(&self.mail);
                    let reply = move |output| mail.put(entry, output);
                    self.dispatcher.answer_later(&request, late, &self.runtime, reply);
                    return Ok(());
                }
                Response::Now(output) => output,
                Response::Nothing => Output::empty(),
            },
            Err(Malformed::Opcode) => Output::error(libc::ENOSYS),
            Err(error) => {
                tracing::warn!(%error, opcode = header.opcode, "a request is refused");
                Output::error(libc::EINVAL)
            }
        };
        self.give_back(entry, output)
    }

    /// Answers, and lends the entry to the kernel again. Both happen at the next submission.
    fn give_back(&mut self, entry: usize, output: Output) -> io::Result<()> {
        self.slots.reply(entry, self.taken[entry].0, &output);
        if self.dispatcher.kernel.inodes.is_holding() {
            self.held.push(output.data);
        }
        self.command(entry, URING_COMMIT_AND_FETCH)
    }

    #[allow(unsafe_code)]
    fn command(&mut self, entry: usize, number: u32) -> io::Result<()> {
        let commit_id = self.taken[entry].1;
        let uring_cmd = UringCmd { commit_id, qid: self.cpu, ..UringCmd::default() };
        let mut payload = [0; 80];
        payload[..size_of::<UringCmd>()].copy_from_slice(uring_cmd.as_bytes());
        let fuse = types::Fixed(DEVICE);
        let mut command = opcode::UringCmd80::new(fuse, number)
            .cmd(payload)
            .addr(Some(self.slots.iovecs(entry)))
            .build()
            .user_data(entry as u64);
        // The builder has no setter for the number of iovecs (`len` of `struct io_uring_sqe`).
        const LEN_OFFSET: usize = 24;
        // SAFETY: an `Entry128` is a `struct io_uring_sqe` of 128 bytes, of which `len` is a `u32`
        // at offset 24; the pointer is derived from an exclusive reference to all of it.
        unsafe { (&raw mut command).cast::<u8>().add(LEN_OFFSET).cast::<u32>().write(2) };
        self.push(&command)?;
        self.lent += 1;
        Ok(())
    }

    fn listen_to_bell(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.mail.bell());
        let read = opcode::Read::new(bell, self.rung.as_ptr().cast(), 8).build().user_data(BELL);
        self.push(&read.into())
    }

    #[allow(unsafe_code)]
    fn push(&mut self, command: &Entry128) -> io::Result<()> {
        // SAFETY: what the command points to (the iovecs, the memory of the entries, the word that
        // the bell is read to) lives in `self`, behind pointers that do not move, until
        // after the ring is gone; the descriptors do too.
        let pushed = unsafe { self.ring.submission().push(command) };
        // Each entry and the bell have at most one command in flight, and the ring has room for
        // all.
        pushed.map_err(|_| io::Error::other("a ring is full"))
    }
}
