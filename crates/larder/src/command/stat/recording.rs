//! `larder stat --series`: writes rows from a daemon to a file, as they arrive.
//!
//! Rows are written whole: a signal is checked between two batches, which arrive ten times a
//! second.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::print;
use crate::control::{CallError, Progress, Request, SILENCE_MAX, Sink, call};
use crate::series::{COLUMNS, Table};
use crate::signals;

/// Records until `duration` is over, a signal arrives, or the mount ends.
///
/// # Errors
/// If the daemon does not answer or breaks off, or the file cannot be written. Rows that arrived
/// before that are in the file.
pub(super) fn record(
    socket: &Path,
    slice: Duration,
    duration: Option<Duration>,
    out: &Path,
) -> Result<()> {
    let shown = out.display();
    let slice_us = u64::try_from(slice.as_micros())?;
    let slices = |duration: Duration| duration.as_micros().div_ceil(slice.as_micros());
    let slices_max = duration.map(slices).map(u64::try_from).transpose()?;
    let stopped = signals::end_flag()?;
    let mut rows = Rows { out, file: None, table: Table::new(slice_us), stopped };
    let request = Request::Series { slice_us, slices_max };
    match call(socket, &request, SILENCE_MAX, &mut rows) {
        Ok(_) => {}
        // That is why.
        Err(CallError::Failed(_)) if rows.stopped.load(Relaxed) => {}
        Err(error) => return Err(error.into()),
    }
    let Table { rows, dropped, .. } = rows.table;
    print(&format!("{rows} rows in {shown}, {dropped} slices dropped\n"))
}

/// A file of rows.
struct Rows<'a> {
    out: &'a Path,
    /// Made when the daemon has begun, so that a refusal does not destroy an older file.
    file: Option<File>,
    table: Table,
    stopped: Arc<AtomicBool>,
}

impl Sink for Rows<'_> {
    fn progress(&mut self, _: Progress) -> bool {
        true
    }

    fn item(&mut self, item: Value) -> Result<()> {
        let rows = self.table.rows_of(&serde_json::from_value(item)?);
        self.write(&rows).with_context(|| format!("cannot write {}", self.out.display()))?;
        if self.stopped.load(Relaxed) {
            bail!("a signal came");
        }
        Ok(())
    }
}

impl Rows<'_> {
    /// The header is written with the first batch: a reader that sees it knows that the recording
    /// runs.
    fn write(&mut self, rows: &str) -> std::io::Result<()> {
        if let Some(file) = &mut self.file {
            return file.write_all(rows.as_bytes());
        }
        let mut file = File::create(self.out)?;
        file.write_all([COLUMNS, rows].concat().as_bytes())?;
        self.file = Some(file);
        Ok(())
    }
}
