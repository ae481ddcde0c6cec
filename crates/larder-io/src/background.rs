//! Work at a lower priority than other threads' work.

use std::panic;
use std::thread;

/// The nice value of background work: ten steps reduce its share of a busy CPU to a tenth
/// (setpriority(2)).
const NICENESS: i32 = 10;

/// Runs `work` on a thread of low priority, and waits for it. If no thread can be started, runs it
/// on this one at normal priority.
///
/// # Panics
/// If `work` does.
pub fn behind_others<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // The thread takes the work out; if no thread could be started, it is still here.
    let mut work = Some(work);
    let done = thread::scope(|scope| {
        let run = || {
            give_way();
            work.take().map(|work| work())
        };
        let spawned = thread::Builder::new().name("larder-behind".to_owned());
        spawned.spawn_scoped(scope, run).ok().map(thread::ScopedJoinHandle::join)
    });
    match done {
        Some(Ok(Some(done))) => done,
        Some(Err(cause)) => panic::resume_unwind(cause),
        Some(Ok(None)) => unreachable!("the thread ran what it was given"),
        None => work.take().expect("no thread took it")(),
    }
}

/// Lowers the priority of this thread, once. That needs no privilege.
fn give_way() {
    let this = Some(rustix::thread::gettid());
    if rustix::process::getpriority_process(this).is_ok_and(|now| now < NICENESS) {
        let _ = rustix::process::setpriority_process(this, NICENESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_with_less_priority_and_leaves_ours_alone() {
        let priority = || {
            let this = Some(rustix::thread::gettid());
            rustix::process::getpriority_process(this).unwrap()
        };
        let ours = priority();
        let mut seen = None;
        let answer = behind_others(|| {
            seen = Some(priority());
            7
        });
        assert_eq!(answer, 7);
        assert_eq!(seen, Some(NICENESS.max(ours)));
        assert_eq!(priority(), ours);
    }

    #[test]
    #[should_panic(expected = "on the other thread")]
    fn a_panic_comes_back() {
        behind_others(|| panic!("on the other thread"));
    }
}
