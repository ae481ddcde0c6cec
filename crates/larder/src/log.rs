//! Where the daemon's log goes, and what of it.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Result;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::fmt;

use crate::daemon;

/// Says what is logged, as `info` or `larder_remote=debug,warn`.
const VARIABLE: &str = "LARDER_LOG";

/// What is logged if nobody says otherwise: what a library thinks worth telling is not worth a line of ours.
const DEFAULT: &str = "info,smb2=warn";

/// Begins to log: to a file if one is given, else to standard error.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn begin(file: Option<&Path>) -> Result<()> {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let log = fmt().with_env_filter(filter).with_target(false);
    match file {
        Some(path) => log.with_ansi(false).with_writer(Mutex::new(daemon::open_log(path)?)).init(),
        None => log.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).init(),
    }
    Ok(())
}
