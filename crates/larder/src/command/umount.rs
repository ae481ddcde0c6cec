//! `larder umount`: has the daemon send what the server lacks, for as long as the server takes it;
//! then unmounts, and returns within [`RETURN_WITHIN`] whatever the server does.
//!
//! It asks the daemon first. If the daemon is dead or hung, the command itself detaches the mount
//! from the name space (`MNT_DETACH`): no lookup finds it any more, and the kernel releases the
//! rest when the last open file is closed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use serde_json::Value;

use super::cache::Shown;
use super::print;
use crate::clock::Since;
use crate::control::{
    CallError, Nowhere, Progress, Request, Sink, call, daemon_lives, wait_for_exit,
};
use crate::mountpoint;
use crate::report::Status;
use crate::runtime_dir::RuntimeDir;
use crate::unmount::{How, unmount};

/// Bound of the rest of the command once nothing more is sent.
const RETURN_WITHIN: Duration = Duration::from_secs(5);

/// The server takes nothing any more if nothing came from it for so long: one that syncs a disk
/// is often silent for a second.
const STANDS_STILL: Duration = Duration::from_secs(3);

/// Part of that reserved for detaching by ourselves.
const DETACH_TAKES: Duration = Duration::from_millis(500);

/// Shortest time that an answer is given to arrive.
const ANSWER_TAKES: Duration = Duration::from_millis(50);

/// Arguments of `larder umount`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Waits until the server has what was written, and shows how far that is, for as long as it \
goes on. If the server says nothing for 3 seconds, or the daemon is dead, the mount is taken away \
without it, within 5 seconds more. What the server lacks then is sent by the next mount with the same \
cache, and the exit code is 1. With --detach that is what you want, and the exit code is 0.\n\nExample:\n  larder \
umount /mnt\n  larder umount --detach /mnt"
)]
pub(crate) struct Args {
    /// The mount
    #[arg(value_name = "MNT", required_unless_present = "pid")]
    mountpoint: Option<PathBuf>,
    /// End a detached mount that is still served: the process id of its daemon, as `larder status`
    /// shows it
    #[arg(long, value_name = "PID", conflicts_with = "mountpoint")]
    pid: Option<u32>,
    /// Detach the mount although files are open on it; they stay usable until they are closed
    #[arg(short, long)]
    lazy: bool,
    /// Send nothing: what the server lacks stays in the cache on disk, and the next mount with
    /// that cache sends it
    #[arg(long, conflicts_with = "pid")]
    detach: bool,
}

/// Unmounts.
///
/// # Errors
/// If it is no mount of ours, if files are open on it (unless `--lazy`), if data could not be sent
/// to the server (unless `--detach`).
pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = RuntimeDir::open()?;
    let typed = match (&args.mountpoint, args.pid) {
        (_, Some(pid)) => return end_daemon(&runtime, pid),
        (Some(typed), None) => typed,
        (None, None) => bail!("say which mount"),
    };
    let mountpoint = mountpoint::resolve(typed)?;
    let mounted = is_ours(&mountpoint)?;
    let recorded = runtime.get(&mountpoint).is_some();
    ensure!(mounted || recorded, "{} is no larder mount", mountpoint.display());

    if !args.detach {
        send(&runtime.socket(&mountpoint));
    }
    let begin = Since::now();
    let patience = RETURN_WITHIN - DETACH_TAKES;
    let request = Request::Unmount { lazy: args.lazy, detach: args.detach };
    let left = || patience.saturating_sub(begin.elapsed());
    let asked = loop {
        let silence_max = left().max(ANSWER_TAKES);
        match call(&runtime.socket(&mountpoint), &request, silence_max, &mut Nowhere) {
            // No process listens any more, or the next worker will answer.
            Err(CallError::BrokeOff) if !left().is_zero() => {}
            answered => break answered,
        }
    };
    let mut stays = matches!(asked, Err(CallError::Hung(_)));
    let told = match asked {
        Ok((lost, connection)) => {
            stays = !wait_for_exit(connection, left());
            let lost = lost.as_str().map(str::to_owned);
            if let (Some(text), true) = (&lost, args.detach) {
                print(&format!("{}: {text}; the next mount sends it\n", mountpoint.display()))?;
            }
            lost.filter(|_| !args.detach)
        }
        Err(CallError::Failed(text)) if is_ours(&mountpoint)? => {
            bail!("{}: {text}", mountpoint.display())
        }
        // It was ending already.
        Err(CallError::Failed(_)) => None,
        // The next mount reports, from its cache, what this one had not written back.
        Err(CallError::Dead) => None,
        Err(CallError::BrokeOff) => Some("its daemon ended before it answered".to_owned()),
        Err(CallError::Hung(how)) => Some(format!("the daemon did not answer ({how})")),
    };
    if is_ours(&mountpoint)? {
        unmount(&mountpoint, How::Detach)
            .with_context(|| format!("cannot unmount {}", mountpoint.display()))?;
    }
    if stays && daemon_lives(&runtime.socket(&mountpoint)) {
        // The daemon serves the processes that have files open, and can be found by its process id.
        runtime.detach(&mountpoint)?;
    }
    runtime.remove(&mountpoint);
    match told {
        None => Ok(()),
        Some(text) => bail!("{} is unmounted, but {text}", mountpoint.display()),
    }
}

/// Ends the daemon of a mount that is out of the name space.
fn end_daemon(runtime: &RuntimeDir, pid: u32) -> Result<()> {
    let listed = runtime.list()?.into_iter().find(|record| record.pid == pid);
    let record = listed.with_context(|| format!("process {pid} is no daemon of a larder mount"))?;
    let shown = record.mountpoint.display();
    ensure!(
        record.is_detached || !is_ours(&record.mountpoint)?,
        "process {pid} serves the mount on {shown}: larder umount {shown}"
    );
    let patience = RETURN_WITHIN - DETACH_TAKES;
    let request = Request::Unmount { lazy: false, detach: false };
    match call(&runtime.socket_of(&record), &request, patience, &mut Nowhere) {
        Ok((lost, connection)) => {
            wait_for_exit(connection, patience);
            lost.as_str().map_or(Ok(()), |lost| bail!("{shown} is ended, but {lost}"))
        }
        Err(CallError::Dead | CallError::BrokeOff) => Ok(()),
        Err(CallError::Failed(text) | CallError::Hung(text)) => bail!("{shown}: {text}"),
    }
}

/// Has the daemon send what the server lacks, and waits while the server answers. The end of the
/// mount reports what did not get there.
fn send(socket: &Path) {
    // A daemon that does not answer this would not answer the rest.
    let Some(heard) = heard(socket) else { return };
    let mut sending = Sending { socket, shown: Shown::new(false), heard, changed: Since::now() };
    let request = Request::Sync { path: PathBuf::new() };
    let _ = call(socket, &request, STANDS_STILL, &mut sending);
}

/// How much the mount has received from its server.
fn heard(socket: &Path) -> Option<u64> {
    let (status, _) = call(socket, &Request::Status, STANDS_STILL, &mut Nowhere).ok()?;
    let status: Status = serde_json::from_value(status).ok()?;
    Some(status.rpc.bytes_received)
}

/// Listens for as long as the server answers.
struct Sending<'a> {
    socket: &'a Path,
    shown: Shown,
    heard: u64,
    changed: Since,
}

impl Sink for Sending<'_> {
    fn progress(&mut self, progress: Progress) -> bool {
        if self.changed.elapsed() >= STANDS_STILL {
            match heard(self.socket) {
                Some(heard) if heard != self.heard => {
                    (self.heard, self.changed) = (heard, Since::now());
                }
                _ => return false,
            }
        }
        self.shown.progress(progress)
    }

    fn item(&mut self, item: Value) -> Result<()> {
        self.shown.item(item)
    }
}

fn is_ours(mountpoint: &Path) -> Result<bool> {
    Ok(mountpoint::mounted_at(mountpoint)?.is_some_and(|mount| mount.kind == mountpoint::KIND))
}
