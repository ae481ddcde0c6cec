//! `larder class`: durability classes, which file has which, and why.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use larder_class::Subject;
use serde::de::DeserializeOwned;

use super::{class_rebuild, daemon_of, print, print_json};
use crate::classes::{of_files, shown};
use crate::control::{Nowhere, Request, call};
use crate::options::{parse_size, rule_file};
use crate::report::{ClassShown, Explained};
use crate::runtime_dir::RuntimeDir;

/// Longest silence of a daemon: before it strengthens a class, it sends unsent data.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(600);

/// Arguments of `larder class`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "docs/classes.md describes what each class promises, and how to write classes and rules.\n\nExample:\n  larder class set critical /mnt/ledger && larder class explain /mnt/ledger/2026.db"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the classes, as a mount provides them
    #[command(after_help = "Example:\n  larder class list /mnt")]
    List {
        /// A mount, or a path in it [default: as any mount of an NFS server or a share would
        /// provide them]
        #[arg(value_name = "MNT")]
        mountpoint: Option<PathBuf>,
    },
    /// Show which class files have
    #[command(after_help = "Example:\n  larder class get /mnt/ledger/2026.db")]
    Get {
        /// Files and directories in mounts
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Set the class of files, or of directories for their contents
    #[command(
        after_help = "The class applies from the next open on, and to files that are open. If it is more durable \
than the class before, larder sends unsent data first. The setting is kept in the mount's \
cache, and is lost with the cache.\n\nExample:\n  larder class set critical /mnt/ledger"
    )]
    Set {
        /// The class
        #[arg(value_name = "CLASS")]
        class: String,
        /// Files and directories in mounts
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Remove a setting: rules and the mount decide again
    #[command(after_help = "Example:\n  larder class unset /mnt/ledger")]
    Unset {
        /// Files and directories in mounts
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
    /// Say how files are made, so that they can be made again when their bytes are lost
    Rebuild(class_rebuild::Args),
    /// Rules
    #[command(after_help = "Example:\n  larder class rules test src/main.o --rules build")]
    Rules {
        #[command(subcommand)]
        what: Rules,
    },
    /// Show which class a file has, what decided that, and what the class promises
    #[command(
        after_help = "Each level that the class promises has a line: by when bytes are there, what loses them if \
they are nowhere else, and after how long, on average. larder explain shows where they are.\n\n\
Example:\n  larder class explain /mnt/ledger/2026.db"
    )]
    Explain {
        /// A file or directory in a mount
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Print JSON, as larder explain does
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Rules {
    /// Show what the rules decide for a path below a mount; no mount is needed
    #[command(after_help = "Example:\n  larder class rules test target/debug/app --rules build")]
    Test {
        /// The path below a mountpoint; the file need not exist
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// Rules to apply before those in the machine's and the user's files, as with the mount
        /// option rules=
        #[arg(long, value_name = "FILE|build")]
        rules: Option<PathBuf>,
        /// The user who opens it
        #[arg(long, default_value_t = rustix::process::getuid().as_raw())]
        uid: u32,
        /// Its size
        #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
        size: u64,
        /// The program that opens it
        #[arg(long, value_name = "NAME")]
        program: Option<OsString>,
    },
}

/// Carries out a class command.
///
/// # Errors
/// If a path is in no mount of this user; if a file of classes and rules is wrong; what the daemon
/// reports.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::List { mountpoint: Some(path) } => {
            let classes: Vec<ClassShown> = ask(path, |_| Request::Classes)?;
            print_all(&classes)
        }
        What::List { mountpoint: None } => print_all(&shown(&of_files(None)?)),
        What::Get { paths } => paths.iter().try_for_each(|path| {
            print(&format!("{}: {}\n", path.display(), explained(path)?.class))
        }),
        What::Set { class, paths } => paths.iter().try_for_each(|path| set(path, Some(class))),
        What::Unset { paths } => paths.iter().try_for_each(|path| set(path, None)),
        What::Rebuild(args) => class_rebuild::run(args),
        What::Rules { what: Rules::Test { path, rules, uid, size, program } } => {
            let classes = of_files(rules.as_deref().map(rule_file))?;
            let path = path.strip_prefix("/").unwrap_or(path);
            let (uid, size, program) = (*uid, *size, program.as_deref());
            let choice =
                classes.choose(&Subject { path, uid, size, program, own: None, dir: None });
            print(&format!("{}: {}\n", choice.class.name, choice.why))
        }
        What::Explain { path, json: true } => print_json(&explained(path)?),
        What::Explain { path, json: false } => {
            print(&format!("{}\n{}", path.display(), explained(path)?.of_class()))
        }
    }
}

/// A file's class and durability, as its daemon reports them.
///
/// # Errors
/// If the path is in no mount of this user.
pub(crate) fn explained(path: &Path) -> Result<Explained> {
    ask(path, |path| Request::Explain { path })
}

fn set(path: &Path, class: Option<&str>) -> Result<()> {
    let class = class.map(str::to_owned);
    ask(path, |path| Request::SetClass { path, class })
}

fn print_all(classes: &[ClassShown]) -> Result<()> {
    classes.iter().try_for_each(|class| print(&class.to_string()))
}

fn ask<T: DeserializeOwned>(path: &Path, request: impl FnOnce(PathBuf) -> Request) -> Result<T> {
    let runtime = RuntimeDir::open()?;
    let (socket, below) = daemon_of(&runtime, path)?;
    let (answer, _) = call(&socket, &request(below), SILENCE_MAX, &mut Nowhere)
        .with_context(|| path.display().to_string())?;
    Ok(serde_json::from_value(answer)?)
}
