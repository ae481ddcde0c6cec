//! The control socket of an export: what it answers, and how it is found by its address.
//!
//! The address is what is locked: whoever listens there over TCP owns the socket of that name. An
//! export serves without one, too, if the runtime directory cannot be used.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use larder_nfsd::{ProcedureStats, Stats, StatsReader};

use crate::control::{self, CallError, Nowhere, Request, SILENCE_MAX, call, daemon_lives};
use crate::report::{Behind, ExportStat, Served};
use crate::runtime_dir::RuntimeDir;

/// An export that answers; its socket goes when this is dropped.
pub(crate) struct Answering {
    socket: PathBuf,
}

impl Drop for Answering {
    fn drop(&mut self) {
        // What is gone already is as good.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Answers for the export of `dir` (or of a source) that listens at `address`; `behind` tells what is
/// behind it. What dead exports left is removed.
///
/// # Errors
/// If there can be no socket.
pub(crate) fn answer(
    runtime_dir: &RuntimeDir,
    address: SocketAddr,
    dir: String,
    counted: StatsReader,
    behind: impl Fn() -> Option<Behind> + Send + Sync + 'static,
) -> Result<Answering> {
    let socket = runtime_dir.export_socket(address);
    let locked = runtime_dir.lock()?;
    remove_dead(runtime_dir)?;
    let server = control::Server::bind(&socket)?;
    drop(locked);
    let answering = Answering { socket };
    let listen = address.to_string();
    let begin = Instant::now();
    server.serve(move |request, _| match request {
        Request::Stat => Ok(serde_json::to_value(ExportStat {
            listen: listen.clone(),
            dir: dir.clone(),
            pid: std::process::id(),
            uptime_s: begin.elapsed().as_secs(),
            behind: behind(),
            ..export_stat(&counted.snapshot())
        })?),
        _ => bail!("this is an export: it tells its counts and no more"),
    })?;
    Ok(answering)
}

/// Asks the export that listens at `address` for its counts.
///
/// # Errors
/// If it is no export of this user, or does not answer.
pub(crate) fn ask(runtime_dir: &RuntimeDir, address: SocketAddr) -> Result<ExportStat> {
    match call(&runtime_dir.export_socket(address), &Request::Stat, SILENCE_MAX, &mut Nowhere) {
        Ok((value, _)) => Ok(serde_json::from_value(value)?),
        Err(CallError::Dead) => bail!("no export of this user listens at {address}"),
        Err(error) => Err(error).with_context(|| format!("the export at {address}")),
    }
}

/// Removes the sockets of exports that are gone.
fn remove_dead(runtime_dir: &RuntimeDir) -> Result<()> {
    let sockets = runtime_dir.export_sockets()?;
    for dead in sockets.iter().filter(|socket| !daemon_lives(socket)) {
        let _ = std::fs::remove_file(dead);
    }
    Ok(())
}

fn export_stat(counted: &Stats) -> ExportStat {
    let served = |one: &ProcedureStats| Served {
        calls: one.calls,
        errors: one.errors,
        bytes_sent: one.bytes_out,
        bytes_received: one.bytes_in,
    };
    let named = |all: &[ProcedureStats]| {
        let used = all.iter().filter(|one| one.calls > 0);
        used.map(|one| (one.name.to_owned(), served(one))).collect()
    };
    ExportStat {
        rpc: named(&counted.nfs),
        mount: named(&counted.mount),
        replayed: counted.replayed,
        dropped: counted.dropped,
        refused: counted.refused,
        connections: counted.connections,
        ..ExportStat::default()
    }
}
