//! The suite that every [`Remote`] must pass.
//!
//! [`cases`] lists the cases. Each works in a fresh directory of its own below one that the caller
//! gives, and judges only by answers, so it runs against the model, a local directory and real
//! servers. [`Traits`] says what a server cannot do, with the reason; a case that needs it is
//! skipped with that reason.
//!
//! Where servers may differ (which error a full sticky directory gives, whether a reply carries
//! attributes), a case accepts each of the answers that the contract allows, and no others.

mod attributes;
mod bench;
mod copies;
mod data;
mod listings;
mod locks;
mod names;
mod opens;
mod rights;
mod space;
mod xattrs;

use std::pin::Pin;
use std::sync::Arc;

use crate::{Cred, Handle, New, Remote, SetAttr};
use bench::Bench;

/// A case: the behaviour that it shows, the abilities that it needs, and how to run it.
#[derive(Clone, Copy)]
pub struct Case {
    /// The behaviour that it shows.
    pub name: &'static str,
    /// Abilities that the server must have.
    pub needs: &'static [Ability],
    run: fn(Bench) -> Running,
}

/// A running case; its failure is a message for people.
type Running = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// An ability that not every server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Hard links.
    HardLinks,
    /// Symbolic links.
    Symlinks,
    /// Symbolic links whose target is longer than 1,000 bytes.
    LongSymlinks,
    /// Named pipes and sockets.
    SpecialFiles,
    /// Device files, made by the owner that the traits name.
    Devices,
    /// Names that are not UTF-8.
    ByteNames,
    /// Times in nanoseconds.
    Nanoseconds,
    /// Every change of a file gives it a new validator, even within one tick of the server's clock.
    DistinctTimes,
    /// The server reports a change time, which applications cannot set back.
    ChangeTime,
    /// A handle is never given to another file.
    HandlesOnce,
    /// Making a file that must not exist.
    ExclusiveCreate,
    /// Mode bits, and judging by them.
    Modes,
    /// Giving files to other users; the owner that the traits name is the superuser.
    Chown,
    /// Sticky directories.
    Sticky,
    /// Setting attributes only if the file has not changed.
    Guard,
    /// Reporting an object's attributes from just before a change.
    Before,
    /// The link count of directories counts directories inside.
    DirectoryLinks,
    /// Directories are not moved below themselves, and the error says so.
    Cycles,
    /// Extended attributes.
    Xattrs,
    /// Locks on ranges, between clients; the traits provide a second client.
    Locks,
    /// Room for a range of a file before it is written.
    Allocate,
    /// Having a range of a file read as zeros.
    Punch,
    /// Telling holes from data.
    Holes,
    /// Parts of a file that were never written are reported as holes.
    UnwrittenHoles,
    /// Copies of ranges that do not pass the client.
    Copy,
}

/// The peculiarities of a server.
#[derive(Clone)]
pub struct Traits {
    /// The user who makes and owns the cases' files.
    pub owner: Cred,
    /// Another user, in none of the owner's groups.
    pub other: Cred,
    elsewhere: Option<Arc<dyn Remote>>,
    lacking: Vec<(Ability, &'static str)>,
}

impl Default for Traits {
    /// A server that can do everything, used by the superuser and by an ordinary user.
    fn default() -> Self {
        let other = Cred::new(65_533, 65_533, &[]);
        Traits { owner: Cred::root(), other, elsewhere: None, lacking: Vec::new() }
    }
}

impl Traits {
    /// The cases work as `owner`.
    pub fn with_owner(self, owner: Cred) -> Traits {
        Traits { owner, ..self }
    }

    /// Another client of the same server, for cases that need two clients.
    pub fn with_elsewhere(self, elsewhere: Arc<dyn Remote>) -> Traits {
        Traits { elsewhere: Some(elsewhere), ..self }
    }

    /// The server lacks `ability`, for this reason.
    pub fn without(mut self, ability: Ability, reason: &'static str) -> Traits {
        self.lacking.push((ability, reason));
        self
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        self.lacking.iter().find(|(lacking, _)| *lacking == ability).map(|(_, reason)| *reason)
    }
}

/// How a case went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server kept the contract.
    Passed,
    /// The server lacks what the case needs, for this reason.
    Skipped(&'static str),
    /// The server broke the contract: the operation, its result, and the expected result.
    Failed(String),
}

impl Case {
    /// Runs the case in a new directory below `base` that is named after it; `base` must belong to
    /// the traits' owner. The directory is left behind.
    pub async fn check(&self, remote: &Arc<dyn Remote>, base: &Handle, traits: &Traits) -> Verdict {
        let lacking = self.needs.iter().find_map(|ability| traits.lacks(*ability));
        if let Some(reason) = lacking {
            return Verdict::Skipped(reason);
        }
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        let dir = remote.make(&traits.owner, base, self.name.as_ref(), New::Directory, set).await;
        let dir = match dir {
            Ok(made) => made.found.handle,
            Err(error) => return Verdict::Failed(format!("cannot make its directory: {error}")),
        };
        if let Some(elsewhere) = &traits.elsewhere {
            let found = elsewhere.lookup(&traits.owner, base, self.name.as_ref()).await;
            if !found.is_ok_and(|found| found.found.is_some()) {
                return Verdict::Failed("another client does not find its directory".into());
            }
        }
        match (self.run)(Bench::new(Arc::clone(remote), dir, traits)).await {
            Ok(()) => Verdict::Passed,
            Err(text) => Verdict::Failed(text),
        }
    }
}

/// Every case, simple ones first.
pub fn cases() -> Vec<Case> {
    let simple = [names::CASES, data::CASES, attributes::CASES];
    let more = [rights::CASES, listings::CASES, opens::CASES, locks::CASES, xattrs::CASES];
    let more = [more.concat(), space::CASES.to_vec(), copies::CASES.to_vec()];
    [simple.concat(), more.concat()].concat()
}

/// A table of cases: functions from a bench, and what each needs.
macro_rules! table {
    ($($name:ident $([$($need:ident),*])?;)*) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case {
            name: stringify!($name),
            needs: &[$($(super::Ability::$need),*)?],
            run: |bench| Box::pin($name(bench)),
        }),*];
    };
}
use table;
