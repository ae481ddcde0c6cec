//! `larder rebuild`: makes lost files again, by their rules.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use larder_rebuild::Refusal;
use rustix::process::Signal;
use serde_json::Value;

use super::{Target, mount_of, print, print_json};
use crate::control::Request;
use crate::rebuild::{Library, Maker, Outcome, remade_as};
use crate::report::Remade;
use crate::runtime_dir::RuntimeDir;

/// Arguments of `larder rebuild`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A file is lost if its bytes were on memory disks only and these were restarted: reading it fails \
with ENOTRECOVERABLE. larder runs the rule that larder run or larder class rebuild gave the file, as \
its owner, in a sandbox that sees the rule's inputs and the directories of the system, without \
network. Lost inputs are made first. Files that are not lost are not touched.\n\n\
The exit code is 1 if a file stays lost.\n\nExample:\n  larder rebuild /mnt/project/build"
)]
pub(crate) struct Args {
    /// Files, and directories for what is in them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A process of larder waits, and the server has noticed what is lost
    #[arg(long, hide = true)]
    noticed: bool,
}

/// Makes files.
///
/// # Errors
/// If a path is in no mount, or cannot be read.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.noticed {
        // Whoever has us make files ends us by ending, or by being killed.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    let (mut told, mut is_lost, mut noticed) = (Vec::new(), false, BTreeSet::new());
    for path in &args.paths {
        let path = fs::canonicalize(path).with_context(|| path.display().to_string())?;
        let (root, _) = mount_of(&path)?;
        if !args.noticed && noticed.insert(root.clone()) {
            notice(&root);
        }
        let library = Library::of(&root);
        let maker = Maker::new(&library);
        for file in files(&path, &library)? {
            let owner = fs::symlink_metadata(&file).map_or(0, |seen| seen.uid());
            let remade = match owner != 0 && rustix::process::geteuid().is_root() {
                true => remade_as(owner, &file),
                false => tell(&file, maker.make(&file)),
            };
            is_lost |= remade.iter().any(|one| one.why.is_some());
            match args.json {
                true => told.extend(remade),
                false => remade.iter().try_for_each(say)?,
            }
        }
    }
    if args.json {
        print_json(&told)?;
    }
    Ok(if is_lost { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Has the mount's server look at its memory disks. If another user's daemon serves the mount, or
/// the server does not answer, what it has not noticed so far is not lost yet.
fn notice(root: &Path) {
    let target = RuntimeDir::open().map(|runtime| Target::around(&runtime, root));
    if let Ok(Ok(target)) = target
        && let Err(error) = target.ask::<Value>(&Request::LookForLosses)
    {
        tracing::debug!(%error, "the server was not asked what is lost");
    }
}

fn say(one: &Remade) -> Result<()> {
    match &one.why {
        None => print(&format!("made {}\n", one.path)),
        Some(why) => {
            eprintln!("larder: {} stays lost: {why}", one.path);
            Ok(())
        }
    }
}

fn tell(file: &Path, outcome: Result<Outcome, Refusal>) -> Vec<Remade> {
    let told = |path: &Path, outcome: &str, why| Remade {
        path: path.display().to_string(),
        outcome: outcome.to_owned(),
        why,
    };
    match outcome {
        Ok(Outcome::There) => Vec::new(),
        Ok(Outcome::Made(made)) => made.iter().map(|file| told(file, "made", None)).collect(),
        Err(refusal) => vec![told(file, refusal.word(), Some(refusal.to_string()))],
    }
}

/// The files to make: one that is named, and below a directory those with rules.
fn files(path: &Path, library: &Library) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let (mut found, mut dirs) = (Vec::new(), vec![path.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && entry.path() != library.root().join(".larder") {
                dirs.push(entry.path());
            } else if kind.is_file() && library.made(&entry.path())?.is_some() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
