//! Rules as text: `docs/formats/rule.md`.
//!
//! There is one text for each rule: any other spelling is refused, so that a rule cannot have two
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

use crate::RulePath;
use crate::rule::{Freshness, Input, Output, Program, Rule, System};

/// Longest text of a rule.
pub const RULE_BYTES_MAX: usize = 16 << 20;

const FIRST: &str = "larder rule 1";

/// A field that is empty. No other field has this form: a percent sign is encoded.
const EMPTY: &str = "%";

/// Characters that are encoded.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongRule {
    /// It does not begin as a rule does.
    #[error("it is no rule, or of a later version of larder")]
    Other,
    /// A line says nothing.
    #[error("line {0} is wrong")]
    Line(usize),
    /// A line that has to be there is not.
    #[error("it has no line `{0}`")]
    Lacks(&'static str),
    /// It is not in the one permitted form.
    #[error("it is not written as larder writes it")]
    Unusual,
    /// It is longer than [`RULE_BYTES_MAX`].
    #[error("it is longer than {} MiB", RULE_BYTES_MAX >> 20)]
    TooLong,
}

impl Rule {
    /// The text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{FIRST}\n");
        let mut line = |fields: &[&OsStr]| {
            for (at, field) in fields.iter().enumerate() {
                text.push_str(if at > 0 { " " } else { "" });
                text.extend(percent_encode(field.as_bytes(), ENCODED));
                text.push_str(if field.is_empty() { EMPTY } else { "" });
            }
            text.push('\n');
        };
        let os = OsStr::new;
        line(&[os("system"), os(&self.system.machine), os(&self.system.release)]);
        line(&[os("freshness"), os(&self.freshness.to_string())]);
        line(&[os("timeout_ms"), os(&self.timeout.as_millis().to_string())]);
        line(&[os("root"), self.root.as_os_str()]);
        line(&[os("dir"), self.dir.written()]);
        self.command.iter().for_each(|word| line(&[os("arg"), word]));
        self.environment.iter().for_each(|(name, value)| line(&[os("env"), name, value]));
        for (place, input) in &self.inputs {
            let place = place.written();
            match input {
                Input::File { hash, bytes, mode, changed_ns } => {
                    let rest = format!("{hash} {bytes} {mode:o} {changed_ns}");
                    let rest: Vec<&OsStr> = rest.split(' ').map(os).collect();
                    line(&[&[os("file"), place], &rest[..]].concat());
                }
                Input::Link(target) => line(&[os("link"), place, target]),
                Input::Dir => line(&[os("directory"), place]),
                Input::Absent => line(&[os("absent"), place]),
            }
        }
        for (path, program) in &self.programs {
            let (bytes, changed) = (program.bytes.to_string(), program.changed_s.to_string());
            line(&[os("program"), path.as_os_str(), os(&bytes), os(&changed)]);
        }
        self.made.iter().for_each(|place| line(&[os("made"), place.written()]));
        for (place, output) in &self.outputs {
            let rest = format!("{} {} {:o}", output.hash, output.bytes, output.mode);
            let rest: Vec<&OsStr> = rest.split(' ').map(os).collect();
            line(&[&[os("output"), place.written()], &rest[..]].concat());
        }
        text
    }

    /// Reads a text.
    ///
    /// # Errors
    /// If it is not one that [`Rule::to_text`] returns.
    pub fn from_text(text: &[u8]) -> Result<Rule, WrongRule> {
        if text.len() > RULE_BYTES_MAX {
            return Err(WrongRule::TooLong);
        }
        let text = std::str::from_utf8(text).map_err(|_| WrongRule::Other)?;
        let mut lines = text.split('\n').enumerate();
        if lines.next() != Some((0, FIRST)) {
            return Err(WrongRule::Other);
        }
        let mut read = Read::default();
        for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let fields: Vec<OsString> = line.split(' ').map(decoded).collect();
            read.take(&fields).ok_or(WrongRule::Line(at + 1))?;
        }
        let rule = read.finish()?;
        if rule.to_text() == text { Ok(rule) } else { Err(WrongRule::Unusual) }
    }
}

fn decoded(field: &str) -> OsString {
    let field = if field == EMPTY { "" } else { field };
    OsString::from_vec(percent_decode_str(field).collect())
}

/// What was decoded so far.
#[derive(Default)]
struct Read {
    system: Option<System>,
    freshness: Option<Freshness>,
    timeout: Option<Duration>,
    root: Option<PathBuf>,
    dir: Option<RulePath>,
    command: Vec<OsString>,
    environment: BTreeMap<OsString, OsString>,
    inputs: BTreeMap<RulePath, Input>,
    programs: BTreeMap<PathBuf, Program>,
    made: BTreeSet<RulePath>,
    outputs: BTreeMap<RulePath, Output>,
}

impl Read {
    /// Takes a line; `None` if it is wrong.
    fn take(&mut self, fields: &[OsString]) -> Option<()> {
        let fields: Vec<&OsStr> = fields.iter().map(OsString::as_os_str).collect();
        let (kind, fields) = fields.split_first()?;
        match (kind.to_str()?, fields) {
            ("system", [machine, release]) => {
                let (machine, release) =
                    (machine.to_str()?.to_owned(), release.to_str()?.to_owned());
                self.system = Some(System { machine, release });
            }
            ("freshness", [word]) => self.freshness = Some(number(word)?),
            ("timeout_ms", [ms]) => self.timeout = Some(Duration::from_millis(number(ms)?)),
            ("root", [root]) => self.root = Some(absolute(root)?),
            ("dir", [dir]) => self.dir = Some(RulePath::parse(dir)?),
            ("arg", [word]) => self.command.push(free_of_nul(word)?),
            ("env", [name, value]) => {
                let is_name = !name.is_empty() && !name.as_bytes().contains(&b'=');
                let name = is_name.then(|| free_of_nul(name))??;
                self.environment.insert(name, free_of_nul(value)?);
            }
            ("program", [path, bytes, changed]) => {
                let program = Program { bytes: number(bytes)?, changed_s: number(changed)? };
                self.programs.insert(absolute(path)?, program);
            }
            ("made", [place]) => _ = self.made.insert(RulePath::parse(place)?),
            ("output", [place, hash, bytes, mode]) => {
                let (hash, bytes, mode) = (number(hash)?, number(bytes)?, permissions(mode)?);
                let output = Output { hash, bytes, mode };
                let place = RulePath::parse(place).filter(RulePath::is_in_volume)?;
                self.outputs.insert(place, output);
            }
            (kind, [place, rest @ ..]) => {
                let input = input(kind, rest)?;
                self.inputs.insert(RulePath::parse(place)?, input);
            }
            _ => return None,
        }
        Some(())
    }

    fn finish(self) -> Result<Rule, WrongRule> {
        if self.command.is_empty() {
            return Err(WrongRule::Lacks("arg"));
        }
        Ok(Rule {
            system: self.system.ok_or(WrongRule::Lacks("system"))?,
            freshness: self.freshness.ok_or(WrongRule::Lacks("freshness"))?,
            timeout: self.timeout.ok_or(WrongRule::Lacks("timeout_ms"))?,
            root: self.root.ok_or(WrongRule::Lacks("root"))?,
            dir: self.dir.ok_or(WrongRule::Lacks("dir"))?,
            command: self.command,
            environment: self.environment,
            inputs: self.inputs,
            programs: self.programs,
            made: self.made,
            outputs: self.outputs,
        })
    }
}

fn input(kind: &str, fields: &[&OsStr]) -> Option<Input> {
    Some(match (kind, fields) {
        ("file", [hash, bytes, mode, changed]) => {
            let mode = permissions(mode)?;
            let (hash, bytes) = (number(hash)?, number(bytes)?);
            Input::File { hash, bytes, mode, changed_ns: number(changed)? }
        }
        ("link", [target]) => Input::Link(free_of_nul(target)?),
        ("directory", []) => Input::Dir,
        ("absent", []) => Input::Absent,
        _ => return None,
    })
}

fn number<N: FromStr>(field: &OsStr) -> Option<N> {
    field.to_str()?.parse().ok()
}

fn permissions(field: &OsStr) -> Option<u32> {
    u32::from_str_radix(field.to_str()?, 8).ok().filter(|mode| *mode <= 0o7777)
}

/// What the kernel accepts as a path, an argument or a variable.
fn free_of_nul(field: &OsStr) -> Option<OsString> {
    (!field.as_bytes().contains(&0)).then(|| field.to_owned())
}

fn absolute(field: &OsStr) -> Option<PathBuf> {
    let place = RulePath::parse(field)?;
    (!place.is_in_volume()).then(|| place.at(Path::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hash;
    use proptest::prelude::*;

    pub(crate) fn sample() -> Rule {
        let place = |path: &str| RulePath::parse(OsStr::new(path)).unwrap();
        let hash = Hash::of(b"abc");
        Rule {
            system: System { machine: "x86_64 Linux".into(), release: "debian 12".into() },
            freshness: Freshness::Version,
            timeout: Duration::from_secs(60),
            root: "/mnt/v".into(),
            dir: place("src"),
            command: ["cc", "-DX=a b%", "", "-c", "main.c"].map(OsString::from).to_vec(),
            environment: BTreeMap::from([
                ("LANG".into(), "".into()),
                ("PATH".into(), "/usr/bin:/bin".into()),
            ]),
            inputs: BTreeMap::from([
                (place("src"), Input::Dir),
                (place("src/config.h"), Input::Absent),
                (
                    place("src/main.c"),
                    Input::File { hash, bytes: 3, mode: 0o644, changed_ns: 1_000_000_001 },
                ),
                (place("src/inc"), Input::Link("../include".into())),
                (
                    place("/home/me/my header.h"),
                    Input::File { hash, bytes: 3, mode: 0o600, changed_ns: -5 },
                ),
            ]),
            programs: BTreeMap::from([("/usr/bin/cc".into(), Program { bytes: 9, changed_s: -1 })]),
            made: BTreeSet::from([place("src/out")]),
            outputs: BTreeMap::from([(
                place("src/out/main.o"),
                Output { hash, bytes: 3, mode: 0o755 },
            )]),
        }
    }

    /// The vectors of `docs/formats/rule.md`.
    #[test]
    fn rules_are_written_as_the_format_says() {
        let format = include_str!("../../../docs/formats/rule.md");
        let text = sample().to_text();
        assert!(format.contains(&format!("```\n{text}```")), "{text}");
        assert!(format.contains(&sample().id().to_string()), "id {}", sample().id());
        assert!(format.contains(&sample().work().to_string()), "work {}", sample().work());
        assert_eq!(Rule::from_text(text.as_bytes()), Ok(sample()));
    }

    /// Changes of what is found and made do not change the work; a change of what is run does.
    #[test]
    fn the_work_of_a_rule_is_what_it_runs() {
        let (rule, mut other) = (sample(), sample());
        other.inputs.clear();
        other.outputs.clear();
        other.freshness = Freshness::Latest;
        assert_eq!(rule.work(), other.work());
        assert_ne!(rule.id(), other.id());
        other.command.push("-g".into());
        assert_ne!(rule.work(), other.work());
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let text = sample().to_text();
        let wrong = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Rule::from_text(text.replacen(from, to, 1).as_bytes()).unwrap_err()
        };
        assert_eq!(wrong("rule 1", "rule 2"), WrongRule::Other);
        assert_eq!(wrong("dir src\n", ""), WrongRule::Lacks("dir"));
        assert_eq!(wrong("dir src", "dir ../src"), WrongRule::Line(6));
        assert_eq!(wrong("root /mnt/v", "root mnt"), WrongRule::Line(5));
        assert_eq!(wrong("env LANG", "env LA=NG"), WrongRule::Line(12));
        assert_eq!(wrong("arg cc", "arg c%00c"), WrongRule::Line(7));
        assert_eq!(wrong("version", "newest"), WrongRule::Line(3));
        assert_eq!(wrong("output src", "output /src"), WrongRule::Line(21));
        assert_eq!(wrong(" 644 ", " 100644 "), WrongRule::Line(18));
        assert_eq!(wrong("made src", "maid src"), WrongRule::Line(20));
        for unusual in [
            text.replace("arg cc", "arg %63c"),
            text.replace("timeout_ms 60000", "timeout_ms 060000"),
            text.replace("dir src\n", "dir src\n\n"),
            text.replace("made src/out\n", "made src/out\nmade src/out\n"),
            text.trim_end().to_owned(),
        ] {
            assert_eq!(Rule::from_text(unusual.as_bytes()), Err(WrongRule::Unusual), "{unusual}");
        }
        assert_eq!(Rule::from_text(b"\xff"), Err(WrongRule::Other));
        let long = vec![b'\n'; RULE_BYTES_MAX + 1];
        assert_eq!(Rule::from_text(&long), Err(WrongRule::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_rule_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..900) {
            let mut whole = sample().to_text().into_bytes();
            let at = at.min(whole.len());
            whole.splice(at..(at + text.len() / 8).min(whole.len()), text.iter().copied());
            if let Ok(rule) = Rule::from_text(&whole) {
                prop_assert_eq!(rule.to_text().into_bytes(), whole);
            }
        }

        #[test]
        fn any_words_are_read_as_they_were_written(words in proptest::collection::vec(
            proptest::collection::vec(1u8.., 0..20), 1..10)) {
            let mut rule = sample();
            rule.command = words.into_iter().map(OsString::from_vec).collect();
            prop_assert_eq!(Rule::from_text(rule.to_text().as_bytes()), Ok(rule));
        }
    }
}
