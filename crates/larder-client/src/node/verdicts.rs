//! The server's verdicts on one file, and what mode bits alone allow. Pure; [`super::rights`]
//! decides when the server is asked.

use std::collections::HashMap;
use std::sync::Arc;

use larder_io::Monotonic;
use larder_vfs::{Access, Attr, Cred, Ino, Kind, OpenFlags};

/// The verdicts on one file.
#[derive(Default)]
pub(crate) struct Rights {
    /// Oldest user first.
    verdicts: Vec<Verdict>,
    /// Directories: the server denies a user what the mode bits grant.
    stricter: bool,
}

/// What the server decided for one user.
struct Verdict {
    who: Who,
    /// Of all rights, at the time of the last decision.
    all: Option<(Access, Monotonic)>,
    /// Directories: when the user last found a name in it.
    searched: Option<Monotonic>,
}

/// A caller without its process.
pub(crate) struct Who {
    uid: u32,
    gid: u32,
    groups: Arc<[u32]>,
}

impl Who {
    pub(crate) fn of(cred: &Cred) -> Who {
        Who { uid: cred.uid, gid: cred.gid, groups: cred.groups.clone() }
    }

    pub(crate) fn is(&self, cred: &Cred) -> bool {
        self.uid == cred.uid && self.gid == cred.gid && self.groups == cred.groups
    }
}

impl Rights {
    /// Users remembered per file; the oldest is forgotten.
    const USERS_MAX: usize = 8;

    /// The server has to be asked again.
    pub(crate) fn clear(&mut self) {
        *self = Rights::default();
    }

    fn verdict(&mut self, cred: &Cred) -> &mut Verdict {
        let at = match self.verdicts.iter().position(|verdict| verdict.who.is(cred)) {
            Some(at) => at,
            None => {
                if self.verdicts.len() == Rights::USERS_MAX {
                    self.verdicts.remove(0);
                }
                self.verdicts.push(Verdict { who: Who::of(cred), all: None, searched: None });
                self.verdicts.len() - 1
            }
        };
        debug_assert!(self.verdicts.len() <= Rights::USERS_MAX, "no more users than the bound");
        &mut self.verdicts[at]
    }

    /// The server has decided on all rights of `cred`; `is_stricter` than the mode bits where it
    /// denies a search that they grant.
    pub(super) fn judged(
        &mut self,
        cred: &Cred,
        (granted, asked): (Access, Monotonic),
        is_stricter: bool,
    ) {
        self.stricter |= is_stricter;
        self.verdict(cred).all = Some((granted, asked));
    }

    /// The server has looked a name up in the directory for `cred`, requested at `asked`.
    pub(super) fn searched(&mut self, cred: &Cred, asked: Monotonic) {
        self.verdict(cred).searched = Some(asked);
    }

    /// Forgets decisions requested so long ago that `is_old` holds.
    pub(super) fn forget(&mut self, is_old: impl Fn(Monotonic) -> bool) {
        for verdict in &mut self.verdicts {
            verdict.all = verdict.all.filter(|(_, asked)| !is_old(*asked));
            verdict.searched = verdict.searched.filter(|asked| !is_old(*asked));
        }
    }

    /// Directories: whether the server denies a user what the mode bits grant.
    pub(super) fn is_stricter(&self) -> bool {
        self.stricter
    }

    /// Which of the rights in `wanted` were granted to `cred`, by decisions for which `counts`
    /// holds.
    pub(super) fn of(
        &self,
        cred: &Cred,
        wanted: Access,
        counts: impl Fn(Monotonic) -> bool,
    ) -> Option<Access> {
        let verdict = self.verdicts.iter().find(|verdict| verdict.who.is(cred))?;
        let judged = verdict.all.filter(|(_, asked)| counts(*asked));
        let searched = verdict.searched.filter(|asked| counts(*asked));
        match (judged, searched) {
            (Some((_, judged)), Some(searched))
                if wanted == Access::LOOKUP && searched >= judged =>
            {
                Some(Access::LOOKUP)
            }
            (Some((granted, _)), _) => Some(granted & wanted),
            (None, Some(_)) if wanted == Access::LOOKUP => Some(Access::LOOKUP),
            (None, _) => None,
        }
    }
}

/// Decisions on directories that have left memory. A caller that walks a path whose names the
/// kernel has dropped needs those of each directory on the path, and otherwise only the server
/// could give them.
///
/// Bounded: of two generations the older one is dropped when the younger one is full.
#[derive(Default)]
pub(crate) struct Departed {
    /// How many nodes have left, files and directories.
    count: u64,
    young: HashMap<Ino, Rights>,
    old: HashMap<Ino, Rights>,
}

impl Departed {
    /// Directories of a generation.
    pub(super) const DIRECTORIES_MAX: usize = 1024;

    /// How many nodes have left memory so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// A node leaves memory.
    pub(crate) fn count_one(&mut self) {
        self.count += 1;
    }

    /// Keeps the decisions on a directory that leaves memory.
    pub(crate) fn keep(&mut self, ino: Ino, rights: Rights) {
        if rights.verdicts.is_empty() {
            return;
        }
        debug_assert!(
            !self.young.contains_key(&ino) && !self.old.contains_key(&ino),
            "a node that comes into memory takes its rights back"
        );
        if self.young.len() >= Departed::DIRECTORIES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, rights);
    }

    /// Gives them back to the directory, which comes into memory again.
    pub(crate) fn give_back(&mut self, ino: Ino) -> Option<Rights> {
        let young = self.young.remove(&ino);
        let old = self.old.remove(&ino);
        young.or(old)
    }
}

/// What the mode bits alone allow, as an NFS server without access control lists decides (RFC 1813,
/// 3.3.4). `superuser` says whether user 0 is exempt from them: not if the server squashes root.
pub(crate) fn by_mode(attr: &Attr, cred: &Cred, superuser: bool) -> Access {
    let directory = attr.kind == Kind::Directory;
    let write = if directory {
        Access::MODIFY | Access::EXTEND | Access::DELETE
    } else {
        Access::MODIFY | Access::EXTEND
    };
    let search = if directory { Access::LOOKUP } else { Access::EXECUTE };
    if cred.uid == 0 && superuser {
        let executable = directory || attr.mode & 0o111 != 0;
        return Access::READ | write | if executable { search } else { Access::NONE };
    }
    let shift = match () {
        () if cred.uid == attr.uid => 6,
        () if cred.in_group(attr.gid) => 3,
        () => 0,
    };
    let bits = attr.mode >> shift;
    [(0o4, Access::READ), (0o2, write), (0o1, search)]
        .into_iter()
        .filter(|(bit, _)| bits & bit != 0)
        .fold(Access::NONE, |all, (_, right)| all | right)
}

/// The rights that opening with `flags` takes. For execution, one of two rights suffices.
pub(crate) fn suffice(flags: &OpenFlags, granted: Access) -> bool {
    let read = !flags.read
        || granted.contains(Access::READ)
        || (flags.execute && granted.contains(Access::EXECUTE));
    let write = !(flags.write || flags.truncate)
        || granted.contains(Access::MODIFY)
        || (flags.append && granted.contains(Access::EXTEND));
    read && write
}

/// Whether the mode bits let every user search the directory.
pub(crate) fn searchable_by_all(attr: &Attr) -> bool {
    attr.mode & 0o111 == 0o111
}

#[cfg(test)]
mod tests {
    use larder_vfs::Time;

    use super::*;
    use crate::fixtures::file_of;

    fn file(mode: u32) -> Attr {
        Attr { mode, uid: 10, gid: 20, ..file_of(Time::default()) }
    }

    /// The first class that matches decides, even if it grants less than a later one.
    #[test]
    fn mode_bits_are_judged_as_posix_has_it() {
        let owner = Cred::new(10, 99, &[20]);
        let group = Cred::new(11, 99, &[20]);
        let other = Cred::new(11, 99, &[]);
        for (mode, cred, expected) in [
            (0o077, &owner, Access::NONE),
            (0o400, &owner, Access::READ),
            (0o707, &group, Access::NONE),
            (0o020, &group, Access::MODIFY | Access::EXTEND),
            (0o770, &other, Access::NONE),
            (0o001, &other, Access::EXECUTE),
        ] {
            assert_eq!(by_mode(&file(mode), cred, true), expected, "{mode:o} {cred:?}");
        }
    }

    #[test]
    fn root_is_above_the_bits_unless_squashed() {
        let root = Cred::root();
        assert!(by_mode(&file(0), &root, true).contains(Access::READ | Access::MODIFY));
        assert!(!by_mode(&file(0), &root, true).contains(Access::EXECUTE));
        assert_eq!(by_mode(&file(0o600), &root, false), Access::NONE);
    }

    #[test]
    fn opening_needs_what_it_asks_for() {
        let flags = |read, write, append, execute| OpenFlags {
            read,
            write,
            append,
            execute,
            ..OpenFlags::default()
        };
        let rw = Access::READ | Access::MODIFY | Access::EXTEND;
        for (flags, granted, expected) in [
            (flags(true, false, false, false), Access::READ, true),
            (flags(true, false, false, false), Access::EXECUTE, false),
            (flags(true, false, false, true), Access::EXECUTE, true),
            (flags(true, true, false, false), Access::READ, false),
            (flags(true, true, false, false), rw, true),
            (flags(false, true, true, false), Access::EXTEND, true),
            (flags(false, true, false, false), Access::EXTEND, false),
        ] {
            assert_eq!(suffice(&flags, granted), expected, "{flags:?} {granted:?}");
        }
    }
}
