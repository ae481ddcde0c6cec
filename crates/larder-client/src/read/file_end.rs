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
//!
//! What is found out last, that the kernel heeds the answer, must still hold when the kernel gets
//! it: so the file is held until then ([`larder_vfs::Kernel::hold`]). And a request is not seen to
//! be older than a notification that has taken effect, except that one to drop pages waits for all
//! requests that have locked some. So while the kernel may believe in a later end, it is told to
//! drop pages where it would else be told of attributes alone (`Core::outdate_attributes`).
//!
//! The answer to a request from behind the file's end cannot tell where that is: the kernel takes
//! the request's begin for it, and then ignores the answer to another request which it made at the
//! same time and which does tell it. A readahead may be two such requests. So one from behind the
//! end is interrupted too, until another one has told the end, or [`Opens::tell_end`] gives in:
//! perhaps nobody reads there.
//!
//! [`Opens::tell_end`]: crate::open::Opens::tell_end

use std::time::Duration;

use bytes::Bytes;
use larder_vfs::{Error, Hold, Result};

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

/// Bytes on their way to the kernel, which is told nothing of the file until it has them.
struct Held {
    bytes: Bytes,
    _hold: Hold,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
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

    /// A short answer, in a form from which the kernel learns that the file ends at `end`, unless
    /// it knows that. `None` if it would not.
    pub(super) fn heard(
        &self,
        node: &Node,
        hearing: Hearing,
        bytes: Bytes,
        end: u64,
    ) -> Option<Bytes> {
        let mut state = node.state();
        let is_behind = end > state.attr().size;
        let opens = state.opens_mut();
        if hearing == Hearing::Always || !opens.may_believe_beyond(end) {
            return Some(bytes);
        }
        let Hearing::UpTo(count) = hearing else { return None };
        debug_assert!(opens.tellings() >= count, "a node in use stays in memory");
        let kernel = self.kernel.get().filter(|_| opens.tellings() == count)?;
        if !opens.tell_end(is_behind) {
            return None;
        }
        let hold = kernel.hold(node.ino);
        Some(Bytes::from_owner(Held { bytes, _hold: hold }))
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
