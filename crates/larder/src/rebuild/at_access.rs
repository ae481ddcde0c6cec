//! A mount's lost files are made again: when they are opened for reading, which waits for that; or
//! a few at a time, without anybody waiting ([`super::at_once`]). `larder rebuild` makes them, as a
//! process of its own.
//!
//! Whoever wants one file waits for one process. A file that could not be made is not tried again
//! for a while, so that a program that opens it repeatedly does not repeatedly run a command that
//! fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_client::{Client, Remaker};
use larder_io::{Clock, Monotonic};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::{Semaphore, watch};

use super::inside;
use super::process::{begin_apart, told_by};
use crate::report::{Rebuild, StaysLost};

/// For how long a file that could not be made is not tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Most processes at a time.
const PROCESSES_MAX: usize = 8;

/// Most of them for files that nobody waits for.
const AT_ONCE_MAX: usize = 2;

/// Most files that are remembered as lost.
const REFUSED_MAX: usize = 100;

/// How long it may take to look whether these are still lost.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// How long killed processes may take to end.
const KILLED_MAX: Duration = Duration::from_secs(1);

/// Makes files of a mount.
pub(crate) struct AtAccess {
    mountpoint: PathBuf,
    clock: Arc<dyn Clock>,
    room: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Files that are being made, and whether that has ended.
    running: BTreeMap<PathBuf, watch::Receiver<Option<bool>>>,
    /// Files that stay lost, the reason, and since when.
    refused: BTreeMap<PathBuf, (String, Monotonic)>,
    /// How many processes have made files.
    made: u64,
    at_once: AtOnce,
}

/// Files for which nobody waits.
#[derive(Default)]
struct AtOnce {
    waiting: BTreeSet<PathBuf>,
    /// Those that are being made, and the process, once there is one.
    running: BTreeMap<PathBuf, Option<OwnedFd>>,
    /// None is made at present.
    is_paused: bool,
}

/// Who wants a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// A process that waits.
    Access,
    /// Nobody yet.
    Later,
}

impl AtAccess {
    pub(crate) fn new(mountpoint: &Path, clock: Arc<dyn Clock>) -> AtAccess {
        AtAccess {
            mountpoint: mountpoint.to_owned(),
            clock,
            room: Arc::new(Semaphore::new(PROCESSES_MAX)),
            state: Arc::default(),
        }
    }

    /// Files that could not be made.
    pub(crate) fn stay_lost(&self) -> Vec<StaysLost> {
        let state = lock(&self.state);
        let told = |(path, (why, _)): (&PathBuf, &(String, Monotonic))| StaysLost {
            path: self.mountpoint.join(path).display().to_string(),
            why: why.clone(),
        };
        state.refused.iter().map(told).collect()
    }

    /// What is being made, and was.
    pub(crate) fn status(&self) -> Rebuild {
        let State { running, made, at_once, .. } = &*lock(&self.state);
        Rebuild {
            made: *made,
            running: running.len() as u64,
            waiting: at_once.waiting.len() as u64,
        }
    }

    /// Forgets files that could not be made and are not lost any more, whoever made or removed
    /// them. Ends in time even if the server does not answer.
    pub(crate) async fn look_again(&self, client: &Client) {
        let refused: Vec<_> = {
            let state = lock(&self.state);
            state.refused.iter().map(|(path, (_, since))| (path.clone(), *since)).collect()
        };
        let look = async {
            for (path, since) in refused {
                if inside::has(client, &path, inside::LOST).await == Ok(false) {
                    let mut state = lock(&self.state);
                    let is_same = |(_, now): &(String, Monotonic)| *now == since;
                    if state.refused.get(&path).is_some_and(is_same) {
                        state.refused.remove(&path);
                    }
                }
            }
        };
        // Those that were not looked at stay listed.
        let _ = self.clock.timeout(LOOK_MAX, look).await;
    }

    /// Makes a file as soon as few others are being made.
    pub(super) fn make_soon(self: &Arc<Self>, path: PathBuf) {
        lock(&self.state).at_once.waiting.insert(path);
        self.go_on();
    }

    /// Makes no file any more for which nobody waits; those that are being made wait again. Returns
    /// when nothing of that uses the mount any more.
    pub(crate) async fn pause(&self) {
        {
            let at_once = &mut lock(&self.state).at_once;
            at_once.is_paused = true;
            at_once.running.values().flatten().for_each(kill);
        }
        let mut running: Vec<_> = {
            let state = lock(&self.state);
            let running = state.at_once.running.keys();
            running.filter_map(|path| state.running.get(path).cloned()).collect()
        };
        let ended = async {
            for one in &mut running {
                // Gone is ended.
                let _ = one.wait_for(Option::is_some).await;
            }
        };
        let _ = self.clock.timeout(KILLED_MAX, ended).await;
    }

    /// Goes on after [`AtAccess::pause`].
    pub(crate) fn resume(self: &Arc<Self>) {
        lock(&self.state).at_once.is_paused = false;
        self.go_on();
    }

    fn go_on(self: &Arc<Self>) {
        let mut begun = Vec::new();
        {
            let at_once = &mut lock(&self.state).at_once;
            while !at_once.is_paused
                && at_once.running.len() < AT_ONCE_MAX
                && let Some(path) = at_once.waiting.pop_first()
            {
                at_once.running.insert(path.clone(), None);
                begun.push(path);
            }
        }
        for path in begun {
            let told = self.begin(&path, For::Later);
            let making = Arc::clone(self);
            tokio::spawn(async move {
                if let Some(mut told) = told {
                    // Gone is ended.
                    let _ = told.wait_for(Option::is_some).await;
                }
                lock(&making.state).at_once.running.remove(&path);
                making.go_on();
            });
        }
    }

    /// Begins to make a file, unless that was begun, or has just failed.
    fn begin(&self, path: &Path, whom: For) -> Option<watch::Receiver<Option<bool>>> {
        let mut state = lock(&self.state);
        let now = self.clock.now();
        if state.refused.get(path).is_some_and(|(_, since)| now.since(*since) < AGAIN_AFTER) {
            return None;
        }
        if let Some(running) = state.running.get(path) {
            return Some(running.clone());
        }
        let (tells, told) = watch::channel(None);
        state.running.insert(path.to_owned(), told.clone());
        drop(state);
        let (file, path) = (self.mountpoint.join(path), path.to_owned());
        let (room, shared, clock) = (self.room.clone(), self.state.clone(), self.clock.clone());
        // Not part of the open that waits: if its caller is killed, others still wait for the file.
        tokio::spawn(async move {
            let _place = room.acquire().await;
            let (begun, named) = (shared.clone(), path.clone());
            let made = tokio::task::spawn_blocking(move || {
                make(&file, |process| lock(&begun).note(whom, &named, process))
            });
            let made = made.await.unwrap_or_else(|_| Err("larder failed".to_owned()));
            let is_there = made.is_ok();
            lock(&shared).ended(whom, path, made, clock.now());
            tells.send_replace(Some(is_there));
        });
        Some(told)
    }
}

impl State {
    /// A process makes a file.
    fn note(&mut self, whom: For, path: &Path, process: OwnedFd) {
        if whom == For::Access {
            return;
        }
        if self.at_once.is_paused {
            kill(&process);
        }
        if let Some(running) = self.at_once.running.get_mut(path) {
            *running = Some(process);
        }
    }

    /// A file was made, or was there; or it stays lost.
    fn ended(&mut self, whom: For, path: PathBuf, made: Result<bool, String>, now: Monotonic) {
        self.running.remove(&path);
        match made {
            Ok(is_made) => {
                self.made += u64::from(is_made);
                self.refused.remove(&path);
            }
            // It was killed, perhaps.
            Err(_) if whom == For::Later && self.at_once.is_paused => {
                self.at_once.waiting.insert(path);
            }
            Err(why) => {
                tracing::warn!(path = %path.display(), why, "a file stays lost");
                self.refuse(path, why, now);
            }
        }
    }

    fn refuse(&mut self, path: PathBuf, why: String, now: Monotonic) {
        self.refused.insert(path, (why, now));
        if self.refused.len() > REFUSED_MAX {
            let oldest = self.refused.iter().min_by_key(|(_, (_, since))| *since);
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                self.refused.remove(&oldest);
            }
        }
    }
}

impl Remaker for AtAccess {
    fn serves(&self, pid: u32) -> bool {
        let program = |process: &str| {
            let seen = fs::metadata(format!("/proc/{process}/exe")).ok()?;
            Some((seen.dev(), seen.ino()))
        };
        // Our own commands inspect lost files.
        program(&pid.to_string()).is_none_or(|theirs| Some(theirs) != program("self"))
    }

    fn remake(&self, path: PathBuf) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            let Some(mut told) = self.begin(&path, For::Access) else { return false };
            let made = told.wait_for(Option::is_some).await;
            made.is_ok_and(|made| *made == Some(true))
        })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill(process: &OwnedFd) {
    // One that has ended needs none.
    let _ = pidfd_send_signal(process, Signal::KILL);
}

/// Runs `larder rebuild`. Returns whether it made something; otherwise the file was there. Blocks.
///
/// # Errors
/// Why the file stays lost.
fn make(file: &Path, on: impl FnOnce(OwnedFd)) -> Result<bool, String> {
    let child = begin_apart(None, file)?;
    if let Ok(process) = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        on(process);
    }
    let told = told_by(child)?;
    let is_made = !told.is_empty();
    told.into_iter().find_map(|one| one.why).map_or(Ok(is_made), Err)
}
