//! The model passes the suite, the suite notices a server that does not, and the model's controls
//! work.

#![allow(clippy::disallowed_methods, reason = "tests wait for real servers and threads")]
// Helpers of tests unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod liar;
mod model;
mod suite;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}
