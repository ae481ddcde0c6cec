//! `larder disk status`: a disk's own report of its state.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_disk_client::{DISK_PROGRAM, observe};
use larder_rpc::{Config, RpcClient, SourcePort, Transport};
use larder_wire::disk::words::StatusDone;
use larder_wire::seal::Setup;
use serde_json::{Value, json};

use crate::command::{print, print_json};
use crate::options::Bytes;

/// How long a disk may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Arguments of `larder disk status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Asking takes control of the disk from no metadata server. Refusals are counted since the \
disk's start.\n\nExample:\n  larder disk status 192.0.2.1:2051 --key /etc/larder/disk1.key\n  larder disk status 192.0.2.1:2051 --key /etc/larder/disk1.key --json"
)]
pub(super) struct Args {
    /// Where the disk listens
    #[arg(value_name = "IP:PORT")]
    address: SocketAddr,
    /// The disk's key; only its owner may be able to read it
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Asks, and prints.
pub(super) fn run(args: &Args) -> Result<()> {
    let key = super::read_key(&args.key)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let status = runtime.block_on(async {
        let mut config = Config::new(args.address, Transport::Tcp, DISK_PROGRAM);
        (config.source_port, config.timeout) = (SourcePort::Any, ANSWER_MAX);
        config.retransmissions = 0;
        let rpc = RpcClient::connect(config).await?;
        let asked = observe(rpc, &key.master, key.volume, key.disk).await;
        asked.with_context(|| format!("the disk at {}", args.address))
    })?;
    match args.json {
        true => print_json(&to_json(&status)),
        false => print(&to_text(&status)),
    }
}

/// A setup, as people write it.
pub(super) fn setup_name(setup: Setup) -> &'static str {
    match setup {
        Setup::Off => "off",
        Setup::Secure => "secure",
        Setup::Private => "private",
    }
}

/// For how many more milliseconds the disk trusts what it knows; `None` if it does not any more.
fn trusted_ms(status: &StatusDone) -> Option<u64> {
    status.trusted_until_ms.checked_sub(status.clock_ms).filter(|left| *left > 0)
}

/// A disk's report of itself, for people.
pub(crate) fn to_text(status: &StatusDone) -> String {
    let mut text = format!("setup     {}\n", setup_name(status.setup));
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<9} {value}");
    };
    line("size", Bytes(status.size).to_string());
    line("written", Bytes(status.written).to_string());
    if status.poisoned {
        line("store", "takes no more changes: a sync failed".to_owned());
    }
    let trusted = match trusted_ms(status) {
        Some(left) => format!("for {:.1} s more", left as f64 / 1000.0),
        None => "no: the metadata server was not heard of in time".to_owned(),
    };
    line("trusted", trusted);
    line("key", status.key.map_or("none yet".to_owned(), |key| key.0.to_string()));
    line("sessions", status.sessions.to_string());
    let revoked: u32 = status.groups.0.iter().map(|group| group.revoked).sum();
    line("groups", format!("{} ({revoked} capabilities revoked)", status.groups.0.len()));
    for counted in &status.refusals.0 {
        line("refused", format!("{} times: {}", counted.count, counted.refusal));
    }
    text
}

/// The same as JSON.
pub(crate) fn to_json(status: &StatusDone) -> Value {
    let groups = status.groups.0.iter();
    let refusals = status.refusals.0.iter();
    json!({
        "setup": setup_name(status.setup),
        "size_bytes": status.size,
        "written_bytes": status.written,
        "poisoned": status.poisoned,
        "trusted_ms": trusted_ms(status),
        "key_epoch": status.key.map(|key| key.0),
        "sessions": status.sessions,
        "groups": groups.map(|group| json!({
            "group": group.group.0,
            "revoked": group.revoked,
        })).collect::<Vec<_>>(),
        "refused": refusals.map(|counted| json!({
            "reason": format!("{:?}", counted.refusal),
            "count": counted.count,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use larder_wire::capability::{GroupId, KeyEpoch};
    use larder_wire::disk::words::{GroupStatus, Refusal, RefusalCount};
    use larder_wire::xdr::Array;

    use super::*;

    #[test]
    fn a_status_reads_well() {
        let status = StatusDone {
            setup: Setup::Secure,
            size: 1 << 30,
            written: 4096,
            clock_ms: 5_000,
            trusted_until_ms: 7_500,
            key: Some(KeyEpoch(4)),
            sessions: 3,
            poisoned: false,
            groups: Array(vec![GroupStatus { group: GroupId(9), revoked: 2 }]),
            refusals: Array(vec![RefusalCount { refusal: Refusal::Replayed, count: 7 }]),
        };
        let text = "setup     secure\nsize      1.00 GiB\nwritten   4.00 KiB\ntrusted   for 2.5 s more\n\
                    key       4\nsessions  3\ngroups    1 (2 capabilities revoked)\n\
                    refused   7 times: the request came before\n";
        assert_eq!(to_text(&status), text);
        let alone = StatusDone { clock_ms: 7_500, poisoned: true, key: None, ..status };
        let text = to_text(&alone);
        assert!(text.contains("trusted   no: "), "{text}");
        assert!(text.contains("store     takes no more changes"), "{text}");
        assert_eq!(to_json(&alone)["trusted_ms"], Value::Null);
    }
}
