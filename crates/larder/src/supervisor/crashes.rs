//! Decides when the next worker is started after one has died.

use std::time::Duration;

use larder_io::Backoff;

/// A worker that served this long did not die for the same reason as the one before: a request that
/// kills does so at once, since it is the first that is sent again.
const SERVED_WELL: Duration = Duration::from_millis(100);

/// Deaths in a row after which the next worker starts at once: if the cause is outside, waiting
/// does not help.
const AT_ONCE: u32 = 3;

/// Deaths in a row after which the mount is given up.
const DEATHS_MAX: u32 = 8;

/// Shortest and longest pause before the next one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Deaths in a row.
#[derive(Debug)]
pub(super) struct Crashes {
    deaths: u32,
    pauses: Backoff,
}

impl Default for Crashes {
    fn default() -> Crashes {
        Crashes { deaths: 0, pauses: Backoff::new(PAUSES.0, PAUSES.1) }
    }
}

/// What to do after a death.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start another one after this time.
    After(Duration),
    /// It is no use.
    GiveUp,
}

impl Crashes {
    /// A worker has died after it `served` for this long; `None`: it did not begin to serve.
    pub(super) fn next(&mut self, served: Option<Duration>) -> Next {
        if served.is_some_and(|served| served >= SERVED_WELL) {
            *self = Crashes::default();
        }
        self.deaths += 1;
        match self.deaths {
            ..=AT_ONCE => Next::After(Duration::ZERO),
            deaths if deaths < DEATHS_MAX => Next::After(self.pauses.pause()),
            _ => Next::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_then_it_is_given_up() {
        let mut crashes = Crashes::default();
        let pauses: Vec<Next> = (0..DEATHS_MAX).map(|_| crashes.next(None)).collect();
        let millis = |pause: &Next| match pause {
            Next::After(pause) => Some(pause.as_millis()),
            Next::GiveUp => None,
        };
        let pauses: Vec<_> = pauses.iter().map(millis).collect();
        assert_eq!(pauses[..7], [0, 0, 0, 100, 200, 400, 800].map(Some));
        assert_eq!(pauses[7], None);
    }

    #[test]
    fn long_service_begins_the_count_anew() {
        let mut crashes = Crashes::default();
        for _ in 0..100 {
            assert_eq!(crashes.next(Some(SERVED_WELL)), Next::After(Duration::ZERO));
        }
    }
}
