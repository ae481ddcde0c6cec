//! `larder explain`: how durable a file is, how durable it will be, and why.

use std::path::PathBuf;

use anyhow::Result;

use super::class::explained;
use super::{print, print_json};

/// Arguments of `larder explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "level shows where all bytes of the file are now: durable is the server's disk, memory is \
this machine's.\n\nExample:\n  larder explain /mnt/ledger/2026.db"
)]
pub(crate) struct Args {
    /// A file or directory in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the answer.
///
/// # Errors
/// If the path is in no mount of this user.
pub(crate) fn run(args: &Args) -> Result<()> {
    let explained = explained(&args.path)?;
    match args.json {
        true => print_json(&explained),
        false => print(&format!("{}\n{explained}", args.path.display())),
    }
}
