//! Which directories are being renamed, and which calls are under way.
//!
//! Servers rename no directory below which a file is open, and a call that began with one path
//! would end with another. So a rename of a directory waits for the calls on what lies below it,
//! and later calls wait for the rename. Nothing else waits.

use larder_vfs::Handle;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Whether the first is the second, or lies below it.
pub(super) trait Below: Fn(&Handle, &Handle) -> bool {}

impl<F: Fn(&Handle, &Handle) -> bool> Below for F {}

/// The calls and renames of a share that are under way.
#[derive(Default)]
pub(super) struct Moves {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    /// Each file and directory that a call names, once for each call.
    named: Vec<Handle>,
    /// Directories that are being renamed, or will be as soon as the calls below have ended.
    moving: Vec<Handle>,
}

impl State {
    /// Begins a call that names `files`, unless one of them is being moved.
    fn try_stay(&mut self, files: &[&Handle], is_below: impl Below) -> bool {
        let moves = |file: &&Handle| self.moving.iter().any(|dir| is_below(file, dir));
        if files.iter().any(moves) {
            return false;
        }
        self.named.extend(files.iter().map(|file| (*file).clone()));
        true
    }

    /// Begins the rename of `dir` from one of `ends` to the other, unless a rename that is under
    /// way moves one of them too.
    fn try_move(&mut self, dir: &Handle, ends: &[&Handle; 2], is_below: impl Below) -> bool {
        let meets = |other: &Handle| is_below(dir, other) || is_below(other, dir);
        if self.moving.iter().any(meets) || !self.try_stay(ends, is_below) {
            return false;
        }
        self.moving.push(dir.clone());
        true
    }

    /// Whether no call is under way on what lies below `dir`.
    fn is_quiet_below(&self, dir: &Handle, is_below: impl Below) -> bool {
        !self.named.iter().any(|file| is_below(file, dir))
    }

    fn end_stay(&mut self, file: &Handle) {
        take_out(&mut self.named, file);
    }

    fn end_move(&mut self, dir: &Handle) {
        take_out(&mut self.moving, dir);
    }
}

fn take_out(list: &mut Vec<Handle>, one: &Handle) {
    let at = list.iter().position(|other| other == one).expect("what ends has begun");
    list.swap_remove(at);
}

impl Moves {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `files` are not being moved. They stay where they are while the result lives.
    pub(super) async fn stay(&self, files: &[&Handle], is_below: impl Below) -> Stay<'_> {
        self.until(|state| state.try_stay(files, &is_below)).await;
        Stay { moves: self, files: files.iter().map(|file| (*file).clone()).collect() }
    }

    /// Waits until `dir` may be renamed from one of `ends` to the other: no call is under way below
    /// it, and none begins there while the result lives.
    pub(super) async fn begin(
        &self,
        dir: &Handle,
        ends: [&Handle; 2],
        is_below: impl Below,
    ) -> Move<'_> {
        self.until(|state| state.try_move(dir, &ends, &is_below)).await;
        let ends = Stay { moves: self, files: ends.map(Handle::clone).into() };
        let begun = Move { dir: dir.clone(), ends };
        self.until(|state| state.is_quiet_below(dir, &is_below)).await;
        begun
    }

    async fn until(&self, mut is_so: impl FnMut(&mut State) -> bool) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // Before the look: what ends after it wakes this.
            ended.as_mut().enable();
            if is_so(&mut self.state()) {
                return;
            }
            ended.await;
        }
    }
}

/// A call under way.
pub(super) struct Stay<'a> {
    moves: &'a Moves,
    files: Vec<Handle>,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut state = self.moves.state();
        self.files.iter().for_each(|file| state.end_stay(file));
        drop(state);
        self.moves.ended.notify_waiters();
    }
}

/// A rename of a directory under way.
pub(super) struct Move<'a> {
    dir: Handle,
    /// The directories from which and to which it moves stay where they are.
    ends: Stay<'a>,
}

impl Drop for Move<'_> {
    fn drop(&mut self) {
        // Before the ends, whose end wakes those that wait.
        self.ends.moves.state().end_move(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Poll;

    /// A path of single letters as a handle.
    fn at(path: &str) -> Handle {
        Handle::new(path.as_bytes())
    }

    fn is_below(file: &Handle, dir: &Handle) -> bool {
        file.as_bytes().starts_with(dir.as_bytes())
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Call(&'static str),
        Rename(&'static str, [&'static str; 2]),
    }

    const STEPS: [Step; 7] = [
        Step::Call("a"),
        Step::Call("ab"),
        Step::Call("c"),
        Step::Rename("a", ["", "c"]),
        Step::Rename("ab", ["a", "c"]),
        Step::Rename("c", ["", "ab"]),
        Step::Rename("ca", ["c", "a"]),
    ];

    /// What began, in this order; `true` once its rename may be carried out.
    type Begun = Vec<(Step, bool)>;

    fn begin(state: &mut State, step: Step) -> bool {
        match step {
            Step::Call(file) => state.try_stay(&[&at(file)], is_below),
            Step::Rename(dir, ends) => {
                let [from, to] = ends.map(at);
                state.try_move(&at(dir), &[&from, &to], is_below)
            }
        }
    }

    fn end(state: &mut State, step: Step) {
        match step {
            Step::Call(file) => state.end_stay(&at(file)),
            Step::Rename(dir, ends) => {
                state.end_move(&at(dir));
                ends.iter().for_each(|end| state.end_stay(&at(end)));
            }
        }
    }

    /// Lets the renames go on that may.
    fn go_on(state: &State, begun: &mut Begun) {
        for (step, goes) in begun {
            if let Step::Rename(dir, _) = step {
                *goes |= state.is_quiet_below(&at(dir), is_below);
            }
        }
    }

    fn check(begun: &Begun) {
        for (step, goes) in begun {
            let Step::Rename(dir, _) = step else { continue };
            for (other, _) in begun.iter().filter(|_| *goes) {
                let touched = match other {
                    Step::Call(file) => vec![*file],
                    Step::Rename(other, ends) if other != dir => vec![*other, ends[0], ends[1]],
                    Step::Rename(..) => vec![],
                };
                assert!(touched.iter().all(|it| !it.starts_with(dir)), "{begun:?}");
            }
        }
    }

    /// All sequences of up to four calls and renames that begin, and then end in every order in
    /// which they can: none is under way below a directory that is moved, and there is always one
    /// that can end.
    #[test]
    fn no_call_is_under_way_below_a_directory_that_moves() {
        fn end_all(begun: &Begun) -> u64 {
            if begun.is_empty() {
                return 1;
            }
            let can_end: Vec<usize> = (0..begun.len())
                .filter(|at| matches!(begun[*at].0, Step::Call(_)) || begun[*at].1)
                .collect();
            assert!(!can_end.is_empty(), "each waits for another: {begun:?}");
            can_end.iter().map(|at| end_one(begun, *at)).sum()
        }
        fn end_one(begun: &Begun, at: usize) -> u64 {
            let (mut left, mut state) = (begun.clone(), State::default());
            // In the order in which they began, so that the state is the same.
            left.iter().for_each(|(step, _)| force(&mut state, *step));
            end(&mut state, left.remove(at).0);
            go_on(&state, &mut left);
            check(&left);
            end_all(&left)
        }
        /// The state of what had begun before, whatever has ended since.
        fn force(state: &mut State, step: Step) {
            match step {
                Step::Call(file) => state.named.push(at(file)),
                Step::Rename(dir, ends) => {
                    state.moving.push(at(dir));
                    state.named.extend(ends.map(at));
                }
            }
        }
        let (mut ends, mut waited) = (0, 0);
        for number in 0..STEPS.len().pow(4) {
            let (mut state, mut begun) = (State::default(), Begun::new());
            for place in 0..4 {
                let step = STEPS[number / STEPS.len().pow(place) % STEPS.len()];
                if !begin(&mut state, step) {
                    waited += 1;
                    continue;
                }
                begun.push((step, false));
                go_on(&state, &mut begun);
                check(&begun);
            }
            ends += end_all(&begun);
        }
        assert!(ends > 10_000 && waited > 1000, "{ends} {waited}");
    }

    #[tokio::test]
    async fn what_waits_goes_on_when_the_other_ends() {
        let [top, a, ab, ad, c] = ["", "a", "ab", "ad", "c"].map(at);
        let moves = Moves::default();
        let call = moves.stay(&[&ab], is_below).await;
        let mut moving = Box::pin(moves.begin(&a, [&top, &c], is_below));
        assert!(waits(&mut moving).await, "a call is under way below");
        let later_files = [&ad];
        let mut later = Box::pin(moves.stay(&later_files, is_below));
        assert!(waits(&mut later).await, "the rename comes first");
        drop(moves.stay(&[&c, &top], is_below).await);
        drop(call);
        drop(moving.await);
        drop(later.await);
        // A rename that is given up while it waits leaves nothing.
        let call = moves.stay(&[&ab], is_below).await;
        let mut moving = Box::pin(moves.begin(&a, [&top, &c], is_below));
        assert!(waits(&mut moving).await);
        drop(moving);
        drop((moves.stay(&[&ad], is_below).await, call));
        let state = moves.state();
        assert!(state.named.is_empty() && state.moving.is_empty());
    }

    /// Whether a future still waits after it was polled.
    async fn waits<F: Future + Unpin>(future: &mut F) -> bool {
        std::future::poll_fn(|context| {
            Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }
}
