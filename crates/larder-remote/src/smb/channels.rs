//! The channels of a mount: which of them serves a file, and how a lost connection is made again
//! ([`super::connector`]).
//!
//! Invariants:
//! - A file always uses one channel, which its handle determines. Opens for its data go there, with
//!   the key of its lease: on another channel they would break the lease. Opens for its attributes
//!   break none, and a removal or rename closes it first.
//! - A connection is identified by its generation, which is unique in the mount.

use super::channel::Channel;
use super::connector::connect;
use super::frames::ConnectionEvent;
use super::handle;
use super::link::Link;
use super::share::Share;
use super::{lease, names, wire};
use larder_rpc::patience::retry_pauses;
use larder_vfs::Handle;
use smb2::types::SessionId;
use std::ffi::OsStr;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

/// The channel, of this many, for a file: numbers at any equal distance are spread evenly, even a
/// few of them (multiples of the golden ratio; Knuth, The Art of Computer Programming, 6.4).
fn number(file: &Handle, channels: usize) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let place = handle::number(file).wrapping_mul(GOLDEN);
    ((u128::from(place) * channels as u128) >> 64) as usize
}

impl Share {
    /// From now on the share receives the unsolicited messages of connections. The effects of
    /// earlier ones are applied. Called once.
    pub(super) fn listen(self: &Arc<Share>) {
        let share = Arc::downgrade(self);
        self.connector.tell(move |generation, event| {
            let Some(share) = share.upgrade() else { return };
            match event {
                ConnectionEvent::Break(taken) => lease::taken(&share, generation, taken),
                ConnectionEvent::End => share.cut(generation),
            }
        });
        for link in self.channels.iter().filter_map(Channel::link).filter(|link| link.is_lost()) {
            self.cut(link.generation);
        }
    }

    /// The channel that a file lives on.
    pub(super) fn channel(&self, file: &Handle) -> &Channel {
        &self.channels[number(file, self.channels.len())]
    }

    /// The channel by which a name is changed: that of the file, if it is known, so that earlier
    /// closes of the file are carried out before; else the directory's.
    pub(super) fn channel_at(&self, dir: &Handle, name: &OsStr) -> &Channel {
        let component = names::component(name, self.limits.name_max).ok();
        let file = component.and_then(|component| self.paths().child(dir, &component));
        self.channel(file.as_ref().unwrap_or(dir))
    }

    /// The connection of this generation, if it is in use.
    pub(super) fn link_of(&self, generation: u64) -> Option<Arc<Link>> {
        self.channels.iter().filter_map(Channel::link).find(|link| link.generation == generation)
    }

    /// Waits until every connection has made the closes for which no caller waits, also of opens
    /// that callers gave up, and every one but this has carried out what was sent on it so far.
    /// What a lost connection had open stays so until it is replaced.
    pub(super) async fn drain(&self, link: &Link) {
        let mut asking = JoinSet::new();
        for other in self.channels.iter().filter_map(Channel::link) {
            let is_another = other.generation != link.generation;
            asking.spawn(async move {
                other.closed_all().await;
                if is_another {
                    // It has if there is no connection.
                    let _ = other.ask(wire::echo()).await;
                }
            });
        }
        while asking.join_next().await.is_some() {}
    }

    /// The connection of this generation is gone: the leases of its files end, and a new connection
    /// is made.
    fn cut(self: &Arc<Share>, generation: u64) {
        let mut channels = self.channels.iter().enumerate();
        let cut = channels.find_map(|(at, channel)| Some((at, channel.cut(generation)?)));
        let Some((at, session)) = cut else { return };
        let host = &self.options.host;
        tracing::warn!(host, connection = at, "lost a connection to the SMB server");
        let ended = self.files.end_all(|file| number(file, self.channels.len()) == at);
        let watcher = self.watcher.get().and_then(Weak::upgrade);
        tokio::spawn(reconnect(Arc::downgrade(self), at, session));
        tokio::spawn(async move {
            let Some(watcher) = watcher else { return };
            for file in ended {
                watcher.broken(&file).await;
            }
        });
    }
}

/// Connects the channel `at`, until it works or the share is gone.
async fn reconnect(share: Weak<Share>, at: usize, previous: SessionId) {
    let mut backoff = retry_pauses();
    let mut told = false;
    let Some(clock) = share.upgrade().map(|share| Arc::clone(&share.options.clock)) else { return };
    loop {
        clock.sleep(backoff.pause()).await;
        let Some(share) = share.upgrade() else { return };
        let (channel, host) = (&share.channels[at], &share.options.host);
        if channel.is_shut() {
            return;
        }
        match connect(&share.options, &share.connector, previous, channel.accounts.clone()).await {
            Ok(link) => {
                tracing::info!(host, connection = at, "connected to the SMB server again");
                if channel.restore(Arc::clone(&link)) && link.is_lost() {
                    share.cut(link.generation);
                }
                let locked = share.locks.all(|file| number(file, share.channels.len()) == at);
                share.renew_locks(&link, locked).await;
                for standing in share.standing.all(|file| number(file, share.channels.len()) == at)
                {
                    // If others have renamed or removed it meanwhile, it is lost.
                    share.try_renew(&link, &standing).await;
                }
                return;
            }
            Err(cause) if !told => {
                told = true;
                tracing::warn!(connection = at, %cause, "cannot connect again yet");
            }
            Err(_) => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::handle::Identity;

    #[test]
    fn files_are_spread_over_all_lines() {
        for channels in 1..=16 {
            for (step, per_line) in [(1, 2), (1, 100), (2, 100), (3, 100), (64, 100), (256, 100)] {
                let mut files = vec![0; channels];
                for file_id in (1000_u64..).step_by(step).take(per_line * channels) {
                    let file = Identity { file_id, directory: false }.handle(77);
                    files[number(&file, channels)] += 1;
                }
                let even = files.iter().all(|one| (per_line / 2..=per_line * 2).contains(one));
                assert!(even, "{channels} channels, each {step}th number: {files:?}");
            }
        }
    }
}
