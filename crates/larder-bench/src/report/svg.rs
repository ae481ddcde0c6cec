//! Writing SVG: shapes with classes, no style attributes, every text escaped.
//!
//! Colours and fonts come from the page's style sheet through classes, so that a chart follows the
//! light or dark scheme. What is written is well-formed XML; nothing is drawn outside by itself,
//! but places are the caller's.

use std::fmt::Write as _;

use super::text::escape;

/// Where a text stands relative to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

/// A drawing under construction.
#[derive(Debug, Default)]
pub(crate) struct Svg {
    body: String,
}

impl Svg {
    /// A rectangle; `hover` is what a pointer over it shows.
    pub(crate) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), hover: &str) {
        let shape = format!(
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"",
            at.0,
            at.1,
            size.0.max(0.0),
            size.1.max(0.0)
        );
        self.shape("rect", &shape, hover);
    }

    /// A straight line.
    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    /// A path in SVG's own notation, which the caller made of numbers only.
    pub(crate) fn path(&mut self, class: &str, path: &str, hover: &str) {
        let shape = format!("<path class=\"{class}\" d=\"{path}\"");
        self.shape("path", &shape, hover);
    }

    /// A line through places.
    pub(crate) fn polyline(&mut self, class: &str, places: &[(f64, f64)]) {
        let places: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!("<polyline class=\"{class}\" points=\"{}\"/>", places.join(" ")));
    }

    /// A text on one line, its base line at `at`.
    pub(crate) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y, text) = (at.0, at.1, escape(text));
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\"{anchor}>{text}</text>"
        ));
    }

    fn shape(&mut self, tag: &str, opening: &str, hover: &str) {
        if hover.is_empty() {
            self.push(format_args!("{opening}/>"));
        } else {
            self.push(format_args!("{opening}><title>{}</title></{tag}>", escape(hover)));
        }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// The whole drawing. `id` is unique in the page; `title` names it, `description` says what it
    /// shows, for readers who cannot see it.
    pub(crate) fn finish(
        self,
        id: &str,
        size: (f64, f64),
        title: &str,
        description: &str,
    ) -> String {
        let (width, height) = (size.0.round(), size.1.ceil());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
             aria-labelledby=\"{id}-title {id}-desc\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<title id=\"{id}-title\">{}</title>\n\
             <desc id=\"{id}-desc\">{}</desc>\n{}</svg>\n",
            escape(title),
            escape(description),
            self.body
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_well_formed_whatever_its_texts_say() {
        let mut svg = Svg::default();
        svg.rect("bar", (1.0, 2.0), (-3.0, 4.0), "<&\"\u{0}");
        svg.line("axis", (0.0, 0.0), (1.0, 1.0));
        svg.path("mark", "M 0 0 L 1 1", "");
        svg.polyline("curve", &[(0.0, 0.0), (1.25, 2.0)]);
        svg.text("label", (0.0, 0.0), Anchor::End, "</text><script>");
        let text = svg.finish("a", (100.0, 50.0), "<t>", "a & b");
        let document = roxmltree::Document::parse(&text).unwrap();
        let names: Vec<_> =
            document.root_element().children().filter(roxmltree::Node::is_element).collect();
        assert_eq!(names.len(), 7);
        assert_eq!(names[2].attribute("width"), Some("0.0"));
        assert_eq!(names[6].text(), Some("</text><script>"));
    }
}
