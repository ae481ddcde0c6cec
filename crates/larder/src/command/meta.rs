//! `larder meta`: the metadata server of a volume whose disks are served by `larder disk`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use larder_io::{Clock, RealClock};
use larder_meta::Options;
use larder_meta::disks::TrustInterval;
use larder_meta::engine::{Engine, EngineError};
use larder_meta::volume::{self, Owned, VolumeError};

use crate::archive::ServerArchive;
use crate::error::Usage;
use crate::log;
use crate::options::{parse_rate, parse_span};
use crate::servers;
use crate::signals::Ends;
use crate::volume::{END_MAX, Listening, Storage, StoredIn, begin_meta, parse_trust};

/// How often a standby checks whether the volume is free.
const LOOK: Duration = Duration::from_millis(500);
/// Least time after which another server may take over: an owner renews its term four times in it.
const TAKE_OVER_MIN: Duration = Duration::from_secs(1);

/// Arguments of `larder meta`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Make the volume with larder volume create, and add disks with larder disk enrol. A disk that \
does not answer delays only calls for data on it. As with larder serve, only root of an \
allowed machine may call unless --insecure is given, and beyond this machine the metadata \
server speaks TLS only.\n\nWith postgres:, the metadata is in a database, named as for libpq \
(postgres://USER@HOST/DATABASE, or KEY=VALUE pairs). Its password is in ~/.pgpass or in the \
file that passfile= or PGPASSFILE names, which only its owner may be able to read. A \
database server on another machine is reached by TLS: add sslmode=verify-full and \
sslrootcert=FILE. One process at a time owns the volume. Another \
process waits until the owner has not renewed its term for the time of --take-over, by the \
database's clock; with --standby it waits for as long as necessary. The other process needs \
a copy of the keys. Give clients both addresses: larder://ONE,OTHER/.\n\nExample:\n  larder volume create --engine embedded:/srv/meta\n  larder disk enrol /etc/larder/disk1.key --engine embedded:/srv/meta --address 192.0.2.2:2051 --size 1T\n  larder meta --engine embedded:/srv/meta --listen 192.0.2.1:2050 --cert /etc/larder/cert.pem --cert-key /etc/larder/key.pem\n  larder meta --engine postgres:///volumes --keys /etc/larder/keys\n  larder meta --engine embedded:/srv/meta --archive s3://backup/office --archive-credentials /etc/larder/archive\n  larder meta --engine embedded:/srv/meta --archive s3://volume --durable archive"
)]
pub(crate) struct Args {
    #[command(flatten)]
    storage: Storage,
    #[command(flatten)]
    listening: Listening,
    #[command(flatten)]
    archive: ServerArchive,
    /// Wait while another metadata server owns the volume, and take the volume over when that
    /// server is gone; listen only from then on (postgres:)
    #[arg(long)]
    standby: bool,
    /// How long the owner may be silent before another server may take the volume over; clients
    /// wait for that long (postgres:)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_span)]
    take_over: Duration,
    /// How long a disk goes on serving without hearing from the metadata server, 5s to 600s. If a
    /// disk cannot be reached, a change that ends somebody's access to what is on it is answered
    /// when this time is over, at the latest; by then the disk refuses everything, until it hears
    /// from the metadata server again
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_trust)]
    trust: TrustInterval,
    /// How fast to copy blocks that disks have missed from the other disks of their set, as in
    /// 25MB/s
    #[arg(long, value_name = "RATE", default_value = "100MB/s", value_parser = parse_rate)]
    resilver: u64,
}

/// Serves until a signal arrives, then lets calls in flight end.
///
/// # Errors
/// If the volume or an address cannot be used, or another process took the volume over.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.take_over < TAKE_OVER_MIN {
        bail!(Usage("--take-over: use 1s or more".to_owned()));
    }
    log::begin(None)?;
    let runtime = crate::runtime::start()?;
    runtime.block_on(async {
        // Before anything is changed: from now on a signal ends the process in order.
        let mut ends = Ends::begin()?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        args.archive.options()?;
        let engine = args.storage.open(args.take_over)?;
        // Report errors now, and not when a standby is needed.
        args.listening.meta_config()?;
        args.storage.disks(&*engine)?;
        let copies = volume::copies(&*engine)?;
        // Without any disk a volume has only names, however many copies it is to keep.
        let disks = copies.disks.values().filter(|disk| !disk.is_memory).count();
        if (1..copies.copies).contains(&disks) {
            bail!(
                "the volume keeps {} copies of each block, and has {disks} disks: add more by larder disk enrol",
                copies.copies,
            );
        }
        let standing_by = args.standby.then(|| {
            servers::answering(|runtime| servers::answer_for_standby(runtime, args.listening.listen))
        });
        let owned = tokio::select! {
            taken = take(args, &*engine, &*clock) => taken?,
            () = ends.come() => return Ok(()),
        };
        drop(standing_by);
        let served = serve(args, (&engine, &owned), &clock, &mut ends).await;
        if served.is_err() {
            owned.release(&*engine);
        }
        served
    })
}

/// Takes the volume. If its owner was killed, this waits for the end of the term; a standby waits
/// for as long as the owner lives.
async fn take(args: &Args, engine: &dyn Engine, clock: &dyn Clock) -> Result<Owned> {
    let (is_standby, mut has_waited) = (args.standby, false);
    loop {
        let pause = match volume::take_trusting(engine, args.trust) {
            Err(VolumeError::Owned(left)) if is_standby => left.min(LOOK),
            Err(VolumeError::Engine(EngineError::Away(_))) if is_standby => LOOK,
            // If the time has passed and the term is not over, a live owner has renewed it.
            Err(VolumeError::Owned(left)) if !has_waited => left,
            Err(VolumeError::Owned(_)) => {
                bail!("another process has the volume: end that, or wait for its end by --standby");
            }
            done => return Ok(done?),
        };
        if !has_waited && is_standby {
            tracing::info!("standing by: another process has the volume");
        }
        has_waited = true;
        clock.sleep_until(clock.instant() + pause).await;
    }
}

async fn serve(
    args: &Args,
    (engine, owned): (&Arc<dyn Engine>, &Owned),
    clock: &Arc<dyn Clock>,
    ends: &mut Ends,
) -> Result<()> {
    let disks = args.storage.disks(&**engine)?;
    let count = disks.len();
    let config = args.listening.meta_config()?;
    let volume = (Arc::clone(engine), owned.clone());
    let options = Options { resilver_rate: args.resilver, ..args.archive.options()? };
    let at = StoredIn { engine: args.storage.shown()?, keys: Some(args.storage.keys()?) };
    let meta = begin_meta(volume, disks, (config, at), (options, clock)).await?;
    tracing::info!(disks = count, address = %meta.server.addr(), "serving a volume's metadata");
    let (end, metadata) = (meta.server.shutdown(), meta.metadata.clone());
    let mut served = std::pin::pin!(meta.server.run());
    tokio::select! {
        () = &mut served => {}
        () = ends.come() => {}
        // Clients reconnect to the server that serves the volume next, and learn there the outcome
        // of their calls.
        why = metadata.over() => bail!("the volume is not served any more: {why}"),
    }
    end.begin();
    let ended = async {
        served.await;
        metadata.end().await;
    };
    if clock.timeout(END_MAX, ended).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    Ok(())
}
