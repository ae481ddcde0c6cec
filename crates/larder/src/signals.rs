//! The signals by which people, init and systemd ask a process of ours to end, or to open its log
//! again.
//!
//! None is lost: what keeps a signal (a socket) is there before the handler that fills it. Tokio's
//! own listeners are made after the handler, and a signal between the two is forgotten.

use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;

use crate::log;

/// The signals that end every program.
const ENDS: [i32; 2] = [SIGTERM, SIGINT];

/// What a signal asks of a process that has a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The end of the mount.
    End,
    /// Open the log again.
    Reopen,
}

/// The signals that end a server.
pub(crate) struct Ends(Caught<2>);

impl Ends {
    /// From now on a signal does not kill the process: [`Ends::come`] tells of it. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// If signal handlers cannot be set.
    pub(crate) fn begin() -> Result<Ends> {
        Ok(Ends(Caught::begin(ENDS)?))
    }

    /// Resolves when one comes, or if one has come since the last call. Cancel safe.
    pub(crate) async fn come(&mut self) {
        self.0.next().await;
    }
}

/// The signals that a process with a mount obeys.
pub(crate) struct Requests(Caught<3>);

impl Requests {
    /// From now on a signal does not kill the process: [`Requests::next`] tells of it. Must be
    /// called within a runtime.
    ///
    /// # Errors
    /// If signal handlers cannot be set.
    pub(crate) fn begin() -> Result<Requests> {
        Ok(Requests(Caught::begin([SIGTERM, SIGINT, SIGHUP])?))
    }

    /// What the next signal asks: a SIGHUP to open the log again, if that is a file. Cancel safe.
    pub(crate) async fn next(&mut self) -> Request {
        let name = match self.0.next().await {
            SIGHUP if log::is_file() => return Request::Reopen,
            SIGHUP => "SIGHUP",
            SIGINT => "SIGINT",
            _ => "SIGTERM",
        };
        tracing::info!("{name}: unmounting");
        Request::End
    }
}

/// A flag that becomes true when a signal asks this process to end, for programs without a runtime.
///
/// # Errors
/// If signal handlers cannot be set.
pub(crate) fn end_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in ENDS {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot catch signals")?;
    }
    Ok(flag)
}

/// A socket for each of some signals. Its handler stays until the process ends.
struct Caught<const N: usize>([(i32, UnixStream); N]);

impl<const N: usize> Caught<N> {
    fn begin(signals: [i32; N]) -> Result<Caught<N>> {
        let caught = signals.map(|signal| Ok((signal, catch(signal)?)));
        let caught: io::Result<Vec<_>> = caught.into_iter().collect();
        let caught = caught.context("cannot catch signals")?;
        Ok(Caught(caught.try_into().expect("one for each signal")))
    }

    /// The next signal. Several of one kind that nobody has asked for are one.
    async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (signal, socket) in &mut self.0 {
                let mut bytes = [0; 64];
                let read = Pin::new(socket).poll_read(context, &mut ReadBuf::new(&mut bytes));
                if read.is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The socket that has a byte for each `signal` from now on.
fn catch(signal: i32) -> io::Result<UnixStream> {
    let (reads, writes) = StdStream::pair()?;
    reads.set_nonblocking(true)?;
    let reads = UnixStream::from_std(reads)?;
    signal_hook::low_level::pipe::register(signal, writes)?;
    Ok(reads)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGUSR1, SIGUSR2};
    use signal_hook::low_level::raise;

    use super::*;

    #[tokio::test]
    async fn what_came_before_it_was_asked_for_is_told_once() {
        let mut caught = Caught::begin([SIGUSR1, SIGUSR2]).unwrap();
        for signal in [SIGUSR2, SIGUSR2, SIGUSR1] {
            raise(signal).unwrap();
        }
        let both = [caught.next().await, caught.next().await];
        assert_eq!(both, [SIGUSR1, SIGUSR2]);
        let third = poll_fn(|context| {
            Poll::Ready(std::pin::pin!(caught.next()).poll(context).is_pending())
        });
        assert!(third.await);
        raise(SIGUSR2).unwrap();
        assert_eq!(caught.next().await, SIGUSR2);
    }
}
