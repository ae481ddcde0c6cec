//! `larder export`: a directory as an NFS export.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use larder_nfsd::{Config, Network, Server, SourcePorts};
use larder_remote::local::{LocalDir, LocalOptions, Squash};
use larder_vfs::Direct;
use tokio::signal::unix::{SignalKind, signal};

use crate::exported::{self, Answering};
use crate::log;
use crate::runtime_dir::RuntimeDir;

/// How long calls in flight may take to end after a signal.
const END_MAX: Duration = Duration::from_secs(10);

/// Arguments of `larder export`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "NFSv3 believes the ids that a client sends. So only root of an allowed machine may \
call (from a port below 1024; on this machine from any), unless --insecure is given; allowed is this machine if it listens on \
127.0.0.1 or ::1, else everybody, unless --allow is given; and root of another machine is nobody here, \
unless --no-root-squash is given.\n\nExample:\n  larder export /srv/data --listen 127.0.0.1:12049\n  larder stat --export 127.0.0.1:12049"
)]
pub(crate) struct Args {
    /// The directory, exported as /
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where to listen, for NFS and MOUNT, over TCP and UDP; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Treat root of a client as nobody [default: unless it listens on this machine alone]
    #[arg(long, conflicts_with = "no_root_squash")]
    root_squash: bool,
    /// Treat root of a client as root
    #[arg(long)]
    no_root_squash: bool,
    /// Who may call, as 192.0.2.0/24; may be given more than once
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Take calls from ports above 1023 too: then every user there can claim to be any other
    #[arg(long)]
    insecure: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Others change the directory while it is exported: clients are then told less of their own
    /// changes, and read again what they wrote
    #[arg(long)]
    shared: bool,
}

/// Serves until a signal comes, then lets what is begun end.
///
/// # Errors
/// If the directory or the address cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<()> {
    // Before anything is made: a signal meanwhile is then an orderly end.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let server = args.server().await?;
    let answering = answering(&server, &args.dir);
    tracing::info!(dir = %args.dir.display(), address = %server.addr(), "exported");
    let shutdown = server.shutdown();
    let mut served = std::pin::pin!(server.run());
    tokio::select! {
        () = &mut served => return Ok(()),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // While the address is ours: afterwards another export may come and answer by this name.
    drop(answering);
    shutdown.begin();
    if tokio::time::timeout(END_MAX, served).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    sync_directory(&args.dir)
}

/// Lets `larder stat --export` ask. Whoever cannot be asked serves all the same.
fn answering(server: &Server, dir: &Path) -> Option<Answering> {
    let answering = RuntimeDir::open()
        .and_then(|runtime| exported::answer(&runtime, server.addr(), dir, server.stats_reader()));
    answering.inspect_err(|error| tracing::warn!("larder stat cannot ask: {error:#}")).ok()
}

/// Brings unstable writes to the disk: nobody keeps them but us.
fn sync_directory(dir: &Path) -> Result<()> {
    let flushed = std::fs::File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
    flushed.with_context(|| format!("cannot flush {}", dir.display()))
}

impl Args {
    /// The stack of an export: a local directory, nothing cached, the NFS door.
    async fn server(&self) -> Result<Server> {
        let squash = if self.squashes_root() { Squash::Root } else { Squash::None };
        let options = LocalOptions { squash, read_only: self.read_only, ..LocalOptions::default() };
        let dir = LocalDir::open(&self.dir, options)?;
        let fs = Direct::new(Arc::new(dir)).await;
        let fs = fs.with_context(|| format!("cannot export {}", self.dir.display()))?;
        Ok(Server::bind(self.config()?, Arc::new(fs)).await?)
    }

    fn config(&self) -> Result<Config> {
        let default = Config::new(self.listen);
        Ok(Config {
            allow: match self.allow.as_slice() {
                [] if self.listens_here_only() => default.allow,
                [] => vec!["0.0.0.0/0".parse()?, "::/0".parse()?],
                networks => networks.to_vec(),
            },
            source_ports: if self.insecure { SourcePorts::Any } else { SourcePorts::Reserved },
            // A process that changes the directory behind our back is told apart by the attributes,
            // but for the microseconds between looking and changing; see `--shared`.
            sole_door: !self.shared,
            ..default
        })
    }

    fn squashes_root(&self) -> bool {
        self.root_squash || !self.no_root_squash && !self.listens_here_only()
    }

    fn listens_here_only(&self) -> bool {
        match self.listen.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.to_canonical().is_loopback(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(listen: &str, root_squash: bool, no_root_squash: bool) -> Args {
        Args {
            dir: PathBuf::new(),
            listen: listen.parse().unwrap(),
            root_squash,
            no_root_squash,
            allow: Vec::new(),
            insecure: false,
            read_only: false,
            shared: false,
        }
    }

    #[test]
    fn root_is_squashed_for_other_machines() {
        for (listen, root_squash, no_root_squash, squashes) in [
            ("127.0.0.1:1", false, false, false),
            ("127.0.0.1:1", true, false, true),
            ("[::1]:1", false, false, false),
            ("0.0.0.0:1", false, false, true),
            ("192.0.2.1:1", false, false, true),
            ("192.0.2.1:1", false, true, false),
        ] {
            let args = args(listen, root_squash, no_root_squash);
            assert_eq!(args.squashes_root(), squashes, "{args:?}");
        }
    }

    #[test]
    fn who_may_call_follows_where_it_listens() {
        let other: IpAddr = "192.0.2.9".parse().unwrap();
        let allows = |listen| {
            let config = args(listen, false, false).config().unwrap();
            config.allow.iter().any(|network| network.contains(other))
        };
        assert!(!allows("127.0.0.1:1"));
        assert!(allows("192.0.2.1:1"));
    }
}
