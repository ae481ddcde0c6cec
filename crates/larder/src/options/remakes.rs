//! When a mount makes lost files again.

use super::meant::Last;
use super::typed::Value;

/// When lost files are made again without a command. Unless it is asked for, never: this machine
/// then runs commands that other clients of the volume recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Remakes {
    #[default]
    Never,
    /// When they are opened (`rebuild`).
    AtAccess,
    /// As soon as the metadata server has noticed that they are lost, too (`rebuild=now`).
    AtOnce,
}

impl Last<'_> {
    pub(super) fn remakes(&self) -> Remakes {
        match self.last(&["rebuild", "norebuild"]) {
            Some(("rebuild", Value::Word("now"))) => Remakes::AtOnce,
            Some(("rebuild", _)) => Remakes::AtAccess,
            _ => Remakes::Never,
        }
    }
}
