//! State of hidden names: the one that stands for a file, and those that are in a directory. Pure;
//! [`super::hidden`] assigns, moves and removes them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use larder_vfs::{Error, Ino, Result};

/// A directory and a name in it.
pub(crate) type Dentry = (Ino, OsString);

/// The hidden name of a file, and those in a directory.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    name: HiddenName,
    /// Directories: names in it that stand for open files, until the server has removed them.
    inside: BTreeSet<OsString>,
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
    /// The first one, and the server is being asked to move it to the second one.
    Moving(Dentry, Dentry),
    /// It was asked, and did not answer: one of the two.
    Either(Dentry, Dentry),
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
        matches!(self.name, HiddenName::None) && self.inside.is_empty() && !self.is_busy()
    }

    /// The name that stands for the file.
    pub(crate) fn name(&self) -> Option<&Dentry> {
        match &self.name {
            HiddenName::Kept(dentry)
            | HiddenName::Given(dentry)
            | HiddenName::Moving(dentry, _)
            | HiddenName::Either(dentry, _) => Some(dentry),
            HiddenName::None | HiddenName::Asked(_) | HiddenName::Unanswered(_) => None,
        }
    }

    /// The names of which the file has one, may have one, or is about to get one: the next process
    /// is to remove them.
    pub(crate) fn names_to_remove(&self) -> Vec<Dentry> {
        match &self.name {
            HiddenName::Asked(dentry)
            | HiddenName::Unanswered(dentry)
            | HiddenName::Kept(dentry)
            | HiddenName::Given(dentry) => vec![dentry.clone()],
            HiddenName::Moving(from, to) | HiddenName::Either(from, to) => {
                vec![from.clone(), to.clone()]
            }
            HiddenName::None => Vec::new(),
        }
    }

    /// The name that the last release is to remove: a call that is just asking for a hidden name,
    /// or is about to replace the file, removes that itself.
    pub(crate) fn is_left_to_release(&self) -> bool {
        matches!(
            self.name,
            HiddenName::Unanswered(_) | HiddenName::Given(_) | HiddenName::Either(..)
        )
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

    /// The server is asked to move the name that stands for the file from one directory to another
    /// one, unless it is undecided whether the file keeps a name. Returns the name, and whether the
    /// server was not asked for the same before.
    pub(crate) fn begin_move(&mut self, from: Ino, to: Ino) -> Option<(OsString, bool)> {
        if self.is_busy() {
            return None;
        }
        let is_new = match &self.name {
            HiddenName::Given((at, _)) if *at == from => true,
            HiddenName::Either((at, _), (next, _)) if (*at, *next) == (from, to) => false,
            _ => return None,
        };
        let (_, name) = self.name()?.clone();
        self.name = HiddenName::Moving((from, name.clone()), (to, name.clone()));
        Some((name, is_new))
    }

    /// The outcome for the name that the server was asked for. If no name was being asked for,
    /// nothing changes.
    pub(crate) fn end(&mut self, ending: Ending) {
        self.name = match (std::mem::take(&mut self.name), ending) {
            (HiddenName::Asked(dentry), Ending::Done) => HiddenName::Given(dentry),
            (HiddenName::Asked(dentry), Ending::Unanswered) => HiddenName::Unanswered(dentry),
            (HiddenName::Asked(_), Ending::Refused) => HiddenName::None,
            (HiddenName::Moving(_, to), Ending::Done) => HiddenName::Given(to),
            (HiddenName::Moving(from, to), Ending::Unanswered) => HiddenName::Either(from, to),
            (HiddenName::Moving(from, _), Ending::Refused) => HiddenName::Given(from),
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

    /// The file has one of these names, of which there are two at most: an earlier process gave it,
    /// or it could not be removed.
    pub(crate) fn set(&mut self, names: Vec<Dentry>) {
        let mut names = names.into_iter();
        self.name = match (names.next(), names.next()) {
            (Some(from), Some(to)) => HiddenName::Either(from, to),
            (Some(name), None) => HiddenName::Given(name),
            (None, _) => HiddenName::None,
        };
    }

    /// The name that stands for the file is to be removed, or is gone: it is one of these.
    pub(crate) fn take(&mut self) -> Vec<Dentry> {
        if matches!(self.name, HiddenName::Asked(_) | HiddenName::Moving(..)) {
            return Vec::new();
        }
        let names = self.names_to_remove();
        self.name = HiddenName::None;
        names
    }

    /// Whether a call decides just now whether the file keeps a name.
    pub(crate) fn is_undecided(&self) -> bool {
        let is_asked = matches!(
            self.name,
            HiddenName::Asked(_) | HiddenName::Kept(_) | HiddenName::Moving(..)
        );
        self.goes || is_asked
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

    /// The server is asked to remove the name that stands for the file: one of these.
    pub(crate) fn begin_removal(&mut self) -> Vec<Dentry> {
        let names = self.take();
        self.goes |= !names.is_empty();
        names
    }

    /// It has answered, or did not.
    pub(crate) fn end_removal(&mut self) {
        self.goes = false;
    }

    /// Directories: the names in it that stand for open files.
    pub(crate) fn inside(&self) -> &BTreeSet<OsString> {
        &self.inside
    }

    /// Directories: one more does.
    pub(crate) fn add_inside(&mut self, name: &OsStr) {
        self.inside.insert(name.to_owned());
    }

    /// Directories: one was removed, or was not made.
    pub(crate) fn drop_inside(&mut self, name: &OsStr) {
        self.inside.remove(name);
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
        Move,
    }

    const STEPS: [Step; 10] = [
        Step::Begin(1),
        Step::Begin(2),
        Step::End(Ending::Done),
        Step::End(Ending::Refused),
        Step::End(Ending::Unanswered),
        Step::Keep,
        Step::Leave,
        Step::Set(3),
        Step::Take,
        Step::Move,
    ];

    fn name(number: u64) -> OsString {
        format!(".nfs{number}").into()
    }

    fn dentry(number: u64) -> Dentry {
        (Ino(1), name(number))
    }

    /// Where a name is moved to.
    fn above((_, name): &Dentry) -> Dentry {
        (Ino(2), name.clone())
    }

    /// What is known of the name of a file.
    #[derive(Clone, Debug, Default, PartialEq)]
    enum Known {
        #[default]
        Nothing,
        Asked(Dentry),
        Unanswered(Dentry),
        Given(Dentry),
        Moving(Dentry),
        Either(Dentry),
    }

    /// What is known of the name of a file, and whether the last release leaves it.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Model {
        known: Known,
        is_kept: bool,
    }

    impl Model {
        /// The same step here and there.
        fn take(&mut self, step: Step, hidden: &mut Hidden) {
            let before = std::mem::take(&mut self.known);
            self.known = match step {
                Step::Begin(number) => {
                    let (wanted, is_new) = match before {
                        Known::Unanswered(earlier) => (earlier, false),
                        _ => (dentry(number), true),
                    };
                    let begun = hidden.begin(Ino(1), || name(number));
                    assert_eq!(begun, (wanted.1.clone(), is_new));
                    Known::Asked(wanted)
                }
                Step::End(ending) => {
                    hidden.end(ending);
                    match (before, ending) {
                        (Known::Asked(name), Ending::Done) => Known::Given(name),
                        (Known::Asked(name), Ending::Unanswered) => Known::Unanswered(name),
                        (Known::Asked(_), Ending::Refused) => Known::Nothing,
                        (Known::Moving(from), Ending::Done) => Known::Given(above(&from)),
                        (Known::Moving(from), Ending::Unanswered) => Known::Either(from),
                        (Known::Moving(from), Ending::Refused) => Known::Given(from),
                        (before, _) => before,
                    }
                }
                Step::Keep => {
                    hidden.keep();
                    self.is_kept = matches!(before, Known::Given(_));
                    before
                }
                Step::Leave => {
                    hidden.leave_to_release();
                    self.is_kept = false;
                    before
                }
                Step::Set(number) => {
                    hidden.set(vec![dentry(number)]);
                    Known::Given(dentry(number))
                }
                Step::Take => {
                    let is_asked = matches!(before, Known::Asked(_) | Known::Moving(_));
                    let taken = if is_asked { Vec::new() } else { before.names() };
                    assert_eq!(hidden.take(), taken);
                    if is_asked { before } else { Known::Nothing }
                }
                Step::Move => {
                    let begun = hidden.begin_move(Ino(1), Ino(2));
                    let is_new = matches!(before, Known::Given(_));
                    match before {
                        Known::Given(from) | Known::Either(from)
                            if !self.is_kept && from.0 == Ino(1) =>
                        {
                            assert_eq!(begun, Some((from.1.clone(), is_new)));
                            Known::Moving(from)
                        }
                        before => {
                            assert_eq!(begun, None);
                            before
                        }
                    }
                }
            };
            self.is_kept &= !matches!(step, Step::Begin(_) | Step::Set(_) | Step::Take);
        }
    }

    impl Known {
        fn names(&self) -> Vec<Dentry> {
            match self {
                Known::Nothing => vec![],
                Known::Asked(name) | Known::Unanswered(name) | Known::Given(name) => {
                    vec![name.clone()]
                }
                Known::Moving(from) | Known::Either(from) => vec![from.clone(), above(from)],
            }
        }
    }

    /// Over all sequences of six steps: a name stands for the file from when the server has given
    /// it until it is taken away, also while it is moved. A name that is only being asked for is
    /// not taken; a name for which there was no answer is taken, and asked for again, and of two
    /// names both are. One that is kept is not left to the last release.
    #[test]
    fn a_name_stands_for_a_file_once_the_server_has_given_it() {
        const LENGTH: u32 = 6;
        let (mut moved, mut either) = (0, 0);
        for sequence in 0..STEPS.len().pow(LENGTH) {
            let (mut hidden, mut model) = (Hidden::default(), Model::default());
            for step in 0..LENGTH {
                let step = STEPS[sequence / STEPS.len().pow(step) % STEPS.len()];
                model.take(step, &mut hidden);
                let (known, is_kept) = (&model.known, model.is_kept);
                let is_left = match known {
                    Known::Nothing | Known::Asked(_) | Known::Moving(_) => false,
                    Known::Unanswered(_) | Known::Either(_) => true,
                    Known::Given(_) => !is_kept,
                };
                assert_eq!(hidden.is_left_to_release(), is_left, "{sequence} {step:?}");
                let stands = match known {
                    Known::Nothing | Known::Asked(_) | Known::Unanswered(_) => None,
                    Known::Given(name) | Known::Moving(name) | Known::Either(name) => Some(name),
                };
                assert_eq!(hidden.name(), stands, "{sequence} {step:?}");
                assert_eq!(hidden.names_to_remove(), known.names());
                assert_eq!(hidden.is_none(), known.names().is_empty());
                moved += u32::from(matches!(known, Known::Moving(_)));
                either += u32::from(matches!(known, Known::Either(_)));
            }
        }
        assert!(moved > 1000 && either > 1000, "{moved} {either}");
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
                    5 if links == 0 && !goes && !hidden.begin_removal().is_empty() => {
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
        hidden.add_inside(&name(1));
        hidden.add_inside(&name(2));
        hidden.drop_inside(&name(1));
        assert!(!hidden.is_none() && hidden.name().is_none());
        assert_eq!(hidden.inside().iter().collect::<Vec<_>>(), [&name(2)]);
        hidden.drop_inside(&name(2));
        assert!(hidden.is_none());
        // One that an earlier process made may be removed by this one.
        hidden.drop_inside(&name(3));
        assert!(hidden.is_none());
    }
}
