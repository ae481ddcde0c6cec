//! The report of runs: one HTML page, the same as Markdown, and every sample as CSV.
//!
//! A pure function of records, except that it writes three files. It reads no clock and no machine:
//! the same records give the same bytes.
//!
//! ```text
//! runs ── sanitized ── Document ──┬── page (HTML, with charts)
//!   │                             └── markdown
//!   └── csv, downloads
//! ```
//!
//! Invariants: if a target failed a test, the report says so in place of its number, and never
//! compares it as if it had passed; results that were not measured are marked; nothing is called
//! faster or slower unless its 95 % interval shows it; published numbers come only from
//! [`crate::published`].
//!
//! The charts of a suite need these properties of its tests:
//! - `badros`: names as published, `copies` 1 and 4;
//! - `fscache`: tests named `COLD`, `HOT`, `PGCACHE`, in seconds; None is COLD of `plain`, Server
//!   is PGCACHE of `local`, unless tests have these names;
//! - `mbfs`: `copies` are clients;
//! - `basic5`: names with `write` or `read`, `at` a file size (`file size MB`), B/s;
//! - `snapdragon`: `at` a file size or `disks`; latencies in `us`, one sample per operation or
//!   percentiles (`p50_us`) among `extra`; `disk` in the name of what shows scaling.
//!
//! Tests that fit none of this are shown as bars. `bench/report/check` checks a page in a browser.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::record::Run;

mod chart;
mod compare;
mod conclusions;
mod csv;
mod document;
mod input;
mod kinds;
mod knees;
mod markdown;
mod number;
mod page;
mod scale;
mod series;
mod suite;
mod summary;
mod svg;
mod sweep;
mod text;

pub use knees::knees;
pub use series::Series;

/// Files of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// The same as Markdown, without charts.
    pub markdown: PathBuf,
    /// Every sample.
    pub csv: PathBuf,
}

/// Writes `report.html`, `report.md` and `report.csv` of runs and of recordings into a directory,
/// which is made if it does not exist. Existing reports are replaced. Nothing is durable on return.
///
/// # Errors
/// If a file cannot be written.
pub fn write(runs: &[Run], recordings: &[Series], out_dir: &Path) -> Result<Written> {
    let csv = csv::csv(runs)?;
    let mut downloads = vec![page::Download {
        name: "report.csv".to_owned(),
        mime: "text/csv",
        bytes: csv.clone().into_bytes(),
    }];
    for (index, run) in runs.iter().enumerate() {
        downloads.push(page::Download {
            name: format!("{}-{index}.json", text::slug(&run.suite)),
            mime: "application/json",
            bytes: serde_json::to_vec_pretty(run).context("write a run as JSON")?,
        });
    }
    let sanitized: Vec<Run> = runs.iter().map(input::sanitized).collect();
    let mut document = summary::document(&sanitized);
    document.sections.extend(series::section(recordings));
    let written = Written {
        html: out_dir.join("report.html"),
        markdown: out_dir.join("report.md"),
        csv: out_dir.join("report.csv"),
    };
    fs::create_dir_all(out_dir).with_context(|| format!("create {}", out_dir.display()))?;
    let files = [
        (&written.html, page::page(&document, &downloads)),
        (&written.markdown, markdown::markdown(&document)),
        (&written.csv, csv),
    ];
    for (path, text) in files {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(written)
}
