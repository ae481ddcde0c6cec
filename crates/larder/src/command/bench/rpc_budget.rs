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
    after_help = "Exports a directory of its own, mounts it plain and cached, and runs the 26 badros works on \
both. Prints a line for each. Exits with 1 if any work costs more calls cached than plain; \
calls that only expired attributes caused are reported and not counted.\n\nExample:\n  larder bench rpc-budget --size smoke"
)]
pub(crate) struct Args {
    /// How much work
    #[arg(long, value_enum, default_value = "full")]
    size: Size,
    /// How long attributes are trusted. `published` runs twice, with `day` first, and reports for
    /// each work which calls expired attributes add
    #[arg(long, value_enum, default_value = "day")]
    timeouts: Timeouts,
    /// Number of rounds. For each work the smallest count is used: other activity on the machine
    /// only adds calls
    #[arg(long, default_value_t = 1)]
    rounds: u32,
}

/// How long attributes are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Timeouts {
    /// A day: counts do not depend on time
    Day,
    /// 5 s for files, 30 s for directories
    Published,
}

/// Measures and judges.
///
/// # Errors
/// If the mounts cannot be made.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let larder = std::env::current_exe().context("cannot find our own program")?;
    let interrupted = interruption()?;
    let measure =
        |timeouts| budget::measure(&larder, args.size.into(), timeouts, args.rounds, &interrupted);
    let day = measure(budget::Timeouts::Day)?;
    let judged = match args.timeouts {
        Timeouts::Day => day.clone(),
        Timeouts::Published => measure(budget::Timeouts::Published)?,
    };
    for (cost, day) in judged.iter().zip(&day) {
        print(&line(cost, day))?;
    }
    let is_over =
        |(cost, day): &(&Cost, &Cost)| !cost.is_within(&budget::expiry(&day.cached, &cost.cached));
    let over = judged.iter().zip(&day).filter(is_over).count();
    if over > 0 {
        eprintln!("larder: {over} of {} works are over budget", judged.len());
    }
    Ok(if over == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One line for a work and its cost. Lines below it give reasons: procedures that are called more
/// often cached than plain, if the total is higher, and calls that expired attributes add.
fn line(cost: &Cost, day: &Cost) -> String {
    let shown = |calls: &Result<Calls, String>| match calls {
        Ok(calls) => total(calls).to_string(),
        Err(reason) => format!("failed: {reason}"),
    };
    let mut line =
        format!("{:20} plain {} cached {}\n", cost.test, shown(&cost.plain), shown(&cost.cached));
    if let (false, Ok(plain), Ok(cached)) =
        (cost.is_within(&Calls::new()), &cost.plain, &cost.cached)
    {
        for (name, calls) in cached {
            let plain = plain.get(name).copied().unwrap_or(0);
            if *calls > plain {
                line.push_str(&format!("{:20} {name}: plain {plain} cached {calls}\n", ""));
            }
        }
    }
    for (client, day, calls) in
        [("plain", &day.plain, &cost.plain), ("cached", &day.cached, &cost.cached)]
    {
        let added = budget::expiry(day, calls);
        if !added.is_empty() {
            let added: Vec<_> =
                added.iter().map(|(name, calls)| format!("{name} {calls}")).collect();
            line.push_str(&format!("{:20} running out adds, {client}: {}\n", "", added.join(", ")));
        }
    }
    line
}
