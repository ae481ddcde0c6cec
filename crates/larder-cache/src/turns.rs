//! Who is at a local file: many who fill parts of it, or one who changes it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use crate::lock;
use crate::ranges::RangeSet;

/// Either many who add to something, or one who changes it.
#[derive(Debug, Default)]
pub(crate) struct Turns(RwLock<()>);

impl Turns {
    /// One of many.
    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Alone. Waits for those who are at it.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody is at it just now.
    pub(crate) fn is_free(&self) -> bool {
        !matches!(self.0.try_write(), Err(TryLockError::WouldBlock))
    }
}

/// The fills of one file.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Taken before the state of the file.
    pub(crate) turns: Turns,
    /// Taken after it.
    claims: Mutex<Claims>,
}

/// What is claimed of a local file. Claims of an older one, which is gone, are forgotten.
#[derive(Debug, Default)]
struct Claims {
    serial: u64,
    ranges: RangeSet,
}

impl Filling {
    /// What of these parts of a local file nobody claims.
    pub(crate) fn unclaimed(&self, serial: u64, parts: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let claims = lock(&self.claims);
        if claims.serial != serial {
            return parts;
        }
        parts.into_iter().flat_map(|part| claims.ranges.gaps(part)).collect()
    }

    /// Claims parts of a local file that nobody claims.
    pub(crate) fn claim(&self, serial: u64, parts: &[Range<u64>]) {
        let mut claims = lock(&self.claims);
        if claims.serial != serial {
            *claims = Claims { serial, ranges: RangeSet::default() };
        }
        for part in parts {
            debug_assert!(!claims.ranges.intersects(part.clone()));
            claims.ranges.insert(part.clone());
        }
    }

    /// Gives back what was claimed.
    pub(crate) fn unclaim(&self, serial: u64, parts: &[Range<u64>]) {
        let mut claims = lock(&self.claims);
        if claims.serial == serial {
            parts.iter().for_each(|part| claims.ranges.remove(part.clone()));
        }
    }

    #[cfg(test)]
    pub(crate) fn is_unclaimed(&self) -> bool {
        lock(&self.claims).ranges.is_empty()
    }
}
