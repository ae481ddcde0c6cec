//! What may be durable after its answer ([`crate::late`]).

use larder_wire::meta::Status;

use super::Live;
use crate::change::Change;
use crate::late::Late;
use crate::store::Txn;

impl Live {
    pub(crate) fn late(&self) -> &Late {
        &self.late
    }

    pub(crate) fn late_mut(&mut self) -> &mut Late {
        &mut self.late
    }

    /// Whether what a call, or the server itself, has written may be durable late.
    pub(crate) fn may_be_late(
        &mut self,
        txn: &mut Txn<'_>,
        change: Option<&Change>,
    ) -> Result<bool, Status> {
        self.late.judge(txn, change, &self.sets)
    }
}
