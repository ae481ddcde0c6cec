//! `larder disk remove`: takes an empty disk out of a volume.

use std::time::Duration;

use anyhow::{Context, Result};
use larder_meta::volume;
use larder_wire::capability::DiskId;

use crate::command::print;
use crate::control::{Nowhere, Request, call};
use crate::enrolment::forget_key;
use crate::runtime_dir::RuntimeDir;
use crate::servers;
use crate::volume::{Kept, TERM};

/// How long a metadata server may take: it commits one change.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Arguments of `larder disk remove`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The disk must be empty: larder volume status shows how many of its bytes are in use. If a metadata \
server serves the volume, run this command on its machine as its user. The disk's key is removed from the volume's keys, and no \
other disk gets its number; end the disk's process afterwards. A disk of a volume with copies is replaced instead (larder disk enrol \
--replace).\n\nExample:\n  larder disk remove 3 --engine embedded:/srv/meta"
)]
pub(super) struct Args {
    /// The disk's number
    #[arg(value_name = "NUMBER")]
    disk: u32,
    #[command(flatten)]
    kept: Kept,
}

/// Removes the disk, by the metadata server if one serves the volume.
pub(super) fn run(args: &Args) -> Result<()> {
    let disk = args.disk;
    let runtime = RuntimeDir::open()?;
    match servers::of_engine(&runtime, &args.kept.shown()?)? {
        Some(socket) => {
            call(&socket, &Request::RemoveDisk { disk }, ANSWER_MAX, &mut Nowhere)
                .context("the metadata server that serves the volume")?;
        }
        None => {
            let engine = args.kept.open(TERM)?;
            volume::remove_disk(&*engine, DiskId(disk))?;
            forget_key(&args.kept.keys()?, DiskId(disk))?;
        }
    }
    print(&format!("disk {disk} does not belong to the volume any more\n"))
}
