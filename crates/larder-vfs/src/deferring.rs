//! [`Deferring`]: a server with names for which this machine answers.

use std::ffi::{OsStr, OsString};
use std::pin::Pin;
use std::sync::Weak;
use std::time::{Duration, Instant};

use crate::{
    Attr, Change, Cred, Error, Found, Future, Handle, Listed, Remote, Result, SetAttr, Time,
    Validator,
};

/// A server whose changes of names can be answered on this machine, and be made at the server
/// later, because its only writer is here.
pub trait Deferring: Send + Sync {
    /// The same server, with changes of names answered here where that is possible. Such a change
    /// survives the process. A change that cannot be answered here is made at the server first,
    /// after everything that it depends on, as by the [`Remote`] itself.
    fn names(&self) -> &dyn Remote;

    /// Whether the server is out of reach, and this machine answers in its place from what is held:
    /// the server gets the changes when it is back.
    fn is_away(&self) -> bool {
        false
    }

    /// Whether no other client changes anything, as the mount's user has declared.
    fn is_sole(&self) -> bool {
        false
    }

    /// Whether the mount's user permits to work without the server.
    fn may_be_offline(&self) -> bool {
        false
    }

    /// Whether, for as long as that is so, what is safe on this machine's disk is acknowledged
    /// whatever its class. Otherwise only classes whose promise this disk keeps are.
    fn is_kept_enough(&self) -> bool {
        false
    }

    /// Whether a listing that is cached may lack what has changed here: the server is out of reach,
    /// or was, and what is known of its directories was not checked with it since. The names of
    /// this interface list rightly.
    fn outdates_listings(&self) -> bool {
        self.is_away()
    }

    /// The client has found an object of the server's again whose handle `before` went stale: the
    /// server knows it as `now`. What waits for it goes there.
    fn found_again(&self, _before: &Handle, _now: &Handle) {}

    /// Sets where the cached attributes, names and bytes of the server's files are found. To be
    /// called once, before the first call.
    fn held_by(&self, _held: Weak<dyn Held>) {}

    /// The client has taken up what an earlier process left: from now on, what is due is made at
    /// the server in the background. Before, other clients would find files whose bytes nobody
    /// sends yet. To be called once.
    ///
    /// # Panics
    /// Outside an async runtime.
    fn begin(&self);

    /// Sets by when, counted from now, the server must have `file`, which was made here.
    fn promise(&self, file: &Handle, within: Duration);

    /// The same of a name that was given to a file here, besides its other ones. Returns whether
    /// the server lacks such a name.
    fn promise_link(&self, _dir: &Handle, _name: &OsStr, _within: Duration) -> bool {
        false
    }

    /// Sets attributes of `file` if that can be answered here; otherwise it does nothing. The
    /// result survives the process. A size is a size of zeros; one that is not 0 is for files of
    /// which [the server has no byte](Deferring::lacks_bytes), and the caller keeps the bytes. A
    /// modification time applies to the bytes that the caller keeps in a local file which was last
    /// written at `written_ns` (nanoseconds since 1970), and to no later ones. Does not block.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] and others of setattr: in `Some`.
    fn set_here(
        &self,
        cred: &Cred,
        file: &Handle,
        set: &SetAttr,
        written_ns: Option<i64>,
    ) -> Option<Result<Change>>;

    /// Claims `file`, which looks like `shown`, before bytes go to the server that were written
    /// while it was out of reach. From then on every other client that has changed the file
    /// meanwhile, and asks for its version before it writes, finds another one. This client sees
    /// nothing of that. Nothing is done if nobody else writes the file, or the caller may not claim
    /// it.
    ///
    /// # Errors
    /// [`Error::TryAgain`] if the server has another version than this; [`Error::TimedOut`] if it
    /// does not answer.
    fn claim<'a>(&'a self, _cred: &'a Cred, _file: &'a Handle, _shown: &'a Attr) -> Future<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether `file` is claimed, and the server was asked for no change of it since: if it has
    /// another version, that is another client's.
    fn is_claimed(&self, _file: &Handle) -> bool {
        false
    }

    /// The server's files that [`Deferring::set_here`] has emptied, with their attributes since
    /// then, except files that another client has changed. An earlier process may have died before
    /// it gave up the bytes that it held.
    fn emptied(&self) -> Vec<(Handle, Attr)> {
        Vec::new()
    }

    /// Whether the server has no byte of `file`.
    fn lacks_bytes(&self, file: &Handle) -> bool;

    /// The modification time that [`Deferring::set_here`] set on `file`, if the caller's local file
    /// has not been written since: it was last written at `written_ns`.
    fn given_time(&self, file: &Handle, written_ns: i64) -> Option<Time>;

    /// The attributes of `file` if the server lacks it. They may be newer than what the caller has
    /// on record: a process may have died between a change and its record.
    fn attributes_here(&self, file: &Handle) -> Option<Attr>;

    /// Makes all changes of names so far survive a crash of the machine.
    ///
    /// # Errors
    /// [`Error::Io`] if the local disk has failed: then [`Deferring::replay`] helps.
    fn keep(&self) -> Future<'_, ()>;

    /// Makes `file`, or everything that was made here, at the server, durably. Everything is due
    /// from the call on: what is asked of the server before the future is polled comes in no other
    /// order.
    ///
    /// # Errors
    /// The server's error for the first object that it refused: that object stays waiting, and the
    /// others were tried too. [`Error::TimedOut`] for a single file, whatever the server's error
    /// was.
    fn replay<'a>(&'a self, file: Option<&'a Handle>) -> Future<'a, ()>;

    /// [`Deferring::replay`] of everything, on behalf of nobody who needs it at once: within the
    /// mount's limit on bytes per second, if it has one.
    ///
    /// # Errors
    /// As [`Deferring::replay`].
    fn replay_limited(&self) -> Future<'_, ()> {
        self.replay(None)
    }

    /// Makes `file` at the server, if that lacks it, within the mount's limit on bytes per second:
    /// after what is due in its directory before it, and the same of the directories above it. To
    /// be called before its bytes are sent on behalf of nobody. A failure shows when they are sent.
    fn make_limited<'a>(
        &'a self,
        _file: &'a Handle,
    ) -> Pin<Box<dyn std::future::Future<Output = ()> + Send + 'a>> {
        Box::pin(std::future::ready(()))
    }

    /// Attributes set here give `file` a version that the server does not know. If `shown` is such
    /// a version, the version at the server that has the same bytes.
    fn beneath(&self, file: &Handle, shown: &Validator) -> Option<Validator>;

    /// What a name stands for here, where that is known better than by `held`, which the caller has
    /// on record for it: `Some(None)` if there is no such name. A process may have died between a
    /// change and its record.
    fn name_here(
        &self,
        _dir: &Handle,
        _name: &OsStr,
        _held: Option<&Handle>,
    ) -> Option<Option<Handle>> {
        None
    }

    /// Whether `file` was made or removed here, and has no name any more: its bytes need not reach
    /// the server.
    fn is_removed(&self, file: &Handle) -> bool;

    /// Whether the server was asked for a program on this machine to take a name from a file with
    /// bytes that it lacks, so that the file is to be gone if it is.
    fn loses_name(&self, _file: &Handle) -> bool {
        false
    }

    /// Whether `file` is known to have a name here that the server lacks.
    fn has_name(&self, _file: &Handle) -> bool {
        false
    }

    /// Objects that the server does not have yet, and objects that have another name there than
    /// they were to have.
    fn deferred(&self) -> Vec<Deferred>;

    /// The same for one file, if it is one of these.
    fn awaited(&self, file: &Handle) -> Option<Deferred>;
}

/// What is cached of the server's files, for the code that answers in the server's place while that
/// is out of reach. Only [`Held::bring`] and [`Held::bring_limited`] wait for the server.
pub trait Held: Send + Sync + 'static {
    /// The attributes of a file, as the server last gave them.
    fn held(&self, file: &Handle) -> Option<Attr>;

    /// Whether the file's change time is not the one that [`Held::held`] tells, since a change of
    /// ours has moved it.
    fn is_ctime_old(&self, _file: &Handle) -> bool {
        false
    }

    /// A change of ours, such as a rename, has moved the file's change time; the server did not say
    /// to which one. To be called when the server has answered.
    fn ctime_moves(&self, _file: &Handle) {}

    /// The server describes a file like this now, which a request of ours has changed that was not
    /// answered.
    fn changed_here(&self, _file: &Handle, _attr: Attr) {}

    /// Whether a file has bytes that the server lacks.
    fn has_unsent(&self, _file: &Handle) -> bool {
        false
    }

    /// A file is gone at the server, which was asked for a program on this machine to take a name
    /// from it: nothing of it is to be sent any more.
    fn removed_here(&self, _file: &Handle) {}

    /// What a name stands for; `Some(None)`: it is known that there is no such name.
    fn held_name(&self, dir: &Handle, name: &OsStr) -> Option<Option<Found>>;

    /// The directory and the name under which an object was last seen; `None` if that is not known.
    /// Other clients may have moved it since.
    fn last_seen(&self, _file: &Handle) -> Option<(Handle, OsString)> {
        None
    }

    /// Whether this is the root of what the client sees.
    fn is_root(&self, _file: &Handle) -> bool {
        false
    }

    /// Sends to the server what it lacks of a file's bytes. Waits for the server.
    ///
    /// # Errors
    /// What the server says.
    fn bring<'a>(&'a self, file: &'a Handle) -> Future<'a, ()>;

    /// The same on behalf of nobody, within the mount's limit on bytes per second.
    ///
    /// # Errors
    /// As [`Held::bring`].
    fn bring_limited<'a>(&'a self, file: &'a Handle) -> Future<'a, ()> {
        self.bring(file)
    }

    /// All entries of a directory, if all are held. Those that came about since the server listed
    /// the directory are the last ones and have position 0.
    fn held_entries(&self, dir: &Handle) -> Option<Vec<Listed>>;
}

/// An object that was made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Which.
    pub file: Handle,
    /// When it will be made at the server, if it is not there.
    pub due: Option<Instant>,
    /// Whether it survives a crash of the machine that it is to be made.
    pub is_kept: bool,
    /// The server's error when it was last asked to make it.
    pub failure: Option<Error>,
    /// Its last known name.
    pub name: OsString,
    /// The directory with that name.
    pub dir: Option<Handle>,
}
