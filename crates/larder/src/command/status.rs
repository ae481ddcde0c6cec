//! `larder status`: the state of mounts, of exports of cached servers, and of servers of volumes.
//! It asks their daemons and never touches a mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{Target, print, print_json};
use crate::control::{CallError, Request};
use crate::exported;
use crate::mountpoint;
use crate::report::{Conflict, ServerStatus, State, Status, Unsaved, prometheus};
use crate::runtime_dir::{Record, RuntimeDir};
use crate::servers;

/// Arguments of `larder status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Servers of volumes are listed after mounts and exports: metadata servers with their disks, standbys, and disks.\n\nExample:\n  larder status /mnt\n  larder status 127.0.0.1:2050 --json\n  larder status --prometheus > /var/lib/node_exporter/larder.prom"
)]
pub(crate) struct Args {
    /// The mount, or a path in it, or the address of an export or of a server of a volume
    /// [default: all of this user]
    #[arg(value_name = "MNT|IP:PORT")]
    mountpoint: Option<PathBuf>,
    /// List the files that the server does not have completely, open files included, and when it
    /// gets the rest
    #[arg(long)]
    unsaved: bool,
    /// Print gauges in the text format of Prometheus, for node_exporter's textfile collector
    #[arg(long, conflicts_with_all = ["json", "unsaved"])]
    prometheus: bool,
    /// Print JSON: an object for MNT, otherwise an array; servers of volumes have a field "server"
    #[arg(long)]
    json: bool,
}

/// Prints the state of one mount, or of all.
///
/// # Errors
/// If MNT is in no mount of ours, or its daemon is dead or hung. Without MNT such a mount is
/// listed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = RuntimeDir::open()?;
    if args.unsaved {
        return unsaved(&runtime, args);
    }
    let server = server(&runtime, args)?;
    if args.prometheus {
        return gauges(&runtime, args, server);
    }
    if let Some(server) = server {
        return if args.json { print_json(&server) } else { print(&server.to_string()) };
    }
    if let Some(typed) = &args.mountpoint {
        let target = target(&runtime, typed)?;
        let mut status: Status = target
            .ask(&Request::Status)
            .with_context(|| target.mountpoint.display().to_string())?;
        if args.json {
            add_conflicts(&target, &mut status);
            return print_json(&status);
        }
        return print(&status.to_string());
    }
    let mut all = mounts(&runtime)?;
    let servers = servers::all(&runtime)?;
    if args.json {
        for status in &mut all {
            if let Ok(target) = target(&runtime, Path::new(&status.mountpoint)) {
                add_conflicts(&target, status);
            }
        }
        let all = all.iter().map(serde_json::to_value);
        let all = all.chain(servers.iter().map(serde_json::to_value));
        return print_json(&all.collect::<Result<Vec<_>, _>>()?);
    }
    let all = all.iter().map(ToString::to_string);
    let all: Vec<String> = all.chain(servers.iter().map(ToString::to_string)).collect();
    match all.as_slice() {
        [] => print("nothing is mounted\n"),
        all => print(&all.join("\n")),
    }
}

/// Adds the conflicts of which there was no room in the daemon's answer. If it is gone by now, its
/// answer is what there is.
fn add_conflicts(target: &Target, status: &mut Status) {
    if status.conflicts_total <= status.conflicts.len() as u64 {
        return;
    }
    if let Ok(all) = target.ask_each::<Conflict>(&Request::Conflicts) {
        status.conflicts_total = all.len() as u64;
        status.conflicts = all;
    }
}

/// The states of all mounts and cached exports of this user.
fn mounts(runtime: &RuntimeDir) -> Result<Vec<Status>> {
    let mut all = Vec::new();
    for record in runtime.list()? {
        all.extend(status_of(runtime, &record)?);
    }
    all.extend(exported::all(runtime)?.into_iter().map(|(_, status)| status));
    Ok(all)
}

/// Prints gauges of one mount or server, or of all.
fn gauges(runtime: &RuntimeDir, args: &Args, server: Option<ServerStatus>) -> Result<()> {
    let (all, servers) = match (&args.mountpoint, server) {
        (None, _) => (mounts(runtime)?, servers::all(runtime)?),
        (Some(_), Some(server)) => (Vec::new(), vec![server]),
        (Some(typed), None) => {
            let target = target(runtime, typed)?;
            let shown = || target.mountpoint.display().to_string();
            (vec![target.ask(&Request::Status).with_context(shown)?], Vec::new())
        }
    };
    print(&prometheus::text(&all, &servers))
}

/// The server of a volume that is asked for by its address.
fn server(runtime: &RuntimeDir, args: &Args) -> Result<Option<ServerStatus>> {
    match args.mountpoint.as_deref().and_then(exported::named) {
        Some((address, _)) => servers::at(runtime, address),
        None => Ok(None),
    }
}

/// The mount that contains a path, or the export with an address.
fn target(runtime: &RuntimeDir, typed: &Path) -> Result<Target> {
    match exported::named(typed) {
        Some((address, _)) => {
            Ok(Target { mountpoint: typed.to_owned(), socket: runtime.export_socket(address) })
        }
        None => Target::around(runtime, typed),
    }
}

/// Lists the files of one mount, or of all, that the servers do not have completely.
fn unsaved(runtime: &RuntimeDir, args: &Args) -> Result<()> {
    let targets = match &args.mountpoint {
        Some(typed) => vec![target(runtime, typed)?],
        None => {
            let all = runtime.list()?.into_iter();
            let all = all.map(|record| Target::find(runtime, &record.mountpoint));
            all.collect::<Result<_>>()?
        }
    };
    let mut all = Vec::new();
    for target in targets {
        let shown = target.mountpoint.display().to_string();
        let files: Vec<Unsaved> =
            target.ask_each(&Request::Unsaved).with_context(|| shown.clone())?;
        all.extend(
            files.into_iter().map(|file| Unsaved {
                path: file.path.map(|path| format!("{shown}/{path}")),
                ..file
            }),
        );
    }
    if args.json {
        return print_json(&all);
    }
    all.iter().try_for_each(|file| print(&file.to_string()))
}

/// State of the mount that a record describes. If its daemon died and the mount is gone, this
/// removes the daemon's traces.
fn status_of(runtime: &RuntimeDir, record: &Record) -> Result<Option<Status>> {
    let target =
        Target { mountpoint: record.mountpoint.clone(), socket: runtime.socket_of(record) };
    let ours = |mount: mountpoint::Mount| mount.kind == mountpoint::KIND;
    let is_mounted =
        !record.is_detached && mountpoint::mounted_at(&record.mountpoint)?.is_some_and(ours);
    let state = match target.ask(&Request::Status) {
        Ok(status) => {
            return Ok(Some(if is_mounted { status } else { detached(status) }));
        }
        Err(CallError::Dead) => State::Dead,
        Err(CallError::BrokeOff | CallError::Hung(_) | CallError::Failed(_)) => State::Hung,
    };
    if state == State::Dead && !is_mounted {
        match record.is_detached {
            true => runtime.remove_detached(&record.mountpoint, record.pid),
            false => runtime.remove(&record.mountpoint),
        }
        return Ok(None);
    }
    Ok(Some(Status {
        mountpoint: record.mountpoint.display().to_string(),
        source: record.source.clone(),
        state,
        pid: record.pid,
        log: record.log.as_ref().map(|log| log.display().to_string()),
        ..Status::default()
    }))
}

/// The state of a mount that is no longer at its mountpoint.
fn detached(status: Status) -> Status {
    let is_served = status.state == State::Mounted;
    Status { state: if is_served { State::Detached } else { status.state }, ..status }
}
