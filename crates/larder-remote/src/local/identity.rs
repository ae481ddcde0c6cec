//! Acts as the caller: changes the identity of a thread for one operation.
//!
//! Linux keeps credentials per thread; the raw system calls change the calling thread's only. The
//! *effective* ids are changed, not the file system ids alone: together with the former the kernel
//! drops all effective capabilities, as its own NFS server does, so that the caller gets neither
//! the superuser's rights nor the disk's reserve. Real and saved ids stay, so no user gains the
//! right to send us signals, and we can change back.
//!
//! Invariant: a thread that leaves [`Acting`] is what it was before, or the process ends.

use larder_vfs::{Cred, Error, Result};
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::errors::LocalError;
use super::options::{LocalOptions, Squash};

/// As a user or group id: "leave it as it is". It cannot be the id of a user.
const UNCHANGED: u32 = u32::MAX;

/// The identity with which an operation is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

impl Identity {
    /// Whether the kernel's superuser: everything is allowed.
    pub(super) fn is_superuser(&self) -> bool {
        self.uid == 0
    }
}

/// The process's own identity, and the rule that maps callers.
#[derive(Debug)]
pub(super) struct Identities {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    squash: Squash,
    anonymous_uid: u32,
    anonymous_gid: u32,
}

impl Identities {
    /// The identity of the calling thread, which must be the process's.
    pub(super) fn new(options: &LocalOptions) -> Result<Identities, LocalError> {
        for id in [options.anonymous_uid, options.anonymous_gid] {
            if id == UNCHANGED {
                return Err(LocalError::BadAnonymous(id));
            }
        }
        Ok(Identities {
            uid: geteuid(),
            gid: getegid(),
            groups: getgroups().unwrap_or_default(),
            squash: options.squash,
            anonymous_uid: options.anonymous_uid,
            anonymous_gid: options.anonymous_gid,
        })
    }

    /// The identity with which `cred` acts here (exports(5), "User ID Mapping").
    pub(super) fn of(&self, cred: &Cred) -> Identity {
        let gid = |gid: u32| match self.squash {
            _ if gid == UNCHANGED => self.anonymous_gid,
            Squash::Root if gid == 0 => self.anonymous_gid,
            _ => gid,
        };
        let anonymous = match self.squash {
            Squash::All => true,
            Squash::Root => cred.uid == 0,
            Squash::None => false,
        };
        if self.squash == Squash::All || cred.uid == UNCHANGED {
            return Identity {
                uid: self.anonymous_uid,
                gid: self.anonymous_gid,
                groups: Vec::new(),
            };
        }
        Identity {
            uid: if anonymous { self.anonymous_uid } else { cred.uid },
            gid: gid(cred.gid),
            groups: cred.groups.iter().map(|&group| gid(group)).collect(),
        }
    }

    /// Makes the calling thread act as `who` until the returned value is dropped.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the kernel refuses; the thread is then unchanged.
    pub(super) fn act_as(&self, who: &Identity) -> Result<Acting<'_>> {
        let needless = who.uid == self.uid.as_raw()
            && who.gid == self.gid.as_raw()
            // The superuser's groups decide nothing.
            && (who.is_superuser() || who.groups.iter().all(|&group| self.has_group(group)));
        if needless || !self.uid.is_root() {
            return Ok(Acting(None));
        }

        let acting = Acting(Some(self));
        let groups: Vec<Gid> = who.groups.iter().map(|&group| Gid::from_raw(group)).collect();
        set_thread_groups(&groups)
            .and_then(|()| set_thread_res_gid(None, Gid::from_raw(who.gid), None))
            // Last: it takes the right to do the others away.
            .and_then(|()| set_thread_res_uid(None, Uid::from_raw(who.uid), None))
            .map_err(|cause| {
                tracing::warn!(?who, %cause, "cannot act as the caller");
                Error::NotPermitted
            })?;
        Ok(acting)
    }

    fn has_group(&self, group: u32) -> bool {
        self.gid.as_raw() == group || self.groups.iter().any(|own| own.as_raw() == group)
    }
}

/// The calling thread acts as another user while this lives. Not to be held over an `await`.
#[must_use]
pub(super) struct Acting<'a>(Option<&'a Identities>);

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let Some(own) = self.0 else { return };
        let back = set_thread_res_uid(None, own.uid, None)
            .and_then(|()| set_thread_res_gid(None, own.gid, None))
            .and_then(|()| set_thread_groups(&own.groups));
        if let Err(cause) = back {
            // Otherwise a thread with one user's rights would serve another user with them.
            tracing::error!(%cause, "cannot return to the process's identity");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities(squash: Squash) -> Identities {
        Identities::new(&LocalOptions { squash, ..LocalOptions::default() }).unwrap()
    }

    #[test]
    fn squash_maps_as_exports_5_says() {
        let nobody = 65_534;
        let root = Cred::new(0, 0, &[0, 4]);
        let user = Cred::new(1000, 0, &[0, 7]);
        // A user id of all ones would leave the thread the superuser.
        let ones = Cred::new(u32::MAX, u32::MAX, &[u32::MAX]);
        let cases: [(Squash, &Cred, u32, u32, &[u32]); 8] = [
            (Squash::Root, &root, nobody, nobody, &[nobody, 4]),
            (Squash::Root, &user, 1000, nobody, &[nobody, 7]),
            (Squash::Root, &ones, nobody, nobody, &[]),
            (Squash::None, &root, 0, 0, &[0, 4]),
            (Squash::None, &user, 1000, 0, &[0, 7]),
            (Squash::None, &ones, nobody, nobody, &[]),
            (Squash::All, &root, nobody, nobody, &[]),
            (Squash::All, &user, nobody, nobody, &[]),
        ];
        for (squash, cred, uid, gid, groups) in cases {
            let expected = Identity { uid, gid, groups: groups.to_vec() };
            assert_eq!(identities(squash).of(cred), expected, "{squash:?} {cred:?}");
        }
        let bad = LocalOptions { anonymous_uid: u32::MAX, ..LocalOptions::default() };
        assert!(Identities::new(&bad).is_err());
    }

    #[test]
    fn a_thread_acts_as_a_user_and_returns_to_its_own_identity() {
        let identities = identities(Squash::None);
        if !geteuid().is_root() {
            return;
        }
        let before = (geteuid(), getegid(), getgroups().unwrap());
        let who = Identity { uid: 1234, gid: 567, groups: vec![8, 9] };
        {
            let _acting = identities.act_as(&who).unwrap();
            assert_eq!((geteuid().as_raw(), getegid().as_raw()), (1234, 567));
            assert_eq!(getgroups().unwrap().len(), 2);
            let elsewhere = std::thread::spawn(|| std::fs::metadata("/proc/self")).join();
            assert!(elsewhere.is_ok());
        }
        assert_eq!((geteuid(), getegid(), getgroups().unwrap()), before);
    }
}
