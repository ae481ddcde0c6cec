//! Which changes of names cross each other: they are under way at the same time, and one of them
//! decides what the other one answers.
//!
//! A change that is answered here first finds out what it depends on: that a name is free, that a
//! directory is empty, that a file has no other name. If another change of that is under way
//! meanwhile, here or at the server, this may be wrong when the change is recorded, and two callers
//! would be told that they made one name. So a change that crosses another one is made at the
//! server, which carries out one after the other. A kernel lets the changes of a directory come one
//! at a time; exports do not, nor does the client with changes of its own.
//!
//! Invariant: of two changes that cross, one at most is answered here, and that was recorded before
//! the other one had found out anything.

use crate::object::{Dentry, Dir};

/// What a change depends on, or decides for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What a name stands for.
    Name(Dentry),
    /// Something in a directory, which must be there.
    Within(Dir),
    /// All of a directory, which is removed or replaced if it is empty; `None`: any directory may
    /// be.
    Whole(Option<Dir>),
    /// A file gets another name.
    Gain(Dir),
    /// A file loses a name, perhaps its last one; `None`: any file may.
    Loss(Option<Dir>),
}

impl Part {
    fn decides(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Name(one), Part::Name(other)) => one == other,
            (Part::Whole(one), Part::Whole(other)) => {
                one.is_none() || other.is_none() || one == other
            }
            (Part::Whole(whole), Part::Within(dir)) | (Part::Within(dir), Part::Whole(whole)) => {
                whole.as_ref().is_none_or(|whole| whole == dir)
            }
            (Part::Gain(gains), Part::Loss(loses)) | (Part::Loss(loses), Part::Gain(gains)) => {
                loses.as_ref().is_none_or(|loses| loses == gains)
            }
            _ => false,
        }
    }
}

/// The changes that are under way.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    all: Vec<Change>,
    next: u64,
}

#[derive(Debug)]
struct Change {
    no: u64,
    parts: Vec<Part>,
    /// Files that got another name since it began: what it found out of them may be older.
    gains: Vec<Part>,
    crosses: bool,
}

impl Changes {
    /// A change begins. What it depends on is [added](Changes::add) before that is found out.
    pub(crate) fn begin(&mut self) -> u64 {
        self.next += 1;
        let (parts, gains) = (Vec::new(), Vec::new());
        self.all.push(Change { no: self.next, parts, gains, crosses: false });
        self.next
    }

    /// A change depends on this from now on.
    pub(crate) fn add(&mut self, no: u64, part: Part) {
        let mut crosses = false;
        for other in self.all.iter_mut().filter(|other| other.no != no) {
            if other.parts.iter().any(|one| one.decides(&part)) {
                (other.crosses, crosses) = (true, true);
            }
        }
        let Some(change) = self.all.iter_mut().find(|change| change.no == no) else { return };
        change.crosses |= crosses || change.gains.iter().any(|gain| gain.decides(&part));
        change.parts.push(part);
    }

    /// Whether a change crosses another one.
    pub(crate) fn crosses(&self, no: u64) -> bool {
        self.all.iter().any(|change| change.no == no && change.crosses)
    }

    /// It was answered.
    pub(crate) fn end(&mut self, no: u64) {
        let Some(at) = self.all.iter().position(|change| change.no == no) else { return };
        let ended = self.all.swap_remove(at);
        let gains = ended.parts.into_iter().filter(|part| matches!(part, Part::Gain(_)));
        let gains: Vec<Part> = gains.collect();
        for other in &mut self.all {
            other.gains.extend(gains.iter().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectNo;

    fn dir(no: u64) -> Dir {
        Dir::Made(ObjectNo(no))
    }

    fn name(dir_no: u64, name: &str) -> Part {
        Part::Name(Dentry { dir: dir(dir_no), name: name.into() })
    }

    #[test]
    fn parts_decide_what_they_are_about() {
        let any = Part::Loss(None);
        for (one, other, decides) in [
            (name(1, "a"), name(1, "a"), true),
            (name(1, "a"), name(1, "b"), false),
            (name(1, "a"), name(2, "a"), false),
            (Part::Within(dir(1)), Part::Within(dir(1)), false),
            (Part::Within(dir(1)), Part::Whole(Some(dir(1))), true),
            (Part::Within(dir(1)), Part::Whole(Some(dir(2))), false),
            (Part::Within(dir(1)), Part::Whole(None), true),
            (Part::Whole(Some(dir(1))), Part::Whole(Some(dir(1))), true),
            (Part::Whole(Some(dir(1))), Part::Whole(Some(dir(2))), false),
            (Part::Whole(Some(dir(1))), Part::Whole(None), true),
            (Part::Gain(dir(1)), Part::Loss(Some(dir(1))), true),
            (Part::Gain(dir(1)), Part::Loss(Some(dir(2))), false),
            (Part::Gain(dir(1)), any.clone(), true),
            (Part::Gain(dir(1)), Part::Gain(dir(1)), false),
            (any.clone(), any, false),
        ] {
            assert_eq!(one.decides(&other), decides, "{one:?} {other:?}");
            assert_eq!(other.decides(&one), decides, "{other:?} {one:?}");
        }
    }

    /// Over all sequences of eight steps of three changes of one name, and one of another one: each
    /// begins, is recorded here if it crosses none, and ends. What a change finds out is how often
    /// the name was changed before; that is so still when it is recorded here.
    #[test]
    fn what_is_recorded_here_is_as_it_was_found() {
        const LENGTH: u32 = 8;
        #[derive(Clone, Copy)]
        enum Stage {
            Idle,
            Found(u64, u32),
            Over(u64),
        }
        let mut recorded_here = 0;
        for sequence in 0..4_usize.pow(LENGTH) {
            let mut changes = Changes::default();
            let (mut stages, mut versions) = ([Stage::Idle; 4], [0, 0]);
            for step in 0..LENGTH {
                let number = sequence / 4_usize.pow(step) % 4;
                let at = usize::from(number == 3);
                stages[number] = match stages[number] {
                    Stage::Idle => {
                        let no = changes.begin();
                        changes.add(no, name(1, ["a", "b"][at]));
                        Stage::Found(no, versions[at])
                    }
                    Stage::Found(no, found) => {
                        if !changes.crosses(no) {
                            assert_eq!(found, versions[at], "{sequence}");
                            recorded_here += 1;
                        }
                        versions[at] += 1;
                        Stage::Over(no)
                    }
                    Stage::Over(no) => {
                        changes.end(no);
                        Stage::Idle
                    }
                };
            }
        }
        assert!(recorded_here > 10_000, "{recorded_here}");
    }

    /// A file got another name while it was asked how many it has.
    #[test]
    fn what_a_file_gained_meanwhile_is_not_forgotten() {
        let mut changes = Changes::default();
        let (removes, links) = (changes.begin(), changes.begin());
        changes.add(links, Part::Gain(dir(1)));
        changes.end(links);
        changes.add(removes, Part::Loss(Some(dir(2))));
        assert!(!changes.crosses(removes));
        changes.add(removes, Part::Loss(Some(dir(1))));
        assert!(changes.crosses(removes));
        let later = changes.begin();
        changes.add(later, Part::Loss(Some(dir(1))));
        assert!(!changes.crosses(later), "it began after that");
        for no in [removes, later] {
            changes.end(no);
        }
        assert!(changes.all.is_empty());
    }
}
