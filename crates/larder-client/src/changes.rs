//! Changes of our own, and whether the server's replies show that nobody else made one.

use larder_io::Monotonic;
use larder_vfs::{Attr, Change, Lease, Time, Validator};

/// Newest description: by change attribute, else by change time, else by modification time.
pub(crate) fn recency(attr: &Attr) -> (Option<u64>, Time, Time, u64) {
    (attr.change, attr.ctime, attr.mtime, attr.size)
}

/// Whether all `changes` follow on `from` and on each other, so that they are the only ones.
pub(crate) fn follow(from: Validator, changes: &[Change]) -> bool {
    let mut reached = vec![from];
    let mut left: Vec<&Change> = changes.iter().collect();
    while let Some(next) =
        left.iter().position(|change| reached.iter().any(|version| change.follows(version)))
    {
        reached.extend(left.swap_remove(next).after.map(|attr| attr.validator()));
    }
    left.is_empty()
}

/// The same for the changes of a file. Its requests run in parallel, and servers report states between
/// them that no reply describes, so it is enough that one of them found the version `from`. If none
/// tells so, a file that was `checked` shortly before counts as untouched, unless a reply tells of a
/// state that none of ours has made.
pub(crate) fn file_follows(from: Validator, changes: &[Change], checked: bool) -> bool {
    if changes.iter().any(|change| change.follows(&from)) {
        return true;
    }
    let made: Vec<Validator> =
        changes.iter().filter_map(|change| Some(change.after?.validator())).collect();
    let mut told = changes.iter().filter(|change| change.before.is_some());
    checked && told.all(|change| made.iter().any(|version| change.follows(version)))
}

/// Changes of our own that are under way.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) in_flight: u32,
    pub(crate) replies: Vec<Change>,
    pub(crate) ended: Monotonic,
    /// The file was described shortly before the first one.
    pub(crate) checked: bool,
    /// The lease under which the first one began.
    pub(crate) lease: Option<Lease>,
}
