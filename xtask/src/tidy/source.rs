//! Rules on single files: module docs, unsafe code, skipped tests, programs in comments, notes that
//! may not be merged, and paths that exist on one machine only.

use super::{Complaint, File, Tree, lex};

/// The only crates with unsafe code. `larder-helper` has the ioctls that need a privilege, and
/// links no other crate of ours.
const UNSAFE_CRATES: [&str; 3] =
    ["crates/larder-io/", "crates/larder-fuse/", "crates/larder-helper/"];

/// Beginnings of absolute paths that exist on one machine only. Cut in two, so that this file does
/// not complain of itself.
const MACHINE_PATHS: [(&str, &str); 4] =
    [("/wo", "rk/"), ("/ro", "ot/"), ("/tmp/tar", "get"), ("/home/us", "er/")];

/// Longest line of a comment, in characters.
const COMMENT_CHARS_MAX: usize = 100;

/// The note that cannot be merged; cut in two for the same reason.
const NOTE: (&str, &str) = ("FIX", "ME");

/// Complains of every file that breaks one of these rules.
pub(super) fn check(tree: &Tree) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        texts(file, &mut complaints);
    }
    for file in tree.rust() {
        module_docs(file, &mut complaints);
        comments(file, &mut complaints);
        examples(file, &mut complaints);
        code(file, &mut complaints);
    }
    complaints
}

fn texts(file: &File, complaints: &mut Vec<Complaint>) {
    let note = [NOTE.0, NOTE.1].concat();
    for (index, line) in file.text.lines().enumerate() {
        if line.contains(&note) {
            let text = format!("{note} cannot be merged; fix it, or write TODO(#issue)");
            complaints.push(Complaint::new(&file.path, index + 1, text));
        }
        for (begin, end) in MACHINE_PATHS {
            let path = [begin, end].concat();
            if has_absolute(line, &path) {
                let text = format!("{path} exists on one machine only");
                complaints.push(Complaint::new(&file.path, index + 1, text));
            }
        }
    }
}

/// Whether `path` stands in `line` as the beginning of a path, not inside one.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before
            .is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | '$'))
    })
}

fn module_docs(file: &File, complaints: &mut Vec<Complaint>) {
    if !file.text.starts_with("//!") {
        let text = "a file opens with `//!`: what it is, its invariants, what it leaves out";
        complaints.push(Complaint::new(&file.path, 1, text));
    }
}

/// Prose is wrapped, which a machine can do. Tables and what is indented are drawn by hand.
fn comments(file: &File, complaints: &mut Vec<Complaint>) {
    for (index, line) in file.text.lines().enumerate() {
        let Some(text) = line.trim_start().strip_prefix("//") else { continue };
        let text = text.trim_start_matches(['/', '!']);
        let is_drawn = text.starts_with("  ") || text.starts_with(" |");
        if line.chars().count() > COMMENT_CHARS_MAX && !is_drawn {
            let text = format!(
                "a comment has at most {COMMENT_CHARS_MAX} columns: cargo +nightly fmt -- \
                 --config wrap_comments=true,comment_width={COMMENT_CHARS_MAX}; cargo fmt"
            );
            complaints.push(Complaint::new(&file.path, index + 1, text));
        }
    }
}

/// What rustdoc would take for a program is not compiled by `cargo xtask ci`.
fn examples(file: &File, complaints: &mut Vec<Complaint>) {
    let mut is_open = false;
    for (index, line) in file.text.lines().enumerate() {
        let doc = line.trim_start();
        let Some(doc) = doc.strip_prefix("///").or_else(|| doc.strip_prefix("//!")) else {
            is_open = false;
            continue;
        };
        let Some(language) = doc.trim().strip_prefix("```") else { continue };
        is_open = !is_open;
        if is_open && matches!(language, "" | "rust") {
            let text = "nobody compiles a program in a comment: make it a test, or ```text";
            complaints.push(Complaint::new(&file.path, index + 1, text));
        }
    }
}

fn code(file: &File, complaints: &mut Vec<Complaint>) {
    let may_be_unsafe = UNSAFE_CRATES.iter().any(|folder| file.path.starts_with(folder));
    for (index, line) in lex::code(&file.text).lines().enumerate() {
        if !may_be_unsafe && lex::words(line).any(|(word, _)| word == "unsafe") {
            let text = "unsafe code belongs into larder-io, larder-fuse or larder-helper";
            complaints.push(Complaint::new(&file.path, index + 1, text));
        }
        if line.replace(' ', "").contains("#[ignore]") {
            let text = "a test that is skipped says why: #[ignore = \"reason\"]";
            complaints.push(Complaint::new(&file.path, index + 1, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|complaint| complaint.line).collect()
    }

    #[test]
    fn a_tidy_file_is_left_alone() {
        let text = "//! A file.\n#![forbid(unsafe_code)]\n/// unsafe #[ignore]\nfn f() { g(\"unsafe\") }\n";
        assert!(complaints("crates/larder-vfs/src/a.rs", text).is_empty());
    }

    #[test]
    fn module_docs_are_required() {
        assert_eq!(complaints("a.rs", "fn f() {}"), [1]);
        assert_eq!(complaints("a.rs", "// A file.\n"), [1]);
    }

    #[test]
    fn comments_are_wrapped() {
        let of =
            |begin: &str| format!("//! A file.\n    {begin}{}\n", "x".repeat(96 - begin.len()));
        assert!(complaints("a.rs", &of("/// ")).is_empty());
        assert_eq!(complaints("a.rs", &of("/// ").replace("xx", "x x ")), [2]);
        assert!(complaints("a.rs", &of("/// | ").replace("xx", "x x ")).is_empty());
        assert!(complaints("a.rs", &of("//!   ").replace("xx", "x x ")).is_empty());
    }

    #[test]
    fn documentation_has_no_programs() {
        let of = |language: &str| format!("//! A file.\n/// ```{language}\n/// f()\n/// ```\n");
        assert_eq!(complaints("a.rs", &of("")), [2]);
        assert_eq!(complaints("a.rs", &of("rust")), [2]);
        assert!(complaints("a.rs", &of("text")).is_empty());
        assert!(complaints("a.rs", &of("text").repeat(2)).is_empty());
    }

    #[test]
    fn unsafe_stays_in_its_crates() {
        let text = "//! A file.\nfn f() { unsafe { g() } }\n";
        assert_eq!(complaints("crates/larder-client/src/a.rs", text), [2]);
        assert!(complaints("crates/larder-io/src/a.rs", text).is_empty());
        assert!(complaints("crates/larder-fuse/src/a.rs", text).is_empty());
    }

    #[test]
    fn skipped_tests_need_a_reason() {
        assert_eq!(complaints("a.rs", "//! A file.\n#[ignore]\nfn f() {}\n"), [2]);
        assert!(complaints("a.rs", "//! A file.\n#[ignore = \"slow\"]\nfn f() {}\n").is_empty());
    }

    #[test]
    fn notes_and_machine_paths_are_found_in_any_text() {
        let note = [NOTE.0, NOTE.1].concat();
        let path = [MACHINE_PATHS[0].0, MACHINE_PATHS[0].1].concat();
        assert_eq!(complaints("a.md", &format!("one\n{note}: two\n")), [2]);
        assert_eq!(complaints("a.md", &format!("see {path}main\n")), [1]);
        assert!(complaints("a.md", &format!("see mnt{path}main\n")).is_empty());
    }
}
