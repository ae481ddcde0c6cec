//! `larder explain`: how durable a file is, how durable it will be, why, and what would lose it.

use std::path::PathBuf;

use anyhow::Result;

use super::class::explained;
use super::{print, print_json};

/// Arguments of `larder explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "level shows the weakest level that bytes of the file are at now: durable is the server's disk, \
shared the memory of other machines, local and memory are this machine's; lost is none.\n\
where shows the places of its bytes, and what loses them; lasts, after how long some of them are lost \
on average. That is estimated from how long disks and memory last, which larder.toml can say \
([level.NAME], docs/classes.md). How many copies an NFS or SMB server keeps is not known: it counts \
as one.\n\nExample:\n  larder explain /mnt/ledger/2026.db"
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
