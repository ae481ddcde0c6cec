//! Ratios of a run: ours against each of the others, test by test.

use crate::record::Run;

use super::super::compare::{pairs, ratio_cell};
use super::super::document::{Block, Cell, Table};

/// A table for each of ours; none if there is no target to compare with.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    if run.tests.is_empty() {
        return Vec::new();
    }
    let pairs = pairs(run);
    pairs
        .chunk_by(|one, other| one.0 == other.0)
        .map(|pairs| {
            let theirs: Vec<&str> = pairs.iter().map(|(_, theirs)| *theirs).collect();
            Block::Table(table(run, pairs[0].0, &theirs))
        })
        .collect()
}

fn table(run: &Run, ours: &str, theirs: &[&str]) -> Table {
    let against: Vec<String> = theirs.iter().map(|theirs| format!("against {theirs}")).collect();
    let columns: Vec<&str> =
        ["test"].into_iter().chain(against.iter().map(String::as_str)).collect();
    let caption = format!("{ours} against the others: ratios of times (below 1: {ours} took less)");
    let mut table = Table::new(caption, &columns);
    for test in &run.tests {
        let mut row = vec![Cell::plain(test.title())];
        row.extend(theirs.iter().map(|theirs| ratio_cell(test, ours, theirs)));
        table.push(row);
    }
    table
}
