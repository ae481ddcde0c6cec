//! Shaped links: what arrives, when, and how connections end.
//!
//! Machines that run tests are busy, so a link may always be slower than asked here; bounds on that
//! are wide, or the best of some tries counts. That it is never faster is asserted tightly, every
//! time.

mod datagrams;
mod ends;
mod figures;
mod netns;
mod peers;
mod rate;
