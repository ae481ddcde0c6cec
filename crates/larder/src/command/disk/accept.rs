//! `larder disk accept`: takes the store that a disk has now for its own.

use anyhow::Result;
use larder_meta::volume;
use larder_wire::capability::DiskId;

use crate::command::print;
use crate::volume::{Storage, TERM};

/// Arguments of `larder disk accept`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A volume remembers from which store each disk served last. If a disk is started with an empty store, with \
an older copy of its store, or with another one, the metadata server copies everything to it from the disks that have the same \
blocks; if there are none, or they lack some of it, it does not use the disk. Start the disk with its own store again. If that is \
lost, end the metadata server, run this command, and start it again: the disk's store is used as it is, so files may have old bytes, \
or zeros, where the lost store had others.\n\nExample:\n  larder disk accept 3 --engine embedded:/srv/meta"
)]
pub(super) struct Args {
    /// The disk's number
    #[arg(value_name = "NUMBER")]
    disk: u32,
    #[command(flatten)]
    storage: Storage,
}

/// Has the volume accept the next store that the disk reports.
pub(super) fn run(args: &Args) -> Result<()> {
    let disk = args.disk;
    volume::accept_store(&*args.storage.open(TERM)?, DiskId(disk))?;
    print(&format!("disk {disk}: its store is used as it is from now on\n"))
}
