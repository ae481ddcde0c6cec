//! What is known of hidden names: the one that stands for a file, and how many are in a directory.
//! Pure; giving and removing them is [`super::hidden`]'s.

use std::ffi::OsString;

use larder_vfs::Ino;

/// A directory and a name in it.
pub(crate) type Place = (Ino, OsString);

/// The hidden name of a file, and those in a directory.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    name: HiddenName,
    /// Directories: names in it that stand for open files, until the server has removed them.
    inside: u32,
}

/// The name that stands for an open file whose last name was removed.
#[derive(Debug, Default)]
enum HiddenName {
    /// It has none.
    #[default]
    None,
    /// The server is being asked to give it this one.
    Asked(Place),
    /// This one.
    Given(Place),
}

impl Hidden {
    /// Nothing is hidden here, or about to be.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self.name, HiddenName::None) && self.inside == 0
    }

    /// The name that stands for the file.
    pub(crate) fn name(&self) -> Option<&Place> {
        match &self.name {
            HiddenName::Given(place) => Some(place),
            HiddenName::None | HiddenName::Asked(_) => None,
        }
    }

    /// The name that stands for the file, or that it is about to get.
    pub(crate) fn name_to_remove(&self) -> Option<&Place> {
        match &self.name {
            HiddenName::Asked(place) | HiddenName::Given(place) => Some(place),
            HiddenName::None => None,
        }
    }

    /// The server is asked to give it this name.
    pub(crate) fn begin(&mut self, place: Place) {
        self.name = HiddenName::Asked(place);
    }

    /// The server `has` given it the name that it was asked for, or has not. If it was not asked
    /// any more, nothing is changed.
    pub(crate) fn end(&mut self, has: bool) {
        self.name = match (std::mem::take(&mut self.name), has) {
            (HiddenName::Asked(place), true) => HiddenName::Given(place),
            (HiddenName::Asked(_), false) => HiddenName::None,
            (other, _) => other,
        };
    }

    /// It has this name: an earlier process gave it, or it could not be removed.
    pub(crate) fn set(&mut self, place: Option<Place>) {
        self.name = place.map_or(HiddenName::None, HiddenName::Given);
    }

    /// The name that stands for the file is to be removed, or is gone.
    pub(crate) fn take(&mut self) -> Option<Place> {
        match std::mem::take(&mut self.name) {
            HiddenName::Given(place) => Some(place),
            other => {
                self.name = other;
                None
            }
        }
    }

    /// Directories: how many names in it stand for open files.
    pub(crate) fn inside(&self) -> u32 {
        self.inside
    }

    /// Directories: one more does.
    pub(crate) fn add_inside(&mut self) {
        self.inside += 1;
    }

    /// Directories: one was removed, or was not made.
    pub(crate) fn drop_inside(&mut self) {
        self.inside = self.inside.saturating_sub(1);
    }
}
