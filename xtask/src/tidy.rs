//! `cargo xtask tidy`: a test of the repository.
//!
//! Every rule is a pure function from a [`Tree`] (paths and texts) to complaints, so each is tested
//! on a fixture of a few lines. What grows slowly and cannot be forbidden at once is a *ratchet*:
//! `xtask/ratchet.toml` lists the present exceptions with their figures, which may only get better.
//!
//! Left out on purpose: what rustc and clippy hold already.

mod arrows;
mod circles;
mod docs;
mod fields;
mod lex;
mod linked;
mod ratchet;
mod source;
mod tested;

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Where the ratchets are kept, from the top of the repository.
const RATCHET_PATH: &str = "xtask/ratchet.toml";

/// Directories without sources of ours. In a worktree `.git` is a file.
const SKIPPED: [&str; 2] = [".git", "target"];

/// Longest file that is checked, in bytes; longer ones are data.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// What to do with the ratchets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ratchets {
    /// Complain of everything that is not exactly as listed.
    Hold,
    /// Write better figures down; never worse ones, never new ones.
    Tighten,
}

/// Checks the repository below `root`.
///
/// # Errors
/// If there is a complaint; each is printed first.
pub(crate) fn run(root: &Path, ratchets: Ratchets) -> Result<()> {
    let mut tree = Tree::read(root)?;
    if ratchets == Ratchets::Tighten {
        let held = ratchet::Held::parse(tree.text(RATCHET_PATH).unwrap_or(""))?;
        let tightened = held.tightened(&ratchet::measure(&tree)).to_string();
        std::fs::write(root.join(RATCHET_PATH), &tightened).context(RATCHET_PATH)?;
        tree.replace(RATCHET_PATH, tightened);
    }
    let complaints = check(&tree)?;
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    ensure!(complaints.is_empty(), "tidy: {} complaint(s)", complaints.len());
    eprintln!("tidy: {} files are in order", tree.files.len());
    Ok(())
}

/// Prints the lines of code and of tests of each crate below `root`, as `tidy` counts them, and the
/// assertions and expectations on a thousand lines of its code.
///
/// # Errors
/// If the repository cannot be read.
pub(crate) fn print_lines(root: &Path) -> Result<()> {
    let [code, tests] = ["code", "tests"];
    println!("{:27} {code:>7} {tests:>7} tests/code checks/1,000", "crate");
    for (folder, lines) in tested::lines(&Tree::read(root)?) {
        let tested::Lines { code, tests, .. } = lines;
        // Rounded down: what is shown as 1.00 is no less.
        let percent = lines.percent().min(999);
        let (per_line, checked) = (percent / 100, lines.tenths_checked());
        println!(
            "{folder:27} {code:7} {tests:7} {per_line:>7}.{:02} {:>10}.{}",
            percent % 100,
            checked / 10,
            checked % 10
        );
    }
    Ok(())
}

/// Prints the cycles of files of each crate, and the names that cause them.
///
/// # Errors
/// If the repository cannot be read.
pub(crate) fn print_circles(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    for (folder, files) in ratchet::by_crate(&tree) {
        for circle in circles::of(&files, &format!("{folder}/src/")) {
            println!("{folder}: {} files need each other", circle.len());
            for (module, needs) in circle {
                println!("  {module}: {}", needs.join(", "));
            }
        }
    }
    Ok(())
}

/// Every rule, in the order in which a reader would fix the complaints.
fn check(tree: &Tree) -> Result<Vec<Complaint>> {
    let mut complaints = arrows::check(tree)?;
    complaints.extend(source::check(tree));
    complaints.extend(docs::check(tree)?);
    complaints.extend(linked::check(tree)?);
    let held = ratchet::Held::parse(tree.text(RATCHET_PATH).unwrap_or(""))?;
    complaints.extend(held.check(&ratchet::measure(tree)));
    Ok(complaints)
}

/// Something that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Complaint {
    /// File, from the top of the repository.
    path: String,
    /// Line, from 1; 0 if it is about the whole file.
    line: usize,
    /// What is wrong and what would be right.
    text: String,
}

impl Complaint {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Complaint {
        Complaint { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// The texts of the repository, sorted by path.
struct Tree {
    files: Vec<File>,
}

/// A text of the repository.
struct File {
    /// Path from the top, with `/` between folders.
    path: String,
    text: String,
}

impl File {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

impl Tree {
    fn new(files: impl IntoIterator<Item = (String, String)>) -> Tree {
        let mut files: Vec<File> =
            files.into_iter().map(|(path, text)| File { path, text }).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { files }
    }

    /// Reads every text below `root`. A file that is not UTF-8 is not a text.
    fn read(root: &Path) -> Result<Tree> {
        let mut found = Vec::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let entry = entry?;
                let (kind, path) = (entry.file_type()?, entry.path());
                if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                    continue;
                }
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && entry.metadata()?.len() <= TEXT_BYTES_MAX {
                    let inner = path.strip_prefix(root)?.to_string_lossy().into_owned();
                    if let Ok(text) = String::from_utf8(std::fs::read(&path)?) {
                        found.push((inner, text));
                    }
                }
            }
        }
        Ok(Tree::new(found))
    }

    fn file(&self, path: &str) -> Option<&File> {
        let at = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        Some(&self.files[at])
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.file(path).map(|file| &*file.text)
    }

    fn replace(&mut self, path: &str, text: String) {
        match self.files.binary_search_by(|file| file.path.as_str().cmp(path)) {
            Ok(at) => self.files[at].text = text,
            Err(at) => self.files.insert(at, File { path: path.to_owned(), text }),
        }
    }

    fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tree {
        /// A small repository for a test.
        pub(super) fn of(files: &[(&str, &str)]) -> Tree {
            Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())))
        }
    }

    #[test]
    fn this_repository_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let tree = Tree::read(root).unwrap();
        assert!(tree.text("xtask/src/tidy.rs").is_some());
        assert!(tree.files.iter().all(|file| !file.path.starts_with("target/")));
    }

    #[test]
    fn replace_keeps_the_order() {
        let mut tree = Tree::of(&[("a", "1"), ("c", "3")]);
        tree.replace("b", "2".to_owned());
        tree.replace("c", "4".to_owned());
        assert_eq!(
            (tree.text("a"), tree.text("b"), tree.text("c")),
            (Some("1"), Some("2"), Some("4"))
        );
    }
}
