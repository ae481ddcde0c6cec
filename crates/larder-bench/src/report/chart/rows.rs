//! Horizontal rows in groups: bars from zero, ratios around one, stacked parts, published points.
//!
//! Every row says its name and its value in words, so that a row that has no bar (it failed, or was
//! not measured) stands in its place as a sentence. Bars begin at zero on a linear axis. Ratios are
//! on a logarithmic axis around one, where twice and half are equally far.

use std::ops::Range;

use super::super::number::{Shown, short, shown};
use super::super::scale::{Scale, apart, ends};
use super::super::svg::{Anchor, Svg};
use super::super::text::{fit, width};
use super::{Entry, FONT, Heading, Look, Sign, WIDE, draw_legend};

/// A chart of rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    /// What it is called.
    pub(crate) heading: Heading,
    /// What the axis shows.
    pub(crate) axis: String,
    /// Unit of its values, as in a record; `%` for shares of a hundred.
    pub(crate) unit: String,
    /// Where bars begin.
    pub(crate) base: Base,
    /// Rows that belong together.
    pub(crate) groups: Vec<Group>,
    /// What looks mean, where names do not say it.
    pub(crate) legend: Vec<Entry>,
}

/// Where bars begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// At zero, on a linear axis.
    Zero,
    /// At one, on a logarithmic axis: ratios of times.
    One,
}

/// Rows that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Group {
    /// Name.
    pub(crate) name: String,
    /// What to know about it; may be empty.
    pub(crate) note: String,
    /// Its rows.
    pub(crate) rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Name.
    pub(crate) name: String,
    /// Look of its mark.
    pub(crate) look: Look,
    /// What is drawn.
    pub(crate) mark: Mark,
    /// Its value in words; empty if the mark is words.
    pub(crate) value: String,
    /// A second value, where there is room.
    pub(crate) also: String,
}

/// What is drawn in a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mark {
    /// A bar from the base, with the interval of its value.
    Bar(f64, Option<(f64, f64)>),
    /// A point with the interval of its value.
    Dot(f64, Option<(f64, f64)>),
    /// Published values.
    Points(Vec<f64>),
    /// Parts of a bar: look, value, what a pointer over it shows.
    Parts(Vec<(Look, f64, String)>),
    /// It has no value: it failed.
    Failed(String),
    /// It has no value for another reason.
    Missing(String),
}

const ROW: f64 = 18.0;
const BAR: f64 = 11.0;
const GAP: f64 = 12.0;
/// How much wider names of groups are drawn than other text: they are bold, and a little larger.
const BOLD: f64 = 1.22;
/// Ticks and words of the axis above the rows.
const HEAD: f64 = 40.0;
/// From this height on the ticks are written below the rows too.
const TALL: f64 = 420.0;
/// Intervals that reach further than such a factor beyond all values are cut off: of two samples
/// they would leave nothing else to see. On a linear axis, and on a logarithmic one.
const REACH: [f64; 2] = [1.25, 3.0];

/// Where things stand, in pixels from the left.
struct Columns {
    /// Names of groups; empty if they stand on lines of their own.
    group: Range<f64>,
    label: Range<f64>,
    bars: Range<f64>,
    value: Range<f64>,
    /// Whether second values are shown.
    both: bool,
}

impl Rows {
    /// Draws it; gives the height.
    pub(crate) fn draw(&self, svg: &mut Svg, width: f64) -> f64 {
        let columns = self.columns(width);
        let scale = self.scale(&columns.bars);
        let heights: Vec<f64> = self.groups.iter().map(|group| height(group, &columns)).collect();
        let bottom = HEAD + heights.iter().sum::<f64>();
        let unit = shown(scale.high(), &self.unit);
        self.draw_axis(svg, &scale, unit, &columns, bottom);
        let mut top = HEAD;
        for (group, height) in self.groups.iter().zip(&heights) {
            self.draw_group(svg, group, &scale, &columns, top);
            top += height;
        }
        let end = if bottom > TALL { bottom + 22.0 } else { bottom + 4.0 };
        let mut legend = self.legend.clone();
        legend.extend(self.cut_note(&scale));
        if legend.is_empty() {
            return end;
        }
        draw_legend(svg, &legend, end + 6.0, (4.0, width)) + 4.0
    }

    /// What to say of intervals that go on beyond the axis.
    fn cut_note(&self, scale: &Scale) -> Option<Entry> {
        let mut rows = self.groups.iter().flat_map(|group| &group.rows);
        let cut = rows.any(|row| {
            row.mark.interval().is_some_and(|(low, high)| !scale.holds(low) || !scale.holds(high))
        });
        let text = "whisker without a cap: the 95 % interval goes on beyond the axis".to_owned();
        cut.then_some(Entry { sign: Sign::Whisker, text })
    }

    fn columns(&self, width: f64) -> Columns {
        let wide = width >= WIDE;
        let rows = || self.groups.iter().flat_map(|group| &group.rows);
        let widest = |texts: &mut dyn Iterator<Item = String>| {
            texts.map(|text| super::super::text::width(&text, FONT)).fold(0.0, f64::max).ceil()
        };
        let names = widest(&mut self.groups.iter().map(|group| group.name.clone())) * BOLD;
        let notes = widest(&mut self.groups.iter().map(|group| group.note.clone()));
        let group =
            if wide && names > 0.0 { names.max(notes).clamp(60.0, 180.0) + 14.0 } else { 0.0 };
        let label = widest(&mut rows().map(|row| row.name.clone()));
        let label = (label + 10.0).min(if wide { 190.0 } else { 104.0 });
        let value = widest(&mut rows().map(|row| row.words(wide)));
        let value = (value + 12.0).min(width * 0.4);
        Columns {
            group: 0.0..group,
            label: group..group + label,
            bars: group + label + 4.0..width - value - 8.0,
            value: width - value..width,
            both: wide,
        }
    }

    fn scale(&self, bars: &Range<f64>) -> Scale {
        let rows = || self.groups.iter().flat_map(|group| &group.rows);
        let (least, most) = ends(rows().flat_map(|row| row.mark.values()));
        let reach =
            rows().filter_map(|row| row.mark.interval()).flat_map(|(low, high)| [low, high]);
        let (low, high) = ends(reach.chain([least, most]));
        let reach = REACH[usize::from(self.base == Base::One)];
        let (low, high) = (low.max(least / reach), high.min(most * reach));
        match self.base {
            Base::Zero => Scale::linear(high, bars.start, bars.end),
            // Small differences must not fill the chart.
            Base::One => Scale::log(low.min(0.7), high.max(1.4), bars.start, bars.end),
        }
    }

    fn draw_axis(&self, svg: &mut Svg, scale: &Scale, unit: Shown<'_>, at: &Columns, bottom: f64) {
        let length = at.bars.end - at.bars.start;
        let ticks = scale.ticks(if length > 250.0 { 7 } else { 4 });
        let places: Vec<f64> = ticks.iter().map(|tick| scale.at(*tick)).collect();
        let labels: Vec<String> = ticks.iter().map(|tick| short(tick / unit.size)).collect();
        let widths: Vec<f64> = labels.iter().map(|label| width(label, FONT)).collect();
        for index in apart(&places, &widths) {
            let x = places[index];
            svg.line("grid", (x, HEAD - 6.0), (x, bottom));
            svg.text("tick", (x, HEAD - 10.0), Anchor::Middle, &labels[index]);
            if bottom > TALL {
                svg.text("tick", (x, bottom + 14.0), Anchor::Middle, &labels[index]);
            }
        }
        let base = if self.base == Base::One { scale.at(1.0) } else { at.bars.start };
        svg.line("axis", (base, HEAD - 6.0), (base, bottom));
        let title = match (unit.name, self.base) {
            (_, Base::One) | ("", _) => self.axis.clone(),
            (name, Base::Zero) => format!("{} ({name})", self.axis),
        };
        let all = at.label.start..at.value.end;
        let fits = width(&title, FONT) <= length;
        let left = if fits { at.bars.start } else { all.start };
        svg.text("axis-title", (left, 12.0), Anchor::Start, &fit(&title, all.end - left, FONT));
    }

    fn draw_group(&self, svg: &mut Svg, group: &Group, scale: &Scale, at: &Columns, top: f64) {
        let mut y = top + GAP / 2.0;
        svg.line("rule", (0.0, top), (at.value.end, top));
        if at.group.is_empty() {
            y += draw_heading(svg, group, at, y);
        } else {
            let room = at.group.end - at.group.start - 8.0;
            svg.text("group", (0.0, y + 13.0), Anchor::Start, &fit(&group.name, room, FONT * BOLD));
            svg.text("note", (0.0, y + 28.0), Anchor::Start, &fit(&group.note, room, FONT));
        }
        for row in &group.rows {
            self.draw_row(svg, row, scale, at, y);
            y += ROW;
        }
    }

    fn draw_row(&self, svg: &mut Svg, row: &Row, scale: &Scale, at: &Columns, y: f64) {
        let base_line = y + 13.0;
        let room = at.label.end - at.label.start - 4.0;
        svg.text("label", (at.label.start, base_line), Anchor::Start, &fit(&row.name, room, FONT));
        let middle = y + ROW / 2.0;
        let hover = format!("{}: {}", row.name, row.words(true));
        let class = row.look.class();
        match &row.mark {
            Mark::Bar(value, interval) => {
                let base = if self.base == Base::One { scale.at(1.0) } else { at.bars.start };
                let x = scale.at(*value);
                let size = ((x - base).abs().max(1.0), BAR);
                svg.rect(&format!("bar {class}"), (x.min(base), middle - BAR / 2.0), size, &hover);
                draw_interval(svg, "whisker", scale, *interval, middle);
            }
            Mark::Dot(value, interval) => {
                draw_interval(svg, &format!("reach {class}"), scale, *interval, middle);
                let place = (scale.at(*value), middle);
                svg.path(&format!("mark {class}"), &row.look.marker(place), &hover);
            }
            Mark::Points(values) => {
                for value in values {
                    let place = (scale.at(*value), middle);
                    svg.path(&format!("mark {class}"), &row.look.marker(place), &hover);
                }
            }
            Mark::Parts(parts) => draw_parts(svg, scale, parts, middle),
            Mark::Failed(words) => draw_words(svg, ("words-failed", BOLD), words, at, base_line),
            Mark::Missing(words) => draw_words(svg, ("words", 1.0), words, at, base_line),
        }
        let words = fit(&row.words(at.both), at.value.end - at.value.start, FONT);
        svg.text("value", (at.value.start, base_line), Anchor::Start, &words);
    }
}

impl Row {
    fn words(&self, both: bool) -> String {
        if both && !self.also.is_empty() {
            format!("{} · {}", self.value, self.also)
        } else {
            self.value.clone()
        }
    }
}

impl Mark {
    fn values(&self) -> Vec<f64> {
        match self {
            Mark::Bar(value, _) | Mark::Dot(value, _) => vec![*value],
            Mark::Points(values) => values.clone(),
            Mark::Parts(parts) => vec![parts.iter().map(|(_, value, _)| value).sum()],
            Mark::Failed(_) | Mark::Missing(_) => Vec::new(),
        }
    }

    fn interval(&self) -> Option<(f64, f64)> {
        match self {
            Mark::Bar(_, interval) | Mark::Dot(_, interval) => *interval,
            _ => None,
        }
    }
}

/// Height of a group with its gap.
fn height(group: &Group, at: &Columns) -> f64 {
    let rows = ROW * group.rows.len() as f64 + GAP;
    match (at.group.is_empty(), group.name.is_empty()) {
        (true, true) => rows,
        (true, false) => rows + ROW,
        // Name and note of a group take two lines.
        (false, _) => rows.max(if group.note.is_empty() { ROW } else { 2.0 * ROW } + GAP),
    }
}

/// Name and note on a line of their own; gives its height.
fn draw_heading(svg: &mut Svg, group: &Group, at: &Columns, y: f64) -> f64 {
    if group.name.is_empty() {
        return 0.0;
    }
    let all = at.value.end - at.group.start;
    let name = fit(&group.name, all * 0.6, FONT * BOLD);
    let note = fit(&group.note, all - width(&name, FONT * BOLD) - 14.0, FONT);
    svg.text("group", (0.0, y + 12.0), Anchor::Start, &name);
    svg.text("note", (at.value.end, y + 12.0), Anchor::End, &note);
    ROW
}

/// The interval as a line, with a cap at each end that lies inside the axis.
fn draw_interval(svg: &mut Svg, class: &str, scale: &Scale, of: Option<(f64, f64)>, y: f64) {
    let Some((low, high)) = of else {
        return;
    };
    svg.line(class, (scale.at(low), y), (scale.at(high), y));
    for end in [low, high].into_iter().filter(|end| scale.holds(*end)) {
        let x = scale.at(end);
        svg.line(class, (x, y - 3.5), (x, y + 3.5));
    }
}

fn draw_parts(svg: &mut Svg, scale: &Scale, parts: &[(Look, f64, String)], middle: f64) {
    let mut sum = 0.0;
    for (look, value, hover) in parts {
        let (from, to) = (scale.at(sum), scale.at(sum + value));
        // A hair of background between parts, so that neighbours of like colour stay two.
        let size = ((to - from - 0.8).max(0.6), BAR);
        svg.rect(&format!("bar {}", look.class()), (from, middle - BAR / 2.0), size, hover);
        sum += value;
    }
}

/// A sentence in place of a bar: it may use the room of the value, which is empty.
fn draw_words(svg: &mut Svg, class: (&str, f64), words: &str, at: &Columns, base_line: f64) {
    let (class, boldness) = class;
    let words = fit(words, at.value.end - at.bars.start - 6.0, FONT * boldness);
    svg.text(class, (at.bars.start + 4.0, base_line), Anchor::Start, &words);
}
