//! The conditions of a run: machine, link as asked for and as measured, method, targets.

use jiff::Timestamp;

use crate::record::Run;

use super::super::document::{Block, Cell, Table};
use super::super::number::{short, value};

/// Conditions of a run.
pub(super) fn blocks(run: &Run) -> Vec<Block> {
    let mut blocks = Vec::new();
    if run.interrupted {
        let text = "This run was interrupted. What is here was finished before; tests without a \
                    number were not reached.";
        blocks.push(Block::Warning(text.to_owned()));
    }
    blocks.push(Block::Pairs(pairs(run)));
    if !run.absent.is_empty() {
        blocks.push(Block::List("Was to be measured and was not".to_owned(), run.absent.clone()));
    }
    if !run.method.is_empty() {
        blocks.push(Block::List("Method".to_owned(), run.method.clone()));
    }
    if !run.command.is_empty() {
        blocks.push(Block::Command(run.command.clone()));
    }
    blocks.push(Block::Table(targets(run)));
    blocks
}

fn pairs(run: &Run) -> Vec<(String, String)> {
    let machine = &run.machine;
    let mut pairs: Vec<(&str, String)> = vec![
        ("Size", run.size.clone()),
        ("Begun", date(&run.started)),
        ("Took", value(run.elapsed_s.max(0.0), "s")),
        ("Measured by", run.larder.clone()),
        ("Machine", machine.host.clone()),
        ("Processors", format!("{} × {}", machine.cpus, machine.cpu)),
        ("Memory", value(machine.memory_bytes as f64, "B")),
        ("System", format!("{}, kernel {}", machine.distribution, machine.kernel)),
        ("Load when it began", short(machine.load)),
    ];
    match &run.link {
        Some(link) => {
            pairs.push(("Link asked for", format!("{} ({})", link.asked, link.kind)));
            let rate = value(link.rate_bits_per_s, "bit/s");
            let round_trip = value(link.round_trip_us, "us");
            pairs.push(("Link measured", format!("{rate}, round trip {round_trip}")));
        }
        None => pairs.push(("Link", "none was made by the bench".to_owned())),
    }
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The link as asked for and as measured, beside numbers that depend on it.
pub(crate) fn link_words(run: &Run) -> String {
    run.link.as_ref().map_or_else(
        || "No link was made by the bench.".to_owned(),
        |link| {
            format!(
                "Link: asked for {}, measured {} with a round trip of {}.",
                link.asked,
                value(link.rate_bits_per_s, "bit/s"),
                value(link.round_trip_us, "us")
            )
        },
    )
}

/// A time of RFC 3339 to the minute, in UTC; as it stands if it is none.
pub(crate) fn date(text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => text.to_owned(),
    }
}

fn targets(run: &Run) -> Table {
    let columns = ["target", "mounted", "options", "version", "file data placed"];
    let mut table = Table::new("Who was measured", &columns);
    for target in &run.targets {
        let placed =
            if target.furnished_behind { "on the server, behind its back" } else { "through it" };
        let told = |text: &str| Cell::plain(if text.is_empty() { "not recorded" } else { text });
        table.push(vec![
            Cell::plain(target.name.clone()),
            told(&target.mounted),
            told(&target.options),
            told(&target.version),
            Cell::plain(placed),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_short_and_nonsense_is_kept() {
        assert_eq!(date("2026-11-21T15:16:30+01:00"), "2026-11-21 14:16 UTC");
        assert_eq!(date("yesterday"), "yesterday");
    }
}
