//! `larder export`: a directory, or a server's files behind a cache, as an NFS export.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use larder_nfsd::{Config, Network, Sockets};
use larder_remote::local::{LocalDir, LocalOptions, Squash};
use larder_vfs::{Direct, FileSystem};

use crate::backend::Backend;
use crate::classes::IfWrong;
use crate::error::Usage;
use crate::export::{Exported, Terms, root_squash};
use crate::log;
use crate::options::parse_span;
use crate::signals::Ends;
use crate::state_dir;

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

/// Serves until a signal arrives, then lets calls in flight end.
///
/// # Errors
/// If what is to be exported, or the address, cannot be used.
pub(crate) fn run(args: &Args) -> Result<()> {
    log::begin(None)?;
    let runtime = crate::runtime::start()?;
    runtime.block_on(async {
        // Before anything is made: from now on a signal ends the process in order.
        let mut ends = Ends::begin()?;
        let sockets = Sockets::bind(args.config()?).await?;
        let (exported, fs) = args.open().await?;
        exported.serve(sockets, fs, &mut ends).await
    })
}

impl Args {
    /// Opens what is exported.
    async fn open(&self) -> Result<(Exported, Arc<dyn FileSystem>)> {
        match (&self.dir, &self.source) {
            (Some(dir), _) => self.directory(dir).await,
            (None, Some(source)) => {
                let (cache, options) = (self.cache.as_deref(), &self.options);
                let mut back = Backend::find(source, cache, options, IfWrong::Refuse)?;
                back.options.flags.read_only |= self.read_only;
                Exported::source(back).await
            }
            (None, None) => bail!(Usage("say what to export: DIR, or --source SOURCE".to_owned())),
        }
    }

    /// A local directory: nothing is cached.
    async fn directory(&self, dir: &Path) -> Result<(Exported, Arc<dyn FileSystem>)> {
        let squash = if self.terms().squashes_root() { Squash::Root } else { Squash::None };
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

    fn config(&self) -> Result<Config> {
        let config = self.terms().config()?;
        if self.source.is_some() {
            return Ok(config);
        }
        Ok(Config {
            // If another process changes names in the directory, the attributes show it, except in
            // the microseconds between reading them and changing; see `--shared`.
            sole_front_door: !self.shared,
            // `LocalDir` applies its own rules to the ids that it gets.
            squash_root: false,
            ..config
        })
    }

    fn terms(&self) -> Terms {
        Terms {
            listen: self.listen,
            root_squash: root_squash(self.root_squash, self.no_root_squash),
            allow: self.allow.clone(),
            udp: !self.no_udp,
            insecure: self.insecure,
        }
    }
}
