//! A rule: which files have a class.

use std::os::unix::ffi::OsStrExt;

use globset::{GlobBuilder, GlobMatcher};
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::choose::Subject;

/// Longest glob or regular expression, in bytes.
const EXPRESSION_BYTES_MAX: usize = 4096;

/// Most memory of a compiled expression, in bytes: [`regex`] takes time in proportion to the path,
/// whatever the expression, and this bounds the factor.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// The kernel keeps this many bytes of a program's name (proc_pid_comm(5)).
const PROGRAM_BYTES_MAX: usize = 15;

/// A rule as it is written. All conditions that are given must hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// As in gitignore(5): without a slash it is about the last name, with one at the end about
    /// all in such a directory, with another one about the whole path below the mount.
    glob: Option<String>,
    /// A match anywhere in the path below the mount.
    regex: Option<String>,
    /// The user who opens the file.
    uid: Option<Uids>,
    /// Limits on the size when the file is opened, in bytes; a new file has size 0.
    size_min: Option<u64>,
    size_max: Option<u64>,
    /// The name of the program that opens it, as ps(1) shows it.
    program: Option<String>,
    class: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
enum Uids {
    One(u32),
    Some(Vec<u32>),
}

impl Uids {
    fn all(&self) -> &[u32] {
        match self {
            Uids::One(uid) => std::slice::from_ref(uid),
            Uids::Some(uids) => uids,
        }
    }
}

/// Which files have a class.
#[derive(Clone, Debug)]
pub struct Rule {
    written: Wanted,
    glob: Option<GlobMatcher>,
    regex: Option<Regex>,
    file: String,
    number: u32,
}

impl Rule {
    /// Reads rule `number` of a file called `file`.
    ///
    /// # Errors
    /// A line for the user, without the file's name and the rule's number.
    pub(crate) fn new(written: Wanted, file: &str, number: u32) -> Result<Rule, String> {
        for expression in [&written.glob, &written.regex].into_iter().flatten() {
            if expression.is_empty() || expression.len() > EXPRESSION_BYTES_MAX {
                return Err(format!("an expression has 1 to {EXPRESSION_BYTES_MAX} bytes"));
            }
        }
        if written.uid.as_ref().is_some_and(|uids| uids.all().is_empty())
            || written.size_min.unwrap_or(0) > written.size_max.unwrap_or(u64::MAX)
        {
            return Err("no file can be so".to_owned());
        }
        if written.program.as_ref().is_some_and(String::is_empty) {
            return Err("a program has a name".to_owned());
        }
        let glob = written.glob.as_deref().map(compile_glob).transpose()?;
        let regex = written.regex.as_deref().map(compile_regex).transpose()?;
        Ok(Rule { written, glob, regex, file: file.to_owned(), number })
    }

    /// Its number among the rules of its file, from 1.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The class that it chooses.
    pub fn class(&self) -> &str {
        &self.written.class
    }

    /// Whether it depends on the program that opens the file.
    pub fn asks_for_program(&self) -> bool {
        self.written.program.is_some()
    }

    /// Whether it depends on the directory that a file is in.
    pub fn asks_for_directory(&self) -> bool {
        self.written.regex.is_some()
            || self.written.glob.as_ref().is_some_and(|glob| glob.contains('/'))
    }

    /// Whether it applies to a file.
    pub fn applies(&self, subject: &Subject<'_>) -> bool {
        let written = &self.written;
        let program = written.program.as_ref().map(|name| {
            let name = name.as_bytes();
            &name[..name.len().min(PROGRAM_BYTES_MAX)]
        });
        written.uid.as_ref().is_none_or(|uids| uids.all().contains(&subject.uid))
            && written.size_min.is_none_or(|least| subject.size >= least)
            && written.size_max.is_none_or(|most| subject.size <= most)
            && program.is_none_or(|name| subject.program.map(OsStrExt::as_bytes) == Some(name))
            && self.glob.as_ref().is_none_or(|glob| glob.is_match(subject.path))
            && self
                .regex
                .as_ref()
                .is_none_or(|regex| regex.is_match(subject.path.as_os_str().as_bytes()))
    }

    /// Whether a later rule can never apply because of this one, as far as can be seen: this one
    /// has weaker conditions.
    pub(crate) fn hides(&self, later: &Rule) -> bool {
        let (mine, its) = (&self.written, &later.written);
        let same = |mine: &Option<String>, its: &Option<String>| mine.is_none() || mine == its;
        let uids = match (&mine.uid, &its.uid) {
            (None, _) => true,
            (Some(mine), Some(its)) => its.all().iter().all(|uid| mine.all().contains(uid)),
            (Some(_), None) => false,
        };
        uids && same(&mine.glob, &its.glob)
            && same(&mine.regex, &its.regex)
            && same(&mine.program, &its.program)
            && mine.size_min.unwrap_or(0) <= its.size_min.unwrap_or(0)
            && mine.size_max.unwrap_or(u64::MAX) >= its.size_max.unwrap_or(u64::MAX)
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rule {} of {}", self.number, self.file)?;
        let written = &self.written;
        for (name, value) in
            [("glob", &written.glob), ("regex", &written.regex), ("program", &written.program)]
        {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        if let Some(uids) = &written.uid {
            let uids: Vec<String> = uids.all().iter().map(ToString::to_string).collect();
            write!(f, " uid={}", uids.join(","))?;
        }
        for (name, value) in [("size_min", written.size_min), ("size_max", written.size_max)] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        Ok(())
    }
}

fn compile_glob(typed: &str) -> Result<GlobMatcher, String> {
    let bad = || format!("glob {typed:?} is no path below the mount");
    let name = typed.strip_suffix('/').unwrap_or(typed);
    let inside = if name.len() < typed.len() { "/**" } else { "" };
    let whole = match name.strip_prefix('/') {
        Some(anchored) => format!("{anchored}{inside}"),
        None if name.contains('/') => format!("{name}{inside}"),
        None => format!("**/{name}{inside}"),
    };
    if name.trim_matches('/').is_empty() || whole.split('/').any(|part| part == "..") {
        return Err(bad());
    }
    let mut glob = GlobBuilder::new(&whole);
    let built = glob.literal_separator(true).backslash_escape(true).build();
    // Its regular expression is compiled without a limit of ours, but from at most this many bytes.
    built
        .map(|glob| glob.compile_matcher())
        .map_err(|error| format!("glob {typed:?}: {}", error.kind()))
}

fn compile_regex(typed: &str) -> Result<Regex, String> {
    let mut regex = RegexBuilder::new(typed);
    let built = regex.size_limit(COMPILED_BYTES_MAX).dfa_size_limit(COMPILED_BYTES_MAX).build();
    built.map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        format!("regex {typed:?}: {}", last.trim_start_matches("error: "))
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    fn rule(text: &str) -> Result<Rule, String> {
        let wanted: Wanted = toml::from_str(&format!("class = \"generated\"\n{text}")).unwrap();
        Rule::new(wanted, "test", 1)
    }

    fn subject(path: &str) -> Subject<'_> {
        Subject { path: Path::new(path), uid: 1000, size: 0, program: None, own: None, dir: None }
    }

    #[test]
    fn paths_match_as_in_gitignore() {
        for (glob, path, applies) in [
            ("*.o", "a.o", true),
            ("*.o", "deep/in/a.o", true),
            ("*.o", "a.o/b", false),
            ("*.o", "a.oo", false),
            ("*.{o,a}", "x/y.a", true),
            ("target/", "target/debug/x", true),
            ("target/", "a/target/x", true),
            ("target/", "target", false),
            ("target/", "my-target/x", false),
            ("/target/", "a/target/x", false),
            ("/target/", "target/a/b/c", true),
            ("src/*.c", "src/a.c", true),
            ("src/*.c", "src/b/a.c", false),
            ("src/**/*.c", "src/b/d/a.c", true),
            ("src/*.c", "x/src/a.c", false),
            ("[a-c].txt", "b.txt", true),
            (".*.sw[a-p]", "d/.notes.swp", true),
            ("\\*.o", "*.o", true),
            ("\\*.o", "a.o", false),
        ] {
            let rule = rule(&format!("glob = '{glob}'")).unwrap();
            assert_eq!(rule.applies(&subject(path)), applies, "{glob} {path}");
        }
    }

    #[test]
    fn each_condition_must_hold() {
        let cc = Some(OsStr::new("cc1"));
        let file = Subject { size: 10, program: cc, ..subject("a/b.s") };
        for (text, applies) in [
            ("", true),
            ("regex = '^a/.*[.]s$'", true),
            ("regex = '^b'", false),
            ("uid = 1000", true),
            ("uid = [1, 1000]", true),
            ("uid = 0", false),
            ("size_min = 10\nsize_max = 10", true),
            ("size_min = 11", false),
            ("size_max = 9", false),
            ("program = 'cc1'", true),
            ("program = 'cc'", false),
            ("program = 'cc1'\nuid = 0", false),
            ("program = 'cc1'\nglob = '*.s'\nregex = 'a'\nuid = 1000", true),
        ] {
            assert_eq!(rule(text).unwrap().applies(&file), applies, "{text}");
        }
        let long = rule("program = 'a-very-long-program-name'").unwrap();
        let seen = Some(OsStr::new("a-very-long-pro"));
        assert!(long.applies(&Subject { program: seen, ..subject("a") }), "as the kernel cuts it");
        assert!(!long.applies(&subject("a")), "an unknown program is none");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, expected) in [
            ("glob = ''", "1 to 4096 bytes"),
            ("glob = '/'", "no path below the mount"),
            ("glob = '../x'", "no path below the mount"),
            ("glob = '[a'", "unclosed character class"),
            ("glob = '{a'", "unclosed alternate group"),
            ("regex = '('", "unclosed group"),
            ("regex = '(a{500}){500}'", "size limit"),
            ("regex = '(?=a)'", "look-around"),
            ("uid = []", "no file can be so"),
            ("size_min = 2\nsize_max = 1", "no file can be so"),
            ("program = ''", "has a name"),
        ] {
            let why = rule(text).unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
            assert_eq!(why.lines().count(), 1);
        }
    }

    /// An expression that costs backtracking matchers exponential time is matched quickly.
    #[test]
    fn no_expression_runs_for_ever() {
        let long = "a".repeat(4000);
        for text in ["regex = '^(a+)+$'", "regex = '(a|a)*b'", "glob = '*a*a*a*a*a*a*a*a*a*b'"] {
            let begun = Instant::now();
            assert!(!rule(text).unwrap().applies(&subject(&format!("{long}!"))));
            assert!(begun.elapsed().as_secs() < 5, "{text}");
        }
    }

    #[test]
    fn a_rule_that_asks_for_less_hides_later_ones() {
        for (earlier, later, hides) in [
            ("", "glob = 'a'", true),
            ("glob = 'a'", "", false),
            ("glob = 'a'", "glob = 'a'\nuid = 7", true),
            ("uid = [1, 2]", "uid = 2", true),
            ("uid = 2", "uid = [1, 2]", false),
            ("size_max = 9", "size_max = 5", true),
            ("size_max = 5", "size_max = 9", false),
            ("size_min = 1", "", false),
            ("program = 'a'", "program = 'b'", false),
            ("regex = 'a'", "glob = 'a'", false),
        ] {
            let hidden = rule(earlier).unwrap().hides(&rule(later).unwrap());
            assert_eq!(hidden, hides, "{earlier} before {later}");
        }
    }

    #[test]
    fn a_rule_is_a_line() {
        let rule = rule("glob = '*.o'\nuid = [1, 2]\nsize_max = 9\nprogram = 'cc'").unwrap();
        assert_eq!(rule.to_string(), "rule 1 of test glob=*.o program=cc uid=1,2 size_max=9");
        assert!(rule.asks_for_program());
        assert_eq!(rule.class(), "generated");
    }
}
