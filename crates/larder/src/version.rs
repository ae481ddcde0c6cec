//! Which program this is. Everything that names a version or a commit of it takes them from here.

/// The commit that it was built from, `-dirty` behind it if sources differed from that; `unknown`
/// if it was not built in the project's repository.
pub(crate) const COMMIT: &str = env!("LARDER_COMMIT");

/// The version, and the commit.
pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("LARDER_COMMIT"), ")");
