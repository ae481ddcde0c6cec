//! The destination and filter of the daemon's log.
//!
//! A file is reopened when logrotate(8) has moved it ([`reopen`]). syslog(3) and systemd's journal
//! get a datagram for each line.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::{MakeWriter, fmt};

use crate::daemon;

/// Sets what is logged, as `info` or `larder_remote=debug,warn`.
const VARIABLE: &str = "LARDER_LOG";

/// What is logged by default: libraries log more than a user of larder needs.
const DEFAULT: &str = "info,smb2=warn,object_store=warn";

/// Facility "daemon" of syslog (RFC 3164, 4.1.1), times eight.
const DAEMON: u8 = 3 << 3;

/// The file that is logged to, if it is one.
static OUTPUT: OnceLock<Output> = OnceLock::new();

/// A log file, and where it is.
struct Output {
    path: PathBuf,
    file: Mutex<File>,
}

/// Takes each line for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// syslog(3).
    Syslog,
    /// systemd-journald(8).
    Journal,
}

impl Service {
    /// The service that the value of `--log` means, if it is no file.
    pub(crate) fn of(log: &Path) -> Option<Service> {
        match log.to_str()? {
            "syslog" => Some(Service::Syslog),
            "journal" => Some(Service::Journal),
            _ => None,
        }
    }

    fn socket(self) -> &'static str {
        match self {
            Service::Syslog => "/dev/log",
            Service::Journal => "/run/systemd/journal/socket",
        }
    }

    /// A line as it is sent.
    fn datagram(self, level: Level, line: &str) -> Vec<u8> {
        let priority = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let (line, pid) = (line.trim_end(), std::process::id());
        match self {
            Service::Syslog => format!("<{}>larder[{pid}]: {line}", DAEMON | priority),
            Service::Journal => format!(
                "PRIORITY={priority}\nSYSLOG_IDENTIFIER=larder\nMESSAGE={}\n",
                line.replace('\n', " ")
            ),
        }
        .into_bytes()
    }
}

/// A connected socket of a [`Service`].
struct ToService {
    service: Service,
    socket: UnixDatagram,
}

/// A line to be sent to a [`Service`].
struct ServiceLine<'a> {
    to: &'a ToService,
    level: Level,
}

impl Write for ServiceLine<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        // A service that is full or gone must not delay the mount.
        let _ = self.to.socket.send(&self.to.service.datagram(self.level, &text));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for ToService {
    type Writer = ServiceLine<'a>;

    fn make_writer(&'a self) -> ServiceLine<'a> {
        ServiceLine { to: self, level: Level::INFO }
    }

    fn make_writer_for(&'a self, meta: &tracing::Metadata<'_>) -> ServiceLine<'a> {
        ServiceLine { to: self, level: *meta.level() }
    }
}

impl Write for &Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Begins to log: to a file or a service if one is given, else to standard error. Called once.
///
/// # Errors
/// If the file cannot be written, or the service does not exist.
pub(crate) fn begin(log: Option<&Path>) -> Result<()> {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let format = fmt().with_env_filter(filter).with_target(false);
    match (log, log.and_then(Service::of)) {
        (None, _) => {
            format.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).init();
        }
        (Some(_), Some(service)) => {
            let at = service.socket();
            let socket = UnixDatagram::unbound().and_then(|socket| {
                socket.connect(at)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            let socket = socket.with_context(|| format!("cannot log: nobody listens at {at}"))?;
            format
                .with_ansi(false)
                .without_time()
                .with_writer(ToService { service, socket })
                .init();
        }
        (Some(path), None) => {
            let file = Mutex::new(daemon::open_log(path)?);
            let output = OUTPUT.get_or_init(|| Output { path: path.to_owned(), file });
            format.with_ansi(false).with_writer(move || output).init();
        }
    }
    Ok(())
}

/// Whether the log is a file.
pub(crate) fn is_file() -> bool {
    OUTPUT.get().is_some()
}

/// Opens the log's file again, if it is one: the present file may have been moved away, and is used
/// further if this fails.
pub(crate) fn reopen() {
    let Some(output) = OUTPUT.get() else { return };
    let opened = daemon::open_log(&output.path).and_then(|file| {
        daemon::redirect(&file)?;
        Ok(file)
    });
    match opened {
        Ok(file) => {
            *output.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
            tracing::info!("the log was opened anew");
        }
        Err(error) => tracing::error!("the log cannot be opened anew: {error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_words_are_services() {
        assert_eq!(Service::of(Path::new("syslog")), Some(Service::Syslog));
        assert_eq!(Service::of(Path::new("journal")), Some(Service::Journal));
        assert_eq!(Service::of(Path::new("/var/log/syslog")), None);
    }

    #[test]
    fn services_get_a_line_with_its_priority() {
        let text = |service: Service, level| {
            String::from_utf8(service.datagram(level, "two\nlines\n")).unwrap()
        };
        let syslog = text(Service::Syslog, Level::WARN);
        assert!(syslog.starts_with("<28>larder[") && syslog.ends_with("]: two\nlines"), "{syslog}");
        let journal = text(Service::Journal, Level::ERROR);
        assert_eq!(journal, "PRIORITY=3\nSYSLOG_IDENTIFIER=larder\nMESSAGE=two lines\n");
    }
}
