//! The summary before the suites: what the runs show, under which conditions, what was interrupted,
//! which targets were faster.

use crate::record::{Machine, Run};

use super::chart::rows::{Base, Group, Mark, Row, Rows};
use super::chart::{Chart, Entry, Heading, Look, Sign};
use super::compare::{SuiteRatio, Verdict, pairs, ratio_words, suite_ratio};
use super::conclusions::{self, title};
use super::document::{Block, Cell, Document, Facts, Figure, Section, Table, Tone};
use super::kinds::Kind;
use super::number::{short, three, value};
use super::suite::{date, section};

/// A report of runs that are fit to be computed with.
pub(crate) fn document(runs: &[Run]) -> Document {
    let mut conditions = Section {
        id: "conditions".to_owned(),
        title: "Conditions".to_owned(),
        ..Section::default()
    };
    if runs.is_empty() {
        conditions.blocks.push(Block::Warning("There is no run to report.".to_owned()));
    } else {
        let machine = same_machine(runs).map(machine_words);
        conditions.blocks.extend(machine.map(Block::Text));
        conditions.blocks.push(Block::Table(overview(runs)));
    }
    conditions.blocks.extend(absent(runs));
    let mut opening: Vec<Section> = conclusions::section(runs).into_iter().collect();
    opening.push(conditions);
    // What was not finished is said before anything else.
    opening[0].blocks.splice(0..0, interrupted(runs));
    opening.extend(summary(runs));
    Document {
        title: "larder bench".to_owned(),
        lead: lead(runs),
        opening,
        sections: sections(runs),
    }
}

/// A section per run; runs of one suite are told apart in their titles.
fn sections(runs: &[Run]) -> Vec<Section> {
    let mut sections = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let mut section = section(run, index);
        if runs.iter().filter(|other| other.suite == run.suite).count() > 1 {
            let link = run.link.as_ref().map(|link| format!("{}, ", link.asked));
            let link = link.unwrap_or_default();
            section.title =
                format!("{} ({}, {link}{})", section.title, run.size, date(&run.started));
        }
        sections.push(section);
    }
    sections
}

fn lead(runs: &[Run]) -> String {
    let Some(first) = runs.iter().min_by(|a, b| a.started.cmp(&b.started)) else {
        return "Published workloads on plain directories, measured with the same code for everybody."
            .to_owned();
    };
    let mut names: Vec<&str> = Vec::new();
    for run in runs {
        if !names.contains(&run.suite.as_str()) {
            names.push(&run.suite);
        }
    }
    let first = date(&first.started);
    format!(
        "Published workloads on plain directories, measured with the same code for everybody: {}. \
         Begun on {first}.",
        names.join(", ")
    )
}

/// Which targets are missing from which runs.
fn absent(runs: &[Run]) -> Option<Block> {
    let who = |run: &Run| format!("{}: {}", title(run), run.absent.join("; "));
    let list: Vec<String> = runs.iter().filter(|run| !run.absent.is_empty()).map(who).collect();
    (!list.is_empty()).then(|| Block::List("Was to be measured and was not".to_owned(), list))
}

fn interrupted(runs: &[Run]) -> Option<Block> {
    let names: Vec<String> = runs
        .iter()
        .filter(|run| run.interrupted)
        .map(|run| format!("{} ({})", run.suite, run.size))
        .collect();
    let text = format!(
        "Interrupted: {}. What these show was finished before; the rest was not measured.",
        names.join(", ")
    );
    (!names.is_empty()).then_some(Block::Warning(text))
}

/// The machine, if all runs were made on the same; its load is told with each run.
fn same_machine(runs: &[Run]) -> Option<&Machine> {
    let first = &runs.first()?.machine;
    let same = |run: &Run| Machine { load: first.load, ..run.machine.clone() } == *first;
    runs.iter().all(same).then_some(first)
}

fn machine_words(machine: &Machine) -> String {
    format!(
        "{}: {} × {}, {} of memory, {}, kernel {}",
        machine.host,
        machine.cpus,
        machine.cpu,
        value(machine.memory_bytes as f64, "B"),
        machine.distribution,
        machine.kernel
    )
}

/// A row per run.
fn overview(runs: &[Run]) -> Table {
    let several = same_machine(runs).is_none();
    let mut columns =
        vec!["suite", "begun", "measured by", "load", "link asked for", "link measured"];
    columns.extend(several.then_some("machine"));
    let mut table = Table::new("The runs of this report", &columns).open();
    for run in runs {
        let (asked, measured) = match &run.link {
            Some(link) => (
                format!("{} ({})", link.asked, link.kind),
                format!(
                    "{}, round trip {}",
                    value(link.rate_bits_per_s, "bit/s"),
                    value(link.round_trip_us, "us")
                ),
            ),
            None => ("none made".to_owned(), "not measured".to_owned()),
        };
        let state = if run.interrupted { ", interrupted" } else { "" };
        let begun = format!("{}, took {}", date(&run.started), value(run.elapsed_s, "s"));
        let mut row = vec![
            Cell::plain(format!("{}{state}", title(run))),
            Cell::plain(begun),
            Cell::plain(run.larder.clone()),
            Cell::plain(short(run.machine.load)),
            Cell::plain(asked),
            Cell::plain(measured),
        ];
        row.extend(several.then(|| Cell::plain(machine_words(&run.machine))));
        table.push(row);
    }
    table
}

/// Ratios of all runs; `None` if there is no target to compare with.
fn summary(runs: &[Run]) -> Option<Section> {
    let compared: Vec<(&Run, Vec<Comparison<'_>>)> = runs
        .iter()
        .map(|run| (run, comparisons(run)))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    if compared.is_empty() {
        return None;
    }
    let mut table = Table::new(
        "Ratio of times by kind of test (below 1: less time)",
        &["suite", "kind", "who against whom", "ratio (95 % interval)", "in words", "tests"],
    )
    .open();
    for (run, comparisons) in &compared {
        for comparison in comparisons {
            table.push(comparison.cells(run));
        }
    }
    let method = "In each round the geometric mean of the ratios of the tests of a kind that both passed, \
                  all with the same weight. Tests that the link bounds are never averaged with those \
                  whose bytes are held here. Shown is the median of the rounds; the 95 % interval is of \
                  their geometric mean. A difference is called one only if the interval excludes 1. A \
                  test that either failed has no ratio: it is counted as failed, not as fast.";
    let figure = Figure {
        chart: Chart::Rows(chart(&compared)),
        caption: method.to_owned(),
        published: Facts::default(),
        tables: vec![table],
    };
    Some(Section {
        id: "summary".to_owned(),
        title: "Who was faster".to_owned(),
        blocks: vec![Block::Figure(Box::new(figure))],
        ..Section::default()
    })
}

/// Two targets of a run.
struct Comparison<'a> {
    kind: Kind,
    ours: &'a str,
    theirs: &'a str,
    found: SuiteRatio,
}

fn comparisons(run: &Run) -> Vec<Comparison<'_>> {
    let of = |kind: Kind| {
        pairs(run).into_iter().map(move |(ours, theirs)| {
            let found = suite_ratio(run, kind, ours, theirs);
            Comparison { kind, ours, theirs, found }
        })
    };
    Kind::ALL.into_iter().flat_map(of).filter(|one| one.found.tests > 0).collect()
}

impl Comparison<'_> {
    fn cells(&self, run: &Run) -> Vec<Cell> {
        let (ratio, words, tone) = match &self.found.ratio {
            Some(ratio) => {
                let verdict = Verdict::of(ratio);
                let words = match verdict {
                    Verdict::Faster | Verdict::Slower => {
                        format!("{} {}", self.ours, verdict.words())
                    }
                    Verdict::NoDifference | Verdict::NotConcluded => verdict.words().to_owned(),
                };
                (ratio_words(ratio), words, verdict.tone())
            }
            None => ("none".to_owned(), self.why_none(), Tone::Missing),
        };
        vec![
            Cell::plain(title(run)),
            Cell::plain(self.kind.words()),
            Cell::plain(format!("{} against {}", self.ours, self.theirs)),
            Cell { text: ratio, tone },
            Cell { text: words, tone },
            Cell {
                text: self.tests(),
                tone: if self.failed() { Tone::Failed } else { Tone::Plain },
            },
        ]
    }

    fn failed(&self) -> bool {
        self.found.failed_ours + self.found.failed_theirs > 0
    }

    fn why_none(&self) -> String {
        if self.found.counted > 0 {
            "no round has all tests".to_owned()
        } else {
            "no test that both passed".to_owned()
        }
    }

    /// How many tests the ratio is of, and what is not in it.
    fn tests(&self) -> String {
        let found = &self.found;
        let mut text = format!(
            "{} of {}: faster in {}, slower in {}",
            found.counted, found.tests, found.faster, found.slower
        );
        for (name, failed) in [(self.ours, found.failed_ours), (self.theirs, found.failed_theirs)] {
            if failed > 0 {
                text = format!("{text}; {name} failed {failed}");
            }
        }
        text
    }

    fn row(&self) -> Row {
        let (look, mark, value) = match &self.found.ratio {
            Some(ratio) => {
                let verdict = Verdict::of(ratio);
                let words = format!("{} {}", three(ratio.median), verdict.short());
                (verdict.look(), Mark::Dot(ratio.median, ratio.interval), words)
            }
            None => (Look::Even, Mark::Missing(self.why_none()), String::new()),
        };
        let also = if value.is_empty() { String::new() } else { self.left_out() };
        Row { name: self.theirs.to_owned(), look, mark, value, also }
    }

    /// How many tests are in the ratio, if not all are.
    fn left_out(&self) -> String {
        let found = &self.found;
        let failed = found.failed_ours + found.failed_theirs;
        match (found.counted == found.tests, failed) {
            (true, _) => String::new(),
            (false, 0) => format!("{} of {} tests", found.counted, found.tests),
            (false, _) => format!("{} of {} tests, {failed} failed", found.counted, found.tests),
        }
    }
}

fn chart(compared: &[(&Run, Vec<Comparison<'_>>)]) -> Rows {
    let mut groups: Vec<Group> = Vec::new();
    for (run, comparisons) in compared {
        for (index, comparison) in comparisons.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &comparisons[before]);
            if before.is_none_or(|one| (one.ours, one.kind) != (comparison.ours, comparison.kind)) {
                let same = compared.iter().filter(|(other, _)| other.suite == run.suite).count();
                let name = if same > 1 { title(run) } else { run.suite.clone() };
                let note = format!("{}: {} against", comparison.kind.words(), comparison.ours);
                groups.push(Group { name, note, rows: Vec::new() });
            }
            if let Some(group) = groups.last_mut() {
                group.rows.push(comparison.row());
            }
        }
    }
    let entry = |look: Look, text: &str| Entry { sign: Sign::Marker(look), text: text.to_owned() };
    Rows {
        heading: Heading {
            title: "Ratio of times by kind of test".to_owned(),
            description:
                "Points with 95 % intervals around 1: to the left less time was taken, to the \
                          right more. The same numbers follow as a table."
                    .to_owned(),
        },
        axis: "time ÷ time of the other; ← less time · more →".to_owned(),
        unit: String::new(),
        base: Base::One,
        groups,
        legend: vec![
            entry(Look::Better, "faster"),
            entry(Look::Worse, "slower"),
            entry(Look::Even, "no difference shown"),
        ],
    }
}
