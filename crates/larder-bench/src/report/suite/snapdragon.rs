//! `snapdragon`: bandwidth against file size and against number of disks, and latencies, by setup.
//!
//! A test belongs to the latencies if its name says so or its unit is a microsecond; to the scaling
//! if it sweeps `disks` or its name speaks of disks or scaling; to the file sizes if it sweeps
//! anything else. What is left (Andrew) is shown as bars, and so is the scaling if numbers of disks
//! are targets.

mod goals;

use crate::published::SNAPDRAGON_MARK;
use crate::record::{Run, Target, Test};

use super::super::chart::Chart;
use super::super::chart::lines::Mark;
use super::super::document::{Block, Facts, Figure};
use super::super::sweep::{Sweep, convert, sweeps};
use super::conditions::link_words;
use super::{bars, facts, latency, rpcs};

pub(super) use goals::{rows as goals_of, rows_of_disks as goals_of_disks};

/// What a test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Size,
    Disks,
    Latency,
    Other,
}

/// What was to be reached, then all tests as bars: numbers of disks are targets.
pub(super) fn figures_of_disks(run: &Run) -> Vec<Block> {
    goals::blocks_of_disks(run).into_iter().chain(bars::all(run)).collect()
}

/// What was to be reached, then charts of each kind.
pub(super) fn figures(run: &Run) -> Vec<Block> {
    let of = |kind: Kind| super::tests(run, |test| kind_of(run, test) == kind);
    let mut blocks = goals::blocks(run);
    blocks.extend(curves(run, &of(Kind::Size), Kind::Size));
    let (swept, shares): (Vec<&Test>, Vec<&Test>) =
        of(Kind::Disks).into_iter().partition(|test| is_swept(run, test));
    blocks.extend(curves(run, &swept, Kind::Disks));
    if !shares.is_empty() {
        let published = facts("snapdragon", |fact| fact.test == "disks");
        blocks.extend(bars::figures(run, &shares, "One client's share of the disks", &published));
    }
    let latencies = of(Kind::Latency);
    if !latencies.is_empty() {
        let published = facts("snapdragon", |fact| fact.test == "latency");
        blocks.extend(latency::figures(run, &latencies, &published));
    }
    let others = of(Kind::Other);
    if !others.is_empty() {
        let published = facts("snapdragon", |fact| fact.test == "andrew");
        blocks.extend(bars::figures(run, &others, "Andrew and others", &published));
    }
    let general = facts("snapdragon", |fact| fact.test.is_empty());
    blocks.push(Block::List(format!("{}, besides", general.title), general.sentences));
    blocks
}

/// Curves of tests of one kind, and their RPCs.
fn curves(run: &Run, tests: &[&Test], kind: Kind) -> Vec<Block> {
    let (topic, copies_are) =
        if kind == Kind::Size { ("size", "clients") } else { ("disks", "disks") };
    let sweeps = sweeps(tests, copies_are);
    let mut blocks = Vec::new();
    for (index, sweep) in sweeps.iter().enumerate() {
        let published = facts("snapdragon", |fact| index == 0 && fact.test == topic);
        blocks.push(figure(run, sweep, kind, published));
    }
    let most: Vec<&Test> = sweeps.iter().filter_map(|sweep| Some(sweep.steps.last()?.1)).collect();
    blocks.extend(rpcs::figure(run, &most, &format!("RPCs by procedure, most of {topic}")));
    blocks
}

/// Whether a number tells a test from others of its name.
fn is_swept(run: &Run, test: &Test) -> bool {
    let mut same = run.tests.iter().filter(|other| other.name == test.name);
    !test.at.is_empty() || same.any(|other| other.copies != test.copies)
}

fn kind_of(run: &Run, test: &Test) -> Kind {
    let mut same = run.tests.iter().filter(|other| other.name == test.name);
    let disks =
        |test: &Test| test.at.iter().find(|(name, _)| name.contains("disk")).map(|(_, n)| *n);
    let sweeps_disks = same.any(|other| disks(other) != disks(test));
    if test.unit == "us" || test.name.contains("latency") {
        Kind::Latency
    } else if sweeps_disks || test.name.contains("disk") || test.name.starts_with("scal") {
        Kind::Disks
    } else if is_swept(run, test) {
        Kind::Size
    } else {
        Kind::Other
    }
}

fn figure(run: &Run, sweep: &Sweep<'_>, kind: Kind, published: Facts) -> Block {
    let targets: Vec<&Target> = run.targets.iter().collect();
    let measure = match sweep.unit {
        "s" => "run time",
        "B/s" => "bandwidth",
        _ => "rate",
    };
    let mut lines = sweep.lines(run, &targets, measure);
    let at = convert(SNAPDRAGON_MARK.at.0, SNAPDRAGON_MARK.unit, &sweep.dimension);
    if let (Kind::Size, Some(at)) = (kind, at) {
        lines.marks.push(Mark::Range((at, at), format!("2003: {}", SNAPDRAGON_MARK.text)));
    }
    Block::Figure(Box::new(Figure {
        chart: Chart::Lines(lines),
        caption: format!("{} Vertical strokes are 95 % intervals.", link_words(run)),
        published,
        tables: vec![sweep.table(&targets)],
    }))
}
