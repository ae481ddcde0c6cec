//! Calls that change something, or that need a place in the order of changes.

use bytes::Bytes;
use larder_wire::Procedure;
use larder_wire::meta::calls;
use larder_wire::meta::words::{Sequence, SessionId};
use larder_wire::meta::{Res, Status};
use larder_wire::xdr::{Encode, to_segments};

/// Results of a call, encoded; and whether its status is other than success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) bytes: Bytes,
    pub(crate) failed: bool,
}

impl Reply {
    pub(crate) fn of<T: Encode>(results: &Res<T>) -> Reply {
        Reply { bytes: to_segments(results).to_bytes(), failed: results.is_err() }
    }

    pub(crate) fn refused(status: Status) -> Reply {
        Reply::of::<()>(&Err(status))
    }

    /// Whether the client must repeat the call: then it was not carried out.
    pub(crate) fn is_not_yet(&self) -> bool {
        self.failed && *self == Reply::refused(Status::Later)
    }

    /// Whether there was no room for what the call wants.
    pub(crate) fn is_no_space(&self) -> bool {
        self.failed && *self == Reply::refused(Status::NoSpace)
    }
}

/// To what a call belongs: a slot, in which it is carried out once; or a session, in which it is
/// carried out each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bearer {
    Slot(Sequence),
    Session(SessionId),
    /// It begins a session.
    Nobody,
}

impl Bearer {
    pub(crate) fn session(self) -> Option<SessionId> {
        match self {
            Bearer::Slot(sequence) => Some(sequence.session),
            Bearer::Session(session) => Some(session),
            Bearer::Nobody => None,
        }
    }
}

macro_rules! changes {
    ($( $variant:ident, $bearer:expr; )+) => {
        /// A call.
        #[derive(Clone, Debug)]
        pub(crate) enum Change { $( $variant(calls::$variant) ),+ }

        $( impl From<calls::$variant> for Change {
            fn from(call: calls::$variant) -> Change {
                Change::$variant(call)
            }
        } )+

        impl Change {
            /// Whose it is.
            pub(crate) fn bearer(&self) -> Bearer {
                match self { $( Change::$variant(call) => {
                    let bearer: fn(&calls::$variant) -> Bearer = $bearer;
                    bearer(call)
                } )+ }
            }

            /// Whether it takes no longer than to read a few records, and most likely writes none.
            pub(crate) fn is_brief(&self) -> bool {
                use Change::{Alloc, AllocNear, AwaitLock, Close, GetCaps, Lock, Look, Lookup};
                use Change::{Open, ReturnLease, TestLock};
                match self {
                    Alloc(_) | AllocNear(_) | AwaitLock(_) | Close(_) | GetCaps(_) | Lock(_) | Look(_)
                        | Lookup(_) | ReturnLease(_) | TestLock(_) => true,
                    Open(call) => !matches!(call.what, calls::OpenWhat::Create(_)),
                    _ => false,
                }
            }

            /// Its procedure's number.
            pub(crate) fn procedure(&self) -> u32 {
                match self { $( Change::$variant(_) => calls::$variant::NUMBER ),+ }
            }
        }
    };
}

changes! {
    Session, |_| Bearer::Nobody;
    EndSession, |call| Bearer::Session(call.session);
    GetCaps, |call| Bearer::Session(call.session);
    Look, |call| Bearer::Session(call.session);
    Lookup, |call| Bearer::Session(call.session);
    ReadDir, |call| Bearer::Session(call.session);
    TestLock, |call| Bearer::Session(call.session);
    AwaitLock, |call| Bearer::Session(call.session);
    ForgoLock, |call| Bearer::Session(call.session);
    LocksClaimed, |call| Bearer::Session(call.session);
    SetAttr, |call| Bearer::Slot(call.sequence);
    Open, |call| Bearer::Slot(call.sequence);
    Close, |call| Bearer::Slot(call.sequence);
    Alloc, |call| Bearer::Slot(call.sequence);
    AllocNear, |call| Bearer::Slot(call.alloc.sequence);
    CommitExtents, |call| Bearer::Slot(call.sequence);
    Punch, |call| Bearer::Slot(call.sequence);
    Preallocate, |call| Bearer::Slot(call.sequence);
    MkDir, |call| Bearer::Slot(call.sequence);
    Symlink, |call| Bearer::Slot(call.sequence);
    MkNod, |call| Bearer::Slot(call.sequence);
    Make, |call| Bearer::Slot(call.sequence);
    Link, |call| Bearer::Slot(call.sequence);
    Remove, |call| Bearer::Slot(call.sequence);
    RmDir, |call| Bearer::Slot(call.sequence);
    Rename, |call| Bearer::Slot(call.sequence);
    SetXattr, |call| Bearer::Slot(call.sequence);
    RemoveXattr, |call| Bearer::Slot(call.sequence);
    ReturnLease, |call| Bearer::Slot(call.sequence);
    Retain, |call| Bearer::Slot(call.sequence);
    Lock, |call| Bearer::Slot(call.sequence);
}
