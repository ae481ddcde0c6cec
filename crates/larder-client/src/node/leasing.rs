//! State of the lease on one file. Pure; [`super::lease`] decides when to ask, and applies the
//! answer.

use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::Lease;

/// For this long a server that gave no lease on a file is not asked for one again.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// The lease on one file, and whether the server was asked for one.
#[derive(Default)]
pub(crate) struct Leasing {
    /// The server's promise to notify us before a change, if it gave one with the attributes.
    lease: Option<Lease>,
    /// When it was asked for one and gave none.
    refused: Option<Monotonic>,
    /// A lease is being requested in the background.
    is_asked: bool,
}

impl Leasing {
    /// The lease, if it holds.
    pub(super) fn held(&self) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.holds())
    }

    /// Whether to ask for a lease at `now`: there is none, and the server did not refuse one
    /// recently.
    pub(super) fn is_wanted(&self, now: Monotonic) -> bool {
        self.held().is_none() && self.refused.is_none_or(|at| now.since(at) >= REFUSED_FOR)
    }

    /// The server gave this one.
    pub(super) fn take(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// The server gave none.
    pub(super) fn refuse(&mut self, now: Monotonic) {
        self.refused = Some(now);
    }

    /// The server has withdrawn it.
    pub(super) fn end(&mut self) {
        self.lease = None;
    }

    /// A lease is about to be requested in the background. Returns whether a request is in flight
    /// already.
    pub(super) fn begin_asking(&mut self) -> bool {
        std::mem::replace(&mut self.is_asked, true)
    }

    /// It was asked.
    pub(super) fn end_asking(&mut self) {
        debug_assert!(self.is_asked, "one request for a lease is in flight at a time");
        self.is_asked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to the lease on a file.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take,
        Refuse,
        End,
        /// The connection was lost, and with it the lease.
        Lose,
        /// So long that a refusal is old.
        Wait,
    }

    const STEPS: [Step; 5] = [Step::Take, Step::Refuse, Step::End, Step::Lose, Step::Wait];

    /// Over all sequences of six steps: a lease is held from when it is granted until it ends, and
    /// one is requested unless it is held or was refused recently.
    #[test]
    fn a_lease_is_wanted_unless_it_is_held_or_was_refused_lately() {
        const LENGTH: u32 = 6;
        for sequence in 0..STEPS.len().pow(LENGTH) {
            let mut leasing = Leasing::default();
            let (mut holds, mut refused, mut now) = (None::<Lease>, None, 0);
            for step in 0..LENGTH {
                let step = STEPS[sequence / STEPS.len().pow(step) % STEPS.len()];
                match step {
                    Step::Take => {
                        let lease = Lease::new();
                        holds = Some(lease.clone());
                        leasing.take(lease);
                    }
                    Step::Refuse => {
                        refused = Some(now);
                        leasing.refuse(Monotonic::from_nanos(now));
                    }
                    Step::End => {
                        holds = None;
                        leasing.end();
                    }
                    Step::Lose => {
                        if let Some(lease) = holds.take() {
                            lease.end();
                        }
                    }
                    Step::Wait => now += u64::try_from(REFUSED_FOR.as_nanos()).unwrap(),
                }
                let held = leasing.held();
                assert_eq!(held.is_some(), holds.is_some(), "{sequence} {step:?}");
                assert!(held.is_none_or(|held| holds.as_ref().is_some_and(|lease| lease.is(held))));
                let is_wanted = holds.is_none() && refused != Some(now);
                assert_eq!(leasing.is_wanted(Monotonic::from_nanos(now)), is_wanted, "{sequence}");
            }
        }
    }

    #[test]
    fn one_asks_at_a_time() {
        let mut leasing = Leasing::default();
        assert!(!leasing.begin_asking());
        assert!(leasing.begin_asking());
        leasing.end_asking();
        assert!(!leasing.begin_asking());
    }
}
