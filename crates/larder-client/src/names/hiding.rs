//! State of hidden names: the one that stands for a file, and how many are in a directory. Pure;
//! [`super::hidden`] assigns and removes them.

use std::ffi::OsString;

use larder_vfs::{Error, Ino, Result};

/// A directory and a name in it.
pub(crate) type Dentry = (Ino, OsString);

/// The hidden name of a file, and those in a directory.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    name: HiddenName,
    /// Directories: names in it that stand for open files, until the server has removed them.
    inside: u32,
    /// Calls that are asking for another name of the file.
    links: u32,
    /// The name that stood for the file is being removed.
    goes: bool,
}

/// The name that stands for an open file whose last name was removed.
#[derive(Debug, Default)]
enum HiddenName {
    /// It has none.
    #[default]
    None,
    /// The server is being asked to give it this one.
    Asked(Dentry),
    /// It was asked, and did not answer: it may have given the file this name, or be about to.
    Unanswered(Dentry),
    /// This one, and a call that is to replace the file has not ended: if that is refused, the file
    /// gets its name back.
    Kept(Dentry),
    /// This one.
    Given(Dentry),
}

/// How it ended that the server was asked to change a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It has.
    Done,
    /// It has not.
    Refused,
    /// It did not say.
    Unanswered,
}

impl Ending {
    /// What an answer means for the name.
    pub(crate) fn of<T>(answer: &Result<T>) -> Ending {
        match answer {
            Ok(_) => Ending::Done,
            Err(Error::TimedOut | Error::Shutdown) => Ending::Unanswered,
            Err(_) => Ending::Refused,
        }
    }
}

impl Hidden {
    /// Nothing is hidden here, or about to be.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self.name, HiddenName::None) && self.inside == 0 && !self.is_busy()
    }

    /// The name that stands for the file.
    pub(crate) fn name(&self) -> Option<&Dentry> {
        match &self.name {
            HiddenName::Kept(dentry) | HiddenName::Given(dentry) => Some(dentry),
            HiddenName::None | HiddenName::Asked(_) | HiddenName::Unanswered(_) => None,
        }
    }

    /// The name that the file has, may have, or is about to get: the next process is to remove it.
    pub(crate) fn name_to_remove(&self) -> Option<&Dentry> {
        match &self.name {
            HiddenName::Asked(dentry)
            | HiddenName::Unanswered(dentry)
            | HiddenName::Kept(dentry)
            | HiddenName::Given(dentry) => Some(dentry),
            HiddenName::None => None,
        }
    }

    /// The name that the last release is to remove: a call that is just asking for a hidden name,
    /// or is about to replace the file, removes that itself.
    pub(crate) fn is_left_to_release(&self) -> bool {
        matches!(self.name, HiddenName::Unanswered(_) | HiddenName::Given(_))
    }

    /// The server is asked to give the file a name in `dir`: the one for which it gave no answer
    /// before, or else that of `new`. Returns the name, and whether it is another one.
    pub(crate) fn begin(&mut self, dir: Ino, new: impl FnOnce() -> OsString) -> (OsString, bool) {
        let earlier = match std::mem::take(&mut self.name) {
            HiddenName::Unanswered((at, name)) if at == dir => Some(name),
            _ => None,
        };
        let is_new = earlier.is_none();
        let name = earlier.unwrap_or_else(new);
        self.name = HiddenName::Asked((dir, name.clone()));
        (name, is_new)
    }

    /// The outcome for the name that the server was asked for. If no name was being asked for,
    /// nothing changes.
    pub(crate) fn end(&mut self, ending: Ending) {
        self.name = match (std::mem::take(&mut self.name), ending) {
            (HiddenName::Asked(dentry), Ending::Done) => HiddenName::Given(dentry),
            (HiddenName::Asked(dentry), Ending::Unanswered) => HiddenName::Unanswered(dentry),
            (HiddenName::Asked(_), Ending::Refused) => HiddenName::None,
            (other, _) => other,
        };
    }

    /// The last release leaves the name that was given for now.
    pub(crate) fn keep(&mut self) {
        self.name = match std::mem::take(&mut self.name) {
            HiddenName::Given(dentry) => HiddenName::Kept(dentry),
            other => other,
        };
    }

    /// The last release is to remove the name that was kept.
    pub(crate) fn leave_to_release(&mut self) {
        self.name = match std::mem::take(&mut self.name) {
            HiddenName::Kept(dentry) => HiddenName::Given(dentry),
            other => other,
        };
    }

    /// The file has this name: an earlier process gave it, or it could not be removed.
    pub(crate) fn set(&mut self, dentry: Option<Dentry>) {
        self.name = dentry.map_or(HiddenName::None, HiddenName::Given);
    }

    /// The name that stands for the file is to be removed, or is gone.
    pub(crate) fn take(&mut self) -> Option<Dentry> {
        match std::mem::take(&mut self.name) {
            HiddenName::Unanswered(dentry)
            | HiddenName::Kept(dentry)
            | HiddenName::Given(dentry) => Some(dentry),
            other => {
                self.name = other;
                None
            }
        }
    }

    /// Whether a call decides just now whether the file keeps a name.
    pub(crate) fn is_undecided(&self) -> bool {
        self.goes || matches!(self.name, HiddenName::Asked(_) | HiddenName::Kept(_))
    }

    /// The same, or the file may get another name just now. Until that is over nobody begins to
    /// hide the file: which name is its last is not known.
    pub(crate) fn is_busy(&self) -> bool {
        self.links > 0 || self.is_undecided()
    }

    /// A call asks for another name of the file from now on, unless it is undecided whether that
    /// keeps one. Returns whether it may.
    pub(crate) fn begin_link(&mut self) -> bool {
        let may = !self.is_undecided();
        self.links += u32::from(may);
        may
    }

    /// It was answered.
    pub(crate) fn end_link(&mut self) {
        self.links -= 1;
    }

    /// The server is asked to remove the name that stands for the file, if there is one.
    pub(crate) fn begin_removal(&mut self) -> Option<Dentry> {
        let name = self.take();
        self.goes |= name.is_some();
        name
    }

    /// It has answered, or did not.
    pub(crate) fn end_removal(&mut self) {
        self.goes = false;
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
        End(Ending),
        Keep,
        Leave,
        Set(u64),
        Take,
    }

    const STEPS: [Step; 9] = [
        Step::Begin(1),
        Step::Begin(2),
        Step::End(Ending::Done),
        Step::End(Ending::Refused),
        Step::End(Ending::Unanswered),
        Step::Keep,
        Step::Leave,
        Step::Set(3),
        Step::Take,
    ];

    fn name(number: u64) -> OsString {
        format!(".nfs{number}").into()
    }

    fn dentry(number: u64) -> Dentry {
        (Ino(1), name(number))
    }

    /// Over all sequences of six steps: a name stands for the file from when the server has given
    /// it until it is taken away. A name that is only being asked for is not taken; a name for
    /// which there was no answer is taken, and asked for again. One that is kept is not left to the
    /// last release.
    #[test]
    fn a_name_stands_for_a_file_once_the_server_has_given_it() {
        const LENGTH: u32 = 6;
        for sequence in 0..STEPS.len().pow(LENGTH) {
            let mut hidden = Hidden::default();
            let (mut asked, mut unanswered, mut given) = (None, None, None);
            let mut is_kept = false;
            for step in 0..LENGTH {
                let step = STEPS[sequence / STEPS.len().pow(step) % STEPS.len()];
                match step {
                    Step::Begin(number) => {
                        let wanted = unanswered.take().unwrap_or_else(|| dentry(number));
                        let is_new = wanted == dentry(number);
                        let begun = hidden.begin(Ino(1), || name(number));
                        assert!(begun.0 == wanted.1 && (!begun.1 || is_new), "{sequence}");
                        (asked, given, is_kept) = (Some(wanted), None, false);
                    }
                    Step::End(ending) => {
                        hidden.end(ending);
                        match (asked.take(), ending) {
                            (Some(dentry), Ending::Done) => given = Some(dentry),
                            (Some(dentry), Ending::Unanswered) => unanswered = Some(dentry),
                            _ => {}
                        }
                    }
                    Step::Keep => {
                        hidden.keep();
                        is_kept = given.is_some();
                    }
                    Step::Leave => {
                        hidden.leave_to_release();
                        is_kept = false;
                    }
                    Step::Set(number) => {
                        hidden.set(Some(dentry(number)));
                        (asked, unanswered, given) = (None, None, Some(dentry(number)));
                        is_kept = false;
                    }
                    Step::Take => {
                        let left = given.take().or(unanswered.take());
                        assert_eq!(hidden.take(), left, "{sequence}");
                        is_kept = false;
                    }
                }
                let is_left = (given.is_some() || unanswered.is_some()) && !is_kept;
                assert_eq!(hidden.is_left_to_release(), is_left, "{sequence} {step:?}");
                assert_eq!(hidden.name(), given.as_ref(), "{sequence} {step:?}");
                let all = asked.as_ref().or(given.as_ref()).or(unanswered.as_ref());
                assert_eq!(hidden.name_to_remove(), all);
                assert_eq!(hidden.is_none(), all.is_none());
            }
        }
    }

    /// Over all sequences of seven steps of a call that hides a file, one that removes its hidden
    /// name, and links: no link is under way while the file is given a hidden name, while it is
    /// undecided whether it is replaced, and while it loses that name.
    #[test]
    fn no_link_is_under_way_while_a_file_is_hidden() {
        const LENGTH: u32 = 7;
        let (mut hid, mut linked, mut removed) = (0, 0, 0);
        for sequence in 0..7_usize.pow(LENGTH) {
            let mut hidden = Hidden::default();
            let (mut is_asked, mut is_kept, mut goes, mut links) = (false, false, false, 0);
            for step in 0..LENGTH {
                match sequence / 7_usize.pow(step) % 7 {
                    0 if !hidden.is_busy() => {
                        hidden.begin(Ino(1), || name(1));
                        (is_asked, hid) = (true, hid + 1);
                    }
                    1 if is_asked => {
                        hidden.end(Ending::Done);
                        hidden.keep();
                        (is_asked, is_kept) = (false, true);
                    }
                    2 => {
                        hidden.end(Ending::Refused);
                        hidden.leave_to_release();
                        (is_asked, is_kept) = (false, false);
                    }
                    3 => {
                        let may = hidden.begin_link();
                        assert_eq!(may, !is_asked && !is_kept && !goes, "{sequence}");
                        (links, linked) = (links + u32::from(may), linked + u32::from(may));
                    }
                    4 if links > 0 => {
                        hidden.end_link();
                        links -= 1;
                    }
                    5 if links == 0 && !goes && hidden.begin_removal().is_some() => {
                        (is_kept, goes, removed) = (false, true, removed + 1);
                    }
                    6 => {
                        hidden.end_removal();
                        goes = false;
                    }
                    _ => {}
                }
                assert!(links == 0 || !hidden.is_undecided(), "{sequence}");
                let is_busy = links > 0 || is_asked || is_kept || goes;
                assert_eq!(hidden.is_busy(), is_busy, "{sequence} {step}");
            }
        }
        assert!(hid > 1000 && linked > 1000 && removed > 1000, "{hid} {linked} {removed}");
    }

    /// In another directory it is another name.
    #[test]
    fn a_name_that_was_not_answered_is_asked_for_again() {
        let mut hidden = Hidden::default();
        assert_eq!(hidden.begin(Ino(1), || name(1)), (name(1), true));
        hidden.end(Ending::of(&Err::<(), _>(Error::TimedOut)));
        assert_eq!(hidden.begin(Ino(1), || name(2)), (name(1), false));
        hidden.end(Ending::of(&Err::<(), _>(Error::Shutdown)));
        assert_eq!(hidden.begin(Ino(2), || name(3)), (name(3), true));
        hidden.end(Ending::of(&Err::<(), _>(Error::Exists)));
        assert!(hidden.is_none());
        hidden.begin(Ino(1), || name(4));
        hidden.end(Ending::of(&Ok(())));
        assert_eq!(hidden.name(), Some(&dentry(4)));
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
