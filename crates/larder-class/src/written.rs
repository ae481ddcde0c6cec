//! Classes and rules as written in TOML.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::lifetime::{LIFETIME_MAX, Lifetime, Lifetimes};
use crate::rule::{Rule, Wanted};
use crate::specification::{Deadline, Level, OnError, Specification, Step};

/// Longest deadline: 30 days.
const DEADLINE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Most copies at any level.
const COPIES_MAX: u8 = 16;

/// Most rules in a file: each is tried for each file that is opened.
const RULES_MAX: usize = 1000;

/// Longest name of a class, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// A file of classes and rules.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    class: BTreeMap<String, WrittenClass>,
    #[serde(default)]
    rule: Vec<Wanted>,
    #[serde(default)]
    level: BTreeMap<String, WrittenLifetime>,
}

/// A class as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenClass {
    /// The class from which this one takes what it does not set.
    like: Option<String>,
    memory: Option<WrittenStep>,
    local: Option<WrittenStep>,
    shared: Option<WrittenStep>,
    durable: Option<WrittenStep>,
    archive: Option<WrittenStep>,
    close: Option<String>,
    fsync: Option<String>,
    on_error: Option<String>,
}

/// A deadline, with or without a number of copies.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum WrittenStep {
    Within(String),
    Copies(Copies),
}

/// How many copies, by this deadline or else by that of the class in `like`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Copies {
    within: Option<String>,
    copies: u8,
}

/// How long copies last at a level, as it is written: what is left out is as before.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLifetime {
    mttf: Option<String>,
    repair: Option<String>,
}

/// The content of a file: its classes, which may build on earlier ones, and its rules.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) classes: Vec<(String, Specification)>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) lifetimes: Lifetimes,
}

/// Reads the text of a file called `file`. `known` are the classes so far, `lifetimes` the figures
/// so far.
///
/// # Errors
/// A line for the user, without the file's name.
pub(crate) fn read(
    file: &str,
    text: &str,
    known: &BTreeMap<String, Specification>,
    mut lifetimes: Lifetimes,
) -> Result<Read, String> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {}", error.message().replace('\n', " "))
    })?;
    let mut known = known.clone();
    let mut classes = Vec::new();
    let mut left: Vec<_> = document.class.into_iter().collect();
    // A class may be like one that is defined below it.
    while !left.is_empty() {
        let names: Vec<String> = left.iter().map(|(name, _)| name.clone()).collect();
        let waits = |written: &WrittenClass, name: &str| {
            let like = written.like.as_deref().filter(|like| *like != name);
            like.is_some_and(|like| names.iter().any(|name| name == like))
        };
        let (later, now): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(name, written)| waits(written, name));
        if now.is_empty() {
            return Err(format!("classes {} are like each other", names.join(", ")));
        }
        for (name, written) in now {
            let specification =
                written.read(&name, &known).map_err(|why| format!("class {name}: {why}"))?;
            known.insert(name.clone(), specification.clone());
            classes.push((name, specification));
        }
        left = later;
    }
    if document.rule.len() > RULES_MAX {
        return Err(format!("{} rules, where {RULES_MAX} are the most", document.rule.len()));
    }
    let mut rules: Vec<Rule> = Vec::new();
    for (wanted, number) in document.rule.into_iter().zip(1..) {
        let at = |why: String| format!("rule {number}: {why}");
        let rule = Rule::new(wanted, file, number).map_err(at)?;
        if let Some(earlier) = rules.iter().find(|earlier| earlier.hides(&rule)) {
            let earlier = earlier.number();
            return Err(at(format!(
                "it never applies, since rule {earlier} does wherever it would"
            )));
        }
        rules.push(rule);
    }
    for (name, written) in document.level {
        let at = |why: String| format!("level {name}: {why}");
        let level = Level::named(&name).ok_or_else(|| at("there is no such level".to_owned()))?;
        lifetimes.set(level, written.read(lifetimes.of(level)).map_err(at)?);
    }
    Ok(Read { classes, rules, lifetimes })
}

impl WrittenLifetime {
    fn read(self, before: Lifetime) -> Result<Lifetime, String> {
        let time = |typed: Option<String>, before: Duration| match typed {
            None => Ok(before),
            Some(typed) => match time(&typed, LIFETIME_MAX) {
                None => Err(format!("{typed:?} is no time such as 30d or 25y")),
                Some(Some(time)) if time > Duration::ZERO => Ok(time),
                Some(_) => Err(format!("{typed}: not from 1ms to 1000000000y")),
            },
        };
        let (mttf, repair) = (time(self.mttf, before.mttf)?, time(self.repair, before.repair)?);
        if repair > mttf {
            return Err("repair takes longer than a copy lasts".to_owned());
        }
        Ok(Lifetime { mttf, repair })
    }
}

impl WrittenClass {
    fn read(
        self,
        name: &str,
        known: &BTreeMap<String, Specification>,
    ) -> Result<Specification, String> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_word) {
            return Err("a class is named by letters, digits, - and _".to_owned());
        }
        let base = match &self.like {
            Some(like) => {
                known.get(like).ok_or_else(|| format!("there is no class {like}"))?.clone()
            }
            None => Specification::nothing(),
        };
        let mut read = base;
        let steps = [self.memory, self.local, self.shared, self.durable, self.archive];
        for (level, step) in Level::ALL.into_iter().zip(steps) {
            let Some(step) = step else { continue };
            let step =
                step.read(read.steps.get(&level)).map_err(|why| format!("{level}: {why}"))?;
            read.steps.insert(level, step);
        }
        let waits = |call: &str, typed: Option<String>, before: Option<Level>| match typed {
            None => Ok(before),
            Some(word) if word == "nothing" => Ok(None),
            Some(word) => match Level::named(&word) {
                Some(level) => Ok(Some(level)),
                None => Err(format!("{call} = {word:?}: neither a level nor \"nothing\"")),
            },
        };
        read.close = waits("close", self.close, read.close)?;
        read.fsync = waits("fsync", self.fsync, read.fsync)?;
        if let Some(word) = self.on_error {
            let known = [OnError::Discard, OnError::Keep];
            let found = known.into_iter().find(|known| known.name() == word);
            read.on_error = found.ok_or(format!("on_error = {word:?}: not keep or discard"))?;
        }
        if read.steps.is_empty() && read.close.is_none() && read.fsync.is_none() {
            return Err("it promises nothing".to_owned());
        }
        Ok(read)
    }
}

impl WrittenStep {
    fn read(self, before: Option<&Step>) -> Result<Step, String> {
        let (within, copies) = match self {
            WrittenStep::Within(within) => (deadline(&within)?, before.map_or(1, |it| it.copies)),
            WrittenStep::Copies(Copies { within: Some(within), copies }) => {
                (deadline(&within)?, copies)
            }
            WrittenStep::Copies(Copies { within: None, copies }) => {
                (before.ok_or("it has no deadline")?.within, copies)
            }
        };
        if !(1..=COPIES_MAX).contains(&copies) {
            return Err(format!("{copies} copies: not from 1 to {COPIES_MAX}"));
        }
        Ok(Step { within, copies })
    }
}

/// Reads "0", "never" or a number with a unit.
fn deadline(typed: &str) -> Result<Deadline, String> {
    match typed {
        "0" => return Ok(Deadline::AT_ONCE),
        "never" => return Ok(Deadline::Never),
        _ => {}
    }
    match time(typed, DEADLINE_MAX) {
        None => Err(format!("{typed:?} is no deadline: 0, never, or a time such as 30s or 10min")),
        Some(None) => Err(format!("{typed}: longer than 30 days")),
        Some(Some(time)) => Ok(Deadline::Within(time)),
    }
}

/// Reads a number with a unit. `None`: it is none. `Some(None)`: it is longer than `most`.
fn time(typed: &str, most: Duration) -> Option<Option<Duration>> {
    let digits = typed.find(|c: char| !c.is_ascii_digit()).filter(|digits| *digits > 0)?;
    let (number, unit) = typed.split_at(digits);
    let unit_ms: u64 = match unit.trim_start() {
        "ms" => 1,
        "s" => 1000,
        "min" | "m" => 60_000,
        "h" => 3_600_000,
        "d" => 24 * 3_600_000,
        "y" => 365 * 24 * 3_600_000,
        _ => return None,
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
    Some(ms.map(Duration::from_millis).filter(|time| *time <= most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn classes(text: &str) -> Result<BTreeMap<String, String>, String> {
        let shipped =
            read("shipped", include_str!("shipped.toml"), &BTreeMap::new(), Lifetimes::default())
                .unwrap();
        let known = shipped.classes.into_iter().collect();
        let read = read("test", text, &known, Lifetimes::default())?;
        Ok(read.classes.into_iter().map(|(name, spec)| (name, spec.to_string())).collect())
    }

    fn check(text: &str, expected: &str) {
        match classes(text) {
            Ok(read) => assert_eq!(read.values().next().map(String::as_str), Some(expected)),
            Err(why) => assert!(why.contains(expected), "{text}: {why}"),
        }
    }

    #[test]
    fn classes_are_read() {
        for (text, expected) in [
            (
                "[class.a]\ndurable = \"5s\"",
                "durable within 5 s, close waits for nothing, fsync for nothing",
            ),
            (
                "[class.a]\nlike = \"edited\"\ndurable = \"2min\"",
                "durable within 2 min, close waits for durable, fsync for durable",
            ),
            (
                "[class.a]\nlike = \"critical\"\ndurable = { copies = 2 }",
                "durable at every write in 2 copies, close waits for durable, fsync for durable",
            ),
            (
                "[class.a]\nlike = \"b\"\nclose = \"nothing\"\n[class.b]\nlike = \"generated\"\nlocal = { within = \"0\", copies = 2 }",
                "local at every write in 2 copies, durable within 10 min, close waits for nothing, fsync for local",
            ),
            (
                "[class.generated]\nlike = \"generated\"\ndurable = \"never\"",
                "local within 1 s, close waits for nothing, fsync for local",
            ),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn what_is_left_out_of_a_level_is_as_before() {
        let read = |text: &str, before| read("test", text, &BTreeMap::new(), before).unwrap();
        let first = read("[level.shared]\nmttf = '90d'", Lifetimes::default()).lifetimes;
        let second = read("[level.shared]\nrepair = '2min'\n[level.archive]", first).lifetimes;
        let (days, minutes) = (Duration::from_secs(90 * 24 * 3600), Duration::from_secs(120));
        assert_eq!(second.of(Level::Shared), Lifetime { mttf: days, repair: minutes });
        assert_eq!(second.of(Level::Archive), Lifetimes::default().of(Level::Archive));
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        for (text, expected) in [
            ("[class.a]\ndurable = \"soon\"", "class a: durable: \"soon\" is no deadline"),
            ("[class.a]\ndurable = \"5\"", "is no deadline"),
            ("[class.a]\ndurable = \"99999999999999999999d\"", "longer than 30 days"),
            ("[class.a]\ndurable = \"31d\"", "longer than 30 days"),
            ("[class.a]\ndurable = { copies = 2 }", "it has no deadline"),
            ("[class.a]\ndurable = { within = \"0\", copies = 0 }", "0 copies: not from 1 to 16"),
            ("[class.a]\nlike = \"edit\"", "class a: there is no class edit"),
            (
                "[class.a]\nlike = \"b\"\n[class.b]\nlike = \"a\"",
                "classes a, b are like each other",
            ),
            ("[class.a]\nclose = \"disk\"", "neither a level"),
            ("[class.a]\nfsync = \"\"", "neither a level"),
            ("[class.a]\non_error = \"panic\"\ndurable = \"0\"", "not keep or discard"),
            ("[class.a]", "it promises nothing"),
            ("[class.\"a b\"]\ndurable = \"0\"", "letters, digits"),
            ("[class.a]\n\ndurabel = \"0\"", "line 3: unknown field"),
            ("class = 7", "line 1: invalid type"),
            ("[level.disk]", "level disk: there is no such level"),
            ("[level.local]\nmttf = '25'", "level local: \"25\" is no time such as"),
            ("[level.local]\nmttf = 'never'", "is no time such as"),
            ("[level.local]\nmttf = '0d'", "level local: 0d: not from 1ms"),
            ("[level.local]\nmttf = '9999999999y'", "9999999999y: not from 1ms to 1000000000y"),
            ("[level.shared]\nmttf = '1h'\nrepair = '2h'", "level shared: repair takes longer"),
            ("[level.shared]\nmtbf = '1h'", "line 2: unknown field `mtbf`"),
            (
                "[[rule]]\nglob = \"*.o\"\n[[rule]]\nglob = \"*.o\"\nclass = \"edited\"",
                "missing field `class`",
            ),
        ] {
            check(text, expected);
            assert_eq!(classes(text).unwrap_err().lines().count(), 1, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "(\\[class\\.a\\]\n|\\[level\\.local\\]\n|mttf = \"[0-9a-z]{0,20}\"\n|\\[\\[rule\\]\\]\n|durable = \"[0-9a-z]{0,20}\"\n|glob = \"[*a-z{\\[/]{0,9}\"\n|class = \"edited\"\n|.{0,9}){0,6}") {
            let _ = read("test", &text, &BTreeMap::new(), Lifetimes::default());
        }
    }
}
