//! What requests of clients show and ask for.

use bytes::Bytes;
use larder_wire::capability::{Capability, Extent};
use larder_wire::disk::DATA_BYTES_MAX;
use larder_wire::disk::words::{
    Done, FlushHead, Head, ReadHead, Refusal, WriteFromHead, WriteHead,
};

use crate::standing::Deed;

/// The content of a client's request.
pub(crate) trait ClientHead: Head<Done = Done> {
    /// The capability that it shows.
    fn capability(&self) -> &Capability;

    /// What is to be checked and done. A request for zero bytes, or for more than the limit, is
    /// refused.
    fn deed(&self, data: &Bytes) -> Result<Deed, Refusal>;

    /// Whether a write is to be durable before the reply.
    fn is_stable(&self) -> bool {
        false
    }

    /// The bytes of the disk that are written, if they are not the request's data, and the request,
    /// which shows the capability to read them.
    fn source(&self) -> Option<(&WriteFromHead, Result<Extent, Refusal>)> {
        None
    }
}

impl ClientHead for ReadHead {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn deed(&self, data: &Bytes) -> Result<Deed, Refusal> {
        brings_nothing(data)?;
        Ok(Deed::Read(piece(self.offset, self.length)?))
    }
}

impl ClientHead for WriteHead {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn deed(&self, data: &Bytes) -> Result<Deed, Refusal> {
        Ok(Deed::Write(range(self.offset, data.len() as u64)?))
    }

    fn is_stable(&self) -> bool {
        self.stable
    }
}

impl ClientHead for WriteFromHead {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn deed(&self, data: &Bytes) -> Result<Deed, Refusal> {
        brings_nothing(data)?;
        Ok(Deed::Write(piece(self.offset, self.length)?))
    }

    fn is_stable(&self) -> bool {
        self.stable
    }

    fn source(&self) -> Option<(&WriteFromHead, Result<Extent, Refusal>)> {
        Some((self, range(self.source.offset, u64::from(self.length))))
    }
}

impl ClientHead for FlushHead {
    fn capability(&self) -> &Capability {
        &self.capability
    }

    fn deed(&self, data: &Bytes) -> Result<Deed, Refusal> {
        brings_nothing(data)?;
        Ok(Deed::Flush)
    }
}

fn brings_nothing(data: &Bytes) -> Result<(), Refusal> {
    if data.is_empty() { Ok(()) } else { Err(Refusal::Malformed) }
}

/// What a request names that does not bring the bytes: no more than one could bring.
pub(super) fn piece(offset: u64, length: u32) -> Result<Extent, Refusal> {
    if length as usize > DATA_BYTES_MAX {
        return Err(Refusal::Malformed);
    }
    range(offset, length.into())
}

fn range(offset: u64, length: u64) -> Result<Extent, Refusal> {
    Extent::new(offset, length).map_err(|_| Refusal::Malformed)
}
