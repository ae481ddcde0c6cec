//! Directories under watch: what stands for a lease on them where the server grants none.
//!
//! A pending CHANGE_NOTIFY tells of each name that comes or goes. Its notices that our own changes
//! cause are expected ([`super::expected`]); any other one, and whatever else the server answers,
//! ends the watch, and the watcher is told. The server keeps what happens between two requests.
//!
//! A change of names in a directory first looks whether the directory still is where its path
//! leads. Under watch that is known: if every directory above it is leased or watched, too, since
//! before it was last looked at, none of them has another path.

use super::attr::Info;
use super::expected::{Event, Expected};
use super::files::{Changing, File, Known, Moment, ServerOpen};
use super::link::{Link, Reply, garbled};
use super::share::Share;
use super::status::Failure;
use super::watch::Watch;
use super::wire::{self, Granted};
use larder_vfs::{Handle, Lease};
use smb2::msg::query_info::QueryInfoResponse;
use smb2::types::FileId;
use smb2::types::status::NtStatus;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Time between two checks whether a request was sent; the library does not report that.
const SENT_POLL: Duration = Duration::from_micros(100);

/// A change of ours of names in one directory, from before the server is asked until its answer is
/// known. If that stays unknown, this is dropped, and the watch is over.
pub(super) struct NamesChange {
    dir: Handle,
    /// What the watch that goes on expects.
    expecting: Option<Expecting>,
    /// What is known of the directory is not so any more.
    _changing: Changing,
}

struct Expecting {
    entry: Arc<File>,
    watch: Arc<Watch>,
    numbers: Vec<u64>,
}

impl NamesChange {
    /// The server has made the change.
    pub(super) async fn made(mut self, share: &Share) {
        let watch = self.expecting.take().map(|Expecting { watch, numbers, .. }| {
            let now = watch.now();
            watch.expect(|expected| numbers.iter().for_each(|number| expected.made(*number, now)));
            watch
        });
        if watch.is_none_or(|watch| !watch.holds()) {
            // Another call may have got a lease in the meantime.
            share.give_up(&self.dir).await;
        }
    }

    /// The server has not made it: it found the names otherwise.
    pub(super) fn refused(mut self) {
        if let Some(Expecting { watch, numbers, .. }) = self.expecting.take() {
            watch.expect(|expected| numbers.iter().for_each(|number| expected.refused(*number)));
        }
    }

    /// It has failed.
    pub(super) fn failed(self, failure: Failure) {
        let refusals = [NtStatus::OBJECT_NAME_COLLISION, NtStatus::DIRECTORY_NOT_EMPTY];
        if refusals.map(Failure::Status).contains(&failure) {
            self.refused();
        }
    }
}

impl Drop for NamesChange {
    fn drop(&mut self) {
        if let Some(Expecting { entry, watch, .. }) = self.expecting.take() {
            entry.end_this(watch.lease());
            watch.expect(Expected::end);
        }
    }
}

impl Share {
    /// Before a change of ours in a directory. A watch goes on, and expects these notices. A lease
    /// is returned, since the server would withdraw it a moment later, and again after the change.
    pub(super) async fn change_names(
        &self,
        dir: &Handle,
        notices: &[(&str, Event)],
    ) -> NamesChange {
        let (dir, _changing) = (dir.clone(), self.files.changing(dir));
        let entry = self.files.get(&dir);
        if let Some((entry, watch)) = entry.and_then(|entry| Some((entry.clone(), entry.watch()?)))
        {
            let begin = |expected: &mut Expected| {
                notices.iter().map(|(name, event)| expected.begin(name, *event)).collect()
            };
            let numbers = watch.expect(begin);
            if watch.holds() {
                let expecting = Some(Expecting { entry, watch, numbers });
                return NamesChange { dir, expecting, _changing };
            }
        }
        self.give_up(&dir).await;
        NamesChange { dir, expecting: None, _changing }
    }

    /// Returns our lease or watch on a directory.
    pub(super) async fn give_up(&self, dir: &Handle) {
        if let Some(entry) = self.files.get(dir) {
            entry.end();
            entry.opens.lock().await.give_back().await;
        }
    }

    /// Makes sure that the path of a directory leads to it.
    ///
    /// # Errors
    /// As [`Share::directory`].
    pub(super) async fn find_directory(
        &self,
        link: &Arc<Link>,
        dir: &Handle,
    ) -> Result<(), Failure> {
        let watch = self.files.get(dir).and_then(|entry| entry.watch());
        match watch.is_some_and(|watch| watch.is_placed()) {
            true => Ok(()),
            false => self.look_at_directory(link, dir).await.map(drop),
        }
    }

    /// The same; describes it, too.
    pub(super) async fn look_at_directory(
        &self,
        link: &Arc<Link>,
        dir: &Handle,
    ) -> Result<Info, Failure> {
        let entry = self.files.get(dir);
        let watch = entry.as_ref().and_then(|entry| entry.watch());
        if let (Some(entry), Some(watch)) = (&entry, &watch)
            && watch.is_placed()
            && let Some(open) = watch.open.upgrade()
            && let Some(info) = self.ask_again(link, entry, &open).await?
        {
            return Ok(info);
        }
        let above = self.leases_above(dir);
        let info = self.directory(link, dir).await?;
        if let (Some(watch), Some(above)) = (watch, above) {
            watch.place(above);
        }
        Ok(info)
    }

    /// The leases of all directories above this one, if each has one.
    fn leases_above(&self, dir: &Handle) -> Option<Vec<Lease>> {
        let above = self.paths().above(dir)?;
        above.iter().map(|dir| self.files.get(dir)?.whole_lease()).collect()
    }

    /// Asks for the next notice of changes in a directory. Returns when that is sent: requests are
    /// carried out in the order in which they were sent. The task does not keep it open.
    async fn ask_for_notice(&self, link: &Arc<Link>, id: FileId) -> JoinHandle<Option<Reply>> {
        // One at a time: the library does not report which of them it has sent.
        let _order = self.watching.lock().await;
        let before = link.notifications();
        let own = Arc::clone(link);
        let ask = async move { own.ask(wire::notify(id)).await.ok() };
        let notice = link.runtime().spawn(ask);
        while !notice.is_finished() && link.notifications().iter().all(|one| before.contains(one)) {
            self.options.clock.sleep(SENT_POLL).await;
        }
        notice
    }

    /// Puts a directory under watch, then reads its attributes: what happens after that is
    /// reported.
    pub(super) async fn watch_directory(
        self: &Arc<Share>,
        entry: &Arc<File>,
        open: &Arc<ServerOpen>,
        since: Moment,
        known: Known,
    ) -> Result<(Info, Option<Lease>), Failure> {
        let permit = Arc::clone(&self.watches).try_acquire_owned();
        let Ok(permit) = permit else { return Ok((known.info, None)) };
        let link = &open.link;
        let notice = self.ask_for_notice(link, open.id).await;
        let seen = link.ask(wire::query(open.id)).await?.read::<QueryInfoResponse>()?;
        let info = Info::parse(&seen.output_buffer).map_err(garbled)?;
        let granted = match notice.is_finished() {
            true => None,
            false => entry.granted(since, Known { info, maximal: known.maximal }, Granted::Whole),
        };
        if let Some(lease) = &granted {
            let watch = Watch::new(lease.clone(), open, Arc::clone(&self.options.clock));
            let watch = entry.begin_watch(watch);
            let (share, entry) = (Arc::downgrade(self), Arc::downgrade(entry));
            let (link, id) = (Arc::clone(link), open.id);
            tokio::spawn(async move {
                attend(&share, &watch, (&link, id), notice).await;
                drop(permit);
                ended(&share, &entry, &watch).await;
            });
        }
        Ok((info, granted))
    }
}

/// Takes in what the server tells, until the watch is over.
async fn attend(
    share: &Weak<Share>,
    watch: &Watch,
    (link, id): (&Arc<Link>, FileId),
    mut notice: JoinHandle<Option<Reply>>,
) {
    loop {
        tokio::select! {
            biased;
            reply = &mut notice => {
                let goes_on = watch.told(reply.ok().flatten());
                let Some(share) = share.upgrade().filter(|_| goes_on) else { return };
                notice = share.ask_for_notice(link, id).await;
            }
            () = watch.over() => return,
        }
    }
}

/// A watch is over: because of another client's change, or because it was given up.
async fn ended(share: &Weak<Share>, entry: &Weak<File>, watch: &Watch) {
    let (Some(share), Some(entry)) = (share.upgrade(), entry.upgrade()) else { return };
    entry.end_this(watch.lease());
    if watch.is_disturbed() {
        share.tell(&entry.handle).await;
    }
    let mut opens = entry.opens.lock().await;
    if entry.lease().is_none() {
        opens.give_back().await;
    }
}
