//! Requests whose answer is not ready yet, and callers that are killed while they wait for one.
//!
//! The kernel tells us (INTERRUPT) when a waiting caller gets a signal. If the signal ends it, its
//! request is answered with EINTR at once, so that the process can exit; any other signal changes
//! nothing, as with the kernel's own network file systems. The operation itself continues. Its
//! answer reaches no caller, so references that the kernel would hold by it are taken back.
//!
//! The kernel does not report a second signal, nor any signal while a killed process closes its
//! files. So interrupted requests, and each FLUSH, are checked every [`LOOK_EVERY`] until they are
//! answered.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_vfs::{Answer, Ino, Kernel, OpenId};
use tokio::runtime::Handle;
use zerocopy::FromBytes;

use crate::abi::{CreateOut, EntryOut, InHeader, Opcode, OpenOut, UNIQUE_RESEND};
use crate::dispatcher::Dispatcher;
use crate::late::Late;
use crate::listing;
use crate::output::Output;
use crate::request::{Operation, Request};

/// Pause between two checks of callers that may be killed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The bit of SIGKILL among pending signals. The kernel turns every signal that ends a process into
/// this one (`complete_signal` in `kernel/signal.c`), except those that dump core.
const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// Gives an answer to the kernel.
type Reply = Box<dyn FnOnce(Output) + Send>;

/// The requests that wait.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By the kernel's number of them. Whoever takes one out answers it.
    waiting: HashMap<u64, Wait>,
    watched: Vec<Watched>,
    /// A task checks the watched requests from time to time.
    is_watching: bool,
}

struct Wait {
    /// The thread that waits; 0 if we cannot see it.
    caller: u32,
    reply: Reply,
}

struct Watched {
    unique: u64,
    /// It was missing at the last check: answered, or about to be inserted.
    missed: bool,
}

impl Waits {
    fn put(&self, unique: u64, wait: Wait) {
        let before = self.lock().waiting.insert(unique, wait);
        debug_assert!(before.is_none(), "a number comes once");
    }

    fn take(&self, unique: u64) -> Option<Reply> {
        self.lock().waiting.remove(&unique).map(|wait| wait.reply)
    }

    /// Adds a request to the watched ones. Returns whether the caller must start the task that
    /// checks them.
    fn watch(&self, unique: u64) -> bool {
        let mut table = self.lock();
        table.watched.push(Watched { unique, missed: false });
        !std::mem::replace(&mut table.is_watching, true)
    }

    /// Callers of the watched requests; `None`, and the task ends, if there is no such request.
    /// Answered requests are no longer watched.
    fn callers(&self) -> Option<Vec<(u64, u32)>> {
        let mut table = self.lock();
        let Table { waiting, watched, is_watching } = &mut *table;
        watched.retain_mut(|one| {
            let missing = !waiting.contains_key(&one.unique);
            !(missing && std::mem::replace(&mut one.missed, missing))
        });
        *is_watching = !watched.is_empty();
        let caller = |one: &Watched| waiting.get(&one.unique).map(|wait| (one.unique, wait.caller));
        is_watching.then(|| watched.iter().filter_map(caller).collect())
    }

    fn caller(&self, unique: u64) -> Option<u32> {
        self.lock().waiting.get(&unique).map(|wait| wait.caller)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number that identifies a request; it is unchanged when the request is sent again.
fn number(unique: u64) -> u64 {
    unique & !UNIQUE_RESEND
}

impl Dispatcher {
    /// Has `reply` answer with the result of `late` once that is ready. To be called by a thread
    /// that has entered the runtime.
    pub(crate) fn answer_later(
        self: &Arc<Self>,
        request: &Request<'_>,
        late: Late,
        runtime: &Handle,
        reply: impl FnOnce(Output) + Send + 'static,
    ) {
        let header = request.header;
        let unique = number(header.unique);
        self.waits.put(unique, Wait { caller: header.pid, reply: Box::new(reply) });
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let names = names_changed(request);
        let pending = Pending { dispatcher: Arc::clone(self), header, names };
        late.drive(runtime, move |output| pending.answer(output));
        if header.opcode == Opcode::Flush as u32 && self.waits.watch(unique) {
            self.look_from_time_to_time();
        }
    }

    /// The caller of a request got a signal while it waited.
    pub(crate) fn interrupted(self: &Arc<Self>, unique: u64) {
        let unique = number(unique);
        // Any signal ends a wait for a lock.
        self.lock_waits.give_up(unique);
        if self.waits.caller(unique).is_some_and(is_killed) {
            self.let_go(unique);
        } else if self.waits.watch(unique) {
            self.look_from_time_to_time();
        }
    }

    fn look_from_time_to_time(self: &Arc<Self>) {
        let dispatcher = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                dispatcher.clock.sleep(LOOK_EVERY).await;
                let Some(callers) = dispatcher.waits.callers() else { return };
                for (unique, caller) in callers {
                    // It may have been interrupted before it began to wait.
                    dispatcher.lock_waits.give_up(unique);
                    if is_killed(caller) {
                        dispatcher.let_go(unique);
                    }
                }
            }
        });
    }

    /// The caller is killed, and waits no longer.
    fn let_go(&self, unique: u64) {
        self.answer_now(unique, Output::error(libc::EINTR));
    }

    /// Answers a request, or returns the answer if the request has already been answered.
    fn answer_now(&self, unique: u64, output: Output) -> Option<Output> {
        let Some(reply) = self.waits.take(unique) else { return Some(output) };
        reply(output);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        None
    }

    /// Releases what the kernel would hold by an answer that it did not take, and has the kernel
    /// drop what it believes only because it does not know that the request was carried out.
    fn take_back(&self, header: &InHeader, names: &[(Ino, OsString)], output: &Output) {
        for (dir, name) in names {
            self.kernel.invalidate_entry(*dir, name);
        }
        if output.errno != 0 {
            return;
        }
        let ino = Ino(header.nodeid);
        match Opcode::from_number(header.opcode) {
            Some(
                Opcode::Lookup | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Link,
            ) => {
                if let Ok((entry, _)) = EntryOut::read_from_prefix(output.fixed()) {
                    self.take_nodes_back([entry.nodeid]);
                }
            }
            Some(Opcode::Create) => {
                if let Ok((created, _)) = CreateOut::read_from_prefix(output.fixed()) {
                    self.take_open_back(Ino(created.entry.nodeid), created.open);
                    self.take_nodes_back([created.entry.nodeid]);
                }
            }
            Some(Opcode::Open) => {
                if let Ok((open, _)) = OpenOut::read_from_prefix(output.fixed()) {
                    self.take_open_back(ino, open);
                }
            }
            Some(Opcode::Setattr) => self.kernel.invalidate(ino, true),
            Some(Opcode::Readdirplus) => self.take_nodes_back(listing::nodes(&output.data)),
            _ => {}
        }
    }

    /// 0 is none: a name that is not there.
    fn take_nodes_back(&self, nodes: impl IntoIterator<Item = u64>) {
        self.forget(nodes.into_iter().filter(|node| *node != 0).map(|node| (Ino(node), 1)));
    }

    fn take_open_back(&self, ino: Ino, open: OpenOut) {
        let open = OpenId(open.fh);
        self.ways.release(ino, open);
        if let Answer::Later(closing) = self.fs.release(ino, open) {
            // As with any release, no caller waits for the result.
            tokio::spawn(closing);
        }
    }
}

/// Drives a request that waits. If it is dropped without an answer (a future that panicked), the
/// request is answered with an error, so that its caller does not wait for ever.
struct Pending {
    dispatcher: Arc<Dispatcher>,
    header: InHeader,
    /// Changes in the kernel's view of directories.
    names: Vec<(Ino, OsString)>,
}

impl Pending {
    fn answer(self, output: Output) {
        if let Some(output) = self.dispatcher.answer_now(number(self.header.unique), output) {
            self.dispatcher.take_back(&self.header, &self.names, &output);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let unique = number(self.header.unique);
        if !self.dispatcher.leaving.load(Ordering::Acquire) {
            // It was answered, unless it panicked.
            self.dispatcher.answer_now(unique, Output::error(libc::EIO));
        } else if self.dispatcher.waits.take(unique).is_some() {
            // Of a mount that is handed on, the next process answers.
            self.dispatcher.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The directories and names affected by a request that makes, removes or renames.
fn names_changed(request: &Request<'_>) -> Vec<(Ino, OsString)> {
    let dir = request.header.nodeid;
    let named = |dir: u64, name: &OsStr| (Ino(dir), name.to_owned());
    match request.operation {
        Operation::Symlink { name, .. }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Link { name, .. }
        | Operation::Create { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name } => vec![named(dir, name)],
        Operation::Rename { rename, from, to } => vec![named(dir, from), named(rename.newdir, to)],
        _ => Vec::new(),
    }
}

/// Whether a signal told a thread to end, or the thread is exiting because of one.
///
/// Never waits for the thread. Reading the file `stat` does wait while the thread executes another
/// program: that closes files, and so waits for us. So the file is read only for a thread that is
/// known not to do that.
fn is_killed(thread: u32) -> bool {
    // One that is not there is in a namespace that we cannot see.
    let file = |name: &str| std::fs::read_to_string(format!("/proc/{thread}/{name}"));
    match file("status").ok().as_deref().and_then(outlook) {
        Some(Outlook::Killed) => true,
        Some(Outlook::Leaving) => file("stat").is_ok_and(|stat| ended_by_signal(&stat)),
        Some(Outlook::Living) | None => false,
    }
}

/// What a thread is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Nothing that is known.
    Living,
    /// A signal to end it has come.
    Killed,
    /// It has no memory any more: it is exiting, and only its files are left to close.
    Leaving,
}

/// From the file `status`; see proc_pid_status(5).
fn outlook(status: &str) -> Option<Outlook> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let pending = u64::from_str_radix(field("SigPnd")?, 16).ok()?;
    Some(match field("VmSize") {
        _ if pending & SIGKILL_BIT != 0 => Outlook::Killed,
        Some(_) => Outlook::Living,
        None => Outlook::Leaving,
    })
}

/// Whether a signal ended an exiting thread; from the file `stat`, see proc_pid_stat(5).
fn ended_by_signal(stat: &str) -> bool {
    // The second field is a name, which may contain anything.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace());
    let exit_code = fields.and_then(|mut fields| fields.nth(52 - 3)?.parse::<u64>().ok());
    exit_code.is_some_and(|code| code & 0x7f != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn killed_callers_are_told_from_others() {
        let status = |pending: u64, memory: &str| {
            outlook(&format!("Name:\tVmSize: 1\n{memory}SigPnd:\t{pending:016x}\nShdPnd:\t0\n"))
        };
        let memory = "VmSize:\t    8548 kB\n";
        assert_eq!(status(0, memory), Some(Outlook::Living));
        assert_eq!(status(1 << (libc::SIGUSR1 - 1), memory), Some(Outlook::Living));
        assert_eq!(status(1 << (libc::SIGKILL - 1), memory), Some(Outlook::Killed));
        assert_eq!(status(0, ""), Some(Outlook::Leaving));
        assert_eq!(outlook("Name:\tcat\n"), None);

        let stat = |exit_code: u64| format!("42 (a) S (b) {}{exit_code}\n", "0 ".repeat(49));
        assert!(!ended_by_signal(&stat(3 << 8)), "it ends by itself");
        assert!(ended_by_signal(&stat(15)));
        assert!(!ended_by_signal("42 (a") && !ended_by_signal("42 (a) S 1"));
    }

    #[test]
    fn living_processes_are_not_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(!is_killed(child.id()));
        assert!(!is_killed(0));
        assert!(is_killed_after_death(&mut child));
    }

    /// A process that was killed and not yet reaped has closed its files, but still shows how it
    /// ended.
    fn is_killed_after_death(child: &mut std::process::Child) -> bool {
        child.kill().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let is_killed = is_killed(child.id());
        child.wait().unwrap();
        is_killed
    }

    fn replies_to(waits: &Waits, unique: u64) -> std::sync::mpsc::Receiver<i32> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let reply = Box::new(move |output: Output| sender.send(output.errno).unwrap());
        waits.put(unique, Wait { caller: unique as u32 * 10, reply });
        receiver
    }

    #[test]
    fn a_request_is_watched_until_it_is_answered() {
        let waits = Waits::default();
        let first = replies_to(&waits, 1);
        let _second = replies_to(&waits, 2);
        assert!(waits.watch(1));
        assert!(!waits.watch(2), "somebody does already");
        assert_eq!(waits.callers(), Some(vec![(1, 10), (2, 20)]));
        waits.take(1).unwrap()(Output::error(7));
        assert_eq!(first.recv(), Ok(7));
        assert!(waits.take(1).is_none(), "it is answered once");
        assert_eq!(waits.callers(), Some(vec![(2, 20)]));
        assert_eq!(waits.callers(), Some(vec![(2, 20)]));
        drop(waits.take(2));
        assert_eq!(waits.callers(), Some(vec![]));
        assert_eq!(waits.callers(), None);
        assert!(waits.watch(3), "nobody does any more");
    }

    /// A request may be interrupted before the thread that received it has recorded it.
    #[test]
    fn what_is_interrupted_early_is_found_later() {
        let waits = Waits::default();
        waits.watch(1);
        assert_eq!(waits.callers(), Some(vec![]));
        let _reply = replies_to(&waits, 1);
        assert_eq!(waits.callers(), Some(vec![(1, 10)]));
    }
}
