//! The durability classes of a mount: the files that define them.

use std::path::PathBuf;
use std::sync::Arc;

use larder_class::{Class, Classes, LoadError, Offer, RuleFile, Sources, load};

use crate::report::ClassShown;
use crate::source::Protocol;

/// The classes and rules of the machine.
const MACHINE_FILE: &str = "/etc/larder/larder.toml";

/// What becomes of a mount whose classes and rules cannot be read, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfWrong {
    /// There is none.
    Refuse,
    /// It goes on: every file has the strongest class.
    Strongest,
}

/// The classes of a mount with these rules and this class of its own, with a cache on disk or
/// without, and what is wrong with those
/// that were wanted.
///
/// # Errors
/// A line for the user.
pub(crate) fn of_mount(
    class: Option<String>,
    rules: Option<RuleFile>,
    (protocol, on_disk): (Protocol, bool),
    if_wrong: IfWrong,
) -> Result<(Arc<Classes>, Option<LoadError>), LoadError> {
    let offer = offer(protocol, on_disk);
    let sources = Sources { files: files(), rules, class };
    match load(&sources, &offer) {
        Err(error) if if_wrong == IfWrong::Strongest => {
            let class = Some("critical".to_owned());
            let strongest = load(&Sources { class, ..Sources::default() }, &offer)?;
            Ok((Arc::new(strongest), Some(error)))
        }
        loaded => Ok((Arc::new(loaded?), None)),
    }
}

/// The classes of a mount that nobody has made: with these rules before those of the files.
///
/// # Errors
/// A line for the user.
pub(crate) fn of_files(rules: Option<RuleFile>) -> Result<Classes, LoadError> {
    let sources = Sources { files: files(), rules, class: None };
    load(&sources, &offer(Protocol::Nfs, true))
}

/// What the mount promises beyond what was asked for, of the classes that its options and rules
/// name: a line each.
pub(crate) fn raised(classes: &Classes) -> Vec<String> {
    let named = classes.rules().iter().map(larder_class::Rule::class);
    let mut names: Vec<&str> = named.chain([classes.mount().name.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    let classes = names.into_iter().filter_map(|name| classes.get(name).ok());
    let raised = classes.filter(|class| !class.raised.is_empty());
    raised.map(|class| format!("class {}: {}", class.name, class.raised)).collect()
}

/// What a mount keeps, with a cache `on_disk` or without. Only NFS servers tell reliably, so far,
/// that nobody else has changed a file meanwhile.
fn offer(protocol: Protocol, on_disk: bool) -> Offer {
    match protocol {
        Protocol::Nfs if on_disk => larder_client::offer("an NFS mount", true),
        Protocol::Nfs => larder_client::offer("an NFS mount without a cache on disk", false),
        Protocol::Smb => larder_client::offer("a share", false),
        Protocol::Native => larder_client::offer("a volume", false),
    }
}

/// Files of the machine and of the user, which need not be there.
fn files() -> Vec<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".config"));
    let user = config.filter(|dir| dir.is_absolute()).or_else(home);
    let user = user.map(|dir| dir.join("larder/larder.toml"));
    [Some(PathBuf::from(MACHINE_FILE)), user].into_iter().flatten().collect()
}

/// Classes for people, by name.
pub(crate) fn shown(classes: &Classes) -> Vec<ClassShown> {
    let usual = &classes.mount().name;
    let one = |(name, class): (&str, Result<&Class, &str>)| match class {
        Ok(class) => ClassShown {
            name: name.to_owned(),
            is_default: name == usual,
            promise: class.promised.to_string(),
            raised: class.raised.clone(),
            file: class.file.clone(),
            refused: None,
        },
        Err(why) => ClassShown {
            name: name.to_owned(),
            refused: Some(why.to_owned()),
            ..ClassShown::default()
        },
    };
    classes.all().map(one).collect()
}
