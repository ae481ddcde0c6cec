//! Transport B: requests come by io_uring, on the CPU of the caller, and are answered in place.
//!
//! The kernel wants a queue for each CPU that the machine may have. A thread bound to that CPU
//! serves it: it hands entries (memory for a request and its reply) to the kernel, which completes
//! one for each request of a process on that CPU, and gives the entry back with the reply: one
//! system call for both. So nothing has to wake another CPU.
//!
//! In addition a thread must read `/dev/fuse` ([`crate::reader`]): FORGET, INTERRUPT and replies to
//! notifications arrive there.
//!
//! **Memory**: [`DEPTH`] entries per CPU, each of the size of the largest request; only what is
//! used takes memory of the machine. **Limit**: a request that waits for the server keeps its
//! entry, so with [`DEPTH`] of them waiting on one CPU, further requests on that CPU wait too.
//!
//! **Death**: when the process dies the kernel ends what its entries held with ECONNABORTED; it has
//! nothing to send again. Therefore a mount that is to survive uses [`crate::reader`].

mod mailbox;
mod queue;
mod slots;

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::device::Device;
use crate::dispatcher::Dispatcher;
use mailbox::Mailbox;
use queue::Queue;

/// Entries of a queue.
const DEPTH: usize = 16;

/// Longest wait for all queues to be ready.
const READY_MAX: Duration = Duration::from_secs(10);

/// CPUs that the machine may have, from 0 on without holes.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// The queues of a mount.
pub(crate) struct Rings {
    threads: Vec<JoinHandle<io::Result<()>>>,
    mail: Vec<Arc<Mailbox>>,
}

impl Rings {
    /// None.
    pub(crate) fn none() -> Rings {
        Rings { threads: Vec::new(), mail: Vec::new() }
    }

    /// The mount is gone: ends the threads, even if requests still wait for an answer, and returns
    /// how they ended.
    pub(crate) fn end(self) -> Vec<JoinHandle<io::Result<()>>> {
        self.mail.iter().for_each(|mail| mail.close());
        self.threads
    }
}

/// Starts a thread for each CPU, and returns when the kernel has all their entries. New requests
/// wait until then.
///
/// # Errors
/// If the system refuses a ring; the mount is of no use then.
pub(crate) fn start(
    dispatcher: &Arc<Dispatcher>,
    device: &Arc<Device>,
    runtime: &Handle,
    io_bytes_max: usize,
) -> io::Result<Rings> {
    let cpus = possible_cpus(&std::fs::read_to_string(POSSIBLE)?)
        .ok_or_else(|| io::Error::other(format!("{POSSIBLE} is not understood")))?;
    let (ready, readied) = mpsc::channel();
    let mut rings = Rings::none();
    for cpu in 0..cpus {
        let (dispatcher, device, runtime) =
            (Arc::clone(dispatcher), Arc::clone(device), runtime.clone());
        let ready = ready.clone();
        let serve = move || {
            let queue = Queue::new(cpu as u16, dispatcher, device, runtime, io_bytes_max, DEPTH);
            match queue {
                Ok(queue) => {
                    // The receiver is gone if another queue failed.
                    let _ = ready.send(Ok(queue.mail()));
                    queue.run()
                }
                Err(error) => {
                    let _ = ready.send(Err(error.kind()));
                    Err(error)
                }
            }
        };
        rings.threads.push(thread::Builder::new().name(format!("larder-ring-{cpu}")).spawn(serve)?);
    }
    for _ in 0..cpus {
        match readied.recv_timeout(READY_MAX) {
            Ok(Ok(mail)) => rings.mail.push(mail),
            Ok(Err(kind)) => return Err(io::Error::new(kind, "no ring for a CPU")),
            Err(_) => return Err(io::Error::other("a ring does not become ready")),
        }
    }
    Ok(rings)
}

/// From a list like `0-3`.
fn possible_cpus(list: &str) -> Option<usize> {
    let last = list.trim().rsplit(['-', ',']).next()?;
    last.parse::<usize>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(possible_cpus("0\n"), Some(1));
        assert_eq!(possible_cpus("0-1\n"), Some(2));
        assert_eq!(possible_cpus("0-3,8-127"), Some(128));
        assert_eq!(possible_cpus(""), None);
    }
}
