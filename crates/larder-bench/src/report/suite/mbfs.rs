//! `mbfs`: run time against the number of clients, and what was called and saved at the fewest and
//! the most clients.

mod goals;

use crate::published::MBFS_POINTS;
use crate::record::{Run, Target, Test};

use super::super::chart::Chart;
use super::super::chart::lines::Mark;
use super::super::document::{Block, Figure};
use super::super::number::three;
use super::super::sweep::{Sweep, sweeps};
use super::conditions::link_words;
use super::{facts, rpcs, savings};

pub(super) use goals::rows as goals_of;

/// What was to be reached, then a chart for each test with the targets that run it.
pub(super) fn figures(run: &Run) -> Vec<Block> {
    let tests: Vec<&Test> = run.tests.iter().collect();
    let targets: Vec<&Target> = run.targets.iter().collect();
    let all = sweeps(&tests, "clients");
    let mut blocks = goals::blocks(run);
    blocks.extend(all.iter().map(|sweep| figure(run, sweep, &targets)));
    let most: Vec<&Test> = all.iter().filter_map(|sweep| Some(sweep.steps.last()?.1)).collect();
    blocks.extend(rpcs::figure(run, &most, "RPCs by procedure at the greatest number of clients"));
    let fewest = all.iter().filter(|sweep| sweep.steps.len() > 1);
    let fewest = fewest.filter_map(|sweep| Some(sweep.steps.first()?.1));
    let ends: Vec<&Test> = fewest.chain(most.iter().copied()).collect();
    blocks.extend(savings::blocks(run, &ends));
    let general = facts("mbfs", |fact| fact.test.is_empty());
    blocks.push(Block::List(format!("{}, of all tests", general.title), general.sentences));
    blocks
}

fn figure(run: &Run, sweep: &Sweep<'_>, targets: &[&Target]) -> Block {
    // A target that runs other tests alone has no place here; one that ran none is said so.
    let has = |test: &Test, target: &Target| test.of(&target.name).next().is_some();
    let runs = |target: &&&Target| {
        sweep.steps.iter().any(|(_, test)| has(test, target))
            || !run.tests.iter().any(|test| has(test, target))
    };
    let targets: Vec<&Target> = targets.iter().filter(runs).copied().collect();
    let targets = targets.as_slice();
    let measure = if sweep.unit == "s" { "run time" } else { "rate" };
    let mut lines = sweep.lines(run, targets, measure);
    for point in MBFS_POINTS.iter().filter(|point| {
        point.test == sweep.name && point.unit == sweep.unit && point.x_unit == sweep.dimension
    }) {
        let text = format!("{} in 1999: {} {}", point.who, three(point.y), point.unit);
        lines.marks.push(Mark::Point((point.x, point.y), text));
    }
    Block::Figure(Box::new(Figure {
        chart: Chart::Lines(lines),
        caption: format!("{} Vertical strokes are 95 % intervals.", link_words(run)),
        published: facts("mbfs", |fact| fact.test == sweep.name),
        tables: vec![sweep.table(targets)],
    }))
}
