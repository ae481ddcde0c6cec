//! `larder bench report`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use larder_bench::record::{FORMAT, Run};
use larder_bench::report::{self, Series};

use super::super::print;

/// Arguments of `larder bench report`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Writes report.html (one file that needs no network), report.md and report.csv from the \
records of runs.\n\nExample:\n  larder bench report bench/runs/2026-11-21-1234abc-host"
)]
pub(crate) struct Args {
    /// Directories of runs, or the JSON files of single suites
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Recordings of `larder stat --series` to show as charts
    #[arg(long, value_name = "FILE")]
    series: Vec<PathBuf>,
    /// Directory of the report [default: the directory of the first run]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Writes a report and prints its path.
///
/// # Errors
/// If a run cannot be read or is not one, or the report cannot be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut files = Vec::new();
    for path in &args.runs {
        files.extend(records(path)?);
    }
    let runs = files.iter().map(|path| read(path)).collect::<Result<Vec<Run>>>()?;
    let out = match (&args.out, args.runs.first()) {
        (Some(out), _) => out.clone(),
        (None, Some(first)) if first.is_dir() => first.clone(),
        (None, first) => {
            first.and_then(|file| file.parent()).map(Path::to_path_buf).unwrap_or_default()
        }
    };
    let recordings = args.series.iter().map(|path| recording(path)).collect::<Result<Vec<_>>>()?;
    let written = report::write(&runs, &recordings, &out)?;
    print(&format!("{}\n", written.html.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The files of a run, in the order of their names.
pub(super) fn records(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "json") {
            files.push(file);
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "{} has no run: no JSON file is in it", path.display());
    Ok(files)
}

fn recording(path: &Path) -> Result<Series> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Series::parse(&name, &text)
}

/// The record of a suite.
///
/// # Errors
/// If it cannot be read, or is none.
pub(super) fn read(path: &Path) -> Result<Run> {
    let shown = || path.display().to_string();
    let text = fs::read(path).with_context(shown)?;
    let run: Run =
        serde_json::from_slice(&text).context("not the record of a run").with_context(shown)?;
    let format = run.format;
    ensure!(format == FORMAT, "{}: a record of format {format}; this is for {FORMAT}", shown());
    Ok(run)
}
