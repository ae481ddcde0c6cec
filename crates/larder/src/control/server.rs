//! The daemon's end of the control socket.
//!
//! A thread accepts, a thread serves each connection, at most [`CONNECTIONS_MAX`] at once. Requests
//! may block: no task of the data path waits for them. The connection of an answered
//! [`Request::Unmount`] stays open until the process is gone, so that the command can see its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::client::daemon_lives;
use super::{LINE_BYTES_MAX, Line, Progress, Request, Sink};

/// Connections served at once; more are closed.
const CONNECTIONS_MAX: usize = 32;

/// How long a client may take to send its request, and to accept a line of the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// A bound control socket; it serves nothing until [`Server::serve`].
pub(crate) struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Binds the socket at `path`, replacing the one of a dead daemon. Only one process succeeds:
    /// this is also the lock of a mountpoint.
    ///
    /// # Errors
    /// If a living daemon listens there, or if the socket cannot be made.
    pub(crate) fn bind(path: &Path) -> Result<Server> {
        ensure!(!daemon_lives(path), "another larder answers there");
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)
            .with_context(|| format!("cannot listen at {}", path.display()))?;
        Ok(Server { listener, path: path.to_owned() })
    }

    /// The socket itself, to be handed on.
    pub(crate) fn into_listener(self) -> OwnedFd {
        self.listener.into()
    }

    /// A socket that another process of ours has bound at `path`.
    pub(crate) fn from_listener(listener: OwnedFd, path: &Path) -> Server {
        Server { listener: listener.into(), path: path.to_owned() }
    }

    /// Answers requests with `handle` until the process ends.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn serve<H>(self, handle: H) -> Result<Serving>
    where
        H: Fn(Request, &mut dyn Sink) -> Result<Value> + Send + Sync + 'static,
    {
        let (handle, serving) = (Arc::new(handle), Serving::default());
        let answering = serving.clone();
        let accept = move || {
            for stream in self.listener.incoming() {
                let Ok(stream) = stream else {
                    tracing::warn!(socket = %self.path.display(), "control socket is gone");
                    return;
                };
                if !answering.begin() {
                    continue;
                }
                let (handle, ended) = (handle.clone(), answering.clone());
                let serve = move || {
                    if let Err(error) = answer(stream, &*handle) {
                        tracing::debug!("control connection: {error:#}");
                    }
                    ended.end();
                };
                let name = "control-call".to_owned();
                if let Err(error) = std::thread::Builder::new().name(name).spawn(serve) {
                    tracing::warn!("cannot serve a control connection: {error}");
                    answering.end();
                }
            }
        };
        std::thread::Builder::new().name("control".to_owned()).spawn(accept)?;
        Ok(serving)
    }
}

/// Counts the answers that are being given.
#[derive(Clone, Default)]
pub(crate) struct Serving(Arc<(Mutex<usize>, Condvar)>);

impl Serving {
    /// Waits until every answer that was begun is sent, or `wait_max`.
    pub(crate) fn drain(&self, wait_max: Duration) {
        let (count, changed) = &*self.0;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = changed.wait_timeout_while(count, wait_max, |count| *count > 0);
    }

    /// Counts one more, unless there are too many.
    fn begin(&self) -> bool {
        let mut count = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = *count < CONNECTIONS_MAX;
        *count += usize::from(free);
        free
    }

    fn end(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.1.notify_all();
    }
}

/// The lines of an answer to the client.
struct Reply<'a>(&'a UnixStream);

impl Reply<'_> {
    fn line(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        Ok(self.0.write_all(&text)?)
    }
}

impl Sink for Reply<'_> {
    fn progress(&mut self, progress: Progress) -> bool {
        self.line(&Line::Progress(progress)).is_ok()
    }

    fn item(&mut self, item: Value) -> Result<()> {
        self.line(&Line::Item(item))
    }
}

fn answer<H>(stream: UnixStream, handle: &H) -> Result<()>
where
    H: Fn(Request, &mut dyn Sink) -> Result<Value>,
{
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LINE_BYTES_MAX)).read_line(&mut line)?;
    if line.is_empty() {
        return Ok(()); // Somebody looked whether we live.
    }
    let mut reply = Reply(&stream);
    let request = match serde_json::from_str::<Request>(&line) {
        Ok(request) => request,
        Err(error) => {
            return reply.line(&Line::Failed(format!("the daemon does not know this: {error}")));
        }
    };
    let ends = matches!(request, Request::Unmount { .. });
    match handle(request, &mut reply) {
        Ok(value) => reply.line(&Line::Done(value))?,
        Err(error) => return reply.line(&Line::Failed(format!("{error:#}"))),
    }
    if ends {
        std::mem::forget(stream);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{CallError, Nowhere, call, wait_for_exit};
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn start(path: &Path) -> Serving {
        let handle = |request: Request, reply: &mut dyn Sink| match request {
            Request::CacheLs { .. } => {
                reply.item(Value::from(1))?;
                reply.progress(Progress { files: 1, ..Progress::default() });
                Ok(Value::from(2))
            }
            Request::CacheDrop => Err(anyhow::anyhow!("no")),
            _ => Ok(Value::Null),
        };
        Server::bind(path).unwrap().serve(handle).unwrap()
    }

    #[derive(Debug, Default, PartialEq)]
    struct Seen {
        items: Vec<Value>,
        files: u64,
    }

    impl Sink for Seen {
        fn progress(&mut self, progress: Progress) -> bool {
            self.files += progress.files;
            true
        }

        fn item(&mut self, item: Value) -> Result<()> {
            self.items.push(item);
            Ok(())
        }
    }

    #[test]
    fn a_request_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let serving = start(&path);
        let mut seen = Seen::default();
        let (value, _) = call(&path, &Request::CacheLs { unsent: false }, SOON, &mut seen).unwrap();
        assert_eq!((value, seen), (Value::from(2), Seen { items: vec![Value::from(1)], files: 1 }));
        serving.drain(SOON);
    }

    #[test]
    fn a_failure_comes_as_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        start(&path);
        let answer = call(&path, &Request::CacheDrop, SOON, &mut Nowhere);
        assert!(matches!(answer, Err(CallError::Failed(text)) if text == "no"));
    }

    #[test]
    fn an_unknown_request_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        start(&path);
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"op\":\"dance\"}\n").unwrap();
        let mut line = String::new();
        stream.read_to_string(&mut line).unwrap();
        assert!(line.starts_with("{\"failed\""), "{line}");
    }

    #[test]
    fn a_socket_of_a_dead_daemon_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(matches!(call(&path, &Request::Status, SOON, &mut Nowhere), Err(CallError::Dead)));
        start(&path);
        assert!(Server::bind(&path).is_err(), "a living one is not");
    }

    #[test]
    fn a_client_that_ends_before_the_answer_cancels_the_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let says: [(&[u8], bool); 3] = [(b"", false), (b"", true), (b"{\"done\"", true)];
        for (says, reads) in says {
            let asking = std::thread::spawn({
                let path = path.clone();
                move || call(&path, &Request::Status, SOON, &mut Nowhere).map(|(value, _)| value)
            });
            let (mut stream, _) = listener.accept().unwrap();
            if reads {
                stream.read_exact(&mut [0; 5]).unwrap();
            }
            stream.write_all(says).unwrap();
            drop(stream);
            let answer = asking.join().unwrap();
            assert!(matches!(answer, Err(CallError::BrokeOff)), "{says:?} {reads}: {answer:?}");
        }
    }

    #[test]
    fn the_connection_of_an_unmount_outlives_its_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let serving = start(&path);
        let (_, connection) =
            call(&path, &Request::Unmount { lazy: false, detach: false }, SOON, &mut Nowhere)
                .unwrap();
        serving.drain(SOON);
        assert!(!wait_for_exit(connection, Duration::from_millis(1)));
    }
}
