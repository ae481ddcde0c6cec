//! Tests that differ in one number only, as curves over it: clients, file size, disks.
//!
//! Tests of one name belong together. What they differ in most is swept; what else they differ in
//! makes further sweeps. A target that failed or was not measured at a step is said so at that
//! step.

use std::collections::BTreeSet;

use crate::record::{Run, Target, Test};

use super::chart::lines::{Axis, Curve, Lines, Point};
use super::chart::{Entry, Heading, Look, Sign};
use super::compare::{Outcome, is_ours, measured, outcome};
use super::document::{Cell, Table};
use super::number::exact;

/// Tests of one name that differ in one number.
#[derive(Clone, Debug)]
pub(crate) struct Sweep<'a> {
    /// Their name.
    pub(crate) name: &'a str,
    /// What is swept: `clients`, `file size MB`.
    pub(crate) dimension: String,
    /// What stays the same, in words; may be empty.
    pub(crate) fixed: String,
    /// Unit of the samples.
    pub(crate) unit: &'a str,
    /// Swept number and test, by growing number.
    pub(crate) steps: Vec<(f64, &'a Test)>,
}

/// Sorts tests into sweeps, in the order in which they first appear. `copies_are` is what copies
/// are called in the suite: `clients`.
pub(crate) fn sweeps<'a>(tests: &[&'a Test], copies_are: &str) -> Vec<Sweep<'a>> {
    let mut sweeps: Vec<Sweep<'a>> = Vec::new();
    for test in tests {
        let dimension = dimension(tests, test.name.as_str(), copies_are);
        let others = dimensions(test, copies_are)
            .into_iter()
            .filter(|(name, value)| *name != dimension && !(*name == copies_are && *value == 1.0));
        let fixed: Vec<String> = others
            .map(|(name, value)| {
                let value = exact(value);
                if name == copies_are {
                    format!("{value} {name}")
                } else {
                    format!("{name} {value}")
                }
            })
            .collect();
        let fixed = fixed.join(", ");
        let value = dimensions(test, copies_are).into_iter().find(|(name, _)| *name == dimension);
        let step = (value.map_or(0.0, |(_, value)| value), *test);
        let known = sweeps.iter_mut().find(|sweep| {
            sweep.name == test.name
                && sweep.dimension == dimension
                && sweep.fixed == fixed
                && sweep.unit == test.unit
        });
        if let Some(sweep) = known {
            sweep.steps.push(step);
            continue;
        }
        let (name, unit) = (test.name.as_str(), test.unit.as_str());
        sweeps.push(Sweep {
            name,
            dimension: dimension.to_owned(),
            fixed,
            unit,
            steps: vec![step],
        });
    }
    for sweep in &mut sweeps {
        sweep.steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    sweeps
}

/// What a test can differ in, with its numbers.
fn dimensions<'a>(test: &'a Test, copies_are: &'a str) -> Vec<(&'a str, f64)> {
    let at = test.at.iter().map(|(name, value)| (name.as_str(), *value));
    at.chain([(copies_are, f64::from(test.copies))]).collect()
}

/// What tests of a name differ in most; of equals a size before another parameter before copies.
fn dimension<'a>(tests: &[&'a Test], name: &str, copies_are: &'a str) -> &'a str {
    let mut best: (usize, u8, &str) = (0, 0, copies_are);
    for test in tests.iter().filter(|test| test.name == name) {
        for (candidate, _) in dimensions(test, copies_are) {
            let values: BTreeSet<u64> = tests
                .iter()
                .filter(|test| test.name == name)
                .flat_map(|test| dimensions(test, copies_are))
                .filter(|(other, _)| *other == candidate)
                .map(|(_, value)| value.to_bits())
                .collect();
            let rank = match candidate {
                _ if candidate == copies_are => 0,
                _ if candidate.contains("size") => 2,
                _ => 1,
            };
            if (values.len(), rank) > (best.0, best.1) {
                best = (values.len(), rank, candidate);
            }
        }
    }
    best.2
}

/// The look of a target in all charts of a run: ours, plain and local have theirs in every run.
pub(crate) fn look(run: &Run, target: &str) -> Look {
    let index = |name: &str| match name {
        "plain" => Some(1),
        "local" => Some(2),
        _ => None,
    };
    if let Some(index) = index(target) {
        return Look::Series(index);
    }
    let first_ours = run.targets.iter().find(|target| is_ours(&target.name));
    if first_ours.is_some_and(|first| first.name == target) {
        return Look::Series(0);
    }
    let others = run.targets.iter().filter(|other| {
        index(&other.name).is_none() && first_ours.is_none_or(|first| first.name != other.name)
    });
    let place = others.take_while(|other| other.name != target).count();
    Look::Series(place + 3)
}

impl<'a> Sweep<'a> {
    /// Name with what stays the same.
    pub(crate) fn title(&self) -> String {
        if self.fixed.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}, {}", self.name, self.fixed)
        }
    }

    /// The swept number without its unit: `file size`.
    pub(crate) fn swept(&self) -> &str {
        match self.dimension.rsplit_once(' ') {
            Some((name, unit)) if is_size(unit) => name,
            _ => &self.dimension,
        }
    }

    /// The swept number with its unit in brackets: `file size (MB)`.
    pub(crate) fn axis(&self) -> String {
        match self.dimension.rsplit_once(' ') {
            Some((name, unit)) if is_size(unit) => format!("{name} ({unit})"),
            _ => self.dimension.clone(),
        }
    }

    /// Curves of the targets given.
    pub(crate) fn lines(&self, run: &Run, targets: &[&'a Target], measure: &str) -> Lines {
        let curves = targets.iter().map(|target| self.curve(run, &target.name)).collect();
        let axis = self.axis();
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let description = format!(
            "Curves of {measure} over {axis} for {}. The same numbers follow as a table.",
            names.join(", ")
        );
        Lines {
            heading: Heading {
                title: format!("{}: {measure} against {}", self.title(), self.swept()),
                description,
            },
            x: Axis { title: axis, at_places: true, ..Axis::default() },
            y: Axis { title: measure.to_owned(), unit: self.unit.to_owned(), ..Axis::default() },
            curves,
            marks: Vec::new(),
            notes: self.notes(targets),
        }
    }

    fn curve(&self, run: &Run, target: &str) -> Curve {
        let mut points = Vec::new();
        for (x, test) in &self.steps {
            let (y, interval, what) = match outcome(test, target) {
                Outcome::Measured(summary) => {
                    (Some(summary.median), summary.interval, measured(&summary, self.unit))
                }
                Outcome::Failed(reason) => (None, None, format!("failed: {reason}")),
                Outcome::Missing => continue,
            };
            let hover = format!("{target}, {} {}: {what}", self.dimension, exact(*x));
            points.push(Point { x: *x, y, interval, hover });
        }
        let name = target.to_owned();
        Curve { name, look: look(run, target), points, knees: Vec::new(), steps: false }
    }

    /// Which targets failed where and why, and which were not measured where.
    fn notes(&self, targets: &[&Target]) -> Vec<Entry> {
        let mut failures: Vec<(&str, &str, Vec<f64>)> = Vec::new();
        let mut missing: Vec<(Vec<&str>, Vec<f64>)> = Vec::new();
        for target in targets.iter().map(|target| target.name.as_str()) {
            let mut unmeasured = Vec::new();
            for (x, test) in &self.steps {
                match outcome(test, target) {
                    Outcome::Failed(reason) => {
                        match failures
                            .iter_mut()
                            .find(|(of, why, _)| (*of, *why) == (target, reason))
                        {
                            Some((_, _, at)) => at.push(*x),
                            None => failures.push((target, reason, vec![*x])),
                        }
                    }
                    Outcome::Missing => unmeasured.push(*x),
                    Outcome::Measured(_) => (),
                }
            }
            match missing.iter_mut().find(|(_, at)| *at == unmeasured) {
                Some((names, _)) => names.push(target),
                None => missing.push((vec![target], unmeasured)),
            }
        }
        let failed = failures.into_iter().map(|(target, reason, at)| Entry {
            sign: Sign::Cross,
            text: format!("{target} failed at {}: {reason}", self.steps_words(&at)),
        });
        missing.retain(|(_, at)| !at.is_empty());
        let missing = missing.into_iter().map(|(names, at)| Entry {
            sign: Sign::Marker(Look::Even),
            text: format!("{}: not measured at {}", names.join(", "), self.steps_words(&at)),
        });
        failed.chain(missing).collect()
    }

    fn steps_words(&self, at: &[f64]) -> String {
        if at.len() == self.steps.len() && at.len() > 1 {
            return "every step".to_owned();
        }
        let at: Vec<String> = at.iter().map(|x| exact(*x)).collect();
        format!("{} ({})", at.join(", "), self.dimension)
    }

    /// Steps by targets.
    pub(crate) fn table(&self, targets: &[&Target]) -> Table {
        let axis = self.axis();
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let columns: Vec<&str> = [axis.as_str()].into_iter().chain(names.iter().copied()).collect();
        let caption = format!(
            "{}: median (95 % interval of the geometric mean, number of samples)",
            self.title()
        );
        let mut table = Table::new(caption, &columns);
        for (x, test) in &self.steps {
            let mut row = vec![Cell::plain(exact(*x))];
            row.extend(names.iter().map(|name| outcome(test, name).cell(self.unit)));
            table.push(row);
        }
        table
    }
}

/// Whether a word is a unit of size.
fn is_size(word: &str) -> bool {
    matches!(word, "B" | "KB" | "kB" | "KiB" | "MB" | "MiB" | "GB" | "GiB")
}

/// A size given in one unit, in the unit at the end of a dimension. A thousand and 1024 are not
/// told apart where prefixes agree: texts of the time used KB for either.
pub(crate) fn convert(size: f64, from: &str, dimension: &str) -> Option<f64> {
    let to = dimension.rsplit(' ').next().filter(|unit| is_size(unit))?;
    let power = |unit: &str| match unit.chars().next() {
        Some('K' | 'k') => 1,
        Some('M') => 2,
        Some('G') => 3,
        _ => 0,
    };
    let step: f64 = if to.ends_with("iB") || power(from) == 1 { 1024.0 } else { 1000.0 };
    Some(size * step.powi(power(from) - power(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, copies: u32, at: &[(&str, f64)]) -> Test {
        let at = at.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Test { name: name.to_owned(), copies, at, unit: "s".to_owned(), ..Test::default() }
    }

    fn check(tests: &[Test], expected: &[(&str, &str, &str, usize)]) {
        let tests: Vec<&Test> = tests.iter().collect();
        let found = sweeps(&tests, "clients");
        let found: Vec<_> = found
            .iter()
            .map(|sweep| {
                (sweep.name, sweep.dimension.as_str(), sweep.fixed.as_str(), sweep.steps.len())
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_differs_most_is_swept() {
        check(
            &[test("untar", 1, &[]), test("untar", 5, &[]), test("edit", 1, &[])],
            &[("untar", "clients", "", 2), ("edit", "clients", "", 1)],
        );
        let sized = |disks, size| test("read", 6, &[("disks", disks), ("file size KB", size)]);
        check(
            &[sized(1.0, 4.0), sized(1.0, 16.0), sized(1.0, 64.0), sized(2.0, 4.0)],
            &[
                ("read", "file size KB", "disks 1, 6 clients", 3),
                ("read", "file size KB", "disks 2, 6 clients", 1),
            ],
        );
        check(&[sized(1.0, 4.0)], &[("read", "file size KB", "disks 1, 6 clients", 1)]);
        check(&[], &[]);
    }

    #[test]
    fn steps_grow() {
        let tests = [test("a", 9, &[]), test("a", 1, &[]), test("a", 4, &[])];
        let tests: Vec<&Test> = tests.iter().collect();
        let steps: Vec<f64> = sweeps(&tests, "clients")[0].steps.iter().map(|(x, _)| *x).collect();
        assert_eq!(steps, [1.0, 4.0, 9.0]);
    }

    #[test]
    fn published_sizes_are_put_on_the_axis_of_the_run() {
        assert_eq!(convert(60.0, "MB", "file size MB"), Some(60.0));
        assert_eq!(convert(60.0, "MB", "file size MiB"), Some(60.0));
        assert_eq!(convert(256.0, "KB", "file size B"), Some(262_144.0));
        assert_eq!(convert(60.0, "MB", "file size kB"), Some(60_000.0));
        assert_eq!(convert(60.0, "MB", "clients"), None);
    }
}
