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

/// The time during which a call was in progress, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When the call was made.
    pub made: u64,
    /// When the answer arrived; `None`: no caller learned how the call ended.
    pub answered: Option<u64>,
}

/// A call and its span.
#[derive(Clone, Debug)]
pub struct Timed<C> {
    /// When the call was in progress.
    pub span: Span,
    /// What was asked and answered; for a call without an end, the answer that it would have had.
    pub call: C,
}
