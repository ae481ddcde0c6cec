//! The Andrew phases: make directories, copy a source tree into them, ask for attributes, search,
//! compile. The tree is a C package with documentation that is made here, in any size; every copy
//! of a test has contents of its own, so that a file that ended up with another client is found.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::command;
use super::{Outcome, Size, WorkDir};
use crate::data::{Pattern, Random};

/// The place of the tree to be copied, and of the copy.
const FROM: &str = "source";
const TO: &str = "tree";

/// The text to search for; once in each file.
const NEEDLE: &str = "remember_this_line";

/// Compiles its arguments, links them, and prints the CPU time used. One shell for all: it reports
/// times in steps of 10 ms, and so rounds once, not once per file.
const COMPILE: &str = r#"
cd "$1" || exit
shift
objects=
for source in "$@"; do
    cc -O1 -c -o "${source%.c}.o" "$source" || exit
    objects="$objects ${source%.c}.o"
done
cc -o program $objects || exit
times
"#;

/// How large a tree is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tree {
    /// Directories, its top included.
    pub(super) dirs: usize,
    /// Files, spread over all directories.
    pub(super) files: usize,
    /// Those of them that are C; the rest is documentation.
    pub(super) sources: usize,
    /// Functions in each of those.
    pub(super) functions: usize,
    /// No documentation is longer than this; on average it is half as long.
    pub(super) text_bytes_max: u64,
}

impl Tree {
    /// The tree of the original benchmark; small, there is less to compile.
    pub(super) fn original(size: Size) -> Tree {
        Tree { dirs: 21, files: 71, sources: 24, functions: size.pick(2, 40), text_bytes_max: 8000 }
    }

    /// Path of a directory within the tree: the top, groups, and parts of groups, about as many
    /// parts in each group as there are groups.
    fn dir(self, i: usize) -> PathBuf {
        let groups = (self.dirs - 1).isqrt();
        match i {
            0 => PathBuf::new(),
            i if i <= groups => PathBuf::from(format!("group{i}")),
            i => PathBuf::from(format!("group{}/part{}", 1 + i % groups, i / groups)),
        }
    }

    fn file(self, i: usize) -> PathBuf {
        let suffix = if i < self.sources { "c" } else { "txt" };
        self.dir(i % self.dirs).join(format!("file{i}.{suffix}"))
    }

    fn content(self, copy: u32, i: usize) -> Vec<u8> {
        let mut content = format!("/* {NEEDLE} {i} of copy {copy} */\n").into_bytes();
        if i < self.sources {
            content.extend(self.source(i).into_bytes());
        } else {
            let seed = (u64::from(copy) << 32) + i as u64;
            let len = Random(seed).below(self.text_bytes_max) as usize;
            content.extend(Pattern(seed).text(len));
        }
        content
    }

    /// A C file with work for the optimiser. `main` is in the first and adds up what the others
    /// give.
    fn source(self, i: usize) -> String {
        let mut text =
            String::from("#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n");
        for f in 0..self.functions {
            let _ = write!(
                text,
                "static unsigned f{f}(unsigned x) {{\n  unsigned t[64], s = {i};\n  for (int k = 0; k < 64; k++) \
                 t[k] = (x * {}u + k) ^ (x >> (k & 15));\n  for (int k = 1; k < 64; k++) {{ if (t[k] & 1) s += \
                 t[k - 1] * 3; else s ^= t[k]; }}\n  return s;\n}}\n",
                2 * f + 3
            );
        }
        let _ = write!(text, "unsigned part{i}(unsigned x) {{\n  unsigned s = x;\n");
        for f in 0..self.functions {
            let _ = writeln!(text, "  s += f{f}(s);");
        }
        text.push_str("  return s;\n}\n");
        if i == 0 {
            for other in 1..self.sources {
                let _ = writeln!(text, "unsigned part{other}(unsigned);");
            }
            text.push_str("int main(void) {\n  unsigned s = part0(1);\n");
            for other in 1..self.sources {
                let _ = writeln!(text, "  s ^= part{other}(s);");
            }
            text.push_str("  printf(\"built %u\\n\", s != 0);\n  return 0;\n}\n");
        }
        text
    }

    /// Puts the tree that is copied into a place.
    pub(super) fn furnish(self, place: &WorkDir) -> Result<()> {
        for i in 0..self.dirs {
            fs::create_dir_all(place.at(FROM).join(self.dir(i)))?;
        }
        for i in 0..self.files {
            fs::write(place.at(FROM).join(self.file(i)), self.content(place.copy, i))?;
        }
        Ok(())
    }

    /// All phases once, one after the other; the compiler's CPU time is to be subtracted. What each
    /// phase took is told beside the result, that of compiling with the CPU time.
    pub(super) fn all(self, place: &WorkDir) -> Result<Outcome> {
        let mut phases = BTreeMap::new();
        let mut compiler_s = 0.0;
        for (name, phase) in [
            ("mkdir_s", Tree::mkdir as fn(Tree, &WorkDir) -> Result<()>),
            ("copy_s", Tree::copy),
            ("scan_s", |tree, place| tree.stat(place, 1)),
            ("read_s", |tree, place| tree.read(place, 1)),
        ] {
            let started = Instant::now();
            phase(self, place)?;
            phases.insert(name.to_owned(), started.elapsed().as_secs_f64());
        }
        let started = Instant::now();
        compiler_s += self.compile(place)?;
        phases.insert("compile_s".to_owned(), started.elapsed().as_secs_f64());
        let outcome = Outcome { subtract_s: Some(compiler_s), extra: phases, ..Outcome::default() };
        let place = place.clone();
        Ok(outcome.and_check_at_end(move || self.check(&place)))
    }

    /// The directories, empty.
    pub(super) fn mkdir(self, place: &WorkDir) -> Result<()> {
        for i in 0..self.dirs {
            fs::create_dir(place.at(TO).join(self.dir(i)))?;
        }
        Ok(())
    }

    /// The files, copied into them.
    pub(super) fn copy(self, place: &WorkDir) -> Result<()> {
        for i in 0..self.files {
            let file = self.file(i);
            fs::copy(place.at(FROM).join(&file), place.at(TO).join(&file))?;
        }
        Ok(())
    }

    /// Compares the copied files with what they must be.
    pub(super) fn check(self, place: &WorkDir) -> Result<()> {
        for i in 0..self.files {
            let path = place.at(TO).join(self.file(i));
            let wrong = || format!("wrong bytes in {}", path.display());
            let read = fs::read(&path).with_context(wrong)?;
            ensure!(read == self.content(place.copy, i), wrong());
        }
        Ok(())
    }

    /// Every file's attributes, some times over.
    pub(super) fn stat(self, place: &WorkDir, times: u32) -> Result<()> {
        for _ in 0..times {
            let mut files = 0;
            walk(&place.at(TO), &mut |_| {
                files += 1;
                Ok(())
            })?;
            ensure!(files == self.files, "{files} files instead of {}", self.files);
        }
        Ok(())
    }

    /// Every file searched for a string, some times over.
    pub(super) fn read(self, place: &WorkDir, times: u32) -> Result<()> {
        for _ in 0..times {
            let mut found = 0;
            walk(&place.at(TO), &mut |path| {
                let bytes = fs::read(path)?;
                let mut parts = bytes.windows(NEEDLE.len());
                found += usize::from(parts.any(|part| part == NEEDLE.as_bytes()));
                Ok(())
            })?;
            ensure!(found == self.files, "found in {found} of {} files", self.files);
        }
        Ok(())
    }

    /// The package compiled file by file, as make(1) would, linked and run, in the tree. Returns
    /// the CPU time, user and system, of the compiler and its parts, in seconds.
    pub(super) fn compile(self, place: &WorkDir) -> Result<f64> {
        let top = place.at(TO);
        let mut shell = Command::new("sh");
        shell.env("LC_ALL", "C").args(["-c", COMPILE, "sh"]).arg(&top);
        shell.args((0..self.sources).map(|i| self.file(i)));
        let said = command::run(&mut shell)?;
        let program = top.join("program");
        let built = Command::new(&program).output();
        let built = built.with_context(|| program.display().to_string())?;
        ensure!(built.stdout == b"built 1\n", "the compiled program says something else");
        children_s(&said).with_context(|| format!("sh: times printed {said:?}"))
    }
}

/// Compiles a program aside, so that shell, compiler and headers are in memory: they are no part of
/// what is measured, and dropping memory drops them too.
pub(super) fn warm_up(_: &WorkDir) -> Result<&'static str> {
    let tree = Tree { dirs: 1, files: 1, sources: 1, functions: 1, text_bytes_max: 1 };
    let dir = tempfile::tempdir()?;
    let place = WorkDir::aside(&dir);
    tree.furnish(&place)?;
    tree.mkdir(&place)?;
    tree.copy(&place)?;
    tree.compile(&place)?;
    Ok("then the compiler read")
}

/// CPU time, user and system, of a shell's children, from the output of its `times`: two lines, the
/// shell and its children, each with user and system time as `0m1.230000s`.
fn children_s(printed: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut times = printed.lines().last()?.split_whitespace();
    for time in [times.next()?, times.next()?] {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        sum += 60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?;
    }
    Some(sum)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const TINY: Tree = Tree { dirs: 4, files: 6, sources: 3, functions: 2, text_bytes_max: 100 };

    #[test]
    fn the_tree_has_the_published_numbers() {
        let tree = Tree::original(Size::Full);
        for (tree, dirs, files) in
            [(tree, 21, 71), (Tree { dirs: 690, files: 10_528, ..tree }, 690, 10_528)]
        {
            let made: BTreeSet<_> = (0..tree.dirs).map(|i| tree.dir(i)).collect();
            let names: BTreeSet<_> = (0..tree.files).map(|i| tree.file(i)).collect();
            assert_eq!((made.len(), names.len()), (dirs, files));
        }
    }

    #[test]
    fn directories_come_after_their_parents() {
        for dirs in [2, 3, 21, 690] {
            let mut made = BTreeSet::new();
            for i in 0..dirs {
                let dir = Tree { dirs, ..TINY }.dir(i);
                assert!(
                    dir.parent().is_none_or(|parent| made.contains(parent)),
                    "{}",
                    dir.display()
                );
                made.insert(dir);
            }
        }
    }

    #[test]
    fn all_phases_pass_and_a_file_of_another_copy_is_found() {
        let top = tempfile::tempdir().unwrap();
        let place = WorkDir::local(top.path(), 1);
        TINY.furnish(&place).unwrap();
        let mut outcome = TINY.all(&place).unwrap();
        assert!(outcome.subtract_s.unwrap() > 0.0);
        assert_eq!(outcome.extra.len(), 5);
        fs::write(place.at(TO).join(TINY.file(4)), TINY.content(2, 4)).unwrap();
        let error = (outcome.check_at_end.take().unwrap())().unwrap_err().to_string();
        assert!(error.starts_with("wrong bytes in ") && error.ends_with("file4.txt"), "{error}");
    }

    #[test]
    fn times_are_read_as_shells_print_them() {
        let close = |printed: &str, expected: f64| {
            let read = children_s(printed);
            assert!(read.is_some_and(|read| (read - expected).abs() < 1e-9), "{printed}: {read:?}");
        };
        close("0m0.000000s 0m0.010000s\n0m1.500000s 0m0.250000s\n", 1.75);
        close("0m0.001s 0m0.000s\n2m3.456s 0m1.000s\n", 124.456);
        for printed in ["", "0m1.5s", "1.5 0.2", "0m1,5s 0m0,2s", "cc: no input files\n"] {
            assert_eq!(children_s(printed), None, "{printed}");
        }
    }
}
