//! [`Direct`]: a [`Remote`] as a [`crate::FileSystem`], with nothing cached.
use crate::Remote;
use std::sync::Arc;
/// A remote without a cache.
pub struct Direct<R: Remote>(#[allow(dead_code)] Arc<R>);
