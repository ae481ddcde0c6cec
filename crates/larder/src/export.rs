//! An NFS export that this process serves: which callers it admits, what is behind it, and its end.
//!
//! `larder export` is nothing else; `larder serve --nfs` has one beside the servers of its volume.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use larder_client::Start;
use larder_nfsd::{Config, Network, Server, Sockets, SourcePorts};
use larder_rpc::server;
use larder_vfs::FileSystem;
use serde_json::Value;
use tokio::runtime::Handle;

use crate::backend::Backend;
use crate::clock::clock;
use crate::control::{Request, Sink};
use crate::exported::{self, Answering, Asked};
use crate::report;
use crate::runtime_dir::RuntimeDir;
use crate::signals::Ends;
use crate::stack::{Engine, Patience};

/// How long calls in flight may take to end after a signal.
const END_MAX: Duration = Duration::from_secs(10);

/// Where an export listens, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Where to listen; port 0 chooses a free one.
    pub(crate) listen: SocketAddr,
    /// Whether root of a client is nobody; `None`: unless it listens on this machine alone.
    pub(crate) root_squash: Option<bool>,
    /// Which machines may call; none: this machine if it listens there alone, otherwise all.
    pub(crate) allow: Vec<Network>,
    /// Whether to listen over UDP as well.
    pub(crate) udp: bool,
    /// Whether callers may use ports above 1023.
    pub(crate) insecure: bool,
}

impl Terms {
    /// Configuration of an export of a server, which others change too.
    ///
    /// # Errors
    /// None that is known.
    pub(crate) fn config(&self) -> Result<Config> {
        let default = Config::new(self.listen);
        let rpc = server::Config {
            allow: match self.allow.as_slice() {
                [] if self.listens_here_only() => default.rpc.allow,
                [] => vec!["0.0.0.0/0".parse()?, "::/0".parse()?],
                networks => networks.to_vec(),
            },
            udp: self.udp,
            source_ports: if self.insecure { SourcePorts::Any } else { SourcePorts::Reserved },
            ..default.rpc
        };
        Ok(Config { rpc, sole_front_door: false, squash_root: self.squashes_root(), ..default })
    }

    /// Whether root of a client is nobody.
    pub(crate) fn squashes_root(&self) -> bool {
        self.root_squash.unwrap_or(!self.listens_here_only())
    }

    fn listens_here_only(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

/// What the two options of squashing mean, of which one may be given.
pub(crate) fn root_squash(squash: bool, no_squash: bool) -> Option<bool> {
    (squash || no_squash).then_some(squash)
}

/// What is exported.
pub(crate) enum Exported {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A server, with or without a cache.
    Source { back: Box<Backend>, engine: Engine },
}

impl Exported {
    /// Opens a server. Also returns its files.
    ///
    /// # Errors
    /// If it cannot be reached, or the cache cannot be used.
    pub(crate) async fn source(back: Backend) -> Result<(Exported, Arc<dyn FileSystem>)> {
        let engine = Engine::build(&back, None, Start::NewMount, Patience::Full).await;
        let engine = engine.map_err(|unreached| unreached.why)?;
        let fs = Arc::new(engine.client.clone());
        Ok((Exported::Source { back: Box::new(back), engine }, fs))
    }

    /// Serves these files until a signal arrives. Then lets calls in flight end, and makes durable
    /// what is not.
    ///
    /// # Errors
    /// If it cannot be closed in order.
    pub(crate) async fn serve(
        self,
        sockets: Sockets,
        fs: Arc<dyn FileSystem>,
        ends: &mut Ends,
    ) -> Result<()> {
        let server = match sockets.serve(fs).await {
            Ok(server) => server,
            Err(error) => {
                self.close().await?;
                return Err(error.into());
            }
        };
        let exported = Arc::new(self);
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
                match (written, &engine.cache_dir) {
                    (Ok(Ok(())), _) => {}
                    (_, Some(_)) => tracing::warn!(
                        "what the server did not take stays in the cache, and is sent next time"
                    ),
                    (_, None) => tracing::warn!(
                        "what the server did not take is lost, if its writers do not send it again"
                    ),
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

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn terms(listen: &str, root_squash: Option<bool>) -> Terms {
        let (listen, allow) = (listen.parse().unwrap(), Vec::new());
        Terms { listen, root_squash, allow, udp: true, insecure: false }
    }

    #[test]
    fn root_is_squashed_for_other_machines() {
        for (listen, squash, no_squash, squashes) in [
            ("127.0.0.1:1", false, false, false),
            ("127.0.0.1:1", true, false, true),
            ("[::1]:1", false, false, false),
            ("0.0.0.0:1", false, false, true),
            ("192.0.2.1:1", false, false, true),
            ("192.0.2.1:1", false, true, false),
        ] {
            let terms = terms(listen, root_squash(squash, no_squash));
            let squashed = [terms.squashes_root(), terms.config().unwrap().squash_root];
            assert_eq!(squashed, [squashes; 2], "{terms:?}");
        }
    }

    #[test]
    fn the_callers_that_are_allowed_follow_from_the_address() {
        let other: IpAddr = "192.0.2.9".parse().unwrap();
        let allows = |listen| {
            let config = terms(listen, None).config().unwrap();
            config.rpc.allow.iter().any(|network| network.contains(other))
        };
        assert!(!allows("127.0.0.1:1"));
        assert!(allows("192.0.2.1:1"));
    }
}
