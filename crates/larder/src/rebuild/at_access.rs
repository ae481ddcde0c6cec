//! A mount's lost files are made again when they are opened for reading: by `larder rebuild`, as a
//! process of its own, for which the open waits.
//!
//! Opens of one file wait for one process. A file that could not be made is not tried again for a
//! while, so that a program that opens it repeatedly does not repeatedly run a command that fails.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_client::Remaker;
use larder_io::{Clock, Monotonic};
use tokio::sync::{Semaphore, watch};

use super::process::remade_apart;
use crate::report::StaysLost;

/// For how long a file that could not be made is not tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Most processes at a time.
const PROCESSES_MAX: usize = 8;

/// Most files that are remembered as lost.
const REFUSED_MAX: usize = 100;

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

    /// Files that could not be made when they were opened.
    pub(crate) fn stay_lost(&self) -> Vec<StaysLost> {
        let state = lock(&self.state);
        let told = |(path, (why, _)): (&PathBuf, &(String, Monotonic))| StaysLost {
            path: self.mountpoint.join(path).display().to_string(),
            why: why.clone(),
        };
        state.refused.iter().map(told).collect()
    }

    /// Begins to make a file, unless that was begun, or has just failed.
    fn begin(&self, path: &Path) -> Option<watch::Receiver<Option<bool>>> {
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
            let made = tokio::task::spawn_blocking(move || make(&file)).await;
            let made = made.unwrap_or_else(|_| Err("larder failed".to_owned()));
            let mut state = lock(&shared);
            state.running.remove(&path);
            match &made {
                Ok(()) => _ = state.refused.remove(&path),
                Err(why) => {
                    tracing::warn!(path = %path.display(), why, "a file stays lost");
                    state.refuse(path, why.clone(), clock.now());
                }
            }
            drop(state);
            tells.send_replace(Some(made.is_ok()));
        });
        Some(told)
    }
}

impl State {
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
            let Some(mut told) = self.begin(&path) else { return false };
            let made = told.wait_for(Option::is_some).await;
            made.is_ok_and(|made| *made == Some(true))
        })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `larder rebuild`; why a file stays lost. Blocks.
fn make(file: &Path) -> Result<(), String> {
    let told = remade_apart(None, file)?;
    told.into_iter().find_map(|one| one.why).map_or(Ok(()), Err)
}
