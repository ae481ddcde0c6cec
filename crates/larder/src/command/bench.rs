//! `larder bench`: published workloads on any directory.

mod command_line;
mod compare;
mod passthrough;
mod report;
mod rpc_budget;
mod run;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use larder_bench::suite;

use super::print;
use crate::signals::Ends;

/// Arguments of `larder bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  larder bench run badros --target nfs=/mnt/nfs --target local=/var/tmp"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run suites on directories, or on mounts made for the run
    Run(run::Args),
    /// Run suites on our mounts and on other file systems that are installed
    Compare(compare::Args),
    /// Write a report from the records of runs
    Report(report::Args),
    /// Check that no work costs more RPCs with the cache than without
    RpcBudget(rpc_budget::Args),
    /// Mount a directory through FUSE and nothing else
    #[command(hide = true)]
    Passthrough(passthrough::Args),
    /// List the suites
    #[command(after_help = "Example:\n  larder bench list")]
    List,
}

/// How much work is done.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Size {
    /// Little: seconds
    Smoke,
    /// Five rounds in minutes
    Short,
    /// As published
    Full,
}

impl From<Size> for suite::Size {
    fn from(size: Size) -> suite::Size {
        match size {
            Size::Smoke => suite::Size::Smoke,
            Size::Short => suite::Size::Short,
            Size::Full => suite::Size::Full,
        }
    }
}

/// Runs a command of the bench.
///
/// # Errors
/// What prevented the measurement. A target that failed is a result, not an error.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Run(args) => run::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::RpcBudget(args) => rpc_budget::run(args),
        Command::Passthrough(args) => passthrough::run(args),
        Command::List => {
            let lines = suite::SUITES.iter().map(|(name, about)| format!("{name:12}{about}\n"));
            print(&lines.collect::<String>())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A command read from a record.
#[derive(Debug, clap::Parser)]
struct Recorded {
    #[command(subcommand)]
    command: Command,
}

/// Runs a command from a record again, into `out` instead of its original directory.
///
/// # Errors
/// If it is neither `run` nor `compare`, or fails.
fn again(command: &str, out: Option<&Path>) -> Result<ExitCode> {
    let cannot = || format!("cannot repeat {command:?}");
    let words =
        command_line::words(command).filter(|words| words.len() > 1).with_context(cannot)?;
    let mut recorded = Recorded::try_parse_from(&words[1..]).with_context(cannot)?;
    let plan = match &mut recorded.command {
        Command::Run(args) => &mut args.plan,
        Command::Compare(args) => &mut args.plan,
        Command::Report(_) | Command::RpcBudget(_) | Command::Passthrough(_) | Command::List => {
            bail!(cannot())
        }
    };
    plan.out = out.map(Path::to_path_buf);
    plan.repeats = Some(command.to_owned());
    run(&Args { command: recorded.command })
}

/// Becomes true when a signal interrupts or terminates us: mounts are then removed in order.
fn interruption() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let mut ends = {
        let _inside = runtime.enter();
        Ends::begin()?
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                ends.come().await;
                flag.store(true, Ordering::Relaxed);
                eprintln!("larder: ending after the present test; what is finished is kept");
            }
        });
    });
    Ok(interrupted)
}
