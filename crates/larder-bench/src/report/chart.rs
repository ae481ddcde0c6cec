//! Charts as data, and what their drawings share: colours, markers, legend.
//!
//! A chart is drawn at two widths, for a wide page and for a telephone, and the style sheet shows
//! one. Colour never carries meaning alone: rows have their names beside them, curves have markers
//! of different shape, and every chart has a table.

use super::svg::{Anchor, Svg};
use super::text::wrap;

pub(crate) mod lines;
pub(crate) mod rows;

/// Width of a chart on a wide page, in pixels.
pub(crate) const WIDE: f64 = 760.0;

/// Width of a chart on a telephone: 400 pixels less the margins of the page.
pub(crate) const NARROW: f64 = 352.0;

/// Size of text, in pixels; the style sheet says the same.
pub(crate) const FONT: f64 = 12.0;

/// Number of colours of the style sheet, `s0` to `s7`.
const COLOURS: usize = 8;

/// The chart's title.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Heading {
    /// Title.
    pub(crate) title: String,
    /// A description, for readers who cannot see it.
    pub(crate) description: String,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Chart {
    /// Horizontal bars in groups.
    Rows(rows::Rows),
    /// Curves over an axis.
    Lines(lines::Lines),
}

impl Chart {
    /// Its name.
    pub(crate) fn heading(&self) -> &Heading {
        match self {
            Chart::Rows(rows) => &rows.heading,
            Chart::Lines(lines) => &lines.heading,
        }
    }

    /// Draws it; `id` is unique in the page.
    pub(crate) fn draw(&self, id: &str, width: f64) -> String {
        let mut svg = Svg::default();
        let height = match self {
            Chart::Rows(rows) => rows.draw(&mut svg, width),
            Chart::Lines(lines) => lines.draw(&mut svg, width),
        };
        let heading = self.heading();
        svg.finish(id, (width, height), &heading.title, &heading.description)
    }
}

/// The look of a series: the same for a target in all charts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The series at a place of the list; after eight, colours come again with other markers.
    Series(usize),
    /// A procedure, by its place in the list of [`super::suite`]'s `rpcs`: the same on every page.
    Procedure(usize),
    /// Shown to be faster.
    Better,
    /// Shown to be slower.
    Worse,
    /// Neither shown.
    Even,
    /// A published number.
    Published,
}

impl Look {
    /// Class that sets the colour.
    pub(crate) fn class(self) -> String {
        match self {
            Look::Series(index) => format!("s{}", index % COLOURS),
            Look::Procedure(index) => format!("p{index}"),
            Look::Better => "better".to_owned(),
            Look::Worse => "worse".to_owned(),
            Look::Even => "even".to_owned(),
            Look::Published => "published".to_owned(),
        }
    }

    /// Outline of its marker around a place.
    pub(crate) fn marker(self, (x, y): (f64, f64)) -> String {
        let shape = match self {
            Look::Series(index) => (index + index / COLOURS) % 6,
            Look::Published => 3,
            _ => 0,
        };
        let r = 4.0;
        let (l, t, right, b) = (x - r, y - r, x + r, y + r);
        match shape {
            0 => format!("M{l:.1} {y:.1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z", d = 2.0 * r),
            1 => format!("M{l:.1} {t:.1}H{right:.1}V{b:.1}H{l:.1}z"),
            2 => format!("M{x:.1} {t:.1}L{right:.1} {b:.1}H{l:.1}z"),
            3 => {
                let (t, right, b, l) = (y - 5.0, x + 5.0, y + 5.0, x - 5.0);
                format!("M{x:.1} {t:.1}L{right:.1} {y:.1}L{x:.1} {b:.1}L{l:.1} {y:.1}z")
            }
            4 => format!("M{l:.1} {t:.1}H{right:.1}L{x:.1} {b:.1}z"),
            _ => plus((x, y), r),
        }
    }
}

/// A plus as a closed outline.
fn plus((x, y): (f64, f64), r: f64) -> String {
    let thin = r * 0.36;
    let arm = r - thin;
    format!(
        "M{:.1} {:.1}h{t:.1}v{arm:.1}h{arm:.1}v{t:.1}h-{arm:.1}v{arm:.1}h-{t:.1}v-{arm:.1}h-{arm:.1}\
         v-{t:.1}h{arm:.1}z",
        x - thin,
        y - r,
        t = thin * 2.0,
    )
}

/// A cross of two strokes: something failed here.
pub(crate) fn cross((x, y): (f64, f64)) -> String {
    let r = 4.0;
    let (l, t, right, b) = (x - r, y - r, x + r, y + r);
    format!("M{l:.1} {t:.1}L{right:.1} {b:.1}M{l:.1} {b:.1}L{right:.1} {t:.1}")
}

/// The sign before a text of the legend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sign {
    /// Marker on a piece of its curve.
    Curve(Look),
    /// Marker alone.
    Marker(Look),
    /// Area.
    Area(Look),
    /// Letter of a mark in the chart.
    Letter(char),
    /// Whisker.
    Whisker,
    /// Ring around a knee.
    Ring,
    /// Something failed.
    Cross,
}

/// An entry of a legend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Its sign.
    pub(crate) sign: Sign,
    /// What the sign means.
    pub(crate) text: String,
}

/// Height of a line of the legend.
const LEGEND_LINE: f64 = 18.0;

/// Room of a sign.
const SIGN: f64 = 26.0;

/// Draws entries from `top` on, side by side where they fit; returns where they end.
pub(crate) fn draw_legend(
    svg: &mut Svg,
    entries: &[Entry],
    top: f64,
    (left, right): (f64, f64),
) -> f64 {
    let (mut x, mut y) = (left, top);
    let mut open = false;
    for entry in entries {
        let lines = wrap(&entry.text, right - left - SIGN, FONT, 4);
        let widest = lines.iter().map(|line| super::text::width(line, FONT)).fold(0.0, f64::max);
        if open && x + SIGN + widest > right {
            (x, y) = (left, y + LEGEND_LINE);
        }
        draw_sign(svg, entry.sign, (x, y + 8.0));
        for (index, line) in lines.iter().enumerate() {
            let at = (x + SIGN, y + 12.0 + LEGEND_LINE * index as f64);
            svg.text("label", at, Anchor::Start, line);
        }
        if lines.len() > 1 {
            (x, y, open) = (left, y + LEGEND_LINE * lines.len() as f64, false);
        } else {
            (x, open) = (x + SIGN + widest + 18.0, true);
        }
    }
    if open { y + LEGEND_LINE } else { y }
}

fn draw_sign(svg: &mut Svg, sign: Sign, (x, y): (f64, f64)) {
    let middle = (x + 9.0, y);
    match sign {
        Sign::Curve(look) => {
            svg.line(&format!("curve {}", look.class()), (x, y), (x + 18.0, y));
            svg.path(&format!("mark {}", look.class()), &look.marker(middle), "");
        }
        Sign::Marker(look) => svg.path(&format!("mark {}", look.class()), &look.marker(middle), ""),
        Sign::Area(look) => {
            svg.rect(&format!("bar {}", look.class()), (x + 3.0, y - 6.0), (12.0, 12.0), "");
        }
        Sign::Letter(letter) => {
            svg.text("letter", (x + 9.0, y + 4.0), Anchor::Middle, &letter.to_string());
        }
        Sign::Whisker => svg.line("whisker", (x, y), (x + 18.0, y)),
        Sign::Ring => svg.path("ring", &Look::Even.marker(middle), ""),
        Sign::Cross => svg.path("failed", &cross(middle), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_series_look_different() {
        let looks: std::collections::BTreeSet<(String, String)> =
            (0..16).map(Look::Series).map(|look| (look.class(), look.marker((0.0, 0.0)))).collect();
        assert_eq!(looks.len(), 16);
    }

    #[test]
    fn a_legend_grows_downwards_and_stays_inside() {
        let entries: Vec<Entry> = (1..12)
            .map(|index| Entry { sign: Sign::Cross, text: "word ".repeat(index * 3) })
            .collect();
        let mut svg = Svg::default();
        let end = draw_legend(&mut svg, &entries, 100.0, (10.0, 300.0));
        assert!(end > 100.0 + 11.0 * LEGEND_LINE);
        assert_eq!(draw_legend(&mut svg, &[], 100.0, (10.0, 300.0)), 100.0);
    }
}
