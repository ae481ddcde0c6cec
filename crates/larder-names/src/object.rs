//! The journal's state of one object that was made here.

use std::ffi::OsString;
use std::sync::Arc;

use larder_vfs::{
    Attr, Before, Cred, Device, Error, Handle, Kind, SetAttr, SetTime, Time, Validator,
};

use crate::setting::{Setting, There, Told};

/// Number of an object that was made here, counted from 1 and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectNo(pub(crate) u64);

/// Inode numbers of objects that were made here have this bit. Servers count from below, and no
/// known file system gets that far.
const FILEID_BIT: u64 = 1 << 63;

impl ObjectNo {
    /// What applications see in `st_ino`.
    pub(crate) fn fileid(self) -> u64 {
        FILEID_BIT | self.0
    }
}

/// A directory, by where its identity comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Dir {
    /// The server did.
    Server(Handle),
    /// It was made here; the server may know it by now.
    Made(ObjectNo),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Dentry {
    pub(crate) dir: Dir,
    pub(crate) name: OsString,
}

/// An object that was made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Its name; of one that the server has, the last name that is known.
    pub(crate) dentry: Dentry,
    pub(crate) stage: Stage,
    /// A modification time that a caller has set while it had bytes that the server lacks.
    pub(crate) given: Option<Given>,
}

/// A modification time for bytes that are only here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) mtime: Time,
    /// When the local file with the bytes had last been written, by its disk, in nanoseconds since
    /// 1970. One that was written later has the time of that.
    pub(crate) over_ns: i64,
}

/// Whether the server has the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not yet.
    Waiting(Waiting),
    /// It does.
    Named(Named),
}

/// What is known of an object that the server does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) body: Body,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// On whose behalf it is made at the server.
    pub(crate) maker: Maker,
    /// The server may have been asked to make it, and may have done so.
    pub(crate) is_attempted: bool,
}

/// Kind of an object, and its data when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    File,
    Directory,
    Symlink(OsString),
    /// A named pipe, socket or device.
    Node(Kind, Device),
}

impl Body {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Body::File => Kind::File,
            Body::Directory => Kind::Directory,
            Body::Symlink(_) => Kind::Symlink,
            Body::Node(kind, _) => *kind,
        }
    }
}

/// A user's identity, as far as a server considers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Maker {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Arc<[u32]>,
}

impl Maker {
    pub(crate) fn of(cred: &Cred) -> Maker {
        Maker { uid: cred.uid, gid: cred.gid, groups: cred.groups.clone() }
    }

    pub(crate) fn cred(&self) -> Cred {
        Cred::new(self.uid, self.gid, &self.groups)
    }
}

/// An object that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) handle: Handle,
    /// The server's inode number.
    pub(crate) fileid: u64,
    /// The version that the server made, and the times that it has here.
    pub(crate) shown: Shown,
    /// It may have several names.
    pub(crate) is_linked: bool,
}

/// A version of the server, and the times that applications see instead: to them, nothing changed
/// when the server made the object, or entries of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) server: Validator,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

/// A name of the server that was taken away here: its object is removed, or has another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The name at the server.
    pub(crate) origin: Dentry,
    /// The name here; `None`: it is removed.
    pub(crate) dentry: Option<Dentry>,
    /// The server's handle and inode number of the object, and its kind. Of an *unseen* file, the
    /// handle is empty: the server was asked to make it and did not answer.
    pub(crate) handle: Handle,
    pub(crate) fileid: u64,
    pub(crate) kind: Kind,
    /// It had no other name.
    pub(crate) is_last: bool,
    /// Its version when it was taken, as applications saw it.
    pub(crate) version: Validator,
    /// On whose behalf.
    pub(crate) taker: Maker,
    /// The server may have been asked, and may have done so.
    pub(crate) is_attempted: bool,
    /// The server was asked to rename it to this, and did not answer: it has one name or the
    /// other.
    pub(crate) asked: Option<Dentry>,
}

impl Taken {
    /// A file that the server was asked to make for a user, without an answer: if it is there, it
    /// is to go, and what is made here takes its place.
    pub(crate) fn unseen(origin: Dentry, cred: &Cred, now: Time) -> Taken {
        Taken {
            origin,
            dentry: None,
            handle: Handle::new(&[]),
            fileid: 0,
            kind: Kind::File,
            is_last: true,
            version: Validator { change: None, data_change: None, size: 0, mtime: now, ctime: now },
            taker: Maker::of(cred),
            is_attempted: false,
            asked: None,
        }
    }

    /// Whether nobody here has seen the object.
    pub(crate) fn is_unseen(&self) -> bool {
        self.handle.as_bytes().is_empty()
    }
}

/// Attributes of something of the server's that were set here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Altered {
    /// The server's handle.
    pub(crate) handle: Handle,
    /// The version below that, as applications would see it without.
    pub(crate) below: Validator,
    /// The attributes that are still to be set at the server. A size is not among them: the file
    /// was truncated.
    pub(crate) set: SetAttr,
    /// The times that applications see.
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    /// The data version that applications see: that of the version below, unless the file was
    /// truncated.
    pub(crate) data_change: u64,
    /// On whose behalf.
    pub(crate) setter: Maker,
    /// The server may have been asked, and may have done so.
    pub(crate) is_attempted: bool,
    /// It has: applications see that version with these times.
    pub(crate) is_done: bool,
    /// Of a [claim](crate::claim), which no caller has set: the version that applications see, as
    /// if there were none.
    pub(crate) claims: Option<Validator>,
}

impl Altered {
    /// How far the server is.
    pub(crate) fn setting(&self) -> Setting {
        match (self.is_done, self.is_attempted) {
            (true, _) => Setting::Done,
            (false, true) => Setting::Asked,
            (false, false) => Setting::Unasked,
        }
    }

    /// What the server has, by its description of the object and the version in that, as
    /// applications would see it without what was set.
    pub(crate) fn there(&self, attr: &Attr, version: &Validator) -> There {
        if attr.kind == Kind::Directory {
            return There { is_below: true, is_made: has_all(attr, &self.set) };
        }
        // A claim is about bytes.
        let has_bytes = || self.claims.is_some() && has_same_bytes(&self.below, version);
        There {
            is_below: self.is_over(version) || has_bytes(),
            is_made: has_all(attr, &self.set) && self.keeps_bytes(version),
        }
    }

    /// Whether a version that has all attributes that were set has the bytes, too, as far as times
    /// and sizes tell: each write moves the modification time.
    fn keeps_bytes(&self, version: &Validator) -> bool {
        let mtime = match self.set.mtime {
            Some(SetTime::To(time)) => time,
            _ => self.below.mtime,
        };
        (version.size, version.mtime) == (self.set.size.unwrap_or(self.below.size), mtime)
    }

    /// The attributes as applications see them, if those of the server are [no other
    /// client's](Setting::shows_ours). The version may be `in_doubt`: a request of ours, of which
    /// the answer is out, may have made it.
    pub(crate) fn apply(&self, attr: &mut Attr, in_doubt: bool) {
        let is_directory = attr.kind == Kind::Directory;
        let version = attr.validator();
        let is_below = self.has_bytes(&version);
        let told = Told { is_below, is_older: self.is_older(&version) };
        let shows_ours = || (in_doubt && !self.is_done) || self.setting().shows_ours(told);
        let is_ours = if is_directory { is_below } else { shows_ours() };
        // A directory has another version for each name in it.
        if !is_ours && !is_directory {
            return;
        }
        if !self.is_done || !is_below {
            attr.mode = self.set.mode.unwrap_or(attr.mode);
            attr.uid = self.set.uid.unwrap_or(attr.uid);
            attr.gid = self.set.gid.unwrap_or(attr.gid);
            attr.size = self.set.size.unwrap_or(attr.size);
            if let Some(SetTime::To(time)) = self.set.atime {
                attr.atime = time;
            }
        }
        if is_ours {
            (attr.mtime, attr.ctime) = (self.mtime, self.ctime);
            (attr.change, attr.data_change) = self.seen();
        }
    }

    /// The versions of the file and of its data that applications see.
    fn seen(&self) -> (Option<u64>, Option<u64>) {
        let of_claim = self.claims.map(|version| (version.change, version.data_change));
        of_claim.unwrap_or((None, Some(self.data_change)))
    }

    /// The version of the data that applications see.
    pub(crate) fn seen_data(&self) -> Option<u64> {
        self.seen().1
    }

    /// Whether a version is from before the one below. An answer may be older than another one
    /// that came before it.
    fn is_older(&self, version: &Validator) -> bool {
        match (version.change, self.below.change) {
            (Some(version), Some(below)) => version < below,
            _ => version.ctime < self.below.ctime,
        }
    }

    /// Whether a version of the server's is the one below, as far as what was set depends on that:
    /// an emptying does not depend on names and permissions.
    fn is_over(&self, version: &Validator) -> bool {
        let set = &self.set;
        let sets_rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        self.below.same(version) || (!sets_rights && is_moved_at_most(&self.below, version))
    }

    /// Whether a version of the server's is the one below, or, of what is done, has its bytes.
    fn has_bytes(&self, version: &Validator) -> bool {
        self.is_over(version) || (self.is_done && is_moved_at_most(&self.below, version))
    }

    /// Whether a version of the server's is a later one with the same bytes.
    pub(crate) fn is_followed_by(&self, version: &Validator) -> bool {
        self.has_bytes(version) && !self.is_older(version) && !self.below.same(version)
    }

    /// Whether a version of the server's is a later one, with other bytes.
    pub(crate) fn is_before(&self, version: &Validator) -> bool {
        !self.is_older(version) && !self.has_bytes(version)
    }

    /// The attributes as applications see them, by what is cached of the file: the server's version
    /// or an earlier one that was shown here. `None` if it is another version of the server's.
    pub(crate) fn over(&self, cached: Attr) -> Option<Attr> {
        // Only versions that are shown here tell the data's version and no version of the file.
        let was_shown = cached.change.is_none() && cached.data_change.is_some();
        if !was_shown && !self.below.same(&cached.validator()) {
            return None;
        }
        let mut shown = cached;
        // The server may have it by now, and what is cached is from before that.
        Altered { below: cached.validator(), is_done: false, ..self.clone() }
            .apply(&mut shown, false);
        Some(shown)
    }

    /// The same for the attributes that the server saw before a change.
    pub(crate) fn apply_before(&self, before: &mut Before) {
        if self.below.same(&before.validator()) {
            (before.mtime, before.ctime) = (self.mtime, self.ctime);
            (before.change, before.data_change) = self.seen();
        }
    }

    /// The server's version that has the same bytes as the version `shown`; `None` if `shown` is
    /// not the one that applications see, or has bytes of its own.
    pub(crate) fn beneath(&self, shown: &Validator) -> Option<Validator> {
        let is_this = shown.change.is_none() && shown.data_change == Some(self.data_change);
        let keeps_bytes = !self.is_done && self.set.size.is_none();
        (is_this && keeps_bytes).then_some(self.below)
    }
}

/// The data version of an object that was made here, as long as none of its data was sent to the
/// server: whatever attributes are set in the meantime, there are no bytes below the unsent ones.
pub(crate) const AS_MADE: Option<u64> = Some(0);

impl Shown {
    /// The attributes as applications see them. Only the times identify the version: changes made
    /// here change no number of the server. The version of its data is `data_change`.
    pub(crate) fn apply(&self, attr: &mut Attr, data_change: Option<u64>) {
        let version = attr.validator();
        if self.server.same(&version) {
            (attr.mtime, attr.ctime) = (self.mtime, self.ctime);
            (attr.change, attr.data_change) = (None, data_change);
        } else if data_change.is_some() && is_moved_at_most(&self.server, &version) {
            (attr.mtime, attr.data_change) = (self.mtime, data_change);
        }
    }

    /// The same for the attributes that the server saw before a change.
    pub(crate) fn apply_before(&self, before: &mut Before, data_change: Option<u64>) {
        if self.server.same(&before.validator()) {
            (before.mtime, before.ctime) = (self.mtime, self.ctime);
            (before.change, before.data_change) = (None, data_change);
        }
    }
}

impl Waiting {
    /// The attributes of an object with that number on that file system. `subdirectories` counts.
    pub(crate) fn attr(&self, no: ObjectNo, fsid: u64, subdirectories: u32) -> Attr {
        let kind = self.body.kind();
        let (size, device) = match &self.body {
            Body::File => (0, Device::default()),
            Body::Directory => (4096, Device::default()),
            Body::Symlink(target) => (target.len() as u64, Device::default()),
            Body::Node(_, device) => (0, *device),
        };
        Attr {
            kind,
            mode: self.mode,
            nlink: if kind == Kind::Directory { 2 + subdirectories } else { 1 },
            uid: self.uid,
            gid: self.gid,
            device,
            size,
            used: 0,
            fsid,
            fileid: no.fileid(),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: None,
            data_change: AS_MADE.filter(|_| kind != Kind::Directory),
            birth: None,
        }
    }
}

/// Whether an object that had the version `before` was at most given other names or attributes
/// since, so that its bytes are the same: that moves its change time alone. Only of servers that
/// identify versions by times.
fn is_moved_at_most(before: &Validator, now: &Validator) -> bool {
    let tells_times = before.change.is_none() && now.change.is_none();
    tells_times && (before.size, before.mtime) == (now.size, now.mtime)
}

/// Whether a version has the bytes of the one `before`, as far as the server tells.
fn has_same_bytes(before: &Validator, now: &Validator) -> bool {
    before.same_data(now) || is_moved_at_most(before, now)
}

/// Whether an object has all attributes that were to be set.
pub(crate) fn has_all(attr: &Attr, set: &SetAttr) -> bool {
    let is = |time: Option<SetTime>, has| match time {
        Some(SetTime::To(time)) => time == has,
        Some(SetTime::ServerNow) => false,
        None => true,
    };
    set.mode.is_none_or(|mode| mode == attr.mode)
        && set.uid.is_none_or(|uid| uid == attr.uid)
        && set.gid.is_none_or(|gid| gid == attr.gid)
        && set.size.is_none_or(|size| size == attr.size)
        && is(set.mtime, attr.mtime)
}

/// The moment after `time`, as fine as times are.
pub(crate) fn after(time: Time) -> Time {
    if time.nsec == 999_999_999 {
        return Time { sec: time.sec.saturating_add(1), nsec: 0 };
    }
    Time { nsec: time.nsec + 1, ..time }
}

/// Whether the mode bits of `attr` let a user do all of `bits` (4 read, 2 write, 1 search).
pub(crate) fn has_rights(attr: &Attr, cred: &Cred, bits: u32) -> bool {
    if cred.uid == 0 {
        return true;
    }
    let shift = match () {
        () if cred.uid == attr.uid => 6,
        () if cred.in_group(attr.gid) => 3,
        () => 0,
    };
    attr.mode >> shift & bits == bits
}

/// The attributes before, as a change reports them.
pub(crate) fn as_before(attr: &Attr) -> Before {
    let Attr { size, mtime, ctime, change, data_change, .. } = *attr;
    Before { size, mtime, ctime, change, data_change }
}

/// Whether the server may have carried out a call that ended with this error.
pub(crate) fn is_unanswered(error: Error) -> bool {
    matches!(error, Error::TimedOut | Error::Shutdown | Error::Io)
}

/// The error of a call that tells nothing of what the server has done before: it did not answer, or
/// refused another question.
pub(crate) fn as_unanswered(error: Error) -> Error {
    if is_unanswered(error) { error } else { Error::Io }
}
