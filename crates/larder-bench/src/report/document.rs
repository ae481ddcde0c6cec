//! A report as data: sections of blocks, which HTML and Markdown both write out. Both have the same
//! content, except that Markdown leaves out charts, but not their tables.

use super::chart::Chart;

/// A report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Document {
    /// Title.
    pub(crate) title: String,
    /// One sentence below it.
    pub(crate) lead: String,
    /// What comes before the sections: conditions, summary.
    pub(crate) opening: Vec<Section>,
    /// One per run.
    pub(crate) sections: Vec<Section>,
}

/// A section.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Section {
    /// Unique in the report; letters, digits, dashes.
    pub(crate) id: String,
    /// Heading.
    pub(crate) title: String,
    /// A line below the heading; may be empty.
    pub(crate) lead: String,
    /// Content.
    pub(crate) blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    /// A paragraph.
    Text(String),
    /// A paragraph that must not be missed.
    Warning(String),
    /// A command line.
    Command(String),
    /// Things that are listed under a small heading, which may be empty.
    List(String, Vec<String>),
    /// Names and values.
    Pairs(Vec<(String, String)>),
    /// A table.
    Table(Table),
    /// A chart with what belongs to it.
    Figure(Box<Figure>),
}

/// A chart with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The chart.
    pub(crate) chart: Chart,
    /// What to know to read it: conditions, link.
    pub(crate) caption: String,
    /// What was published of the same.
    pub(crate) published: Facts,
    /// The same numbers as tables.
    pub(crate) tables: Vec<Table>,
}

/// What was published.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// When: `Published in 1998`.
    pub(crate) title: String,
    /// Sentences; there may be none.
    pub(crate) sentences: Vec<String>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// What it shows.
    pub(crate) caption: String,
    /// Whether a page shows only its caption until it is opened.
    pub(crate) folded: bool,
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// Rows of as many cells.
    pub(crate) rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    /// What it says: all of it, without its tone.
    pub(crate) text: String,
    /// How it is coloured.
    pub(crate) tone: Tone,
}

/// How something is coloured. What it means stands in the text as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Not at all.
    #[default]
    Plain,
    /// Shown to be faster.
    Better,
    /// Shown to be slower.
    Worse,
    /// Failed.
    Failed,
    /// Not measured.
    Missing,
}

impl Cell {
    /// A cell without colour.
    pub(crate) fn plain(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain }
    }
}

impl Table {
    /// A table with the columns given.
    pub(crate) fn new(caption: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Table { caption: caption.into(), folded: true, columns, rows: Vec::new() }
    }

    /// The same, shown at once.
    pub(crate) fn open(mut self) -> Table {
        self.folded = false;
        self
    }

    /// Appends a row.
    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }
}
