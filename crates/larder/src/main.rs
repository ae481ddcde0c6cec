//! larder: remote files at local-disk speed.
//!
//! The binary is a thin layer: it reads the command line, assembles the stack ([`stack`]), and lets
//! commands talk to running daemons ([`control`]). The crates below decide what a file system does;
//! nothing here looks into a file.
//!
//! Every command exits with 0 (done), 1 (failed: one line on standard error) or 2 (wrong usage).
//! `cache ls --unsent` also exits with 3 (it listed something), and `volume check` exits as fsck(8)
//! does.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests wait for real sockets and threads")
)]

mod archive;
mod backend;
mod cache_dir;
mod children;
mod classes;
mod clock;
mod command;
mod control;
mod daemon;
mod durability;
mod engine;
mod enrolment;
mod error;
mod event;
mod export;
mod exported;
mod failing_mount;
mod front_door;
mod hoard;
mod link;
mod log;
mod login;
mod maintenance;
mod memory_dir;
mod mounted;
mod mountpoint;
mod options;
mod plan;
mod progress;
mod rebuild;
mod remembered;
mod report;
mod runtime;
mod runtime_dir;
mod series;
mod server;
mod servers;
mod signals;
mod sole;
mod source;
mod stack;
mod state_dir;
mod supervisor;
mod traces;
mod unmount;
mod version;
mod volume;
mod worker;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use command::{
    bench, bwlimit, cache, class, conflicts, disk, explain, export as export_command, meta, mount,
    mount_helper, offline, rebuild as rebuild_command, run as run_command, serve, stat, status,
    sync, umount, upgrade, volume as volume_command,
};

/// Mount NFS exports, SMB shares and larder's own volumes through a persistent local cache.
#[derive(Debug, Parser)]
#[command(version = version::VERSION, subcommand_required = true, arg_required_else_help = true)]
#[command(
    after_help = "Example:\n  larder mount nfs://server/export /mnt --cache /var/cache/larder/export"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mount an export, a share or a volume through a local cache
    Mount(mount::Args),
    /// Unmount
    Umount(umount::Args),
    /// Replace the program that serves a mount by the one that is installed now
    Upgrade(upgrade::Args),
    /// Show the state of mounts
    Status(status::Args),
    /// Wait until everything that was written is at the server
    Sync(sync::Args),
    /// Show or set how fast a mount sends what no process waits for
    Bwlimit(bwlimit::Args),
    /// Work on a mount without its server
    Offline(offline::OfflineArgs),
    /// Work on a mount with its server again, which gets what was changed
    Online(offline::OnlineArgs),
    /// List what was done here and could not be done so at the server, and clear it
    Conflicts(conflicts::Args),
    /// Show what each procedure of a mount or an export costs
    Stat(stat::Args),
    /// Inspect and trim a cache
    Cache(cache::Args),
    /// Show and set durability classes: classes, rules, and which file has which class
    Class(class::Args),
    /// Run a command, and keep how it made files, so that they can be made again
    Run(run_command::Args),
    /// Make lost files again, by their rules
    Rebuild(rebuild_command::Args),
    /// Show how durable a file is now, and how durable it will be
    Explain(explain::Args),
    /// Export a directory over NFS
    Export(export_command::Args),
    /// Serve a volume: metadata server and one disk, in one process
    Serve(serve::Args),
    /// Serve the metadata of a volume whose disks are elsewhere
    Meta(meta::Args),
    /// Serve a network-attached disk
    Disk(disk::Args),
    /// Make, inspect and check volumes of larder's own servers
    Volume(volume_command::Args),
    /// Run published workloads on any directory and measure them
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let mut typed = std::env::args_os();
    let program = typed.next();
    let done = match program.as_deref() {
        program if mount_helper::is_meant(program) => mount_helper::run(typed),
        program if rebuild::is_meant(program) => return rebuild::run_inside(program),
        _ => run(&Cli::parse().command),
    };
    done.unwrap_or_else(|error| {
        eprintln!("larder: {error:#}");
        ExitCode::from(error::exit_code(&error))
    })
}

fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Mount(args) => return mount::run(args),
        Command::Bench(args) => return bench::run(args),
        Command::Cache(args) => return cache::run(args),
        Command::Volume(args) => return volume_command::run(args),
        Command::Run(args) => return run_command::run(args),
        Command::Rebuild(args) => return rebuild_command::run(args),
        Command::Umount(args) => umount::run(args)?,
        Command::Upgrade(args) => upgrade::run(args)?,
        Command::Bwlimit(args) => bwlimit::run(args)?,
        Command::Offline(args) => offline::offline(args)?,
        Command::Online(args) => offline::online(args)?,
        Command::Status(args) => status::run(args)?,
        Command::Sync(args) => sync::run(args)?,
        Command::Conflicts(args) => conflicts::run(args)?,
        Command::Stat(args) => stat::run(args)?,
        Command::Class(args) => class::run(args)?,
        Command::Explain(args) => explain::run(args)?,
        Command::Export(args) => export_command::run(args)?,
        Command::Serve(args) => serve::run(args)?,
        Command::Meta(args) => meta::run(args)?,
        Command::Disk(args) => disk::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_help_ends_with_an_example() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example:\n  larder "), "{}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
