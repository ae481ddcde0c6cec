//! Histories: what several clients were asked at the same time and what they answered, and whether
//! the answers are consistent.
//!
//! Each call has a [`Span`] of ticks of one clock: from when it was made to when it was answered. A
//! call whose caller died, or learned that its outcome is unknown, has no end: it may have been
//! carried out at any time since, or never.
//!
//! - [`names`]: names of files are linearizable: there is an order of all calls, which keeps to
//!   their spans, in which each answer is what a single file system would have said.
//! - [`locks`]: so are locks. A lock that is refused is never wrong.
//! - [`data`]: bytes are close-to-open, and what was synced or closed stays.
//!
//! [`linear`] finds such an order. The checkers use only what the callers saw, never a server's
//! state.

pub mod data;
pub mod linear;
pub mod locks;
pub mod names;

/// From when to when a call was under way, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it was made.
    pub made: u64,
    /// When the answer was there; `None`: nobody heard of its end.
    pub answered: Option<u64>,
}

/// A call and when it was under way.
#[derive(Clone, Debug)]
pub struct Timed<C> {
    /// When.
    pub span: Span,
    /// What was asked and answered; of a call without an end, what it would have answered.
    pub call: C,
}
