//! Rules on the documents: decisions are listed, dependencies have a reason, promises have a test.
//!
//! A promise is a heading of `docs/semantics.md` that ends in an id, `{#close-to-open}`. Below it a
//! line `Test:` names, in backquotes, the functions that show it, and each must exist. Under the
//! heading [`PENDING`] stand promises without a test yet: they say `Planned:` instead, and once a
//! function of such a name exists the promise must move up.

use std::collections::BTreeSet;

use anyhow::{Context, Result};

use super::{Complaint, Tree, lex};

const SEMANTICS: &str = "docs/semantics.md";
const DECISIONS: &str = "docs/adr/";
const DECISION_LIST: &str = "docs/adr/README.md";
const DEPENDENCIES: &str = "docs/adr/0002-dependencies.md";

/// Heading of the promises that no test shows yet.
const PENDING: &str = "## Promised, not yet shown";

/// Complains of every document that is not true to the repository.
pub(super) fn check(tree: &Tree) -> Result<Vec<Complaint>> {
    let mut complaints = decisions(tree);
    complaints.extend(dependencies(tree)?);
    complaints.extend(promises(tree));
    Ok(complaints)
}

fn decisions(tree: &Tree) -> Vec<Complaint> {
    let list = tree.text(DECISION_LIST).unwrap_or("");
    let names = tree.files.iter().filter_map(|file| file.path.strip_prefix(DECISIONS));
    names
        .filter(|name| *name != "README.md" && !list.contains(&format!("({name})")))
        .map(|name| Complaint::new(DECISION_LIST, 0, format!("{name} is not listed")))
        .collect()
}

fn dependencies(tree: &Tree) -> Result<Vec<Complaint>> {
    let Some(manifest) = tree.text("Cargo.toml") else {
        return Ok(Vec::new());
    };
    let manifest: toml::Table = manifest.parse().context("Cargo.toml")?;
    let Some(table) = manifest.get("workspace").and_then(|w| w.get("dependencies")?.as_table())
    else {
        return Ok(Vec::new());
    };
    let reasons = tree.text(DEPENDENCIES).unwrap_or("");
    Ok(table
        .keys()
        .filter(|name| !name.starts_with("larder-") && !reasons.contains(&format!("| `{name}` |")))
        .map(|name| Complaint::new(DEPENDENCIES, 0, format!("there is no line for {name}")))
        .collect())
}

/// A promise of the semantics.
struct Promise<'a> {
    id: &'a str,
    line: usize,
    /// Whether it stands among those that are not shown yet.
    pending: bool,
    /// Names on its `Test:` lines.
    tests: Vec<&'a str>,
    /// Names on its `Planned:` lines.
    planned: Vec<&'a str>,
}

fn promises(tree: &Tree) -> Vec<Complaint> {
    let promises = parse_promises(tree.text(SEMANTICS).unwrap_or(""));
    let known = function_names(tree);
    let mut ids = BTreeSet::new();
    let mut complaints = Vec::new();
    for promise in &promises {
        let mut complain = |text: String| {
            complaints.push(Complaint::new(
                SEMANTICS,
                promise.line,
                format!("{}: {text}", promise.id),
            ));
        };
        if !ids.insert(promise.id) {
            complain("this id is there twice".to_owned());
        }
        for test in promise.tests.iter().filter(|test| !known.contains(**test)) {
            complain(format!("there is no function {test}"));
        }
        let named = if promise.pending { &promise.planned } else { &promise.tests };
        if named.is_empty() {
            let line = if promise.pending { "Planned:" } else { "Test:" };
            complain(format!("no `{line}` line names its test"));
        }
        for test in promise.planned.iter().filter(|test| known.contains(**test)) {
            complain(format!("{test} exists now: say `Test:`, and move the promise up"));
        }
    }
    complaints
}

fn parse_promises(text: &str) -> Vec<Promise<'_>> {
    let mut promises: Vec<Promise<'_>> = Vec::new();
    let mut pending = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("## ") {
            pending = line == PENDING;
        }
        let id = line.split_once("{#").and_then(|(_, rest)| rest.split_once('}'));
        if let (true, Some((id, _))) = (line.starts_with('#'), id) {
            let (tests, planned) = (Vec::new(), Vec::new());
            promises.push(Promise { id, line: index + 1, pending, tests, planned });
        }
        let Some(promise) = promises.last_mut() else {
            continue;
        };
        if let Some(names) = line.strip_prefix("Test:") {
            promise.tests.extend(quoted(names));
        } else if let Some(names) = line.strip_prefix("Planned:") {
            promise.planned.extend(quoted(names));
        }
    }
    promises
}

/// What stands in backquotes, without the path before the last `::`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).map(|name| name.rsplit("::").next().unwrap_or(name))
}

fn function_names(tree: &Tree) -> BTreeSet<String> {
    tree.rust()
        .flat_map(|file| lex::functions(&lex::code(&file.text)))
        .map(|function| function.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).unwrap().into_iter().map(|complaint| complaint.text).collect()
    }

    #[test]
    fn every_decision_is_listed() {
        let decision = ("docs/adr/0001-a.md", "");
        assert_eq!(complaints(&[decision, (DECISION_LIST, "")]).len(), 1);
        assert!(complaints(&[decision, (DECISION_LIST, "[a](0001-a.md)")]).is_empty());
    }

    #[test]
    fn every_dependency_has_a_reason() {
        let text = "[workspace.dependencies]\nlarder-io.path = \"x\"\nbytes = \"1\"\n";
        let manifest = ("Cargo.toml", text);
        assert_eq!(complaints(&[manifest]), ["there is no line for bytes"]);
        let list = (DECISION_LIST, "[dependencies](0002-dependencies.md)");
        assert!(complaints(&[manifest, list, (DEPENDENCIES, "| `bytes` | buffers |")]).is_empty());
    }

    #[test]
    fn a_promise_has_a_test() {
        let code = ("a.rs", "fn shows_it() {}");
        let shown = |text: &str| complaints(&[code, (SEMANTICS, text)]);
        assert!(shown("### P {#p}\nTest: `a::shows_it`\n").is_empty());
        assert_eq!(shown("### P {#p}\nTest: `missing`\n"), ["p: there is no function missing"]);
        assert_eq!(shown("### P {#p}\n"), ["p: no `Test:` line names its test"]);
        assert_eq!(shown("### P {#p}\nTest: `shows_it`\n### Q {#p}\nTest: `shows_it`\n").len(), 1);
    }

    #[test]
    fn a_pending_promise_moves_up_once_its_test_exists() {
        let pending = |code: &str| {
            let text = format!("{PENDING}\n### P {{#p}}\nPlanned: `will_show_it`\n");
            complaints(&[("a.rs", code), (SEMANTICS, &text)])
        };
        assert!(pending("").is_empty());
        assert_eq!(pending("fn will_show_it() {}").len(), 1);
        assert_eq!(complaints(&[(SEMANTICS, &format!("{PENDING}\n### P {{#p}}\n"))]).len(), 1);
    }
}
