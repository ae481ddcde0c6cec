//! How many lines of a crate are code, and how many are its tests.
//!
//! A line counts if it is neither blank nor comment. A line is a test's by what the compiler is
//! told, not by a name:
//! - it belongs to an item under `#[cfg(test)]`, whatever kind of item that is;
//! - its file is a module that is declared under `#[cfg(test)]`, or declared by such a file;
//! - its file lies in the folder `tests` of the crate, which cargo builds for tests only.
//!
//! Everything else below `src` is code. Examples and build scripts are neither. Left out on
//! purpose: `#[path]`, modules that an inline module declares, and other conditions that name
//! `test`; there are none in the crates that are held.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{File, Tree, lex};

/// The attribute that keeps an item out of everything but tests.
const CFG_TEST: &str = "#[cfg(test)]";

/// Words with which a field or a variant does not begin, so that no comma ends what they begin.
const ITEMS: [&str; 15] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "unsafe",
    "use",
];

/// What checks an invariant.
const CHECKS: [&str; 4] = ["assert!(", "assert_eq!(", "assert_ne!(", ".expect("];

/// Lines of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    pub(super) code: usize,
    pub(super) tests: usize,
    /// Assertions and expectations of invariants in the code.
    pub(super) checks: usize,
}

impl Lines {
    /// Lines of tests for a hundred lines of code, rounded down; a crate without code has enough.
    pub(super) fn percent(self) -> usize {
        (self.tests * 100).checked_div(self.code).unwrap_or(usize::MAX)
    }

    /// Tenths of a check on a thousand lines of code.
    pub(super) fn tenths_checked(self) -> usize {
        (self.checks * 10_000).checked_div(self.code).unwrap_or(0)
    }
}

/// The lines of each crate in the folder `crates`, by its folder.
pub(super) fn lines(tree: &Tree) -> BTreeMap<&str, Lines> {
    let test_files = test_files(tree);
    let mut crates = BTreeMap::<&str, Lines>::new();
    for file in tree.rust() {
        let Some((folder, inside)) = crate_of(&file.path) else { continue };
        let is_tested = inside.starts_with("tests/") || test_files.contains(&*file.path);
        if !is_tested && !inside.starts_with("src/") {
            continue;
        }
        let text = lex::uncommented(&file.text);
        let parts = test_parts(&lex::code(&file.text));
        let lines = crates.entry(folder).or_default();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            if is_tested || parts.iter().any(|part| part.contains(&at)) {
                lines.tests += 1;
            } else {
                lines.code += 1;
                lines.checks +=
                    CHECKS.iter().map(|check| line.matches(check).count()).sum::<usize>();
            }
        }
    }
    crates
}

/// The folder of a file's crate, and the rest of its path.
fn crate_of(path: &str) -> Option<(&str, &str)> {
    let name = path.strip_prefix("crates/")?.find('/')?;
    let folder = "crates/".len() + name;
    Some((&path[..folder], &path[folder + 1..]))
}

/// The files below a `src` that are compiled for tests only.
fn test_files(tree: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left = Vec::new();
    for file in tree.rust().filter(|file| file.path.contains("/src/")) {
        let code = lex::code(&file.text);
        for part in test_parts(&code) {
            let lines: Vec<&str> = code.lines().skip(part.start).take(part.len()).collect();
            left.extend(declared(file, &lines.join("\n")));
        }
    }
    while let Some(path) = left.pop() {
        let Some(file) = tree.file(&path) else { continue };
        if found.insert(path) {
            left.extend(declared(file, &lex::code(&file.text)));
        }
    }
    found
}

/// The paths at which the modules may lie that a text of `file` declares (`mod NAME;`).
fn declared(file: &File, code: &str) -> Vec<String> {
    let stem = file.path.strip_suffix(".rs").unwrap_or(&file.path);
    let folder = match stem.rsplit_once('/') {
        Some((folder, "lib" | "main" | "mod")) => folder,
        _ => stem,
    };
    let names = lex::words(code).zip(lex::words(code).skip(1));
    let names = names.filter(|((word, _), (_, rest))| *word == "mod" && rest.starts_with(';'));
    names
        .flat_map(|(_, (name, _))| {
            [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
        })
        .collect()
}

/// The lines, from 0, of the items under `#[cfg(test)]`, of a text that [`lex::code`] has blanked.
fn test_parts(code: &str) -> Vec<Range<usize>> {
    let line_of = |at: usize| code[..at].matches('\n').count();
    let mut parts = Vec::new();
    let mut end = 0;
    for (at, attribute) in code.match_indices(CFG_TEST) {
        if at >= end {
            end = item_end(code, at + attribute.len());
            parts.push(line_of(at)..line_of(end) + 1);
        }
    }
    parts
}

/// Where the item ends, in bytes, whose attributes and head begin at `begin`: at its last brace, at
/// its `;`, or, if it is a field or a variant, at its comma or before the brace of its type.
fn item_end(code: &str, begin: usize) -> usize {
    let begin = begin + attributes_len(&code[begin..]);
    let is_item = lex::words(&code[begin..])
        .map(|(word, _)| word)
        .find(|word| !["pub", "crate", "super", "in", "self"].contains(word))
        .is_some_and(|word| ITEMS.contains(&word));
    let mut depth = 0_usize;
    for (at, c) in code[begin..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                return begin + code[begin..begin + at].trim_end().len();
            }
            '}' if depth == 1 => return begin + at,
            ')' | ']' | '}' => depth -= 1,
            ';' if depth == 0 => return begin + at,
            ',' if depth == 0 && !is_item => return begin + at,
            _ => {}
        }
    }
    code.len()
}

/// The length of the attributes, and of the space around them, with which a text begins.
fn attributes_len(code: &str) -> usize {
    let mut rest = code.trim_start();
    while rest.starts_with("#[") {
        let mut depth = 0_usize;
        let end = rest.find(|c| {
            depth += usize::from(c == '[');
            depth -= usize::from(c == ']' && depth > 0);
            c == ']' && depth == 0
        });
        rest = rest[end.map_or(rest.len(), |end| end + 1)..].trim_start();
    }
    code.len() - rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> (usize, usize) {
        let tree = Tree::of(files);
        let lines = lines(&tree).get("crates/a").copied().unwrap_or_default();
        (lines.code, lines.tests)
    }

    #[test]
    fn blank_lines_and_comments_count_nowhere() {
        for (text, counted) in [
            ("//! A file.\n\nfn f() {}\n", (1, 0)),
            ("fn f() {} // why\n    // more\n\t\n", (1, 0)),
            ("/* one\nfn f() {}\n*/ fn g() {}\n", (1, 0)),
            ("const A: &str = \"one\n// no comment\n\nthree\";\n", (3, 0)),
            ("const A: char = '\"'; // \"\nfn f() {}\n", (2, 0)),
            ("//! A file.\n#[cfg(test)]\nmod tests {\n\n    // why\n    fn f() {}\n}\n", (0, 4)),
            ("", (0, 0)),
        ] {
            assert_eq!(of(&[("crates/a/src/a.rs", text)]), counted, "{text}");
        }
    }

    #[test]
    fn an_item_for_tests_ends_where_its_syntax_ends() {
        for (item, tests) in [
            ("mod tests {\n    fn f() { g() }\n}\n", 4),
            ("mod tests;\n", 2),
            ("#[allow(a[0], reason = \"]\")]\nmod tests {\n}\n", 4),
            ("pub(crate) fn f<A, B>(a: [u8; 2]) -> [u8; 2]\nwhere\n    A: B,\n{\n    a\n}\n", 7),
            ("impl A {\n    fn f() {}\n\n    fn g() {}\n}\n", 5),
            ("use a::{\n    b,\n    c,\n};\n", 5),
            ("const A: [u8; 2] = [\n    1,\n    2,\n];\n", 5),
            ("fn f() {\n    #[cfg(test)]\n    g();\n}\n", 5),
            ("fn f() { '}'; \"}\"; /* } */\n}\n", 3),
        ] {
            for (before, after) in [("", ""), ("fn before() {}\n", "fn after() {}\n")] {
                let text = format!("//! A file.\n{before}{CFG_TEST}\n{item}{after}");
                let code = usize::from(!before.is_empty()) * 2;
                assert_eq!(of(&[("crates/a/src/a.rs", &text)]), (code, tests), "{text}");
            }
        }
    }

    #[test]
    fn a_field_for_tests_ends_before_the_next() {
        for (fields, counted) in [
            ("    #[cfg(test)]\n    a: u8,\n    b: u8,\n", (3, 2)),
            ("    b: u8,\n    #[cfg(test)]\n    pub(crate) a: [u8; 2],\n", (3, 2)),
            ("    b: u8,\n    #[cfg(test)]\n    a: u8\n", (3, 2)),
            (
                "    #[cfg(test)]\n    #[allow(b)]\n    a: (\n        u8,\n    ),\n    b: u8,\n",
                (3, 5),
            ),
        ] {
            let text = format!("//! A file.\nstruct A {{\n{fields}}}\n");
            assert_eq!(of(&[("crates/a/src/a.rs", &text)]), counted, "{text}");
        }
    }

    #[test]
    fn a_file_is_a_tests_by_its_declaration_and_not_by_its_name() {
        let two = "//! A file.\nfn f() {}\nfn g() {}\n";
        let held = format!("//! A file.\n{CFG_TEST}\nmod b;\n");
        let open = "//! A file.\nmod b;\n";
        let by_test = "//! A file.\nmod deep;\n";
        for (files, counted) in [
            (vec![("crates/a/src/lib.rs", &*held), ("crates/a/src/b.rs", two)], (0, 4)),
            (vec![("crates/a/src/lib.rs", &*held), ("crates/a/src/b/mod.rs", two)], (0, 4)),
            (vec![("crates/a/src/lib.rs", open), ("crates/a/src/b.rs", two)], (3, 0)),
            (vec![("crates/a/src/c/mod.rs", &*held), ("crates/a/src/c/b.rs", two)], (0, 4)),
            (vec![("crates/a/src/c.rs", &*held), ("crates/a/src/c/b.rs", two)], (0, 4)),
            (vec![("crates/a/src/c.rs", &*held), ("crates/a/src/b.rs", two)], (2, 2)),
            (vec![("crates/a/src/tests.rs", two), ("crates/a/src/tests/b.rs", two)], (4, 0)),
            (
                vec![
                    ("crates/a/src/lib.rs", &*held),
                    ("crates/a/src/b.rs", by_test),
                    ("crates/a/src/b/deep.rs", two),
                    ("crates/a/src/deep.rs", two),
                ],
                (2, 5),
            ),
        ] {
            assert_eq!(of(&files), counted, "{files:?}");
        }
    }

    #[test]
    fn folders_say_what_is_built_for_tests() {
        let one = "//! A file.\nfn f() {}\n";
        for (path, counted) in [
            ("crates/a/src/a.rs", (1, 0)),
            ("crates/a/tests/it/main.rs", (0, 1)),
            ("crates/a/src/tests/it.rs", (1, 0)),
            ("crates/a/examples/a.rs", (0, 0)),
            ("crates/a/build.rs", (0, 0)),
            ("crates/ab/src/a.rs", (0, 0)),
            ("xtask/src/a.rs", (0, 0)),
        ] {
            assert_eq!(of(&[(path, one)]), counted, "{path}");
        }
    }

    #[test]
    fn a_hundred_lines_of_tests_are_needed_for_a_hundred_of_code() {
        for (code, tests, percent) in
            [(100, 100, 100), (200, 199, 99), (3, 2, 66), (1, 0, 0), (0, 0, usize::MAX)]
        {
            let lines = Lines { code, tests, checks: 0 };
            assert_eq!(lines.percent(), percent, "{code} {tests}");
        }
    }

    #[test]
    fn checks_of_the_code_are_counted_and_those_of_tests_are_not() {
        let code = "fn a() {\n    debug_assert!(b);\n    c.expect(\"d\");\n    // assert!(e)\n}\n";
        let text =
            format!("{code}#[cfg(test)]\nmod tests {{\n    fn f() {{ assert_eq!(1, 1) }}\n}}\n");
        let tree = Tree::new([("crates/a/src/a.rs".to_owned(), text)]);
        let lines = lines(&tree)["crates/a"];
        assert_eq!((lines.code, lines.checks, lines.tenths_checked()), (4, 2, 5000));
    }
}
