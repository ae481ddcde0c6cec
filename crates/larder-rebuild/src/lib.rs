//! Rules by which lost files are made again.
//!
//! A [`Rule`] says how a command made files: the command, its environment and working directory,
//! what it read, and what it wrote. It is text ([`Rule::to_text`], `docs/formats/rule.md`) and has
//! a name, the hash of that text ([`Rule::id`]).
//!
//! [`plan`] puts the rules that a lost file needs in order, since an input may be lost, too, and
//! finds cycles. An [`Attempt`] is one run of one rule: it takes events (the state of an input, how
//! the command ended, what it made) and returns the next step. Every failure is a [`Refusal`]: one
//! line for the owner of the file.
//!
//! Everything here is a function of its input. *Absent:* files, processes, clocks, and how a
//! command is watched or confined.

mod attempt;
mod hash;
mod plan;
mod refusal;
mod rule;
mod rule_path;
mod text;

pub use attempt::{Attempt, Ended, Event, Found, Step};
pub use hash::{Hash, Hasher};
pub use plan::{Standing, plan};
pub use refusal::Refusal;
pub use rule::{Freshness, Input, Output, Program, Rule, System};
pub use rule_path::RulePath;
pub use text::{RULE_BYTES_MAX, WrongRule};
