//! A mount's daemon: makes the mount, serves it and the control socket, and ends it.
//!
//! The steps are undone in reverse if a later one fails, so nothing is left half made. Afterwards
//! one loop takes [`Event`]s: a signal, a request to unmount, or that the mount is gone. Ending is
//! always the same: bring dirty data to the server (for a bounded time), take the mount out of the
//! name space (at once, if the server does not answer), close the cache, answer, exit.
//!
//! A worker ([`crate::worker`]) goes the same ways, but neither makes the mount nor takes it away
//! when it fails: its supervisor holds it, and the next worker goes on.

mod answers;
mod socket;
mod trying;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::control::{Server, Serving, daemon_lives};
use crate::report::Dirty;
use crate::runtime_dir::{Record, RuntimeDir};
use crate::stack::{Plan, Stack};
use crate::unmount::{How, UnmountError, unmount};
use crate::worker::Hold;
use crate::{daemon, log, mountpoint};
use socket::Socket;

/// Longest wait for an answer of the server before it counts as dead, when the mount ends.
const ANSWER_MAX: Duration = Duration::from_millis(800);

/// Longest wait for dirty data to reach the server, when the mount ends. `larder umount` waits five
/// seconds for everything.
const WRITE_BACK_MAX: Duration = Duration::from_millis(2000);

/// Longest wait for the kernel to let the mount go, and for the door to see that.
const KERNEL_MAX: Duration = Duration::from_millis(1000);

/// Longest wait for answers that are being given, at exit.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Longest wait for requests that are being answered, when another process is to go on.
const LEAVE_MAX: Duration = Duration::from_millis(2000);

/// Who wants to know that the mount is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announce {
    /// Nobody: we are in the foreground.
    Nobody,
    /// The process that started us.
    Parent,
}

/// What a daemon reacts to.
pub(crate) enum Event {
    /// A signal asks us to end.
    Signal,
    /// A command asks us to end.
    Unmount {
        /// Although files are open.
        lazy: bool,
        /// Where the answer goes: what was lost, if something was.
        answer: SyncSender<Result<Option<String>>>,
    },
    /// The kernel closed its end: somebody else unmounted.
    Gone,
    /// The door cannot serve any more, for this reason.
    Broken(String),
    /// A command asks us to let a newer program go on.
    Leave {
        /// Where the answer goes, before we are gone.
        answer: SyncSender<Result<()>>,
    },
}

/// How serving a mount came to its end.
pub(crate) enum End {
    /// The mount is gone.
    Gone,
    /// It is there, and everything is answered: another process is to go on.
    Left,
}

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

/// What is known of a mount whose daemon is `pid`.
pub(crate) fn record(plan: &Plan, pid: u32, log: Option<PathBuf>) -> Record {
    Record {
        mountpoint: plan.mountpoint.clone(),
        source: plan.back.source.to_string(),
        cache: plan.back.cache.clone(),
        pid,
        log,
        is_detached: false,
        is_trying: false,
    }
}

/// Puts the stack together and serves it until its end, on a runtime of its own. `announce` is
/// called when the mount is usable; and before, if it has to be tried in the background until it
/// is.
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(serve_on(plan, hold, record, server, announce));
    // What still waits for a dead server is not waited for.
    runtime.shutdown_background();
    served
}

/// The traces of a mount in the runtime directory; they go with it.
pub(crate) struct Traces {
    runtime_dir: RuntimeDir,
    mountpoint: PathBuf,
    /// Others were told of the mount: from then on the record says whose the traces are.
    is_told: AtomicBool,
}

impl Traces {
    /// Takes the mountpoint for ourselves: only one process gets the socket, so this is also its
    /// lock. Answers where to log, too.
    ///
    /// # Errors
    /// If another process has it.
    pub(crate) fn begin(
        plan: &Plan,
        announce: Announce,
        log: Option<&Path>,
    ) -> Result<(Server, Traces, Option<PathBuf>)> {
        let runtime_dir = RuntimeDir::open()?;
        make_way(&runtime_dir, &plan.mountpoint)?;
        let server = Server::bind(&runtime_dir.socket(&plan.mountpoint))
            .with_context(|| format!("cannot mount on {}", plan.mountpoint.display()))?;
        let log = match (log, announce) {
            (Some(path), _) => Some(path.to_owned()),
            (None, Announce::Parent) => {
                runtime_dir.tidy_logs(&plan.mountpoint);
                Some(runtime_dir.log(&plan.mountpoint))
            }
            (None, Announce::Nobody) => None,
        };
        let traces = Traces {
            runtime_dir,
            mountpoint: plan.mountpoint.clone(),
            is_told: AtomicBool::new(false),
        };
        Ok((server, traces, log))
    }

    /// Writes down what others are to know of the mount.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn put(&self, record: &Record) -> Result<()> {
        self.is_told.store(true, Ordering::Relaxed);
        self.runtime_dir.put(&self.mountpoint, record)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // After a lazy unmount they may be another mount's; and if whoever unmounted has removed
        // ours, what is there is that of one which is just beginning.
        let ours = match self.runtime_dir.get(&self.mountpoint) {
            Some(record) => record.pid == std::process::id(),
            None => !self.is_told.load(Ordering::Relaxed),
        };
        if ours {
            self.runtime_dir.remove(&self.mountpoint);
        }
        self.runtime_dir.remove_detached(&self.mountpoint, std::process::id());
    }
}

/// Has a daemon whose mount was taken out of the name space by others go by its process: it serves
/// on whoever has files open, and the mountpoint is free.
fn make_way(runtime_dir: &RuntimeDir, mountpoint: &Path) -> Result<()> {
    let is_ours = |mount: mountpoint::Mount| mount.kind == mountpoint::KIND;
    let is_mounted = mountpoint::mounted_at(mountpoint)?.is_some_and(is_ours);
    if !is_mounted && daemon_lives(&runtime_dir.socket(mountpoint)) {
        let record = runtime_dir.get(mountpoint).filter(|record| record.is_trying);
        if let Some(Record { source, pid, .. }) = record {
            let shown = mountpoint.display();
            bail!("process {pid} is trying to mount {source} on {shown}: larder umount {shown}");
        }
        runtime_dir.detach(mountpoint)?;
    }
    Ok(())
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
        keeper: hold.keeper(),
        record: record.clone(),
        options: plan.back.typed.clone(),
        events: sender,
        runtime: tokio::runtime::Handle::current(),
        begin: Instant::now(),
    };
    let serving = announce(&record)
        .and_then(|()| socket.serve(move |request, sink| answers.answer(request, sink)));
    let ended = match serving {
        Ok(serving) => {
            tracing::info!(source = %plan.back.source, mountpoint = %plan.mountpoint.display(), "mounted");
            end_of(&stack, plan, &hold, &mut events, &serving).await
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
        // Dropped, it would take the mount away, which others go on with. The process ends.
        std::mem::forget(stack);
    }
    ended
}

fn listen_for_signals(events: &UnboundedSender<Event>) -> Result<()> {
    let kinds = [
        (SignalKind::terminate(), "SIGTERM"),
        (SignalKind::interrupt(), "SIGINT"),
        (SignalKind::hangup(), "SIGHUP"),
    ];
    for (kind, name) in kinds {
        let mut signals = signal(kind).context("cannot listen for signals")?;
        let events = events.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if kind == SignalKind::hangup() && log::is_file() {
                    log::reopen();
                    continue;
                }
                tracing::info!("{name}: unmounting");
                if events.send(Event::Signal).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// Waits for the end of the mount and carries it out.
async fn end_of(
    stack: &Stack,
    plan: &Plan,
    hold: &Hold,
    events: &mut UnboundedReceiver<Event>,
    serving: &Serving,
) -> Result<End> {
    while let Some(event) = events.recv().await {
        let (how, answer) = match event {
            Event::Broken(text) if !hold.is_ours() => return Err(anyhow!(text)),
            Event::Gone | Event::Broken(_) => {
                tracing::info!("the mount is gone");
                let lost = write_back(stack).await;
                let closed = tokio::task::block_in_place(|| stack.close());
                serving.drain(DRAIN_MAX);
                hold.tell_end();
                closed?;
                return lost.map_or(Ok(End::Gone), |text| Err(anyhow!(text)));
            }
            Event::Leave { answer } => {
                let left = leave(stack, hold).await;
                let is_left = left.is_ok();
                let _ = answer.send(left);
                serving.drain(DRAIN_MAX);
                if is_left {
                    return Ok(End::Left);
                }
                continue;
            }
            Event::Signal => (Leave::Now, None),
            Event::Unmount { lazy: true, answer } => (Leave::WhenUnused, Some(answer)),
            Event::Unmount { lazy: false, answer } => (Leave::IfUnused, Some(answer)),
        };
        let Left { lost, server_dead } = match take_away(stack, plan, how).await {
            Ok(left) => left,
            Err(error) => {
                tracing::warn!("cannot unmount: {error}");
                if let Some(answer) = answer {
                    let _ = answer.send(Err(anyhow!("{error}")));
                }
                continue;
            }
        };
        if let Some(text) = &lost {
            tracing::error!("at unmount: {text}");
        }
        if !gone(events).await && how == Leave::WhenUnused && !server_dead {
            // Files are open: they are served until they are closed.
            tell(answer, lost, serving);
            continue;
        }
        // A file may still be open, and the kernel have written it meanwhile.
        let lost = lost.or_else(|| not_written_back(stack));
        let closed = tokio::task::block_in_place(|| stack.close());
        hold.tell_end();
        tell(answer, lost, serving);
        return closed.map(|()| End::Gone);
    }
    Ok(End::Gone)
}

/// Answers what was asked, brings what can be to the server, and takes nothing more.
async fn leave(stack: &Stack, hold: &Hold) -> Result<()> {
    if hold.is_ours() {
        return Err(anyhow!(
            "nobody keeps this mount (option survive): unmount it and mount it again"
        ));
    }
    if let Some(text) = write_back(stack).await {
        tracing::info!("{text}; the next worker brings it there");
    }
    // What was read lately is not lost to the next worker.
    if let Err(error) = tokio::task::block_in_place(|| stack.engine.cache.checkpoint()) {
        tracing::warn!(%error, "the cache cannot be saved");
    }
    if !tokio::task::block_in_place(|| stack.leave(LEAVE_MAX)) {
        tracing::info!("some requests are left to the next worker unanswered");
    }
    Ok(())
}

/// Answers whoever asked, and sees to it that the answer is on its way.
fn tell(
    answer: Option<SyncSender<Result<Option<String>>>>,
    lost: Option<String>,
    serving: &Serving,
) {
    if let Some(answer) = answer {
        let _ = answer.send(Ok(lost));
    }
    serving.drain(DRAIN_MAX);
}

/// Waits until the door has seen the end of the mount, for a bounded time.
async fn gone(events: &mut UnboundedReceiver<Event>) -> bool {
    let seen = async {
        while let Some(event) = events.recv().await {
            if matches!(event, Event::Gone) {
                return;
            }
        }
    };
    tokio::time::timeout(KERNEL_MAX, seen).await.is_ok()
}

/// How to leave a mount that may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// Not at all, if it is.
    IfUnused,
    /// Hide it now, and serve its users until they are done.
    WhenUnused,
    /// Its users' calls fail.
    Now,
}

/// A mount that is out of the name space.
struct Left {
    /// What did not reach the server, if something did not.
    lost: Option<String>,
    /// Whether the server does not answer.
    server_dead: bool,
}

/// Brings dirty data to the server and takes the mount out of the name space. If the server is
/// dead, all calls that wait for it fail, and the mount goes however it is used.
async fn take_away(stack: &Stack, plan: &Plan, how: Leave) -> Result<Left, UnmountError> {
    let server_dead = !stack.engine.server.answers(ANSWER_MAX).await;
    let lost = if server_dead { not_written_back(stack) } else { write_back(stack).await };
    let left = Left { lost, server_dead };
    if !stack.is_mounted() {
        // Others have taken it away; what lies at its place now is none of ours.
        if server_dead {
            stack.engine.server.end_calls();
        }
        return Ok(left);
    }
    if how == Leave::IfUnused && !server_dead && left.lost.is_none() {
        let mountpoint = plan.mountpoint.clone();
        let unused = tokio::task::spawn_blocking(move || unmount(&mountpoint, How::Unused));
        match tokio::time::timeout(KERNEL_MAX, unused).await {
            Ok(Ok(Err(UnmountError::NotMounted) | Ok(()))) => return Ok(left),
            Ok(Ok(Err(error))) => return Err(error),
            // The kernel waits for us to write its pages, and we wait for the server.
            Ok(Err(_)) | Err(_) => {}
        }
    }
    match unmount(&plan.mountpoint, How::Detach) {
        Ok(()) | Err(UnmountError::NotMounted) => {}
        Err(error) => return Err(error),
    }
    if server_dead {
        stack.engine.server.end_calls();
    }
    Ok(left)
}

/// Brings dirty data to the server, for a bounded time. Answers what did not get there.
async fn write_back(stack: &Stack) -> Option<String> {
    match tokio::time::timeout(WRITE_BACK_MAX, stack.engine.client.write_back_all()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::error!("write-back at the end: {error}");
            not_written_back(stack)
        }
        Err(_) => not_written_back(stack),
    }
}

/// What the server does not hold, for people.
fn not_written_back(stack: &Stack) -> Option<String> {
    let dirty = Dirty::from(stack.engine.client.status().unsent);
    (dirty.files > 0).then(|| format!("{dirty} did not reach the server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper may end after its mount was removed, and another one is just beginning at the same
    /// place.
    #[test]
    fn traces_of_a_mount_that_begins_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mountpoint = Path::new("/mnt");
        let begin = || {
            let runtime_dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
            let server = Server::bind(&runtime_dir.socket(mountpoint)).unwrap();
            let is_told = AtomicBool::new(false);
            (server, Traces { runtime_dir, mountpoint: mountpoint.to_owned(), is_told })
        };
        let is_there = |traces: &Traces| traces.runtime_dir.socket(mountpoint).exists();
        let record = |pid| Record {
            mountpoint: mountpoint.to_owned(),
            source: "nfs://server/".to_owned(),
            cache: None,
            pid,
            log: None,
            is_detached: false,
            is_trying: false,
        };
        let (_, old) = begin();
        old.put(&record(std::process::id())).unwrap();
        old.runtime_dir.remove(mountpoint);
        let (_, new) = begin();
        drop(old);
        assert!(is_there(&new));
        new.put(&record(1)).unwrap();
        let runtime_dir = RuntimeDir::at(folder.path().join("larder")).unwrap();
        drop(new);
        assert!(runtime_dir.get(mountpoint).is_some(), "another process has it");
        runtime_dir.remove(mountpoint);
        let (_, failed) = begin();
        drop(failed);
        assert!(!runtime_dir.socket(mountpoint).exists(), "nobody was told of it");
    }
}
