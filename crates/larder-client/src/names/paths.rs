//! Where files are, as far as the index knows.

use std::path::PathBuf;

use larder_cache::{Cache, FileNo};
use larder_vfs::Ino;

use crate::journal::{Known, Record};

/// Deepest path that is told.
const DEPTH_MAX: usize = 256;

/// The directory in which a file was last seen, from its record in the cache: for
/// [`larder_cache::Config::parent_in_record`].
pub fn parent_in_record(record: &[u8]) -> Option<FileNo> {
    Known::decode(record)?.hint.map(|(parent, _)| FileNo(parent.0))
}

/// Where a file was last seen below the root of its mount; `None` if that is not known. Others may
/// have renamed it since.
pub fn last_path(cache: &Cache, file: FileNo) -> Option<PathBuf> {
    let (mut names, mut at) = (Vec::new(), Ino(file.0));
    while at != Ino::ROOT && names.len() < DEPTH_MAX {
        let known = Known::decode(&cache.node(FileNo(at.0))?)?;
        let (parent, name) = known.hint?;
        names.push(name);
        at = parent;
    }
    (at == Ino::ROOT).then(|| names.iter().rev().collect())
}
