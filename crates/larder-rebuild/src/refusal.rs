//! Why a file stays lost.

use std::time::Duration;

use crate::rule::System;
use crate::{RulePath, WrongRule};

/// Why a file stays lost: a line for its owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not recorded how it was made.
    #[error("no rule says how it was made; see larder class rebuild --help")]
    NoRule,
    /// It was written after its rule had made it.
    #[error("it was changed after its rule had made it, so the rule would make another one")]
    Overwritten,
    /// Its rule cannot be read.
    #[error("its rule cannot be used: {0}")]
    Wrong(#[from] WrongRule),
    /// An input is not there.
    #[error("its input {0} is missing")]
    MissingInput(RulePath),
    /// An input is lost, and has no rule.
    #[error("its input {0} is lost, too, and no rule says how that was made")]
    LostInput(RulePath),
    /// An input has changed since.
    #[error("its input {0} has changed; with freshness latest it would be made from that")]
    ChangedInput(RulePath),
    /// Each of these files is made from the next one, the last one from the first.
    #[error("it would be made from itself: {}", Circle(.0))]
    Cycle(Vec<RulePath>),
    /// The command wrote another file only.
    #[error("the command ended well, but did not make {0}")]
    NotMade(RulePath),
    /// The command made other bytes, and the same were asked for.
    #[error("the command made other bytes than {0} had")]
    OtherBytes(RulePath),
    /// The command failed.
    #[error("the command ended with {}{}", .how, Said(.said))]
    Failed {
        /// Its exit status or signal.
        how: String,
        /// The last line that it wrote to standard error.
        said: String,
    },
    /// The command did not end.
    #[error("the command did not end within {} s, and was killed", .0.as_secs_f32())]
    TimedOut(Duration),
    /// Another run of the same rule did not end.
    #[error("another run of its rule did not end within {} s", .0.as_secs_f32())]
    StillRunning(Duration),
    /// It was made on another system.
    #[error("it was made on {made_on}, and this is {here}")]
    OtherSystem {
        /// Of the rule.
        made_on: System,
        /// Of this machine.
        here: System,
    },
    /// The machine did not let us do it.
    #[error("it could not be tried: {0}")]
    NotTried(String),
}

impl Refusal {
    /// Its kind, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::NoRule => "no-rule",
            Refusal::Overwritten => "overwritten",
            Refusal::Wrong(_) => "wrong-rule",
            Refusal::MissingInput(_) | Refusal::LostInput(_) => "missing-input",
            Refusal::ChangedInput(_) => "changed-input",
            Refusal::Cycle(_) => "cycle",
            Refusal::NotMade(_) => "not-made",
            Refusal::OtherBytes(_) => "other-bytes",
            Refusal::Failed { .. } => "failed",
            Refusal::TimedOut(_) | Refusal::StillRunning(_) => "timeout",
            Refusal::OtherSystem { .. } => "other-system",
            Refusal::NotTried(_) => "not-tried",
        }
    }
}

/// Files, each made from the next.
struct Circle<'a>(&'a [RulePath]);

impl std::fmt::Display for Circle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> =
            self.0.iter().chain(self.0.first()).map(RulePath::to_string).collect();
        f.write_str(&names.join(" from "))
    }
}

/// The last line of a command's output, if any.
struct Said<'a>(&'a str);

impl std::fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            "" => Ok(()),
            said => write!(f, ": {said}"),
        }
    }
}
