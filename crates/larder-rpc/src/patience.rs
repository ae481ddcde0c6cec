//! How long a call waits for a server that does not answer: one rule for all protocols.
//!
//! A call ends when the mount's limit has passed since it was made, when its caller's deadline has
//! come, or when the server has been silent for the limit: a later call does not wait again for
//! what others have awaited in vain. A background task keeps asking ([`retry_pauses`]), so that
//! calls are answered again as soon as the server is back.

use larder_io::Backoff;
use std::time::{Duration, Instant};

/// First and longest pause between attempts to reach a server that is gone. Until it is reached
/// calls fail, so the longest pause is how late its return may be noticed.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Longest wait for a connection to a server that is gone. Long enough for a second SYN, which the
/// kernel sends after one second; the next would come later than a new attempt.
pub const RECONNECT_MAX: Duration = Duration::from_secs(3);

/// Pauses between attempts to reach a server that is gone.
pub fn retry_pauses() -> Backoff {
    Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1)
}

/// When a call that was made at `offered` gives up: after `limit`, when its caller no longer waits
/// (`caller`), or when the server has been silent for the limit (`silent`). The result is in the
/// past if there is nothing to wait for.
pub fn gives_up(
    offered: Instant,
    limit: Duration,
    caller: Option<Instant>,
    silent: Option<Instant>,
) -> Instant {
    let silent = silent.map(|since| since + limit);
    [caller, silent].into_iter().flatten().fold(offered + limit, Instant::min)
}

/// Whether a call that has `waited` this long without any answer proves that the server is gone.
/// Part of the limit may have passed before the call was made.
pub fn is_in_vain(waited: Duration, limit: Duration) -> bool {
    waited >= limit - limit / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times in seconds; the call is made at 10, and the limit is 6.
    #[test]
    fn the_first_reason_to_give_up_counts() {
        let begin = Instant::now();
        let at = |second: u64| begin + Duration::from_secs(second);
        for (caller, silent, ends) in [
            (None, None, 16),
            (Some(9), None, 15),
            (Some(12), None, 16),
            (None, Some(10), 16),
            (None, Some(7), 13),
            (None, Some(1), 7),
            (Some(9), Some(7), 13),
            (Some(5), Some(7), 11),
        ] {
            let limit = Duration::from_secs(6);
            // A caller that began to wait at this time, and waits for the limit.
            let deadline = caller.map(|made| at(made) + limit);
            let given_up = gives_up(at(10), limit, deadline, silent.map(at));
            assert_eq!(given_up, at(ends), "{caller:?} {silent:?}");
        }
    }
}
