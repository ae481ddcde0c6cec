//! The engine over PostgreSQL: records are rows, and a commit is one statement.
//!
//! A view is a read-only transaction with one snapshot. A commit is one statement, so it is carried
//! out as a whole or not at all, whenever the connection breaks. It counts itself in a row that
//! every commit changes, and expects the number that this process last read: commits are
//! sequential, and none is carried out after a process has checked whether it was.
//!
//! A late commit is answered before the database has written it out. It lives in the memory of the
//! database's processes, as an unlogged table does: that is empty after each recovery from a crash.
//! A word in such a table names what late commits live in, and a commit that is not there any more
//! shows in the number of commits.
//!
//! Invariants:
//! - The outcome of a commit whose answer is lost is determined, not guessed: another statement
//!   raises the number, after which the first one cannot be carried out any more, or finds that it
//!   was, by its mark.
//! - No settings make a commit less durable than the server's disk, unless it is late.
//! - Once a process has committed, it sees no state without its last commit.
//! - While the owner's term lasts, by the server's own clock, no other process becomes the owner.
//!
//! Absent on purpose: more than one commit at a time.

mod line;
mod target;
mod tls;

pub use target::{Target, TargetError};

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_io::Clock;

use super::{Engine, EngineError, Owner, View, Visitor, Writes};
use line::{Line, Row, Trouble};

/// The format of the store.
const FORMAT: &str = "larder metadata store 1";
/// Pause before a server that is away is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// Entries that a scan asks for at a time.
const SCAN_ROWS: i64 = 256;
/// Connections that are kept for later views.
const IDLE_MAX: usize = 4;

/// The durations of waits.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// How long a commit, and the owner's reads, wait for a server that is away.
    pub patience: Duration,
    /// For how long a commit of the owner keeps others from taking the volume.
    pub term: Duration,
}

/// A store in a database. Any number of processes may have it open: the owner's record says which
/// may commit.
pub struct Postgres {
    server: Arc<Server>,
    committing: Mutex<Committing>,
}

/// What views and commits share.
#[derive(Debug)]
struct Server {
    target: Target,
    clock: Arc<dyn Clock>,
    waits: Waits,
    /// The commit that is expected to be the last one.
    seen: AtomicU64,
    /// The last commit of this process: 0 if there is none.
    own: AtomicU64,
    trips: Arc<AtomicU64>,
    idle: Mutex<Vec<Line>>,
}

#[derive(Debug, Default)]
struct Committing {
    line: Option<Line>,
    has_failed: bool,
}

/// The content of the row of commits.
struct Last {
    number: u64,
    mark: Vec<u8>,
}

/// What is to be committed.
struct Batch<'a> {
    writes: &'a Writes,
    owner: &'a Owner,
    term: Duration,
    is_late: bool,
}

/// How one try to commit went.
enum Tried {
    Done,
    /// Nothing was written, nor will be: the number or the owner has changed, or the volume is to
    /// be taken and the term of its owner is not over.
    Refused,
    /// Nothing was written because another commit was faster.
    Again,
    /// The connection broke.
    Unknown(String),
    /// Nothing was written, nor will be by trying again.
    Failed(String),
}

impl Postgres {
    /// Opens a store that was [made](Self::create). To be called, and used, by threads that may
    /// block.
    ///
    /// # Errors
    /// [`EngineError::Away`] if the server cannot be reached, [`EngineError::Failed`] if it is not
    /// to be used as it is, each with what to do.
    pub fn open(
        target: Target,
        clock: Arc<dyn Clock>,
        waits: Waits,
    ) -> Result<Postgres, EngineError> {
        let (trips, idle) = (Arc::default(), Mutex::default());
        let (seen, own) = Default::default();
        let server = Server { target, clock, waits, seen, own, trips, idle };
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
    /// As [`open`](Self::open), and if the user may not create tables.
    pub fn create(target: &Target, clock: &Arc<dyn Clock>) -> Result<(), EngineError> {
        let line =
            Line::open(target, clock, &Arc::default()).map_err(|trouble| report(&trouble))?;
        line.make_tables(FORMAT).map_err(|trouble| report(&trouble))
    }

    fn committing(&self) -> MutexGuard<'_, Committing> {
        self.committing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many answers of the server were waited for, since this was opened.
    pub fn round_trips(&self) -> u64 {
        self.server.trips.load(Ordering::Relaxed)
    }

    fn try_commit(
        &self,
        committing: &mut Committing,
        batch: &Batch<'_>,
        (number, mark): (u64, &[u8]),
    ) -> Tried {
        let line = match self.line(committing) {
            Ok(line) => line,
            Err(away) => return Tried::Unknown(away),
        };
        match line.commit(batch, number, mark) {
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
            None => self.server.connect().map_err(|error| error.to_string())?,
        };
        Ok(committing.line.insert(line))
    }

    /// The row of commits, after raising it if it still is `number`: no commit that expects that
    /// number is carried out any more.
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
        batch: &Batch<'_>,
    ) -> Result<(), EngineError> {
        let server = &self.server;
        let until = server.clock.instant() + server.waits.patience;
        let mark = |what: u8| [&larder_rpc::random_u64().to_be_bytes()[..], &[what]].concat();
        let (own, fence) = (mark(1), mark(2));
        let mut number = server.seen.load(Ordering::SeqCst);
        // An attempt without an answer may be carried out until the number changes.
        let mut is_in_doubt = false;
        loop {
            let away = if is_in_doubt {
                match self.fence(committing, number, &fence) {
                    Ok(last) if last.mark == own => return self.committed(last.number),
                    Ok(last) if last.mark == fence => {
                        (number, is_in_doubt) = (last.number, false);
                        server.saw(number);
                        continue;
                    }
                    // Another process has committed since: whether our commit came before is not
                    // known, and does not matter to a process that is not the owner any more.
                    Ok(last) if last.number < server.own.load(Ordering::SeqCst) => {
                        return Err(EngineError::Lost);
                    }
                    Ok(_) => return Err(EngineError::NotOwner),
                    Err(away) => away,
                }
            } else {
                match self.try_commit(committing, batch, (number, &own)) {
                    Tried::Done => return self.committed(number + 1),
                    Tried::Refused => return Err(self.why_refused(committing)),
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

    /// Why a commit does not fit to what is there.
    fn why_refused(&self, committing: &mut Committing) -> EngineError {
        let number = self.line(committing).ok().and_then(|line| line.number().ok());
        let own = self.server.own.load(Ordering::SeqCst);
        if number.is_some_and(|number| number < own) {
            EngineError::Lost
        } else {
            EngineError::NotOwner
        }
    }

    fn commit_in_turn(&self, batch: &Batch<'_>) -> Result<(), EngineError> {
        let mut committing = self.committing();
        if committing.has_failed {
            return Err(failed("it failed before"));
        }
        let done = self.commit_once(&mut committing, batch);
        committing.has_failed =
            matches!(&done, Err(EngineError::Lost | EngineError::Away(_) | EngineError::Failed(_)));
        done
    }

    fn committed(&self, number: u64) -> Result<(), EngineError> {
        self.server.own.store(number, Ordering::SeqCst);
        self.server.saw(number);
        Ok(())
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

    /// This is the number of commits. A process that has committed nothing yet may have seen late
    /// commits of another one that are lost by now.
    fn saw(&self, number: u64) {
        match self.own.load(Ordering::SeqCst) {
            0 => self.seen.store(number, Ordering::SeqCst),
            _ => drop(self.seen.fetch_max(number, Ordering::SeqCst)),
        }
    }

    /// A transaction that sees one state: with `wanted`, that of this commit.
    fn snapshot(self: &Arc<Self>, wanted: Option<u64>) -> Result<Snapshot, EngineError> {
        let own = self.own.load(Ordering::SeqCst);
        loop {
            let kept = self.idle().pop();
            let is_kept = kept.is_some();
            let line = kept.map_or_else(|| self.connect(), Ok)?;
            match line.begin() {
                Ok(number) if number < own => return Err(EngineError::Lost),
                Ok(number) if wanted.is_some_and(|wanted| wanted != number) => {
                    return Err(EngineError::NotOwner);
                }
                Ok(number) => {
                    self.saw(number);
                    let server = Arc::clone(self);
                    return Ok(Snapshot { number, line: Some(line), server });
                }
                // It broke while it was unused: the others may have, too.
                Err(_) if is_kept => {}
                Err(trouble) => return Err(report(&trouble)),
            }
        }
    }

    /// Has the server write out all commits before. Returns how many there were.
    fn sync(&self) -> Result<u64, EngineError> {
        loop {
            let kept = self.idle().pop();
            let is_kept = kept.is_some();
            let line = kept.map_or_else(|| self.connect(), Ok)?;
            match line.sync() {
                Ok(number) => {
                    self.put_back(line);
                    return Ok(number);
                }
                Err(Trouble::Conflict) => {}
                // It broke while it was unused: the others may have, too.
                Err(_) if is_kept => {}
                Err(trouble) => return Err(report(&trouble)),
            }
        }
    }

    /// Repeats work that needs the server while that is away.
    fn patiently<T>(
        &self,
        mut ask: impl FnMut() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let until = self.clock.instant() + self.waits.patience;
        loop {
            match ask() {
                Err(EngineError::Away(_)) if self.clock.instant() + PAUSE <= until => {
                    line::wait(&self.clock, PAUSE);
                }
                done => return done,
            }
        }
    }
}

impl Engine for Postgres {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        Ok(Box::new(self.server.snapshot(None)?))
    }

    fn commit(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        let term = self.server.waits.term;
        self.commit_in_turn(&Batch { writes, owner, term, is_late: false })
    }

    fn commit_late(&self, writes: &Writes, owner: &Owner) -> Result<(), EngineError> {
        let term = self.server.waits.term;
        self.commit_in_turn(&Batch { writes, owner, term, is_late: true })
    }

    /// The database writes its log out in the order of commits, up to one that somebody waits for.
    fn sync(&self) -> Result<(), EngineError> {
        let server = &self.server;
        let own = server.own.load(Ordering::SeqCst);
        let number = server.patiently(|| server.sync())?;
        // The database may have been restarted in between.
        if number < own { Err(EngineError::Lost) } else { Ok(()) }
    }

    fn boot(&self) -> Result<Option<Vec<u8>>, EngineError> {
        let name = larder_rpc::random_u64().to_be_bytes();
        loop {
            let line = self.server.connect()?;
            match line.life(&name) {
                Ok(life) => return Ok(Some(life)),
                Err(Trouble::Conflict) => {}
                Err(Trouble::Refused(cause)) => {
                    tracing::info!("each commit waits for the database's disk: {cause}");
                    return Ok(None);
                }
                Err(trouble) => return Err(report(&trouble)),
            }
        }
    }

    fn steady_view(&self) -> Result<Box<dyn View>, EngineError> {
        let server = &self.server;
        let number = server.seen.load(Ordering::SeqCst);
        let steady = server.patiently(|| server.snapshot(Some(number)))?;
        Ok(Box::new(Steady(RefCell::new(steady))))
    }

    fn term(&self) -> Option<Duration> {
        Some(self.server.waits.term)
    }

    fn owned_for(&self) -> Result<Duration, EngineError> {
        let line = self.server.connect()?;
        let left = line.owned_for().map_err(|trouble| report(&trouble))?;
        self.server.put_back(line);
        Ok(left)
    }

    fn release(&self, owner: &Owner) -> Result<(), EngineError> {
        let (writes, term) = (&Writes::new(), Duration::ZERO);
        self.commit_in_turn(&Batch { writes, owner, term, is_late: false })
    }
}

/// A read-only transaction.
struct Snapshot {
    /// The commits that it sees.
    number: u64,
    line: Option<Line>,
    server: Arc<Server>,
}

impl Snapshot {
    fn line(&self) -> &Line {
        self.line.as_ref().expect("it is taken when the snapshot ends only")
    }

    fn rows(&self, from: &[u8], until: &[u8]) -> Result<Vec<Row>, EngineError> {
        self.line().scan(from, until, SCAN_ROWS).map_err(|trouble| report(&trouble))
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
        scan_by(|from| self.rows(from, until), from, until, each)
    }
}

/// A read-only transaction of the owner. If it breaks, another one replaces it: as long as nothing
/// is committed it sees the same state.
struct Steady(RefCell<Snapshot>);

impl Steady {
    fn read<T>(
        &self,
        read: impl Fn(&Snapshot) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut snapshot = self.0.borrow_mut();
        match read(&snapshot) {
            Err(EngineError::Away(_)) => {}
            done => return done,
        }
        let (server, number) = (Arc::clone(&snapshot.server), snapshot.number);
        server.patiently(|| {
            *snapshot = server.snapshot(Some(number))?;
            read(&snapshot)
        })
    }
}

impl View for Steady {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        self.read(|snapshot| snapshot.get(key))
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError> {
        scan_by(|from| self.read(|snapshot| snapshot.rows(from, until)), from, until, each)
    }
}

/// How many rows a scan requests at a time.
fn scan_by(
    rows: impl Fn(&[u8]) -> Result<Vec<Row>, EngineError>,
    from: &[u8],
    until: &[u8],
    each: &mut Visitor<'_>,
) -> Result<(), EngineError> {
    let mut from = from.to_vec();
    while *from < *until {
        let rows = rows(&from)?;
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

fn report(trouble: &Trouble) -> EngineError {
    match trouble {
        Trouble::Away(_) | Trouble::Conflict => EngineError::Away(trouble.to_string()),
        Trouble::Refused(_) => EngineError::Failed(trouble.to_string()),
    }
}

fn failed(cause: &str) -> EngineError {
    EngineError::Failed(cause.to_owned())
}
