//! A daemon's report of one file: its class, where its bytes are, and what would lose them.
//!
//! How long that takes is an estimate: from how long copies last at each level on average, which is
//! an assumption (`[level.NAME]` in larder.toml), and as if they failed independently.

use std::fmt;
use std::time::Duration;

use larder_class::{Class, Deadline, LIFETIME_MAX, Level, Lifetimes, Step, first_loss};
use larder_vfs::{InArchive, Medium, StoredPart};
use serde::{Deserialize, Serialize};

use super::{Dirty, Durable, Span};
use crate::options::Bytes;

/// Answer to [`crate::control::Request::Explain`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Explained {
    /// The class of a file.
    pub(crate) class: String,
    /// What decided on it.
    pub(crate) why: String,
    /// What the mount promises.
    pub(crate) promise: String,
    /// The part of that beyond the class.
    pub(crate) raised: String,
    /// How durable the file is now.
    pub(crate) durable: Durable,
    /// What the server lacks of it.
    pub(crate) unsent: Dirty,
    /// Each level that the class promises, the weakest first.
    #[serde(default)]
    pub(crate) levels: Vec<PromisedLevel>,
    /// Where the bytes are now: each is in one of these places, or in a hole.
    #[serde(default)]
    pub(crate) places: Vec<StoredAt>,
    /// Why the places are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) places_unknown: Option<String>,
    /// What the archive has of it, if it has the file's present version or is to have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) archive: Option<ArchiveKnown>,
    /// The least copies of any byte, without the archive's.
    #[serde(default)]
    pub(crate) copies: Option<u32>,
    /// After how many seconds, on average, some bytes are lost, if everything stays as it is.
    #[serde(default)]
    pub(crate) mean_time_to_loss_s: Option<u64>,
}

/// What a class promises for a level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PromisedLevel {
    pub(crate) level: String,
    /// By when bytes are there, in words.
    pub(crate) when: String,
    /// The same in milliseconds from the write; `None`: when the file is closed or synced.
    pub(crate) within_ms: Option<u64>,
    pub(crate) copies: u32,
    /// What loses bytes that are nowhere else.
    pub(crate) lost_by: String,
    /// After how many seconds that happens, on average.
    pub(crate) mean_time_to_loss_s: u64,
}

/// Where some bytes of a file are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredAt {
    /// A level, or `lost`.
    pub(crate) level: String,
    pub(crate) bytes: u64,
    /// The disks of the volume that have them now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) disks: Vec<u32>,
    /// How many copies can be read now.
    pub(crate) copies: u32,
    /// What loses them; `None`: they are lost, or no disk that has them answers.
    pub(crate) lost_by: Option<String>,
    /// After how many seconds that happens, on average.
    pub(crate) mean_time_to_loss_s: Option<u64>,
}

/// The present version of a file and the archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArchiveKnown {
    /// Whether it is there.
    pub(crate) has_present: bool,
    /// In how many milliseconds it is due there; 0 if it has been due.
    pub(crate) due_ms: Option<u64>,
    /// For how long it has been due.
    pub(crate) late_ms: u64,
}

/// The levels that a class promises, the weakest first.
pub(crate) fn promised_levels(class: &Class, lifetimes: &Lifetimes) -> Vec<PromisedLevel> {
    let promised = &class.promised;
    let of = |level: Level| {
        let step = promised.steps.get(&level).filter(|step| step.within != Deadline::Never);
        let waits = |for_level: Option<Level>| for_level == Some(level);
        let (when, within) = match step {
            Some(Step { within: Deadline::Within(time), .. }) => {
                (step?.within.to_string(), Some(*time))
            }
            _ if waits(promised.close) => ("at close".to_owned(), None),
            _ if waits(promised.fsync) => ("at fsync".to_owned(), None),
            _ => return None,
        };
        let copies = step.map_or(1, |step| u32::from(step.copies));
        Some(PromisedLevel {
            level: level.name().to_owned(),
            when,
            within_ms: within.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            copies,
            lost_by: lost_by(level, copies, &[]),
            mean_time_to_loss_s: lifetimes.until_loss(level, copies).as_secs(),
        })
    };
    Level::ALL.into_iter().filter_map(of).collect()
}

impl StoredAt {
    /// Bytes that are at a level in as many copies.
    pub(crate) fn new(level: Level, bytes: u64, copies: u32, lifetimes: &Lifetimes) -> StoredAt {
        StoredAt {
            level: level.name().to_owned(),
            bytes,
            disks: Vec::new(),
            copies,
            lost_by: (copies > 0).then(|| lost_by(level, copies, &[])),
            mean_time_to_loss_s: (copies > 0)
                .then(|| lifetimes.until_loss(level, copies).as_secs()),
        }
    }

    /// Bytes that a volume has.
    pub(crate) fn of_part(part: StoredPart, lifetimes: &Lifetimes) -> StoredAt {
        let StoredPart { medium, bytes, disks, is_lost } = part;
        if is_lost {
            return StoredAt { level: LOST.to_owned(), bytes, ..StoredAt::default() };
        }
        let level = match medium {
            Medium::Memory => Level::Shared,
            Medium::Disk => Level::Durable,
        };
        let copies = u32::try_from(disks.len()).unwrap_or(u32::MAX);
        let lost_by = (copies > 0).then(|| lost_by(level, copies, &disks));
        StoredAt { disks, lost_by, ..StoredAt::new(level, bytes, copies, lifetimes) }
    }
}

impl StoredAt {
    /// The same if the archive has these bytes, too: what memory disks lose of them is read from
    /// there. What disks lose is not.
    fn archived(self, lifetimes: &Lifetimes) -> StoredAt {
        let archived = StoredAt::new(Level::Archive, self.bytes, 1, lifetimes);
        if self.level == LOST {
            return archived;
        }
        if self.level != Level::Shared.name() {
            return self;
        }
        let lost_by = self.lost_by.zip(archived.lost_by);
        let times = self.mean_time_to_loss_s.zip(archived.mean_time_to_loss_s);
        StoredAt {
            lost_by: lost_by.map(|(own, other)| format!("{own} and {other}")),
            mean_time_to_loss_s: times.map(|(own, other)| own.max(other)),
            ..self
        }
    }
}

impl ArchiveKnown {
    /// What a server told.
    pub(crate) fn of(told: InArchive) -> ArchiveKnown {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let InArchive { is_there, due, late } = told;
        ArchiveKnown { has_present: is_there, due_ms: due.map(ms), late_ms: ms(late) }
    }
}

impl fmt::Display for ArchiveKnown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ArchiveKnown { has_present, due_ms, late_ms } = *self;
        let time = |ms: u64| Span(Duration::from_secs(ms.div_ceil(1000)));
        match due_ms {
            _ if has_present => f.write_str("has it as it is now"),
            Some(0) => {
                write!(f, "does not have it, and it has been due for {}", time(late_ms))
            }
            Some(due_ms) => write!(f, "does not have it yet: due in {}", time(due_ms)),
            None => f.write_str("does not have it"),
        }
    }
}

/// The level of bytes that are nowhere.
const LOST: &str = "lost";

impl Explained {
    /// The same with these places and the archive, and what follows from them: the level reached,
    /// as far as the server has everything, the copies, and what to expect. What memory disks lose
    /// is read from the archive if that has the present version.
    pub(crate) fn with_stored(
        mut self,
        mut places: Vec<StoredAt>,
        archive: Option<ArchiveKnown>,
        lifetimes: &Lifetimes,
    ) -> Explained {
        let is_all = self.unsent.bytes == 0;
        let is_archived = is_all && archive.is_some_and(|archive| archive.has_present);
        if is_archived {
            places = places.into_iter().map(|place| place.archived(lifetimes)).collect();
        }
        let rank = |level: &str| Level::ALL.iter().position(|one| one.name() == level);
        let weakest = places.iter().map(|place| place.level.as_str());
        let weakest = weakest.min_by_key(|level| rank(level));
        let reached = if is_archived { Some(Level::Archive.name()) } else { weakest };
        if let Some(level) = reached.filter(|_| is_all) {
            level.clone_into(&mut self.durable.level);
        }
        self.copies = places.iter().map(|place| place.copies).min();
        let is_lost = places.iter().any(|place| place.level == LOST);
        let times = places.iter().filter_map(|place| place.mean_time_to_loss_s);
        let times: Vec<Duration> = times.map(Duration::from_secs).collect();
        let first = first_loss(&times).filter(|_| !is_lost);
        self.mean_time_to_loss_s = first.map(|time| time.as_secs());
        Explained { places, archive, ..self }
    }

    /// The part that is about the class.
    pub(crate) fn of_class(&self) -> String {
        let Explained { class, why, promise, raised, levels, .. } = self;
        let raised =
            if raised.is_empty() { String::new() } else { format!("  raised   {raised}\n") };
        let levels: String = levels.iter().map(ToString::to_string).collect();
        format!("  class    {class}: {why}\n  promise  {promise}\n{raised}{levels}")
    }
}

/// What loses bytes of which so many copies at a level are all there is: on these disks, if it is
/// known on which.
fn lost_by(level: Level, copies: u32, disks: &[u32]) -> String {
    let numbers: Vec<String> = disks.iter().map(ToString::to_string).collect();
    let numbers = numbers.join(", ");
    match (level, copies, disks) {
        (Level::Memory, ..) => "a restart of this machine".to_owned(),
        (Level::Local, ..) => "the loss of this machine's disk".to_owned(),
        (Level::Shared, 1, []) => "a restart of the memory disk".to_owned(),
        (Level::Shared, 1, _) => format!("a restart of memory disk {numbers}"),
        (Level::Shared, _, []) => format!("a restart of {copies} memory disks at once"),
        (Level::Shared, ..) => format!("a restart of all of memory disks {numbers} at once"),
        (Level::Durable, 1, []) => "the loss of the server's disk".to_owned(),
        (Level::Durable, 1, _) => format!("the loss of disk {numbers}"),
        (Level::Durable, _, []) => format!("the loss of {copies} disks at once"),
        (Level::Durable, ..) => format!("the loss of all of disks {numbers} at once"),
        (Level::Archive, ..) => "the loss of the archive".to_owned(),
    }
}

impl fmt::Display for PromisedLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PromisedLevel { level, when, copies, lost_by, mean_time_to_loss_s, .. } = self;
        let copies = if *copies > 1 { format!(" in {copies} copies") } else { String::new() };
        let after = Lasting(Duration::from_secs(*mean_time_to_loss_s));
        writeln!(f, "  {level:<8} {when}{copies}; lost by {lost_by}: {after}")
    }
}

impl fmt::Display for StoredAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoredAt { level, bytes, copies, lost_by, mean_time_to_loss_s, .. } = self;
        write!(f, "{} ", Bytes(*bytes))?;
        match (lost_by, mean_time_to_loss_s) {
            (Some(lost_by), Some(after)) => {
                let copies =
                    if *copies > 1 { format!(" in {copies} copies") } else { String::new() };
                let after = Lasting(Duration::from_secs(*after));
                write!(f, "{level}{copies}, lost by {lost_by}: {after}")
            }
            _ if level == LOST => f.write_str(LOST),
            _ => write!(f, "{level}, but no disk that has them can be read now"),
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.of_class())?;
        writeln!(f, "  level    {}", self.durable)?;
        if self.unsent.bytes > 0 {
            writeln!(f, "  unsent   {}", self.unsent)?;
        }
        for place in &self.places {
            writeln!(f, "  where    {place}")?;
        }
        if let Some(archive) = &self.archive {
            writeln!(f, "  archive  {archive}")?;
        }
        if let Some(why) = &self.places_unknown {
            writeln!(f, "  where    not known: {why}")?;
        }
        match self.mean_time_to_loss_s {
            Some(after) => {
                writeln!(f, "  lasts    {} as it is now", Lasting(Duration::from_secs(after)))
            }
            None => Ok(()),
        }
    }
}

/// An average time until something happens, with two digits or so.
struct Lasting(Duration);

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 7] = [
            ("s", 1),
            ("min", 60),
            ("h", 3600),
            ("days", 24 * 3600),
            ("years", 365 * 24 * 3600),
            ("thousand years", 365 * 24 * 3_600_000),
            ("million years", 365 * 24 * 3_600_000_000),
        ];
        if self.0 >= LIFETIME_MAX {
            return f.write_str("more than a billion years on average");
        }
        let seconds = self.0.as_secs();
        let fits = UNITS.iter().rev().find(|(_, unit)| seconds >= 2 * unit);
        let (name, unit) = fits.unwrap_or(&UNITS[0]);
        write!(f, "{} {name} on average", (seconds + unit / 2) / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_have_the_unit_that_fits() {
        for (seconds, shown) in [
            (0, "0 s"),
            (1, "1 s"),
            (119, "119 s"),
            (120, "2 min"),
            (30 * 86_400, "30 days"),
            (25 * 31_536_000, "25 years"),
            (1999 * 31_536_000, "1999 years"),
            (2600 * 31_536_000, "3 thousand years"),
            (2_600_000 * 31_536_000, "3 million years"),
            (u64::MAX, "more than a billion years"),
        ] {
            let told = Lasting(Duration::from_secs(seconds)).to_string();
            assert_eq!(told, format!("{shown} on average"), "{seconds}");
        }
    }

    fn part(medium: Medium, bytes: u64, disks: &[u32]) -> StoredPart {
        StoredPart { medium, bytes, disks: disks.to_vec(), is_lost: false }
    }

    /// The weakest part decides on the level and the copies, and all of them on the time.
    #[test]
    fn a_file_is_as_durable_as_its_weakest_part() {
        let lifetimes = Lifetimes::default();
        let durable = || Durable { level: "durable".into(), promised: None, due: None };
        let of = |parts: &[StoredPart], unsent: u64| {
            let unsent = Dirty { bytes: unsent, ..Dirty::default() };
            let explained = Explained { durable: durable(), unsent, ..Explained::default() };
            let place = |part: &StoredPart| StoredAt::of_part(part.clone(), &lifetimes);
            explained.with_stored(parts.iter().map(place).collect(), None, &lifetimes)
        };
        let lost = StoredPart { is_lost: true, ..part(Medium::Memory, 1, &[]) };
        let (disks, disk) = (part(Medium::Disk, 4096, &[1, 2]), part(Medium::Disk, 9, &[1]));
        let (memory, away) = (part(Medium::Memory, 5, &[3]), part(Medium::Disk, 7, &[]));
        for (parts, level, copies, days) in [
            (vec![], "durable", None, None),
            (vec![disk.clone()], "durable", Some(1), Some(25 * 365)),
            (vec![disks.clone(), disk.clone()], "durable", Some(1), Some(9123)),
            (vec![disks.clone(), memory.clone()], "shared", Some(1), Some(29)),
            (vec![away.clone(), disk], "durable", Some(0), Some(25 * 365)),
            (vec![disks.clone(), lost.clone(), memory.clone()], "lost", Some(0), None),
        ] {
            let told = of(&parts, 0);
            assert_eq!((told.durable.level.as_str(), told.copies), (level, copies), "{parts:?}");
            let told_days = told.mean_time_to_loss_s.map(|seconds| seconds / 86_400);
            assert_eq!(told_days, days, "{parts:?}");
        }
        assert_eq!(
            of(std::slice::from_ref(&memory), 1).durable.level,
            "durable",
            "it is not all there"
        );
        let shown = |part| StoredAt::of_part(part, &lifetimes).to_string();
        assert_eq!(
            shown(memory),
            "5 B shared, lost by a restart of memory disk 3: 30 days on average"
        );
        assert_eq!(
            shown(disks),
            "4.00 KiB durable in 2 copies, lost by the loss of all of disks 1, 2 at once: 114 \
             thousand years on average"
        );
        assert_eq!(shown(away), "7 B durable, but no disk that has them can be read now");
        assert_eq!(shown(lost), "1 B lost");
    }

    /// The archive has each byte of the version that it has; it stands in for memory disks, not for
    /// disks, and for nothing before it has the present version, or while bytes are unsent.
    #[test]
    fn what_the_archive_has_outlives_memory_disks() {
        let lifetimes = Lifetimes::default();
        let there = ArchiveKnown { has_present: true, due_ms: None, late_ms: 0 };
        let due = ArchiveKnown { has_present: false, due_ms: Some(59_001), late_ms: 0 };
        let late = ArchiveKnown { has_present: false, due_ms: Some(0), late_ms: 180_000 };
        let memory = part(Medium::Memory, 5, &[3]);
        let disk = part(Medium::Disk, 9, &[1]);
        let lost = StoredPart { is_lost: true, ..part(Medium::Memory, 1, &[]) };
        let of = |parts: &[&StoredPart], archive, unsent: u64| {
            let unsent = Dirty { bytes: unsent, ..Dirty::default() };
            let place = |part: &&StoredPart| StoredAt::of_part((*part).clone(), &lifetimes);
            let explained = Explained { unsent, ..Explained::default() };
            explained.with_stored(parts.iter().map(place).collect(), archive, &lifetimes)
        };
        let million = Some(1_000_000);
        for (parts, archive, unsent, level, years) in [
            (vec![&memory], Some(there), 0, "archive", million),
            (vec![&memory], Some(due), 0, "shared", Some(0)),
            (vec![&memory], None, 0, "shared", Some(0)),
            (vec![&memory], Some(there), 1, "", Some(0)),
            (vec![&lost], Some(there), 0, "archive", million),
            (vec![&lost], Some(late), 0, "lost", None),
            (vec![&disk], Some(there), 0, "archive", Some(25)),
            (vec![], Some(there), 0, "archive", None),
        ] {
            let told = of(&parts, archive, unsent);
            let is_as = |seconds: u64| seconds / (365 * 86_400);
            let lasts = told.mean_time_to_loss_s.map(is_as);
            assert_eq!((told.durable.level.as_str(), lasts), (level, years), "{parts:?}");
        }
        let shown = of(&[&memory], Some(there), 0).to_string();
        let lost_by = "lost by a restart of memory disk 3 and the loss of the archive";
        assert!(shown.contains(lost_by), "{shown}");
        assert!(shown.contains("\n  archive  has it as it is now\n"), "{shown}");
        assert_eq!(due.to_string(), "does not have it yet: due in 1 min");
        assert_eq!(late.to_string(), "does not have it, and it has been due for 3 min");
    }
}
