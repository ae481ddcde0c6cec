//! `larder meta`: the metadata server of a volume whose disks are served by `larder disk`.

use std::sync::Arc;

use anyhow::{Context, Result};
use larder_io::{Clock, RealClock};

use crate::log;
use crate::volume::{END_MAX, Ends, Kept, Listening, begin_meta};

/// Arguments of `larder meta`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The volume is made by larder volume create, its disks are added by larder disk enrol. A disk that does not answer \
holds up what lies on it, and nothing else. As with larder serve, only root of an allowed machine may call unless --insecure is given, and beyond \
this machine the metadata server speaks TLS only.\n\nExample:\n  larder volume create --engine embedded:/srv/meta\n  larder disk enrol /etc/larder/disk1.key --engine embedded:/srv/meta --address 192.0.2.2:2051 --size 1T\n  larder meta --engine embedded:/srv/meta --listen 192.0.2.1:2050 --cert /etc/larder/cert.pem --cert-key /etc/larder/key.pem"
)]
pub(crate) struct Args {
    #[command(flatten)]
    kept: Kept,
    #[command(flatten)]
    listening: Listening,
}

/// Serves until a signal comes, then lets what is begun end.
///
/// # Errors
/// If the volume or an address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<()> {
    // Before anything is changed: a signal meanwhile is then an orderly end.
    let mut ends = Ends::begin()?;
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let config = args.listening.meta_config()?;
    let engine = args.kept.open()?;
    let disks = args.kept.disks(&*engine)?;
    let count = disks.len();
    let meta = begin_meta(engine, disks, config, &clock).await?;
    tracing::info!(disks = count, address = %meta.server.addr(), "serving a volume's metadata");
    let end = meta.server.shutdown();
    let mut served = std::pin::pin!(meta.server.run());
    tokio::select! {
        () = &mut served => {}
        () = ends.come() => {}
    }
    end.begin();
    if clock.timeout(END_MAX, served).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    Ok(())
}
