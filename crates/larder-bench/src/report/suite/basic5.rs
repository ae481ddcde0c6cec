//! `basic5`: bytes per second against file size, writing and reading, for each transport.
//!
//! The transport is what the name of the test, the name of the target or its options say: `udp` or
//! `tcp` as a word. Targets that say neither stand in a chart of their own.

use crate::published::{BASIC5_PLACES, BASIC5_POINTS};
use crate::record::{Run, Target, Test};

use super::super::chart::Chart;
use super::super::chart::lines::{Lines, Mark};
use super::super::compare::{transport, transport_in};
use super::super::document::{Block, Figure};
use super::super::knees::knees;
use super::super::number::{exact, value};
use super::super::sweep::{Sweep, convert, sweeps};
use super::conditions::link_words;
use super::{facts, rpcs};

/// A chart for each test and transport.
pub(super) fn figures(run: &Run) -> Vec<Block> {
    let tests: Vec<&Test> = run.tests.iter().collect();
    let all = sweeps(&tests, "clients");
    let mut blocks = Vec::new();
    let mut told: Vec<&str> = Vec::new();
    for sweep in &all {
        let charts = by_transport(run, sweep.name);
        for (transport, targets) in &charts {
            let direction = direction(sweep.name);
            let first = !told.contains(&direction);
            told.push(direction);
            blocks.push(figure(
                run,
                sweep,
                targets,
                transport_words(*transport, charts.len()),
                first,
            ));
        }
    }
    let most: Vec<&Test> = all.iter().filter_map(|sweep| Some(sweep.steps.last()?.1)).collect();
    blocks.extend(rpcs::figure(run, &most, "RPCs by procedure at the greatest size"));
    blocks
}

/// The transport with its name for titles, which is empty if no chart is told from another by it.
fn transport_words(
    transport: Option<&'static str>,
    charts: usize,
) -> (Option<&'static str>, String) {
    let words = match transport {
        Some(name) => format!(" over {name}"),
        None if charts > 1 => ", transport not recorded".to_owned(),
        None => String::new(),
    };
    (transport, words)
}

/// Targets of a test by transport. The local disk has none and stands beside each.
fn by_transport<'a>(run: &'a Run, test: &str) -> Vec<(Option<&'static str>, Vec<&'a Target>)> {
    let of = |target: &Target| transport_in(test).or_else(|| transport(target));
    let mut charts = Vec::new();
    for wanted in [Some("UDP"), Some("TCP"), None] {
        let beside = |target: &Target| wanted.is_some() && target.name == "local";
        let belongs = |target: &&Target| of(target) == wanted && target.name != "local";
        if run.targets.iter().any(|target| belongs(&target)) {
            let targets = run.targets.iter().filter(|target| belongs(target) || beside(target));
            charts.push((wanted, targets.collect()));
        }
    }
    let shown = |name: &str| {
        charts.iter().any(|(_, targets): &(_, Vec<&Target>)| {
            targets.iter().any(|target| target.name == name)
        })
    };
    let left: Vec<&Target> = run.targets.iter().filter(|target| !shown(&target.name)).collect();
    match charts.iter_mut().find(|(transport, _)| transport.is_none()) {
        Some((_, targets)) => targets.extend(left),
        None if !left.is_empty() => charts.push((None, left)),
        None => (),
    }
    charts
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
fn figure(
    run: &Run,
    sweep: &Sweep<'_>,
    targets: &[&Target],
    (transport, over): (Option<&str>, String),
    first: bool,
) -> Block {
    let measure = if sweep.unit == "B/s" { "rate" } else { "value" };
    let mut lines = sweep.lines(run, targets, measure);
    lines.heading.title = format!("{}{over}: {measure} against {}", sweep.title(), sweep.swept());
    mark_knees(&mut lines);
    lines.marks = marks(sweep, transport);
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

fn marks(sweep: &Sweep<'_>, transport: Option<&str>) -> Vec<Mark> {
    let direction = direction(sweep.name);
    let mut marks = Vec::new();
    for place in BASIC5_PLACES.iter().filter(|place| place.test == direction) {
        let from = convert(place.at.0, place.unit, &sweep.dimension);
        let to = convert(place.at.1, place.unit, &sweep.dimension);
        if let (Some(from), Some(to)) = (from, to) {
            marks.push(Mark::Place((from, to), format!("2001: {}", place.text)));
        }
    }
    for point in &BASIC5_POINTS {
        let x = convert(point.x, point.x_unit, &sweep.dimension);
        // The point was measured over UDP.
        let belongs =
            point.test == direction && point.unit == sweep.unit && transport != Some("TCP");
        if let (Some(x), true) = (x, belongs) {
            let text = format!("2001: {}, {}", point.who, value(point.y, point.unit));
            marks.push(Mark::Point((x, point.y), text));
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_chart_and_the_local_disk_stands_beside() {
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let charts = |names: &[&str], test: &str| -> Vec<(Option<&str>, Vec<String>)> {
            let run = Run {
                targets: names.iter().map(|name| target(name)).collect(),
                ..super::super::super::input::empty_run()
            };
            let charts = by_transport(&run, test);
            charts
                .into_iter()
                .map(|(of, targets)| (of, targets.iter().map(|t| t.name.clone()).collect()))
                .collect()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(
            charts(&["a udp", "a tcp", "local", "b"], "write"),
            [
                (Some("UDP"), names(&["a udp", "local"])),
                (Some("TCP"), names(&["a tcp", "local"])),
                (None, names(&["b"])),
            ]
        );
        assert_eq!(charts(&["a", "local"], "write-tcp"), [(Some("TCP"), names(&["a", "local"]))]);
        assert_eq!(charts(&["a", "local"], "write"), [(None, names(&["a", "local"]))]);
        assert_eq!(charts(&["local"], "write"), [(None, names(&["local"]))]);
    }
}
