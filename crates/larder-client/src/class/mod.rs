//! Which class a file has: the classes of the mount ([`larder_class::Classes`]), and those that
//! were set for single files and directories.
//!
//! A class is chosen when a file is opened, and belongs to the open file. [`offer`] is what the
//! client can provide.
//!
//! - [`table`]: the classes that were set, in memory and as records of the cache.
//! - [`choose`]: chooses the class of a file when it is opened.
//! - [`raise`]: bytes in the memory of other machines that are to be on the server's disk;
//!   [`below`]: those of the files below a directory.
//! - [`wanted`]: where all who wrote a file want its bytes.
//! - [`set`]: sets a class; the extended attributes that report classes.

mod asked;
mod below;
mod choose;
mod raise;
mod retained;
mod set;
mod table;
mod wanted;

use std::time::Duration;

use larder_class::{Class, Level, Offer, OwnDisk};
use larder_vfs::Volatile;

pub use choose::Durability;
pub(crate) use table::SetClasses;
pub(crate) use wanted::Wanted;

/// Where a mount can keep, on this machine, what the server lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// A disk on which it survives; this takes a cache on disk, and a server that distinguishes
    /// versions.
    pub disk: bool,
    /// Memory that outlives the daemon, beside that disk.
    pub memory: bool,
    /// Names: no other client sees the name of a file that need not be at the server.
    pub names: bool,
}

/// How long after its close a file may take to be on this machine's disk where no class says so:
/// as long as a local file system loses in a crash, and as class `generated` says.
const LOCAL_WITHIN: Duration = Duration::from_secs(1);

impl Here {
    /// A disk alone.
    pub const DISK: Here = Here { disk: true, memory: false, names: false };
}

/// What this client can keep for a mount. `whose` describes the mount for people, as in "an NFS
/// mount": the server's disk holds one copy. close and fsync wait at least for the weakest place in
/// `here`, or for the server. Without a class that says otherwise, bytes are at the server within
/// `unsent_age_max`, unless neither bytes nor names ever need to be there.
pub fn offer(whose: &str, here: Here, unsent_age_max: Duration) -> Offer {
    let levels = [Level::Memory, Level::Durable].into_iter();
    let levels = levels.chain(here.disk.then_some(Level::Local));
    let waits_for = match here {
        Here { memory: true, .. } => None,
        Here { disk: true, .. } => Some(Level::Local),
        _ => Some(Level::Durable),
    };
    let copies = levels.map(|level| (level, 1)).collect();
    let may_stay = here.memory && here.names;
    let sent_within = (!may_stay).then_some((Level::Durable, unsent_age_max));
    Offer {
        whose: whose.to_owned(),
        copies,
        waits_for,
        local: OwnDisk::AsAsked,
        sent_within,
        is_retaining: false,
    }
}

/// How bytes of a class are kept in the memory of other machines, if that is enough.
pub(crate) fn volatile(class: &Class) -> Option<Volatile> {
    let copies = class.promised.steps.get(&Level::Shared).map_or(1, |step| step.copies);
    class.is_volatile().then_some(Volatile { copies, due: class.volatile_for() })
}

/// What this client can keep for a mount of a server that places bytes in the memory of machines,
/// or on its disk if no machine has memory for them: close and fsync wait for one of them, or for
/// this machine's disk if `here` has one and the class asks for it. What needs no more than memory
/// stays in this machine's, if `here` has such, until another one asks for it.
///
/// Where names are made here, no other client sees a name before it is given up, so close and fsync
/// wait for nothing that the class does not ask for. All bytes are on this machine's disk within
/// [`LOCAL_WITHIN`], together with their names, and in the memory of machines within
/// `unsent_age_max`.
pub fn shared_offer(whose: &str, here: Here, unsent_age_max: Duration) -> Offer {
    // Where fewer memory disks than copies were enrolled beside each other, bytes are on a disk.
    // That there is an archive is known when the server is reached.
    let levels = [Level::Memory, Level::Durable, Level::Archive].map(|level| (level, 1));
    let levels = levels.into_iter().chain([(Level::Shared, u8::MAX)]);
    let copies = levels.chain(here.disk.then_some((Level::Local, 1))).collect();
    let is_hidden = here.names && here.disk;
    let local = match here {
        Here { disk: true, names: true, .. } => OwnDisk::Within(LOCAL_WITHIN),
        Here { disk: true, .. } => OwnDisk::AwaitedIfAsked,
        _ => OwnDisk::AsAsked,
    };
    Offer {
        whose: whose.to_owned(),
        copies,
        waits_for: (!is_hidden).then_some(Level::Shared),
        local,
        sent_within: is_hidden.then_some((Level::Shared, unsent_age_max)),
        is_retaining: here.memory,
    }
}

#[cfg(test)]
mod tests {
    use larder_class::{Classes, Deadline};

    use super::*;

    /// Where names are made here, no close waits for more than its class asks for; and all bytes
    /// are on this machine's disk soon, and where their class wants them within its time.
    #[test]
    fn on_exclusive_mounts_of_volumes_no_close_waits_for_what_its_class_does_not_ask_for() {
        let sent = Duration::from_secs(30);
        let here = Here { names: true, ..Here::DISK };
        let offer = shared_offer("an exclusive mount of a volume", here, sent);
        let classes = Classes::shipped(&offer).unwrap();
        for (name, level, within) in [
            ("scratch", Level::Shared, sent),
            ("volatile", Level::Shared, Duration::from_secs(30)),
            ("generated", Level::Durable, Duration::from_secs(600)),
        ] {
            let class = classes.get(name).unwrap();
            assert_eq!(class.promised.close, None, "{name}");
            assert_eq!(class.local_within(), Some(LOCAL_WITHIN), "{name}");
            assert_eq!(class.promised.due(level), Deadline::Within(within), "{name}");
            assert!(!class.is_in_memory(), "{name}");
            assert_eq!(class.is_volatile(), level == Level::Shared, "{name}");
        }
        for name in ["edited", "critical"] {
            let class = classes.get(name).unwrap();
            assert_eq!((class.promised.close, class.local_within()), (Some(Level::Durable), None));
        }
    }
}
