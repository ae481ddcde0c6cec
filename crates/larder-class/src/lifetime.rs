//! How long bytes live at a level: the figures by which larder estimates when a file is lost.
//!
//! The figures are assumptions about the machines of an installation, which only its owner can
//! correct (`[level.NAME]` in the files of classes). They decide nothing: no byte goes anywhere
//! because of them.

use std::time::Duration;

use crate::specification::Level;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
pub(crate) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Longest lifetime that is reported; longer estimates mean nothing: a billion years.
pub const LIFETIME_MAX: Duration = Duration::from_secs(1_000_000_000 * YEAR.as_secs());

/// What becomes of one copy at a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// How long it lasts on average (mean time to failure); not zero.
    pub mttf: Duration,
    /// How long it is missing after that, if there is another one to make it again from; not zero,
    /// and not longer than `mttf`.
    pub repair: Duration,
}

/// What becomes of copies at each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes([Lifetime; Level::ALL.len()]);

impl Default for Lifetimes {
    /// Memory lasts until its machine is restarted: 30 days. Of disks, 2 to 8 of 100 are replaced
    /// in a year (Schroeder and Gibson, and Pinheiro et al., both FAST 2007): 25 years. Archives
    /// state much more than a million years, but not for accounts that are closed by mistake.
    /// Memory disks get what they lost within a minute, disks within a day.
    fn default() -> Lifetimes {
        let lifetime = |level| match level {
            Level::Memory | Level::Shared => Lifetime { mttf: 30 * DAY, repair: MINUTE },
            Level::Local | Level::Durable => Lifetime { mttf: 25 * YEAR, repair: DAY },
            Level::Archive => Lifetime { mttf: 1_000_000 * YEAR, repair: DAY },
        };
        Lifetimes(Level::ALL.map(lifetime))
    }
}

impl Lifetimes {
    /// What becomes of one copy at a level.
    pub fn of(&self, level: Level) -> Lifetime {
        self.0[level as usize]
    }

    pub(crate) fn set(&mut self, level: Level, lifetime: Lifetime) {
        self.0[level as usize] = lifetime;
    }

    /// After how long, on average, all of so many copies at a level are lost together, if they fail
    /// independently of each other: with one that is `mttf`, with k copies
    /// mttf^k / (k * repair^(k-1)). At most [`LIFETIME_MAX`].
    ///
    /// # Panics
    /// If there are no copies.
    pub fn until_loss(&self, level: Level, copies: u32) -> Duration {
        assert!(copies > 0, "what has no copy is lost");
        let Lifetime { mttf, repair } = self.of(level);
        let (mttf, repair) = (mttf.as_secs_f64(), repair.as_secs_f64());
        let others = i32::try_from(copies - 1).unwrap_or(i32::MAX);
        let seconds = mttf / f64::from(copies) * (mttf / repair).powi(others);
        Duration::try_from_secs_f64(seconds).unwrap_or(LIFETIME_MAX).min(LIFETIME_MAX)
    }
}

/// After how long, on average, the first of several independent losses comes; `None`: there are
/// none.
pub fn first_loss(losses: &[Duration]) -> Option<Duration> {
    let rate: f64 = losses.iter().map(|time| time.as_secs_f64().recip()).sum();
    (!losses.is_empty()).then(|| Duration::try_from_secs_f64(rate.recip()).unwrap_or(LIFETIME_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_lives_as_long_as_the_level() {
        for level in Level::ALL {
            let figures = Lifetimes::default();
            assert_eq!(figures.until_loss(level, 1), figures.of(level).mttf, "{level}");
        }
    }

    /// Against a simulation: two machines fail now and then, each for a while.
    #[test]
    fn two_copies_live_as_long_as_a_simulation_says() {
        let (mttf, repair) = (1000.0, 20.0);
        let mut figures = Lifetimes::default();
        let seconds = Duration::from_secs_f64;
        figures.set(Level::Shared, Lifetime { mttf: seconds(mttf), repair: seconds(repair) });
        let mut random = 88_172_645_463_325_252_u64;
        let mut works_for = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
            -mttf * (1.0 - uniform).ln()
        };
        let mut fails = [works_for(), works_for()];
        let (mut back, mut both, mut now) = ([0.0; 2], 0, 0.0);
        for _ in 0..200_000 {
            let one = usize::from(fails[1] < fails[0]);
            now = fails[one];
            both += u32::from(back[1 - one] > now);
            back[one] = now + repair;
            fails[one] = back[one] + works_for();
        }
        let simulated = now / f64::from(both);
        let told = figures.until_loss(Level::Shared, 2).as_secs_f64();
        // The formula leaves out that a machine does not fail while it is away: 4 % here.
        assert!((told / simulated - 1.0).abs() < 0.1, "{told} {simulated}");
    }

    #[test]
    fn more_copies_live_longer_and_nothing_lives_for_ever() {
        let figures = Lifetimes::default();
        for level in Level::ALL {
            for copies in 1..20 {
                let (fewer, more) =
                    (figures.until_loss(level, copies), figures.until_loss(level, copies + 1));
                assert!(fewer < more || more == LIFETIME_MAX, "{level} {copies}");
            }
            assert_eq!(figures.until_loss(level, u32::MAX), LIFETIME_MAX);
        }
    }

    #[test]
    fn a_file_is_lost_with_its_first_part() {
        assert_eq!(first_loss(&[]), None);
        assert_eq!(first_loss(&[DAY]), Some(DAY));
        assert_eq!(first_loss(&[DAY, DAY]), Some(DAY / 2));
        assert!(first_loss(&[DAY, LIFETIME_MAX]).unwrap() > DAY - MINUTE);
    }
}
