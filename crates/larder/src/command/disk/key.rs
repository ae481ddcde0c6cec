//! `larder disk key`: makes the key file of a new disk of a volume.

use std::path::PathBuf;

use anyhow::{Context, Result};
use larder_io::secret;
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::seal::MasterKey;

use crate::command::print;

/// Arguments of `larder disk key`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The file has mode 0600, and says which disk of which volume it is for. Carry it to the \
disk's machine in a way that cannot be overheard.\n\nExample:\n  larder disk key /etc/larder/disk1.key --disk 1\n  larder disk key /etc/larder/disk2.key --disk 2 --volume 6f1e0c0d5a7b4f1c9e3d2b1a00998877"
)]
pub(super) struct Args {
    /// The file; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The disk's number in its volume
    #[arg(long, value_name = "NUMBER")]
    disk: u32,
    /// The volume: 32 hexadecimal digits [default: a new one]
    #[arg(long, value_name = "VOLUME", value_parser = volume)]
    volume: Option<VolumeId>,
}

fn volume(typed: &str) -> Result<VolumeId, String> {
    VolumeId::from_text(typed).ok_or_else(|| "a volume has 32 hexadecimal digits".to_owned())
}

/// Makes the file.
pub(super) fn run(args: &Args) -> Result<()> {
    let volume = args.volume.unwrap_or_else(|| VolumeId(secret::random()));
    let disk = DiskId(args.disk);
    let file = DiskKeyFile::new((volume, disk), MasterKey::new(secret::random()), None);
    secret::write_new(&args.file, &file.to_text())
        .with_context(|| format!("cannot make {}", args.file.display()))?;
    print(&format!("disk {} of volume {}\n", args.disk, volume.to_text()))
}
