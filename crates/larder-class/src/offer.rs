//! What a mount can provide, and fitting a specification to it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::specification::{Deadline, Level, OnError, Specification, Step};

/// What one mount can provide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What makes the offer, as messages name it: "an NFS mount".
    pub whose: String,
    /// The levels that the mount has, and the most copies at each.
    pub copies: BTreeMap<Level, u8>,
    /// close and fsync wait for this level at least, whatever the class asks for.
    pub waits_for: Option<Level>,
    /// What is kept on this machine's disk beyond what the class asks for.
    pub local: OwnDisk,
    /// Bytes of a class that promises less than this level reach it within this time all the same;
    /// `None`: never.
    pub sent_within: Option<(Level, Duration)>,
    /// Other machines get what is in this machine's memory when they ask for it. So no call waits
    /// for a class that promises no more than that.
    pub is_retaining: bool,
}

/// What a mount that has a disk of this machine makes of that level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnDisk {
    /// What the class asks for.
    AsAsked,
    /// Where a class asks for it at all, close and fsync wait for that at least.
    AwaitedIfAsked,
    /// Bytes of a class whose close does not wait for it are there within this time all the same.
    Within(Duration),
}

/// Levels that the mount cannot provide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has none that is strong enough.
    #[error("{whose} has no level {level}{}", copies_of(*.copies))]
    Level {
        /// What makes the offer.
        whose: String,
        /// What was asked for.
        level: Level,
        /// In so many copies.
        copies: u8,
    },
    /// No call waits for an archive.
    #[error(
        "neither writes nor close nor fsync can wait for level archive: give it a time, as in archive = \"1h\""
    )]
    Wait,
}

fn copies_of(copies: u8) -> String {
    if copies > 1 { format!(" in {copies} copies, nor a stronger one") } else { String::new() }
}

impl Offer {
    /// The weakest level that keeps what is promised for `level`. Nothing else is raised to an
    /// archive: no call waits for that.
    fn level_for(&self, level: Level, copies: u8) -> Result<Level, Refused> {
        let keeps = |(held, most): &(&Level, &u8)| match **held {
            Level::Archive if level != Level::Archive => false,
            held => held > level || **most >= copies,
        };
        let found = self.copies.range(level..).find(keeps).map(|(held, _)| *held);
        found.ok_or_else(|| Refused::Level { whose: self.whose.clone(), level, copies })
    }

    /// Whether bytes stay in this machine's memory until another machine asks for them, if this is
    /// all that is promised. Bytes that are sent within a time all the same do not, and a mount
    /// without that level has nowhere to keep them.
    pub(crate) fn retains(&self, promised: &Specification) -> bool {
        self.is_retaining
            && !matches!(self.local, OwnDisk::Within(_))
            && self.sent_within.is_none()
            && self.copies.contains_key(&Level::Memory)
            && promised.promised() <= Some(Level::Memory)
    }

    /// `wanted`, fitted to the levels of this mount: never weaker than `wanted`. Also returns, in
    /// words, what had to be raised.
    ///
    /// # Errors
    /// If no level of this mount is strong enough.
    pub fn fit(&self, wanted: &Specification) -> Result<(Specification, Vec<String>), Refused> {
        let mut raised = Vec::new();
        let mut fitted = Specification { steps: BTreeMap::new(), ..wanted.clone() };
        for (level, step) in &wanted.steps {
            if step.within == Deadline::Never {
                continue;
            }
            let held = self.level_for(*level, step.copies)?;
            let mut step = *step;
            if held != *level {
                raised.push(format!("what is to be {level} {} is {held} by then", step.within));
                step.copies = 1;
            }
            let both = fitted.steps.entry(held).or_insert(step);
            let (within, copies) = (both.within.min(step.within), both.copies.max(step.copies));
            *both = Step { within, copies };
        }
        let is_retained = self.retains(&fitted);
        // A time that it gives this machine's disk says that this is enough for both calls.
        let asks_for_local = self.local == OwnDisk::AwaitedIfAsked
            && ([fitted.close, fitted.fsync].contains(&Some(Level::Local))
                || fitted.steps.contains_key(&Level::Local));
        for (call, waits) in [("close", &mut fitted.close), ("fsync", &mut fitted.fsync)] {
            let at_least = match self.waits_for {
                _ if is_retained => *waits,
                Some(_) if asks_for_local => (*waits).max(Some(Level::Local)),
                least => (*waits).max(least),
            };
            let held = at_least.map(|level| self.level_for(level, 1)).transpose()?;
            if let Some(held) = held.filter(|_| held != *waits) {
                raised.push(format!("{call} waits for {held}"));
                *waits = Some(held);
            }
        }
        let is_here =
            fitted.close >= Some(Level::Local) || fitted.steps.contains_key(&Level::Local);
        if let OwnDisk::Within(within) = self.local
            && !is_here
        {
            let step = Step { within: Deadline::Within(within), copies: 1 };
            raised.push(format!("bytes are local {}", step.within));
            fitted.steps.insert(Level::Local, step);
        }
        if let Some((level, within)) = self.sent_within
            && fitted.promised() < Some(level)
        {
            let held = self.level_for(level, 1)?;
            let step = Step { within: Deadline::Within(within), copies: 1 };
            raised.push(format!("bytes are {held} {}: their names are there", step.within));
            fitted.steps.insert(held, step);
        }
        // No mount drops anything yet: a waiting caller is told, the rest is set aside.
        if wanted.on_error < OnError::Keep {
            raised.push("what a level refuses is kept".to_owned());
            fitted.on_error = OnError::Keep;
        }
        if [fitted.write(), fitted.close, fitted.fsync].contains(&Some(Level::Archive)) {
            return Err(Refused::Wait);
        }
        Ok((fitted, raised))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::specification::tests::any_specification;

    /// A server with one copy on its disk, for which close and fsync always wait.
    pub(crate) fn plain() -> Offer {
        let copies = BTreeMap::from([(Level::Memory, 1), (Level::Durable, 1)]);
        let waits_for = Some(Level::Durable);
        Offer {
            whose: "an NFS mount".into(),
            copies,
            waits_for,
            local: OwnDisk::AsAsked,
            sent_within: None,
            is_retaining: false,
        }
    }

    fn any_offer() -> impl Strategy<Value = Offer> {
        let level = || proptest::sample::select(Level::ALL.to_vec());
        let copies = proptest::collection::btree_map(level(), 1_u8..3, 0..5);
        let within = || (1_u64..4).prop_map(Duration::from_secs);
        let sent_to = proptest::sample::select(vec![Level::Shared, Level::Durable]);
        let sent_within = proptest::option::of((sent_to, within()));
        let local = prop_oneof![
            Just(OwnDisk::AsAsked),
            Just(OwnDisk::AwaitedIfAsked),
            within().prop_map(OwnDisk::Within),
        ];
        let waits_for = proptest::option::of(level());
        let parts = (copies, waits_for, local, sent_within, proptest::bool::ANY);
        parts.prop_map(|(copies, waits_for, local, sent_within, is_retaining)| {
            let may_wait = |level: &Level| copies.contains_key(level) && *level < Level::Archive;
            let waits_for = waits_for.filter(may_wait);
            let local = if copies.contains_key(&Level::Local) { local } else { OwnDisk::AsAsked };
            let whose = "a mount".into();
            Offer { whose, copies, waits_for, local, sent_within, is_retaining }
        })
    }

    proptest! {
        /// A fitted class keeps everything that was wanted, at levels that the mount has. Fitting
        /// fails only if something wanted is stronger than all of them.
        #[test]
        fn a_fitted_class_is_never_weaker(wanted in any_specification(), offer in any_offer()) {
            match offer.fit(&wanted) {
                Ok((fitted, raised)) => {
                    prop_assert!(fitted.keeps(&wanted), "{fitted} for {wanted}");
                    for (level, step) in &fitted.steps {
                        prop_assert!(offer.copies[level] >= step.copies);
                    }
                    prop_assert!(fitted.write() < Some(Level::Archive));
                    for waits in [fitted.close, fitted.fsync].into_iter().flatten() {
                        prop_assert!(waits < Level::Archive);
                        prop_assert!(offer.copies.contains_key(&waits));
                    }
                    let is_same = |wanted: &Specification| {
                        let steps = wanted.steps.clone().into_iter();
                        let steps = steps.filter(|(_, step)| step.within != Deadline::Never);
                        steps.collect::<BTreeMap<_, _>>() == fitted.steps
                            && (wanted.close, wanted.fsync) == (fitted.close, fitted.fsync)
                            && wanted.on_error == fitted.on_error
                    };
                    prop_assert_eq!(raised.is_empty(), is_same(&wanted));
                    let again = offer.fit(&fitted).unwrap();
                    prop_assert_eq!(again, (fitted, Vec::new()), "it stays as it is");
                }
                Err(Refused::Wait) => {
                    let waits = [wanted.write(), wanted.close, wanted.fsync];
                    prop_assert!(waits.contains(&Some(Level::Archive)));
                    prop_assert!(offer.copies.contains_key(&Level::Archive));
                }
                Err(refused) => {
                    let mut raised_to = offer.copies.clone();
                    raised_to.remove(&Level::Archive);
                    let strongest = raised_to.last_key_value().map(|(level, most)| (*level, *most));
                    let promised = wanted.steps.iter();
                    let promised = promised.filter(|(_, step)| step.within != Deadline::Never);
                    let promised = promised.map(|(level, step)| (*level, step.copies));
                    let waits = [wanted.close, wanted.fsync].into_iter().flatten().map(|level| (level, 1));
                    let sent = offer.sent_within.map(|(level, _)| (level, 1));
                    let mut all = promised.chain(waits).chain(sent);
                    prop_assert!(all.any(|it| Some(it) > strongest), "{refused}");
                }
            }
        }
    }

    #[test]
    fn what_is_raised_is_said() {
        let step = |seconds, copies| Step {
            within: Deadline::Within(Duration::from_secs(seconds)),
            copies,
        };
        let volatile = Specification {
            steps: BTreeMap::from([(Level::Memory, step(0, 1)), (Level::Shared, step(30, 2))]),
            fsync: Some(Level::Shared),
            ..Specification::nothing()
        };
        let (fitted, raised) = plain().fit(&volatile).unwrap();
        assert_eq!(
            raised,
            [
                "what is to be shared within 30 s is durable by then",
                "close waits for durable",
                "fsync waits for durable"
            ]
        );
        assert_eq!(fitted.due(Level::Durable), Deadline::Within(Duration::from_secs(30)));
        let (kept, raised) =
            plain().fit(&Specification { on_error: OnError::Discard, ..fitted.clone() }).unwrap();
        assert_eq!(raised, ["what a level refuses is kept"]);
        assert_eq!(kept, fitted);
        let two = Specification {
            steps: BTreeMap::from([(Level::Durable, step(0, 2))]),
            ..Specification::nothing()
        };
        let refused = plain().fit(&two).unwrap_err().to_string();
        assert_eq!(refused, "an NFS mount has no level durable in 2 copies, nor a stronger one");
        let archive = Specification { close: Some(Level::Archive), ..Specification::nothing() };
        let refused = plain().fit(&archive).unwrap_err().to_string();
        assert_eq!(refused, "an NFS mount has no level archive");
        let mut volume = plain();
        volume.copies.insert(Level::Archive, 1);
        assert!(volume.fit(&archive).unwrap_err().to_string().contains("archive = \"1h\""));
        let hourly = Specification {
            steps: BTreeMap::from([(Level::Archive, step(3600, 1))]),
            ..Specification::nothing()
        };
        let (fitted, _) = volume.fit(&hourly).unwrap();
        assert_eq!(fitted.due(Level::Archive), Deadline::Within(Duration::from_secs(3600)));
    }
}
