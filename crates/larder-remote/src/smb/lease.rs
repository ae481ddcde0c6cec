//! Requests and returns leases.
//!
//! A lease comes with an open for reading (MS-SMB2, 2.2.13.2.8), which is kept. If a server grants
//! none on directories (SMB 2.1; Samba before 4.22), a watch stands for one ([`super::watching`]).
//!
//! A lease is returned after a while in any case ([`super::MountOptions::lease_max`]).
//!
//! When the server breaks a lease, the order is: the lease ends, the file is closed, the server
//! gets the acknowledgement, the watcher is notified. The file is closed before the
//! acknowledgement, because another client may wait for that to remove the file: it would be
//! refused if the file was still open then. But the client waits for nothing before that may wait
//! for the server: until the acknowledgement, the server lets no other client open the file (Samba
//! holds back every CREATE while a lease is being broken), and the watcher may have to open it to
//! write back unsent data. Two clients that write to one file would wait for each other.
//! Acknowledging early makes no other client wait longer: a server does not wait for a read lease.

use super::attr;
use super::files::{File, Known};
use super::frames::LeaseBreak;
use super::link::Link;
use super::share::{self, Opened, Share};
use super::status::Failure;
use super::wire::{self, Granted, Opening};
use larder_vfs::{Access, Cred, Handle, Judged, Lease};
use smb2::types::status::NtStatus;
use std::sync::{Arc, Weak};

/// The server withdraws a lease. Called between two of its messages, so the rest is a task.
pub(super) fn taken(share: &Arc<Share>, generation: u64, taken: LeaseBreak) {
    let Some(link) = share.link_of(generation) else { return };
    let file = share.files.by_key(&taken.key);
    let is_shared = matches!(Granted::by(taken.left), Some(Granted::Whole | Granted::Alone));
    let held = match &file {
        Some(file) if is_shared => {
            file.share();
            false
        }
        file => file.as_ref().is_some_and(|file| file.end_disturbed().is_some()),
    };
    let share = Arc::clone(share);
    link.runtime().clone().spawn(async move {
        // A call that is just opening it waits for the server, perhaps for this very answer.
        if let Some(mut opens) = file.as_ref().and_then(|file| file.opens.try_lock().ok())
            && file.as_ref().is_some_and(|file| file.lease().is_none())
        {
            opens.give_back().await;
        }
        if taken.acknowledge {
            // A server that did not wait for it answers with an error, which does not matter.
            let _ = link.ask(wire::acknowledge(taken.key, taken.left)).await;
        }
        let Some(file) = file else { return };
        // Unless it was granted again in the meantime.
        let mut opens = file.opens.lock().await;
        if file.lease().is_none() {
            opens.give_back().await;
        }
        drop(opens);
        if held {
            share.tell(&file.handle).await;
        }
    });
}

impl Share {
    /// Which of the rights in `wanted` the caller has, with a lease if one is available.
    pub(super) async fn judge(
        self: &Arc<Share>,
        link: &Arc<Link>,
        cred: &Cred,
        file: &Handle,
        wanted: Access,
    ) -> Result<Judged, Failure> {
        let (files, dirs) = (self.shape.file_mode, self.shape.dir_mode);
        let reads = (self.shape.rights(cred, files, false) | self.shape.rights(cred, dirs, true))
            .contains(Access::READ);
        let (known, lease) = match self.leases && reads {
            true => {
                let entry = self.files.enter(file);
                let since = entry.moment();
                let answer = match self.with_lease(link, file).await? {
                    // A lease that ended in the meantime crossed our question: if the server is
                    // asked again it grants another one.
                    (_, None) if entry.ended_since(since) => self.with_lease(link, file).await?,
                    answer => answer,
                };
                if answer.1.is_some() {
                    self.keep_by_lease(link, file).await;
                }
                answer
            }
            false => (self.without_lease(link, file).await?, None),
        };
        Ok(self.judged(cred, &known, lease, wanted))
    }

    /// Which of the rights in `wanted` the caller has, if that is known.
    pub(super) fn judge_now(&self, cred: &Cred, file: &Handle, wanted: Access) -> Option<Judged> {
        let (lease, known) = self.files.get(file)?.known()?;
        Some(self.judged(cred, &known, Some(lease), wanted))
    }

    pub(super) fn judged(
        &self,
        cred: &Cred,
        known: &Known,
        lease: Option<Lease>,
        wanted: Access,
    ) -> Judged {
        let directory = known.info.is_directory();
        let ours = self.shape.rights(cred, known.info.mode(&self.shape), directory);
        let theirs = attr::access(known.maximal, directory);
        let attr = Some(known.info.attr(&self.shape));
        Judged { granted: ours & theirs & wanted, attr, lease }
    }

    async fn without_lease(&self, link: &Arc<Link>, file: &Handle) -> Result<Known, Failure> {
        let seen = self.look_at(link, file, true).await?;
        Ok(Known { info: seen.info, maximal: seen.maximal.unwrap_or(u32::MAX) })
    }

    async fn with_lease(
        self: &Arc<Share>,
        link: &Arc<Link>,
        file: &Handle,
    ) -> Result<(Known, Option<Lease>), Failure> {
        let entry = self.files.enter(file);
        let mut opens = entry.opens.lock().await;
        if let Some((lease, known)) = entry.known() {
            return Ok((known, Some(lease)));
        }
        if entry.is_disturbed() {
            opens.give_back().await;
            return Ok((self.without_lease(link, file).await?, None));
        }
        if let (Some(lease), Some(open)) = (entry.whole_lease(), &opens.read) {
            // Our own change made the description unknown; the lease continues.
            if let Some(info) = self.ask_again(link, &entry, open).await? {
                let known = Known { info, maximal: entry.maximal() };
                return Ok((known, Some(lease).filter(Lease::holds)));
            }
        }
        opens.give_back().await;
        let since = entry.moment();
        let opening = Opening {
            maximal: true,
            lease: Some(share::lease_request(link, entry.key, false)),
            ..Opening::existing(self.path(file)?, wire::READ)
        };
        let opened = match share::open(link, opening).await {
            Ok(opened) => opened,
            // Also "invalid parameter", for a key that is in use under another name of the file.
            Err(Failure::Status(
                NtStatus::ACCESS_DENIED | NtStatus::SHARING_VIOLATION | NtStatus::INVALID_PARAMETER,
            )) => return Ok((self.without_lease(link, file).await?, None)),
            Err(failure) => return Err(self.gone(file, failure)),
        };
        self.verify(file, &opened.info)?;
        let Opened { open, info, lease, maximal, .. } = opened;
        let maximal = maximal.unwrap_or(u32::MAX);
        open.bear_key(&entry);
        let lease = lease.filter(|what| *what != Granted::Bytes || !info.is_directory());
        let open = Arc::new(open);
        let (info, granted) = if let Some(what) = lease {
            let granted = entry.granted(since, Known { info, maximal }, what);
            if let Some(lease) = granted.clone() {
                let is_old = self.options.clock.sleep(self.options.lease_max);
                tokio::spawn(age(Arc::downgrade(&entry), lease, is_old));
            }
            (info, granted)
        } else if info.is_directory() {
            self.watch_directory(&entry, &open, since, Known { info, maximal }).await?
        } else {
            (info, None)
        };
        if granted.is_some() {
            opens.read = Some(open);
        }
        Ok((Known { info, maximal }, granted))
    }
}

/// Gives a lease back when it is old enough.
async fn age(entry: Weak<File>, lease: Lease, is_old: larder_io::Sleep) {
    is_old.await;
    let Some(entry) = entry.upgrade() else { return };
    let mut opens = entry.opens.lock().await;
    if entry.lease().is_some_and(|current| current.is(&lease)) {
        entry.end();
        opens.give_back().await;
    }
}
