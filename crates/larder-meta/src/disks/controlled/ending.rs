//! How capabilities end at a disk: it is told so, or it trusts nothing any more. Those of earlier
//! key epochs end when it is told later ones: it accepts the last one, and the one before. A disk
//! that was away is told before it is let trust anything again.
//!
//! Invariant: whoever waits for an end is answered when the disk trusts nothing any more, whatever
//! was asked of the disk and is not answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_wire::capability::{CapabilityId, GroupId, KeyEpoch};

use super::super::reach::{Reach, Unreached};
use super::super::revoking::{self, Revoked};
use super::{Keep, PAUSE, lock};

impl Keep {
    /// Revokes capabilities, or waits until the disk trusts nothing any more.
    pub(super) async fn revoke(&mut self, names: Vec<(GroupId, CapabilityId)>) {
        let all = revoking::by_call(names.into_iter());
        let clock = Arc::clone(&self.clock);
        while !self.must_void {
            match clock.timeout_at(self.over(), self.try_revoke(&all)).await {
                Ok(Ok(())) => break,
                _ if self.trusts_nothing() => self.distrust(),
                Ok(Err(error)) => {
                    // Others need not wait for it meanwhile.
                    self.is_away(&error);
                    self.pause().await;
                }
                // Only when the time is over.
                Err(_) => {}
            }
        }
        self.end_all().await;
    }

    /// Ends every capability of which that is not certain, or waits until the disk trusts nothing
    /// any more.
    pub(super) async fn end_all(&mut self) {
        let clock = Arc::clone(&self.clock);
        while self.must_void && !self.trusts_nothing() {
            let voided = clock.timeout_at(self.over(), self.void()).await;
            if !matches!(voided, Ok(Ok(()))) {
                self.pause().await;
            }
        }
    }

    /// Ends every group that the disk accepts. Others begin in their place.
    pub(super) async fn void(&mut self) -> Result<(), Unreached> {
        lock(&self.known).forget();
        self.tell_last_key().await?;
        let groups = self.status().await?.groups.0;
        let mut victims: Vec<_> = groups.iter().map(|status| Some(status.group)).collect();
        if victims.is_empty() {
            victims.push(None);
        }
        for victim in victims {
            let group = lock(&self.known).next_group();
            self.control().await?.replace_group(victim, group).await?;
            lock(&self.known).began(None, group, self.clock.instant());
        }
        self.must_void = false;
        Ok(())
    }

    /// Tells the disk the key epochs that it lacks, one after the other.
    pub(super) async fn tell_keys(&mut self) -> Result<(), Unreached> {
        while let Some(key) = { lock(&self.known).next_key() } {
            self.tell_key(key).await?;
        }
        Ok(())
    }

    /// Tells the disk the last key epoch. No capability on the disk may be valid.
    pub(super) async fn tell_last_key(&mut self) -> Result<(), Unreached> {
        let key = lock(&self.known).last_key();
        self.tell_key(key).await
    }

    async fn tell_key(&mut self, key: KeyEpoch) -> Result<(), Unreached> {
        self.control().await?.rotate(key).await?;
        lock(&self.known).has_key(key);
        Ok(())
    }

    async fn try_revoke(&mut self, all: &[Revoked]) -> Result<(), Unreached> {
        revoking::revoke(self.control().await?, all).await
    }

    /// The disk may accept what it should not.
    fn distrust(&mut self) {
        self.must_void = true;
        lock(&self.known).forget();
        let why = "it could not be told in time what it is to refuse".to_owned();
        self.reach.send_replace(Reach::Away(why));
    }

    /// Whether the disk refuses everything by now.
    fn trusts_nothing(&self) -> bool {
        self.clock.instant() > self.trusted_until
    }

    /// When it does.
    fn over(&self) -> Instant {
        self.trusted_until + Duration::from_millis(1)
    }

    async fn pause(&self) {
        self.clock.sleep_until((self.clock.instant() + PAUSE).min(self.over())).await;
    }
}
