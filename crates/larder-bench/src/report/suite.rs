//! The sections of a report about a run: the same for every suite, and the charts of each.

use crate::published::{self, Fact};
use crate::record::{Run, Test};

use super::document::{Block, Facts, Section};
use super::text::slug;

mod badros;
mod bars;
mod basic5;
mod conditions;
mod fscache;
mod goals;
mod latency;
mod mbfs;
mod ratios;
mod rpcs;
mod savings;
mod snapdragon;
mod tables;

pub(crate) use conditions::date;

/// Section of a run; `index` makes its id unique among runs of one suite.
pub(crate) fn section(run: &Run, index: usize) -> Section {
    let source = published::source(&run.suite);
    let title = source
        .map_or_else(|| run.suite.clone(), |source| format!("{}: {}", run.suite, source.title));
    let lead = source.map_or_else(
        || "This suite was not published elsewhere.".to_owned(),
        |source| format!("After {}, {}.", source.authors, source.year),
    );
    let mut blocks = conditions::blocks(run);
    if run.tests.is_empty() {
        blocks.push(Block::Text("Nothing was measured.".to_owned()));
    }
    blocks.extend(figures(run));
    blocks.extend(ratios::blocks(run));
    blocks.extend(tables::blocks(run));
    Section { id: format!("{}-{index}", slug(&run.suite)), title, lead, blocks }
}

/// What came of the goals of a run's suite, in sentences; none where it has no goals.
pub(crate) fn goals(run: &Run) -> Vec<String> {
    let rows = match run.suite.as_str() {
        "mbfs" => mbfs::goals_of(run),
        "snapdragon" => snapdragon::goals_of(run),
        "disks" => snapdragon::goals_of_disks(run),
        _ => Vec::new(),
    };
    if rows.is_empty() { Vec::new() } else { goals::sentences(rows) }
}

fn figures(run: &Run) -> Vec<Block> {
    match run.suite.as_str() {
        "badros" => badros::figures(run),
        "fscache" => fscache::figures(run),
        "mbfs" => mbfs::figures(run),
        "basic5" => basic5::figures(run),
        "snapdragon" => snapdragon::figures(run),
        "disks" => snapdragon::figures_of_disks(run),
        _ => bars::all(run),
    }
}

/// What was published of a suite, if a function picks it.
fn facts(suite: &str, about: impl Fn(&Fact) -> bool) -> Facts {
    let year = published::source(suite).map_or(0, |source| source.year);
    let picked = published::facts(suite).iter().filter(|fact| about(fact));
    let sentences = picked.map(|fact| fact.text.to_owned()).collect();
    Facts { title: format!("Published in {year}"), sentences }
}

/// Tests of a run that a function picks.
fn tests(run: &Run, pick: impl Fn(&Test) -> bool) -> Vec<&Test> {
    run.tests.iter().filter(|test| pick(test)).collect()
}
