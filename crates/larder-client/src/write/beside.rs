//! Has the server make a file of what was set aside, beside the one that another client has
//! changed: under the name of a conflict, with the owner and the permissions of that one.
//!
//! How far each such file is, the cache has on record ([`larder_cache::Beside`]); here is what each
//! step asks of the server. One task does so, when something was set aside and as long as the
//! server is out of reach. Nothing else waits for it, but callers of [`crate::Client::sync`]: code
//! that brings bytes to the server, or makes names there, may find a conflict while others wait for
//! its turn.
//!
//! The bytes keep to the mount's limit on bytes per second.
//!
//! If the server refuses to make the file or to take the bytes, they stay where people find them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use larder_cache::{Beside, FileNo, Step, StepEvent, conflict_name};
use larder_io::DiskFile;
use larder_vfs::{
    Attr, Cred, Device, Error, Found, Handle, Kind, New, Removal, Result, SetAttr, SetTime,
    Stability, Time, Watcher,
};

use super::compared::is_late;
use super::engine::LOOK_EVERY;
use super::schedule::RETRY_AFTER;
use crate::core::{Core, blocking};
use crate::journal::{Place, Record};
use crate::names::on_handle;

/// Most names that are tried for a file.
const NAMES_MAX: u32 = 16;
/// By as many seconds at most the time by which a file is known again lies in the past: other
/// clients that try the same name in the same second have another one.
const MARK_SEC_MAX: u64 = 1 << 20;

/// Starts the task of a client; it ends with the client.
pub(crate) fn start(core: &Arc<Core>) {
    let (placing, clock, core) = (core.placing.clone(), core.clock.clone(), Arc::downgrade(core));
    tokio::spawn(async move {
        loop {
            let Some(placed) = place_all(&core).await else { return };
            let wait = if placed.is_ok() { LOOK_EVERY } else { RETRY_AFTER };
            tokio::select! {
                () = clock.sleep(wait) => {}
                () = placing.rung() => {}
            }
        }
    });
}

/// `None` if the client is gone.
async fn place_all(core: &Weak<Core>) -> Option<Result<()>> {
    Some(core.upgrade()?.place_all().await)
}

impl Core {
    /// Brings what is set aside for that to the server, one file after the other.
    ///
    /// # Errors
    /// [`Error::TimedOut`] and the like if the server does not answer now. What it refuses stays
    /// aside, which is no error.
    pub(crate) async fn place_all(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let _turn = self.placing.turn().await;
        let cache = self.cache.clone();
        for beside in blocking(move || cache.besides()).await? {
            self.place_one(beside).await?;
        }
        Ok(())
    }

    async fn place_one(&self, mut beside: Beside) -> Result<()> {
        let Some(place) = Place::decode(&beside.wanted) else {
            tracing::error!(aside = beside.aside, "its place at the server cannot be read");
            return Ok(());
        };
        loop {
            let (event, reason) = match self.next_step(&beside, &place).await {
                Ok(event) => (event, String::new()),
                Err(error) if is_late(error) => return Err(error),
                Err(refused) => {
                    tracing::error!(aside = beside.aside, error = %refused,
                        "the server takes no file beside the other one: it is kept in the cache directory");
                    (StepEvent::Refused, format!("no file beside it: {refused}"))
                }
            };
            let (cache, dir) = (self.cache.clone(), FileNo(place.dir.0));
            let next = move || cache.step_beside(beside, event, dir, &reason);
            let Some(next) = blocking(next).await? else { return Ok(()) };
            beside = next;
        }
    }

    /// Does what comes next.
    ///
    /// # Errors
    /// The server's: it refuses, or [is late](is_late).
    async fn next_step(&self, beside: &Beside, place: &Place) -> Result<StepEvent> {
        let cred = &place.writer.until(self.deadline());
        match &beside.step {
            Step::Intended { .. } => unreachable!("what is only intended is not listed"),
            Step::Aside { tries } => self.choose_name(place, *tries),
            Step::Asked { name, mark_sec, .. } => {
                self.make_beside(cred, place, OsStr::from_bytes(name), *mark_sec).await
            }
            Step::There { handle, .. } => {
                let aside = beside.clone();
                let cache = self.cache.clone();
                let opened = blocking(move || cache.open_aside(&aside)).await?;
                let file = opened.map_err(|error| {
                    tracing::error!(aside = beside.aside, %error, "what was set aside cannot be read");
                    Error::Io
                })?;
                let handle = Handle::new(handle);
                self.fill_beside(place, &handle, file).await?;
                // It was empty when it was made.
                self.distrust(&handle).await;
                Ok(StepEvent::Written)
            }
            Step::Leaving { name, handle } => {
                let left = self.leave_place(cred, place, OsStr::from_bytes(name), handle).await;
                left.or_else(|error| if is_late(error) { Err(error) } else { Ok(()) })?;
                Ok(StepEvent::Removed)
            }
            Step::Placed { name } => {
                let (name, wanted) = (OsStr::from_bytes(name), &place.name);
                tracing::error!(
                    ?name,
                    ?wanted,
                    "somebody else has changed what was written here: both are kept"
                );
                if let Ok(dir) = self.node(place.dir).and_then(|dir| dir.handle()) {
                    self.distrust(&dir).await;
                }
                Ok(StepEvent::Removed)
            }
        }
    }

    fn choose_name(&self, place: &Place, tries: u32) -> Result<StepEvent> {
        if tries >= NAMES_MAX {
            return Err(Error::Exists);
        }
        let bytes_max = self.remote.limits().name_max.min(255) as usize;
        let (wanted, now) = (place.name.as_bytes(), self.wall().sec);
        let name = conflict_name(wanted, &self.options.host, now, tries + 1, bytes_max);
        let before = i64::try_from(self.session % MARK_SEC_MAX).expect("it is below the most");
        Ok(StepEvent::Ask { name, mark_sec: now - before })
    }

    /// Has the file made that was asked for, if an earlier attempt has not.
    async fn make_beside(
        &self,
        cred: &Cred,
        place: &Place,
        name: &OsStr,
        mark_sec: i64,
    ) -> Result<StepEvent> {
        let mark = Time { sec: mark_sec, nsec: 0 };
        let set =
            SetAttr { mode: Some(0o600), mtime: Some(SetTime::To(mark)), ..SetAttr::default() };
        let dir = self.node(place.dir)?;
        let asked = self.now();
        let make = async |new: New| on_handle!(self, cred, dir, at => self.remote.make(cred, &at, name, new.clone(), set));
        // With its time in one request, where there is such a request.
        let made = match make(New::Node(Kind::File, Device::default())).await {
            Err(Error::NotSupported) => make(New::FileExclusive).await,
            made => made,
        };
        let found = match made {
            Ok(made) => {
                if let Some(token) = made.token {
                    let _ = self.remote.close(cred, token).await;
                }
                made.found
            }
            Err(Error::Exists) => {
                let there = on_handle!(self, cred, dir, at => self.remote.lookup(cred, &at, name));
                match there?.found {
                    Some(found) if self.is_marked(&found.attr, mark) => found,
                    Some(_) => return Ok(StepEvent::Taken),
                    None => return Err(Error::TryAgain),
                }
            }
            Err(error) => return Err(error),
        };
        // Whoever lists the directory from now on sees what this mount has made.
        self.learn(&found, asked, Some((place.dir, name.to_owned())));
        Ok(StepEvent::Made { handle: found.handle.as_bytes().to_vec() })
    }

    /// Whether a file is as this mount asked for it, and nobody has written to it.
    fn is_marked(&self, attr: &Attr, mark: Time) -> bool {
        let is_it = (attr.mtime.sec - mark.sec).abs() <= i64::from(self.coarse_sec());
        attr.kind == Kind::File && attr.size == 0 && is_it
    }

    /// By how many seconds a time that the server keeps may differ from the one that it was given.
    fn coarse_sec(&self) -> u32 {
        u32::try_from(self.remote.limits().time_delta_ns / 1_000_000_000).unwrap_or(u32::MAX)
    }

    /// Writes all bytes, durably, then sets who owns the file, who may use it, and its time.
    async fn fill_beside(
        &self,
        place: &Place,
        handle: &Handle,
        file: Arc<dyn DiskFile>,
    ) -> Result<()> {
        let cred = || place.writer.until(self.deadline());
        let unreadable = |error| {
            tracing::error!(%error, "what was set aside cannot be read");
            Error::Io
        };
        let reading = file.clone();
        let ranges = move || {
            let size = reading.len()?;
            Ok((size, reading.data_ranges(0..size)?))
        };
        let (size, ranges) = blocking(ranges).await?.map_err(unreadable)?;
        for piece in self.pieces(&ranges, true) {
            self.options.rate.pass(&*self.clock, piece.end - piece.start).await;
            let reading = file.clone();
            let len = usize::try_from(piece.end - piece.start).expect("a request is short");
            let read = move || {
                let mut bytes = vec![0; len];
                reading.read_exact_at(&mut bytes, piece.start).map(|()| bytes)
            };
            let bytes = Bytes::from(blocking(read).await?.map_err(unreadable)?);
            let (cred, stability) = (cred(), Stability::FileSync);
            self.remote.write(&cred, handle, None, piece.start, bytes, stability).await?;
        }
        let attr = self.remote.getattr(&cred(), handle).await?;
        if attr.size != size {
            // It ends in a hole, or an earlier attempt had the bytes of another one.
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.remote.setattr(&cred(), handle, set, None).await?;
        }
        let Place { uid, gid, mode, mtime, .. } = *place;
        let owner = SetAttr { uid: Some(uid), ..SetAttr::default() };
        let group = SetAttr { gid: Some(gid), ..SetAttr::default() };
        // A server takes these bits away from a file that is written, too.
        let mode = SetAttr { mode: Some(mode & 0o1777), ..SetAttr::default() };
        let time = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
        let owner = (attr.uid != uid).then_some(owner);
        let group = (attr.gid != gid).then_some(group);
        for set in [group, owner, Some(mode), Some(time)].into_iter().flatten() {
            match self.remote.setattr(&cred(), handle, set, None).await {
                Err(error) if is_late(error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, name = ?place.name,
                        "the server does not give what is kept beside it the same attributes");
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Removes the part of a file that the server did not take.
    async fn leave_place(
        &self,
        cred: &Cred,
        place: &Place,
        name: &OsStr,
        handle: &[u8],
    ) -> Result<()> {
        let dir = self.node(place.dir)?;
        let found = on_handle!(self, cred, dir, at => self.remote.lookup(cred, &at, name));
        let Some(Found { handle: there, .. }) = found?.found else { return Ok(()) };
        if there.as_bytes() != handle {
            return Ok(());
        }
        let removed =
            on_handle!(self, cred, dir, at => self.remote.remove(cred, &at, name, Removal::File));
        removed.map(drop)
    }
}
