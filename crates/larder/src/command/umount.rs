//! `larder umount`: flush, unmount, and return within [`RETURN_WITHIN`] whatever the server does.
//!
//! The daemon is asked first. If it is dead or hung, the mount is detached from the name space by
//! ourselves (`MNT_DETACH`): it is gone for everyone who looks it up, and the kernel lets the rest
//! go when the last open file is closed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::control::{CallError, Nowhere, Request, call, wait_for_exit};
use crate::mountinfo;
use crate::runtime_dir::RuntimeDir;
use crate::unmount::{How, unmount};

/// Bound of the whole command.
const RETURN_WITHIN: Duration = Duration::from_secs(5);

/// Kept back from that for detaching by ourselves.
const DETACH_TAKES: Duration = Duration::from_millis(500);

/// Least time in which an answer may come.
const ANSWER_TAKES: Duration = Duration::from_millis(50);

/// Arguments of `larder umount`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Returns within 5 seconds: if the server does not answer, or the daemon is dead, the \
mount is detached.\n\nExample:\n  larder umount /mnt"
)]
pub(crate) struct Args {
    /// The mount
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Detach the mount although files are open on it; they stay usable until they are closed
    #[arg(short, long)]
    lazy: bool,
}

/// Unmounts.
///
/// # Errors
/// If it is no mount of ours, if files are open on it (unless `--lazy`), if data could not be brought
/// to the server.
pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let runtime = RuntimeDir::open()?;
    let mountpoint = mountinfo::resolve(&args.mountpoint)?;
    let mounted = is_ours(&mountpoint)?;
    let recorded = runtime.get(&mountpoint).is_some();
    ensure!(mounted || recorded, "{} is no larder mount", mountpoint.display());

    let patience = RETURN_WITHIN - DETACH_TAKES;
    let request = Request::Unmount { lazy: args.lazy };
    let left = || patience.saturating_sub(begin.elapsed());
    let asked = loop {
        let silence_max = left().max(ANSWER_TAKES);
        match call(&runtime.socket(&mountpoint), &request, silence_max, &mut Nowhere) {
            // Nobody listens any more, or the next worker will answer.
            Err(CallError::BrokeOff) if !left().is_zero() => {}
            answered => break answered,
        }
    };
    let told = match asked {
        Ok((lost, connection)) => {
            wait_for_exit(connection, left());
            lost.as_str().map(str::to_owned)
        }
        Err(CallError::Failed(text)) if is_ours(&mountpoint)? => {
            bail!("{}: {text}", mountpoint.display())
        }
        // It was ending already.
        Err(CallError::Failed(_)) => None,
        // What it had not written back is told by the next mount, from its cache.
        Err(CallError::Dead) => None,
        Err(CallError::BrokeOff) => Some("its daemon ended before it answered".to_owned()),
        Err(CallError::Hung(how)) => Some(format!("the daemon did not answer ({how})")),
    };
    if is_ours(&mountpoint)? {
        unmount(&mountpoint, How::Detach)
            .with_context(|| format!("cannot unmount {}", mountpoint.display()))?;
    }
    runtime.remove(&mountpoint);
    match told {
        None => Ok(()),
        Some(text) => bail!("{} is unmounted, but {text}", mountpoint.display()),
    }
}

fn is_ours(mountpoint: &Path) -> Result<bool> {
    Ok(mountinfo::mounted_at(mountpoint)?.is_some_and(|mount| mount.kind == mountinfo::KIND))
}
