//! COMMIT_EXTENTS as most tests say it. Tests of this crate and integration tests have this file.

use larder_wire::meta::calls::CommitExtents;
use larder_wire::meta::words::{FileId, OpenId, Sequence, Written};
use larder_wire::xdr::Array;

/// A session has written this, and nothing else of the file: as whole blocks, durably, without an
/// open, and to the first disk of each set alone.
pub(crate) fn commit(sequence: Sequence, file: FileId, written: Vec<Written>) -> CommitExtents {
    CommitExtents {
        sequence,
        file,
        open: OpenId::NONE,
        copies: Array(written.iter().map(|part| part.disk).collect()),
        written: Array(written),
        merged: Array::default(),
        mtime: None,
        all: true,
        on_way: false,
        due_ms: None,
        archive_ms: None,
    }
}
