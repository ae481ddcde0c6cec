//! `larder conflicts`: what was done on this machine and could not be done so at the server. It
//! asks the daemon of a live mount, or opens the cache.

use std::path::Path;

use anyhow::{Result, ensure};

use super::cache::Target;
use super::{print, print_json};
use crate::control::{Items, Nowhere, Request};
use crate::mountpoint;
use crate::report::Conflict;
use crate::runtime_dir::RuntimeDir;

/// Arguments of `larder conflicts`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Somebody else has made or changed the same: both are kept, ours as NAME.conflict-HOST-TIME; or aside in the cache\n\
directory, where the server takes no such file. Each is listed until it is cleared, with its number, and the time at which it was found. Clearing\n\
touches no file.\n\n\
Example:\n  larder conflicts /mnt/projects\n  larder conflicts /mnt/projects --clear 3"
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Forget the conflict with this number, or all
    #[arg(long, value_name = "N|all", value_parser = parse_which)]
    clear: Option<Which>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which conflicts are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    One(u64),
    All,
}

fn parse_which(text: &str) -> Result<Which, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Which::All),
        (_, Ok(number)) => Ok(Which::One(number)),
        (_, Err(_)) => Err("neither a number nor all".to_owned()),
    }
}

/// Lists conflicts, or clears them.
///
/// # Errors
/// If there is no such cache, if its disk fails, or if there is no conflict with the number.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(which) = args.clear {
        let number = match which {
            Which::One(number) => Some(number),
            Which::All => None,
        };
        let request = Request::ClearConflicts { number };
        let cleared: u64 = args.target.ask(&request, &mut Nowhere)?;
        ensure!(cleared > 0 || number.is_none(), "there is no conflict with that number");
        return if args.json {
            print_json(&cleared)
        } else {
            print(&format!("{cleared} cleared\n"))
        };
    }
    let mut items = Items::default();
    args.target.ask::<serde_json::Value>(&Request::Conflicts, &mut items)?;
    let all = items.0.into_iter().map(serde_json::from_value);
    let mut all = all.collect::<Result<Vec<Conflict>, _>>()?;
    for file in all.iter_mut().filter_map(|one| one.set_aside.as_mut()) {
        // A daemon tells whole paths.
        *file = args.target.path.join(&*file).to_string_lossy().into_owned();
    }
    if args.json {
        return print_json(&all);
    }
    let at = mountpoint_of(&args.target.path)?;
    all.into_iter().try_for_each(|one| print(&format!("{}\n", one.at(&at).numbered())))
}

/// The mountpoint if the path is one of ours; otherwise nothing.
fn mountpoint_of(typed: &Path) -> Result<String> {
    let mountpoint = mountpoint::resolve(typed)?;
    let is_ours = RuntimeDir::open()?.get(&mountpoint).is_some();
    Ok(if is_ours { mountpoint.display().to_string() } else { String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_is_a_number_or_all() {
        assert_eq!(parse_which("7"), Ok(Which::One(7)));
        assert_eq!(parse_which("all"), Ok(Which::All));
        assert!(parse_which("some").is_err());
    }
}
