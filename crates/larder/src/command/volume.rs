//! `larder volume`: makes a volume, shows its state, rotates its keys, checks it.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_archive::Version;
use larder_meta::Fault;
use larder_wire::meta::COPIES_MAX;
use larder_wire::seal::Setup;
use serde::Serialize;

use crate::archive::{Archiving, Compared};
use crate::command::{print, print_json};
use crate::control::{CallError, KeyTold, KeysRotated, Nowhere, Request, call};
use crate::error::NotChecked;
use crate::report::ServerStatus;
use crate::runtime_dir::{Kind, RuntimeDir};
use crate::servers;
use crate::volume::{Storage, TERM, now, parse_setup};

/// How long a metadata server may take to rotate keys: a commit, and the wait for disks that are
/// away.
const ROTATED_MAX: Duration = Duration::from_secs(60);

/// Arguments of `larder volume`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Name a volume that larder serve made by its address for status and rotate, and by its directory for check.\n\nExample:\n  larder volume create --engine embedded:/srv/meta\n  larder volume status 192.0.2.1:2050\n  larder volume check --engine embedded:/srv/meta"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a volume without disks
    Create(Create),
    /// Show the state of a volume and its disks, from its metadata server
    Status(Status),
    /// Give the disks of a served volume other keys
    Rotate(Rotate),
    /// Check a volume that no metadata server serves, and repair it
    Check(Check),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The directory is made if it does not exist; otherwise it must be empty. Only its owner can \
access it.\n\nWith --copies N, disks are used in sets of N disks of the same size, and each \
block is on every disk of its set. A disk that is away delays no one while another disk of \
its set is there. When it is back, or another disk is enrolled in its place, it is brought \
up to date while work goes on. Writing over data needs room for the new data beside the old.\n\nThe \
setup stays as it is. With `secure` only who has a capability from the metadata server can use a disk, and nothing can \
be altered on the way; with `private` nothing can be read on the way either; with `off` whoever can connect may read and write \
everything: for measurements. Disks get it with their keys (larder disk enrol). A disk that was started \
with another one is not used.\n\nExample:\n  larder volume create --engine embedded:/srv/meta\n  larder volume create --engine embedded:/srv/meta --copies 2\n  larder volume create --engine embedded:/srv/meta --setup private"
)]
struct Create {
    #[command(flatten)]
    storage: Storage,
    /// How many disks keep each block, 1 to 4: with N copies, N - 1 disks may be lost
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(COPIES_MAX)))]
    copies: u32,
    /// How requests to each of its disks are protected: by seals, by seals and encryption, or not
    /// at all
    #[arg(long, value_name = "secure|private|off", default_value = "secure", value_parser = parse_setup)]
    setup: Setup,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Run it on the metadata server's machine, as the user who runs the server. Each disk counts \
its refusals since its start.\n\nExample:\n  larder volume status\n  larder volume status 192.0.2.1:2050 --json"
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
    after_help = "The metadata server makes capabilities with a key that it shares with the disk, one for each key \
epoch. A rotation begins the next epoch at once. What clients have from the epoch before works \
on: for 10 minutes, until it is revoked, or until the keys are rotated again. So rotate twice to \
end all of it; clients ask for other capabilities, and no call fails. A disk that does not answer is told before it \
serves anything again; until then it goes on for the time of --trust at most. The keys are also \
rotated each day, and when a metadata server starts. The key files of the disks stay as they \
are: replace a disk whose key file is known to others (larder disk enrol --replace).\n\nRun it on the metadata \
server's machine, as the user who runs the server.\n\nExample:\n  larder volume rotate\n  larder volume rotate 192.0.2.1:2050 --json"
)]
struct Rotate {
    /// Where the metadata server listens
    #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:2050")]
    address: SocketAddr,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The metadata server must not be running. Without --repair nothing is changed. The check \
finds blocks in two places or in none, extents that overlap or extend behind their file's \
end, wrong counts of links, entries and bytes, names without files, files without names, and \
directories in cycles. It prints one line for each. A repair loses nothing that can be kept: \
what has no name goes to lost+found. With --archive it also finds versions there that no \
record names, and that a repair deletes; and versions that are missing there.\n\nThe exit code is that of fsck(8): 0 no fault, 1 all \
faults were repaired, 4 faults are left, 8 the volume could not be checked; 2 is wrong \
usage.\n\nExample:\n  larder volume check --engine embedded:/srv/meta\n  larder volume check --repair --engine embedded:/srv/meta"
)]
struct Check {
    #[command(flatten)]
    storage: Storage,
    #[command(flatten)]
    archiving: Archiving,
    /// Only look, as without --repair
    #[arg(short = 'n', conflicts_with = "repair")]
    look: bool,
    /// Repair what can be repaired
    #[arg(short = 'y', long)]
    repair: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Carries out a subcommand.
///
/// # Errors
/// If the volume cannot be used.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Create(args) => {
            let id = args.storage.create(args.copies, args.setup)?;
            print(&format!("volume {}\n", id.to_text()))?;
        }
        Command::Status(args) => status(args)?,
        Command::Rotate(args) => rotate(args)?,
        Command::Check(args) => return check(args).context(NotChecked),
    }
    Ok(ExitCode::SUCCESS)
}

/// Result of a check.
#[derive(Debug, Serialize)]
struct Checked {
    faults: Vec<FaultFound>,
    /// How many of them are left.
    left: usize,
}

#[derive(Debug, Serialize)]
struct FaultFound {
    kind: &'static str,
    file: Option<u64>,
    path: Option<String>,
    what: String,
    /// What a repair does about it; absent if it leaves the fault.
    remedy: Option<String>,
}

impl From<Fault> for FaultFound {
    fn from(fault: Fault) -> FaultFound {
        let Fault { kind, file, path, what, remedy } = fault;
        let path = path.map(|path| path.escape_ascii().to_string());
        FaultFound { kind: kind.name(), file, path, what, remedy }
    }
}

impl FaultFound {
    /// The archive has a version that no record names, or lacks one.
    fn archive(version: &Version, is_there: bool) -> FaultFound {
        let Version { ino, data_version, .. } = version;
        let (what, remedy) = match is_there {
            true => {
                ("has version {} of file {}, which nobody needs", Some("it is deleted".to_owned()))
            }
            false => ("lacks version {} of file {}", None),
        };
        let what = what.replacen("{}", &data_version.to_string(), 1);
        let what = format!("the archive {}", what.replacen("{}", &ino.to_string(), 1));
        FaultFound { kind: "archive", file: Some(*ino), path: None, what, remedy }
    }
}

fn check(args: &Check) -> Result<ExitCode> {
    let engine = args.storage.open(TERM)?;
    let (faults, left) = if args.repair {
        let faults = larder_meta::repair(&*engine, now())?;
        let left = if faults.is_empty() { 0 } else { larder_meta::check(&*engine)?.len() };
        (faults, left)
    } else {
        let faults = larder_meta::check(&*engine)?;
        let left = faults.len();
        (faults, left)
    };
    let mut faults: Vec<FaultFound> = faults.into_iter().map(FaultFound::from).collect();
    let Compared { orphans, missing } = args.archiving.check(&*engine, args.repair)?;
    let left = left + missing.len() + if args.repair { 0 } else { orphans.len() };
    faults.extend(orphans.iter().map(|version| FaultFound::archive(version, true)));
    faults.extend(missing.iter().map(|version| FaultFound::archive(version, false)));
    let checked = Checked { faults, left };
    match args.json {
        true => print_json(&checked)?,
        false => print(&checked.to_text(args.repair))?,
    }
    Ok(ExitCode::from(checked.code()))
}

impl Checked {
    /// The exit code, as fsck(8) has it.
    fn code(&self) -> u8 {
        match (self.faults.len(), self.left) {
            (0, _) => 0,
            (_, 0) => 1,
            _ => 4,
        }
    }

    fn to_text(&self, is_repaired: bool) -> String {
        let mut text = String::new();
        for FaultFound { path, what, remedy, .. } in &self.faults {
            let path = path.as_ref().map_or_else(String::new, |path| format!(" ({path})"));
            let remedy = match remedy {
                Some(remedy) if is_repaired => format!(": {remedy}"),
                Some(_) => String::new(),
                None => ": it is left as it is".to_owned(),
            };
            text += &format!("{what}{path}{remedy}\n");
        }
        let faults = match self.faults.len() {
            1 => "1 fault".to_owned(),
            count => format!("{count} faults"),
        };
        text + &match self.left {
            _ if self.faults.is_empty() => "nothing is wrong\n".to_owned(),
            0 => format!("{faults}, repaired\n"),
            left if is_repaired => format!("{faults}, {left} left\n"),
            _ => format!("{faults}; --repair mends them\n"),
        }
    }
}

fn status(args: &Status) -> Result<()> {
    let address = args.address;
    let found = servers::at(&RuntimeDir::open()?, address)?;
    let Some(ServerStatus::Volume(status)) = found else {
        bail!("no metadata server of this user listens at {address}");
    };
    match args.json {
        true => print_json(&status),
        false => print(&status.to_string()),
    }
}

fn rotate(args: &Rotate) -> Result<()> {
    let address = args.address;
    let socket = RuntimeDir::open()?.socket_named(Kind::Volume, &address.to_string());
    let rotated = match call(&socket, &Request::RotateKeys, ROTATED_MAX, &mut Nowhere) {
        Ok((value, _)) => serde_json::from_value::<KeysRotated>(value)?,
        Err(CallError::Dead) => bail!("no metadata server of this user listens at {address}"),
        Err(error) => return Err(error).with_context(|| format!("the server at {address}")),
    };
    match args.json {
        true => print_json(&rotated),
        false => print(&rotated.to_text()),
    }
}

impl KeysRotated {
    fn to_text(&self) -> String {
        let mut text = format!("key epoch {}\n", self.key_epoch);
        for KeyTold { disk, is_told } in &self.disks {
            text += &match is_told {
                true => format!("disk {disk} has it\n"),
                false => format!("disk {disk} does not answer: it is told when it does\n"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_reads_well() {
        let told = |(disk, is_told)| KeyTold { disk, is_told };
        let disks = [(1, true), (3, false)].map(told).to_vec();
        let rotated = KeysRotated { key_epoch: 8, disks };
        let text = "key epoch 8\ndisk 1 has it\ndisk 3 does not answer: it is told when it does\n";
        assert_eq!(rotated.to_text(), text);
    }

    #[test]
    fn a_check_reads_well_and_ends_as_fsck_does() {
        let fault = |path: Option<&str>, what: &str, remedy: Option<&str>| FaultFound {
            kind: "unnamed",
            file: Some(7),
            path: path.map(str::to_owned),
            what: what.to_owned(),
            remedy: remedy.map(str::to_owned),
        };
        let lost = || fault(Some("/a"), "nothing names file 7", Some("it is now a"));
        let disk = || fault(None, "disk 2 is not there", None);
        let cases: [(_, _, _, u8, &str); 4] = [
            (vec![], 0, false, 0, "nothing is wrong\n"),
            (
                vec![lost()],
                1,
                false,
                4,
                "nothing names file 7 (/a)\n1 fault; --repair mends them\n",
            ),
            (
                vec![lost()],
                0,
                true,
                1,
                "nothing names file 7 (/a): it is now a\n1 fault, repaired\n",
            ),
            (
                vec![lost(), disk()],
                1,
                true,
                4,
                "nothing names file 7 (/a): it is now a\ndisk 2 is not there: it is left as it is\n\
                 2 faults, 1 left\n",
            ),
        ];
        for (faults, left, is_repaired, code, text) in cases {
            let checked = Checked { faults, left };
            assert_eq!((checked.code(), &checked.to_text(is_repaired)[..]), (code, text));
        }
    }
}
