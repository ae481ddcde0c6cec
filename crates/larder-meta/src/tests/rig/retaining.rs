//! Files whose bytes only their writer has.

use larder_wire::meta::Res;
use larder_wire::meta::calls::{self, LookAt, LookedAt, Retention};
use larder_wire::meta::words::{ByteRange, FileId, LeaseKind, LeaseNumber, SessionId};
use tokio::sync::oneshot;

use super::{Rig, decode};
use crate::change::Reply;
use crate::rights::Caller;

impl Rig {
    /// A session looks at a file and wants a lease: the reply, which may come later.
    pub(crate) fn look(
        &mut self,
        session: SessionId,
        file: FileId,
        lease: LeaseKind,
    ) -> oneshot::Receiver<Reply> {
        let (at, range) = (LookAt::File(file), ByteRange { offset: 0, length: 1 << 20 });
        self.group_call(calls::Look { session, at, lease, range })
    }

    /// The session gets a write lease on a file.
    pub(crate) fn be_alone(&mut self, file: FileId) -> LeaseNumber {
        let mut looked = self.look(self.session, file, LeaseKind::Write);
        let looked: Res<LookedAt> = decode(&looked.try_recv().unwrap());
        let lease = looked.unwrap().found.unwrap().lease.unwrap();
        assert_eq!(lease.kind, LeaseKind::Write);
        lease.number
    }

    /// The session tells of bytes of a file that only its client has.
    pub(crate) fn retain(&mut self, file: FileId, what: Retention) -> Res<()> {
        let sequence = self.next();
        self.call(&Caller::root(), calls::Retain { sequence, file, what })
    }

    /// The same of so many bytes, under a write lease.
    pub(crate) fn retain_bytes(&mut self, file: FileId, bytes: u64) {
        self.be_alone(file);
        self.retain(file, Retention::Retained(bytes)).unwrap();
    }
}
