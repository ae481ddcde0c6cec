//! A channel of the mount to its server: the present connection, or the wait for the next one.
//!
//! One task replaces a lost connection, with growing pauses; calls wait for it, until the server
//! has been silent for their limit ([`crate::patience`]). Each call decides what to do when its
//! answer was lost: its [`Attempt`] tells it.
//!
//! If a mount has several channels, they are independent.

use super::link::{Accounts, Link};
use super::mount::MountOptions;
use super::status::{self, Failure};
use larder_io::{Backoff, Clock};
use larder_rpc::patience::{gives_up, is_in_vain};
use larder_rpc::{ConnectionSnapshot, Recovery};
use larder_vfs::{Deadline, Error, Result};
use smb2::types::SessionId;
use smb2::types::status::NtStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How many connections one call may lose: after more of them, the call itself is assumed to be the
/// cause.
const LOST_MAX: u32 = 6;

/// How often a call waits for what another client, or the server process that serves it, has begun
/// and ends within moments; first and longest pause: half a second in all.
const WAITS_MAX: u32 = 9;
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Whether there is a connection.
#[derive(Clone)]
pub(super) enum State {
    Up(Arc<Link>),
    /// Nor has the server answered `since`.
    Down {
        since: Instant,
    },
    Shut,
}

impl State {
    /// Whether there is no connection to use, now or in a moment: a connection is lost before that
    /// is recorded here, and a call that used it repeatedly would exhaust its attempts.
    fn is_down(&self) -> bool {
        match self {
            State::Up(link) => link.is_lost(),
            State::Down { .. } => true,
            State::Shut => false,
        }
    }

    /// Since when the server has been asked in vain, if it has.
    fn silent_since(&self) -> Option<Instant> {
        match self {
            State::Up(link) => link.lost_since(),
            State::Down { since } => Some(*since),
            State::Shut => None,
        }
    }
}

/// One channel to the server.
pub(super) struct Channel {
    state: watch::Sender<State>,
    recovery: Recovery,
    limit: Duration,
    fail_fast: bool,
    clock: Arc<dyn Clock>,
    pub(super) accounts: Accounts,
    reconnects: AtomicU64,
}

impl Channel {
    /// With its first connection.
    pub(super) fn new(link: Arc<Link>, options: &MountOptions) -> Channel {
        Channel {
            accounts: link.accounts().clone(),
            state: watch::Sender::new(State::Up(link)),
            recovery: options.recovery,
            limit: options.limit(),
            fail_fast: options.fail_fast,
            clock: Arc::clone(&options.clock),
            reconnects: AtomicU64::new(0),
        }
    }

    /// The connection, if there is one.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        match &*self.state.borrow() {
            State::Up(link) => Some(Arc::clone(link)),
            State::Down { .. } | State::Shut => None,
        }
    }

    /// Records that the connection of this generation is gone. Returns its session, if the
    /// connection was in use.
    pub(super) fn cut(&self, generation: u64) -> Option<SessionId> {
        let mut session = None;
        self.state.send_if_modified(|state| {
            if let State::Up(link) = state
                && link.generation == generation
            {
                session = Some(link.session());
                let since = link.lost_since().unwrap_or_else(|| self.clock.instant());
                *state = State::Down { since };
            }
            session.is_some()
        });
        session
    }

    /// A call has waited since then. If that was the whole limit, and there is no connection, the
    /// server has been silent for as long, no matter when the loss of the connection was noticed.
    fn in_vain(&self, begun: Instant) {
        if !is_in_vain(self.since(begun), self.limit) {
            return;
        }
        self.state.send_if_modified(|state| {
            if let State::Down { since } = state {
                *since = begun.min(*since);
            }
            // No call waits for that.
            false
        });
    }

    fn since(&self, begun: Instant) -> Duration {
        self.clock.instant().saturating_duration_since(begun)
    }

    /// Whether there is a connection that can be used.
    pub(super) fn is_up(&self) -> bool {
        self.link().is_some_and(|link| !link.is_lost())
    }

    /// What its connections have done so far.
    pub(super) fn snapshot(&self) -> ConnectionSnapshot {
        let counts = self.accounts.track.counts();
        ConnectionSnapshot {
            connected: self.is_up(),
            offered: counts.offered,
            completed: counts.completed,
            timeouts: counts.timeouts,
            in_flight: counts.in_flight.into(),
            window: counts.window.into(),
            reconnects: self.reconnects.load(Ordering::Relaxed),
            ..ConnectionSnapshot::default()
        }
    }

    /// Takes a new connection into use, unless the mount was shut meanwhile.
    pub(super) fn restore(&self, link: Arc<Link>) -> bool {
        self.state.send_if_modified(|state| {
            let wanted = matches!(state, State::Down { .. });
            if wanted {
                self.reconnects.fetch_add(1, Ordering::Relaxed);
                *state = State::Up(link);
            }
            wanted
        })
    }

    /// Ends all calls, now and later.
    pub(super) fn shut(&self) {
        self.state.send_replace(State::Shut);
    }

    pub(super) fn is_shut(&self) -> bool {
        matches!(*self.state.borrow(), State::Shut)
    }

    /// A new call, whose caller waits until `caller`.
    pub(super) fn attempt(&self, caller: Option<Deadline>) -> Attempt<'_> {
        let (state, begun) = (self.state.subscribe(), self.clock.instant());
        let deadline = match self.recovery {
            Recovery::Soft => {
                let silent = state.borrow().silent_since();
                Some(gives_up(begun, self.limit, caller.map(|one| one.at()), silent))
            }
            Recovery::Hard => None,
        };
        let moments = Moments::new(&self.clock);
        let (tried, lost, answered) = (None, 0, false);
        Attempt { channel: self, state, begun, deadline, tried, lost, moments, answered }
    }

    /// How long a call waits; `None`: for ever.
    pub(super) fn call_limit(&self) -> Option<Duration> {
        (self.recovery == Recovery::Soft).then_some(self.limit)
    }
}

/// Waits for what ends within moments if it ends at all.
pub(super) struct Moments {
    clock: Arc<dyn Clock>,
    pauses: Backoff,
    left: u32,
}

impl Moments {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Moments {
        let (clock, pauses) = (Arc::clone(clock), Backoff::new(PAUSES.0, PAUSES.1));
        Moments { clock, pauses, left: WAITS_MAX }
    }

    /// Waits until the next try. `false`, at once: there have been enough.
    pub(super) async fn wait(&mut self) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        self.clock.sleep(self.pauses.pause()).await;
        true
    }
}

/// A call in progress, with as many attempts as it takes.
pub(super) struct Attempt<'a> {
    channel: &'a Channel,
    state: watch::Receiver<State>,
    begun: Instant,
    deadline: Option<Instant>,
    /// The connection of the last try.
    tried: Option<Arc<Link>>,
    lost: u32,
    /// Waits for other clients' opens.
    moments: Moments,
    answered: bool,
}

/// At its deadline it is ended by its own timer or by its caller's: what was waited counts in
/// either case.
impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let is_over = |deadline| deadline <= self.channel.clock.instant();
        if self.answered || !self.deadline.is_some_and(is_over) {
            return;
        }
        if let Some(link) = &self.tried {
            self.give_up_silent(link);
        }
        self.channel.in_vain(self.begun);
    }
}

impl Attempt<'_> {
    /// The connection for the next attempt, as soon as there is one.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after the limit, [`Error::Shutdown`].
    pub(super) async fn link(&mut self) -> Result<Arc<Link>> {
        let is_down = self.state.borrow().is_down();
        let is_over =
            self.deadline.is_some_and(|deadline| deadline <= self.channel.clock.instant());
        if is_over || is_down && self.channel.fail_fast {
            return Err(Error::TimedOut);
        }
        let change = self.state.wait_for(|state| !state.is_down());
        let state = match self.deadline {
            None => change.await,
            Some(deadline) => {
                let change = self.channel.clock.timeout_at(deadline, change).await;
                change.map_err(|_| Error::TimedOut)?
            }
        };
        match state.as_deref() {
            Ok(State::Up(link)) => {
                self.tried = Some(Arc::clone(link));
                Ok(Arc::clone(link))
            }
            Ok(State::Down { .. } | State::Shut) | Err(_) => Err(Error::Shutdown),
        }
    }

    /// Runs a try until it ends, the limit is over or the mount is shut.
    pub(super) async fn run<T>(
        &mut self,
        trying: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let (deadline, clock) = (self.deadline, &self.channel.clock);
        let limited = async {
            match deadline {
                None => trying.await,
                Some(deadline) => clock
                    .timeout_at(deadline, trying)
                    .await
                    .unwrap_or(Err(Failure::Is(Error::TimedOut))),
            }
        };
        let done = tokio::select! {
            biased;
            done = limited => done,
            _ = self.state.wait_for(|state| matches!(state, State::Shut)) => {
                Err(Failure::Is(Error::Shutdown))
            }
        };
        self.answered =
            !matches!(done, Err(Failure::Lost | Failure::Is(Error::TimedOut | Error::Shutdown)));
        done
    }

    /// An attempt took too long. If nothing has arrived over its connection for the whole limit,
    /// the connection is unusable; the library would find that out later.
    fn give_up_silent(&self, link: &Link) {
        let silent = self.channel.since(self.begun).min(link.silent_for());
        if is_in_vain(silent, self.channel.limit) {
            link.lose(self.begun);
        }
    }

    /// What follows from a failed attempt: `Ok` to try again, after a pause if the server refused
    /// it because of another client's open that may be over soon.
    ///
    /// # Errors
    /// The error for the caller.
    pub(super) async fn failed(&mut self, failure: Failure) -> Result<()> {
        match failure {
            Failure::Lost if self.lost < LOST_MAX => {
                self.lost += 1;
                Ok(())
            }
            Failure::Lost => Err(Error::Io),
            // Clients open a file alone to remove a name of it ([`super::hidden`]). Programs may do
            // so for long.
            Failure::Status(NtStatus::SHARING_VIOLATION) if self.moments.wait().await => Ok(()),
            Failure::Status(code) => Err(status::error(code)),
            Failure::Is(error) => Err(error),
        }
    }

    /// Whether an earlier attempt may have been carried out without our learning of it.
    pub(super) fn may_be_done(&self) -> bool {
        self.lost > 0
    }
}

/// Runs `$try`, which has `$link` and `$again` (whether an earlier attempt may have been carried
/// out), until it has an answer, or until `$deadline`.
macro_rules! attempt {
    ($deadline:expr, $channel:expr, |$link:ident, $again:ident| $try:expr) => {{
        let mut attempt = $channel.attempt($deadline);
        loop {
            let $link = attempt.link().await?;
            let $again = attempt.may_be_done();
            match attempt.run($try).await {
                Ok(answer) => break Ok(answer),
                Err(failure) => {
                    if let Err(error) = attempt.failed(failure).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}
pub(super) use attempt;

/// The same for a call that names `$files`, on the connection `$channel` of `$share`: no directory
/// above them is renamed meanwhile.
macro_rules! call {
    ($deadline:expr, $share:expr, $files:expr, $channel:expr, |$link:ident, $again:ident| $try:expr) => {
        attempt!($deadline, $channel, |$link, $again| async {
            let _stay = $share.stay(&$files).await;
            $try.await
        })
    };
}
pub(super) use call;
