//! `larder offline` and `larder online`: a mount continues to work without its server, and with it
//! again.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::cache::Shown;
use super::sync::SILENCE_MAX;
use super::{Target, print, print_json};
use crate::control::{Request, call};
use crate::report::{Conflict, Offline};
use crate::runtime_dir::RuntimeDir;

/// Arguments of `larder offline`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs a mount with -o offline. What is cached is answered at once; files, directories and links are made, and \
cached files written, on this machine; what needs the server fails with ETIMEDOUT. Holds for later mounts with \
the same cache, until larder online. A server that does not answer has the same effect by itself, until it is back.\n\n\
Example:\n  larder offline /mnt/projects"
)]
pub(crate) struct OfflineArgs {
    #[command(flatten)]
    mount: Args,
}

/// Arguments of `larder online`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The server gets what was changed here meanwhile. Where somebody else has changed the same, both are kept, and \
listed here and by larder conflicts. Exit code 0 tells that the server has everything.\n\n\
Example:\n  larder online /mnt/projects"
)]
pub(crate) struct OnlineArgs {
    #[command(flatten)]
    mount: Args,
}

#[derive(Debug, clap::Args)]
struct Args {
    /// The mount, or a path in it
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Works without the server from now on.
///
/// # Errors
/// If MNT is in no mount of ours, or in one that does not work without its server.
pub(crate) fn offline(args: &OfflineArgs) -> Result<()> {
    let (told, shown) = ask(&args.mount, true)?;
    if args.mount.json {
        return print_json(&told);
    }
    print(&format!("{shown}: works without its server until larder online\n"))
}

/// Works with the server again.
///
/// # Errors
/// As [`offline`]; or if the server did not take everything.
pub(crate) fn online(args: &OnlineArgs) -> Result<()> {
    let (told, shown) = ask(&args.mount, false)?;
    let Offline { is_away, synced, conflicts, .. } = &told;
    if args.mount.json {
        print_json(&told)?;
    } else if *is_away {
        print(&format!(
            "{shown}: the server does not answer; it is used as soon as it does, and gets what it lacks ({})\n",
            synced.left
        ))?;
    } else {
        print(&format!("{shown}: the server has what was changed here ({})\n", synced.before))?;
        for conflict in conflicts {
            print(&format!("  {}\n", conflict.clone().at(&shown).numbered()))?;
        }
    }
    if let Some(why) = &synced.refused {
        bail!(
            "{} did not reach the server: {why}; it is kept, and sent when it can be",
            synced.left
        );
    }
    Ok(())
}

fn ask(args: &Args, offline: bool) -> Result<(Offline, String)> {
    let target = Target::around(&RuntimeDir::open()?, &args.mountpoint)?;
    let shown = target.mountpoint.display().to_string();
    let request = Request::Offline { offline };
    let answer = call(&target.socket, &request, SILENCE_MAX, &mut Shown::new(args.json));
    let (answer, _) = answer.with_context(|| shown.clone())?;
    let mut told: Offline = serde_json::from_value(answer)?;
    if told.conflicts_total > told.conflicts.len() as u64
        && let Some(first) = told.conflicts.first().map(|first| first.number)
        && let Ok(all) = target.ask_each::<Conflict>(&Request::Conflicts)
    {
        told.conflicts = all.into_iter().filter(|one| one.number >= first).collect();
    }
    Ok((told, shown))
}
