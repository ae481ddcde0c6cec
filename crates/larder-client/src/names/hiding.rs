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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin(u64),
        End { has: bool },
        Set(u64),
        Take,
    }

    const STEPS: [Step; 6] = [
        Step::Begin(1),
        Step::Begin(2),
        Step::End { has: true },
        Step::End { has: false },
        Step::Set(3),
        Step::Take,
    ];

    fn place(number: u64) -> Place {
        (Ino(number), format!(".nfs{number}").into())
    }

    /// Over all sequences of six steps: a name stands for the file from when the server has given
    /// it until it is taken away, and one that the server is only asked for is not taken.
    #[test]
    fn a_name_stands_for_a_file_once_the_server_has_given_it() {
        const LENGTH: u32 = 6;
        for sequence in 0..STEPS.len().pow(LENGTH) {
            let mut hidden = Hidden::default();
            let (mut asked, mut given) = (None, None);
            for step in 0..LENGTH {
                let step = STEPS[sequence / STEPS.len().pow(step) % STEPS.len()];
                match step {
                    Step::Begin(number) => {
                        hidden.begin(place(number));
                        (asked, given) = (Some(place(number)), None);
                    }
                    Step::End { has } => {
                        hidden.end(has);
                        given = given.or(asked.take().filter(|_| has));
                    }
                    Step::Set(number) => {
                        hidden.set(Some(place(number)));
                        (asked, given) = (None, Some(place(number)));
                    }
                    Step::Take => assert_eq!(hidden.take(), given.take(), "{sequence}"),
                }
                assert_eq!(hidden.name(), given.as_ref(), "{sequence} {step:?}");
                assert_eq!(hidden.name_to_remove(), asked.as_ref().or(given.as_ref()));
                assert_eq!(hidden.is_none(), asked.is_none() && given.is_none());
            }
        }
    }

    #[test]
    fn a_directory_with_hidden_names_in_it_is_remembered() {
        let mut hidden = Hidden::default();
        hidden.add_inside();
        hidden.add_inside();
        hidden.drop_inside();
        assert!(!hidden.is_none() && hidden.inside() == 1 && hidden.name().is_none());
        hidden.drop_inside();
        assert!(hidden.is_none());
        // One that an earlier process made may be removed by this one.
        hidden.drop_inside();
        assert_eq!(hidden.inside(), 0);
    }
}
