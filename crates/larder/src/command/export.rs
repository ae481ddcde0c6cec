//! `larder export`: a directory, or a server's files behind a cache, as an NFS export.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_client::Start;
use larder_nfsd::{Config, Network, Server, SourcePorts};
use larder_remote::local::{LocalDir, LocalOptions, Squash};
use larder_rpc::server;
use larder_vfs::{Direct, FileSystem};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::backend::Backend;
use crate::classes::IfWrong;
use crate::clock::clock;
use crate::control::{Request, Sink};
use crate::error::Usage;
use crate::exported::{self, Answering, Asked};
use crate::log;
use crate::options::parse_span;
use crate::report;
use crate::runtime_dir::RuntimeDir;
use crate::signals::Ends;
use crate::stack::{Engine, Patience};
use crate::state_dir;

/// How long calls in flight may take to end after a signal.
const END_MAX: Duration = Duration::from_secs(10);

/// Arguments of `larder export`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "NFSv3 believes the user ids that a client sends. So only root of an allowed machine may call \
(from a port below 1024; on this machine from any port), unless --insecure is given. If \
larder listens on 127.0.0.1 or ::1, this machine alone is allowed, otherwise every machine, \
unless --allow is given. Root of another machine is treated as nobody, unless \
--no-root-squash is given.\n\nExample:\n  larder export /srv/data --listen 127.0.0.1:12049\n  larder stat --export 127.0.0.1:12049\n  larder cache warm 127.0.0.1:12049/projects\n  larder export --source smb://ann@server/share -o credentials=/etc/larder/share \\\n    --cache /var/cache/larder/share --listen 192.0.2.1:12049"
)]
pub(crate) struct Args {
    /// The directory, exported as /
    #[arg(value_name = "DIR", required_unless_present = "source")]
    dir: Option<PathBuf>,
    /// Export this instead: a server's files behind a cache, named as for `larder mount`
    #[arg(long, value_name = "SOURCE", conflicts_with_all = ["dir", "shared"])]
    source: Option<String>,
    /// Directory of the cache, or `none`, as with `larder mount`
    #[arg(long, value_name = "DIR|none", requires = "source")]
    cache: Option<PathBuf>,
    /// Options of the source, as with `larder mount`
    #[arg(short, value_name = "OPT[=VALUE],...", requires = "source")]
    options: Vec<String>,
    /// Where to listen, for NFS and MOUNT, over TCP and UDP (unless --no-udp); port 0 chooses a
    /// free one
    #[arg(long, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Treat root of a client as nobody [default: unless it listens on this machine alone]
    #[arg(long, conflicts_with = "no_root_squash")]
    root_squash: bool,
    /// Treat root of a client as root
    #[arg(long)]
    no_root_squash: bool,
    /// Which machines may call, as in 192.0.2.0/24; may be given more than once
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Listen over TCP only, because the sender of a datagram can be forged
    #[arg(long)]
    no_udp: bool,
    /// Accept calls from ports above 1023 too: every user on a client machine can then claim to be
    /// any other
    #[arg(long)]
    insecure: bool,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Say that other processes change names in the directory while it is exported, or that its
    /// file system has no leases: the export then tells clients less about their own changes, and
    /// they ask and read more
    #[arg(long)]
    shared: bool,
    /// Answer changes of names and attributes before they are on the disk, as `async` of
    /// exports(5) does: a crash of this machine may undo what was answered
    #[arg(long, conflicts_with = "source")]
    async_names: bool,
    /// For benchmarks: each operation of the disk (a sync, a read that is not in memory) takes
    /// this long, one after the other
    #[arg(long, value_name = "TIME", value_parser = parse_span, conflicts_with = "source")]
    disk_latency: Option<Duration>,
}

/// What is exported.
enum Exported {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A cached server.
    Source { back: Box<Backend>, engine: Engine },
}

/// Serves until a signal arrives, then lets calls in flight end.
///
/// # Errors
/// If what is to be exported, or the address, cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    let runtime = crate::runtime::start()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<()> {
    // Before anything is made: from now on a signal ends the process in order.
    let mut ends = Ends::begin()?;
    let (exported, server) = args.open().await?;
    let exported = Arc::new(exported);
    let answering = exported.answering(&server);
    tracing::info!(%exported, address = %server.addr(), "exported");
    let shutdown = server.shutdown();
    let mut served = std::pin::pin!(server.run());
    tokio::select! {
        () = &mut served => {}
        () = ends.come() => {}
    }
    // While this process still has the address: afterwards another export may start and answer
    // under this name.
    drop(answering);
    shutdown.begin();
    if clock().timeout(END_MAX, served).await.is_err() {
        tracing::warn!("calls in flight did not end in {END_MAX:?}");
    }
    exported.close().await
}

impl Exported {
    /// Answers `larder stat --export`. If that is impossible, the export serves nevertheless.
    fn answering(self: &Arc<Self>, server: &Server) -> Option<Answering> {
        let counted = server.stats_reader();
        let asked = Behind { exported: Arc::downgrade(self), runtime: Handle::current() };
        let answering = RuntimeDir::open().and_then(|runtime| {
            exported::answer(&runtime, server.addr(), self.to_string(), counted, asked)
        });
        answering.inspect_err(|error| tracing::warn!("larder stat cannot ask: {error:#}")).ok()
    }

    /// The engine that serves a source; a directory has none.
    fn engine(&self) -> Option<&Engine> {
        match self {
            Exported::Directory(_) => None,
            Exported::Source { engine, .. } => Some(engine),
        }
    }

    /// Makes durable what is not: only this process has it.
    async fn close(&self) -> Result<()> {
        match self {
            Exported::Directory(dir) => {
                let flushed =
                    std::fs::File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
                flushed.with_context(|| format!("cannot flush {}", dir.display()))
            }
            Exported::Source { engine, .. } => {
                let written = clock().timeout(END_MAX, engine.client.write_back_all()).await;
                if !matches!(written, Ok(Ok(()))) {
                    tracing::warn!(
                        "what the server did not take stays in the cache, and is sent next time"
                    );
                }
                engine.close()
            }
        }
    }
}

/// What is behind the export, for answering commands; it may have ended.
struct Behind {
    exported: Weak<Exported>,
    runtime: Handle,
}

impl Asked for Behind {
    fn behind(&self) -> Option<report::Behind> {
        let exported = self.exported.upgrade()?;
        let engine = exported.engine()?;
        let rpc = engine.server.rpc().procedures;
        Some(report::Behind { rpc, cache: engine.cache_state() })
    }

    fn answer(&self, request: &Request, sink: &mut dyn Sink) -> Option<Result<Value>> {
        let exported = self.exported.upgrade()?;
        let engine = exported.engine()?;
        Some(match request {
            Request::Status => serde_json::to_value(engine.status()).map_err(Into::into),
            other => engine.carry_out(&self.runtime, other, sink),
        })
    }
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exported::Directory(dir) => write!(f, "{}", dir.display()),
            Exported::Source { back, .. } => write!(f, "{}", back.source),
        }
    }
}

impl Args {
    /// Opens what is exported, with the NFS server in front of it.
    async fn open(&self) -> Result<(Exported, Server)> {
        let (exported, fs) = match (&self.dir, &self.source) {
            (Some(dir), _) => self.directory(dir).await?,
            (None, Some(source)) => self.cached(source).await?,
            (None, None) => bail!(Usage("say what to export: DIR, or --source SOURCE".to_owned())),
        };
        let bound = Server::bind(self.config()?, fs).await;
        if bound.is_err()
            && let Exported::Source { engine, .. } = &exported
        {
            engine.close()?;
        }
        Ok((exported, bound?))
    }

    /// A local directory: nothing is cached.
    async fn directory(&self, dir: &Path) -> Result<(Exported, Arc<dyn FileSystem>)> {
        let squash = if self.squashes_root() { Squash::Root } else { Squash::None };
        let options = LocalOptions {
            squash,
            read_only: self.read_only,
            shared: self.shared,
            durable_names: !self.async_names,
            disk_latency: self.disk_latency.unwrap_or_default(),
            ..LocalOptions::default()
        };
        let key = state_dir::handle_key()?;
        let fs = Direct::new(Arc::new(LocalDir::open(dir, options, &key)?)).await;
        let fs = fs.with_context(|| format!("cannot export {}", dir.display()))?;
        Ok((Exported::Directory(dir.to_owned()), Arc::new(fs)))
    }

    /// A server, behind a cache.
    async fn cached(&self, source: &str) -> Result<(Exported, Arc<dyn FileSystem>)> {
        let mut back =
            Backend::find(source, self.cache.as_deref(), &self.options, IfWrong::Refuse)?;
        back.options.flags.read_only |= self.read_only;
        let engine = Engine::build(&back, None, Start::NewMount, Patience::Full).await;
        let engine = engine.map_err(|unreached| unreached.why)?;
        let fs = Arc::new(engine.client.clone());
        Ok((Exported::Source { back: Box::new(back), engine }, fs))
    }

    fn config(&self) -> Result<Config> {
        let default = Config::new(self.listen);
        let rpc = server::Config {
            allow: match self.allow.as_slice() {
                [] if self.listens_here_only() => default.rpc.allow,
                [] => vec!["0.0.0.0/0".parse()?, "::/0".parse()?],
                networks => networks.to_vec(),
            },
            udp: !self.no_udp,
            source_ports: if self.insecure { SourcePorts::Any } else { SourcePorts::Reserved },
            ..default.rpc
        };
        Ok(Config {
            rpc,
            // If another process changes names in the directory, the attributes show it, except in
            // the microseconds between reading them and changing; see `--shared`.
            sole_front_door: !self.shared && self.source.is_none(),
            // For a directory, `Directory` applies its own rules to the ids that it gets.
            squash_root: self.source.is_some() && self.squashes_root(),
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
            dir: None,
            source: None,
            cache: None,
            options: Vec::new(),
            listen: listen.parse().unwrap(),
            root_squash,
            no_root_squash,
            allow: Vec::new(),
            no_udp: false,
            insecure: false,
            read_only: false,
            shared: false,
            async_names: false,
            disk_latency: None,
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
    fn the_callers_that_are_allowed_follow_from_the_address() {
        let other: IpAddr = "192.0.2.9".parse().unwrap();
        let allows = |listen| {
            let config = args(listen, false, false).config().unwrap();
            config.rpc.allow.iter().any(|network| network.contains(other))
        };
        assert!(!allows("127.0.0.1:1"));
        assert!(allows("192.0.2.1:1"));
    }
}
