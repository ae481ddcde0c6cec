//! `larder disk enrol`: adds a disk to a volume.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use larder_io::secret;
use larder_meta::volume;
use larder_wire::capability::DiskId;

use crate::command::print;
use crate::control::{Enrolled, Nowhere, Request, Wanted, call};
use crate::enrolment::prepare;
use crate::options::parse_size;
use crate::runtime_dir::RuntimeDir;
use crate::servers;
use crate::volume::{Storage, TERM, key_path};

/// How long a metadata server may take: a disk that is replaced and away may trust what it knows
/// for 30 s.
const REPLACED_MAX: Duration = Duration::from_secs(60);

/// Arguments of `larder disk enrol`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "If a metadata server serves the volume, run this command on its machine as its user: the server adds \
the disk, and uses it as soon as it runs. The disk's key is kept beside the volume's metadata; the same key is written to FILE, with \
mode 0600, for the disk: carry it there in a way that cannot be overheard. Start the disk before or after this command.\n\nA volume \
with copies uses disks in sets of as many as it has copies, limited by the room of the smallest disk of a set. Replace a lost or \
stolen disk by a new one with --replace; the new disk is brought up to date while work goes on. When the command returns, no \
capability on the old disk is valid any more, and its key is of no use; without a metadata server that takes up to 30 s more.\n\nExample:\n  larder disk enrol /etc/larder/disk2.key --engine embedded:/srv/meta --address 192.0.2.2:2051 --size 1T\n  larder disk --store /srv/disk2 --size 1T --key /etc/larder/disk2.key --listen 192.0.2.2:2051\n  larder disk enrol /etc/larder/memory3.key --memory --engine embedded:/srv/meta --address 192.0.2.3:2051 --size 8G\n  larder disk --store memory --size 8G --key /etc/larder/memory3.key --listen 192.0.2.3:2051"
)]
pub(super) struct Args {
    /// Where the key for the disk is written; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    storage: Storage,
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
    /// The disk is a memory disk: it is served with `--store memory`, and what is on it is lost
    /// with its process. Ordinary files are never placed there
    #[arg(long, conflicts_with = "replace")]
    memory: bool,
    /// The memory disk has the same bytes as this memory disk: what is volatile in as many copies
    /// is lost only if all disks beside each other go. Each must be on a machine of its own, as far
    /// as the addresses tell (with loopback addresses all may be on one, for a trial)
    #[arg(long, value_name = "NUMBER", requires = "memory")]
    beside: Option<u32>,
}

/// Adds the disk, by the metadata server if one serves the volume.
pub(super) fn run(args: &Args) -> Result<()> {
    let Args { address, size: size_bytes, replace, memory: is_memory, beside, .. } = *args;
    let wanted = Wanted { address, size_bytes, replace, is_memory, beside };
    let runtime = RuntimeDir::open()?;
    let (number, volume) = match servers::of_engine(&runtime, &args.storage.shown()?)? {
        Some(socket) => args.ask(&socket, wanted)?,
        None => args.add(&wanted)?,
    };
    print(&format!("disk {number} of volume {volume}\n"))
}

impl Args {
    /// Has the metadata server add the disk.
    fn ask(&self, socket: &Path, wanted: Wanted) -> Result<(u32, String)> {
        ensure!(!self.file.exists(), "cannot make {}: it exists", self.file.display());
        let request = Request::EnrolDisk(wanted);
        let (value, _) = call(socket, &request, REPLACED_MAX, &mut Nowhere)
            .context("the metadata server that serves the volume")?;
        let Enrolled { disk, volume, key } = serde_json::from_value(value)?;
        secret::write_new(&self.file, &key).with_context(|| {
            let keys = self.storage.keys().unwrap_or_default();
            let kept = key_path(&keys, DiskId(disk));
            format!(
                "disk {disk} was added, and its key is in {}: cannot make {}",
                kept.display(),
                self.file.display()
            )
        })?;
        Ok((disk, volume))
    }

    /// Adds the disk to a volume that no server serves.
    fn add(&self, wanted: &Wanted) -> Result<(u32, String)> {
        let engine = self.storage.open(TERM)?;
        let keys = self.storage.keys()?;
        let prepared = prepare(wanted, &*engine, &keys)?;
        secret::write_new(&self.file, &prepared.key.to_text())
            .with_context(|| format!("cannot make {}", self.file.display()))?;
        let added = volume::enrol(&*engine, &prepared.new, prepared.joining);
        if added.is_err() {
            // Of no use by itself; that of the volume is, to the next try.
            let _ = std::fs::remove_file(&self.file);
        }
        let number = added.context("cannot add the disk")?.0;
        prepared.done(&keys)?;
        Ok((number, prepared.key.volume.to_text()))
    }
}
