//! `larder volume`: making a volume, asking how it does, checking it.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use crate::command::{print, print_json};
use crate::control::{CallError, Nowhere, Request, SILENCE_MAX, call};
use crate::options::Bytes;
use crate::runtime_dir::RuntimeDir;
use crate::volume::{Kept, VolumeStatus};

/// Arguments of `larder volume`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A volume that larder serve made is asked by its address, and checked as embedded:DIR/meta.\n\nExample:\n  larder volume create --engine embedded:/srv/meta\n  larder volume status 192.0.2.1:2050\n  larder volume check --engine embedded:/srv/meta"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a volume without disks
    Create(Create),
    /// Ask the metadata server how a volume and its disks do
    Status(Status),
    /// Look for what is wrong with a volume that nobody serves
    Check(Check),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The directory is made, or must be empty; it stays closed to others than its owner.\n\nExample:\n  larder volume create --engine embedded:/srv/meta"
)]
struct Create {
    #[command(flatten)]
    kept: Kept,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "To be asked on the machine of the metadata server, by its user. Refusals are counted by each disk since its start.\n\nExample:\n  larder volume status\n  larder volume status 192.0.2.1:2050 --json"
)]
struct Status {
    /// Where the metadata server listens
    #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:2050")]
    address: SocketAddr,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The metadata server must not run meanwhile. Nothing is changed. Found are blocks in two places or in none, extents that overlap \
or go behind their file's end, wrong counts of links, entries and bytes, names without files, files without names, directories in circles. Each is a line, and the exit code is 1.\n\nExample:\n  larder volume check --engine embedded:/srv/meta"
)]
struct Check {
    #[command(flatten)]
    kept: Kept,
}

/// Does what a subcommand says.
///
/// # Errors
/// If the volume cannot be used; of a check, also if something is wrong with it.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Create(args) => {
            let id = args.kept.create()?;
            print(&format!("volume {}\n", id.to_text()))
        }
        Command::Status(args) => status(args),
        Command::Check(args) => check(args),
    }
}

fn check(args: &Check) -> Result<()> {
    let engine = args.kept.open()?;
    let faults = larder_meta::check(&*engine)?;
    print(&faults.iter().map(|fault| format!("{fault}\n")).collect::<String>())?;
    match faults.len() {
        0 => print("nothing is wrong\n"),
        1 => bail!("1 fault"),
        count => bail!("{count} faults"),
    }
}

fn status(args: &Status) -> Result<()> {
    let address = args.address;
    let socket = RuntimeDir::open()?.volume_socket(address);
    let value = match call(&socket, &Request::Status, SILENCE_MAX, &mut Nowhere) {
        Ok((value, _)) => value,
        Err(CallError::Dead) => bail!("no metadata server of this user listens at {address}"),
        Err(error) => {
            return Err(error).with_context(|| format!("the metadata server at {address}"));
        }
    };
    let status: VolumeStatus = serde_json::from_value(value)?;
    match args.json {
        true => print_json(&status),
        false => print(&to_text(&status)),
    }
}

fn to_text(status: &VolumeStatus) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<9} {value}");
    };
    line("volume", &status.volume);
    line("address", &status.address);
    let (size, free) = (Bytes(status.size_bytes), Bytes(status.free_bytes));
    line("size", &format!("{size}, {free} free"));
    for disk in &status.disks {
        let state = if disk.status.is_some() { "" } else { ": does not answer" };
        line(&format!("disk {}", disk.disk), &format!("{}{state}", disk.address));
        for about in disk.text.iter().flat_map(|text| text.lines()) {
            line("", about);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::DiskStatus;

    #[test]
    fn a_status_reads_well() {
        let (status, said) = (Some(serde_json::json!({})), Some("setup     secure\n".to_owned()));
        let disk = |disk, address: &str, status: Option<_>, text| DiskStatus {
            disk,
            address: address.to_owned(),
            is_there: status.is_some(),
            status,
            text,
        };
        let there = disk(1, "192.0.2.2:2051", status, said);
        let away = disk(2, "192.0.2.3:2051", None, None);
        let status = VolumeStatus {
            volume: "a0".into(),
            address: "192.0.2.1:2050".into(),
            size_bytes: 2 << 30,
            free_bytes: 1 << 30,
            disks: vec![there, away],
        };
        let text = "volume    a0\naddress   192.0.2.1:2050\nsize      2.00 GiB, 1.00 GiB free\n\
                    disk 1    192.0.2.2:2051\n          setup     secure\n\
                    disk 2    192.0.2.3:2051: does not answer\n";
        assert_eq!(to_text(&status), text);
    }
}
