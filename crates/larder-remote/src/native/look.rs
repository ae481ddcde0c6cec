//! Looking at an object: its attributes, the caller's rights, and a lease, in one call or in none.

use std::time::Duration;

use larder_vfs::{Attr, Cred, Error, Lease, Result};
use larder_wire::meta::calls::{self, LookAt, LookedAt};
use larder_wire::meta::words::{Attributes, ByteRange, FileId, Layout, LeaseKind};

use super::Native;
use super::session::Failed;

/// The range that is requested together with a file's attributes: all that small files have.
const LOOKED_AT: ByteRange = ByteRange { offset: 0, length: 1 << 20 };

/// Pauses before a file is looked at again for which no lease was available.
const LOOK_PAUSES: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(4),
    Duration::from_millis(16),
    Duration::from_millis(64),
];

impl Native {
    /// Attributes, after what was written here has become part of the file.
    pub(super) async fn attributes(&self, cred: &Cred, file: FileId) -> Result<Attr> {
        if self.uncommitted.get(file).is_none()
            && let Some(known) = self.session.leases().attributes(file)
        {
            return Ok(self.attr(&known));
        }
        let (attributes, ..) = self.look_at(cred, file).await?;
        Ok(self.attr(&attributes))
    }

    /// Looks at a file: attributes, rights and a lease, in one call, or in none.
    pub(super) async fn look_at(
        &self,
        cred: &Cred,
        file: FileId,
    ) -> Result<(Attributes, u32, Lease)> {
        self.commit_pending(file).await?;
        let leases = self.session.leases();
        if let Some(judged) = leases.judged(cred, file) {
            return Ok(judged);
        }
        let (looked, lease) = self.look(cred, LookAt::File(file), self.wanted_lease(file)).await?;
        let seen = looked.found.ok_or(Error::Stale)?;
        Ok((seen.attributes, seen.granted, lease.ok_or(Error::Io)?))
    }

    /// Looks at an object, and keeps the answer for later callers. While another client is about to
    /// change it, the server gives no lease for the time that a recall takes. An answer without a
    /// lease would be trusted after that change, so the request is repeated.
    pub(super) async fn look(
        &self,
        cred: &Cred,
        at: LookAt,
        lease: LeaseKind,
    ) -> Result<(LookedAt, Option<Lease>)> {
        let leases = self.session.leases();
        let mut pauses = LOOK_PAUSES.iter();
        loop {
            let asking = leases.begin();
            let asked = self.session.ask(cred, |session| calls::Look {
                session,
                at: at.clone(),
                lease,
                range: LOOKED_AT,
            });
            let looked = asked.await?;
            let given = looked.found.as_ref().map(|seen| asking.take(cred, seen));
            let lacks = lease != LeaseKind::None && given.as_ref().is_some_and(|one| !one.holds());
            let Some(pause) = pauses.next().filter(|_| lacks) else { return Ok((looked, given)) };
            self.rpc().config().clock.sleep(*pause).await;
        }
    }

    /// The location of a range, from its start on, the file's attributes, and a lease, by which the
    /// next read need not ask. `None` if no lease is to be asked for, or the caller may not read
    /// the file by its own rights, as one may who has it open.
    pub(super) async fn layout_with_lease(
        &self,
        cred: &Cred,
        file: FileId,
        range: ByteRange,
    ) -> Result<Option<(Attributes, Layout)>> {
        let lease = self.wanted_lease(file);
        if lease == LeaseKind::None {
            return Ok(None);
        }
        let asking = self.session.leases().begin();
        let at = LookAt::File(file);
        let looked = self
            .session
            .ask(cred, |session| calls::Look { session, at: at.clone(), lease, range })
            .await;
        let seen = match looked {
            Ok(looked) => looked.found,
            Err(Failed::Status(_)) => None,
            Err(failed) => return Err(failed.into()),
        };
        let Some(seen) = seen else { return Ok(None) };
        // A reader does not wait for a lease that another client's change keeps it from.
        asking.take(cred, &seen);
        let covered = seen.layout.covered;
        let is_told = covered.offset <= range.offset
            && range.offset < covered.offset.saturating_add(covered.length);
        Ok(is_told.then_some((seen.attributes, seen.layout)))
    }

    /// The lease to ask for when a name is looked up.
    pub(super) fn any_lease(&self) -> LeaseKind {
        if self.session.leases().has_room() { LeaseKind::Read } else { LeaseKind::None }
    }

    /// The lease to ask for on a file: none while another client waits for the one that we had.
    fn wanted_lease(&self, file: FileId) -> LeaseKind {
        if self.session.leases().is_returning(file) { LeaseKind::None } else { self.any_lease() }
    }

    /// Excludes other clients from a file, by a write lease, and describes it. Another client that
    /// looks at the file just then may get a lease first; it is recalled by the next attempt.
    pub(super) async fn exclude_others(&self, cred: &Cred, file: FileId) -> Result<Option<Attr>> {
        let mut pauses = LOOK_PAUSES.iter();
        loop {
            let excluded = self.try_to_exclude(cred, file).await?;
            let Some(pause) = pauses.next().filter(|_| excluded.is_none()) else {
                return Ok(excluded);
            };
            self.rpc().config().clock.sleep(*pause).await;
        }
    }

    /// Tries once. While we write back because another client waits, the lease that we had still
    /// excludes that client.
    async fn try_to_exclude(&self, cred: &Cred, file: FileId) -> Result<Option<Attr>> {
        self.commit_pending(file).await?;
        let leases = self.session.leases();
        if leases.excludes(file)
            && let Some(known) = leases.attributes(file)
        {
            return Ok(Some(self.attr(&known)));
        }
        let was_returning = leases.is_returning(file);
        let wanted = match was_returning {
            true => LeaseKind::None,
            false if leases.has_room() => LeaseKind::Write,
            false => return Ok(None),
        };
        let (looked, _) = self.look(cred, LookAt::File(file), wanted).await?;
        let seen = looked.found.ok_or(Error::Stale)?;
        let is_alone = leases.excludes(file) || (was_returning && leases.is_returning(file));
        Ok(is_alone.then(|| self.attr(&seen.attributes)))
    }
}
