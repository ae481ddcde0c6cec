//! `larder class rebuild`: records by hand how files are made, and shows and removes such records.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use larder_rebuild::{Rule, RulePath};

use super::run::{How, keep, usual_environment};
use super::{mount_of, print};
use crate::error::Usage;
use crate::rebuild::{Library, here, input_of, output_of};

/// Arguments of `larder class rebuild`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "larder run finds the inputs by itself; here they are named. The command does not run now: it runs \
in the working directory when a file is lost, sees the inputs and the directories of the system, \
and has to make the files. The mount needs -o user_xattr.\n\n\
Example:\n  larder class rebuild /mnt/logs/summary --from /mnt/logs/all -- sh -c 'sort all > summary'"
)]
pub(crate) struct Args {
    /// Files of one volume
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the rules that the files have
    #[arg(long, conflicts_with_all = ["remove", "command", "inputs"])]
    show: bool,
    /// From now on nothing says how the files are made
    #[arg(long, conflicts_with_all = ["command", "inputs"])]
    remove: bool,
    /// A file that the command needs
    #[arg(long = "from", value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
    /// The command
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Carries it out.
///
/// # Errors
/// If a file is in no mount, or in another one than the first; if one cannot be read.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.show && !args.remove && args.command.is_empty() {
        let usage = "nothing to do: give -- CMD, --show or --remove";
        return Err(Usage(usage.to_owned()).into());
    }
    let canonical =
        |path: &PathBuf| fs::canonicalize(path).with_context(|| path.display().to_string());
    let files = args.files.iter().map(canonical).collect::<Result<Vec<_>>>()?;
    let (root, _) = mount_of(files.first().context("clap asks for one")?)?;
    let library = Library::of(&root);
    if args.show {
        return files.iter().try_for_each(|file| show(&library, file));
    }
    if args.remove {
        return files.iter().try_for_each(|file| library.forget_made(file));
    }
    let inputs = args.inputs.iter().map(canonical).collect::<Result<Vec<_>>>()?;
    keep(&library, &rule(args, &library, &files, &inputs)?)
}

/// The rule from the arguments.
fn rule(args: &Args, library: &Library, files: &[PathBuf], inputs: &[PathBuf]) -> Result<Rule> {
    let place = |path: &Path| {
        let place = RulePath::of(path, library.root());
        place.with_context(|| format!("{} is no plain path", path.display()))
    };
    let mut outputs = BTreeMap::new();
    for file in files {
        let place = place(file)?;
        anyhow::ensure!(
            place.is_in_volume(),
            "{} is in another volume than the first",
            file.display()
        );
        outputs.insert(place, output_of(file)?);
    }
    let mut taken = BTreeMap::new();
    for file in inputs {
        taken.insert(place(file)?, input_of(library, file, args.how.freshness)?);
    }
    Ok(Rule {
        system: here(),
        freshness: args.how.freshness,
        timeout: args.how.timeout,
        root: library.root().to_owned(),
        dir: place(&std::env::current_dir().context("there is no working directory")?)?,
        command: args.command.clone(),
        environment: usual_environment(&args.how.variables),
        inputs: taken,
        programs: BTreeMap::new(),
        made: BTreeSet::new(),
        outputs,
    })
}

fn show(library: &Library, file: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Some(made) = library.made(file)? else {
        return print(&format!("{}: no rule\n", file.display()));
    };
    let owner = fs::metadata(file)?.uid();
    match library.rule(made.rule, owner) {
        Ok(rule) => print(&format!("{}: {}\n{}", file.display(), made.rule, rule.to_text())),
        Err(refusal) => print(&format!("{}: {}: {refusal}\n", file.display(), made.rule)),
    }
}
