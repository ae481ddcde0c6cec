//! `larder cache`: lists, verifies and trims a cache.
//!
//! The cache of a live mount belongs to its daemon, which the command asks over its socket; any
//! other cache is opened here. Only `warm` goes through the mount: reading a file is how it gets
//! into the cache.

mod warm;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{mount_of, print};
use crate::cache_dir;
use crate::clock::Since;
use crate::control::{Progress, Request, Sink, call, daemon_lives};
use crate::exported;
use crate::hoard::Hoarded;
use crate::maintenance::{Freed, Held, Verified, Warmed, carry_out};
use crate::mountpoint;
use crate::options::{Bytes, parse_size};
use crate::progress::{TimeLeft, line};
use crate::report::Status;
use crate::runtime_dir::{Record, RuntimeDir};

/// Longest silence of a daemon that works on its cache: culling reports nothing until it is done.
const SILENCE_MAX: Duration = Duration::from_secs(600);

/// Exit code of `ls --unsent` while there is something that the server does not have.
const FOUND: u8 = 3;

/// Arguments of `larder cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  larder cache verify /var/cache/larder/home")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the files that a cache holds, with the paths at which they were last seen
    #[command(
        after_help = "With --unsent, the exit code is 3 if there is such a file.\n\nExample:\n  larder cache ls /mnt --unsent\n  larder cache ls /mnt --json | jq -s 'map(.held_bytes) | add'"
    )]
    Ls {
        #[command(flatten)]
        target: Target,
        /// Only files that the server does not have completely
        #[arg(long)]
        unsent: bool,
        /// Print a line of JSON per file
        #[arg(long)]
        json: bool,
    },
    /// Check every checksum; wrong data is dropped, and fetched again when it is read
    #[command(
        after_help = "The exit code is 1 if a checksum was wrong.\n\nExample:\n  larder cache verify /var/cache/larder/home"
    )]
    Verify(Target),
    /// Remove the least valuable files
    #[command(after_help = "Example:\n  larder cache cull /mnt --to 5G")]
    Cull {
        #[command(flatten)]
        target: Target,
        /// Cull until the cache holds at most this much
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        to: u64,
    },
    /// Remove all data that can be fetched again
    #[command(after_help = "Example:\n  larder cache drop /mnt")]
    Drop(Target),
    /// Read files and trees into the cache of their mount
    #[command(after_help = "Example:\n  larder cache warm /mnt/projects/current")]
    Warm {
        /// Files and trees below a mount, or of an export, as in 127.0.0.1:12049/projects
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Exempt files and trees from culling, including what comes into the trees later
    #[command(
        after_help = "With --priority, they are fetched while nobody waits for the server, and looked at again every\n10 minutes (-o hoard=S): what has changed at the server is fetched anew. Trees with a larger\npriority get the cache's room first; larder status shows how much of each is here.\n\nExample:\n  larder cache pin --priority 100 /mnt/tools/compiler"
    )]
    Pin {
        /// Files and trees below a mount, or of an export, as in 127.0.0.1:12049/tools/compiler
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// Keep them whole and fresh, too; those with a larger number get room first (1 to 1000)
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
        priority: Option<u16>,
        /// Allow them to be culled again
        #[arg(long, conflicts_with = "priority")]
        undo: bool,
    },
}

/// Which cache to use.
#[derive(Debug, clap::Args)]
pub(super) struct Target {
    /// A mount, the address of an export, or a cache directory
    #[arg(value_name = "MNT|IP:PORT|DIR")]
    pub(super) path: PathBuf,
}

/// Carries out a cache command. `ls --unsent` exits with [`FOUND`] if it listed something.
///
/// # Errors
/// If there is no such cache, if its disk fails, if `verify` found something wrong.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Ls { target, unsent, json } => {
            let mut shown = Shown::new(*json);
            target.ask::<Value>(&Request::CacheLs { unsent: *unsent }, &mut shown)?;
            let found = *unsent && shown.items > 0;
            return Ok(if found { ExitCode::from(FOUND) } else { ExitCode::SUCCESS });
        }
        What::Verify(target) => {
            let Verified { files, chunks, bad_chunks } =
                target.ask(&Request::CacheVerify, &mut Shown::new(false))?;
            print(&format!("{files} files, {chunks} chunks, {bad_chunks} wrong\n"))?;
            ensure!(bad_chunks == 0, "wrong chunks were found and forgotten");
        }
        What::Cull { target, to } => target.free(&Request::CacheCull { bytes_target: *to })?,
        What::Drop(target) => target.free(&Request::CacheDrop)?,
        What::Warm { paths } => {
            let (exports, mounted): (Vec<_>, Vec<_>) =
                paths.iter().partition(|path| exported::named(path).is_some());
            let mounted: Vec<PathBuf> = mounted.into_iter().cloned().collect();
            if !mounted.is_empty() {
                warm::warm(&mounted)?;
            }
            let exports = exports.into_iter().filter_map(|path| exported::named(path));
            exports.into_iter().try_for_each(|(address, path)| warm_export(address, path))?;
        }
        What::Pin { paths, priority, undo } => {
            paths.iter().try_for_each(|path| pin(path, !undo, *priority))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Target {
    /// Asks the daemon that has the cache, or opens the cache.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        request: &Request,
        shown: &mut dyn Sink,
    ) -> Result<T> {
        let answer = match self.socket()? {
            Some(socket) => call(&socket, request, SILENCE_MAX, shown)?.0,
            None => {
                let cache = cache_dir::open_offline(&self.path)?;
                let answer = carry_out(&cache, request, shown);
                cache.close()?;
                answer?
            }
        };
        Ok(serde_json::from_value(answer)?)
    }

    fn free(&self, request: &Request) -> Result<()> {
        let Freed { files, bytes } = self.ask(request, &mut Shown::new(false))?;
        print(&format!("{files} files removed, {} freed\n", Bytes(bytes)))
    }

    /// The socket of the daemon that has this cache, if one has. The path may be a dead mount, so
    /// it is compared with the records before the file system is asked about it.
    fn socket(&self) -> Result<Option<PathBuf>> {
        let runtime = RuntimeDir::open()?;
        if let Some((address, _)) = exported::named(&self.path) {
            return Ok(Some(runtime.export_socket(address)));
        }
        let mountpoint = mountpoint::resolve(&self.path)?;
        if runtime.get(&mountpoint).is_some() {
            return Ok(Some(runtime.socket(&mountpoint)));
        }
        let shown = || format!("there is no cache at {}", self.path.display());
        let dir = self.path.canonicalize().with_context(shown)?;
        let holds =
            runtime.list()?.into_iter().filter(|record| record.cache.as_ref() == Some(&dir));
        let of_a_mount =
            holds.map(|record| runtime.socket_of(&record)).find(|socket| daemon_lives(socket));
        if of_a_mount.is_some() {
            return Ok(of_a_mount);
        }
        let has = |status: &Status| {
            status.cache.as_ref().is_some_and(|cache| Path::new(&cache.dir) == dir)
        };
        let exports = exported::all(&runtime)?.into_iter();
        Ok(exports.filter(|(_, status)| has(status)).map(|(socket, _)| socket).next())
    }
}

fn pin(path: &Path, pinned: bool, priority: Option<u16>) -> Result<()> {
    let runtime = RuntimeDir::open()?;
    let (socket, below) = match exported::named(path) {
        Some((address, below)) => (runtime.export_socket(address), below),
        None => {
            let (record, below) = cached_mount_of(path)?;
            (runtime.socket(&record.mountpoint), below)
        }
    };
    let hoarded = priority.map(|priority| {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let groups = rustix::process::getgroups().unwrap_or_default();
        let groups = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
        Hoarded { priority, uid, gid, groups, verified_sec: None }
    });
    let request = Request::CachePin { path: below, pinned, hoarded };
    call(&socket, &request, SILENCE_MAX, &mut Shown::new(false))
        .with_context(|| path.display().to_string())?;
    Ok(())
}

/// Our mount that contains a path, and the path below it; never touches the mount.
///
/// # Errors
/// If no mount of ours contains the path, or the mount has no cache on disk.
fn cached_mount_of(path: &Path) -> Result<(Record, PathBuf)> {
    let (mountpoint, below) = mount_of(path)?;
    let record = RuntimeDir::open()?.get(&mountpoint);
    let cached = record.filter(|record| record.cache.is_some());
    let none = || format!("the mount at {} has no cache on disk", mountpoint.display());
    Ok((cached.with_context(none)?, below))
}

/// Has an export read files and trees.
fn warm_export(address: SocketAddr, path: PathBuf) -> Result<()> {
    let (socket, request) =
        (RuntimeDir::open()?.export_socket(address), Request::CacheWarm { path });
    let (answer, _) = call(&socket, &request, SILENCE_MAX, &mut Shown::new(false))?;
    let Warmed { files, bytes, failed } = serde_json::from_value(answer)?;
    ensure!(
        failed == 0,
        "{failed} files and directories could not be read; the export's log has them"
    );
    print(&format!("{files} files, {} read\n", Bytes(bytes)))
}

/// The terminal: results as lines, progress as a bar if standard error is a terminal.
pub(super) struct Shown {
    json: bool,
    /// Results so far.
    items: u64,
    bar: Option<ProgressBar>,
    begin: Since,
    left: TimeLeft,
}

impl Shown {
    pub(super) fn new(json: bool) -> Shown {
        Shown { json, items: 0, bar: None, begin: Since::now(), left: TimeLeft::default() }
    }
}

impl Sink for Shown {
    fn progress(&mut self, progress: Progress) -> bool {
        self.left.see(self.begin.elapsed(), progress);
        let bar = self.bar.get_or_insert_with(|| progress_bar(progress));
        // What has no bytes is counted by its files.
        let (done, total) = match progress.bytes_total {
            Some(0) | None => (progress.files, progress.files_total),
            total => (progress.bytes, total),
        };
        total.iter().for_each(|total| bar.set_length(*total));
        bar.set_message(line(progress, &self.left));
        bar.set_position(done);
        true
    }

    fn item(&mut self, item: Value) -> Result<()> {
        self.items += 1;
        if self.json {
            return print(&format!("{item}\n"));
        }
        let held: Held = serde_json::from_value(item)?;
        let most = if held.unsent_bytes_is_bound { "at most " } else { "" };
        let unsent = format!("{most}{}", Bytes(held.unsent_bytes));
        let notes = match (held.pinned, held.dirty) {
            (false, false) => String::new(),
            (true, false) => "  (pinned)".to_owned(),
            (false, true) => format!("  ({unsent} unsent)"),
            (true, true) => format!("  (pinned, {unsent} unsent)"),
        };
        let (bytes, size) = (Bytes(held.held_bytes), Bytes(held.size));
        let path = held.path.unwrap_or_else(|| format!("file {}", held.number));
        print(&format!("{bytes:>10} of {size:>10}  {path}{notes}\n"))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar on standard error, if it is known how long it is, and the line beside it; not drawn if
/// that is no terminal.
fn progress_bar(progress: Progress) -> ProgressBar {
    let is_known = progress.bytes_total.or(progress.files_total).is_some();
    let line = if is_known { "{bar:20} {msg}" } else { "{msg}" };
    let bar = ProgressBar::no_length();
    ProgressStyle::with_template(line).map_or(bar.clone(), |style| bar.with_style(style))
}
