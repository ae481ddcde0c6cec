//! `larder meta`: the metadata server of a volume whose disks are served by `larder disk`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_io::{Clock, RealClock};
use larder_meta::Options;
use larder_meta::engine::{Engine, EngineError};
use larder_meta::volume::{self, Owned, VolumeError};

use crate::error::Usage;
use crate::log;
use crate::options::{parse_rate, parse_span};
use crate::volume::{END_MAX, Ends, Kept, Listening, begin_meta};

/// How often a standby looks whether the volume is free.
const LOOK: Duration = Duration::from_millis(500);
/// Least time after which another may take over: an owner renews its term four times in it.
const TAKE_OVER_MIN: Duration = Duration::from_secs(1);

/// Arguments of `larder meta`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The volume is made by larder volume create, its disks are added by larder disk enrol. A disk that does not answer \
holds up what lies on it, and nothing else. As with larder serve, only root of an allowed machine may call unless --insecure is given, and beyond \
this machine the metadata server speaks TLS only.\n\nWith postgres: the metadata lies in a database, as libpq names it (postgres://USER@HOST/DATABASE, or KEY=VALUE pairs); its \
password in ~/.pgpass or the file that passfile= or PGPASSFILE names, which only its owner may read. The server is one of this machine. One process at a time has the volume: another one waits \
until the first has not renewed its hold for the time of --take-over, by the database's clock, and with --standby for as long as it takes; it has a copy of the keys. Clients are told of both: \
larder://ONE,OTHER/.\n\nExample:\n  larder volume create --engine embedded:/srv/meta\n  larder disk enrol /etc/larder/disk1.key --engine embedded:/srv/meta --address 192.0.2.2:2051 --size 1T\n  larder meta --engine embedded:/srv/meta --listen 192.0.2.1:2050 --cert /etc/larder/cert.pem --cert-key /etc/larder/key.pem\n  larder meta --engine postgres:///volumes --keys /etc/larder/keys"
)]
pub(crate) struct Args {
    #[command(flatten)]
    kept: Kept,
    #[command(flatten)]
    listening: Listening,
    /// Wait while another metadata server has the volume, and take it over when that has gone; it
    /// listens from then on (postgres:)
    #[arg(long)]
    standby: bool,
    /// After how long without a sign of life another may take the volume over; clients wait for so
    /// long (postgres:)
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_span)]
    take_over: Duration,
    /// How fast to copy what disks have missed from others that have the same blocks, as 25MB/s
    #[arg(long, value_name = "RATE", default_value = "100MB/s", value_parser = parse_rate)]
    resilver: u64,
}

/// Serves until a signal comes, then lets what is begun end.
///
/// # Errors
/// If the volume or an address cannot be used, or another process took the volume over.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.take_over < TAKE_OVER_MIN {
        bail!(Usage("--take-over: use 1s or more".to_owned()));
    }
    log::begin(None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        // Before anything is changed: a signal meanwhile is then an orderly end.
        let mut ends = Ends::begin()?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let engine = args.kept.open(args.take_over)?;
        // What is wrong is told now, and not by a standby when it is needed.
        args.listening.meta_config()?;
        args.kept.disks(&*engine)?;
        let copies = volume::copies(&*engine)?;
        // Without any disk a volume has names only, whatever it keeps.
        if (1..copies.copies).contains(&copies.disks.len()) {
            bail!(
                "the volume keeps {} copies of each block, and has {} disks: add more by larder disk enrol",
                copies.copies,
                copies.disks.len()
            );
        }
        let owned = tokio::select! {
            taken = take(&*engine, args.standby, &*clock) => taken?,
            () = ends.come() => return Ok(()),
        };
        let served = serve(args, (&engine, &owned), &clock, &mut ends).await;
        if served.is_err() {
            owned.release(&*engine);
        }
        served
    })
}

/// Takes the volume. If its owner was killed, that waits for the end of the term; a standby waits
/// for as long as the owner lives.
async fn take(engine: &dyn Engine, is_standby: bool, clock: &dyn Clock) -> Result<Owned> {
    let mut has_waited = false;
    loop {
        let pause = match volume::take(engine) {
            Err(VolumeError::Owned(left)) if is_standby => left.min(LOOK),
            Err(VolumeError::Engine(EngineError::Away(_))) if is_standby => LOOK,
            // Once that has passed and it is not over, somebody has renewed it.
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
    let disks = args.kept.disks(&**engine)?;
    let count = disks.len();
    let config = args.listening.meta_config()?;
    let volume = (Arc::clone(engine), owned.clone());
    let options = Options { resilver_rate: args.resilver, ..Options::default() };
    let meta = begin_meta(volume, disks, config, (options, clock)).await?;
    tracing::info!(disks = count, address = %meta.server.addr(), "serving a volume's metadata");
    let (end, metadata) = (meta.server.shutdown(), meta.metadata.clone());
    let mut served = std::pin::pin!(meta.server.run());
    tokio::select! {
        () = &mut served => {}
        () = ends.come() => {}
        // Clients come again to whoever serves the volume next, and are told what became of theirs.
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
