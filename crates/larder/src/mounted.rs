//! A mount's daemon: makes the mount, serves it and the control socket, and ends it.
//!
//! The steps are undone in reverse if a later one fails, so nothing is left half made. Afterwards
//! one loop takes [`Event`]s: a signal, a request to unmount, or that the mount is gone. Ending is
//! always the same: send dirty data to the server (for a bounded time), take the mount out of the
//! name space (at once, if the server does not answer), close the cache, answer, exit.
//!
//! A worker ([`crate::worker`]) takes the same steps, but neither makes the mount nor removes it
//! when it fails: its supervisor holds it, and the next worker takes over.

mod answers;
mod ending;
mod socket;
mod trying;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::Since;
use crate::control::Server;
use crate::daemon::{self, Announce};
use crate::event::{End, Event};
use crate::link::Hold;
use crate::log;
use crate::plan::Plan;
use crate::runtime_dir::Record;
use crate::signals::{Request, Requests};
use crate::traces::{Traces, record};
use socket::Socket;

/// Mounts, serves, and returns when the mount is gone.
///
/// # Errors
/// If the mount cannot be made, or dirty data did not reach the server at its end.
pub(crate) fn run(plan: &Plan, announce: Announce, log: Option<&Path>) -> Result<()> {
    let (server, traces, log) = Traces::begin(plan, announce, log)?;
    log::begin(log.as_deref())?;
    let record = record(plan, std::process::id(), log);
    let mut waiting = announce;
    let announced = |record: &Record| {
        traces.put(record)?;
        match (std::mem::replace(&mut waiting, Announce::Nobody), &record.log) {
            (Announce::Parent, Some(log)) => daemon::ready(log),
            _ => Ok(()),
        }
    };
    serve(plan, Hold::Ours, record, server, announced).map(drop)
}

/// Builds the stack and serves it until its end, on a runtime of its own. `announce` is called when
/// the mount is usable; and before that, if the server has to be tried in the background.
///
/// # Errors
/// If the mount cannot be made, or dirty data did not reach the server at its end.
pub(crate) fn serve(
    plan: &Plan,
    hold: Hold,
    record: Record,
    server: Server,
    announce: impl FnMut(&Record) -> Result<()>,
) -> Result<End> {
    // The first call must not wait for our own program to be read.
    larder_io::memory::populate_program();
    let runtime = crate::runtime::start()?;
    let served = runtime.block_on(serve_on(plan, hold, record, server, announce));
    // Does not wait for tasks that wait for a dead server.
    runtime.shutdown_background();
    served
}

async fn serve_on(
    plan: &Plan,
    hold: Hold,
    record: Record,
    server: Server,
    mut announce: impl FnMut(&Record) -> Result<()>,
) -> Result<End> {
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    // Before anything is made: a signal meanwhile is then an orderly end.
    listen_for_signals(&sender)?;
    let mut socket = Socket::Bound(server);
    let begun = tokio::select! {
        stack = trying::build(plan, &hold, &record, &sender, &mut announce, &mut socket) => Ok(stack?),
        event = events.recv() => Err(event),
    };
    let stack = match begun {
        Ok(stack) => Arc::new(stack),
        Err(event) => return trying::end(event, &hold, &socket),
    };
    let record = Record { cache: stack.engine.cache_dir.clone(), ..record };
    let answers = answers::Answers {
        stack: stack.clone(),
        supervisor: hold.supervisor(),
        record: record.clone(),
        options: plan.back.typed.clone(),
        events: sender,
        runtime: tokio::runtime::Handle::current(),
        begin: Since::now(),
    };
    let serving = announce(&record)
        .and_then(|()| socket.serve(move |request, sink| answers.answer(request, sink)));
    let ended = match serving {
        Ok(serving) => {
            tracing::info!(source = %plan.back.source, mountpoint = %plan.mountpoint.display(), "mounted");
            ending::end_of(&stack, plan, &hold, &mut events, &serving).await
        }
        Err(error) if hold.is_ours() => {
            if let Err(error) = tokio::task::block_in_place(|| stack.close()) {
                tracing::warn!("{error:#}");
            }
            Err(error)
        }
        Err(error) => Err(error),
    };
    if !hold.is_ours() && !matches!(ended, Ok(End::Gone)) {
        // Dropping it would remove the mount, which another process continues. This process ends.
        std::mem::forget(stack);
    }
    ended
}

fn listen_for_signals(events: &UnboundedSender<Event>) -> Result<()> {
    let mut requests = Requests::begin()?;
    let events = events.clone();
    tokio::spawn(async move {
        loop {
            match requests.next().await {
                Request::Reopen => log::reopen(),
                Request::End if events.send(Event::Signal).is_err() => return,
                Request::End => {}
            }
        }
    });
    Ok(())
}
