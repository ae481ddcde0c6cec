//! `larder sync`: returns when the server has everything that was written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cache::Shown;
use super::{daemon_of, print};
use crate::control::{Request, call};
use crate::options::Bytes;
use crate::report::Synced;
use crate::runtime_dir::RuntimeDir;

/// Longest silence of a daemon that sends: it reports its progress several times a second.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Arguments of `larder sync`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Open files are sent too, including what the kernel itself wrote to them. Data that is \
written while the command waits may be left. With exit code 0 the server has everything on \
its disk. With exit code 1 larder keeps what the server lacks, and sends it when the server \
accepts it: larder cache ls --unsent lists it. Conflicts with what others changed meanwhile \
are told, and are no failure: larder conflicts lists them.\n\nExample:\n  larder sync /mnt/projects && echo safe"
)]
pub(crate) struct Args {
    /// Mounts, files and trees in them, or exports of a source, as in 127.0.0.1:12049 [default:
    /// all mounts of this user]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Waits until the server has what was written.
///
/// # Errors
/// If a path is in no mount of this user, or if the server did not take everything.
pub(crate) fn run(args: &Args) -> Result<()> {
    let runtime = RuntimeDir::open()?;
    let mut paths = args.paths.clone();
    if paths.is_empty() {
        paths = runtime.list()?.into_iter().map(|record| record.mountpoint).collect();
    }
    let mut done = Ok(());
    for path in paths {
        let synced = sync(&runtime, &path).with_context(|| path.display().to_string());
        // The others are sent all the same.
        done = match (done, synced) {
            (Ok(()), synced) => synced,
            (failed, Ok(())) => failed,
            (Err(first), Err(next)) => {
                eprintln!("larder: {next:#}");
                Err(first)
            }
        };
    }
    done
}

fn sync(runtime: &RuntimeDir, path: &Path) -> Result<()> {
    let (socket, below) = daemon_of(runtime, path)?;
    let request = Request::Sync { path: below };
    let (answer, _) = call(&socket, &request, SILENCE_MAX, &mut Shown::new(false))?;
    let Synced { before, left, refused, conflicts } = serde_json::from_value(answer)?;
    if conflicts > 0 {
        let shown = path.display();
        print(&format!(
            "{shown}: conflicts were found: {conflicts}; larder conflicts lists them\n"
        ))?;
    }
    if let Some(why) = refused {
        bail!(
            "{left} did not reach the server: {why}; it is kept, and sent when the server takes it"
        );
    }
    if before.files > 0 {
        print(&format!(
            "{}: {} files, {} sent\n",
            path.display(),
            before.files,
            Bytes(before.bytes)
        ))?;
    }
    Ok(())
}
