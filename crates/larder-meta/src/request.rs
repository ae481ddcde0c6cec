//! A call's context, besides its arguments.

use larder_wire::meta::words::{SessionId, Time};

use crate::rights::Caller;

/// On whose behalf, in which session and when.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) session: SessionId,
    /// The server's wall clock. Times of a file never go back, whatever it does.
    pub(crate) now: Time,
}
