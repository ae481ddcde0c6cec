//! The report as Markdown: the same sentences and tables, without charts.
//!
//! Invariant: text from a record cannot begin a heading, a list, a link, a tag or a column: every
//! character with a meaning in Markdown is escaped.

use std::fmt::Write as _;

use super::document::{Block, Document, Section, Table};
use super::text::clean;

/// Writes a document out.
pub(crate) fn markdown(document: &Document) -> String {
    let mut out = format!("# {}\n\n{}\n", escape(&document.title), escape(&document.lead));
    for section in document.opening.iter().chain(&document.sections) {
        push_section(&mut out, section);
    }
    out
}

fn push_section(out: &mut String, section: &Section) {
    push(out, &format!("## {}", escape(&section.title)));
    if !section.lead.is_empty() {
        push(out, &escape(&section.lead));
    }
    for block in &section.blocks {
        push_block(out, block);
    }
}

fn push_block(out: &mut String, block: &Block) {
    match block {
        Block::Text(text) => push(out, &escape(text)),
        Block::Warning(text) => push(out, &format!("> **{}**", escape(text))),
        // Not as an indented block: after a list it would be part of its last item.
        Block::Command(text) => push(out, &format!("Repeat: {}", escape(text))),
        Block::List(title, items) => push_list(out, title, items),
        Block::Pairs(pairs) => {
            let items: Vec<String> =
                pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            push_list(out, "", &items);
        }
        Block::Table(table) => {
            push(out, &format!("**{}**", escape(&table.caption)));
            push_table(out, table);
        }
        Block::Figure(figure) => {
            push(out, &format!("### {}", escape(&figure.chart.heading().title)));
            push(out, &escape(&figure.caption));
            push_list(out, &figure.published.title, &figure.published.sentences);
            for table in &figure.tables {
                push(out, &format!("**{}**", escape(&table.caption)));
                push_table(out, table);
            }
        }
    }
}

fn push_list(out: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    if !title.is_empty() {
        push(out, &escape(title));
    }
    let items: Vec<String> = items.iter().map(|item| format!("- {}", escape(item))).collect();
    push(out, &items.join("\n"));
}

fn push_table(out: &mut String, table: &Table) {
    let names: Vec<String> = table.columns.iter().map(|name| escape(name)).collect();
    let mut text = format!("| {} |\n|{}", names.join(" | "), "---|".repeat(names.len()));
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|cell| escape(&cell.text)).collect();
        // Writing into a string cannot fail.
        let _ = write!(text, "\n| {} |", cells.join(" | "));
    }
    push(out, &text);
}

/// A block with an empty line before it.
fn push(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{text}");
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, c) in clean(text).chars().enumerate() {
        let special =
            matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' | '&');
        if special || (index == 0 && matches!(c, '-' | '+' | '=')) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::document::Cell;
    use super::*;

    #[test]
    fn text_cannot_leave_its_cell() {
        let mut table = Table::new("a *caption*", &["one", "two|three"]);
        table.push(vec![Cell::plain("# x | y\nz"), Cell::plain("<script>&amp; `a`")]);
        let mut out = String::new();
        push_table(&mut out, &table);
        let lines: Vec<&str> = out.trim().lines().collect();
        assert_eq!(lines.len(), 3, "{out}");
        assert_eq!(lines[2], "| \\# x \\| y z | \\<script\\>\\&amp; \\`a\\` |");
        assert_eq!(escape("- item"), "\\- item");
    }
}
