//! A server that breaks the contract in one chosen way, to see that the suite notices.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use larder_vfs::conformance::{Traits, Verdict, cases};
use larder_vfs::*;

use crate::block_on;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    ShortReads,
    AbsentIsAnError,
    NoEndOfFile,
    EveryoneIsRoot,
    UnstableOnly,
    WrongBefore,
    NewVerifierEachTime,
    DotsAreListed,
    NamesAreForgotten,
    RenameKeepsTheOldName,
    AccessGrantsAll,
    GuardIsIgnored,
    TimesAreIgnored,
    EverybodyIsLocked,
    RefusedLocksAreHeldInPart,
    UnlocksAreForgotten,
}

/// Which case notices it.
const LIES: [(Lie, &str); 16] = [
    (Lie::ShortReads, "one_byte"),
    (Lie::AbsentIsAnError, "lookup_of_an_absent_name_is_an_answer"),
    (Lie::NoEndOfFile, "read_of_an_empty_file"),
    (Lie::EveryoneIsRoot, "a_stranger_may_not_read_or_write"),
    (Lie::UnstableOnly, "stability_is_at_least_what_was_asked"),
    (Lie::WrongBefore, "own_changes_follow_each_other"),
    (Lie::NewVerifierEachTime, "unstable_then_commit"),
    (Lie::DotsAreListed, "an_empty_directory"),
    (Lie::NamesAreForgotten, "a_thousand_names"),
    (Lie::RenameKeepsTheOldName, "rename_within_a_directory"),
    (Lie::AccessGrantsAll, "access_agrees_with_what_happens"),
    (Lie::GuardIsIgnored, "guard_that_does_not_hold"),
    (Lie::TimesAreIgnored, "set_times"),
    (Lie::EverybodyIsLocked, "exclusive_locks_exclude_other_clients"),
    (Lie::RefusedLocksAreHeldInPart, "several_ranges_are_locked_at_once"),
    (Lie::UnlocksAreForgotten, "a_part_of_a_shared_lock_is_unlocked_by_itself"),
];

struct Liar(MemRemote, Lie);

impl Liar {
    fn lies(&self, lie: Lie) -> bool {
        self.1 == lie
    }
}

impl Remote for Liar {
    fn root(&self) -> Future<'_, Found> {
        self.0.root()
    }

    fn limits(&self) -> RemoteLimits {
        self.0.limits()
    }

    fn getattr<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, Attr> {
        self.0.getattr(cred, file)
    }

    fn setattr<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        mut set: SetAttr,
        guard: Option<Time>,
    ) -> Future<'a, Changed> {
        if self.lies(Lie::TimesAreIgnored) {
            (set.atime, set.mtime) = (None, None);
        }
        self.0.setattr(cred, file, set, guard.filter(|_| !self.lies(Lie::GuardIsIgnored)))
    }

    fn access<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        wanted: Access,
    ) -> Future<'a, Judged> {
        if self.lies(Lie::AccessGrantsAll) {
            return Box::pin(async move { Ok(Judged::new(wanted, None)) });
        }
        self.0.access(cred, file, wanted)
    }

    fn lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        changes: &'a [LockChange],
    ) -> Future<'a, Attr> {
        Box::pin(async move {
            let unlocks = changes.iter().all(|change| change.mode.is_none());
            if self.lies(Lie::EverybodyIsLocked) || self.lies(Lie::UnlocksAreForgotten) && unlocks {
                return self.0.getattr(cred, file).await;
            }
            let locked = self.0.lock(cred, file, changes).await;
            if locked.is_err() && self.lies(Lie::RefusedLocksAreHeldInPart) {
                for change in changes {
                    let _ = self.0.lock(cred, file, std::slice::from_ref(change)).await;
                }
            }
            locked
        })
    }

    fn test_lock<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        range: Range<u64>,
        mode: LockMode,
    ) -> Future<'a, Option<LockMode>> {
        self.0.test_lock(cred, file, range, mode)
    }

    fn lookup<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, LookedUp> {
        Box::pin(async move {
            let found = self.0.lookup(cred, dir, name).await?;
            match found.found {
                None if self.lies(Lie::AbsentIsAnError) => Err(Error::NotFound),
                _ => Ok(found),
            }
        })
    }

    fn readlink<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
    ) -> Future<'a, (OsString, Option<Attr>)> {
        self.0.readlink(cred, file)
    }

    fn read<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        len: u32,
    ) -> Future<'a, RemoteRead> {
        Box::pin(async move {
            let root = Cred::root();
            let cred = if self.lies(Lie::EveryoneIsRoot) { &root } else { cred };
            let mut read = self.0.read(cred, file, open, offset, len).await?;
            if self.lies(Lie::ShortReads) {
                read.data.truncate(read.data.len().saturating_sub(1));
            }
            read.eof &= !self.lies(Lie::NoEndOfFile);
            Ok(read)
        })
    }

    fn write<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Future<'a, RemoteWritten> {
        Box::pin(async move {
            let mut written = self.0.write(cred, file, open, offset, data, stability).await?;
            if self.lies(Lie::UnstableOnly) {
                written.stability = Stability::Unstable;
            }
            if self.lies(Lie::NewVerifierEachTime) {
                self.0.restart();
            }
            if let (Some(before), true) = (&mut written.change.before, self.lies(Lie::WrongBefore))
            {
                (before.change, before.size) = (None, before.size + 1);
            }
            Ok(written)
        })
    }

    fn commit<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        open: Option<&'a Token>,
        range: Range<u64>,
    ) -> Future<'a, Committed> {
        self.0.commit(cred, file, open, range)
    }

    fn make<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        new: New,
        set: SetAttr,
    ) -> Future<'a, Made> {
        self.0.make(cred, dir, name, new, set)
    }

    fn remove<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        name: &'a OsStr,
        what: Removal,
    ) -> Future<'a, Change> {
        self.0.remove(cred, dir, name, what)
    }

    fn rename<'a>(
        &'a self,
        cred: &'a Cred,
        from: (&'a Handle, &'a OsStr),
        to: (&'a Handle, &'a OsStr),
    ) -> Future<'a, (Change, Change)> {
        Box::pin(async move {
            let changes = self.0.rename(cred, from, to).await?;
            if self.lies(Lie::RenameKeepsTheOldName) {
                self.0.make(cred, from.0, from.1, New::File, SetAttr::default()).await?;
            }
            Ok(changes)
        })
    }

    fn link<'a>(
        &'a self,
        cred: &'a Cred,
        file: &'a Handle,
        dir: &'a Handle,
        name: &'a OsStr,
    ) -> Future<'a, (Option<Attr>, Change)> {
        self.0.link(cred, file, dir, name)
    }

    fn readdir<'a>(
        &'a self,
        cred: &'a Cred,
        dir: &'a Handle,
        cookie: Cookie,
        bytes_max: u32,
    ) -> Future<'a, Listing> {
        Box::pin(async move {
            let mut listing = self.0.readdir(cred, dir, cookie, bytes_max).await?;
            if self.lies(Lie::DotsAreListed) && cookie.position == 0 {
                let (name, fileid) = (".".into(), 1);
                let dot = Listed {
                    name,
                    fileid,
                    position: u64::MAX,
                    attr: None,
                    tells_links: true,
                    handle: None,
                };
                listing.entries.insert(0, dot);
            }
            if self.lies(Lie::NamesAreForgotten)
                && cookie.position != 0
                && listing.entries.len() > 1
            {
                listing.entries.remove(0);
            }
            Ok(listing)
        })
    }

    fn statfs<'a>(&'a self, cred: &'a Cred, file: &'a Handle) -> Future<'a, StatFs> {
        self.0.statfs(cred, file)
    }
}

#[test]
fn the_suite_notices_each_lie() {
    for (lie, name) in LIES {
        let model = MemRemote::new();
        let traits = Traits::default().with_elsewhere(Arc::new(model.another_client()));
        let remote: Arc<dyn Remote> = Arc::new(Liar(model, lie));
        let case = cases().into_iter().find(|case| case.name == name).expect(name);
        let root = block_on(remote.root()).unwrap().handle;
        let verdict = block_on(case.check(&remote, &root, &traits));
        assert!(matches!(verdict, Verdict::Failed(_)), "{lie:?}: {name}: {verdict:?}");
    }
}
