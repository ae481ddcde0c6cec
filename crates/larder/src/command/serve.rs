//! `larder serve`: a volume in a directory, with its metadata server and its disk in one process;
//! and a memory disk, and an NFS export, if the volume is to have them.

mod nfs;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use larder_disk::{Config as DeviceConfig, Device, DiskService, Identity, Store};
use larder_io::{Clock, Disk, MemDisk, RealClock, RealDisk, SlowDisk, secret};
use larder_meta::disks::{DiskAddress, TrustInterval};
use larder_meta::engine::Engine;
use larder_meta::volume::{self, NewDisk, VolumeError};
use larder_rpc::server::{self, Server, Shutdown};
use larder_wire::capability::{DiskId, VolumeId};
use larder_wire::disk::key_file::DiskKeyFile;
use larder_wire::meta::BLOCK_BYTES;
use larder_wire::seal::{MasterKey, Setup};
use tokio::task::{JoinHandle, JoinSet};

use nfs::Nfs;

use crate::archive::ServerArchive;
use crate::error::Usage;
use crate::log;
use crate::options::{Bytes, parse_size, parse_span};
use crate::runtime_dir::make_private;
use crate::signals::Ends;
use crate::volume::{
    END_MAX, Listening, META_DIR, StoredIn, begin_meta, bind, demand_memory, key_path,
    measure_memory, now, open_embedded, parse_setup, parse_trust, reached_at, read_key,
    remove_if_there, warn_if_off,
};

/// The disk of the volume.
const DISK: DiskId = DiskId(1);
/// Names in the directory, beside that of the metadata: the disk's key, which makes the directory a
/// volume; the disk.
const KEY_FILE: &str = "disk1.key";
const STORE_FILE: &str = "disk1";
/// Where the volume says that its memory disk is.
const MEMORY: &str = "memory";
/// Percentage of the free room that the disk of a new volume gets.
const FREE_PERCENT: u64 = 90;

/// Arguments of `larder serve`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The directory is made if it does not exist; otherwise it must be empty or hold a volume. The \
disk listens on the port after the metadata server's, a memory disk on the next one. Only the owner of the directory can \
access its files; clients need no account there: the servers believe the user ids that \
clients send. So only root of an allowed machine may call (from a port below 1024; on this \
machine from any port), unless --insecure is given. Beyond this machine the metadata server \
speaks TLS only, because it sends secrets to clients; data carries seals in any case.\n\nWith --nfs, NFSv3 clients are served too, as by larder export --source larder://HOST/ --cache none; who \
may call, and as whom, is set by the options of larder export, with nfs- before their names. \
--allow and --insecure do not concern NFS clients.\n\nExample:\n  larder serve /srv/volume\n  larder mount larder://127.0.0.1/ /mnt --cache /var/cache/larder/volume\n  larder serve /srv/volume --listen 192.0.2.1:2050 --cert /etc/larder/cert.pem --cert-key /etc/larder/key.pem\n  larder mount larder://server.example/ /mnt -o ca=/etc/larder/ca.pem\n  larder serve /srv/volume --archive s3://backup/office --archive-endpoint https://s3.example.com --archive-credentials /etc/larder/archive\n  larder serve /srv/volume --nfs 192.0.2.1:2049 --nfs-allow 192.0.2.0/24"
)]
pub(crate) struct Args {
    /// Where the volume is kept
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// How many bytes a new volume has, as in 100G [default: most of what is free where DIR is]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Give the volume a memory disk of this size, from now on: it takes memory as files use it,
    /// and what is on it is lost with this process. Ordinary files are never placed there
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// For benchmarks: each sync of the disk takes this long, one after the other, be it of
    /// metadata or of bytes. A memory disk has none
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    disk_latency: Option<Duration>,
    /// How long a disk goes on serving without hearing from the metadata server, 5s to 600s. If a
    /// disk cannot be reached, a change that ends somebody's access to what is on it is answered
    /// when this time is over, at the latest; by then the disk refuses everything, until it hears
    /// from the metadata server again
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_trust)]
    trust: TrustInterval,
    /// How requests to the disks of a new volume are protected: by seals, by seals and encryption,
    /// or not at all [default: secure]
    #[arg(long, value_name = "secure|private|off", value_parser = parse_setup)]
    setup: Option<Setup>,
    #[command(flatten)]
    listening: Listening,
    #[command(flatten)]
    archive: ServerArchive,
    #[command(flatten)]
    nfs: Nfs,
}

/// A volume in a directory, opened.
struct Volume {
    id: VolumeId,
    engine: Arc<dyn Engine>,
    disks: Vec<Opened>,
}

/// One of its disks.
struct Opened {
    key: DiskKeyFile,
    store: Store,
    identity: Identity,
    is_memory: bool,
}

/// Serves until a signal arrives, then lets calls in flight end.
///
/// # Errors
/// If the directory or an address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    let runtime = crate::runtime::start_storing()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<()> {
    // Before anything is made: from now on a signal ends the process in order.
    let mut ends = Ends::begin()?;
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let meta_config = args.listening.meta_config()?;
    let options = args.archive.options()?;
    let export = args.nfs.bind(&args.listening).await?;
    let Volume { id, engine, disks: opened } = args.open()?;

    let (mut disks, mut serving) = (Vec::new(), Vec::new());
    for (opened, behind) in opened.into_iter().zip(1..) {
        let (address, served) = opened.serve(args.listening.disk_config(behind)?, &clock).await?;
        disks.push(address);
        serving.push(served);
    }

    let owned = volume::take_trusting(&*engine, args.trust).with_context(|| args.cannot())?;
    let meta = args.dir.join(META_DIR);
    let shown = std::fs::canonicalize(&meta).unwrap_or(meta);
    let at = StoredIn { engine: format!("embedded:{}", shown.display()), keys: None };
    let options = (options, &clock);
    let meta = begin_meta((engine, owned), disks, (meta_config, at), options).await;
    let meta = meta.with_context(|| args.cannot())?;
    let (volume, address) = (id.to_text(), meta.server.addr());
    tracing::info!(dir = %args.dir.display(), volume, %address, "serving a volume");
    let inside = match &export {
        Some(_) => Some(bind(args.listening.inside_config(), meta.metadata.clone()).await?),
        None => None,
    };
    let inside_at = inside.as_ref().map(Server::addr);
    let metas: Vec<_> = std::iter::once(meta.server).chain(inside).collect();
    let ending: Vec<_> = metas.iter().map(Server::shutdown).collect();
    // On tasks of their own: they serve while the export is opened and closed.
    let mut served: JoinSet<()> = metas.into_iter().map(Server::run).collect();
    let until_end = async {
        match export.zip(inside_at) {
            Some((export, inside)) => {
                Box::pin(export.serve(id, (address, inside), &mut ends)).await
            }
            None => {
                ends.come().await;
                Ok(())
            }
        }
    };
    let done = tokio::select! {
        done = until_end => done,
        Some(failed) = served.join_next() => failed.context("the metadata server failed"),
    };
    ending.iter().chain(serving.iter().map(|disk| &disk.end)).for_each(Shutdown::begin);
    let devices: Vec<Arc<Device>> = serving.iter().map(|disk| Arc::clone(&disk.device)).collect();
    let ended = async {
        while served.join_next().await.is_some() {}
        for disk in serving {
            // One that has failed has ended.
            let _ = disk.serving.await;
        }
    };
    if clock.timeout(END_MAX, ended).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    let flush = |device: &Arc<Device>| device.store().flush();
    devices.iter().try_for_each(flush).context("what was written last may be lost")?;
    done
}

/// A disk that is served.
struct Served {
    device: Arc<Device>,
    end: Shutdown,
    serving: JoinHandle<()>,
}

impl Opened {
    /// Serves it from now on. Also returns its address.
    async fn serve(
        self,
        config: server::Config,
        clock: &Arc<dyn Clock>,
    ) -> Result<(DiskAddress, Served)> {
        let Opened { key: DiskKeyFile { disk, master, .. }, store, identity, is_memory } = self;
        let device_config = DeviceConfig::new(identity, master.clone(), Arc::clone(clock));
        let device = Arc::new(Device::start(device_config, store));
        if is_memory {
            tokio::spawn(measure_memory(Arc::downgrade(&device), Arc::clone(clock)));
        }
        let server = bind(config, DiskService::new(Arc::clone(&device))).await?;
        let public = format!(":{}", server.addr().port());
        let (address, bytes) = (reached_at(server.addr()), device.store().size());
        let end = server.shutdown();
        let served = Served { device, end, serving: tokio::spawn(server.run()) };
        Ok((DiskAddress { disk, bytes, address, public, is_memory, master }, served))
    }
}

impl Args {
    fn cannot(&self) -> String {
        format!("cannot serve {}", self.dir.display())
    }

    /// Opens the volume, or makes one. Continues what a start that was killed has left.
    fn open(&self) -> Result<Volume> {
        let key = self.key().with_context(|| self.cannot())?;
        let meta = self.dir.join(META_DIR);
        let dir: Arc<dyn Disk> = Arc::new(RealDisk::open(&self.dir)?);
        let slow = self.disk_latency.map(|takes| {
            let clock: Arc<dyn Clock> = Arc::new(RealClock);
            SlowDisk::new(Arc::clone(&dir), takes, clock)
        });
        let engine = open_embedded(&meta, slow.as_ref()).with_context(|| self.cannot())?;
        let id = key.volume;
        let setup = self.setup_of(&*engine, id)?;
        let size = self.disk_bytes(&*engine, id)?;
        let dir = slow.map_or(dir, |slow| Arc::new(slow));
        let opened = open_disk(&*dir, (key, setup), size, false);
        let opened = opened.with_context(|| {
            format!("cannot use the disk {}", self.dir.join(STORE_FILE).display())
        })?;
        let mut disks = vec![opened];
        if let Some((key, size)) = self.memory(&*engine, id).with_context(|| self.cannot())? {
            disks.push(open_disk(&MemDisk::new(), (key, setup), size, true)?);
        }
        Ok(Volume { id, engine, disks })
    }

    /// Key and size of the volume's memory disk, if it has one or is to have one.
    fn memory(&self, engine: &dyn Engine, id: VolumeId) -> Result<Option<(DiskKeyFile, u64)>> {
        let there = volume::disks(engine)?.into_iter().find(|(_, disk)| disk.is_memory);
        let wanted = self.memory.map(|size| size / BLOCK_BYTES * BLOCK_BYTES);
        let Some(bytes) = there.as_ref().map(|(_, disk)| disk.bytes).or(wanted) else {
            return Ok(None);
        };
        if wanted.is_some_and(|wanted| wanted != bytes) {
            let has = Bytes(bytes);
            bail!(Usage(format!("the volume has a memory disk of {has}: leave --memory out")));
        }
        demand_memory(bytes)?;
        let disk = there.as_ref().map_or(DiskId(DISK.0 + 1), |(disk, _)| *disk);
        let path = key_path(&self.dir, disk);
        if !path.exists() {
            // First its key, then the disk: a start that was killed between them is continued.
            let key = DiskKeyFile::new((id, disk), MasterKey::new(secret::random()), None);
            secret::write_new(&path, &key.to_text())?;
        }
        let key = read_key(&path, id, disk)?;
        if there.is_none() {
            let address = MEMORY.to_owned();
            let new = NewDisk { id: secret::random(), address, bytes, is_memory: true };
            let made = volume::add_disk(engine, &new)?;
            debug_assert_eq!(made, disk);
        }
        Ok(Some((key, bytes)))
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
        let key = DiskKeyFile::new((volume, DISK), master, None);
        secret::write_new(&unfinished, &key.to_text())?;
        std::fs::rename(&unfinished, &path)?;
        std::fs::File::open(&self.dir)?.sync_all()?;
        Ok(key)
    }

    /// The setup of the volume, which is made if it does not exist.
    fn setup_of(&self, engine: &dyn Engine, id: VolumeId) -> Result<Setup> {
        let made = (1, self.setup.unwrap_or(Setup::Secure));
        match volume::create_with_setup(engine, id, made, now()) {
            Ok(()) | Err(VolumeError::Exists) => {}
            Err(error) => return Err(error).with_context(|| self.cannot()),
        }
        // The disks of volumes that state none are secure.
        let stated = volume::setup(engine).with_context(|| self.cannot())?;
        let setup = stated.unwrap_or(Setup::Secure);
        if self.setup.is_some_and(|typed| typed != setup) {
            let name = setup.name();
            bail!(Usage(format!("the volume has the setup {name}: leave --setup out")));
        }
        warn_if_off(setup);
        Ok(setup)
    }

    /// Size of the volume's disk, which is made if it does not exist.
    fn disk_bytes(&self, engine: &dyn Engine, id: VolumeId) -> Result<u64> {
        let mut disks = volume::disks(engine).with_context(|| self.cannot())?;
        disks.retain(|(_, disk)| !disk.is_memory);
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
        let address = STORE_FILE.to_owned();
        let new = NewDisk { id: id.0, address, bytes, is_memory: false };
        let made = volume::add_disk(engine, &new).with_context(|| self.cannot())?;
        debug_assert_eq!(made, DISK);
        Ok(bytes)
    }
}

/// Opens a disk of the volume, or makes it.
fn open_disk(
    medium: &dyn Disk,
    (key, setup): (DiskKeyFile, Setup),
    size: u64,
    is_memory: bool,
) -> Result<Opened> {
    let identity = Identity { volume: key.volume, disk: key.disk, setup };
    let store = Store::open(medium, STORE_FILE, &identity, size)?;
    let store = if is_memory { store } else { store.with_room_ahead() };
    Ok(Opened { key, store, identity, is_memory })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use larder_meta::engine::{Owner, Writes};
    use larder_rpc::server::SourcePorts;

    use super::*;

    fn args(dir: &Path, size: Option<u64>) -> Args {
        Args {
            dir: dir.to_owned(),
            size,
            memory: None,
            disk_latency: None,
            trust: TrustInterval::default(),
            setup: None,
            listening: Listening {
                listen: "127.0.0.1:0".parse().unwrap(),
                cert: None,
                cert_key: None,
                allow: Vec::new(),
                insecure: false,
            },
            archive: ServerArchive::default(),
            nfs: Nfs::default(),
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
        let (volume, size) = (made.id, made.disks[0].store.size());
        drop(made);
        assert!(error(&args(&top, Some(11 << 20))).contains("leave --size out"));
        let found = args(&top, None).open().unwrap();
        assert_eq!((found.id, found.disks[0].store.size()), (volume, size));
        assert_eq!((size, found.disks.len()), (10 << 20, 1));
    }

    /// A volume gets its memory disk at any start, and has it from then on.
    #[test]
    fn a_volume_gets_a_memory_disk_once() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        drop(args(&top, Some(10 << 20)).open().unwrap());
        let with = |memory| Args { memory, ..args(&top, None) };
        let made = with(Some((3 << 20) + 7)).open().unwrap();
        let sizes = |volume: &Volume| -> Vec<u64> {
            volume.disks.iter().map(|disk| disk.store.size()).collect()
        };
        assert_eq!(sizes(&made), [10 << 20, 3 << 20]);
        assert_eq!(
            volume::space(&*made.engine).unwrap().bytes,
            10 << 20,
            "it is no room for files"
        );
        drop(made);
        for memory in [None, Some(3 << 20)] {
            assert_eq!(sizes(&with(memory).open().unwrap()), [10 << 20, 3 << 20]);
        }
        assert!(error(&with(Some(4 << 20))).contains("leave --memory out"));
        let key = top.join("disk2.key");
        let mode = std::fs::metadata(&key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// Each setup of a new volume, or none: it stays. A volume from before volumes had one is
    /// served as it was, `secure`.
    #[test]
    fn a_volume_is_made_with_a_setup_and_keeps_it() {
        for made in [None].into_iter().chain(Setup::ALL.map(Some)) {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path().join("volume");
            let with = |setup| Args { setup, memory: Some(1 << 20), ..args(&top, Some(1 << 20)) };
            let kept = made.unwrap_or(Setup::Secure);
            for typed in [made, None, Some(kept)] {
                let volume = with(typed).open().unwrap();
                assert_eq!(volume::setup(&*volume.engine).unwrap(), Some(kept));
                assert!(volume.disks.iter().all(|disk| disk.identity.setup == kept));
            }
            let others = || Setup::ALL.into_iter().filter(|other| *other != kept).map(Some);
            let line = format!("the volume has the setup {}: leave --setup out", kept.name());
            assert!(others().all(|other| error(&with(other)).contains(&line)));
            if kept == Setup::Secure {
                let volume = with(None).open().unwrap();
                let owner = volume.engine.view().unwrap().get(b"w").unwrap();
                // In format 2, with the number of the next file.
                let before = [&2_u32.to_be_bytes()[..], &volume.id.0, &2_u64.to_be_bytes()];
                let writes = Writes::from([(b"v".to_vec(), Some(before.concat()))]);
                let owner = Owner { key: b"w".to_vec(), value: owner };
                volume.engine.commit(&writes, &owner).unwrap();
                drop(volume);
                let volume = with(None).open().unwrap();
                assert_eq!(volume::setup(&*volume.engine).unwrap(), None);
                assert!(volume.disks.iter().all(|disk| disk.identity.setup == kept));
                drop(volume);
                assert!(others().all(|other| error(&with(other)).contains(&line)));
            }
        }
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

    /// Killed after the key was begun, or made: the next start continues.
    #[test]
    fn a_start_that_was_killed_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("volume");
        make_private(&top, "directory").unwrap();
        std::fs::write(top.join("disk1.new"), b"lard").unwrap();
        let key = args(&top, None).key().unwrap();
        assert!(!top.join("disk1.new").exists());
        assert_eq!(args(&top, Some(1 << 20)).open().unwrap().disks[0].key, key);
    }

    #[test]
    fn beyond_this_machine_there_is_tls() {
        let mut listening = args(Path::new("/nowhere"), None).listening;
        assert!(listening.meta_config().unwrap().tls.is_none());
        listening.listen = "192.0.2.1:2050".parse().unwrap();
        assert!(format!("{:#}", listening.meta_config().err().unwrap()).contains("--cert"));
        assert_eq!(listening.disk_config(1).unwrap().listen.port(), 2051);
    }

    /// The metadata server in this process calls them.
    #[test]
    fn the_disks_admit_their_own_process_whoever_else_may_call() {
        let mut listening = args(Path::new("/nowhere"), None).listening;
        listening.allow = vec!["198.51.100.0/24".parse().unwrap()];
        for (listen, own) in [("192.0.2.1:2050", "192.0.2.1"), ("0.0.0.0:2050", "127.0.0.1")] {
            listening.listen = listen.parse().unwrap();
            let allow = listening.disk_config(1).unwrap().allow;
            let admits = |from: &str| {
                let from = from.parse().unwrap();
                allow.iter().any(|network| network.contains(from))
            };
            assert!(admits(own) && admits("198.51.100.7"), "{listen}");
            assert!(!admits("192.0.2.2"), "{listen}");
        }
        let inside = listening.inside_config();
        assert!(inside.listen.ip().is_loopback() && inside.source_ports == SourcePorts::Reserved);
        assert_eq!(inside.allow, larder_nfsd::Network::loopback());
    }
}
