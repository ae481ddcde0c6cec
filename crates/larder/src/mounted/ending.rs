//! Ends a mount: sends what is unsent to the server, takes the mount out of the name space, closes
//! the cache. Each step takes a bounded time.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use anyhow::{Result, anyhow};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::clock::clock;
use crate::control::Serving;
use crate::event::{End, Event};
use crate::link::Hold;
use crate::plan::Plan;
use crate::rebuild::AtAccess;
use crate::report::Dirty;
use crate::stack::Stack;
use crate::unmount::{How, UnmountError, unmount};

/// Longest wait for an answer of the server before it counts as dead, when the mount ends.
const ANSWER_MAX: Duration = Duration::from_millis(800);

/// Longest wait for dirty data to reach the server, when the mount ends. `larder umount` waits five
/// seconds for everything.
const WRITE_BACK_MAX: Duration = Duration::from_millis(2000);

/// Longest wait for the kernel to release the mount, and for the front door to notice that.
const KERNEL_MAX: Duration = Duration::from_millis(1000);

/// Longest wait for answers that are being given, at exit.
pub(super) const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Longest wait for requests in flight, when another process is to continue.
const LEAVE_MAX: Duration = Duration::from_millis(2000);

/// Waits for the end of the mount and carries it out.
pub(super) async fn end_of(
    stack: &Stack,
    plan: &Plan,
    hold: &Hold,
    events: &mut UnboundedReceiver<Event>,
    serving: &Serving,
) -> Result<End> {
    while let Some(event) = events.recv().await {
        let (how, unsent, answer) = match event {
            Event::Broken(text) if !hold.is_ours() => return Err(anyhow!(text)),
            Event::Gone | Event::Broken(_) => {
                tracing::info!("the mount is gone");
                let lost = write_back(stack).await;
                let closed = close(stack, &lost).await;
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
            Event::Signal => (Leave::Now, Unsent::Goes, None),
            Event::Unmount { detach: true, answer, .. } if stack.engine.cache_dir.is_none() => {
                let _ = answer.send(Err(anyhow!("without a cache on disk nothing can stay here")));
                continue;
            }
            Event::Unmount { lazy, detach, answer } => {
                let how = if lazy { Leave::WhenUnused } else { Leave::IfUnused };
                (how, if detach { Unsent::Stays } else { Unsent::Goes }, Some(answer))
            }
        };
        let Left { lost, server_dead } = match take_away(stack, plan, (how, unsent)).await {
            Ok(left) => left,
            Err(error) => {
                tracing::warn!("cannot unmount: {error}");
                stack.at_access.iter().for_each(AtAccess::resume);
                if let Some(answer) = answer {
                    let _ = answer.send(Err(anyhow!("{error}")));
                }
                continue;
            }
        };
        match (&lost, unsent) {
            (None, _) => {}
            (Some(text), Unsent::Goes) => tracing::error!("at unmount: {text}"),
            (Some(text), Unsent::Stays) => tracing::info!("at unmount: {text}, as was asked"),
        }
        if !gone(events).await && how == Leave::WhenUnused && !server_dead {
            // Files are open: they are served until they are closed.
            tell(answer, lost, serving);
            continue;
        }
        // A file may still be open, and the kernel have written it meanwhile.
        let lost = lost.or_else(|| not_written_back(stack));
        let closed = close(stack, &lost).await;
        hold.tell_end();
        tell(answer, lost, serving);
        return closed.map(|()| End::Gone);
    }
    Ok(End::Gone)
}

/// Ends what serves the mount. What is left to the next one is on this machine's disk then.
async fn close(stack: &Stack, left: &Option<String>) -> Result<()> {
    if left.is_some() {
        stack.engine.client.keep_unsent().await;
    }
    tokio::task::block_in_place(|| stack.close())
}

/// Answers the requests in flight, sends what can be sent to the server, and accepts nothing more.
async fn leave(stack: &Stack, hold: &Hold) -> Result<()> {
    if hold.is_ours() {
        return Err(anyhow!(
            "nobody keeps this mount (option survive): unmount it and mount it again"
        ));
    }
    if let Some(text) = write_back(stack).await {
        tracing::info!("{text}; the next worker brings it there");
        stack.engine.client.keep_unsent().await;
    }
    // The next worker keeps what was read recently.
    if let Err(error) = tokio::task::block_in_place(|| stack.engine.cache.checkpoint()) {
        tracing::warn!(%error, "the cache cannot be saved");
    }
    if !tokio::task::block_in_place(|| stack.leave(LEAVE_MAX)) {
        tracing::info!("some requests are left to the next worker unanswered");
    }
    Ok(())
}

/// Answers the waiting command, and ensures that the answer is sent.
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

/// Waits until the front door has noticed the end of the mount, for a bounded time.
async fn gone(events: &mut UnboundedReceiver<Event>) -> bool {
    let seen = async {
        while let Some(event) = events.recv().await {
            if matches!(event, Event::Gone) {
                return;
            }
        }
    };
    clock().timeout(KERNEL_MAX, seen).await.is_ok()
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

/// What happens to unsent data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsent {
    /// It is sent first, for a bounded time.
    Goes,
    /// The next mount sends it.
    Stays,
}

/// A mount that is out of the name space.
struct Left {
    /// What did not reach the server, if anything.
    lost: Option<String>,
    /// Whether the server does not answer.
    server_dead: bool,
}

/// Sends dirty data to the server and removes the mount from the name space. If the server is dead,
/// all calls that wait for it fail, and the mount is removed even if it is in use.
async fn take_away(
    stack: &Stack,
    plan: &Plan,
    (how, unsent): (Leave, Unsent),
) -> Result<Left, UnmountError> {
    if let Some(making) = &stack.at_access {
        // What makes files for which nobody waits would use the mount.
        making.pause().await;
    }
    let server_dead = !stack.engine.server.answers(ANSWER_MAX).await;
    let lost = match (server_dead, unsent) {
        (false, Unsent::Goes) => write_back(stack).await,
        (true, _) | (_, Unsent::Stays) => not_written_back(stack),
    };
    let left = Left { lost, server_dead };
    if !stack.is_mounted() {
        // Another process has removed it; what is mounted at its path now is not ours.
        if server_dead {
            stack.engine.server.end_calls();
        }
        return Ok(left);
    }
    let waits = left.lost.is_none() || unsent == Unsent::Stays;
    if how == Leave::IfUnused && !server_dead && waits {
        let mountpoint = plan.mountpoint.clone();
        let unused = tokio::task::spawn_blocking(move || unmount(&mountpoint, How::Unused));
        match clock().timeout(KERNEL_MAX, unused).await {
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

/// Sends dirty data to the server, for a bounded time. Returns what did not get there.
async fn write_back(stack: &Stack) -> Option<String> {
    match clock().timeout(WRITE_BACK_MAX, stack.engine.client.write_back_all()).await {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            tracing::error!("write-back at the end: {error}");
            not_written_back(stack)
        }
        Err(_) => not_written_back(stack),
    }
}

/// What the server lacks, and why, if it has refused some of it, for people.
fn not_written_back(stack: &Stack) -> Option<String> {
    let client = &stack.engine.client;
    let dirty = Dirty::from(client.status().unsent);
    if dirty.files == 0 {
        return None;
    }
    let refused = client.unsaved().into_iter().find_map(|file| file.failure);
    let why = refused.map(|error| format!(": {error}")).unwrap_or_default();
    Some(format!("{dirty} did not reach the server{why}"))
}
