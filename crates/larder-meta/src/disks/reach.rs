//! Whether a disk is within reach, and why an order did not get there.

use larder_disk_client::DiskError;
use larder_rpc::ConnectError;
use larder_wire::capability::ExtentsError;
use larder_wire::seal::Setup;

/// Whether a disk was refreshed at the last attempt, so that capabilities can be made for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// That was not tried yet.
    Unknown,
    Ready,
    /// Why it was not.
    Away(String),
}

impl Reach {
    pub(super) fn is_ready(&self) -> bool {
        *self == Reach::Ready
    }
}

impl Unreached {
    /// Whether the disk is there, and is used only when somebody has started it otherwise.
    pub(super) fn is_to_be_mended(&self) -> bool {
        use Unreached::{OtherSetup, OtherStore, Small};
        matches!(self, Small { .. } | OtherSetup { .. } | OtherStore)
    }
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreached {
    #[error(transparent)]
    Connect(ConnectError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Extents(ExtentsError),
    #[error(
        "it has {size} bytes, and was enrolled with {wanted}: start it with --size {wanted} and an empty store"
    )]
    Small { size: u64, wanted: u64 },
    #[error(
        "its setup is {}, and that of the volume is {name}: start it with --setup {name} and an empty store",
        .setup.name(), name = .wanted.name()
    )]
    OtherSetup { setup: Setup, wanted: Setup },
    #[error(
        "its store is not the one that it had, or is an older copy of that: start it with its own store, or let the \
         volume take this one as it is (larder disk accept)"
    )]
    OtherStore,
    #[error("what it serves from is not on record yet")]
    Unrecorded,
    #[error("there is no connection")]
    Never,
}
