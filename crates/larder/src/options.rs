//! The options of a mount, `-o name[=value],...`, in two steps.
//!
//! *As typed* ([`Typed`]): a list of names with values, each name known and each value of the right
//! shape or absent. *Resolved* ([`Options`]): one value for everything that the stack needs, with
//! defaults and the effects of options on each other applied, and contradictions refused. Both
//! steps are pure; nothing below this module sees a string.
//!
//! Names are those of nfs(5) and cachefilesd.conf(5) where they have them; a later option overrides
//! an earlier one, as with mount(8).

mod meant;
mod nearest;
mod remakes;
mod size;
mod smb;
mod span;
mod typed;
mod utc;

pub(crate) use meant::{CacheLimits, Fill, LookupCache, Options, ServerLost, Transport, rule_file};
pub(crate) use remakes::Remakes;
pub(crate) use size::{Bytes, parse_limit, parse_rate, parse_size};
pub(crate) use smb::SmbOptions;
pub(crate) use span::parse_span;
pub(crate) use typed::Typed;
pub(crate) use utc::Utc;

use crate::source::Protocol;

/// Reads the values of all `-o` arguments, in their order, for a mount by `protocol`.
///
/// # Errors
/// A line for the user: unknown name, value of the wrong shape, contradiction, or an option of
/// another protocol.
pub(crate) fn parse_for<'a>(
    protocol: Protocol,
    arguments: impl IntoIterator<Item = &'a str>,
) -> Result<Options, String> {
    let typed = typed(arguments)?;
    typed.iter().try_for_each(|typed| typed.check(protocol))?;
    Options::meant(&typed)
}

/// The same, whatever the protocol.
#[cfg(test)]
pub(crate) fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Options, String> {
    Options::meant(&typed(arguments)?)
}

fn typed<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Vec<Typed>, String> {
    arguments
        .into_iter()
        .flat_map(|argument| argument.split(','))
        .filter(|option| !option.is_empty())
        .map(Typed::parse)
        .collect()
}
