//! For how long disks trust what they know.

use std::time::Duration;

/// For how long a disk trusts what it knows after the metadata server has told it so: the most by
/// which a disk that is away can delay a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrustInterval(Duration);

/// For how long disks are let trust, and may have been let trust before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Trusting {
    /// By this owner of the volume.
    pub(crate) interval: TrustInterval,
    /// By any owner of it so far, at most.
    pub(crate) longest: TrustInterval,
}

/// A disk is refreshed at least this often: so its metadata server knows whether it is there.
const REFRESH_MAX: Duration = Duration::from_secs(8);

impl TrustInterval {
    /// The shortest: disks are refreshed several times in it, over a network that loses packets.
    pub const MIN: Duration = Duration::from_secs(5);
    /// The longest: no disk trusts for longer.
    pub const MAX: Duration = Duration::from_secs(600);
    /// That of volumes for which none was set.
    pub(crate) const USUAL_MS: u32 = 30_000;

    /// This time, if it is one that a disk may have.
    pub fn new(time: Duration) -> Option<TrustInterval> {
        (Self::MIN..=Self::MAX).contains(&time).then_some(TrustInterval(time))
    }

    /// It as a time.
    pub fn time(self) -> Duration {
        self.0
    }

    /// How often a disk is refreshed: after a little more than a quarter of the time.
    pub(crate) fn refresh(self) -> Duration {
        (self.0 * 4 / 15).min(REFRESH_MAX)
    }

    /// It in the volume's record, in ms.
    pub(crate) fn to_record(self) -> u32 {
        u32::try_from(self.0.as_millis()).unwrap_or(u32::MAX)
    }

    /// From the volume's record.
    pub(crate) fn from_record(ms: u32) -> TrustInterval {
        TrustInterval(Duration::from_millis(ms.into()))
    }
}

impl Default for TrustInterval {
    fn default() -> TrustInterval {
        TrustInterval::from_record(Self::USUAL_MS)
    }
}

#[cfg(test)]
mod tests {
    use larder_wire::meta::words::{Time, VolumeId};

    use super::*;
    use crate::engine::memory::MemoryEngine;
    use crate::volume;

    #[test]
    fn a_disk_is_refreshed_several_times_in_any_interval() {
        for seconds in [5, 6, 15, 29, 30, 31, 100, 600] {
            let interval = TrustInterval::new(Duration::from_secs(seconds)).unwrap();
            assert!(interval.refresh() * 3 < interval.time(), "{seconds} s");
            assert!(interval.refresh() >= Duration::from_secs(1), "{seconds} s");
            assert_eq!(TrustInterval::from_record(interval.to_record()), interval);
        }
        let usual = TrustInterval::default();
        assert_eq!((usual.time(), usual.refresh()), (Duration::from_secs(30), REFRESH_MAX));
        for other in [0, 4, 601] {
            assert_eq!(TrustInterval::new(Duration::from_secs(other)), None);
        }
    }

    /// A disk that is away may still trust what an earlier owner has told it.
    #[test]
    fn the_longest_interval_of_all_owners_is_on_record() {
        let engine = MemoryEngine::new();
        volume::create(&engine, VolumeId([1; 16]), 1, Time::default()).unwrap();
        let of = |seconds| TrustInterval::new(Duration::from_secs(seconds)).unwrap();
        for (interval, longest) in [(5, 30), (60, 60), (30, 60), (600, 600), (5, 600)] {
            let owned = volume::take_trusting(&engine, of(interval)).unwrap();
            let expected = Trusting { interval: of(interval), longest: of(longest) };
            assert_eq!(owned.trust(), expected);
        }
    }
}
