//! Reports the end of a file to the kernel.
//!
//! The kernel reads pages up to where it believes the file to end, and fills what an answer lacks
//! with zeros. An answer that is shorter than its request tells it of an earlier end, so that no
//! process sees those zeros. But it ignores that if it was told to drop any of the file's pages
//! since it asked (`fuse_read_update_size` in `fs/fuse/file.c` of 6.18): then a file that another
//! client has truncated would show zeros in place of what was cut off. So such a request is
//! interrupted, unless the kernel does not believe the file to be longer than the answer. If it is
//! a readahead, the kernel asks for its pages again, one by one; otherwise the caller's read(2)
//! ends with EINTR, and programs repeat it. That ends: by then the notification has taken effect,
//! or waits for a page of this request, and the kernel hands a page's lock over after a few
//! attempts (`folio_wait_bit_common` in `mm/filemap.c`).

use std::time::Duration;

use larder_vfs::{Error, Result};

use crate::core::Core;
use crate::node::Node;
use crate::open::{Mode, OpenFile};

/// Longest wait until the kernel was notified of what it is to drop, before it asks again. A
/// notification takes effect at once, except for the pages that wait for this very answer.
const TOLD_WAIT_MAX: Duration = Duration::from_millis(10);

/// Whether the kernel heeds where an answer ends, as far as that was known when it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    /// It does in any case, or asked with a buffer of its own.
    Always,
    /// A notification to drop pages was in flight.
    Never,
    /// As long as it was notified no more often than this.
    UpTo(u64),
}

impl Core {
    /// To be called before anything is found out for the answer.
    pub(super) fn hearing(&self, node: &Node, open: Option<&OpenFile>) -> Hearing {
        let Some(kernel) = self.kernel.get() else { return Hearing::Always };
        if open.is_none_or(|open| open.mode != Mode::Cached) {
            return Hearing::Always;
        }
        // First: what is queued after this is counted.
        let tellings = node.state().opens().tellings();
        match kernel.told(node.ino) {
            Some(_) => Hearing::Never,
            None => Hearing::UpTo(tellings),
        }
    }

    /// Whether the kernel learns from a short answer that the file ends at `end`, or knows it.
    pub(super) fn hears(&self, node: &Node, hearing: Hearing, end: u64) -> bool {
        let state = node.state();
        let opens = state.opens();
        let heeds = match hearing {
            Hearing::Always => true,
            Hearing::Never => false,
            Hearing::UpTo(count) => {
                debug_assert!(opens.tellings() >= count, "a node in use stays in memory");
                opens.tellings() == count
            }
        };
        heeds || !opens.may_believe_beyond(end)
    }

    /// Has the kernel repeat its request, once it heeds the answer's end again.
    ///
    /// # Errors
    /// [`Error::Interrupted`], always.
    pub(super) async fn have_asked_again<T>(&self, node: &Node) -> Result<T> {
        let _ = self.clock.timeout(TOLD_WAIT_MAX, self.told(node)).await;
        Err(Error::Interrupted)
    }
}
