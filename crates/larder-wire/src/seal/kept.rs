//! Keys that were derived are kept: a bounded number of values, each by its name.
//!
//! When there is no room, a value leaves that nobody has asked for since the last one left it there
//! (the *clock* algorithm): so what is in use stays, however many others are used once. Nothing
//! here costs more than a search in a tree, except [`Kept::forget_if`], which looks at all.
//!
//! Invariant: never more values than the limit, and none that was forgotten.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// At most a fixed number of values, by their names.
pub struct Kept<K, V> {
    limit: usize,
    places: Vec<Option<Place<K, V>>>,
    by_name: BTreeMap<K, usize>,
    /// Places without a value.
    free: Vec<usize>,
    /// The place that is looked at next when room is needed.
    hand: usize,
}

struct Place<K, V> {
    name: K,
    value: V,
    /// Somebody has asked for it since the hand passed it.
    is_used: bool,
}

impl<K: Ord + Copy, V> Kept<K, V> {
    /// Room for `limit` values.
    ///
    /// # Panics
    /// If that is none.
    pub fn new(limit: usize) -> Kept<K, V> {
        assert!(limit > 0, "room for something");
        let (by_name, free) = (BTreeMap::new(), Vec::new());
        Kept { limit, places: Vec::new(), by_name, free, hand: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The value of this name, which counts as used.
    pub fn get(&mut self, name: &K) -> Option<&V> {
        let place = self.places[*self.by_name.get(name)?].as_mut()?;
        place.is_used = true;
        Some(&place.value)
    }

    /// Keeps a value, instead of an earlier one of this name.
    pub fn keep(&mut self, name: K, value: V) {
        let place = Place { name, value, is_used: false };
        if let Some(at) = self.by_name.get(&name) {
            self.places[*at] = Some(place);
            return;
        }
        let at = self.room();
        self.places[at] = Some(place);
        self.by_name.insert(name, at);
    }

    /// Forgets the values whose names are in a range.
    pub fn forget(&mut self, names: impl RangeBounds<K>) {
        let over: Vec<(K, usize)> =
            self.by_name.range(names).map(|(name, at)| (*name, *at)).collect();
        over.into_iter().for_each(|(name, at)| self.remove(name, at));
    }

    /// Forgets the values for which `is_over` holds.
    pub fn forget_if(&mut self, is_over: impl Fn(&K, &V) -> bool) {
        let over = self.places.iter().enumerate().filter_map(|(at, place)| {
            place.as_ref().filter(|one| is_over(&one.name, &one.value)).map(|one| (one.name, at))
        });
        over.collect::<Vec<_>>().into_iter().for_each(|(name, at)| self.remove(name, at));
    }

    fn remove(&mut self, name: K, at: usize) {
        self.by_name.remove(&name);
        self.places[at] = None;
        self.free.push(at);
    }

    /// A place without a value.
    fn room(&mut self) -> usize {
        if let Some(at) = self.free.pop() {
            return at;
        }
        if self.places.len() < self.limit {
            self.places.push(None);
            return self.places.len() - 1;
        }
        // Each step takes a mark away, so the second round finds a place at the latest.
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.limit;
            match &mut self.places[at] {
                Some(place) if place.is_used => place.is_used = false,
                Some(place) => {
                    self.by_name.remove(&place.name);
                    return at;
                }
                None => return at,
            }
        }
    }
}

/// The names and values are secret.
impl<K, V> std::fmt::Debug for Kept<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({} of {})", self.by_name.len(), self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kept: &Kept<u32, u32>) -> Vec<u32> {
        kept.by_name.keys().copied().collect()
    }

    #[test]
    fn what_is_used_stays_however_many_others_come() {
        let mut kept = Kept::new(4);
        (0..4).for_each(|name| kept.keep(name, name * 10));
        for name in 4..100 {
            assert_eq!(kept.get(&2), Some(&20));
            kept.keep(name, name * 10);
            assert_eq!(kept.len(), 4);
            assert_eq!(kept.get(&name), Some(&(name * 10)));
        }
        assert!(names(&kept).contains(&2) && !names(&kept).contains(&1));
    }

    #[test]
    fn what_is_forgotten_is_not_found_and_leaves_room() {
        let mut kept = Kept::new(6);
        (0..6).for_each(|name| kept.keep(name, name));
        kept.forget(1..=2);
        kept.forget_if(|name, value| *name == 4 && *value == 4);
        assert_eq!(names(&kept), [0, 3, 5]);
        assert_eq!(kept.get(&1), None);
        (10..13).for_each(|name| kept.keep(name, name));
        assert_eq!(names(&kept), [0, 3, 5, 10, 11, 12], "nothing had to leave");
        kept.keep(0, 7);
        assert_eq!((kept.get(&0).copied(), kept.len()), (Some(7), 6));
        kept.forget(..);
        assert!(kept.is_empty());
    }

    /// Random uses against a set: never too many, never a value that is not the last of its name.
    #[test]
    fn it_never_holds_more_than_the_limit_nor_an_old_value() {
        let mut kept = Kept::new(8);
        let mut last = BTreeMap::new();
        let mut state = 7_u64;
        for step in 0..20_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (deed, name) = (state >> 33 & 3, state >> 40 & 15);
            match deed {
                0 | 1 => {
                    kept.keep(name, step);
                    last.insert(name, step);
                }
                2 => {
                    kept.forget(name..=name);
                    last.remove(&name);
                }
                _ => {
                    if let Some(value) = kept.get(&name) {
                        assert_eq!(Some(value), last.get(&name));
                    }
                }
            }
            assert!(kept.len() <= 8);
            assert_eq!(kept.places.iter().flatten().count(), kept.len());
        }
    }
}
