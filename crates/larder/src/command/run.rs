//! `larder run`: runs a command, and keeps how it made files, so that they can be made again.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use larder_io::watched::run_watched;
use larder_rebuild::{Freshness, Rule};

use super::mount_of;
use crate::options::parse_span;
use crate::rebuild::shared::{self, Trust};
use crate::rebuild::{Asked, Library, Recorder};

/// Variables that a command sees without being asked for.
const USUAL: [&str; 8] = ["PATH", "HOME", "LANG", "TZ", "TERM", "USER", "LOGNAME", "SHELL"];

/// The same for shared runs: other users have another home directory.
const USUAL_SHARED: [&str; 3] = ["PATH", "LANG", "TZ"];

/// The same, by the beginning of their names.
const USUAL_BEGIN: &str = "LC_";

/// How long a command may take when it runs again, unless the user says otherwise.
const TIMEOUT: &str = "10min";

/// Arguments of `larder run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The working directory must be in a mount of a volume with -o user_xattr. For every file of \
that volume that the command writes, larder keeps how it was made: the command, its environment, \
and each file that it looked at. If the bytes of such a file are lost, larder rebuild makes them \
again. A command that fails leaves no rule.\n\n\
The command sees the variables PATH, HOME, LANG, LC_*, TZ, TERM, USER, LOGNAME, SHELL, and those \
of --env; with --shared, only PATH, LANG, LC_*, TZ, and those. Everything that it starts must end before larder run does. The exit code is the \
command's.\n\nExample:\n  larder run -- make"
)]
pub(crate) struct Args {
    #[command(flatten)]
    how: How,
    /// If an earlier run did the same here with the same inputs, put what it made in place
    /// instead, and keep what is made now for later runs. own: trust the runs of this user and
    /// of root; all: those of every user who can write to the volume
    #[arg(long, value_name = "own|all", num_args = 0..=1, require_equals = true, default_missing_value = "own")]
    shared: Option<Trust>,
    /// The command
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How a command is to run again.
#[derive(Debug, clap::Args)]
pub(crate) struct How {
    /// Which inputs a later run takes: latest (as they are then), version (as they are now, or the
    /// file stays lost), original (as they are now, from copies that are kept; the same bytes must
    /// come out)
    #[arg(long, value_name = "WORD", default_value = "version")]
    pub(crate) freshness: Freshness,
    /// How long the command may run again
    #[arg(long, value_name = "TIME", default_value = TIMEOUT, value_parser = parse_span)]
    pub(crate) timeout: Duration,
    /// Another variable of the environment that the command sees
    #[arg(long = "env", value_name = "NAME")]
    pub(crate) variables: Vec<OsString>,
}

/// Runs the command; returns its exit code.
///
/// # Errors
/// If the working directory is in no mount, the command cannot be started, or a rule cannot be
/// kept.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = std::env::current_dir().context("there is no working directory")?;
    let (root, _) = mount_of(&dir)?;
    let library = Library::of(&root);
    library.made(&root)?;
    let usual = if args.shared.is_some() { &USUAL_SHARED[..] } else { &USUAL };
    let asked = Asked {
        freshness: args.how.freshness,
        timeout: args.how.timeout,
        dir,
        command: args.command.clone(),
        environment: environment(usual, &args.how.variables),
    };
    if let Some(trust) = args.shared {
        let work = asked.rule(&root)?.work();
        if let Some(rule) = shared::put(&library, work, trust) {
            eprintln!("larder: made before, {} file(s) are in place", rule.outputs.len());
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut recorder = Recorder::new(&library, args.how.freshness);
    let (program, arguments) = args.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(&asked.environment);
    let ended = run_watched(command, |sighting| recorder.take(&sighting));
    let ended =
        ended.with_context(|| format!("cannot run {}", PathBuf::from(program).display()))?;
    if !ended.success() {
        let code = ended.code().or(ended.signal().map(|signal| 128 + signal));
        return Ok(ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1)));
    }
    match recorder.finish(&asked).context("no rule is kept")? {
        Some(rule) => {
            keep(&library, &rule).context("no rule is kept")?;
            if args.shared.is_some() {
                shared::keep(&library, &rule).context("what was made is not shared")?;
            }
        }
        None => eprintln!("larder: the command wrote no file of {}", root.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The chosen part of our own environment.
fn environment(usual: &[&str], more: &[OsString]) -> BTreeMap<OsString, OsString> {
    let is_usual = |name: &OsStr| {
        name.to_str().is_some_and(|name| usual.contains(&name) || name.starts_with(USUAL_BEGIN))
    };
    std::env::vars_os().filter(|(name, _)| is_usual(name) || more.contains(name)).collect()
}

/// The environment of a command that is not shared.
pub(crate) fn usual_environment(more: &[OsString]) -> BTreeMap<OsString, OsString> {
    environment(&USUAL, more)
}

/// Keeps a rule, and says of its outputs that it makes them.
pub(crate) fn keep(library: &Library, rule: &Rule) -> Result<()> {
    let id = library.keep_rule(rule)?;
    for place in rule.outputs.keys() {
        library.set_made(&place.at(library.root()), id, place)?;
    }
    if rule.freshness != Freshness::Original {
        for own in rule.own_inputs() {
            eprintln!(
                "larder: {own} is made from what it was before: it can be made again with --freshness original only"
            );
        }
    }
    Ok(())
}
