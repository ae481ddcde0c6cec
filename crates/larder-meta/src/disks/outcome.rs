//! How a copy ends, and by whose fault.

/// What became of a copy from one disk to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made.
    Done,
    /// The other disk did not get some of the bytes from the first one.
    NotRead,
    /// The other disk did not take some of them.
    NotWritten,
}
