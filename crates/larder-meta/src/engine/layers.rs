//! Layers of writes above a view, newest first, as one map.
//!
//! A transaction is a layer above those of its group, the group above the store; and engines keep
//! writes that are not yet in the state that they read from in layers, too ([`Stack`]).

use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use super::{EngineError, View, Visitor, Writes};

/// Layers that commits leave above a state of the store, newest last. Each is larger than the next:
/// so a lookup has few layers to search, and each write is moved only a few times.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    layers: Vec<Arc<Writes>>,
    bytes: usize,
}

impl Stack {
    /// Puts a layer on top. Layers that are not larger than twice the next one are merged with it.
    pub fn push(&mut self, mut newest: Writes) {
        self.bytes += newest.iter().map(|(key, value)| bytes(key, value.as_deref())).sum::<usize>();
        while let Some(last) = self.layers.pop_if(|last| last.len() <= 2 * newest.len()) {
            let mut merged = Arc::unwrap_or_clone(last);
            merged.append(&mut newest);
            newest = merged;
        }
        self.layers.push(Arc::new(newest));
    }

    /// How much memory was written to it, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All layers as one.
    pub fn merged(&self) -> Writes {
        let mut all = Writes::new();
        for layer in &self.layers {
            all.extend(layer.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        all
    }

    /// A view of these layers on top of what is below.
    pub fn above<V: View>(&self, below: V) -> Above<V> {
        Above { layers: self.layers.iter().rev().map(Arc::clone).collect(), below }
    }
}

/// About how much memory an entry takes, in bytes.
pub(super) fn bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len() + value.map_or(0, <[u8]>::len) + 64
}

/// A view with layers above it, newest first.
#[derive(Debug)]
pub struct Above<V> {
    layers: Vec<Arc<Writes>>,
    below: V,
}

impl<V> Above<V> {
    fn layers(&self) -> Vec<&Writes> {
        self.layers.iter().map(|layer| &**layer).collect()
    }
}

impl<V: View> View for Above<V> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EngineError> {
        get(&self.layers(), &self.below, key)
    }

    fn scan(&self, from: &[u8], until: &[u8], each: &mut Visitor<'_>) -> Result<(), EngineError> {
        scan(&self.layers(), &self.below, from, until, each)
    }
}

/// The value of `key`: that of the newest layer that has a write for it, else that of `below`.
///
/// # Errors
/// Those of `below`.
pub fn get(
    layers: &[&Writes],
    below: &dyn View,
    key: &[u8],
) -> Result<Option<Vec<u8>>, EngineError> {
    match layers.iter().find_map(|layer| layer.get(key)) {
        Some(value) => Ok(value.clone()),
        None => below.get(key),
    }
}

/// As [`View::scan`], over the layers and what is below.
///
/// # Errors
/// Those of `below`.
pub fn scan(
    layers: &[&Writes],
    below: &dyn View,
    from: &[u8],
    until: &[u8],
    each: &mut Visitor<'_>,
) -> Result<(), EngineError> {
    if from >= until {
        return Ok(());
    }
    let mut above = Merged::new(layers, from, until);
    let mut is_over = false;
    below.scan(from, until, &mut |key, value| {
        while let Some((earlier, written)) = above.next_if(|above| above < key) {
            if let Some(written) = written
                && each(earlier, written).is_break()
            {
                is_over = true;
                return ControlFlow::Break(());
            }
        }
        let flow = match above.next_if(|above| above == key) {
            Some((_, None)) => ControlFlow::Continue(()),
            Some((_, Some(written))) => each(key, written),
            None => each(key, value),
        };
        is_over = flow.is_break();
        flow
    })?;
    while let Some((key, written)) = above.next_if(|_| !is_over) {
        is_over = written.is_some_and(|written| each(key, written).is_break());
    }
    Ok(())
}

type Entry<'a> = (&'a [u8], Option<&'a [u8]>);

/// The entries of several layers in order, the newest for each key.
struct Merged<'a>(Vec<Peekable<Layer<'a>>>);

type Layer<'a> = Range<'a, Vec<u8>, Option<Vec<u8>>>;

impl<'a> Merged<'a> {
    fn new(layers: &[&'a Writes], from: &[u8], until: &[u8]) -> Merged<'a> {
        let bounds = (Bound::Included(from), Bound::Excluded(until));
        Merged(layers.iter().map(|layer| layer.range::<[u8], _>(bounds).peekable()).collect())
    }

    /// The next entry, if its key is one that is wanted.
    fn next_if(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Option<Entry<'a>> {
        let key = self.0.iter_mut().filter_map(|layer| Some(layer.peek()?.0)).min()?;
        if !wanted(key) {
            return None;
        }
        let mut newest = None;
        for layer in &mut self.0 {
            if let Some((_, value)) = layer.next_if(|(other, _)| *other == key) {
                newest.get_or_insert(value);
            }
        }
        Some((key, newest?.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::memory::MemoryEngine;
    use crate::engine::{Engine, Owner};

    fn layer() -> impl Strategy<Value = Writes> {
        let key = proptest::collection::vec(0..4u8, 1..3);
        let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..2));
        proptest::collection::btree_map(key, value, 0..12)
    }

    proptest! {
        /// Layers over a view equal the map that results from writing them one after the other.
        #[test]
        fn layers_are_one_map(
            below in layer(), layers in proptest::collection::vec(layer(), 0..4),
            from in proptest::collection::vec(0..4u8, 0..3),
            until in proptest::collection::vec(0..5u8, 0..3),
            limit in 1..9usize,
        ) {
            let engine = MemoryEngine::new();
            let nobody = Owner { key: b"owner".to_vec(), value: None };
            engine.commit(&below, &nobody).unwrap();
            let under = engine.view().unwrap();
            for layer in layers.iter().rev() {
                engine.commit(layer, &nobody).unwrap();
            }
            let whole = engine.view().unwrap();
            let layers: Vec<&Writes> = layers.iter().collect();
            let collect = |scan: &dyn Fn(&mut Visitor<'_>)| {
                let mut found = Vec::new();
                scan(&mut |key, value| {
                    found.push((key.to_vec(), value.to_vec()));
                    if found.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                found
            };
            let wanted = collect(&|each| whole.scan(&from, &until, each).unwrap());
            let found = collect(&|each| scan(&layers, &*under, &from, &until, each).unwrap());
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(get(&layers, &*under, &from).unwrap(), whole.get(&from).unwrap());
        }
    }
}
