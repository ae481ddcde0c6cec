//! Answers that are not ready at once, and how they are driven.
//!
//! A future begins on the thread that received the request. If it need not wait, the answer is
//! ready and no other thread takes part. Otherwise it has sent its own request, and nothing needs
//! to run before a reply arrives: so it is given to the runtime not at once, but when it is first
//! woken, by the thread that wakes it. In most cases that is the runtime's own thread, which
//! continues it in place.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;

use crate::output::{Output, Response};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An answer that must be waited for.
pub(crate) struct Late {
    future: Pin<Box<dyn Future<Output = Output> + Send>>,
    relay: Arc<Relay>,
}

/// Receives the wake-ups of a future that is not a task of the runtime yet.
#[derive(Default)]
struct Relay(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    /// It has no driver yet, and was not woken.
    #[default]
    Begun,
    /// The future was woken before the relay got its task.
    Woken,
    /// The task that the runtime gets once the future is woken.
    Waiting(Task, Handle),
    /// The runtime has the task, and wakes it by itself.
    Given,
}

impl Relay {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        let mut stage = self.stage();
        match std::mem::replace(&mut *stage, Stage::Given) {
            Stage::Begun | Stage::Woken => *stage = Stage::Woken,
            Stage::Waiting(task, runtime) => {
                drop(stage);
                runtime.spawn(task);
            }
            Stage::Given => {}
        }
    }
}

impl Late {
    /// Begins `future` on this thread, which must have entered the runtime.
    pub(crate) fn begin(future: impl Future<Output = Output> + Send + 'static) -> Response {
        let (mut future, relay) = (Box::pin(future), Arc::new(Relay::default()));
        let waker = Waker::from(Arc::clone(&relay));
        let mut context = Context::from_waker(&waker);
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context))) {
            Ok(Poll::Ready(output)) => Response::Now(output),
            Ok(Poll::Pending) => Response::Later(Late { future, relay }),
            Err(_) => Response::error(libc::EIO),
        }
    }

    /// Has the runtime drive the future to its end, and then calls `answer`. If the future panics,
    /// or the runtime ends, `answer` is dropped.
    pub(crate) fn drive(self, runtime: &Handle, answer: impl FnOnce(Output) + Send + 'static) {
        let Late { future, relay } = self;
        let task: Task = Box::pin(async move { answer(future.await) });
        let mut stage = relay.stage();
        match *stage {
            Stage::Begun => *stage = Stage::Waiting(task, runtime.clone()),
            Stage::Woken | Stage::Waiting(..) | Stage::Given => {
                *stage = Stage::Given;
                drop(stage);
                runtime.spawn(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
    }

    #[test]
    fn what_has_nothing_to_wait_for_is_answered_at_once() {
        let now = Late::begin(async { Output::error(7) });
        assert!(matches!(now, Response::Now(output) if output.errno == 7));
        let panics = Late::begin(async { panic!("as it is meant to") });
        assert!(matches!(panics, Response::Now(output) if output.errno == libc::EIO));
    }

    /// Either order: the future is woken first, or the relay gets its task first.
    #[test]
    fn what_comes_early_or_late_is_answered_once() {
        let runtime = runtime();
        let _entered = runtime.enter();
        let (told, answers) = mpsc::channel();
        for round in 0..2000 {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let (second, wait) = tokio::sync::oneshot::channel();
            let begun = Late::begin(async move {
                let errno: i32 = receiver.await.unwrap();
                wait.await.unwrap();
                Output::error(errno)
            });
            let Response::Later(late) = begun else { panic!("it has to wait") };
            let send = move || {
                sender.send(round).unwrap();
                second.send(()).unwrap();
            };
            let told = told.clone();
            let answer = move |output: Output| told.send(output.errno).unwrap();
            match round % 3 {
                0 => {
                    send();
                    late.drive(runtime.handle(), answer);
                }
                1 => {
                    late.drive(runtime.handle(), answer);
                    send();
                }
                _ => {
                    let sending = std::thread::spawn(send);
                    late.drive(runtime.handle(), answer);
                    sending.join().unwrap();
                }
            }
            assert_eq!(answers.recv(), Ok(round));
        }
        assert!(answers.try_recv().is_err());
    }

    #[test]
    fn a_request_that_is_never_answered_is_dropped() {
        let (runtime, (told, dropped)) = (runtime(), mpsc::channel::<()>());
        let entered = runtime.enter();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let begun = Late::begin(async move {
            receiver.await.expect("the sender goes");
            Output::empty()
        });
        let Response::Later(late) = begun else { panic!("it has to wait") };
        late.drive(runtime.handle(), move |_| drop(told));
        drop(sender);
        assert!(dropped.recv().is_err());
        drop(entered);
    }
}
