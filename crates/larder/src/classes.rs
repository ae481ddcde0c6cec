//! The durability classes of a mount: the files that define them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use larder_class::{Class, Classes, LoadError, Offer, RuleFile, Sources, load};
use larder_client::{Here, shared_offer};

use crate::memory_dir;
use crate::report::ClassShown;
use crate::source::Protocol;

/// The classes and rules of the machine.
const MACHINE_FILE: &str = "/etc/larder/larder.toml";

/// What happens to a mount whose classes and rules cannot be read, or provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfWrong {
    /// There is none.
    Refuse,
    /// It continues: every file has the strongest class.
    Strongest,
}

/// The facts that decide what a mount can provide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mount {
    pub(crate) protocol: Protocol,
    /// There is a cache on disk.
    pub(crate) on_disk: bool,
    /// Files may lie in memory.
    pub(crate) in_memory: bool,
    /// It is the only writer of its export.
    pub(crate) is_exclusive: bool,
    /// For how long data may be unsent, if the options set that.
    pub(crate) unsent_age_max: Option<Duration>,
}

/// The classes of a mount with these rules and this class of its own, and what is wrong with the
/// wanted ones.
///
/// # Errors
/// A line for the user.
pub(crate) fn of_mount(
    class: Option<String>,
    rules: Option<RuleFile>,
    mount: Mount,
    if_wrong: IfWrong,
) -> Result<(Arc<Classes>, Option<LoadError>), LoadError> {
    let offer = offer(mount);
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

/// The classes without a mount: with these rules before those of the files.
///
/// # Errors
/// A line for the user.
pub(crate) fn of_files(rules: Option<RuleFile>) -> Result<Classes, LoadError> {
    let sources = Sources { files: files(), rules, class: None };
    let mount = Mount {
        protocol: Protocol::Nfs,
        on_disk: true,
        in_memory: true,
        is_exclusive: false,
        unsent_age_max: None,
    };
    load(&sources, &offer(mount))
}

/// The classes that the options and rules of a mount name, by name.
fn named(classes: &Classes) -> Vec<Arc<Class>> {
    let named = classes.rules().iter().map(larder_class::Rule::class);
    let mut names: Vec<&str> = named.chain([classes.mount().name.as_str()]).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().filter_map(|name| classes.get(name).ok()).collect()
}

/// What the mount promises beyond the request, for the classes that its options and rules name: a
/// line each.
pub(crate) fn raised(classes: &Classes) -> Vec<String> {
    let raised = named(classes).into_iter().filter(|class| !class.raised.is_empty());
    raised.map(|class| format!("class {}: {}", class.name, class.raised)).collect()
}

/// Refuses classes with level archive, among those that options and rules of a mount of a volume
/// name, if the metadata server has none.
///
/// # Errors
/// A line for the user.
pub(crate) fn demand_archive(classes: &Classes, has_archive: bool) -> Result<()> {
    for class in named(classes).into_iter().filter(|_| !has_archive) {
        ensure!(
            class.archive_within().is_none(),
            "class {}: the volume has no level archive: its metadata server was started without --archive",
            class.name
        );
    }
    Ok(())
}

/// What a mount can provide.
fn offer(mount: Mount) -> Offer {
    let here = Here {
        disk: mount.on_disk,
        memory: mount.on_disk && mount.in_memory && memory_dir::is_there(),
        names: mount.is_exclusive,
    };
    let (whose, here) = match mount.protocol {
        Protocol::Nfs if mount.is_exclusive => ("an exclusive NFS mount", here),
        Protocol::Nfs if mount.on_disk => ("an NFS mount", here),
        Protocol::Nfs => ("an NFS mount without a cache on disk", Here::default()),
        Protocol::Smb if mount.on_disk => ("a share", Here::DISK),
        Protocol::Smb => ("a share without a cache on disk", Here::default()),
        Protocol::Native if mount.is_exclusive => {
            ("an exclusive mount of a volume", Here { names: true, ..Here::DISK })
        }
        Protocol::Native if mount.on_disk => ("a volume", here),
        Protocol::Native => ("a volume without a cache on disk", Here::default()),
    };
    let usual = larder_client::Options::default().unsent_age_max;
    let unsent_age_max = mount.unsent_age_max.unwrap_or(usual);
    match mount.protocol {
        Protocol::Native => shared_offer(whose, here, unsent_age_max),
        Protocol::Nfs | Protocol::Smb => larder_client::offer(whose, here, unsent_age_max),
    }
}

/// Files of the machine and of the user, which may be missing.
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
