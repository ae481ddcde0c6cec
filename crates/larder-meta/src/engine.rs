//! The storage engine for the metadata of a volume: an ordered map of byte strings with
//! transactions.
//!
//! It has two essential calls. [`Engine::view`] is the state after some commit, and does not change
//! while it is held. [`Engine::commit`] makes a whole batch durable, or nothing of it: whatever
//! happens, a later view has all of its writes or none. One caller commits at a time
//! ([`crate::committer`]), for many callers together, so an engine needs no group commit of its
//! own. [`Engine::commit_late`] does not wait for the disk.
//!
//! [`embedded`] keeps the map in one file on a local disk, which one process has open. [`postgres`]
//! keeps it in a database that several machines reach: there the owner of the volume has a
//! [term](Engine::term), which each of its commits restarts. [`memory`] is for tests.

pub mod embedded;
pub mod layers;
mod log;
pub mod memory;
pub mod postgres;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use larder_wire::meta::Status;
use thiserror::Error;

/// Writes by key: a value, or that there is none any more.
pub type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Is given keys and values in order, and says whether to go on.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Why an engine did not carry out a request.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The precondition of a batch is not met: another process owns the volume now. Nothing was
    /// written.
    #[error("another metadata server has taken the volume over")]
    NotOwner,
    /// Another process has the store.
    #[error("another process has the store open")]
    Busy,
    /// There is no store there.
    #[error("it holds no volume")]
    None,
    /// The database was restarted without its last commits, which were late. Nothing that was
    /// durable is lost; the next owner brings the volume in order.
    #[error(
        "the metadata's database was restarted without its last commits, for which nobody waited"
    )]
    Lost,
    /// The store cannot be reached now. Nothing that was answered is lost, and the request can be
    /// repeated.
    #[error("the metadata store cannot be reached: {0}")]
    Away(String),
    /// The store failed, or contains something that no engine of ours wrote. It promises nothing
    /// from now on.
    #[error("the metadata store failed: {0}")]
    Failed(String),
}

impl EngineError {
    /// The answer to a call that fails with it. If another server continues, or this one does
    /// later, the client is to repeat the call: then it is carried out, or answered as it was.
    pub(crate) fn status(&self) -> Status {
        match self {
            EngineError::NotOwner | EngineError::Lost | EngineError::Away(_) => {
                tracing::warn!("{self}");
                Status::Later
            }
            EngineError::Busy | EngineError::None | EngineError::Failed(_) => {
                tracing::error!("{self}");
                Status::Io
            }
        }
    }
}

/// A precondition: the record of the volume's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The key of the record.
    pub key: Vec<u8>,
    /// The value that it must have; `None`: it must not exist.
    pub value: Option<Vec<u8>>,
}

/// An ordered map with durable transactions. All methods may block.
pub trait Engine: Send + Sync + 'static {
    /// The state after the last commit.
    ///
    /// # Errors
    /// [`EngineError::Away`], [`EngineError::Failed`]
    fn view(&self) -> Result<Box<dyn View>, EngineError>;

    /// Carries out all of `writes`, if `owner` is as expected. Durable on return.
    ///
    /// # Errors
    /// [`EngineError::NotOwner`]: nothing was written, or all of it was, before another owner took
    /// the volume. [`EngineError::Lost`], [`EngineError::Away`], [`EngineError::Failed`]: a view
    /// may have all of it or nothing; the engine takes no more commits.
    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError>;

    /// As [`commit`](Self::commit), but durable only with a later commit or [`sync`](Self::sync):
    /// until then the end of this process does not undo it, and a crash of what it lives in
    /// ([`boot`](Self::boot)) may. What that leaves is all commits up to one of them, whichever way
    /// they were made.
    ///
    /// # Errors
    /// As [`commit`](Self::commit)
    fn commit_late(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        self.commit(writes, owner)
    }

    /// Makes durable what was committed before. May be called beside commits.
    ///
    /// # Errors
    /// [`EngineError::Failed`], [`EngineError::Away`]: late commits may be lost.
    /// [`EngineError::Lost`]: they are.
    fn sync(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Names what late commits live in until they are durable, such as a boot of the machine: while
    /// the name is the same, none is lost. `None`: each commit is durable at once.
    ///
    /// # Errors
    /// [`EngineError::Away`], [`EngineError::Failed`]
    fn boot(&self) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(None)
    }

    /// As [`view`](Self::view), for the owner of the volume, which alone commits: it waits for a
    /// store that is away, and so do reads through the view.
    ///
    /// # Errors
    /// [`EngineError::NotOwner`], [`EngineError::Lost`], [`EngineError::Away`] after a wait,
    /// [`EngineError::Failed`]
    fn steady_view(&self) -> Result<Box<dyn View>, EngineError> {
        self.view()
    }

    /// For how long each commit of the owner, with or without writes, keeps others from taking the
    /// volume; `None`: others cannot have the store open.
    fn term(&self) -> Option<Duration> {
        None
    }

    /// The remaining time of the owner's term, by the store's own clock. Until then a commit that
    /// writes the owner's record is refused.
    ///
    /// # Errors
    /// [`EngineError::Away`], [`EngineError::Failed`]
    fn owned_for(&self) -> Result<Duration, EngineError> {
        Ok(Duration::ZERO)
    }

    /// Ends the term of `owner`, so that the next owner need not wait for that.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); then it ends by itself.
    fn release(&self, _owner: &Owner) -> Result<(), EngineError> {
        Ok(())
    }
}

/// A state of the map that does not change. May block on the disk.
pub trait View: Send {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`EngineError::Away`], [`EngineError::Failed`]
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError>;

    /// Calls `each` with keys and values from `from` on, in order, while they are below `until` and
    /// it returns that it wants more.
    ///
    /// # Errors
    /// [`EngineError::Away`], [`EngineError::Failed`]
    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError>;
}
