//! Asynchronous work on one thread of its own, for as long as its handle is held.

use std::convert::Infallible;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// A thread with a runtime. Dropped, it ends the thread and with it every task and socket of the
/// runtime, and waits for that; it may be dropped inside another runtime.
#[derive(Debug)]
pub(super) struct Background {
    /// Never sent to: its end is the message.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Runs the future that `main` makes; anything else that it makes is returned. `main` itself
    /// runs on the calling thread, inside the runtime, so that it can register sockets and report
    /// errors.
    ///
    /// # Errors
    /// Of `main`, or if there are no more threads or file descriptors.
    pub(super) fn start<T, F>(
        name: &str,
        main: impl FnOnce() -> io::Result<(T, F)>,
    ) -> io::Result<(T, Background)>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (made, work) = {
            let _inside = runtime.enter();
            main()?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&runtime, work, stopped))?;
        Ok((made, Background { stop: Some(stop), thread: Some(thread) }))
    }
}

fn run(runtime: &Runtime, work: impl Future<Output = ()>, stopped: oneshot::Receiver<Infallible>) {
    runtime.block_on(async {
        tokio::select! {
            () = work => (),
            _ = stopped => (),
        }
    });
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked it has printed that, and its sockets are closed in any case.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn dropping_ends_work_and_its_tasks() {
        let held = Arc::new(());
        let (ours, task) = (Arc::clone(&held), Arc::clone(&held));
        let background = Background::start("test", || {
            let work = async move {
                tokio::spawn(async move {
                    let _task = task;
                    std::future::pending::<()>().await;
                });
                let _ours = ours;
                std::future::pending::<()>().await;
            };
            Ok(((), work))
        });
        assert_eq!(Arc::strong_count(&held), 3);
        drop(background.unwrap().1);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn it_may_be_dropped_inside_a_runtime() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (made, background) =
                Background::start("test", || Ok((7, std::future::pending()))).unwrap();
            assert_eq!(made, 7);
            drop(background);
        });
    }

    #[test]
    fn a_failed_start_is_told() {
        let failed = || Err::<((), std::future::Ready<()>), _>(io::ErrorKind::AddrInUse.into());
        let error = Background::start("test", failed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
