//! `larder disk enrol`: adds a disk to a volume.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use larder_io::secret;
use larder_meta::volume::{self, NewDisk};
use larder_wire::capability::DiskId;
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::seal::MasterKey;

use crate::command::print;
use crate::options::parse_size;
use crate::runtime_dir::make_private;
use crate::volume::{Kept, TERM, key_path, read_key, remove_if_there};

/// Arguments of `larder disk enrol`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The metadata server must not be running. It keeps the disk's key beside the volume's \
metadata; the same key is written to FILE, with mode 0600, for the disk: carry it there in a \
way that cannot be overheard. Start the disk before or after this command.\n\nA volume with \
copies uses disks in sets of as many as it has copies, limited by the room of the smallest \
disk of a set. Replace a lost disk by a new one with --replace; the new disk is brought up \
to date while work goes on. The lost disk must not come back.\n\nExample:\n  larder disk enrol /etc/larder/disk2.key --engine embedded:/srv/meta --address 192.0.2.2:2051 --size 1T\n  larder disk --store /srv/disk2 --size 1T --key /etc/larder/disk2.key --listen 192.0.2.2:2051"
)]
pub(super) struct Args {
    /// Where the key for the disk is written; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    kept: Kept,
    /// Where the metadata server and clients reach the disk
    #[arg(long, value_name = "IP:PORT")]
    address: SocketAddr,
    /// How many bytes the disk has, as in 100G; a multiple of 4096
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Replace this disk, which is lost, on a volume with copies: the new disk gets what the lost
    /// one had from the others, and the volume forgets the lost one
    #[arg(long, value_name = "NUMBER")]
    replace: Option<u32>,
}

/// Adds the disk. Continues what an earlier attempt has left.
pub(super) fn run(args: &Args) -> Result<()> {
    let engine = args.kept.open(TERM)?;
    let id = volume::id(&*engine)?;
    let there = volume::disks(&*engine)?;
    for (disk, about) in &there {
        let is_one = about.address.parse::<SocketAddr>().is_ok();
        ensure!(is_one, "the volume is one of larder serve, and has one disk");
        let (shown, address) = (disk.0, args.address);
        let is_free = about.address != address.to_string() || args.replace == Some(shown);
        ensure!(is_free, "disk {shown} is at {address}");
    }
    let disk = DiskId(there.last().map_or(1, |(last, _)| last.0 + 1));
    let keys = args.kept.keys()?;
    make_private(&keys, "directory of the keys")?;
    let path = key_path(&keys, disk);
    let key = match path.exists() {
        true => read_key(&path, id, disk)?,
        false => {
            let master = MasterKey::new(secret::random());
            let key = DiskKeyFile { volume: id, disk, master };
            secret::write_new(&path, &key.to_text())
                .with_context(|| format!("cannot make {}", path.display()))?;
            key
        }
    };
    secret::write_new(&args.file, &key.to_text())
        .with_context(|| format!("cannot make {}", args.file.display()))?;
    let new = NewDisk { id: secret::random(), address: args.address.to_string(), bytes: args.size };
    let added = match args.replace {
        Some(old) => volume::replace_disk(&*engine, DiskId(old), &new),
        None => volume::add_disk(&*engine, &new),
    };
    if added.is_err() {
        // This copy of the key is of no use alone; the volume's copy is, to the next attempt.
        let _ = std::fs::remove_file(&args.file);
    }
    let number = added.context("cannot add the disk")?.0;
    if let Some(old) = args.replace {
        // The old key is of no use any more.
        remove_if_there(&key_path(&keys, DiskId(old)))?;
    }
    print(&format!("disk {number} of volume {}\n", id.to_text()))
}
