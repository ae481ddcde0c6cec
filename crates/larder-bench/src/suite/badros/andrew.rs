//! The Andrew phases: make directories, copy a source tree into them, ask for attributes, search,
//! compile. The tree is a small C package that is made here: 71 files in 21 directories.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::run;
use crate::data::{Pattern, Random};
use crate::suite::{Outcome, Place};

/// Directories of the tree, its top included.
const DIRS: usize = 21;
/// Files of the tree.
const FILES: usize = 71;
/// Those of them that are C, the rest is documentation.
const SOURCES: usize = 24;
/// How much there is to compile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Package {
    /// Functions in each C file.
    pub(super) functions: usize,
}

/// Where the tree to be copied lies, and the copy.
const FROM: &str = "source";
const TO: &str = "tree";

/// What is searched for; once in each file.
const NEEDLE: &str = "remember_this_line";

/// Path of a directory of the tree within it: the top, and four groups of five.
fn dir(i: usize) -> PathBuf {
    match i {
        0 => PathBuf::new(),
        i if i <= 4 => PathBuf::from(format!("group{i}")),
        i => PathBuf::from(format!("group{}/part{}", 1 + i % 4, i / 4)),
    }
}

fn file(i: usize) -> PathBuf {
    let suffix = if i < SOURCES { "c" } else { "txt" };
    dir(i % DIRS).join(format!("file{i}.{suffix}"))
}

fn content(i: usize, package: Package) -> Vec<u8> {
    let mut content = format!("/* {NEEDLE} {i} */\n").into_bytes();
    if i < SOURCES {
        content.extend(source(i, package.functions).into_bytes());
    } else {
        let len = Random(i as u64).below(8000) as usize;
        content.extend(Pattern(i as u64).text(len));
    }
    content
}

/// A C file with work for the optimiser. `main` is in the first and adds up what the others give.
fn source(i: usize, functions: usize) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n");
    for f in 0..functions {
        let _ = write!(
            text,
            "static unsigned f{f}(unsigned x) {{\n  unsigned t[64], s = {i};\n  for (int k = 0; k < 64; k++) \
             t[k] = (x * {}u + k) ^ (x >> (k & 15));\n  for (int k = 1; k < 64; k++) {{ if (t[k] & 1) s += \
             t[k - 1] * 3; else s ^= t[k]; }}\n  return s;\n}}\n",
            2 * f + 3
        );
    }
    let _ = write!(text, "unsigned part{i}(unsigned x) {{\n  unsigned s = x;\n");
    for f in 0..functions {
        let _ = writeln!(text, "  s += f{f}(s);");
    }
    text.push_str("  return s;\n}\n");
    if i == 0 {
        for other in 1..SOURCES {
            let _ = writeln!(text, "unsigned part{other}(unsigned);");
        }
        text.push_str("int main(void) {\n  unsigned s = part0(1);\n");
        for other in 1..SOURCES {
            let _ = writeln!(text, "  s ^= part{other}(s);");
        }
        text.push_str("  printf(\"built %u\\n\", s != 0);\n  return 0;\n}\n");
    }
    text
}

/// Puts the tree that is copied into `top`.
pub(super) fn furnish(top: &Path, package: Package) -> Result<()> {
    for i in 0..DIRS {
        fs::create_dir_all(top.join(FROM).join(dir(i)))?;
    }
    for i in 0..FILES {
        fs::write(top.join(FROM).join(file(i)), content(i, package))?;
    }
    Ok(())
}

/// An empty tree of 21 directories.
pub(super) fn mkdir(place: &Place) -> Result<Outcome> {
    for i in 0..DIRS {
        fs::create_dir(place.at(TO).join(dir(i)))?;
    }
    Outcome::done()
}

/// 71 files copied into it.
pub(super) fn copy(place: &Place, package: Package) -> Result<Outcome> {
    for i in 0..FILES {
        fs::copy(place.at(FROM).join(file(i)), place.at(TO).join(file(i)))?;
    }
    let top = place.at(TO);
    Outcome::checked_at_end(move || {
        for i in 0..FILES {
            let wrong = || format!("wrong bytes in {}", file(i).display());
            ensure!(
                fs::read(top.join(file(i))).with_context(wrong)? == content(i, package),
                wrong()
            );
        }
        Ok(())
    })
}

/// Every file's attributes, twice.
pub(super) fn stat(place: &Place) -> Result<Outcome> {
    for _ in 0..2 {
        let mut files = 0;
        walk(&place.at(TO), &mut |_| {
            files += 1;
            Ok(())
        })?;
        ensure!(files == FILES, "{files} files instead of {FILES}");
    }
    Outcome::done()
}

/// Every file searched for a string, twice.
pub(super) fn read(place: &Place) -> Result<Outcome> {
    for _ in 0..2 {
        let mut found = 0;
        walk(&place.at(TO), &mut |path| {
            let bytes = fs::read(path)?;
            found += usize::from(bytes.windows(NEEDLE.len()).any(|part| part == NEEDLE.as_bytes()));
            Ok(())
        })?;
        ensure!(found == FILES, "found in {found} of {FILES} files");
    }
    Outcome::done()
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.symlink_metadata()?.is_dir() {
            walk(&path, visit)?;
        } else {
            visit(&path)?;
        }
    }
    Ok(())
}

/// The package compiled file by file, as make(1) would, linked and run, in the tree.
pub(super) fn compile(place: &Place) -> Result<Outcome> {
    let top = place.at(TO);
    let mut link = Command::new("cc");
    link.arg("-o").arg(top.join("program"));
    for i in 0..SOURCES {
        let object = top.join(file(i).with_extension("o"));
        run(Command::new("cc").args(["-O1", "-c", "-o"]).arg(&object).arg(top.join(file(i))))?;
        link.arg(object);
    }
    run(&mut link)?;
    let program = top.join("program");
    let said = Command::new(&program).output().with_context(|| program.display().to_string())?;
    ensure!(said.stdout == b"built 1\n", "the compiled program says something else");
    Outcome::done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_has_the_published_numbers() {
        let dirs: std::collections::BTreeSet<_> = (0..DIRS).map(dir).collect();
        let files: std::collections::BTreeSet<_> = (0..FILES).map(file).collect();
        assert_eq!((dirs.len(), files.len()), (21, 71));
        for (i, path) in dirs.iter().enumerate().skip(1) {
            assert!(dirs.contains(path.parent().unwrap()), "{i}: {}", path.display());
        }
    }

    #[test]
    fn directories_come_after_their_parents() {
        let top = tempfile::tempdir().unwrap();
        for i in 0..DIRS {
            fs::create_dir(top.path().join("tree").join(dir(i))).unwrap();
        }
    }
}
