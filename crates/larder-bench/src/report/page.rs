//! The report as one HTML page that needs nothing from elsewhere.
//!
//! Invariants: the page is well-formed XML too, so that a parser can check it; it has no script and
//! no style attribute, and its policy forbids every fetch; every text from a record is escaped by
//! [`super::text::escape`]. The choice of a light or dark scheme is made by the style sheet alone,
//! from which of three radio buttons is on.

use super::chart::{Chart, NARROW, WIDE};
use super::document::{Block, Cell, Document, Figure, Section, Table, Tone};
use super::text::escape;

const STYLE: &str = include_str!("page.css");

/// No fetch of anything; styles from this page; the empty icon, so that a browser asks for none.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                      form-action 'none'";

/// A file that the page carries.
pub(crate) struct Download {
    /// Name under which it is saved.
    pub(crate) name: String,
    /// Type.
    pub(crate) mime: &'static str,
    /// Content.
    pub(crate) bytes: Vec<u8>,
}

/// Writes a document out; the downloads are offered at its end.
pub(crate) fn page(document: &Document, downloads: &[Download]) -> String {
    let mut page = Page { out: String::new(), figures: 0 };
    page.head(document);
    page.push("<main>");
    for section in &document.opening {
        page.section(section);
    }
    page.contents(document);
    for section in &document.sections {
        page.section(section);
    }
    page.downloads(downloads);
    page.push("</main>");
    page.push("</body>\n</html>");
    page.out
}

struct Page {
    out: String,
    /// Figures so far, for ids.
    figures: usize,
}

impl Page {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn head(&mut self, document: &Document) {
        let (title, lead) = (escape(&document.title), escape(&document.lead));
        self.push(
            "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>",
        );
        self.push("<meta charset=\"utf-8\"/>");
        self.push(&format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>"));
        self.push("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>");
        self.push("<meta name=\"color-scheme\" content=\"light dark\"/>");
        self.push("<link rel=\"icon\" href=\"data:,\"/>");
        self.push(&format!("<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>"));
        self.push("<header>");
        self.schemes();
        self.push(&format!("<h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n</header>"));
    }

    fn schemes(&mut self) {
        self.push("<fieldset class=\"schemes\"><legend>Colours</legend>");
        for (id, name, on) in
            [("auto", "Auto", " checked=\"checked\""), ("light", "Light", ""), ("dark", "Dark", "")]
        {
            self.push(&format!(
                "<input type=\"radio\" name=\"scheme\" id=\"scheme-{id}\"{on}/>\
                 <label for=\"scheme-{id}\">{name}</label>"
            ));
        }
        self.push("</fieldset>");
    }

    fn contents(&mut self, document: &Document) {
        if document.sections.len() < 2 {
            return;
        }
        self.push("<nav aria-label=\"Suites\"><ul>");
        for section in &document.sections {
            let (id, title) = (&section.id, escape(&section.title));
            self.push(&format!("<li><a href=\"#{id}\">{title}</a></li>"));
        }
        self.push("</ul></nav>");
    }

    fn section(&mut self, section: &Section) {
        let (id, title) = (&section.id, escape(&section.title));
        self.push(&format!("<section id=\"{id}\" aria-labelledby=\"{id}-heading\">"));
        self.push(&format!("<h2 id=\"{id}-heading\">{title}</h2>"));
        if !section.lead.is_empty() {
            self.push(&format!("<p class=\"source\">{}</p>", escape(&section.lead)));
        }
        for block in &section.blocks {
            self.block(block);
        }
        self.push("</section>");
    }

    fn block(&mut self, block: &Block) {
        match block {
            Block::Text(text) => self.push(&format!("<p>{}</p>", escape(text))),
            Block::Warning(text) => {
                self.push(&format!("<p class=\"warning\" role=\"note\">{}</p>", escape(text)));
            }
            Block::Command(text) => {
                self.push(&format!(
                    "<p class=\"command\">Repeat: <code>{}</code></p>",
                    escape(text)
                ));
            }
            Block::List(title, items) => self.list(title, items),
            Block::Pairs(pairs) => {
                self.push("<dl class=\"pairs\">");
                for (name, value) in pairs {
                    let (name, value) = (escape(name), escape(value));
                    self.push(&format!("<div><dt>{name}</dt><dd><bdi>{value}</bdi></dd></div>"));
                }
                self.push("</dl>");
            }
            Block::Table(table) => self.table(table),
            Block::Figure(figure) => self.figure(figure),
        }
    }

    fn list(&mut self, title: &str, items: &[String]) {
        if items.is_empty() {
            return;
        }
        if !title.is_empty() {
            self.push(&format!("<h3>{}</h3>", escape(title)));
        }
        self.push("<ul>");
        for item in items {
            self.push(&format!("<li>{}</li>", escape(item)));
        }
        self.push("</ul>");
    }

    fn figure(&mut self, figure: &Figure) {
        self.figures += 1;
        let id = format!("figure-{}", self.figures);
        let title = escape(&figure.chart.heading().title);
        let beside = if figure.published.sentences.is_empty() { "" } else { " class=\"beside\"" };
        self.push(&format!("<figure id=\"{id}\"{beside}>"));
        self.push(&format!(
            "<figcaption><h3>{title}</h3>\n<p>{}</p></figcaption>",
            escape(&figure.caption)
        ));
        self.chart(&figure.chart, &id);
        if !figure.published.sentences.is_empty() {
            let title = escape(&figure.published.title);
            self.push(&format!("<aside class=\"published-facts\"><h4>{title}</h4>\n<ul>"));
            for fact in &figure.published.sentences {
                self.push(&format!("<li>{}</li>", escape(fact)));
            }
            self.push("</ul></aside>");
        }
        self.push("<div class=\"tables\">");
        for table in &figure.tables {
            self.table(table);
        }
        self.push("</div>\n</figure>");
    }

    fn chart(&mut self, chart: &Chart, id: &str) {
        let wide = chart.draw(&format!("{id}-wide"), WIDE);
        let narrow = chart.draw(&format!("{id}-narrow"), NARROW);
        self.push(&format!(
            "<div class=\"wide\">{wide}</div>\n<div class=\"narrow\">{narrow}</div>"
        ));
    }

    fn table(&mut self, table: &Table) {
        let caption = escape(&table.caption);
        if table.folded {
            self.push(&format!("<details><summary>{caption}</summary>"));
        }
        // A table that is wider than the page scrolls by itself, also by keyboard.
        self.push(&format!(
            "<div class=\"scroll\" role=\"region\" aria-label=\"{caption}\" tabindex=\"0\">"
        ));
        let hidden = if table.folded { " class=\"hidden\"" } else { "" };
        self.push(&format!("<table><caption{hidden}>{caption}</caption>\n<thead><tr>"));
        for name in &table.columns {
            self.push(&format!("<th scope=\"col\"><bdi>{}</bdi></th>", escape(name)));
        }
        self.push("</tr></thead>\n<tbody>");
        for row in &table.rows {
            self.row(row, &table.columns);
        }
        self.push("</tbody></table></div>");
        if table.folded {
            self.push("</details>");
        }
    }

    fn row(&mut self, row: &[Cell], columns: &[String]) {
        self.out.push_str("<tr>");
        for (index, (cell, column)) in row.iter().zip(columns).enumerate() {
            let text = escape(&cell.text);
            let tone = match cell.tone {
                Tone::Plain => "",
                Tone::Better => " class=\"is-better\"",
                Tone::Worse => " class=\"is-worse\"",
                Tone::Failed => " class=\"is-failed\"",
                Tone::Missing => " class=\"is-missing\"",
            };
            if index == 0 {
                self.out.push_str(&format!("<th scope=\"row\"><bdi>{text}</bdi></th>"));
            } else {
                // On a telephone a row becomes a card, and each cell is named.
                let name = escape(column);
                self.out
                    .push_str(&format!("<td data-name=\"{name}\"{tone}><bdi>{text}</bdi></td>"));
            }
        }
        self.push("</tr>");
    }

    fn downloads(&mut self, downloads: &[Download]) {
        self.push("<section id=\"raw\" aria-labelledby=\"raw-heading\">");
        self.push("<h2 id=\"raw-heading\">Raw data</h2>");
        self.push("<p>Everything above is computed from these.</p>\n<ul class=\"downloads\">");
        for file in downloads {
            let name = escape(&file.name);
            let data = base64(&file.bytes);
            self.push(&format!(
                "<li><a download=\"{name}\" href=\"data:{};base64,{data}\">{name}</a> ({})</li>",
                file.mime,
                escape(&super::number::value(file.bytes.len() as f64, "B"))
            ));
        }
        self.push("</ul>\n</section>");
    }
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            if index <= three.len() {
                out.push(char::from(DIGITS[(bits >> (18 - 6 * index) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_agrees_with_the_examples_of_the_rfc() {
        for (text, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), coded);
        }
    }

    /// Relative luminance of `#rrggbb` (WCAG 2, relative luminance).
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    /// Light and dark colour of a variable of the style sheet.
    fn colours(variable: &str) -> [&'static str; 2] {
        let (_, rest) = STYLE.split_once(&format!("--{variable}: light-dark(")).unwrap();
        let (light, dark) = rest.split_once(')').unwrap().0.split_once(", ").unwrap();
        [light, dark]
    }

    fn check_contrast(front: &str, back: &str, least: f64) {
        for (front, back) in colours(front).into_iter().zip(colours(back)) {
            let (one, two) = (luminance(front), luminance(back));
            let contrast = (one.max(two) + 0.05) / (one.min(two) + 0.05);
            assert!(contrast >= least, "{front} on {back}: {contrast:.2}");
        }
    }

    #[test]
    fn colours_have_contrast_in_both_schemes() {
        for back in ["page", "card"] {
            for text in ["text", "quiet", "link", "good", "bad"] {
                check_contrast(text, back, 4.5);
            }
        }
        for series in [
            "s0",
            "s1",
            "s2",
            "s3",
            "s4",
            "s5",
            "s6",
            "s7",
            "p0",
            "p1",
            "p2",
            "p3",
            "p4",
            "p5",
            "p6",
            "p7",
            "p8",
            "p9",
            "p10",
            "published",
        ] {
            check_contrast(series, "page", 3.0);
        }
    }

    #[test]
    fn the_style_sheet_fetches_nothing_and_is_legal_in_xml() {
        for word in ["url(", "@import", "@font-face", "http", "<", "&"] {
            assert!(!STYLE.contains(word), "{word}");
        }
    }
}
