//! Looking at an object: its attributes, the caller's rights, and a lease, in one call or in none.

use std::time::Duration;

use larder_vfs::{Attr, Cred, Error, Lease, Result};
use larder_wire::meta::calls::{self, LookAt, LookedAt};
use larder_wire::meta::words::{Attributes, ByteRange, FileId, LeaseKind};

use super::Native;

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
        let (looked, lease) = self.look(cred, LookAt::File(file)).await?;
        let seen = looked.found.ok_or(Error::Stale)?;
        Ok((seen.attributes, seen.granted, lease.ok_or(Error::Io)?))
    }

    /// Looks at an object, and keeps the answer for later callers. While another client is about to
    /// change it, the server gives no lease for the time that a recall takes. An answer without a
    /// lease would be trusted after that change, so the request is repeated.
    pub(super) async fn look(&self, cred: &Cred, at: LookAt) -> Result<(LookedAt, Option<Lease>)> {
        let leases = self.session.leases();
        let mut pauses = LOOK_PAUSES.iter();
        loop {
            let (asking, lease) = (leases.begin(), self.wanted_lease());
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

    /// The lease to ask for.
    pub(super) fn wanted_lease(&self) -> LeaseKind {
        if self.session.leases().has_room() { LeaseKind::Read } else { LeaseKind::None }
    }
}
