//! A map from small numbers that is cheap to clone: copies share everything except the path to a changed
//! value.
//!
//! For page numbers and node numbers, which are dense from zero. It keeps empty branches,
//! so it must not be used where keys are added and removed without end.

use std::array;
use std::sync::Arc;

const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;

#[derive(Clone, Debug)]
pub(crate) struct RadixMap<T> {
    root: Option<Arc<Branch<T>>>,
    /// Levels above the leaves.
    height: u32,
}

#[derive(Clone, Debug)]
enum Branch<T> {
    Leaf([Option<T>; WIDTH]),
    Inner([Option<Arc<Branch<T>>>; WIDTH]),
}

impl<T> Default for RadixMap<T> {
    fn default() -> Self {
        Self { root: None, height: 0 }
    }
}

impl<T: Clone> RadixMap<T> {
    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        if !self.fits(key) {
            return None;
        }
        let mut branch = self.root.as_ref()?;
        let mut level = self.height;
        loop {
            match &**branch {
                Branch::Leaf(slots) => return slots[slot(key, 0)].as_ref(),
                Branch::Inner(slots) => branch = slots[slot(key, level)].as_ref()?,
            }
            level -= 1;
        }
    }

    /// The value at `key`, which is copied first if it is shared.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        if !self.fits(key) {
            return None;
        }
        let mut level = self.height;
        let mut branch = Arc::make_mut(self.root.as_mut()?);
        loop {
            match branch {
                Branch::Leaf(slots) => return slots[slot(key, 0)].as_mut(),
                Branch::Inner(slots) => {
                    branch = Arc::make_mut(slots[slot(key, level)].as_mut()?);
                }
            }
            level -= 1;
        }
    }

    pub(crate) fn insert(&mut self, key: u64, value: T) -> Option<T> {
        while !self.fits(key) {
            if let Some(root) = self.root.take() {
                let mut slots = array::from_fn(|_| None);
                slots[0] = Some(root);
                self.root = Some(Arc::new(Branch::Inner(slots)));
            }
            self.height += 1;
        }
        let mut level = self.height;
        let mut child = &mut self.root;
        loop {
            let branch = Arc::make_mut(child.get_or_insert_with(|| Arc::new(Branch::new(level))));
            match branch {
                Branch::Leaf(slots) => return slots[slot(key, 0)].replace(value),
                Branch::Inner(slots) => child = &mut slots[slot(key, level)],
            }
            level -= 1;
        }
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        let mut level = self.height;
        let mut branch = Arc::make_mut(self.root.as_mut()?);
        loop {
            match branch {
                Branch::Leaf(slots) => return slots[slot(key, 0)].take(),
                Branch::Inner(slots) => {
                    branch = Arc::make_mut(slots[slot(key, level)].as_mut()?);
                }
            }
            level -= 1;
        }
    }

    /// The first key at or after `from`.
    pub(crate) fn next(&self, from: u64) -> Option<(u64, &T)> {
        if !self.fits(from) {
            return None;
        }
        self.root.as_ref()?.next(from, self.height, 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let (key, value) = self.next(from?)?;
            from = key.checked_add(1);
            Some((key, value))
        })
    }

    fn fits(&self, key: u64) -> bool {
        let bits = BITS * (self.height + 1);
        bits >= u64::BITS || key >> bits == 0
    }
}

impl<T> Branch<T> {
    fn new(level: u32) -> Self {
        if level == 0 {
            Self::Leaf(array::from_fn(|_| None))
        } else {
            Self::Inner(array::from_fn(|_| None))
        }
    }

    /// `prefix` is the part of the key above this node.
    fn next(&self, from: u64, level: u32, prefix: u64) -> Option<(u64, &T)> {
        let first = slot(from, level);
        match self {
            Self::Leaf(slots) => (first..WIDTH)
                .find_map(|at| Some(((prefix << BITS) | at as u64, slots[at].as_ref()?))),
            Self::Inner(slots) => (first..WIDTH).find_map(|at| {
                let from = if at == first { from } else { 0 };
                slots[at].as_ref()?.next(from, level - 1, (prefix << BITS) | at as u64)
            }),
        }
    }
}

fn slot(key: u64, level: u32) -> usize {
    ((key >> (BITS * level)) as usize) & (WIDTH - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = u64> {
        prop_oneof![0..40_u64, 0..5000_u64, Just(u64::MAX), Just(u64::MAX - 1), any::<u64>()]
    }

    proptest! {
        #[test]
        fn equals_an_ordinary_map_and_leaves_its_copies_alone(
            steps in prop::collection::vec((key(), prop::option::of(any::<u8>())), 0..60),
            probes in prop::collection::vec(key(), 8),
        ) {
            let mut radix = RadixMap::default();
            let mut map = BTreeMap::new();
            let mut copies = Vec::new();
            for (key, value) in steps {
                copies.push((radix.clone(), map.clone()));
                match value {
                    Some(value) => {
                        prop_assert_eq!(radix.insert(key, value), map.insert(key, value));
                    }
                    None => prop_assert_eq!(radix.remove(key), map.remove(&key)),
                }
                if let Some(value) = radix.get_mut(key) {
                    *value = value.wrapping_add(1);
                }
                map.entry(key).and_modify(|value| *value = value.wrapping_add(1));
            }
            copies.push((radix, map));
            for (radix, map) in copies {
                let all: Vec<_> = radix.iter().map(|(key, value)| (key, *value)).collect();
                prop_assert_eq!(all, map.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>());
                for probe in &probes {
                    prop_assert_eq!(radix.get(*probe), map.get(probe));
                    prop_assert_eq!(
                        radix.next(*probe).map(|(key, value)| (key, *value)),
                        map.range(probe..).next().map(|(key, value)| (*key, *value))
                    );
                }
            }
        }
    }
}
