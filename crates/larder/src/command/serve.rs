//! `larder serve`: a volume in a directory, with its metadata server and one disk in one process.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use larder_disk::{Config as DeviceConfig, Device, DiskService, Identity, Store};
use larder_io::{Clock, RealClock, RealDisk, secret};
use larder_meta::Options;
use larder_meta::disks::DiskAddress;
use larder_meta::engine::Engine;
use larder_meta::volume::{self, NewDisk};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::seal::{MasterKey, Setup};

use crate::error::Usage;
use crate::log;
use crate::options::{Bytes, parse_size};
use crate::runtime_dir::make_private;
use crate::volume::{
    END_MAX, Ends, KeptAt, Listening, META_DIR, begin_meta, bind, now, open_embedded, reached_at,
    remove_if_there,
};

/// The disk of a volume that has one.
const DISK: DiskId = DiskId(1);
/// Names in the directory, beside that of the metadata: the disk's key, which makes the directory a
/// volume; the disk.
const KEY_FILE: &str = "disk1.key";
const STORE_FILE: &str = "disk1";
/// Percentage of the free room that the disk of a new volume gets.
const FREE_PERCENT: u64 = 90;

/// Arguments of `larder serve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The directory is made if it does not exist; otherwise it must be empty or hold a volume. The \
disk listens on the port after the metadata server's. Only the owner of the directory can \
access its files; clients need no account there: the servers believe the user ids that \
clients send. So only root of an allowed machine may call (from a port below 1024; on this \
machine from any port), unless --insecure is given. Beyond this machine the metadata server \
speaks TLS only, because it sends secrets to clients; data carries seals in any case.\n\nExample:\n  larder serve /srv/volume\n  larder mount larder://127.0.0.1/ /mnt --cache /var/cache/larder/volume\n  larder serve /srv/volume --listen 192.0.2.1:2050 --cert /etc/larder/cert.pem --cert-key /etc/larder/key.pem\n  larder mount larder://server.example/ /mnt -o ca=/etc/larder/ca.pem"
)]
pub(crate) struct Args {
    /// Where the volume is kept
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How many bytes a new volume has, as in 100G [default: most of what is free where DIR is]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    #[command(flatten)]
    listening: Listening,
}

/// A volume in a directory, opened.
struct Volume {
    key: DiskKeyFile,
    engine: Arc<dyn Engine>,
    store: Store,
    identity: Identity,
}

/// Serves until a signal arrives, then lets calls in flight end.
///
/// # Errors
/// If the directory or an address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    // Requests use the store on the threads that read them: one that waits for the medium must not
    // delay the others.
    let threads = std::thread::available_parallelism().map_or(1, usize::from) * 2;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(4))
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<()> {
    // Before anything is made: from now on a signal ends the process in order.
    let mut ends = Ends::begin()?;
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let meta_config = args.listening.meta_config()?;
    let Volume { key, engine, store, identity } = args.open()?;

    let config = DeviceConfig::new(identity, key.master.clone(), Arc::clone(&clock));
    let device = Arc::new(Device::start(config, store));
    let service = DiskService::new(Arc::clone(&device));
    let disk = bind(args.listening.disk_config()?, service).await?;
    let public = format!(":{}", disk.addr().port());
    let (address, master) = (reached_at(disk.addr()), key.master.clone());
    let bytes = device.store().size();
    let disks = vec![DiskAddress { disk: key.disk, bytes, address, public, master }];
    let disk_end = disk.shutdown();
    let disk = tokio::spawn(disk.run());

    let owned = volume::take(&*engine).with_context(|| args.cannot())?;
    let meta = args.dir.join(META_DIR);
    let shown = std::fs::canonicalize(&meta).unwrap_or(meta);
    let at = KeptAt { engine: format!("embedded:{}", shown.display()), keys: None };
    let options = (Options::default(), &clock);
    let meta = begin_meta((engine, owned), disks, (meta_config, at), options).await;
    let meta = meta.with_context(|| args.cannot())?;
    let (volume, address) = (key.volume.to_text(), meta.server.addr());
    tracing::info!(dir = %args.dir.display(), volume, %address, "serving a volume");
    let meta_end = meta.server.shutdown();
    let mut served = std::pin::pin!(meta.server.run());
    tokio::select! {
        () = &mut served => {}
        () = ends.come() => {}
    }
    meta_end.begin();
    disk_end.begin();
    let ended = async { (served.await, disk.await) };
    if clock.timeout(END_MAX, ended).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    device.store().flush().context("what was written last may be lost")
}

impl Args {
    fn cannot(&self) -> String {
        format!("cannot serve {}", self.dir.display())
    }

    /// Opens the volume, or makes one. Continues what a start that was killed has left.
    fn open(&self) -> Result<Volume> {
        let key = self.key().with_context(|| self.cannot())?;
        let meta = self.dir.join(META_DIR);
        let engine = open_embedded(&meta).with_context(|| self.cannot())?;
        let size = self.disk_bytes(&*engine, key.volume)?;
        let identity = Identity { volume: key.volume, disk: key.disk, setup: Setup::Secure };
        let dir = RealDisk::open(&self.dir)?;
        let store = Store::open(&dir, STORE_FILE, &identity, size);
        let store = store.with_context(|| {
            format!("cannot use the disk {}", self.dir.join(STORE_FILE).display())
        })?;
        Ok(Volume { key, engine, store, identity })
    }

    /// The key of the volume's disk, made if the directory is new or empty.
    fn key(&self) -> Result<DiskKeyFile> {
        let path = self.dir.join(KEY_FILE);
        match secret::read(&path) {
            Ok(text) => return DiskKeyFile::from_text(&text).context(KEY_FILE),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context(KEY_FILE),
        }
        let unfinished = path.with_extension("new");
        if self.dir.exists() {
            for entry in std::fs::read_dir(&self.dir)? {
                let name = entry?.path();
                ensure!(name == unfinished, "it is not empty, and holds no volume");
            }
        }
        make_private(&self.dir, "directory")?;
        remove_if_there(&unfinished)?;
        let (volume, master) = (VolumeId(secret::random()), MasterKey::new(secret::random()));
        let key = DiskKeyFile { volume, disk: DISK, master };
        secret::write_new(&unfinished, &key.to_text())?;
        std::fs::rename(&unfinished, &path)?;
        std::fs::File::open(&self.dir)?.sync_all()?;
        Ok(key)
    }

    /// Size of the volume's disk, which is made if it does not exist.
    fn disk_bytes(&self, engine: &dyn Engine, id: VolumeId) -> Result<u64> {
        match volume::create(engine, id, 1, now()) {
            Ok(()) | Err(volume::VolumeError::Exists) => {}
            Err(error) => return Err(error).with_context(|| self.cannot()),
        }
        let disks = volume::disks(engine).with_context(|| self.cannot())?;
        if let [(_, disk)] = disks.as_slice() {
            let is_other =
                self.size.is_some_and(|size| size / BLOCK_BYTES * BLOCK_BYTES != disk.bytes);
            if is_other {
                bail!(Usage(format!("the volume has {}: leave --size out", Bytes(disk.bytes))));
            }
            return Ok(disk.bytes);
        }
        ensure!(disks.is_empty(), "the volume has several disks: serve them by larder disk");
        let bytes = match self.size {
            Some(size) => size,
            None => {
                let space = rustix::fs::statvfs(&self.dir).context("cannot tell what is free")?;
                space.f_bavail.saturating_mul(space.f_frsize) / 100 * FREE_PERCENT
            }
        };
        let bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        let new = NewDisk { id: id.0, address: STORE_FILE.to_owned(), bytes };
        let made = volume::add_disk(engine, &new).with_context(|| self.cannot())?;
        debug_assert_eq!(made, DISK);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn args(dir: &Path, size: Option<u64>) -> Args {
        Args {
            dir: dir.to_owned(),
            size,
            listening: Listening {
                listen: "127.0.0.1:0".parse().unwrap(),
                cert: None,
                cert_key: None,
                allow: Vec::new(),
                insecure: false,
            },
        }
    }

    fn error(args: &Args) -> String {
        format!("{:#}", args.open().err().expect("it is refused"))
    }

    #[test]
    fn a_volume_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        let made = args(&top, Some(10 << 20)).open().unwrap();
        let mode = std::fs::metadata(&top).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(error(&args(&top, None)).contains("another process"), "one at a time");
        let (volume, size) = (made.key.volume, made.store.size());
        drop(made);
        assert!(error(&args(&top, Some(11 << 20))).contains("leave --size out"));
        let found = args(&top, None).open().unwrap();
        assert_eq!((found.key.volume, found.store.size()), (volume, size));
        assert_eq!(size, 10 << 20);
    }

    #[test]
    fn a_directory_with_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(dir.path().join("mine"), b"data").unwrap();
        assert!(error(&args(dir.path(), None)).contains("not empty"));
        let mode = std::fs::metadata(dir.path()).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, std::fs::read_dir(dir.path()).unwrap().count()), (0o755, 1));
    }

    /// Killed after the key was begun, or made: the next start goes on.
    #[test]
    fn a_start_that_was_killed_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        make_private(&top, "directory").unwrap();
        std::fs::write(top.join("disk1.new"), b"lard").unwrap();
        let key = args(&top, None).key().unwrap();
        assert!(!top.join("disk1.new").exists());
        assert_eq!(args(&top, Some(1 << 20)).open().unwrap().key, key);
    }

    #[test]
    fn beyond_this_machine_there_is_tls() {
        let mut listening = args(Path::new("/nowhere"), None).listening;
        assert!(listening.meta_config().unwrap().tls.is_none());
        listening.listen = "192.0.2.1:2050".parse().unwrap();
        assert!(format!("{:#}", listening.meta_config().err().unwrap()).contains("--cert"));
        assert_eq!(listening.disk_config().unwrap().listen.port(), 2051);
    }
}
