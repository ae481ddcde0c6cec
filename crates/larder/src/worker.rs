//! A process that serves a mount which its supervisor holds; see [`crate::supervisor`].

use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;

use crate::daemon::{self, Announce};
use crate::event::End;
use crate::link::{Hold, Link, Role};
use crate::plan::Plan;
use crate::runtime_dir::{Record, RuntimeDir};
use crate::traces::record;
use crate::{failing_mount, log, mounted};

/// Serves a mount in this role until its end, or that of this process.
///
/// # Errors
/// If the stack cannot be built, or dirty data did not reach the server at the mount's end.
pub(crate) fn run(
    plan: &Plan,
    role: Role,
    restarts: u64,
    announce: Announce,
    log: Option<&Path>,
) -> Result<ExitCode> {
    if announce == Announce::Parent {
        // Signals come from the supervisor, which holds the mount.
        daemon::leave_session();
    }
    let runtime_dir = RuntimeDir::open()?;
    let (link, server) = Link::inherit(role, restarts, &runtime_dir.socket(&plan.mountpoint))?;
    let log = match (log, announce) {
        (Some(path), _) => Some(path.to_owned()),
        (None, Announce::Parent) => Some(runtime_dir.log(&plan.mountpoint)),
        (None, Announce::Nobody) => None,
    };
    log::begin(log.as_deref())?;
    // Code that panicked may have left any state behind: the next worker begins from what is
    // recorded.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        report(panic);
        std::process::abort();
    }));
    let (link, record) = (Arc::new(link), record(plan, parent_id(), log));
    let serving = |record: &Record| {
        if record.is_trying {
            link.trying();
        } else {
            link.watch()?;
            link.serving();
        }
        match (announce, &record.log) {
            (Announce::Parent, Some(log)) => daemon::let_go(log),
            _ => Ok(()),
        }
    };
    let end = match role {
        Role::First | Role::Again => {
            mounted::serve(plan, Hold::Supervised(Arc::clone(&link)), record, server, serving)?
        }
        Role::Broken => failing_mount::serve(&link, record, server, serving)?,
    };
    if matches!(end, End::Left) {
        link.left();
        // Nothing is taken down: the next worker continues with it.
        std::process::exit(0);
    }
    Ok(ExitCode::SUCCESS)
}
