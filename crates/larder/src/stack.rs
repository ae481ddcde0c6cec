//! Assembles the stack of a mount, in one readable function.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use larder_cache::{Cache, Limits};
use larder_client::{Client, Start, last_path};
use larder_io::{Clock, Rate, RealClock};
use larder_names::{Licence, Names};
use larder_remote::later::Remembered;
use larder_remote::switch::{BeforeOff, Switch};
use larder_vfs::{Error, Remote};
use tokio::sync::mpsc::UnboundedSender;

use crate::backend::Backend;
use crate::cache_dir;
use crate::event::Event;
use crate::front_door::{self, FrontDoor};
use crate::hoard::Hoard;
use crate::link::Hold;
use crate::memory_dir;
use crate::options::{Fill, LookupCache, Remakes};
use crate::plan::Plan;
use crate::rebuild::{AtAccess, AtOnce};
use crate::remembered;
use crate::report::{CacheState, KernelState};
use crate::server::{Server, Unreached};
use crate::source::Protocol;

/// How long a server that was never reached may take for its first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as any call may take.
    Full,
    /// Some seconds: a command waits, and it will be tried again.
    Short,
}

/// Everything behind a front door: the server, the cache, and the client over both.
pub(crate) struct Engine {
    /// The server.
    pub(crate) server: Server,
    /// Switches the server off, on mounts that may work without it.
    pub(crate) switch: Option<Arc<Switch>>,
    /// The cache.
    pub(crate) cache: Cache,
    /// Its directory, if it is on disk.
    pub(crate) cache_dir: Option<PathBuf>,
    /// The brain.
    pub(crate) client: Client,
    /// Keeps pinned trees whole.
    pub(crate) hoard: Hoard,
    /// How many bytes per second are sent without a caller that waits for them.
    pub(crate) rate: Arc<Rate>,
}

/// Everything that a mount is made of, from the server up.
pub(crate) struct Stack {
    pub(crate) engine: Engine,
    /// The kernel's front door.
    front_door: FrontDoor,
    /// Makes lost files again, if the mount does that.
    pub(crate) at_access: Option<Arc<AtAccess>>,
    /// The same for files that nobody has opened.
    at_once: Option<AtOnce>,
}

/// Builds a mount: the engine, with the kernel's front door.
///
/// # Errors
/// The first step that fails; those before it are undone. The error says whether another attempt
/// may succeed.
pub(crate) async fn build(
    plan: &Plan,
    hold: &Hold,
    events: &UnboundedSender<Event>,
    patience: Patience,
) -> Result<Stack, Unreached> {
    let start = if hold.goes_on() { Start::Resume } else { Start::NewMount };
    let engine = Engine::build(&plan.back, Some(&plan.mountpoint), start, patience).await?;
    let on_disk = engine.cache_dir.is_some();
    let front_door = front_door::open(plan, engine.client.clone(), on_disk, hold, events).await?;
    let remakes = plan.back.remakes();
    let at_access = (remakes >= Remakes::AtAccess).then(|| {
        let at_access = Arc::new(AtAccess::new(&plan.mountpoint, Arc::new(RealClock)));
        engine.client.remake_by(at_access.clone());
        at_access
    });
    let wanted = at_access.clone().filter(|_| remakes == Remakes::AtOnce);
    let at_once = wanted.zip(engine.server.volume()).map(|(making, volume)| {
        AtOnce::begin(making, volume, engine.client.clone(), Arc::new(RealClock))
    });
    Ok(Stack { engine, front_door, at_access, at_once })
}

impl Engine {
    /// Builds what is behind a front door. The cache must not be in `mountpoint`, if there is one.
    ///
    /// # Errors
    /// The first step that fails; those before it are undone. The error says whether the server may
    /// answer later.
    pub(crate) async fn build(
        back: &Backend,
        mountpoint: Option<&Path>,
        start: Start,
        patience: Patience,
    ) -> Result<Engine, Unreached> {
        if let Some(error) = &back.wrong_classes {
            tracing::error!(%error, "every file has the strongest class until that is mended");
        }
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let open = || back.open_cache(mountpoint, clock.clone());
        let known = match back.may_begin_without_server(start).then(open).transpose()? {
            Some(opened) => match remembered::of(&opened.0) {
                Some(known) => Some((known, opened)),
                // It is of no use without the server.
                None => {
                    opened.0.close().context("the cache could not be closed")?;
                    None
                }
            },
            None => None,
        };
        let (server, (cache, cache_dir)) = match known {
            Some((known, opened)) => (back.reach_or_go_on(start, known).await?, opened),
            // If it cannot be reached, no cache is made.
            None => {
                let reached = match patience {
                    Patience::Full => Server::reach(back).await,
                    Patience::Short => Server::reach_soon(back).await,
                };
                (reached.map_err(|unreached| back.with_advice(unreached))?, open()?)
            }
        };
        if let Some(known) = server.known() {
            remembered::keep(&cache, &known);
        }
        for no in cache.lost_in_memory() {
            let path = last_path(&cache, *no).unwrap_or_default();
            tracing::error!(path = %path.display(),
                "what was written last was in this machine's memory alone, and is lost with it");
        }
        let (mut options, session) = (client_options(back), session_number()?);
        options.rate = Arc::new(Rate::new(limit(back, &cache, start)));
        let switch = back.options.offline.then(|| {
            let by_hand = remembered::is_offline(&cache);
            let before_off = checkpoint_of(cache.clone());
            Arc::new(Switch::new(server.remote(), clock.clone(), by_hand, before_off))
        });
        let remote: Arc<dyn Remote> = match &switch {
            Some(switch) => switch.clone(),
            None => server.remote(),
        };
        let rate = options.rate.clone();
        let remote = back.with_names(remote, &cache, (&clock, &rate));
        let client =
            Client::new(remote, cache.clone(), clock.clone(), options, session, start).await;
        let client = client.with_context(|| format!("cannot mount {}", back.source))?;
        let hoard = Hoard::begin(client.clone(), cache.clone(), clock, back.options.hoard);
        Ok(Engine { server, switch, cache, cache_dir, client, hoard, rate })
    }

    /// The cache on disk, if there is one.
    pub(crate) fn cache_state(&self) -> Option<CacheState> {
        let dir = self.cache_dir.as_ref()?.display().to_string();
        let usage = self.cache.usage();
        Some(CacheState {
            dir,
            bytes: usage.bytes,
            bytes_max: usage.bytes_max,
            files: usage.files,
            files_max: usage.files_max,
            commits: usage.commits,
            logged: usage.logged,
            hits: usage.hits,
            misses: usage.misses,
            declined: usage.declined,
            culled: usage.culled,
            bad_chunks: usage.bad_chunks,
            set_aside: usage.set_aside,
            failed: usage.poisoned,
        })
    }

    /// Ends all calls, and closes client and cache, after the front door was closed: the next start
    /// finds a clean cache. Blocks for a bounded time.
    ///
    /// # Errors
    /// If the cache could not be closed.
    pub(crate) fn close(&self) -> Result<()> {
        self.hoard.end();
        self.server.leave();
        self.client.end_mount();
        let closed = self.cache.clone().close();
        if let Some(dir) = &self.cache_dir {
            memory_dir::remove(dir);
        }
        closed.context("the cache could not be closed; its next start checks it")
    }
}

/// Brings what the cache has in memory to its disk.
fn checkpoint_of(cache: Cache) -> BeforeOff {
    Arc::new(move || {
        let cache = cache.clone();
        Box::pin(async move {
            let done = tokio::task::spawn_blocking(move || cache.checkpoint()).await;
            done.map_err(|_| Error::Io)?.map_err(|_| Error::Io)
        })
    })
}

impl Backend {
    /// The server with the names that are made here, or were made here by an earlier mount.
    fn with_names(
        &self,
        server: Arc<dyn Remote>,
        cache: &Cache,
        (clock, rate): (&Arc<dyn Clock>, &Arc<Rate>),
    ) -> Arc<dyn Remote> {
        let is_leased = self.source.protocol == Protocol::Native;
        let exclusive = self.options.exclusive;
        let licence = Licence {
            sole: exclusive && !is_leased,
            leased: exclusive && is_leased,
            offline: self.options.offline,
        };
        if licence == Licence::default() && !Names::are_in(cache) {
            return server;
        }
        let names = Names::new(server, cache.clone(), clock.clone(), &host(), licence);
        Arc::new(names.limited_by(rate.clone()))
    }

    /// Opens the cache, and says where it is, if that is on disk.
    fn open_cache(
        &self,
        mountpoint: Option<&Path>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Cache, Option<PathBuf>)> {
        match &self.cache {
            Some(dir) => {
                let opened = {
                    let limits = (&self.options.cache, self.options.scratch_bytes_max);
                    cache_dir::open(dir, &self.source, limits, mountpoint)?
                };
                Ok((opened.cache, Some(opened.dir)))
            }
            None => Ok((Cache::in_memory(clock, Limits::in_memory())?, None)),
        }
    }

    /// Whether there may be a cache that knows the server, and knows enough to begin.
    fn may_begin_without_server(&self, start: Start) -> bool {
        let wanted = start == Start::Resume || self.options.background;
        wanted && self.cache.as_ref().is_some_and(|dir| dir.exists())
    }

    /// Reaches the server, or begins with what is `known` of it. A mount that is to continue does
    /// so even if the server refuses it now.
    async fn reach_or_go_on(&self, start: Start, known: Remembered) -> Result<Server> {
        match Server::reach_soon(self).await {
            Err(Unreached { is_away, why }) if is_away || start == Start::Resume => {
                tracing::warn!("{why:#}; serving what is cached meanwhile");
                Server::reach_later(self, known, format!("{why:#}"))
            }
            reached => reached.map_err(|unreached| unreached.why),
        }
    }

    /// Why there is no mount, and what would help.
    fn with_advice(&self, Unreached { is_away, why }: Unreached) -> Unreached {
        let would_help = is_away && !self.options.background;
        let why = match self.cache.as_ref().filter(|dir| would_help && dir.exists()) {
            Some(dir) => anyhow!("{why:#}; option bg mounts what {} holds of it", dir.display()),
            None => why,
        };
        Unreached { is_away, why }
    }
}

/// How this machine is called.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// How many bytes per second are sent without a caller that waits for them: as the mount's options
/// say, unless a user has changed that since the mount was made.
fn limit(back: &Backend, cache: &Cache, start: Start) -> Option<u64> {
    if start == Start::NewMount {
        remembered::keep_limit(cache, None);
    }
    remembered::limit(cache).unwrap_or(back.options.rate_max)
}

/// A client's options, as the mount's options mean them.
fn client_options(back: &Backend) -> larder_client::Options {
    let options = &back.options;
    let default = larder_client::Options::default();
    let timeouts = options.timeouts;
    // The budget is shared by buffers (a quarter) and nodes (about 2 KiB each with their tables: a
    // quarter); the rest is for the allocator, the kernel's copies and the index's page cache.
    let budget = options.memory_bytes_max;
    larder_client::Options {
        file_ttl: (timeouts.file_min, timeouts.file_max),
        directory_ttl: (timeouts.dir_min, timeouts.dir_max),
        close_to_open: options.close_to_open,
        lookup_cache: match options.lookup_cache {
            LookupCache::All => larder_client::LookupCache::All,
            LookupCache::Positive => larder_client::LookupCache::Positive,
            LookupCache::None => larder_client::LookupCache::None,
        },
        sync: options.sync,
        classes: back.classes.clone(),
        pass_locks: back.passes_locks(),
        has_xattrs: back.has_xattrs(),
        unsent_age_max: options.unsent_age_max.unwrap_or(default.unsent_age_max),
        keeps: back.source.protocol.keeps(),
        host: host(),
        read_only: options.flags.read_only,
        cache_data: back.cache.is_some(),
        read_bytes_max: options.read_max.unwrap_or(default.read_bytes_max),
        write_bytes_max: options.write_max.unwrap_or(default.write_bytes_max),
        buffer_bytes_max: budget.map_or(default.buffer_bytes_max, |bytes| bytes / 4),
        nodes_in_memory_max: budget.map_or(default.nodes_in_memory_max, |bytes| {
            usize::try_from(bytes >> 13).unwrap_or(usize::MAX)
        }),
        fill_after: default
            .fill_after
            .filter(|_| back.cache.is_some() && options.fill != Fill::Off),
        fill_bytes_max: match options.fill {
            Fill::UpTo(bytes) => bytes,
            Fill::Off | Fill::Idle => default.fill_bytes_max,
        },
        ..default
    }
}

/// A number that no earlier run had.
fn session_number() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the kernel gives no random number")?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Stack {
    /// Requests of the kernel by their names, since our process began.
    pub(crate) fn fuse_requests(&self) -> Vec<(String, u64)> {
        self.front_door.requests()
    }

    /// What the kernel, and the client, hold of files.
    pub(crate) fn kernel_state(&self) -> KernelState {
        let larder_fuse::References { given, returned } = self.front_door.references();
        let nodes_in_memory = self.engine.client.status().nodes_in_memory;
        KernelState { given, returned, nodes_in_memory }
    }

    /// Whether the mount is the topmost at its mountpoint.
    pub(crate) fn is_mounted(&self) -> bool {
        self.front_door.is_mounted()
    }

    /// How requests travel from the kernel.
    pub(crate) fn door_transport(&self) -> larder_fuse::Transport {
        self.front_door.transport()
    }

    /// Accepts no more requests of the kernel, and waits until those in flight are answered.
    /// Returns whether they are in time.
    pub(crate) fn leave(&self, wait_max: Duration) -> bool {
        self.at_once.iter().for_each(AtOnce::end);
        self.front_door.leave(wait_max)
    }

    /// Closes everything, beginning with the kernel's side, so that the next mount finds a clean
    /// cache. Blocks for a bounded time.
    ///
    /// # Errors
    /// If the cache could not be closed.
    pub(crate) fn close(&self) -> Result<()> {
        self.at_once.iter().for_each(AtOnce::end);
        self.engine.server.leave();
        self.front_door.close();
        self.engine.close()
    }
}
