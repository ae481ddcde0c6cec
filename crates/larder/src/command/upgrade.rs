//! `larder upgrade`: replaces the worker of a mount by the program that is installed now. Calls on
//! the mount wait until that is done; open files continue.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Target, print};
use crate::clock::{Since, clock};
use crate::control::Request;
use crate::report::{State, Status};
use crate::runtime_dir::RuntimeDir;

/// Longest wait for the next worker.
const NEXT_MAX: Duration = Duration::from_secs(30);

/// Pause between two questions whether the next worker is there.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Arguments of `larder upgrade`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Also starts a worker again on a mount whose workers died repeatedly (state: failed).\n\nExample:\n  larder upgrade /mnt"
)]
pub(crate) struct Args {
    /// The mount
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
}

/// Replaces the worker, and returns when the next one serves.
///
/// # Errors
/// If it is no mount of ours, if it has no supervisor, or if no other worker starts.
pub(crate) fn run(args: &Args) -> Result<()> {
    let target = Target::find(&RuntimeDir::open()?, &args.mountpoint)?;
    let shown = target.mountpoint.display();
    let status = || -> Result<Status> { Ok(target.ask(&Request::Status)?) };
    let before = status().with_context(|| shown.to_string())?;
    let _: serde_json::Value = target.ask(&Request::Upgrade).with_context(|| shown.to_string())?;
    let begin = Since::now();
    while begin.elapsed() < NEXT_MAX {
        // The socket stays: a question that arrives in between waits for the next worker.
        match status() {
            Ok(after) if after.state == State::Mounted && after.worker_pid != before.worker_pid => {
                return print(&format!("{shown} is served by larder {}\n", after.version));
            }
            Ok(_) | Err(_) => clock().block(ASK_EVERY),
        }
    }
    bail!("{shown}: no other worker serves yet; see larder status, and the log")
}
