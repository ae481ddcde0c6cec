//! The commands, a module each. Texts of `--help` live beside what they describe.

pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod export;
pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod umount;
pub(crate) mod upgrade;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{CallError, Nowhere, Request, SILENCE_MAX, call};
use crate::runtime_dir::RuntimeDir;

/// A mount of this user, as the runtime directory knows it.
struct Target {
    mountpoint: PathBuf,
    /// Where its daemon listens.
    socket: PathBuf,
}

impl Target {
    /// Finds the mount that a user means by a path, without touching it.
    fn find(runtime: &RuntimeDir, typed: &Path) -> Result<Target> {
        let mountpoint = crate::mountinfo::resolve(typed)?;
        let known = runtime.get(&mountpoint).is_some();
        ensure!(known, "{} is no larder mount of this user", mountpoint.display());
        Ok(Target { socket: runtime.socket(&mountpoint), mountpoint })
    }

    /// Finds the mount in which a path is, without touching the mount, and the path below it.
    fn around(runtime: &RuntimeDir, typed: &Path) -> Result<(Target, PathBuf)> {
        let known: Vec<_> = runtime.list()?.into_iter().map(|record| record.mountpoint).collect();
        let found = crate::mountinfo::around(typed, &known)?;
        let (mountpoint, below) = found.with_context(|| {
            format!("{} is no larder mount of this user, nor in one", typed.display())
        })?;
        Ok((Target { socket: runtime.socket(&mountpoint), mountpoint }, below))
    }

    /// Asks its daemon for something that comes in one piece.
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, CallError> {
        let asked = || call(&self.socket, request, SILENCE_MAX, &mut Nowhere);
        // A worker that dies breaks off; the socket stays, and the next worker answers.
        let (value, _) = asked().or_else(|error| match error {
            CallError::BrokeOff if request.can_be_repeated() => asked(),
            error => Err(error),
        })?;
        serde_json::from_value(value).map_err(|error| CallError::Hung(error.to_string()))
    }
}

/// Prints to standard output; that nobody reads on is no error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to standard output"),
    }
}

fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
