//! The commands, one module each. The `--help` texts are beside what they describe.

pub(crate) mod bench;
pub(crate) mod bwlimit;
pub(crate) mod cache;
pub(crate) mod class;
mod class_rebuild;
pub(crate) mod conflicts;
pub(crate) mod disk;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod meta;
pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod offline;
pub(crate) mod rebuild;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod umount;
pub(crate) mod upgrade;
pub(crate) mod volume;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::control::{CallError, Items, Nowhere, Request, SILENCE_MAX, Sink, call};
use crate::runtime_dir::RuntimeDir;
use crate::{exported, mountpoint};

/// A mount of this user, as the runtime directory knows it.
struct Target {
    mountpoint: PathBuf,
    /// Where its daemon listens.
    socket: PathBuf,
}

impl Target {
    /// Finds the mount that a user means by a path, without touching it.
    fn find(runtime: &RuntimeDir, typed: &Path) -> Result<Target> {
        let mountpoint = mountpoint::resolve(typed)?;
        let known = runtime.get(&mountpoint).is_some();
        ensure!(known, "{} is no larder mount of this user", mountpoint.display());
        Ok(Target { socket: runtime.socket(&mountpoint), mountpoint })
    }

    /// Finds the mount in which a path is, without touching the mount.
    fn around(runtime: &RuntimeDir, typed: &Path) -> Result<Target> {
        let known: Vec<_> = runtime.list()?.into_iter().map(|record| record.mountpoint).collect();
        let found = mountpoint::around(typed, &known)?;
        let mountpoint = found.with_context(|| {
            format!("{} is no larder mount of this user, nor in one", typed.display())
        })?;
        Ok(Target { socket: runtime.socket(&mountpoint), mountpoint })
    }

    /// Asks its daemon for an answer that comes in one piece.
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CallError> {
        let (value, Nowhere) = self.answer(request)?;
        understood(value)
    }

    /// Asks its daemon for an answer that comes as a list, however long.
    fn ask_each<T: DeserializeOwned>(&self, request: &Request) -> Result<Vec<T>, CallError> {
        let (value, Items(mut items)) = self.answer(request)?;
        // A daemon of an earlier version answers in one piece.
        items.extend(value.as_array().into_iter().flatten().cloned());
        items.into_iter().map(understood).collect()
    }

    fn answer<S: Sink + Default>(&self, request: &Request) -> Result<(Value, S), CallError> {
        let asked = || {
            let mut sink = S::default();
            let (value, _) = call(&self.socket, request, SILENCE_MAX, &mut sink)?;
            Ok((value, sink))
        };
        // If a worker dies, the connection breaks; the socket stays, and the next worker answers.
        asked().or_else(|error| match error {
            CallError::BrokeOff if request.can_be_repeated() => asked(),
            error => Err(error),
        })
    }
}

fn understood<T: DeserializeOwned>(value: Value) -> Result<T, CallError> {
    serde_json::from_value(value).map_err(|error| CallError::Hung(error.to_string()))
}

/// The mountpoint of ours that contains a path, and the path below it. Symbolic links are followed,
/// also within the mount.
///
/// # Errors
/// If no mount of ours contains the path.
fn mount_of(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let absolute = mountpoint::resolve(path)?;
    let ours = mountpoint::mounts()?.into_iter().filter(|mount| mount.kind == mountpoint::KIND);
    let below = ours.filter_map(|mount| {
        let below = absolute.strip_prefix(&mount.mountpoint).ok()?.to_owned();
        Some((mount.mountpoint, below))
    });
    below
        .max_by_key(|(mountpoint, _)| mountpoint.as_os_str().len())
        .with_context(|| format!("{} is not below a larder mount", path.display()))
}

/// The socket of the daemon whose mount or export contains a path, and the path below its root.
///
/// # Errors
/// As [`mount_of`].
fn daemon_of(runtime: &RuntimeDir, path: &Path) -> Result<(PathBuf, PathBuf)> {
    if let Some((address, below)) = exported::named(path) {
        return Ok((runtime.export_socket(address), below));
    }
    let (mountpoint, below) = mount_of(path)?;
    Ok((runtime.socket(&mountpoint), below))
}

/// Prints to standard output. It is not an error if the reader has closed the pipe.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to standard output"),
    }
}

fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
