//! How commands talk to the daemon of a mount or an export: a Unix socket, a line of JSON each way.
//!
//! One request per connection. The daemon answers with any number of [`Line::Progress`] and
//! [`Line::Item`], then one [`Line::Done`] or [`Line::Failed`]. Commands use nothing else: they
//! never touch the mount, which may hang with its server.
//!
//! Waits are bounded: a daemon that says nothing for [`SILENCE_MAX`] counts as hung.

mod client;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hoard::Hoarded;

pub(crate) use client::{CallError, Items, Nowhere, call, daemon_lives, wait_for_exit};
pub(crate) use server::{Server, Serving};

/// Longest silence of a daemon, between two lines.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Longest line, in bytes: a bound on what a peer can make us hold.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// A request of a command to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Request {
    /// The state of the mount: answers a [`crate::report::Status`].
    Status,
    /// Counts and latencies: answers a [`crate::report::Stat`], or of an export a
    /// [`crate::report::ExportStat`].
    Stat,
    /// What each connection does from now on, by slice of time: items ([`crate::series::Batch`])
    /// ten times a second, until this many slices are over, the mount ends, or the command is gone.
    Series {
        /// Length of a slice, in microseconds.
        slice_us: u64,
        /// How many slices, if there is to be an end.
        slices_max: Option<u64>,
    },
    /// Flush, unmount and exit. The connection ends when the process does.
    Unmount {
        /// Unmount although files are open: they stay usable until they are closed.
        lazy: bool,
        /// Send nothing: unsent data stays in the cache, for the next mount.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        detach: bool,
    },
    /// Let the installed program continue the mount. The connection ends when the process does.
    Upgrade,
    /// Sends to the server what it lacks of a file, of a tree, or of all: answers a
    /// [`crate::report::Synced`].
    Sync {
        /// The path below the mountpoint; all, if it is empty.
        path: PathBuf,
    },
    /// Works without the server from now on, or with it again: answers a
    /// [`crate::report::Offline`].
    Offline {
        /// Whether without.
        offline: bool,
    },
    /// Sets or asks how many bytes per second are sent without a caller that waits for them:
    /// answers a [`crate::report::Limited`].
    Limit {
        /// What it is from now on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set: Option<NewLimit>,
    },
    /// The durability classes: answers a list of [`crate::report::ClassShown`].
    Classes,
    /// Which class a file has and why, and how durable it is: answers a
    /// [`crate::report::Explained`].
    Explain {
        /// The path below the mountpoint.
        path: PathBuf,
    },
    /// Sets the class of a file or directory.
    SetClass {
        /// The path below the mountpoint.
        path: PathBuf,
        /// The class; none: the class that was set is removed.
        class: Option<String>,
    },
    /// Lists the files that the server does not have completely: an item
    /// ([`crate::report::Unsaved`]) per file.
    Unsaved,
    /// Lists what was done here and could not be done so at the server: an item
    /// ([`crate::report::Conflict`]) for each.
    Conflicts,
    /// Forgets a conflict, or all: answers how many.
    ClearConflicts {
        /// Its number; all, if there is none.
        number: Option<u64>,
    },
    /// Has the metadata server look whether memory disks have lost bytes, so that lost files are
    /// known to be lost.
    LookForLosses,
    /// Adds a disk to the volume that a metadata server serves: answers a
    /// [`Enrolled`].
    EnrolDisk(Wanted),
    /// Removes a disk from the volume that a metadata server serves; one that is not empty leaves,
    /// until it is. Answers a [`Removed`].
    RemoveDisk {
        /// Its number.
        disk: u32,
        /// Keeps one that leaves after all.
        #[serde(default)]
        keep: bool,
    },
    /// Gives the disks of the volume that a metadata server serves another key epoch: answers a
    /// [`KeysRotated`].
    RotateKeys,
    /// Lists what the cache holds: an item per file.
    CacheLs {
        /// Only files that the server does not have completely yet.
        #[serde(default)]
        unsent: bool,
    },
    /// Checks every checksum.
    CacheVerify,
    /// Removes the least valuable files.
    CacheCull {
        /// Culls until at most this much is held.
        bytes_target: u64,
    },
    /// Removes everything that can be fetched again.
    CacheDrop,
    /// Reads files and trees into the cache: for an export, which has no mount to read through.
    CacheWarm {
        /// The path below the export's root.
        path: PathBuf,
    },
    /// Keeps a file from being culled, or no longer.
    CachePin {
        /// The path below the mountpoint.
        path: PathBuf,
        /// Whether to pin or unpin.
        pinned: bool,
        /// How it is kept whole and fresh, if it is.
        #[serde(default)]
        hoarded: Option<Hoarded>,
    },
}

/// A limit on bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NewLimit {
    /// In bytes per second; `None`: there is none.
    pub(crate) bytes_per_second: Option<u64>,
}

/// What a rotation of the disks' keys has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeysRotated {
    pub(crate) key_epoch: u32,
    pub(crate) disks: Vec<KeyTold>,
}

/// Whether a disk has the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyTold {
    pub(crate) disk: u32,
    /// If it has not, it is told when it is reached.
    pub(crate) is_told: bool,
}

/// How a disk is after it was to be removed, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) disk: u32,
    pub(crate) state: RemovedIs,
    /// Its bytes that were in use.
    pub(crate) used_bytes: u64,
}

/// Whether it is one of the volume's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RemovedIs {
    Stays,
    /// It is until what is on it is on others.
    Leaving,
    Gone,
}

/// The disk that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// Where the metadata server and clients reach it.
    pub(crate) address: SocketAddr,
    /// How many bytes it has.
    pub(crate) size_bytes: u64,
    /// The disk that it replaces.
    pub(crate) replace: Option<u32>,
    /// Whether it is a memory disk.
    #[serde(default)]
    pub(crate) is_memory: bool,
    /// The memory disk beside which it is put.
    #[serde(default)]
    pub(crate) beside: Option<u32>,
}

/// A disk that was added, as the metadata server reports it to the command over a socket that only
/// its user may use.
#[derive(Serialize, Deserialize)]
pub(crate) struct Enrolled {
    /// Its number.
    pub(crate) disk: u32,
    /// The volume.
    pub(crate) volume: String,
    /// Its key file.
    pub(crate) key: String,
}

impl Request {
    /// Whether it changes nothing, and is answered at once.
    pub(crate) fn can_be_repeated(&self) -> bool {
        matches!(
            self,
            Request::Status
                | Request::Stat
                | Request::Classes
                | Request::Explain { .. }
                | Request::Unsaved
                | Request::Conflicts
                | Request::LookForLosses
        )
    }
}

/// A line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// How far the work is.
    Progress(Progress),
    /// One of many results.
    Item(Value),
    /// The work is done; its result.
    Done(Value),
    /// The work failed, in a line for the user.
    Failed(String),
}

/// How far long work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Files done.
    pub(crate) files: u64,
    /// Bytes done.
    pub(crate) bytes: u64,
    /// Bytes in all, if known.
    pub(crate) bytes_total: Option<u64>,
    /// Files in all, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files_total: Option<u64>,
}

/// Receives an answer before its end: over the socket, or directly on the terminal.
pub(crate) trait Sink {
    /// Reports how far the work is. Returns whether the command still listens.
    fn progress(&mut self, progress: Progress) -> bool;

    /// Passes on one of many results.
    ///
    /// # Errors
    /// If the command is gone.
    fn item(&mut self, item: Value) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_protocol_as_other_tools_see_it() {
        for (request, text) in [
            (Request::Status, r#"{"op":"status"}"#),
            (Request::Unmount { lazy: true, detach: false }, r#"{"op":"unmount","lazy":true}"#),
            (
                Request::Unmount { lazy: false, detach: true },
                r#"{"op":"unmount","lazy":false,"detach":true}"#,
            ),
            (Request::CacheCull { bytes_target: 7 }, r#"{"op":"cache_cull","bytes_target":7}"#),
            (
                Request::Series { slice_us: 1000, slices_max: None },
                r#"{"op":"series","slice_us":1000,"slices_max":null}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        assert_eq!(
            serde_json::to_string(&Line::Failed("no".into())).unwrap(),
            r#"{"failed":"no"}"#
        );
    }
}
