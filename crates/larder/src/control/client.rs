//! The commands' end of the control socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::{LINE_BYTES_MAX, Line, Progress, Request, Sink};

/// Why a call got no result; one variant for each reaction.
#[derive(Debug)]
pub(crate) enum CallError {
    /// No process listens: the daemon is dead, or there never was one.
    Dead,
    /// The daemon ended before it answered. The socket may belong to another process by now.
    BrokeOff,
    /// The daemon listens, but says nothing, or nothing that makes sense.
    Hung(String),
    /// The daemon answered that it failed.
    Failed(String),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Dead => f.write_str("no daemon answers for this mount"),
            CallError::BrokeOff => f.write_str("the daemon ended before it answered"),
            CallError::Hung(how) => write!(f, "the daemon does not answer: {how}"),
            CallError::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for CallError {}

/// For answers that come in one piece.
#[derive(Default)]
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn progress(&mut self, _: Progress) -> bool {
        true
    }

    fn item(&mut self, _: Value) -> Result<()> {
        Ok(())
    }
}

/// For answers that come as a list, however long.
#[derive(Default)]
pub(crate) struct Items(pub(crate) Vec<Value>);

impl Sink for Items {
    fn progress(&mut self, _: Progress) -> bool {
        true
    }

    fn item(&mut self, item: Value) -> Result<()> {
        self.0.push(item);
        Ok(())
    }
}

/// Asks the daemon that listens at `socket`, waits at most `silence_max` for each line, and passes
/// everything before the end to `sink`; a sink that no longer listens ends the call.
///
/// # Errors
/// See [`CallError`].
pub(crate) fn call(
    socket: &Path,
    request: &Request,
    silence_max: Duration,
    sink: &mut dyn Sink,
) -> Result<(Value, Connection), CallError> {
    let stream = UnixStream::connect(socket).map_err(|_| CallError::Dead)?;
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => CallError::BrokeOff,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            CallError::Hung(format!("nothing came within {} s", silence_max.as_secs()))
        }
        _ => CallError::Hung(error.to_string()),
    };
    stream.set_read_timeout(Some(silence_max)).map_err(failed)?;
    stream.set_write_timeout(Some(silence_max)).map_err(failed)?;
    let mut text = serde_json::to_string(request).map_err(|e| CallError::Hung(e.to_string()))?;
    text.push('\n');
    (&stream).write_all(text.as_bytes()).map_err(failed)?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        (&mut lines).take(LINE_BYTES_MAX).read_line(&mut line).map_err(failed)?;
        match serde_json::from_str(&line) {
            Ok(Line::Progress(progress)) => {
                if !sink.progress(progress) {
                    return Err(CallError::Hung("nobody listens to it".to_owned()));
                }
            }
            Ok(Line::Item(item)) => {
                sink.item(item).map_err(|error| CallError::Failed(format!("{error:#}")))?;
            }
            Ok(Line::Done(value)) => return Ok((value, Connection(lines.into_inner()))),
            Ok(Line::Failed(text)) => return Err(CallError::Failed(text)),
            Err(_) if !line.ends_with('\n') && (line.len() as u64) < LINE_BYTES_MAX => {
                return Err(CallError::BrokeOff);
            }
            Err(error) => return Err(CallError::Hung(error.to_string())),
        }
    }
}

/// A connection whose answer is complete; it ends with the daemon's process.
pub(crate) struct Connection(UnixStream);

/// Waits until the daemon's process has ended, or `wait_max`. Returns whether it has.
pub(crate) fn wait_for_exit(connection: Connection, wait_max: Duration) -> bool {
    let Connection(mut stream) = connection;
    let waits = !wait_max.is_zero() && stream.set_read_timeout(Some(wait_max)).is_ok();
    waits && matches!(stream.read(&mut [0]), Ok(0))
}

/// Whether a daemon listens at `socket`.
pub(crate) fn daemon_lives(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}
