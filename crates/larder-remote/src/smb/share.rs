//! The share: the steps that all operations have in common. They turn paths into opens, and check
//! identities.

use super::attr::{Info, Shape};
use super::channel::Channel;
use super::connector::Connector;
use super::files::{File, Files, Moment, ServerOpen};
use super::frames::LeaseKey;
use super::link::{Link, Op, Reply, garbled};
use super::locked::LockedFiles;
use super::mount::MountOptions;
use super::moves::{Move, Moves, Stay};
use super::paths::Paths;
use super::snapshots::Snapshots;
use super::standing::StandingOpens;
use super::status::Failure;
use super::symlink_files::Symlinks;
use super::wire::{self, Granted, LeaseRequest, Opening, PREVIOUS};
use super::{handle, names};
use larder_rpc::stats::Procedures;
use larder_vfs::{Error, Found, Handle, RemoteLimits, Result, Watcher};
use smb2::msg::create::{CreateAction, CreateResponse};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::status::NtStatus;
use std::ffi::OsStr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Most directories that are watched at the same time. Servers bound the requests that they keep
/// pending.
const WATCHES_MAX: usize = 256;

/// The description of the file at a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) info: Info,
    /// The rights that the server grants this login, if they were requested and reported.
    pub(super) maximal: Option<u32>,
}

/// A file that was opened.
pub(super) struct Opened {
    pub(super) open: ServerOpen,
    pub(super) info: Info,
    /// What its lease covers.
    pub(super) lease: Option<Granted>,
    pub(super) maximal: Option<u32>,
    /// It was not there before.
    pub(super) created: bool,
}

/// The root of a share, and what its description says about the share.
pub(super) struct Root {
    pub(super) handle: Handle,
    /// Its path in the share.
    pub(super) path: String,
    pub(super) volume: u64,
    pub(super) limits: RemoteLimits,
    /// The server makes ids up.
    pub(super) by_path: bool,
    /// Whether the server has leases and they are wanted.
    pub(super) leases: bool,
}

/// A mounted share.
pub(super) struct Share {
    pub(super) options: MountOptions,
    /// At least one.
    pub(super) channels: Vec<Channel>,
    pub(super) shape: Shape,
    pub(super) limits: RemoteLimits,
    pub(super) files: Files,
    pub(super) standing: StandingOpens,
    pub(super) locks: LockedFiles,
    pub(super) snapshots: Mutex<Snapshots>,
    pub(super) symlinks: Symlinks,
    pub(super) watcher: OnceLock<Weak<dyn Watcher>>,
    pub(super) watches: Arc<Semaphore>,
    /// One notice is asked for at a time.
    pub(super) watching: tokio::sync::Mutex<()>,
    /// Hidden names given so far.
    pub(super) hidden: AtomicU64,
    /// Makes verifiers of this mount differ from those of others.
    pub(super) mount_id: u64,
    /// Whether the server has leases and they are wanted.
    pub(super) leases: bool,
    pub(super) accounts: Arc<Procedures>,
    paths: Mutex<Paths>,
    moves: Moves,
    root: Handle,
    volume: u64,
    /// The server makes ids up.
    by_path: bool,
    pub(super) connector: Arc<Connector>,
}

impl Share {
    /// A share of which only the root is known. It receives no messages from its connections yet
    /// ([`Share::listen`]).
    pub(super) fn new(
        options: &MountOptions,
        connector: Arc<Connector>,
        accounts: Arc<Procedures>,
        channels: Vec<Channel>,
        root: Root,
    ) -> Share {
        let mount_id = std::hash::BuildHasher::hash_one(
            &std::collections::hash_map::RandomState::new(),
            std::process::id(),
        );
        Share {
            channels,
            shape: Shape::new(options, root.volume),
            limits: root.limits,
            options: options.clone(),
            files: Files::new(Arc::clone(&options.clock)),
            standing: StandingOpens::default(),
            locks: LockedFiles::default(),
            snapshots: Mutex::new(Snapshots::new(mount_id)),
            symlinks: Symlinks::default(),
            watcher: OnceLock::new(),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            watching: tokio::sync::Mutex::default(),
            mount_id,
            hidden: AtomicU64::default(),
            leases: root.leases,
            accounts,
            paths: Mutex::new(Paths::new(root.handle.clone(), root.path)),
            moves: Moves::default(),
            root: root.handle,
            volume: root.volume,
            by_path: root.by_path,
            connector,
        }
    }

    pub(super) fn root(&self) -> &Handle {
        &self.root
    }

    pub(super) fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While the result lives, no directory above one of `files` is renamed.
    pub(super) async fn stay(&self, files: &[&Handle]) -> Stay<'_> {
        self.moves.stay(files, |file, dir| self.paths().is_below(file, dir)).await
    }

    /// While the result lives, no call is under way on what lies below `dir`, which is to be
    /// renamed from one of `ends` to the other.
    pub(super) async fn begin_move(&self, dir: &Handle, ends: [&Handle; 2]) -> Move<'_> {
        self.moves.begin(dir, ends, |file, dir| self.paths().is_below(file, dir)).await
    }

    /// The path that leads to a file.
    pub(super) fn path(&self, file: &Handle) -> Result<String> {
        self.paths().path(file)
    }

    /// The path of a name in a directory, and the component to know it by.
    pub(super) fn path_in(&self, dir: &Handle, name: &OsStr) -> Result<(String, String)> {
        let component = names::component(name, self.limits.name_max)?;
        Ok((names::join(&self.path(dir)?, &component), component))
    }

    /// The handle of a file, unless they are made of paths.
    pub(super) fn handle(&self, info: &Info) -> Option<Handle> {
        (!self.by_path).then(|| info.identity().handle(self.volume))
    }

    /// Records what a name stands for.
    pub(super) fn found(&self, dir: &Handle, component: &str, info: &Info) -> Found {
        let mut paths = self.paths();
        let handle = self.handle(info).unwrap_or_else(|| {
            let path = paths.path(dir).map(|dir| names::join(&dir, component));
            Paths::handle_by_path(&path.unwrap_or_default())
        });
        paths.learn(dir, component, &handle);
        Found { handle, attr: info.attr(&self.shape) }
    }

    /// # Errors
    /// [`Error::Stale`] if that is not the file with the handle `file`.
    pub(super) fn verify(&self, file: &Handle, info: &Info) -> Result<(), Failure> {
        match self.handle(info) {
            Some(found) if found != *file => Err(self.lost_track(file)),
            _ => Ok(()),
        }
    }

    /// The meaning of a missing object at the path of `file`.
    pub(super) fn gone(&self, file: &Handle, failure: Failure) -> Failure {
        match failure.is_absence() || failure.is_pathless() {
            true => self.lost_track(file),
            false => failure,
        }
    }

    fn lost_track(&self, file: &Handle) -> Failure {
        self.paths().mistaken(file);
        if let Some(file) = self.files.leave(file) {
            let left = file.opens.try_lock().map(|mut opens| opens.take_to_give_back());
            match left {
                // Its close has begun when this returns, so that a rename can wait for it.
                Ok(open) => drop(open),
                Err(_) => {
                    tokio::spawn(async move { file.opens.lock().await.give_back().await });
                }
            }
        }
        Failure::Is(Error::Stale)
    }

    /// Describes what is at a path.
    pub(super) async fn look(
        &self,
        link: &Arc<Link>,
        path: String,
        maximal: bool,
    ) -> Result<Seen, Failure> {
        look(link, Opening { maximal, ..Opening::existing(path, wire::LOOK) }).await
    }

    /// Looks at a file, and checks that it is the one.
    pub(super) async fn look_at(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        maximal: bool,
    ) -> Result<Seen, Failure> {
        let entry = self.files.get(file);
        let since = entry.as_deref().map(File::moment);
        let seen = self.look(link, self.path(file)?, maximal).await;
        let seen = seen.map_err(|failure| self.gone(file, failure))?;
        self.verify(file, &seen.info)?;
        if let (Some(entry), Some(since)) = (entry, since) {
            entry.saw(since, seen.info);
        }
        Ok(seen)
    }

    /// Looks at a directory that something is about to change in.
    pub(super) async fn directory(&self, link: &Arc<Link>, dir: &Handle) -> Result<Info, Failure> {
        let seen = self.look_at(link, dir, false).await?;
        match seen.info.is_directory() {
            true => Ok(seen.info),
            false => Err(Failure::Is(Error::NotDirectory)),
        }
    }

    /// Opens a file by its handle, and checks that it is the one.
    pub(super) async fn open_file(
        &self,
        link: &Arc<Link>,
        file: &Handle,
        access: u32,
        options: u32,
    ) -> Result<Opened, Failure> {
        let keyed = self.own_key(link, file, access);
        let lease = keyed.as_ref().map(|keyed| keyed.request);
        let opening = Opening { options, lease, ..Opening::existing(self.path(file)?, access) };
        // Servers give no lease with an open for attributes. A client that has one may read the
        // file.
        let is_blind = access & wire::DATA == 0 && lease.is_some_and(|lease| lease.alone);
        let reading = Opening { access: access | wire::READ, ..opening.clone() };
        let opened = match is_blind {
            true => match open(link, reading).await {
                Err(Failure::Status(NtStatus::ACCESS_DENIED)) => open(link, opening).await,
                opened => opened,
            },
            false => open(link, opening).await,
        };
        let opened = opened.map_err(|failure| self.gone(file, failure))?;
        self.verify(file, &opened.info)?;
        if let Some(keyed) = keyed {
            keyed.opened(&opened);
        }
        Ok(opened)
    }

    /// The key with which to open a file that has a lease, so that this open does not break it;
    /// `None` if it would not.
    pub(super) fn own_key(&self, link: &Link, file: &Handle, access: u32) -> Option<Keyed> {
        let entry = self.files.get(file)?;
        let lease = entry.lease()?;
        // Reading breaks no read lease.
        let breaks = access & wire::CHANGE != 0 || !lease.ends_late();
        let request = lease_request(link, entry.key, !handle::is_directory(file));
        breaks.then(|| Keyed { request, since: entry.moment(), entry })
    }
}

/// The key of a lease of ours, for another open of its file.
pub(super) struct Keyed {
    pub(super) request: LeaseRequest,
    since: Moment,
    entry: Arc<File>,
}

impl Keyed {
    /// That open is made.
    pub(super) fn opened(&self, opened: &Opened) {
        opened.open.bear_key(&self.entry);
        if opened.lease == Some(Granted::Alone) {
            self.entry.found_alone(self.since, &opened.info);
        }
    }
}

/// A lease under this key, in the form that the connection speaks.
pub(super) fn lease_request(link: &Link, key: LeaseKey, alone: bool) -> LeaseRequest {
    LeaseRequest { key, alone, v2: link.has_leases_v2() }
}

/// Opens, describes and closes.
pub(super) async fn look(link: &Arc<Link>, opening: Opening) -> Result<Seen, Failure> {
    let ops = vec![opening.op(), wire::query(PREVIOUS), wire::close(PREVIOUS)];
    let replies = link.chain(ops).await?;
    let [created, seen, _] = &replies[..] else { return Err(Failure::Lost) };
    let created = created.read::<CreateResponse>()?;
    let info = Info::parse(&seen.read::<QueryInfoResponse>()?.output_buffer).map_err(garbled)?;
    let maximal = wire::granted(&created.create_contexts).1;
    Ok(Seen { info, maximal })
}

/// Opens, does these things and closes, in one message.
pub(super) async fn act(
    link: &Arc<Link>,
    opening: &Opening,
    things: Vec<Op>,
) -> Result<(), Failure> {
    let mut ops = vec![opening.op()];
    ops.extend(things);
    ops.push(wire::close(PREVIOUS));
    let mut replies = link.chain(ops).await?.into_iter();
    replies.next().ok_or(Failure::Lost)?.read::<CreateResponse>()?;
    // The last one is that of the close.
    replies.try_for_each(|reply| reply.check())
}

/// Opens and describes. If the caller gives up, the open is closed as soon as it is made, and
/// [`Link::closed_all`] waits for that.
pub(super) async fn open(link: &Arc<Link>, opening: Opening) -> Result<Opened, Failure> {
    Ok(open_and(link, opening, Vec::new).await?.0)
}

/// A file that was opened, and the replies to further requests.
type OpenedAnd = Result<(Opened, Vec<Reply>), Failure>;

/// The same, with `further` requests in that message, whose replies are returned.
pub(super) async fn open_and(
    link: &Arc<Link>,
    opening: Opening,
    further: fn() -> Vec<Op>,
) -> OpenedAnd {
    let own = Arc::clone(link);
    let opening = link.runtime().spawn(async move {
        let ops = |opening: &Opening| {
            let mut ops = vec![opening.op(), wire::query(PREVIOUS)];
            ops.extend(further());
            ops
        };
        let mut replies = own.chain(ops(&opening)).await?;
        let refused = replies.first().is_some_and(|one| one.status == NtStatus::INVALID_PARAMETER);
        if let (true, Some(_)) = (refused, opening.lease) {
            // The key is in use under another name of the file.
            let opening = Opening { lease: None, ..opening };
            replies = own.chain(ops(&opening)).await?;
        }
        let mut replies = replies.into_iter();
        let created = replies.next().ok_or(Failure::Lost)?.read::<CreateResponse>()?;
        let open = ServerOpen::new(own, created.file_id, opening.access);
        let is_new = created.create_action == CreateAction::FileCreated;
        let info = replies.next().ok_or(Failure::Lost)?.read::<QueryInfoResponse>()?;
        let info = Info::parse(&info.output_buffer).map_err(garbled)?;
        let (lease, maximal) = wire::granted(&created.create_contexts);
        let opened = Opened { open, info, lease, maximal, created: is_new };
        Ok((opened, replies.collect()))
    });
    let mut awaited = Awaited { link, opening: Some(opening) };
    let opened = awaited.opening.as_mut().expect("it is taken when it is dropped").await;
    awaited.opening = None;
    opened.unwrap_or(Err(Failure::Lost))
}

/// An open that is being made, until its caller has it.
struct Awaited<'a> {
    link: &'a Arc<Link>,
    opening: Option<JoinHandle<OpenedAnd>>,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        let Some(opening) = self.opening.take() else { return };
        self.link.close_given_up(async {
            if let Ok(Ok((opened, _))) = opening.await {
                opened.open.close_alone().await;
            }
        });
    }
}
