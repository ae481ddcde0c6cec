//! `larder stat`: what the procedures of a mount or an export cost.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{Target, print, print_json};
use crate::control::Request;
use crate::error::Usage;
use crate::exported;
use crate::report::Stat;
use crate::runtime_dir::RuntimeDir;

const AFTER_HELP: &str = "\
What there was since the mount was made or the export began: of a mount, calls that it made; of an
export, calls that it served, to whatever client.

Example:
  larder stat /mnt --json | jq .rpc.READ.calls
  larder stat --export 127.0.0.1:12049";

/// Arguments of `larder stat`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The mount
    #[arg(value_name = "MNT")]
    mountpoint: Option<PathBuf>,
    /// Instead of a mount, the export of this user that listens there
    #[arg(long, value_name = "IP:PORT")]
    export: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the counts and latencies of a mount, or the counts of an export.
///
/// # Errors
/// Of kind [`Usage`] if it is not clear of which; else if it is none of ours, or its daemon is dead or
/// hung.
pub(crate) fn run(args: &Args) -> Result<()> {
    let typed = match (&args.mountpoint, args.export) {
        (Some(typed), None) => typed,
        (None, Some(address)) => return print_export(address, args.json),
        (None, None) => bail!(usage("say of what: a mount MNT, or --export IP:PORT")),
        (Some(_), Some(_)) => bail!(usage("say one of the two: a mount MNT, or --export IP:PORT")),
    };
    let target = Target::find(&RuntimeDir::open()?, typed)?;
    let shown = || target.mountpoint.display().to_string();
    let stat: Stat = target.ask(&Request::Stat).with_context(shown)?;
    if args.json { print_json(&stat) } else { print(&stat.to_string()) }
}

fn print_export(address: SocketAddr, json: bool) -> Result<()> {
    let stat = exported::ask(&RuntimeDir::open()?, address)?;
    if json { print_json(&stat) } else { print(&stat.to_string()) }
}

fn usage(line: &str) -> Usage {
    Usage(line.to_owned())
}
