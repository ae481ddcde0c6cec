//! Who may do what: the server's judgement where we have it, mode bits where we do not.
//!
//! A verdict is the server's judgement of one user about one file. It lives as long as the attributes
//! that came with it: for their timeout, or while a lease holds. An access control list, or a server that
//! begins to squash root, changes neither the mode nor the owner, so nothing else would end it.
//!
//! The kernel walks paths by names that it holds, and judges mode bits itself. It lets a caller pass
//! whom the server would not: by an access control list, or because he is user 0 and squashed. So
//! whoever gets to a file is judged for the directories above it that he can have walked through.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use larder_io::Monotonic;
use larder_vfs::{Access, Attr, Cred, Error, Ino, Kind, OpenFlags, Result};

use super::state::State;
use super::table::Node;
use crate::core::Core;

/// For so long after a directory's timeout a call may be on its way that walked through it before.
const WALK_MAX: Duration = Duration::from_secs(10);
/// Directories above a file that are judged; deeper ones than the kernel's longest path has.
const DEPTH_MAX: usize = 4096;

/// The verdicts on one file.
#[derive(Default)]
pub(crate) struct Rights {
    /// Oldest user first.
    verdicts: Vec<Verdict>,
    /// Directories: the server denies somebody what the mode bits grant him.
    stricter: bool,
}

/// What the server said of one user.
struct Verdict {
    who: Who,
    /// Of all rights, when he was judged at last.
    all: Option<(Access, Monotonic)>,
    /// Directories: when he found a name in it at last.
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

    /// The server has to judge anew.
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
        &mut self.verdicts[at]
    }

    /// What of `wanted` was said of `cred`, by what `counts`.
    fn of(
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

/// Verdicts on directories that have left memory. A caller that walks a path whose names the kernel has dropped
/// needs those of each directory on the way, and only the server could tell them anew.
///
/// Bounded: of two generations the older one goes when the younger one is full.
#[derive(Default)]
pub(crate) struct Departed {
    young: HashMap<Ino, Rights>,
    old: HashMap<Ino, Rights>,
}

impl Departed {
    /// Directories of a generation.
    const DIRECTORIES_MAX: usize = 1024;

    /// Keeps what was said of a directory that leaves memory. Files are asked about at each open in any case.
    pub(crate) fn keep(&mut self, ino: Ino, state: &mut State) {
        if !state.is_directory() || state.rights.verdicts.is_empty() {
            return;
        }
        if self.young.len() >= Departed::DIRECTORIES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(ino, std::mem::take(&mut state.rights));
    }

    /// Gives it back to the directory, which comes into memory again.
    pub(crate) fn give_back(&mut self, ino: Ino, state: &mut State) {
        let young = self.young.remove(&ino);
        let old = self.old.remove(&ino);
        if let Some(rights) = young.or(old) {
            state.rights = rights;
        }
    }
}

impl State {
    /// Records the server's judgement of `cred` about all rights, asked for at `asked`.
    pub(crate) fn set_rights(&mut self, cred: &Cred, granted: Access, asked: Monotonic) {
        let by_mode = by_mode(&self.known.attr, cred, true);
        self.rights.stricter |=
            by_mode.contains(Access::LOOKUP) && !granted.contains(Access::LOOKUP);
        self.rights.verdict(cred).all = Some((granted, asked));
    }

    /// The server has looked a name up in the directory for `cred`, who asked at `asked`.
    pub(crate) fn set_searched(&mut self, cred: &Cred, asked: Monotonic) {
        if self.is_directory() {
            self.rights.verdict(cred).searched = Some(asked);
        }
    }

    /// What of `wanted` the server said that `cred` may do; `None` if it did not say, or too long ago.
    pub(crate) fn rights_of(&self, cred: &Cred, wanted: Access, now: Monotonic) -> Option<Access> {
        self.rights.of(cred, wanted, |asked| self.counts(asked, now, Duration::ZERO))
    }

    /// The same, however long ago it was: for a server that is away.
    pub(crate) fn last_rights_of(&self, cred: &Cred, wanted: Access) -> Option<Access> {
        self.rights.of(cred, wanted, |_| true)
    }

    /// Forgets verdicts that are too old, before a lease would make them count again.
    pub(crate) fn forget_old_rights(&mut self, now: Monotonic) {
        let ttl = self.known.ttl;
        let is_new = |asked: Monotonic| now.since(asked) < ttl;
        for verdict in &mut self.rights.verdicts {
            verdict.all = verdict.all.filter(|(_, asked)| is_new(*asked));
            verdict.searched = verdict.searched.filter(|asked| is_new(*asked));
        }
    }

    fn counts(&self, asked: Monotonic, now: Monotonic, grace: Duration) -> bool {
        self.is_vouched_for() || now.since(asked) < self.known.ttl.saturating_add(grace)
    }

    /// Whether everybody may search the directory, as far as we know: the kernel need not ask us.
    pub(crate) fn searchable_by_all(&self) -> bool {
        searchable_by_all(&self.known.attr) && !self.rights.stricter
    }
}

/// Whether somebody may have walked through a directory by names that the kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// He may have, and the server lets him.
    Granted,
    /// He may have; the server did not say yet, or denied it.
    Unknown,
    /// He cannot have: the kernel's names in it are too old, or its own judgement is against him. He has
    /// a working directory or a mount below.
    Impossible,
}

impl State {
    fn walk(&self, cred: &Cred, session: u64, now: Monotonic) -> Walk {
        let held = self.known.session == session && self.counts(self.known.asked, now, WALK_MAX);
        if !held || !by_mode(&self.known.attr, cred, true).contains(Access::LOOKUP) {
            return Walk::Impossible;
        }
        let counts = |asked| self.counts(asked, now, WALK_MAX);
        match self.rights.of(cred, Access::LOOKUP, counts) {
            Some(Access::LOOKUP) => Walk::Granted,
            _ => Walk::Unknown,
        }
    }
}

impl Core {
    /// Fails if the server bars the caller from a directory above that he can have walked through.
    /// Above means where the file was last seen. Asks for what is not known, which is nothing if the
    /// caller has lately looked names up on the way.
    pub(crate) async fn demand_path(&self, node: &Node, cred: &Cred) -> Result<()> {
        let parent = |of: &Node| of.state().known.hint.as_ref().map(|(parent, _)| *parent);
        let mut above = parent(node);
        for _ in 0..DEPTH_MAX {
            let Some(dir) = above.and_then(|ino: Ino| self.table.get(ino)) else { return Ok(()) };
            let walk = dir.state().walk(cred, self.session, self.now());
            match walk {
                Walk::Impossible => return Ok(()),
                Walk::Granted => {}
                Walk::Unknown => match self.demand(&dir, cred, Access::LOOKUP, false).await {
                    Ok(()) => {}
                    // It is no longer where it was.
                    Err(Error::Stale | Error::NotFound) => return Ok(()),
                    Err(error) => return Err(error),
                },
            }
            above = parent(&dir).filter(|_| dir.ino != Ino::ROOT);
        }
        Ok(())
    }
}

/// What the mode bits alone allow, as an NFS server without access control lists judges (RFC 1813,
/// 3.3.4). `superuser` says whether user 0 is above them: not if the server squashes root.
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

/// The rights that opening with `flags` takes. Execution takes one of two.
pub(crate) fn suffice(flags: &OpenFlags, granted: Access) -> bool {
    let read = !flags.read
        || granted.contains(Access::READ)
        || (flags.execute && granted.contains(Access::EXECUTE));
    let write = !(flags.write || flags.truncate)
        || granted.contains(Access::MODIFY)
        || (flags.append && granted.contains(Access::EXTEND));
    read && write
}

/// Whether the mode bits let everybody search the directory.
pub(crate) fn searchable_by_all(attr: &Attr) -> bool {
    attr.mode & 0o111 == 0o111
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_vfs::{Handle, Time};

    use crate::fixtures::file_of;
    use crate::journal::Known;

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

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_nanos(seconds * 1_000_000_000)
    }

    /// A directory that was described at 10 s, for 30 s.
    fn directory(mode: u32) -> State {
        let attr = Attr { kind: Kind::Directory, ..file(mode) };
        let known = Known::described(attr, 1, at(10), Duration::from_secs(30));
        State::new(Handle::new(b"d"), known)
    }

    #[test]
    fn a_verdict_is_of_one_user_and_lives_as_long_as_attributes() {
        let mut state = directory(0o755);
        let (ann, bob) = (Cred::new(1, 1, &[5]), Cred::new(1, 1, &[]));
        state.set_rights(&ann, Access::ALL, at(10));
        assert_eq!(state.rights_of(&ann, Access::READ, at(39)), Some(Access::READ));
        assert_eq!(state.rights_of(&bob, Access::READ, at(39)), None);
        assert_eq!(state.rights_of(&ann, Access::READ, at(40)), None);
        // A later description, which somebody else asked for, says nothing of her.
        state.known.asked = at(39);
        assert_eq!(state.rights_of(&ann, Access::READ, at(41)), None);
        assert_eq!(state.last_rights_of(&ann, Access::READ), Some(Access::READ));
        // That she found a name later says nothing of her other rights.
        state.set_searched(&ann, at(41));
        assert_eq!(state.rights_of(&ann, Access::LOOKUP, at(42)), Some(Access::LOOKUP));
        assert_eq!(state.rights_of(&ann, Access::READ, at(42)), None);
        state.rights.clear();
        assert_eq!(state.last_rights_of(&ann, Access::LOOKUP), None);
    }

    #[test]
    fn an_old_verdict_is_not_brought_back_by_a_lease() {
        let (mut state, ann) = (directory(0o755), Cred::new(1, 1, &[]));
        state.set_rights(&ann, Access::ALL, at(10));
        state.forget_old_rights(at(50));
        assert_eq!(state.last_rights_of(&ann, Access::ALL), None);
    }

    #[test]
    fn verdicts_on_directories_outlive_the_memory_of_them_within_a_bound() {
        let (mut departed, ann) = (Departed::default(), Cred::new(1, 1, &[]));
        let judged = |kind| {
            let mut state = directory(0o755);
            state.known.attr.kind = kind;
            state.set_rights(&ann, Access::READ, at(10));
            state
        };
        let is_known = |departed: &mut Departed, ino| {
            let mut state = directory(0o755);
            departed.give_back(Ino(ino), &mut state);
            let said = state.rights_of(&ann, Access::READ, at(12)) == Some(Access::READ);
            assert_eq!(
                said,
                !state.searchable_by_all(),
                "that the server is stricter is known too"
            );
            said
        };
        departed.keep(Ino(7), &mut judged(Kind::Directory));
        departed.keep(Ino(8), &mut judged(Kind::File));
        assert!(is_known(&mut departed, 7) && !is_known(&mut departed, 8));
        assert!(!is_known(&mut departed, 7), "it is the directory's own again");
        let count = 5 * Departed::DIRECTORIES_MAX as u64;
        (0..count).for_each(|ino| departed.keep(Ino(ino), &mut judged(Kind::Directory)));
        let known: Vec<_> = (0..count).filter(|ino| is_known(&mut departed, *ino)).collect();
        assert!(known.len() >= Departed::DIRECTORIES_MAX);
        assert!(known.len() <= 2 * Departed::DIRECTORIES_MAX);
        assert!(known.contains(&(count - 1)), "the last ones are kept");
    }

    /// A denied search after a successful one counts, and the other way round.
    #[test]
    fn the_later_verdict_about_searching_counts() {
        let (mut state, ann) = (directory(0o755), Cred::new(1, 1, &[]));
        state.set_searched(&ann, at(10));
        state.set_rights(&ann, Access::READ, at(11));
        assert_eq!(state.rights_of(&ann, Access::LOOKUP, at(12)), Some(Access::NONE));
        assert!(!state.searchable_by_all(), "an access control list is at work");
        state.set_searched(&ann, at(12));
        assert_eq!(state.rights_of(&ann, Access::LOOKUP, at(12)), Some(Access::LOOKUP));
    }

    /// (mode, who, when, what is known of the walk)
    #[test]
    fn who_can_have_walked_through_a_directory_is_judged() {
        let (ann, bob, root) = (Cred::new(1, 1, &[]), Cred::new(2, 2, &[]), Cred::root());
        for (mode, who, when, expected) in [
            (0o755, &ann, 12, Walk::Granted),
            (0o755, &bob, 12, Walk::Unknown),
            (0o755, &bob, 49, Walk::Unknown),
            (0o755, &bob, 50, Walk::Impossible),
            (0o755, &ann, 49, Walk::Granted),
            (0o700, &bob, 12, Walk::Impossible),
            (0o700, &root, 12, Walk::Unknown),
        ] {
            let mut state = directory(mode);
            state.set_searched(&ann, at(10));
            assert_eq!(state.walk(who, 1, at(when)), expected, "{mode:o} {who:?} {when}");
            assert_eq!(state.walk(who, 2, at(when)), Walk::Impossible, "of an earlier run");
        }
    }
}
