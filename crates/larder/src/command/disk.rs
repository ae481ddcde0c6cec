//! `larder disk`: serves a network-attached disk; makes its key, enrols and removes it, and shows
//! its state.

mod accept;
mod enrol;
mod key;
mod remove;
mod serve;
mod status;

use std::path::Path;

use anyhow::{Context, Result};
use larder_wire::disk::key_file::DiskKeyFile;

/// Arguments of `larder disk`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "A disk belongs to a volume, and serves clients that present capabilities from the volume's \
metadata server. The disk and the metadata server share a key, a file with mode 0600 that \
`larder disk key` makes; each needs a copy. A disk that has not heard from the metadata \
server in time refuses everything. Its setup is that of the volume, which the key states.\n\nThe store is made if it does not exist. It is one file \
as long as the disk, with holes where nothing was written; `memory` is lost with the \
process. SIGTERM makes written data durable, and ends the disk server.\n\nExample:\n  larder disk key /etc/larder/disk1.key --disk 1\n  larder disk --store /srv/disk1 --size 100G --key /etc/larder/disk1.key --listen 192.0.2.1:2051\n  larder disk status 192.0.2.1:2051 --key /etc/larder/disk1.key"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Option<serve::Serve>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Add a disk to a volume
    Enrol(enrol::Args),
    /// Make the key of a disk
    Key(key::Args),
    /// Take the store that a disk has now for its own
    Accept(accept::Args),
    /// Remove a disk from a volume, when what is on it is on others
    Remove(remove::Args),
    /// Show the state of a disk
    Status(status::Args),
}

/// Serves a disk until a signal arrives, or carries out a subcommand.
///
/// # Errors
/// Those of the parts.
pub(crate) fn run(args: &Args) -> Result<()> {
    match (&args.command, &args.serve) {
        (Some(Command::Enrol(args)), _) => enrol::run(args),
        (Some(Command::Key(args)), _) => key::run(args),
        (Some(Command::Accept(args)), _) => accept::run(args),
        (Some(Command::Remove(args)), _) => remove::run(args),
        (Some(Command::Status(args)), _) => status::run(args),
        (None, Some(args)) => serve::run(args),
        (None, None) => unreachable!("clap asks for a store if there is no subcommand"),
    }
}

/// Reads the key of a disk.
fn read_key(path: &Path) -> Result<DiskKeyFile> {
    let about = || format!("cannot use the key {}", path.display());
    let text = larder_io::secret::read(path).with_context(about)?;
    DiskKeyFile::from_text(&text).with_context(about)
}
