//! `larder stat`: what the procedures of a mount or an export cost, in total or by slice of time.

mod recording;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Target, print, print_json};
use crate::control::Request;
use crate::error::Usage;
use crate::exported;
use crate::options::parse_span;
use crate::report::Stat;
use crate::runtime_dir::RuntimeDir;

const AFTER_HELP: &str = "\
Without --series, prints totals since the mount was made or the export began: for a mount, the calls that
it made; for an export, the calls that it served, to any client.

With --series, records from now on: one row for each connection and slice of time, until --for is over, a
signal arrives or the mount ends. FILE is CSV with these columns:
  time_us      begin of the slice, in microseconds since the recording began
  connection   number of the connection, from 0
  offered      calls given to the connection in the slice
  completed    calls answered in the slice
  in_flight    calls waiting for a reply at the end of the slice
  window       calls that may be in flight, at the end of the slice
  backlog      calls waiting for the window, at the end of the slice
  retransmits  times that a call was sent again
  timeouts     times that waiting for a reply timed out
  dropped      slices right before this one that have no row, because FILE was written too slowly;
               this row includes their events

Example:
  larder stat /mnt --json | jq .rpc.READ.calls
  larder stat /mnt --series 1ms --for 10s --out calls.csv
  larder stat --export 127.0.0.1:12049";

/// Arguments of `larder stat`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The mount
    #[arg(value_name = "MNT")]
    mountpoint: Option<PathBuf>,
    /// Instead of a mount: the export of this user that listens at this address
    #[arg(long, value_name = "IP:PORT")]
    export: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Record events from now on, in slices of time from 100us to 1s
    #[arg(long, value_name = "SLICE", value_parser = slice, requires = "out")]
    series: Option<Duration>,
    /// How long to record, as 10s or 5min
    #[arg(long = "for", value_name = "TIME", value_parser = span, requires = "series")]
    duration: Option<Duration>,
    /// Where to write it
    #[arg(long, value_name = "FILE", requires = "series", conflicts_with = "json")]
    out: Option<PathBuf>,
}

/// Prints or records the counts and latencies of a mount, or the counts of an export.
///
/// # Errors
/// Of kind [`Usage`] if neither or both were named; otherwise if it is none of ours, or its daemon
/// is dead or hung; if the recording cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let typed = match (&args.mountpoint, args.export) {
        (Some(typed), None) => typed,
        (None, Some(_)) if args.series.is_some() => {
            bail!(usage("an export has no series: record its clients' mounts"))
        }
        (None, Some(address)) => return print_export(address, args.json),
        (None, None) => bail!(usage("say of what: a mount MNT, or --export IP:PORT")),
        (Some(_), Some(_)) => bail!(usage("say one of the two: a mount MNT, or --export IP:PORT")),
    };
    let target = Target::find(&RuntimeDir::open()?, typed)?;
    let shown = || target.mountpoint.display().to_string();
    if let (Some(slice), Some(out)) = (args.series, &args.out) {
        return recording::record(&target.socket, slice, args.duration, out).with_context(shown);
    }
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

fn slice(typed: &str) -> Result<Duration, String> {
    let slice = parse_span(typed)?;
    let valid = larder_rpc::SLICE_WIDTHS.contains(&slice);
    if valid { Ok(slice) } else { Err("a slice lasts from 100us to 1s".to_owned()) }
}

fn span(typed: &str) -> Result<Duration, String> {
    let span = parse_span(typed)?;
    if span.is_zero() { Err("that is no time at all".to_owned()) } else { Ok(span) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_neither_short_nor_long() {
        for (typed, valid) in
            [("99us", false), ("100us", true), ("1ms", true), ("1s", true), ("1001ms", false)]
        {
            assert_eq!(slice(typed).is_ok(), valid, "{typed}");
        }
        assert!(span("0s").is_err());
    }
}
