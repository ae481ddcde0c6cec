//! `larder bench passthrough`: a directory behind FUSE and nothing else, which suite `mbfs`
//! measures as the least that any mount can cost. With `--disk-latency` it is as slow as a disk
//! instead, for a file system of this machine that is to have one.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_fuse::{Bare, MountOptions, mount};
use larder_io::{Arm, RealClock};

use crate::options::parse_span;
use crate::signals::Ends;

/// Arguments of `larder bench passthrough`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  larder bench passthrough /dev/shm/files /mnt")]
pub(super) struct Args {
    /// The directory; nobody else may change it meanwhile
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where to mount it
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// Each sync of a file takes this long, one after the other, and the kernel reads and writes
    /// no file itself
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    disk_latency: Option<Duration>,
}

/// Serves until a signal arrives or somebody unmounts.
///
/// # Errors
/// If it cannot be mounted.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let bare = match args.disk_latency {
        Some(takes) => Bare::slow(&args.dir, Arc::new(Arm::new(takes, Arc::new(RealClock)))),
        None => Bare::new(&args.dir),
    };
    let bare = bare.with_context(|| args.dir.display().to_string())?;
    let options = MountOptions {
        probe_dir: Some(args.dir.clone()),
        ..MountOptions::new(format!("passthrough:{}", args.dir.display()))
    };
    // Before anything is mounted: from now on a signal ends the process in order.
    let mut ends = {
        let _inside = runtime.enter();
        Ends::begin()?
    };
    let mounted = Arc::new(mount(Arc::new(bare), &args.mountpoint, &options, runtime.handle())?);
    let ending = Arc::clone(&mounted);
    runtime.spawn(async move {
        ends.come().await;
        let unmounted = tokio::task::spawn_blocking(move || ending.unmount()).await;
        if let Ok(Err(error)) = unmounted {
            eprintln!("larder: {error}");
        }
    });
    mounted.wait().context("the mount failed")?;
    Ok(ExitCode::SUCCESS)
}
