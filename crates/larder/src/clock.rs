//! The clock of the machine, which the binary gives to what it assembles and waits by itself.

use std::time::Duration;

use larder_io::{Clock, Monotonic, RealClock};

/// The clock of the machine.
pub(crate) fn clock() -> &'static dyn Clock {
    &RealClock
}

/// The origin from which time is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since(Monotonic);

impl Since {
    /// From now on.
    pub(crate) fn now() -> Since {
        Since(clock().now())
    }

    /// Time that has passed.
    pub(crate) fn elapsed(self) -> Duration {
        clock().now().since(self.0)
    }
}
