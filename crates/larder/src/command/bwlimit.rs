//! `larder bwlimit`: how fast a mount sends what no process waits for.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Target, print, print_json};
use crate::control::{NewLimit, Request};
use crate::options::{Bytes, parse_limit};
use crate::report::Limited;
use crate::runtime_dir::RuntimeDir;

/// A limit as it is typed.
#[derive(Clone, Copy, Debug)]
struct Typed(Option<u64>);

/// Arguments of `larder bwlimit`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Limited is what the mount sends by itself or for larder sync and larder online: written bytes that are due, and \
names and files that wait on this machine, of which each name counts as 512 bytes. What a process waits for is not \
limited: fsync, close, and writes that wait because much is unsent; nor is the end of a mount. The limit holds \
until the mount ends; option bwlimit of larder mount sets it from the start. larder sync shows how much is left.\n\n\
Example:\n  larder bwlimit /mnt/projects 500k\n  larder bwlimit /mnt/projects off"
)]
pub(crate) struct Args {
    /// The mount, or a path in it
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Bytes per second, as 500k or 2M; off: no limit [default: shows the present limit]
    #[arg(value_name = "RATE|off", value_parser = typed)]
    rate: Option<Typed>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn typed(typed: &str) -> Result<Typed, String> {
    parse_limit(typed).map(Typed)
}

/// Shows the limit, after setting it if there is a new one.
///
/// # Errors
/// If MNT is in no mount of ours.
pub(crate) fn run(args: &Args) -> Result<()> {
    let target = Target::around(&RuntimeDir::open()?, &args.mountpoint)?;
    let shown = target.mountpoint.display().to_string();
    let set = args.rate.map(|Typed(bytes_per_second)| NewLimit { bytes_per_second });
    let told: Limited = target.ask(&Request::Limit { set }).with_context(|| shown.clone())?;
    if args.json {
        return print_json(&told);
    }
    print(&match told.bytes_per_second {
        Some(rate) => format!("{shown}: at most {} per second\n", Bytes(rate)),
        None => format!("{shown}: no limit\n"),
    })
}
