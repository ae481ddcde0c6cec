//! Inspects and trims a cache: the same work whether a daemon does it for its own cache, or a
//! command for one that is not mounted.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use larder_cache::{Cache, FileNo, FoundConflict, Listed, VerifyProgress};
use larder_client::last_path;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::{Progress, Request, Sink};
use crate::report::Conflict;

/// Files listed per query of the index.
const LIST_BATCH: usize = 1000;

/// Bytes verified between two words of progress.
const PROGRESS_BYTES: u64 = 16 << 20;

/// A file that a cache holds, in the answer to [`Request::CacheLs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Its persistent number.
    pub(crate) number: u64,
    /// Where it was last seen below the mountpoint, if that is known.
    #[serde(default)]
    pub(crate) path: Option<String>,
    /// The server's handle, in hexadecimal, if it is still known.
    pub(crate) handle: Option<String>,
    /// Bytes held.
    pub(crate) held_bytes: u64,
    /// Size of the file.
    pub(crate) size: u64,
    /// Whether it is never culled.
    pub(crate) pinned: bool,
    /// Whether the server has not all of it yet.
    pub(crate) dirty: bool,
    /// Bytes that wait for the server.
    #[serde(default)]
    pub(crate) unsent_bytes: u64,
    /// There may be fewer: the kernel writes the file itself.
    #[serde(default)]
    pub(crate) unsent_bytes_is_bound: bool,
    /// Last use, in seconds since 1970.
    pub(crate) last_use_sec: u64,
}

/// Answer to [`Request::CacheVerify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verified {
    /// Files examined.
    pub(crate) files: u64,
    /// Chunks read.
    pub(crate) chunks: u64,
    /// Chunks that were wrong, and are forgotten.
    pub(crate) bad_chunks: u64,
}

/// Answer to [`Request::CacheWarm`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Warmed {
    /// Files that were read.
    pub(crate) files: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Files and directories that could not be read.
    pub(crate) failed: u64,
}

/// Answer to [`Request::CacheCull`] and [`Request::CacheDrop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Freed {
    /// Files whose data was removed.
    pub(crate) files: u64,
    /// Bytes freed.
    pub(crate) bytes: u64,
}

/// Carries out a request that needs only the cache.
///
/// # Errors
/// If the command is gone, if the disk fails, or if the request is not one of these.
pub(crate) fn carry_out(cache: &Cache, request: &Request, sink: &mut dyn Sink) -> Result<Value> {
    match request {
        Request::CacheLs { unsent: false } => list(cache, sink),
        Request::CacheLs { unsent: true } => list_unsent(cache, sink),
        Request::CacheVerify => verify(cache, sink),
        Request::CacheCull { bytes_target } => {
            cache.checkpoint()?;
            let culled = cache.cull(*bytes_target);
            let freed = Freed { files: culled.files, bytes: culled.bytes };
            Ok(serde_json::to_value(freed)?)
        }
        Request::CacheDrop => {
            let before = cache.usage();
            cache.drop_all();
            cache.checkpoint()?;
            let after = cache.usage();
            let files = before.files.saturating_sub(after.files);
            let bytes = before.bytes.saturating_sub(after.bytes);
            Ok(serde_json::to_value(Freed { files, bytes })?)
        }
        Request::Conflicts => {
            for conflict in conflicts(cache, 0, usize::MAX) {
                sink.item(serde_json::to_value(conflict)?)?;
            }
            Ok(Value::Null)
        }
        Request::ClearConflicts { number } => {
            let cleared = cache.clear_conflicts(*number);
            cache.checkpoint()?;
            Ok(Value::from(cleared))
        }
        other => bail!("this needs more than a cache: {other:?}"),
    }
}

/// The conflicts on record above a number; at most `count_max`. Files that were set aside are told
/// by their paths in the cache directory.
pub(crate) fn conflicts(cache: &Cache, above: u64, count_max: usize) -> Vec<Conflict> {
    let shown = |found: FoundConflict| {
        let path = path_of(cache, &found.conflict);
        let larder_cache::Conflict { kind, wanted, aside, reason, .. } = found.conflict;
        Conflict {
            number: found.number,
            found_sec: found.found_sec,
            what: kind.into(),
            path: path.to_string_lossy().into_owned(),
            wanted: String::from_utf8_lossy(&wanted).into_owned(),
            set_aside: Some(aside).filter(|aside| !aside.is_empty()),
            reason: Some(reason).filter(|reason| !reason.is_empty()),
        }
    };
    cache.conflicts(above, count_max).into_iter().map(shown).collect()
}

/// The path of the object of a conflict, as far as it is known.
fn path_of(cache: &Cache, conflict: &larder_cache::Conflict) -> PathBuf {
    let name = Path::new(OsStr::from_bytes(&conflict.name));
    let of_file = || last_path(cache, conflict.file?);
    match conflict.dir.map(|dir| last_path(cache, dir)) {
        Some(dir) => dir.unwrap_or_default().join(name),
        None if name.as_os_str().is_empty() => of_file().unwrap_or_default(),
        None => name.to_owned(),
    }
}

fn list(cache: &Cache, sink: &mut dyn Sink) -> Result<Value> {
    // The list shows the state of the last checkpoint.
    cache.checkpoint()?;
    let mut after = None;
    loop {
        let batch = cache.list(after, LIST_BATCH);
        let Some(last) = batch.last() else {
            return Ok(Value::Null);
        };
        after = Some(last.no);
        for file in batch {
            sink.item(serde_json::to_value(held(cache, &file))?)?;
        }
    }
}

/// Files that the server does not have completely yet, including those of which the index has no
/// other record.
fn list_unsent(cache: &Cache, sink: &mut dyn Sink) -> Result<Value> {
    for no in cache.unsent() {
        // A file that is only open for writing has a record, too.
        if cache.file(no).unsent().bytes == 0 {
            continue;
        }
        let before = no.0.checked_sub(1).map(FileNo);
        let listed = cache.list(before, 1).into_iter().find(|listed| listed.no == no);
        let new = || Listed {
            no,
            key: cache.key_of(no),
            held_bytes: 0,
            size: cache.file(no).size(),
            pinned: false,
            dirty: true,
            last_use_sec: 0,
        };
        sink.item(serde_json::to_value(held(cache, &listed.unwrap_or_else(new)))?)?;
    }
    Ok(Value::Null)
}

fn held(cache: &Cache, file: &Listed) -> Held {
    let unsent = cache.file(file.no).unsent();
    Held {
        number: file.no.0,
        path: last_path(cache, file.no).map(|path| path.to_string_lossy().into_owned()),
        handle: file.key.as_deref().map(hexadecimal),
        // The cache counts whole chunks, of which the last one extends beyond the end of the file.
        held_bytes: file.held_bytes.min(file.size),
        size: file.size,
        pinned: file.pinned,
        dirty: unsent.bytes > 0,
        unsent_bytes: unsent.bytes,
        unsent_bytes_is_bound: unsent.is_bound,
        last_use_sec: file.last_use_sec,
    }
}

fn verify(cache: &Cache, sink: &mut dyn Sink) -> Result<Value> {
    let bytes_total = Some(cache.usage().bytes);
    let (mut told, mut complete) = (0, true);
    let report = cache.verify(&mut |VerifyProgress { files, bytes }| {
        if bytes >= told + PROGRESS_BYTES {
            told = bytes;
            complete = sink.progress(Progress { files, bytes, bytes_total, files_total: None });
        }
        complete
    });
    ensure!(complete, "stopped: nobody listens any more");
    let bad_chunks = report.bad.len() as u64;
    let verified = Verified { files: report.files, chunks: report.chunks, bad_chunks };
    Ok(serde_json::to_value(verified)?)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_shown() {
        assert_eq!(hexadecimal(&[0, 0xab, 0x10]), "00ab10");
    }
}
