//! Every sample as a row of comma-separated values (RFC 4180), for other programs.
//!
//! Texts are as they were recorded, not cleaned. Maps (`at`, `rpcs`, `extra`) are JSON objects.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::record::{Run, Sample, Test};

/// Names of the columns.
pub(crate) const COLUMNS: [&str; 20] = [
    "run",
    "suite",
    "size",
    "started",
    "interrupted",
    "test",
    "copies",
    "at",
    "unit",
    "more_is_better",
    "target",
    "round",
    "value",
    "failed",
    "subtracted_s",
    "page_cache",
    "rpcs_total",
    "rpcs_by",
    "rpcs",
    "extra",
];

/// A row of names, then a row per sample.
///
/// # Errors
/// If a map cannot be written as JSON.
pub(crate) fn csv(runs: &[Run]) -> Result<String> {
    let mut out = String::new();
    push(&mut out, &COLUMNS.map(str::to_owned));
    for (index, run) in runs.iter().enumerate() {
        for test in &run.tests {
            for sample in &test.samples {
                push(&mut out, &row(index, run, test, sample)?);
            }
        }
    }
    Ok(out)
}

fn row(index: usize, run: &Run, test: &Test, sample: &Sample) -> Result<[String; 20]> {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let total = sample.rpcs.as_ref().map(|rpcs| rpcs.values().sum::<u64>().to_string());
    let rpcs = sample.rpcs.as_ref().map(map).transpose()?;
    Ok([
        index.to_string(),
        run.suite.clone(),
        run.size.clone(),
        run.started.clone(),
        run.interrupted.to_string(),
        test.name.clone(),
        test.copies.to_string(),
        map(&test.at)?,
        test.unit.clone(),
        test.more_is_better.to_string(),
        sample.target.clone(),
        sample.round.to_string(),
        number(sample.value),
        text(&sample.failed),
        number(sample.subtracted_s),
        text(&sample.page_cache),
        total.unwrap_or_default(),
        text(&sample.rpcs_by),
        rpcs.unwrap_or_default(),
        map(&sample.extra)?,
    ])
}

/// A map as a JSON object; nothing if it is empty.
fn map<V: Serialize>(map: &BTreeMap<String, V>) -> Result<String> {
    Ok(if map.is_empty() { String::new() } else { serde_json::to_string(map)? })
}

fn push(out: &mut String, fields: &[String]) {
    for (index, field) in fields.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        if field.contains(['"', ',', '\n', '\r']) || field.starts_with(' ') || field.ends_with(' ')
        {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(field);
        }
    }
    out.push_str("\r\n");
}
