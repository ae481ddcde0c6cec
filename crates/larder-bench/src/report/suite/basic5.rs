//! `basic5`: bytes per second against file size, writing and reading: servers and transports on one
//! chart.

use crate::published::{BASIC5_MARKS, BASIC5_POINTS};
use crate::record::{Run, Target, Test};

use super::super::chart::Chart;
use super::super::chart::lines::{Lines, Mark};
use super::super::document::{Block, Figure};
use super::super::knees::knees;
use super::super::number::{exact, value};
use super::super::sweep::{Sweep, convert, sweeps};
use super::conditions::link_words;
use super::{facts, rpcs};

/// A chart for each test, of all servers and transports.
pub(super) fn figures(run: &Run) -> Vec<Block> {
    let tests: Vec<&Test> = run.tests.iter().collect();
    let targets: Vec<&Target> = run.targets.iter().collect();
    let all = sweeps(&tests, "clients");
    let mut blocks = Vec::new();
    let mut told: Vec<&str> = Vec::new();
    for sweep in &all {
        let direction = direction(sweep.name);
        let first = !told.contains(&direction);
        told.push(direction);
        blocks.push(figure(run, sweep, &targets, first));
    }
    let most: Vec<&Test> = all.iter().filter_map(|sweep| Some(sweep.steps.last()?.1)).collect();
    blocks.extend(rpcs::figure(run, &most, "RPCs by procedure at the greatest size"));
    blocks
}

/// What is published of a test: its direction in the texts.
fn direction(name: &str) -> &'static str {
    if name.contains("write") {
        "write"
    } else if name.contains("read") {
        "read"
    } else {
        "other"
    }
}

/// `first`: the first chart of its direction, beside which the published facts stand.
fn figure(run: &Run, sweep: &Sweep<'_>, targets: &[&Target], first: bool) -> Block {
    let measure = if sweep.unit == "B/s" { "rate" } else { "value" };
    let mut lines = sweep.lines(run, targets, measure);
    mark_knees(&mut lines);
    lines.marks = marks(sweep);
    let knees = knee_words(&lines, &sweep.dimension);
    let caption = format!("{} Vertical strokes are 95 % intervals. {knees}", link_words(run));
    let about = |fact: &crate::published::Fact| {
        first && (fact.test.is_empty() || fact.test == direction(sweep.name))
    };
    Block::Figure(Box::new(Figure {
        chart: Chart::Lines(lines),
        caption,
        published: facts("basic5", about),
        tables: vec![sweep.table(targets)],
    }))
}

fn mark_knees(lines: &mut Lines) {
    for curve in &mut lines.curves {
        let measured: Vec<(usize, (f64, f64))> = curve
            .points
            .iter()
            .enumerate()
            .filter_map(|(index, point)| Some((index, (point.x, point.y?))))
            .collect();
        let places: Vec<(f64, f64)> = measured.iter().map(|(_, place)| *place).collect();
        curve.knees = knees(&places).into_iter().map(|index| measured[index].0).collect();
    }
}

/// Between which steps the knees lie.
fn knee_words(lines: &Lines, dimension: &str) -> String {
    let mut found = Vec::new();
    for curve in lines.curves.iter().filter(|curve| !curve.knees.is_empty()) {
        let places = curve.knees.iter().map(|knee| {
            let before = curve.points[..*knee].iter().rev().find(|point| point.y.is_some());
            let after = exact(curve.points[*knee].x);
            before.map_or(after.clone(), |before| format!("{} to {after}", exact(before.x)))
        });
        let places: Vec<String> = places.collect();
        found.push(format!("{} at {}", curve.name, places.join(" and ")));
    }
    if found.is_empty() {
        return "No rate falls for good.".to_owned();
    }
    format!("Knees ({dimension}): {}.", found.join("; "))
}

fn marks(sweep: &Sweep<'_>) -> Vec<Mark> {
    let direction = direction(sweep.name);
    let mut marks = Vec::new();
    for place in BASIC5_MARKS.iter().filter(|place| place.test == direction) {
        let from = convert(place.at.0, place.unit, &sweep.dimension);
        let to = convert(place.at.1, place.unit, &sweep.dimension);
        if let (Some(from), Some(to)) = (from, to) {
            marks.push(Mark::Range((from, to), format!("2001: {}", place.text)));
        }
    }
    for point in &BASIC5_POINTS {
        let x = convert(point.x, point.x_unit, &sweep.dimension);
        let belongs = point.test == direction && point.unit == sweep.unit;
        if let (Some(x), true) = (x, belongs) {
            let text = format!("2001: {}, {}", point.who, value(point.y, point.unit));
            marks.push(Mark::Point((x, point.y), text));
        }
    }
    marks
}
