//! Curves over an axis: rates against size, times against clients, distributions.
//!
//! Points carry their interval. A point that failed is a cross on the bottom line at its place and
//! a sentence in the legend; a curve is not drawn across it. Published places and points are marks
//! with a letter that the legend explains; those outside the measured range are left to the text.

use super::super::number::{exact, short, shown};
use super::super::scale::{Scale, apart, ends, needs_log};
use super::super::svg::{Anchor, Svg};
use super::super::text::{fit, width};
use super::{Entry, FONT, Heading, Look, Sign, WIDE, cross, draw_legend};

/// A chart of curves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lines {
    /// What it is called.
    pub(crate) heading: Heading,
    /// What is swept.
    pub(crate) x: Axis,
    /// What is measured.
    pub(crate) y: Axis,
    /// The curves.
    pub(crate) curves: Vec<Curve>,
    /// Published places and points.
    pub(crate) marks: Vec<Mark>,
    /// Further lines of the legend: which targets failed, and which were not measured.
    pub(crate) notes: Vec<Entry>,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Axis {
    /// What it shows.
    pub(crate) title: String,
    /// Unit as in a record; empty for plain numbers.
    pub(crate) unit: String,
    /// Ticks stand at the measured places instead of round numbers.
    pub(crate) at_places: bool,
    /// It begins at zero, and is never logarithmic.
    pub(crate) from_zero: bool,
    /// It shows shares from 0 to 1 as percentages.
    pub(crate) shares: bool,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    /// Name.
    pub(crate) name: String,
    /// Look.
    pub(crate) look: Look,
    /// Points, by growing x.
    pub(crate) points: Vec<Point>,
    /// Indices of points from which on it has fallen for good.
    pub(crate) knees: Vec<usize>,
    /// It goes up in steps (a distribution) and has no markers.
    pub(crate) steps: bool,
}

/// A place on a curve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// Swept value.
    pub(crate) x: f64,
    /// Measured value; `None` where it failed.
    pub(crate) y: Option<f64>,
    /// Its interval.
    pub(crate) interval: Option<(f64, f64)>,
    /// What a pointer over it shows.
    pub(crate) hover: String,
}

/// Something published.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mark {
    /// A range of x; from and to may be the same.
    Range((f64, f64), String),
    /// A point.
    Point((f64, f64), String),
}

/// Where the plot stands.
struct Frame {
    x: Scale,
    y: Scale,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Lines {
    /// Draws it; gives the height.
    pub(crate) fn draw(&self, svg: &mut Svg, width: f64) -> f64 {
        let wide = width >= WIDE;
        let frame = self.frame(width, if wide { 330.0 } else { 270.0 });
        self.draw_axes(svg, &frame);
        let entries = self.draw_marks(svg, &frame);
        for curve in &self.curves {
            draw_curve(svg, curve, &frame);
        }
        let mut legend: Vec<Entry> = self
            .curves
            .iter()
            .map(|curve| Entry { sign: Sign::Curve(curve.look), text: curve.name.clone() })
            .collect();
        if self.curves.iter().any(|curve| !curve.knees.is_empty()) {
            let text = "knee: from here on the rate stays lower by more than a fifth".to_owned();
            legend.push(Entry { sign: Sign::Ring, text });
        }
        legend.extend(entries);
        legend.extend(self.notes.iter().cloned());
        draw_legend(svg, &legend, frame.bottom + 46.0, (8.0, width)) + 4.0
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.curves.iter().flat_map(|curve| &curve.points)
    }

    fn frame(&self, width: f64, height: f64) -> Frame {
        let (top, bottom) = (34.0, height - 40.0);
        let (low_x, high_x) = ends(self.points().map(|point| point.x));
        let inside = |x: f64| (low_x..=high_x).contains(&x);
        let published = self.marks.iter().filter_map(|mark| match mark {
            Mark::Point((x, y), _) if inside(*x) => Some(*y),
            _ => None,
        });
        let measured = self.points().filter_map(|point| point.y);
        let (low_y, high_y) = ends(measured.chain(published));
        let y = if self.y.shares {
            Scale::linear(1.0, bottom, top)
        } else if !self.y.from_zero && needs_log([low_y, high_y]) {
            Scale::log(low_y, high_y, bottom, top)
        } else {
            let reach = self.points().filter_map(|point| Some(point.interval?.1));
            let (_, reach) = ends(reach.chain([high_y]));
            Scale::linear(reach.min(high_y * 1.6), bottom, top)
        };
        let left =
            self.y_labels(&y).iter().map(|(_, text)| self::width(text, FONT)).fold(0.0, f64::max);
        let (left, right) = (left.ceil() + 14.0, width - 10.0);
        let x = if low_x > 0.0 && needs_log([low_x, high_x]) {
            Scale::log(low_x, high_x, left, right)
        } else {
            Scale::between(low_x, high_x, left, right)
        };
        Frame { x, y, left, right, top, bottom }
    }

    /// Ticks of the y axis with their words: one unit for all if it is linear.
    fn y_labels(&self, scale: &Scale) -> Vec<(f64, String)> {
        let all = shown(scale.high(), &self.y.unit);
        let label = |tick: f64| {
            if self.y.shares {
                return format!("{} %", short((tick * 100.0).round()));
            }
            let unit = if scale.is_log() { shown(tick, &self.y.unit) } else { all };
            let number = short(tick / unit.size);
            if scale.is_log() { format!("{number} {}", unit.name) } else { number }
        };
        scale.ticks(6).into_iter().map(|tick| (tick, label(tick))).collect()
    }

    fn draw_axes(&self, svg: &mut Svg, frame: &Frame) {
        for (tick, label) in self.y_labels(&frame.y) {
            let y = frame.y.at(tick);
            svg.line("grid", (frame.left, y), (frame.right, y));
            svg.text("tick", (frame.left - 6.0, y + 4.0), Anchor::End, &label);
        }
        let (places, labels) = self.x_labels(frame);
        let widths: Vec<f64> = labels.iter().map(|label| width(label, FONT)).collect();
        for index in apart(&places, &widths) {
            let x = places[index];
            svg.line("axis", (x, frame.bottom), (x, frame.bottom + 5.0));
            svg.text("tick", (x, frame.bottom + 18.0), Anchor::Middle, &labels[index]);
        }
        svg.line("axis", (frame.left, frame.bottom), (frame.right, frame.bottom));
        let unit = shown(frame.y.high(), &self.y.unit).name;
        let title = match (frame.y.is_log(), unit) {
            (true, _) => format!("{} (logarithmic)", self.y.title),
            (false, "") => self.y.title.clone(),
            (false, unit) => format!("{} ({unit})", self.y.title),
        };
        let title = fit(&title, frame.right, FONT);
        svg.text("axis-title", (0.0, 14.0), Anchor::Start, &title);
        let unit = shown(frame.x.high(), &self.x.unit).name;
        let title = if unit.is_empty() || self.x.at_places {
            self.x.title.clone()
        } else {
            format!("{} ({unit})", self.x.title)
        };
        let title = if frame.x.is_log() { format!("{title}, logarithmic") } else { title };
        let at = ((frame.left + frame.right) / 2.0, frame.bottom + 36.0);
        svg.text("axis-title", at, Anchor::Middle, &fit(&title, frame.right - frame.left, FONT));
    }

    fn x_labels(&self, frame: &Frame) -> (Vec<f64>, Vec<String>) {
        let ticks = if self.x.at_places {
            let mut places: Vec<f64> = self.points().map(|point| point.x).collect();
            places.sort_by(f64::total_cmp);
            places.dedup();
            places
        } else {
            frame.x.ticks(if frame.right > 500.0 { 8 } else { 5 })
        };
        let unit = shown(frame.x.high(), &self.x.unit).size;
        let label = |tick: &f64| {
            if self.x.at_places { exact(*tick) } else { short(tick / unit) }
        };
        (ticks.iter().map(|tick| frame.x.at(*tick)).collect(), ticks.iter().map(label).collect())
    }

    /// Published marks, each with a letter; gives what the letters mean.
    fn draw_marks(&self, svg: &mut Svg, frame: &Frame) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (mark, letter) in self.marks.iter().zip('a'..='z') {
            let (x, text) = match mark {
                Mark::Range((from, to), text) => ((from * to).sqrt(), text),
                Mark::Point((x, _), text) => (*x, text),
            };
            if !frame.x.holds(x) {
                continue;
            }
            let sign = match mark {
                Mark::Range((from, to), _) => {
                    let (from, to) = (frame.x.at(*from), frame.x.at(*to));
                    let size = ((to - from).max(0.0), frame.bottom - frame.top);
                    svg.rect("place-area", (from, frame.top), size, text);
                    let middle = f64::midpoint(from, to);
                    svg.line("place", (middle, frame.top), (middle, frame.bottom));
                    svg.text(
                        "letter",
                        (middle, frame.top - 4.0),
                        Anchor::Middle,
                        &letter.to_string(),
                    );
                    Sign::Letter(letter)
                }
                Mark::Point((x, y), _) => {
                    let place = (frame.x.at(*x), frame.y.at(*y));
                    svg.path("mark published", &Look::Published.marker(place), text);
                    let beside = (place.0 - 9.0, place.1 + 4.0);
                    svg.text("letter", beside, Anchor::End, &letter.to_string());
                    Sign::Letter(letter)
                }
            };
            entries.push(Entry { sign, text: text.clone() });
        }
        entries
    }
}

fn draw_curve(svg: &mut Svg, curve: &Curve, frame: &Frame) {
    let class = curve.look.class();
    let line = format!("curve {class}");
    for run in curve.points.split(|point| point.y.is_none()) {
        let mut places: Vec<(f64, f64)> = Vec::new();
        for point in run {
            let place = (frame.x.at(point.x), frame.y.at(point.y.unwrap_or_default()));
            if let (true, Some((_, y))) = (curve.steps, places.last()) {
                places.push((place.0, *y));
            }
            places.push(place);
        }
        if places.len() > 1 {
            svg.polyline(&line, &places);
        }
    }
    for (index, point) in curve.points.iter().enumerate() {
        let x = frame.x.at(point.x);
        let Some(y) = point.y else {
            svg.path("failed", &cross((x, frame.bottom)), &point.hover);
            continue;
        };
        if curve.steps {
            continue;
        }
        let place = (x, frame.y.at(y));
        if let Some((low, high)) = point.interval {
            svg.line(&format!("reach {class}"), (x, frame.y.at(low)), (x, frame.y.at(high)));
        }
        svg.path(&format!("mark {class}"), &curve.look.marker(place), &point.hover);
        if curve.knees.contains(&index) {
            let (l, r) = (place.0 - 8.5, 8.5);
            let ring = format!("M{l:.1} {:.1}a{r} {r} 0 1 0 17 0a{r} {r} 0 1 0 -17 0z", place.1);
            svg.path("ring", &ring, "knee");
        }
    }
}
