//! The control socket of an export: its answers, and finding it by its address.
//!
//! The address is the lock: the process that listens there over TCP owns the socket of that name.
//! An export also serves without a control socket, if the runtime directory cannot be used.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use larder_nfsd::{ProcedureStats, Stats, StatsReader};
use serde_json::Value;

use crate::clock::Since;
use crate::control::{self, CallError, Nowhere, Request, SILENCE_MAX, Sink, call};
use crate::report::{Behind, ExportStat, Served, Status};
use crate::runtime_dir::{Kind, RuntimeDir};

/// The answer to a request that a directory of this machine cannot carry out.
const NOTHING_BEHIND: &str = "this is an export of a directory: it tells its counts and no more";

/// An export that answers commands; its socket is removed when this is dropped.
pub(crate) struct Answering {
    socket: PathBuf,
}

impl Drop for Answering {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// What is behind an export, as far as commands need it.
pub(crate) trait Asked: Send + Sync + 'static {
    /// What it reports besides the calls that it served.
    fn behind(&self) -> Option<Behind>;

    /// Its state, and what its cache holds; `None` if it has neither.
    fn answer(&self, request: &Request, sink: &mut dyn Sink) -> Option<Result<Value>>;
}

/// Answers for the export of `dir` (or of a source) that listens at `address`; `asked` provides the
/// answers. Removes what dead exports left.
///
/// # Errors
/// If there can be no socket.
pub(crate) fn answer(
    runtime_dir: &RuntimeDir,
    address: SocketAddr,
    dir: String,
    counted: StatsReader,
    asked: impl Asked,
) -> Result<Answering> {
    let socket = runtime_dir.export_socket(address);
    for other in runtime_dir.sockets(Kind::Export)? {
        runtime_dir.remove_if_dead(&other)?;
    }
    let locked = runtime_dir.lock()?;
    let server = control::Server::bind(&socket)?;
    drop(locked);
    let answering = Answering { socket };
    let listen = address.to_string();
    let begin = Since::now();
    server.serve(move |request, sink| match request {
        Request::Stat => Ok(serde_json::to_value(ExportStat {
            listen: listen.clone(),
            dir: dir.clone(),
            pid: std::process::id(),
            uptime_s: begin.elapsed().as_secs(),
            behind: asked.behind(),
            ..export_stat(&counted.snapshot())
        })?),
        Request::Status => match asked.answer(&request, sink) {
            Some(answer) => {
                let status: Status = serde_json::from_value(answer?)?;
                let (listen, source) = (Some(listen.clone()), dir.clone());
                let uptime_s = begin.elapsed().as_secs();
                Ok(serde_json::to_value(Status { listen, source, uptime_s, ..status })?)
            }
            None => bail!(NOTHING_BEHIND),
        },
        other => asked.answer(&other, sink).unwrap_or_else(|| bail!(NOTHING_BEHIND)),
    })?;
    Ok(answering)
}

/// Asks the export that listens at `address` for its counts.
///
/// # Errors
/// If it is not an export of this user, or does not answer.
pub(crate) fn ask(runtime_dir: &RuntimeDir, address: SocketAddr) -> Result<ExportStat> {
    match call(&runtime_dir.export_socket(address), &Request::Stat, SILENCE_MAX, &mut Nowhere) {
        Ok((value, _)) => Ok(serde_json::from_value(value)?),
        Err(CallError::Dead) => bail!("no export of this user listens at {address}"),
        Err(error) => Err(error).with_context(|| format!("the export at {address}")),
    }
}

/// The state of each export with a server behind it, with its socket. An export that does not
/// answer is left out.
///
/// # Errors
/// If the runtime directory cannot be read.
pub(crate) fn all(runtime_dir: &RuntimeDir) -> Result<Vec<(PathBuf, Status)>> {
    let status = |socket: PathBuf| {
        let (value, _) = call(&socket, &Request::Status, SILENCE_MAX, &mut Nowhere).ok()?;
        Some((socket, serde_json::from_value(value).ok()?))
    };
    Ok(runtime_dir.sockets(Kind::Export)?.into_iter().filter_map(status).collect())
}

/// The export that a text names by its address, and the path in it, if there is one:
/// `127.0.0.1:12049/projects`.
pub(crate) fn named(text: &Path) -> Option<(SocketAddr, PathBuf)> {
    let (address, path) = text.to_str()?.split_once('/').unwrap_or((text.to_str()?, ""));
    Some((address.parse().ok()?, PathBuf::from(path)))
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
