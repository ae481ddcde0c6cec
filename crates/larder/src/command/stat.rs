//! `larder stat`: what a mount's procedures cost.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Target, print, print_json};
use crate::control::Request;
use crate::report::Stat;
use crate::runtime_dir::RuntimeDir;

/// Arguments of `larder stat`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  larder stat /mnt --json | jq .rpc.READ.calls")]
pub(crate) struct Args {
    /// The mount
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the counts and latencies of a mount since it was made.
///
/// # Errors
/// If it is no mount of ours, or its daemon is dead or hung.
pub(crate) fn run(args: &Args) -> Result<()> {
    let target = Target::find(&RuntimeDir::open()?, &args.mountpoint)?;
    let stat: Stat =
        target.ask(&Request::Stat).with_context(|| target.mountpoint.display().to_string())?;
    if args.json { print_json(&stat) } else { print(&stat.to_string()) }
}
