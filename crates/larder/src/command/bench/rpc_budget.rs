//! `larder bench rpc-budget`

use std::process::ExitCode;

use anyhow::{Context, Result};
use larder_bench::budget::{self, Cost, total};
use larder_bench::rpc::Calls;

use super::super::print;
use super::{Size, interruption};

/// Arguments of `larder bench rpc-budget`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exports a directory of its own, mounts it plain and cached, and runs the 26 badros works on both. \
Prints a line for each; ends with 1 if any costs more calls cached than plain.\n\nExample:\n  larder bench rpc-budget --size smoke"
)]
pub(crate) struct Args {
    /// How much work
    #[arg(long, value_enum, default_value = "full")]
    size: Size,
}

/// Measures and judges.
///
/// # Errors
/// If the mounts cannot be made.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let larder = std::env::current_exe().context("cannot find our own program")?;
    let costs = budget::measure(&larder, args.size.into(), &*interruption()?)?;
    for cost in &costs {
        print(&line(cost))?;
    }
    let over = costs.iter().filter(|cost| !cost.is_within()).count();
    if over > 0 {
        eprintln!("larder: {over} of {} works are over budget", costs.len());
    }
    Ok(if over == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(cost: &Cost) -> String {
    let shown = |calls: &Result<Calls, String>| match calls {
        Ok(calls) => total(calls).to_string(),
        Err(reason) => format!("failed: {reason}"),
    };
    let mut line =
        format!("{:20} plain {} cached {}\n", cost.test, shown(&cost.plain), shown(&cost.cached));
    if let (false, Ok(plain), Ok(cached)) = (cost.is_within(), &cost.plain, &cost.cached) {
        for (name, calls) in cached {
            let plain = plain.get(name).copied().unwrap_or(0);
            if *calls > plain {
                line.push_str(&format!("{:20} {name}: plain {plain} cached {calls}\n", ""));
            }
        }
    }
    line
}
