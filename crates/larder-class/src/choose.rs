//! Which class a file has, and why.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::lifetime::Lifetimes;
use crate::rule::Rule;
use crate::specification::{Deadline, Level, Specification};

/// The class of files that no rule or setting covers.
pub(crate) const DEFAULT: &str = "edited";

/// The strongest class that larder brings.
pub(crate) const STRONGEST: &str = "critical";

/// A class as a mount keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// What the mount promises for it.
    pub promised: Specification,
    /// One line that says what the mount promises beyond what the class asks for, because it has
    /// no such level; or empty.
    pub raised: String,
    /// The file that defines it; `None` if it is built in.
    pub file: Option<String>,
    /// Whether its bytes stay in this machine's memory until another machine asks for them: then
    /// they go to the memory of other machines.
    pub is_retained: bool,
}

impl Class {
    /// Whether bytes are on the server's disk when their write is answered.
    pub fn is_synchronous(&self) -> bool {
        self.promised.write() >= Some(Level::Durable)
    }

    /// Whether its bytes never need to reach the server.
    pub fn stays_here(&self) -> bool {
        self.promised.promised() < Some(Level::Shared)
    }

    /// Whether bytes need not be on any disk before they are at the server, if they ever are.
    pub fn is_in_memory(&self) -> bool {
        self.promised.close.max(self.promised.write()) < Some(Level::Local)
            && self.local_within().is_none()
    }

    /// How long after its close a file may take to be on this machine's disk, if no close waits for
    /// that; `None`: the class does not name that level.
    pub fn local_within(&self) -> Option<Duration> {
        let step = self.promised.steps.get(&Level::Local)?;
        match step.within {
            Deadline::Within(time) if self.promised.close < Some(Level::Local) => Some(time),
            Deadline::Within(_) | Deadline::Never => None,
        }
    }

    /// Whether no caller waits for bytes to be on the server's disk: the memory of other machines
    /// is enough for a time, or for good. A class that asks for the server's disk some time later
    /// has to name that level, too.
    pub fn is_volatile(&self) -> bool {
        let promised = &self.promised;
        let waits_for = promised.close.max(promised.fsync).max(promised.write());
        let is_due = promised.due(Level::Durable) != Deadline::Never;
        if self.is_retained {
            return true;
        }
        let names_it = promised.steps.contains_key(&Level::Shared);
        match waits_for {
            Some(Level::Shared) => names_it || !is_due,
            waits_for => waits_for < Some(Level::Shared) && names_it,
        }
    }

    /// How long bytes may be in the memory of other machines alone, if that is enough for a time;
    /// `None`: for good. An archive that has them by then says nothing about memory.
    pub fn volatile_for(&self) -> Option<Duration> {
        match self.promised.steps.get(&Level::Durable)?.within {
            Deadline::Within(time) => Some(time),
            Deadline::Never => None,
        }
    }

    /// How long after a write a version with it is in the archive, if it is to be there.
    pub fn archive_within(&self) -> Option<Duration> {
        match self.promised.due(Level::Archive) {
            Deadline::Within(time) => Some(time),
            Deadline::Never => None,
        }
    }

    /// How long bytes may take to reach the server's disk, or memory of other machines, although no
    /// caller waits for them; `None`: the class does not say.
    pub fn durable_within(&self) -> Option<Duration> {
        match self.promised.due(Level::Shared) {
            Deadline::Within(time) => Some(time),
            Deadline::Never => None,
        }
    }
}

/// The classes, rules and default of a mount.
#[derive(Clone, Debug)]
pub struct Classes {
    /// By name. Of a class that the mount cannot provide, the reason.
    pub(crate) classes: BTreeMap<String, Result<Arc<Class>, String>>,
    /// In order: the first rule that applies decides.
    pub(crate) rules: Vec<Rule>,
    /// The class of files that nothing else covers.
    pub(crate) mount: Arc<Class>,
    /// Whether the user chose that class by an option of the mount.
    pub(crate) is_mount_typed: bool,
    /// Of files whose own class is not known: the strongest that larder brings, since what it was
    /// is not known.
    pub(crate) strongest: Arc<Class>,
    /// How long copies last at each level.
    pub(crate) lifetimes: Lifetimes,
}

/// A file whose class is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its path below the mount.
    pub path: &'a Path,
    /// The user who opens it.
    pub uid: u32,
    /// Its size, in bytes.
    pub size: u64,
    /// The program that opens it, if that is known.
    pub program: Option<&'a OsStr>,
    /// The class that was set for the file itself.
    pub own: Option<&'a str>,
    /// The nearest directory above it for which a class was set, and that class.
    pub dir: Option<(&'a Path, &'a str)>,
}

/// The class of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The chosen class.
    pub class: Arc<Class>,
    /// What decided it.
    pub why: Why,
}

/// What decided on a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was set for the file itself.
    Own,
    /// It was set for this directory.
    Directory(PathBuf),
    /// This rule.
    Rule(String),
    /// The mount's options.
    Mount,
    /// Nothing: the default applies.
    Default,
    /// A class was set that is no longer known, or that this mount cannot provide.
    Lost(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Own => f.write_str("set for the file itself"),
            Why::Directory(dir) if dir.as_os_str().is_empty() => {
                f.write_str("set for the root of the mount")
            }
            Why::Directory(dir) => write!(f, "set for directory {}", dir.display()),
            Why::Rule(rule) => f.write_str(rule),
            Why::Mount => f.write_str("the mount's option class"),
            Why::Default => f.write_str("the default: no rule applies"),
            Why::Lost(name) => {
                write!(f, "class {name}, which was set for it, is not known here: the strongest")
            }
        }
    }
}

impl Classes {
    /// The class of a file: what was set for it, or for a directory above it, or what the first
    /// rule says that applies, or the mount's.
    pub fn choose(&self, subject: &Subject<'_>) -> Choice {
        let set = match (subject.own, subject.dir) {
            (Some(own), _) => Some((own, Why::Own)),
            (None, Some((dir, name))) => Some((name, Why::Directory(dir.to_owned()))),
            (None, None) => None,
        };
        if let Some((name, why)) = set {
            let is_known = self.get(name).is_ok();
            let why = if is_known { why } else { Why::Lost(name.to_owned()) };
            return Choice { class: self.get_or_strongest(name), why };
        }
        let rule = self.rules.iter().find(|rule| rule.applies(subject));
        match rule.and_then(|rule| Some((rule, self.get(rule.class()).ok()?))) {
            Some((rule, class)) => Choice { class, why: Why::Rule(rule.to_string()) },
            None => {
                let why = if self.is_mount_typed { Why::Mount } else { Why::Default };
                Choice { class: self.mount.clone(), why }
            }
        }
    }

    /// The shortest time within which a file of one of the classes that files can have is to be in
    /// the archive: of the mount's and those of rules; with `any`, of all.
    pub fn archive_within(&self, any: bool) -> Option<Duration> {
        let ruled = self.rules.iter().filter_map(|rule| self.get(rule.class()).ok());
        let named = ruled.chain([self.mount.clone()]);
        let all = self.classes.values().filter(|_| any).flatten().cloned();
        named.chain(all).filter_map(|class| class.archive_within()).min()
    }

    /// The class with this name, as the mount keeps it.
    ///
    /// # Errors
    /// A line for the user: there is none, or the mount cannot keep it.
    pub fn get(&self, name: &str) -> Result<Arc<Class>, String> {
        match self.classes.get(name) {
            Some(Ok(class)) => Ok(class.clone()),
            Some(Err(why)) => Err(format!("class {name}: {why}")),
            None => {
                let names: Vec<_> = self.classes.keys().map(String::as_str).collect();
                Err(format!("there is no class {name}, but {}", names.join(", ")))
            }
        }
    }

    /// The class with this name, or the strongest built-in one if the class is no longer known, or
    /// the mount cannot provide it: what it promised is not known.
    pub fn get_or_strongest(&self, name: &str) -> Arc<Class> {
        self.get(name).unwrap_or_else(|_| self.strongest.clone())
    }

    /// All classes by name. Of a class that the mount cannot provide, the reason.
    pub fn all(&self) -> impl Iterator<Item = (&str, Result<&Class, &str>)> {
        self.classes
            .iter()
            .map(|(name, class)| (name.as_str(), class.as_deref().map_err(String::as_str)))
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// How long copies last at each level.
    pub fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }

    /// The class of files that nothing else covers.
    pub fn mount(&self) -> &Arc<Class> {
        &self.mount
    }

    /// Whether a rule depends on the program that opens a file.
    pub fn ask_for_program(&self) -> bool {
        self.rules.iter().any(Rule::asks_for_program)
    }
}
