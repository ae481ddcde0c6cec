//! A call's context, besides its arguments.

use larder_io::Clock;
use larder_wire::meta::words::{SessionId, Time};

use crate::rights::Caller;
use crate::whereabouts::Client;

/// The user, the session and the time of a call.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) session: SessionId,
    /// Whose session that is; nobody's, for a call that begins one.
    pub(crate) client: Client,
    /// The server's wall clock. Times of a file never go backwards, even if the clock does.
    pub(crate) now: Time,
}

/// The time for times of files.
pub(crate) fn wall(clock: &dyn Clock) -> Time {
    let wall = clock.wall();
    Time { seconds: wall.sec, nanoseconds: wall.nsec }
}
