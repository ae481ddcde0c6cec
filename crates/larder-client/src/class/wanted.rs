//! Where those who wrote a file want its bytes, by their classes.

use larder_class::Class;
use larder_vfs::Volatile;

use super::volatile;

/// Where bytes are to be that several may have written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nobody has written any.
    #[default]
    Nowhere,
    /// In the memory of other machines.
    Memory(Volatile),
    /// On the server's disk.
    Disk,
}

impl Wanted {
    /// What a class wants.
    pub(crate) fn by(class: &Class) -> Wanted {
        volatile(class).map_or(Wanted::Disk, Wanted::Memory)
    }

    /// What suits both.
    #[must_use]
    pub(crate) fn and(self, other: Wanted) -> Wanted {
        match (self, other) {
            (Wanted::Nowhere, only) | (only, Wanted::Nowhere) => only,
            (Wanted::Memory(one), Wanted::Memory(other)) => Wanted::Memory(one.and(other)),
            (Wanted::Disk, _) | (_, Wanted::Disk) => Wanted::Disk,
        }
    }

    /// How they are kept in the memory of other machines, if that is enough.
    pub(crate) fn in_memory(self) -> Option<Volatile> {
        match self {
            Wanted::Memory(volatile) => Some(volatile),
            Wanted::Nowhere | Wanted::Disk => None,
        }
    }
}
