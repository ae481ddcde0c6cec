//! Activity of connections over time, as `larder stat --series` records it: one chart of events,
//! one of states.
//!
//! A mean hides what a series shows: a window that flips between 1 and 2, a backlog that comes and
//! goes. So slices are put together only where there are more than a chart can show, and then the
//! greatest of the states and the sum of the events is kept.

use anyhow::{Context, Result, ensure};

use super::chart::lines::{Axis, Curve, Lines, Point};
use super::chart::{Chart, Heading, Look};
use super::document::{Block, Cell, Facts, Figure, Section, Table};
use super::number::{exact, grouped};

/// How a recording begins.
const COLUMNS: &str =
    "time_us,connection,offered,completed,in_flight,window,backlog,retransmits,timeouts,dropped";

/// Places of a chart, at most.
const PLACES_MAX: usize = 300;

/// What is counted in a slice, with its column.
const EVENTS: [(&str, usize); 4] =
    [("new calls", 2), ("answered", 3), ("sent again", 7), ("timed out", 8)];

/// What is so at the end of a slice, with its column.
const STATES: [(&str, usize); 3] = [("in flight", 4), ("window", 5), ("backlog", 6)];

/// A recording of `larder stat --series`.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    name: String,
    /// The numbers of a row, by column.
    rows: Vec<Vec<u64>>,
}

impl Series {
    /// Reads a recording.
    ///
    /// # Errors
    /// If it is none, with the line.
    pub fn parse(name: &str, text: &str) -> Result<Series> {
        let mut lines = text.lines();
        let columns = COLUMNS.split(',').count();
        ensure!(lines.next() == Some(COLUMNS), "{name} is no recording of larder stat --series");
        let row = |(index, line): (usize, &str)| {
            let row: Result<Vec<u64>, _> = line.split(',').map(str::parse).collect();
            let row = row.with_context(|| format!("{name}, line {}", index + 2))?;
            ensure!(row.len() == columns, "{name}, line {}: {} columns", index + 2, row.len());
            Ok(row)
        };
        let rows = lines.enumerate().map(row).collect::<Result<_>>()?;
        Ok(Series { name: name.to_owned(), rows })
    }

    fn connections(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.rows.iter().map(|row| row[1]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A section of recordings; nothing if there are none.
pub(crate) fn section(all: &[Series]) -> Option<Section> {
    let blocks: Vec<Block> = all
        .iter()
        .flat_map(|series| {
            let connections = series.connections();
            connections.into_iter().flat_map(|connection| figures(series, connection))
        })
        .collect();
    (!blocks.is_empty()).then(|| Section {
        id: "series".to_owned(),
        title: "What connections did over time".to_owned(),
        lead: "Recorded by larder stat --series.".to_owned(),
        blocks,
    })
}

fn figures(series: &Series, connection: u64) -> [Block; 2] {
    let rows: Vec<&Vec<u64>> = series.rows.iter().filter(|row| row[1] == connection).collect();
    let every = rows.len().div_ceil(PLACES_MAX).max(1);
    let slice_us = match rows.as_slice() {
        [one, two, ..] => two[0].saturating_sub(one[0]),
        _ => 0,
    };
    let title = |what: &str| format!("{}, connection {connection}: {what}", series.name);
    let events = chart(&rows, every, &EVENTS, title("calls"), "calls", |chunk, column| {
        chunk.iter().map(|row| row[column]).sum()
    });
    let states =
        chart(&rows, every, &STATES, title("window and backlog"), "calls", |chunk, column| {
            chunk.iter().map(|row| row[column]).max().unwrap_or(0)
        });
    let width = format!("{} ms", exact(slice_us as f64 * every as f64 / 1e3));
    let dropped: u64 = rows.iter().map(|row| row[9]).sum();
    let dropped = match dropped {
        0 => String::new(),
        count => format!(" {} slices were dropped by the recorder.", grouped(count as f64)),
    };
    let events_caption = format!("Calls in each {width}.{dropped}");
    let states_caption = format!("The most at the end of any slice within each {width}.{dropped}");
    let figure = |chart, caption, table| {
        Block::Figure(Box::new(Figure {
            chart: Chart::Lines(chart),
            caption,
            published: Facts::default(),
            tables: vec![table],
        }))
    };
    [
        figure(
            events,
            events_caption,
            table(&rows, &EVENTS, "Sums", |all, column| all.iter().map(|row| row[column]).sum()),
        ),
        figure(
            states,
            states_caption,
            table(&rows, &STATES, "Greatest", |all, column| {
                all.iter().map(|row| row[column]).max().unwrap_or(0)
            }),
        ),
    ]
}

/// What one number says of several rows.
type Together = fn(&[&Vec<u64>], usize) -> u64;

fn chart(
    rows: &[&Vec<u64>],
    every: usize,
    columns: &[(&str, usize)],
    title: String,
    measure: &str,
    together: Together,
) -> Lines {
    let curve = |(index, (name, column)): (usize, &(&str, usize))| {
        let point = |chunk: &[&Vec<u64>]| Point {
            x: chunk[0][0] as f64 / 1e6,
            y: Some(together(chunk, *column) as f64),
            interval: None,
            hover: String::new(),
        };
        let points = rows.chunks(every).map(point).collect();
        let look = Look::Series(index);
        Curve { name: (*name).to_owned(), look, points, knees: Vec::new(), steps: true }
    };
    let shown: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    Lines {
        heading: Heading {
            description: format!(
                "Curves over time of {}. Their sums follow as a table.",
                shown.join(", ")
            ),
            title,
        },
        x: Axis { title: "time".to_owned(), unit: "s".to_owned(), ..Axis::default() },
        y: Axis { title: measure.to_owned(), from_zero: true, ..Axis::default() },
        curves: columns.iter().enumerate().map(curve).collect(),
        marks: Vec::new(),
        notes: Vec::new(),
    }
}

fn table(rows: &[&Vec<u64>], columns: &[(&str, usize)], what: &str, together: Together) -> Table {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let names: Vec<&str> = ["of all slices"].into_iter().chain(names).collect();
    let mut table = Table::new(format!("{what} over {} slices", rows.len()), &names);
    let numbers = columns.iter().map(|(_, column)| grouped(together(rows, *column) as f64));
    let cells = numbers.map(Cell::plain);
    table.push(std::iter::once(Cell::plain(what)).chain(cells).collect());
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_becomes_two_charts_for_each_connection() {
        let rows: String = (0..1000)
            .map(|at| format!("{},{},2,1,{},4,0,0,0,0\n", at / 2 * 1000, at % 2, at % 7))
            .collect();
        let series = Series::parse("a.csv", &format!("{COLUMNS}\n{rows}")).unwrap();
        let section = section(&[series]).unwrap();
        assert_eq!(section.blocks.len(), 4);
        let Block::Figure(figure) = &section.blocks[0] else { panic!() };
        assert_eq!(figure.tables[0].rows[0][1].text, "1,000");
        let Chart::Lines(lines) = &figure.chart else { panic!() };
        assert!(lines.curves[0].points.len() <= PLACES_MAX);
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        for (text, word) in [
            ("", "no recording"),
            ("a,b\n1,2\n", "no recording"),
            (&format!("{COLUMNS}\n1,2\n"), "line 2"),
            (&format!("{COLUMNS}\n1,2,x,4,5,6,7,8,9,10\n"), "line 2"),
        ] {
            let error = format!("{:#}", Series::parse("a.csv", text).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        assert!(section(&[Series::parse("a", COLUMNS).unwrap()]).is_none());
    }
}
