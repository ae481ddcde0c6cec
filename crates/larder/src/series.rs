//! A recording between a daemon and a file: the content of a [`Batch`], and its rows.
//!
//! The daemon sends only slices in which something happened. [`Table`] inserts the others, so that
//! every connection has a row for every slice, and its times are evenly spaced, except for slices
//! that the daemon had to drop, which a column counts.

use std::fmt::Write;

use larder_rpc as rpc;
use serde::{Deserialize, Serialize};

/// Names of the columns; `larder stat --help` says what they mean.
pub(crate) const COLUMNS: &str =
    "time_us,connection,offered,completed,in_flight,window,backlog,retransmits,timeouts,dropped\n";

/// Finished slices of a connection. Its size is bounded by the memory of a recording, some 600 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    connection: usize,
    /// All slices before this one have been reported, in this batch or an earlier one.
    until: u64,
    /// In the order of time; slices in which nothing happened are left out.
    slices: Vec<Slice>,
}

/// What a connection did in one slice: a line of numbers, since there are thousands in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 9]", into = "[u64; 9]")]
struct Slice {
    /// How many slices there were before.
    number: u64,
    offered: u64,
    completed: u64,
    /// At the end, as are the next two.
    in_flight: u64,
    window: u64,
    backlog: u64,
    retransmits: u64,
    timeouts: u64,
    /// Slices directly before that were dropped; their events are in this one.
    dropped: u64,
}

impl From<[u64; 9]> for Slice {
    fn from(line: [u64; 9]) -> Slice {
        let [
            number,
            offered,
            completed,
            in_flight,
            window,
            backlog,
            retransmits,
            timeouts,
            dropped,
        ] = line;
        Slice {
            number,
            offered,
            completed,
            in_flight,
            window,
            backlog,
            retransmits,
            timeouts,
            dropped,
        }
    }
}

impl From<Slice> for [u64; 9] {
    fn from(one: Slice) -> [u64; 9] {
        [
            one.number,
            one.offered,
            one.completed,
            one.in_flight,
            one.window,
            one.backlog,
            one.retransmits,
            one.timeouts,
            one.dropped,
        ]
    }
}

impl From<&rpc::Slice> for Slice {
    fn from(one: &rpc::Slice) -> Slice {
        Slice {
            number: one.number,
            offered: one.offered,
            completed: one.completed,
            in_flight: one.in_flight.into(),
            window: one.window.into(),
            backlog: one.backlog.into(),
            retransmits: one.retransmits,
            timeouts: one.timeouts,
            dropped: one.dropped,
        }
    }
}

impl Slice {
    /// The slice after this one, in which nothing happens.
    fn quiet(&self) -> Slice {
        let Slice { number, in_flight, window, backlog, .. } = *self;
        Slice { number: number + 1, in_flight, window, backlog, ..Slice::default() }
    }
}

impl Batch {
    /// The content of a recording, a batch for each connection; nothing from slice `slices_max` on.
    pub(crate) fn all(
        series: &rpc::Series,
        slices_max: Option<u64>,
    ) -> impl Iterator<Item = Batch> {
        let end = slices_max.unwrap_or(u64::MAX);
        series.connections.iter().enumerate().map(move |(connection, slices)| {
            let slices = slices.iter().filter(|one| one.number < end).map(Slice::from).collect();
            Batch { connection, until: series.until.min(end), slices }
        })
    }
}

/// Batches as rows of text.
#[derive(Debug)]
pub(crate) struct Table {
    slice_us: u64,
    /// The slice of each connection that was written last.
    last: Vec<Option<Slice>>,
    /// Rows made.
    pub(crate) rows: u64,
    /// Slices without a row, because the daemon dropped them.
    pub(crate) dropped: u64,
}

impl Table {
    /// A table of slices of `slice_us` microseconds.
    pub(crate) fn new(slice_us: u64) -> Table {
        Table { slice_us, last: Vec::new(), rows: 0, dropped: 0 }
    }

    /// The rows of the next batch.
    pub(crate) fn rows_of(&mut self, batch: &Batch) -> String {
        let (mut text, connection) = (String::new(), batch.connection);
        self.last.resize(self.last.len().max(connection + 1), None);
        for slice in &batch.slices {
            self.fill(&mut text, connection, slice.number.saturating_sub(slice.dropped));
            self.row(&mut text, connection, *slice);
            self.dropped += slice.dropped;
        }
        self.fill(&mut text, connection, batch.until);
        text
    }

    /// Writes the slices before slice `until` in which nothing happened.
    fn fill(&mut self, text: &mut String, connection: usize, until: u64) {
        while let Some(last) = self.last[connection].filter(|last| last.number + 1 < until) {
            self.row(text, connection, last.quiet());
        }
    }

    fn row(&mut self, text: &mut String, connection: usize, one: Slice) {
        let Slice { offered, completed, in_flight, window, backlog, .. } = one;
        let Slice { number, retransmits, timeouts, dropped, .. } = one;
        let time_us = number * self.slice_us;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{time_us},{connection},{offered},{completed},{in_flight},{window},{backlog},{retransmits},{timeouts},{dropped}"
        );
        self.last[connection] = Some(one);
        self.rows += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slice with calls offered and in flight.
    fn slice(number: u64, offered: u64, in_flight: u64) -> Slice {
        Slice { number, offered, in_flight, window: 9, ..Slice::default() }
    }

    fn batch(connection: usize, until: u64, slices: &[Slice]) -> Batch {
        Batch { connection, until, slices: slices.to_vec() }
    }

    fn check(table: &mut Table, batch: &Batch, expected: &[&str]) {
        let rows = table.rows_of(batch);
        assert_eq!(rows.lines().collect::<Vec<_>>(), expected, "{batch:?}");
        let columns = COLUMNS.split(',').count();
        assert!(rows.lines().all(|row| row.split(',').count() == columns));
    }

    #[test]
    fn every_connection_has_a_row_for_every_slice() {
        let mut table = Table::new(100);
        check(&mut table, &batch(0, 0, &[]), &[]);
        check(
            &mut table,
            &batch(0, 3, &[slice(0, 2, 1), slice(2, 1, 2)]),
            &["0,0,2,0,1,9,0,0,0,0", "100,0,0,0,1,9,0,0,0,0", "200,0,1,0,2,9,0,0,0,0"],
        );
        check(
            &mut table,
            &batch(1, 2, &[slice(0, 0, 0)]),
            &["0,1,0,0,0,9,0,0,0,0", "100,1,0,0,0,9,0,0,0,0"],
        );
        // A slice may be reported early, and is not reported again then.
        check(
            &mut table,
            &batch(0, 4, &[slice(4, 1, 3)]),
            &["300,0,0,0,2,9,0,0,0,0", "400,0,1,0,3,9,0,0,0,0"],
        );
        check(&mut table, &batch(0, 5, &[]), &[]);
        check(&mut table, &batch(0, 6, &[]), &["500,0,0,0,3,9,0,0,0,0"]);
        assert_eq!((table.rows, table.dropped), (8, 0));
    }

    #[test]
    fn dropped_slices_have_no_rows_and_are_counted() {
        let mut table = Table::new(1000);
        let after = Slice { dropped: 3, ..slice(5, 7, 0) };
        check(
            &mut table,
            &batch(0, 7, &[slice(0, 1, 1), after]),
            &[
                "0,0,1,0,1,9,0,0,0,0",
                "1000,0,0,0,1,9,0,0,0,0",
                "5000,0,7,0,0,9,0,0,0,3",
                "6000,0,0,0,0,9,0,0,0,0",
            ],
        );
        assert_eq!((table.rows, table.dropped), (4, 3));
    }

    #[test]
    fn a_recording_ends_where_it_is_to_end() {
        let one = |number| rpc::Slice { number, ..rpc::Slice::default() };
        let series = rpc::Series { until: 9, connections: vec![vec![one(0), one(7), one(8)]] };
        let batches: Vec<_> = Batch::all(&series, Some(8)).collect();
        assert_eq!(batches, [batch(0, 8, &[Slice::default(), Slice::default().at(7)])]);
        assert!(Batch::all(&series, None).all(|batch| batch.until == 9));
    }

    #[test]
    fn a_slice_is_a_line_of_numbers_in_the_order_of_the_columns() {
        let line = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        let slice = Slice::from(line);
        assert_eq!(serde_json::to_string(&slice).unwrap(), "[1,2,3,4,5,6,7,8,9]");
        assert_eq!(<[u64; 9]>::from(slice), line);
        let row = Table::new(2).rows_of(&batch(0, 0, &[slice.at(9)]));
        assert_eq!(row, "18,0,2,3,4,5,6,7,8,9\n");
    }

    impl Slice {
        fn at(self, number: u64) -> Slice {
            Slice { number, ..self }
        }
    }
}
