//! `larder disk status`: a disk's own report of its state.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_disk_client::{DISK_PROGRAM, observe};
use larder_rpc::{Config, RpcClient, SourcePort, Transport};

use crate::command::{print, print_json};
use crate::report::disk::{to_json, to_text};

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
