//! Reads the texts that describe cases; [the module above](super) says what is in them.

use std::fmt;

/// A case: its name, what it needs of a server, and its steps.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) needs: Vec<&'static str>,
    pub(super) steps: Vec<Step>,
}

/// One call of one actor.
#[derive(Clone)]
pub(super) struct Step {
    /// Where it stands in the text, from 1.
    pub(super) line: usize,
    pub(super) actor: String,
    pub(super) call: String,
    pub(super) expected: Expected,
    text: &'static str,
}

/// The expected result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// No error.
    Success,
    /// One of these values and errors.
    OneOf(Vec<String>),
    /// No error, and the value is kept under this name.
    Kept(String),
    /// The value that was kept.
    Same(String),
    /// A number that is higher than the one that was kept.
    Higher(String),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// Whether an answer is the name of an error.
pub(super) fn is_errno(said: &str) -> bool {
    said.len() > 2 && said.starts_with('E') && said.chars().all(|it| it.is_ascii_uppercase())
}

/// Reads a text.
///
/// # Panics
/// If it is not as it should be.
pub(super) fn parse(text: &'static str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    // How often the further indented steps are repeated, and the first of them.
    let mut repeat: Option<(usize, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let (indent, words) = (line.len() - line.trim_start().len(), line.trim());
        if indent < 4 {
            end_repeat(cases.last_mut(), repeat.take());
        }
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("case ") {
            cases.push(Case { name, needs: Vec::new(), steps: Vec::new() });
            continue;
        }
        let case = cases.last_mut().expect("a line `case` before any step");
        match words.split_once(' ') {
            Some(("needs", needs)) => case.needs.extend(needs.split(' ')),
            Some(("repeat", times)) => repeat = Some((times.parse().unwrap(), case.steps.len())),
            _ => case.steps.push(step(index + 1, words)),
        }
    }
    end_repeat(cases.last_mut(), repeat);
    assert!(!cases.is_empty());
    cases
}

fn end_repeat(case: Option<&mut Case>, repeat: Option<(usize, usize)>) {
    if let (Some(case), Some((times, from))) = (case, repeat) {
        let again = case.steps[from..].to_vec();
        (1..times).for_each(|_| case.steps.extend(again.iter().cloned()));
    }
}

fn step(line: usize, text: &'static str) -> Step {
    let (call, expected) = if let Some((call, name)) = text.split_once(" -> ") {
        (call, Expected::Kept(name.to_owned()))
    } else if let Some((call, what)) = text.split_once(" =") {
        (call, expected(what.trim_start()))
    } else {
        (text, Expected::Success)
    };
    let (actor, call) = call.split_once(' ').expect("an actor and a call");
    Step { line, actor: actor.to_owned(), call: call.to_owned(), expected, text }
}

fn expected(what: &str) -> Expected {
    match what.split_at_checked(1) {
        Some(("=", name)) => Expected::Same(name.to_owned()),
        Some((">", name)) => Expected::Higher(name.to_owned()),
        _ => Expected::OneOf(what.split('|').map(repeated).collect()),
    }
}

/// A word as the actor gets it: `x*255` is this many letters.
fn repeated(word: &str) -> String {
    let times = word.split_once('*').and_then(|(one, times)| Some((one, times.parse().ok()?)));
    times.map_or_else(|| word.to_owned(), |(one, times)| one.repeat(times))
}

#[test]
fn texts_of_cases_are_read() {
    let text = "# What.\n\ncase one\n  needs a b\n  p1 open h f\n  repeat 2\n    p2 stat f size = 1|ENOENT\n  \
                p1 stat f mtime -> t\ncase two\n  root stat f mtime = >t\n  root list . =\n";
    let cases = parse(text);
    let names: Vec<_> = cases.iter().map(|case| (case.name, &case.needs[..])).collect();
    assert_eq!(names, [("one", &["a", "b"][..]), ("two", &[])]);
    let steps: Vec<_> =
        cases.iter().flat_map(|case| &case.steps).map(|it| (it.line, &*it.call)).collect();
    let stat = (7, "stat f size");
    let others = [(8, "stat f mtime"), (10, "stat f mtime"), (11, "list .")];
    assert_eq!(steps, [&[(5, "open h f"), stat, stat][..], &others].concat());
    let expected: Vec<_> = cases[1].steps.iter().map(|step| step.expected.clone()).collect();
    let nothing = Expected::OneOf(vec![String::new()]);
    assert_eq!(expected, [Expected::Higher("t".to_owned()), nothing]);
}
