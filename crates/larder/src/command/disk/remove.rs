//! `larder disk remove`: takes a disk out of a volume.

use std::time::Duration;

use anyhow::{Context, Result};
use larder_meta::volume::{self, Removal, Tenure};
use larder_wire::capability::DiskId;

use crate::command::{print, print_json};
use crate::control::{Nowhere, Removed, RemovedIs, Request, call};
use crate::enrolment::forget_key;
use crate::options::Bytes;
use crate::runtime_dir::RuntimeDir;
use crate::servers;
use crate::volume::{Storage, TERM};

/// How long a metadata server may take: it commits one change.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Arguments of `larder disk remove`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "An empty disk is removed at once. Another one leaves: it gets no new data, and the metadata server moves \
what is on it to other disks while clients work, no faster than larder meta --resilver says. When it is empty it is removed. \
larder volume status shows how much is left. If the other disks have no room for it, nothing is changed. --cancel keeps a disk that \
leaves; what was moved stays where it is.\n\nIf a metadata server serves the volume, run this command on its machine as its user; \
without one, the next one moves the data. A removed disk's key is removed from the volume's keys, and no other disk gets its number; \
end the disk's process afterwards. A disk of a volume with copies is replaced instead (larder disk enrol \
--replace).\n\nExample:\n  larder disk remove 3 --engine embedded:/srv/meta\n  larder disk remove 3 --cancel --engine embedded:/srv/meta"
)]
pub(super) struct Args {
    /// The disk's number
    #[arg(value_name = "NUMBER")]
    disk: u32,
    /// Keep a disk that leaves
    #[arg(long)]
    cancel: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    storage: Storage,
}

/// Removes the disk, or begins to, by the metadata server if one serves the volume.
pub(super) fn run(args: &Args) -> Result<()> {
    let (disk, keep) = (args.disk, args.cancel);
    let runtime = RuntimeDir::open()?;
    let removed = match servers::of_engine(&runtime, &args.storage.shown()?)? {
        Some(socket) => {
            let request = Request::RemoveDisk { disk, keep };
            let (value, _) = call(&socket, &request, ANSWER_MAX, &mut Nowhere)
                .context("the metadata server that serves the volume")?;
            serde_json::from_value(value)?
        }
        None => {
            let (engine, disk) = (args.storage.open(TERM)?, DiskId(disk));
            let change = if keep { volume::keep_disk } else { volume::remove_disk };
            let removed = Removed::of(disk, change(&*engine, disk)?);
            if removed.state == RemovedIs::Gone {
                forget_key(&args.storage.keys()?, disk)?;
            }
            removed
        }
    };
    match args.json {
        true => print_json(&removed),
        false => print(&removed.to_text()),
    }
}

impl Removed {
    pub(crate) fn of(disk: DiskId, removal: Removal) -> Removed {
        let state = match removal.tenure {
            Tenure::Stays => RemovedIs::Stays,
            Tenure::Leaves => RemovedIs::Leaving,
            Tenure::Gone => RemovedIs::Gone,
        };
        Removed { disk: disk.0, state, used_bytes: removal.used_bytes }
    }

    fn to_text(self) -> String {
        let Removed { disk, state, used_bytes } = self;
        match state {
            RemovedIs::Stays => format!("disk {disk} stays in the volume\n"),
            RemovedIs::Leaving => format!(
                "disk {disk} leaves: {} of it are in use and go to other disks (larder volume status)\n",
                Bytes(used_bytes)
            ),
            RemovedIs::Gone => format!("disk {disk} does not belong to the volume any more\n"),
        }
    }
}
