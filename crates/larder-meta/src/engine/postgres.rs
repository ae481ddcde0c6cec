//! The engine over PostgreSQL: records are rows, and a commit is one statement.
//!
//! A view is a read-only transaction with one snapshot. A commit is one statement, so it is carried
//! out as a whole or not at all, whenever the connection breaks. It counts itself in a row that
//! every commit changes, and expects the number that was there when this process last looked:
//! commits are one after the other, and none is carried out after somebody has looked whether it
//! was.
//!
//! Invariants:
//! - What becomes of a commit whose answer is lost is found out, not guessed: another statement
//!   raises the number, after which the first one cannot be carried out any more, or finds that it
//!   was, by its mark.
//! - Nobody's settings make a commit less durable than the server's disk.
//!
//! Absent on purpose: memory of what was read ([`super::cached`]), more than one commit at a time.

mod line;
mod target;

pub use target::{Target, TargetError};

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_io::Clock;

use super::{Engine, EngineError, Owner, View, Visitor, Writes};
use line::{Line, Trouble};

/// The format of the store.
const FORMAT: &str = "larder metadata store 1";
/// Pause before a server that is away is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// Entries that a scan asks for at a time.
const SCAN_ROWS: i64 = 256;
/// Connections that are kept for the next view.
const IDLE_MAX: usize = 4;

/// A store in a database. Any number of processes may have it open: who may commit is said by the
/// owner's record.
pub struct Postgres {
    server: Arc<Server>,
    committing: Mutex<Committing>,
}

/// What views and commits share.
#[derive(Debug)]
struct Server {
    target: Target,
    clock: Arc<dyn Clock>,
    /// How long a commit waits for a server that is away.
    patience: Duration,
    /// Commits up to this number were seen.
    seen: AtomicU64,
    trips: Arc<AtomicU64>,
    idle: Mutex<Vec<Line>>,
}

#[derive(Debug, Default)]
struct Committing {
    line: Option<Line>,
    /// Whether no other process may have the store.
    is_alone: bool,
    has_failed: bool,
}

/// What the row of commits says.
struct Last {
    number: u64,
    mark: Vec<u8>,
}

/// How one try to commit went.
enum Tried {
    Done,
    /// Nothing was written, nor will be: the number or the owner is another.
    Refused,
    /// Nothing was written because somebody else was faster.
    Again,
    /// The connection broke.
    Unknown(String),
    /// Nothing was written, nor will be by trying again.
    Failed(String),
}

impl Postgres {
    /// Opens a store that was [made](Self::create). `patience`: how long a commit waits for a
    /// server that is away. To be called, and used, by threads that may block.
    ///
    /// # Errors
    /// [`EngineError::Away`] if the server cannot be reached, [`EngineError::Failed`] if it is not
    /// to be used as it is, each with what to do.
    pub fn open(
        target: Target,
        clock: Arc<dyn Clock>,
        patience: Duration,
    ) -> Result<Postgres, EngineError> {
        let (trips, idle) = (Arc::default(), Mutex::default());
        let server = Server { target, clock, patience, seen: AtomicU64::new(0), trips, idle };
        let server = Arc::new(server);
        let line = server.connect()?;
        let checked = line.check().map_err(|trouble| report(&trouble))?;
        if checked.fsync != "on" {
            return Err(failed(
                "its server runs with fsync off, and loses what it has acknowledged: set fsync = on",
            ));
        }
        match checked.format.as_deref() {
            Some(FORMAT) => {}
            None => return Err(EngineError::None),
            Some(other) => {
                let text = format!("it is \"{other}\", this version reads \"{FORMAT}\"");
                return Err(EngineError::Failed(text));
            }
        }
        server.put_back(line);
        Ok(Postgres { server, committing: Mutex::default() })
    }

    /// Makes a store without records, unless there is one.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if the user may not make tables.
    pub fn create(target: &Target, clock: &Arc<dyn Clock>) -> Result<(), EngineError> {
        let line =
            Line::open(target, clock, &Arc::default()).map_err(|trouble| report(&trouble))?;
        line.make_tables(FORMAT).map_err(|trouble| report(&trouble))
    }

    /// Keeps other processes that ask for the same from the store, until this is dropped or its
    /// connection breaks. Who commits without asking is kept off by the owner's record alone.
    ///
    /// # Errors
    /// [`EngineError::Busy`] if another process has it after some seconds; those of
    /// [`open`](Self::open).
    pub fn lock(&self) -> Result<(), EngineError> {
        let mut committing = self.committing();
        let line = self.server.connect()?;
        line.lock().map_err(|trouble| report(&trouble))?;
        (committing.line, committing.is_alone) = (Some(line), true);
        Ok(())
    }

    fn committing(&self) -> MutexGuard<'_, Committing> {
        self.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many times an answer of the server was waited for, since this was opened.
    pub fn round_trips(&self) -> u64 {
        self.server.trips.load(Ordering::Relaxed)
    }

    fn try_commit(
        &self,
        committing: &mut Committing,
        (writes, owner): (&Writes, &Owner),
        (number, mark): (u64, &[u8]),
    ) -> Tried {
        let line = match self.line(committing) {
            Ok(line) => line,
            Err(away) => return Tried::Unknown(away),
        };
        match line.commit(writes, owner, number, mark) {
            Ok(true) => Tried::Done,
            Ok(false) => Tried::Refused,
            Err(Trouble::Conflict) => Tried::Again,
            Err(Trouble::Refused(cause)) => Tried::Failed(cause),
            Err(trouble) => {
                committing.line = None;
                Tried::Unknown(trouble.to_string())
            }
        }
    }

    fn line<'a>(&self, committing: &'a mut Committing) -> Result<&'a Line, String> {
        let line = match committing.line.take() {
            Some(line) => line,
            None => {
                let line = self.server.connect().map_err(|error| error.to_string())?;
                if committing.is_alone {
                    line.lock().map_err(|trouble| trouble.to_string())?;
                }
                line
            }
        };
        Ok(committing.line.insert(line))
    }

    /// The row of commits, after raising it if it is `number` still: no commit that expects that
    /// is carried out any more.
    fn fence(&self, committing: &mut Committing, number: u64, mark: &[u8]) -> Result<Last, String> {
        let line = self.line(committing)?;
        let fenced = loop {
            match line.fence(number, mark) {
                Err(Trouble::Conflict) => {}
                fenced => break fenced,
            }
        };
        if fenced.is_err() {
            committing.line = None;
        }
        fenced.map_err(|trouble| trouble.to_string())
    }

    fn commit_once(
        &self,
        committing: &mut Committing,
        writes: &Writes,
        owner: &Owner,
    ) -> Result<(), EngineError> {
        let server = &self.server;
        let until = server.clock.instant() + server.patience;
        let mark = |what: u8| [&larder_rpc::random_u64().to_be_bytes()[..], &[what]].concat();
        let (own, fence) = (mark(1), mark(2));
        let mut number = server.seen.load(Ordering::SeqCst);
        // Once a try has no answer, it may be carried out until the number is another.
        let mut is_in_doubt = false;
        loop {
            let away = if is_in_doubt {
                match self.fence(committing, number, &fence) {
                    Ok(last) if last.mark == own => return self.committed(last.number),
                    Ok(last) if last.mark == fence => {
                        (number, is_in_doubt) = (last.number, false);
                        self.saw(number);
                        continue;
                    }
                    // Somebody else has committed since: whether ours came before is not known, and
                    // does not matter to who is not the owner any more.
                    Ok(_) => return Err(EngineError::NotOwner),
                    Err(away) => away,
                }
            } else {
                match self.try_commit(committing, (writes, owner), (number, &own)) {
                    Tried::Done => return self.committed(number + 1),
                    Tried::Refused => return Err(EngineError::NotOwner),
                    Tried::Again => continue,
                    Tried::Failed(cause) => return Err(EngineError::Failed(cause)),
                    Tried::Unknown(away) => {
                        is_in_doubt = true;
                        away
                    }
                }
            };
            if server.clock.instant() + PAUSE > until {
                return Err(EngineError::Away(away));
            }
            line::wait(&server.clock, PAUSE);
        }
    }

    fn committed(&self, number: u64) -> Result<(), EngineError> {
        self.saw(number);
        Ok(())
    }

    fn saw(&self, number: u64) {
        self.server.seen.fetch_max(number, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Postgres").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Server {
    fn connect(&self) -> Result<Line, EngineError> {
        Line::open(&self.target, &self.clock, &self.trips).map_err(|trouble| report(&trouble))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Line>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, line: Line) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(line);
        }
    }
}

impl Engine for Postgres {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        loop {
            let kept = self.server.idle().pop();
            let is_kept = kept.is_some();
            let line = kept.map_or_else(|| self.server.connect(), Ok)?;
            match line.begin() {
                Ok(number) => {
                    self.saw(number);
                    let server = Arc::clone(&self.server);
                    return Ok(Box::new(Snapshot { line: Some(line), server }));
                }
                // It broke while nobody used it: the others may have, too.
                Err(_) if is_kept => {}
                Err(trouble) => return Err(report(&trouble)),
            }
        }
    }

    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        let mut committing = self.committing();
        if committing.has_failed {
            return Err(failed("it failed before"));
        }
        let done = self.commit_once(&mut committing, writes, owner);
        committing.has_failed = matches!(&done, Err(EngineError::Away(_) | EngineError::Failed(_)));
        done
    }
}

/// A read-only transaction.
struct Snapshot {
    line: Option<Line>,
    server: Arc<Server>,
}

impl Snapshot {
    fn line(&self) -> &Line {
        self.line.as_ref().expect("it is taken when the snapshot ends only")
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(line) = self.line.take()
            && line.end().is_ok()
        {
            self.server.put_back(line);
        }
    }
}

impl View for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        self.line().get(key).map_err(|trouble| report(&trouble))
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError> {
        let mut from = from.to_vec();
        while *from < *until {
            let rows = self.line().scan(&from, until, SCAN_ROWS);
            let rows = rows.map_err(|trouble| report(&trouble))?;
            for (key, value) in &rows {
                if let ControlFlow::Break(()) = each(key, value) {
                    return Ok(());
                }
            }
            match rows.into_iter().nth(SCAN_ROWS as usize - 1) {
                Some((last, _)) => from = [&last[..], &[0]].concat(),
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

fn report(trouble: &Trouble) -> EngineError {
    match trouble {
        Trouble::Away(_) | Trouble::Conflict => EngineError::Away(trouble.to_string()),
        Trouble::Busy => EngineError::Busy,
        Trouble::Refused(_) => EngineError::Failed(trouble.to_string()),
    }
}

fn failed(cause: &str) -> EngineError {
    EngineError::Failed(cause.to_owned())
}
