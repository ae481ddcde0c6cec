//! Before there is a mount: tries the server until it answers, if it was never reached and the
//! options say so (`bg`, `retry` of nfs(5)). With `bg` the command that waits for the mount is told
//! after the first failed try, and the control socket answers from then on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use larder_io::Backoff;
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::ending::DRAIN_MAX;
use super::socket::Socket;
use crate::clock::{Since, clock};
use crate::control::Request;
use crate::event::{End, Event};
use crate::link::Hold;
use crate::plan::Plan;
use crate::report::{ServerState, State, Status};
use crate::runtime_dir::Record;
use crate::server::Unreached;
use crate::stack::{self, Patience, Stack};

/// Between the first two tries; doubled each time.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// Longest pause: a server that is back is noticed this late.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Builds the stack; repeatedly, if the server does not answer and the options say so. `socket` is
/// served once `announce` has told the waiting command.
///
/// # Errors
/// The first failure other than a silent server; or its silence, after the time that the options
/// set.
pub(super) async fn build(
    plan: &Plan,
    hold: &Hold,
    record: &Record,
    events: &UnboundedSender<Event>,
    announce: &mut impl FnMut(&Record) -> Result<()>,
    socket: &mut Socket,
) -> Result<Stack> {
    let options = &plan.back.options;
    let begin = Since::now();
    let problem = Arc::new(Mutex::new(String::new()));
    let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
    for tries in 1.. {
        let is_shown = matches!(socket, Socket::Served(..));
        // The first time, a command waits for us.
        let patience = match options.background && !is_shown {
            true => Patience::Short,
            false => Patience::Full,
        };
        let why = match stack::build(plan, hold, events, patience).await {
            Ok(stack) => return Ok(stack),
            Err(Unreached { is_away: true, why }) => why,
            Err(Unreached { is_away: false, why }) => return Err(given_up(why, tries)),
        };
        let Some(pause) = pause(&mut backoff, begin.elapsed(), options.retry_max) else {
            return Err(given_up(why, tries));
        };
        tracing::warn!("{why:#}; next try in {pause:?}");
        *problem.lock().unwrap_or_else(PoisonError::into_inner) = format!("{why:#}");
        if options.background && !is_shown {
            eprintln!("larder: {why:#}; trying on in the background");
            announce(&Record { is_trying: true, ..record.clone() })?;
            let answers = Answers {
                record: record.clone(),
                options: plan.back.typed.clone(),
                hold: hold.clone(),
                events: events.clone(),
                begin,
                problem: Arc::clone(&problem),
            };
            socket.serve(move |request, _| answers.answer(request))?;
        }
        clock().sleep(pause).await;
    }
    unreachable!("the tries end by a return")
}

/// Why it was given up. The command may be gone: so this is logged, too.
fn given_up(why: anyhow::Error, tries: u32) -> anyhow::Error {
    if tries > 1 {
        tracing::error!("given up after {tries} tries: {why:#}");
    }
    why
}

/// How long to wait after attempts that took `elapsed`; `None`: that was the last one.
fn pause(backoff: &mut Backoff, elapsed: Duration, limit: Duration) -> Option<Duration> {
    let left = limit.checked_sub(elapsed).filter(|left| !left.is_zero())?;
    Some(backoff.pause().min(left))
}

/// Nothing is mounted, and that is final.
///
/// # Errors
/// If the command was not told that attempts continue: then it is still waiting for the mount.
pub(super) fn end(event: Option<Event>, hold: &Hold, socket: &Socket) -> Result<End> {
    let Socket::Served(_, serving) = socket else {
        bail!("interrupted before the mount was made");
    };
    tracing::info!("the mount was given up before it was made");
    hold.tell_end();
    if let Some(Event::Unmount { answer, .. }) = event {
        let _ = answer.send(Ok(None));
    }
    serving.drain(DRAIN_MAX);
    Ok(End::Gone)
}

/// The answers until the server is reached.
struct Answers {
    record: Record,
    options: Vec<String>,
    hold: Hold,
    events: UnboundedSender<Event>,
    begin: Since,
    /// Of the last try.
    problem: Arc<Mutex<String>>,
}

impl Answers {
    fn answer(&self, request: &Request) -> Result<Value> {
        match request {
            Request::Status => Ok(serde_json::to_value(self.status())?),
            Request::Unmount { lazy, detach } => {
                let (answer, answered) = std::sync::mpsc::sync_channel(1);
                let gone = |_| anyhow!("the daemon is ending already");
                let (lazy, detach) = (*lazy, *detach);
                self.events.send(Event::Unmount { lazy, detach, answer }).map_err(gone)?;
                answered.recv().context("the daemon is ending already")??;
                Ok(Value::Null)
            }
            _ => bail!("not mounted yet: {}", self.problem()),
        }
    }

    fn problem(&self) -> String {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn status(&self) -> Status {
        let supervisor = self.hold.supervisor();
        Status {
            mountpoint: self.record.mountpoint.display().to_string(),
            source: self.record.source.clone(),
            options: self.options.clone(),
            state: State::Trying,
            pid: self.record.pid,
            worker_pid: std::process::id(),
            supervisor_pid: supervisor.map(|supervisor| supervisor.pid),
            log: self.record.log.as_ref().map(|log| log.display().to_string()),
            uptime_s: self.begin.elapsed().as_secs(),
            server: ServerState { problem: Some(self.problem()), ..ServerState::default() },
            ..Status::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_tries_grow_and_end_in_time() {
        let minute = Duration::from_secs(60);
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        let mut pause = |elapsed, limit| pause(&mut backoff, elapsed, limit);
        let pauses = (1..8).map(|_| pause(minute, 60 * minute).unwrap().as_secs());
        assert_eq!(pauses.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 30, 30]);
        let later = (0..1000).map(|_| pause(minute, 60 * minute)).last().unwrap();
        assert_eq!(later, Some(PAUSE_MAX));
        let left = Duration::from_millis(10);
        assert_eq!(pause(minute - left, minute), Some(left), "the last try is at the limit");
        assert_eq!(pause(minute, minute), None);
        assert_eq!(pause(Duration::ZERO, Duration::ZERO), None, "retry=0: one try");
    }
}
