//! The content of a rule.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::{Hash, RulePath};

/// How a command made files. Rules do not change: a different rule has a different text and thus
/// another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The system on which it ran.
    pub system: System,
    /// Which versions of the inputs a later run takes.
    pub freshness: Freshness,
    /// How long it may run, and how long a reader of a lost file waits for it.
    pub timeout: Duration,
    /// Where the volume was mounted: a later run has it there, too.
    pub root: PathBuf,
    /// The working directory.
    pub dir: RulePath,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// All variables of its environment.
    pub environment: BTreeMap<OsString, OsString>,
    /// What it read, outside of the directories of the system.
    pub inputs: BTreeMap<RulePath, Input>,
    /// Programs in the directories of the system that it ran.
    pub programs: BTreeMap<PathBuf, Program>,
    /// Directories that it made.
    pub made: BTreeSet<RulePath>,
    /// Files of the volume that it wrote.
    pub outputs: BTreeMap<RulePath, Output>,
}

/// The system on which a command runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Architecture and kernel, as uname(2) reports them: `x86_64 Linux`.
    pub machine: String,
    /// Distribution and its version, as os-release(5) has them: `debian 12`.
    pub release: String,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.machine, self.release)
    }
}

/// Which inputs a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Freshness {
    /// As they are now. The result may be another one.
    Latest,
    /// As they were: if one has changed, the file stays lost.
    Version,
    /// As they were, from kept copies; and the result must be the same, byte by byte.
    Original,
}

impl Freshness {
    /// All, from the weakest.
    pub const ALL: [Freshness; 3] = [Freshness::Latest, Freshness::Version, Freshness::Original];
}

impl fmt::Display for Freshness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Freshness::Latest => "latest",
            Freshness::Version => "version",
            Freshness::Original => "original",
        })
    }
}

impl FromStr for Freshness {
    type Err = String;

    fn from_str(text: &str) -> Result<Freshness, String> {
        let found = Freshness::ALL.into_iter().find(|one| one.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is none of latest, version, original"))
    }
}

/// What a command found at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file.
    File {
        /// The hash of its bytes.
        hash: Hash,
        /// How many they are.
        bytes: u64,
        /// Its permissions.
        mode: u32,
        /// When it last changed, in nanoseconds: what make(1) compares.
        changed_ns: i64,
    },
    /// A symbolic link.
    Link(OsString),
    /// A directory. Its content is not part of the rule.
    Dir,
    /// Nothing.
    Absent,
}

/// A program of the system, identified by its size and time: it belongs to the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its size.
    pub bytes: u64,
    /// When it was last changed, in seconds.
    pub changed_s: i64,
}

/// A file that a command wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The hash of its bytes.
    pub hash: Hash,
    /// How many they are.
    pub bytes: u64,
    /// Its permissions.
    pub mode: u32,
}

impl Rule {
    /// Its name.
    pub fn id(&self) -> Hash {
        Hash::of(self.to_text().as_bytes())
    }

    /// Identifies what would run: rules with the same work differ only in what was found and made.
    pub fn work(&self) -> Hash {
        let bare = Rule {
            freshness: Freshness::Version,
            timeout: Duration::ZERO,
            inputs: BTreeMap::new(),
            programs: BTreeMap::new(),
            made: BTreeSet::new(),
            outputs: BTreeMap::new(),
            ..self.clone()
        };
        bare.id()
    }

    /// Outputs that were inputs before they were changed. Without a kept copy, they cannot be made
    /// again.
    pub fn own_inputs(&self) -> impl Iterator<Item = &RulePath> {
        let is_file = |place| matches!(self.inputs.get(place), Some(Input::File { .. }));
        self.outputs.keys().filter(move |place| is_file(*place))
    }
}
