//! A table of numbered objects with a fixed upper bound.

use std::collections::VecDeque;

/// Objects under numbers `base..base + limit`.
///
/// Storage grows as objects are created, never by a number that the host names: a look-up of a number that was
/// not handed out is `None`. A freed number goes to the back of the queue, so that it stays unused for as long as
/// possible and late packets or completions do not meet a new object.
#[derive(Debug)]
pub struct Table<T> {
    base: u32,
    limit: u32,
    slots: Vec<Option<T>>,
    free: VecDeque<u32>,
    used: u32,
}

impl<T> Table<T> {
    /// An empty table whose numbers start at `base`, of at most `limit` objects.
    pub fn new(base: u32, limit: u32) -> Table<T> {
        Table {
            base,
            limit,
            slots: Vec::new(),
            free: VecDeque::new(),
            used: 0,
        }
    }

    /// Number of objects in it.
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The most objects it holds.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Puts in what `make` builds from the object's number; `None` when the table is full.
    ///
    /// New numbers are preferred to freed ones until a quarter of the range was handed out once.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let made = self.try_insert_with(|number| Ok::<T, std::convert::Infallible>(make(number)));
        let Ok(number) = made;
        number
    }

    /// As [`Table::insert_with`], for an object that may not come to be; the number stays free then.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn try_insert_with<E>(&mut self, make: impl FnOnce(u32) -> Result<T, E>) -> Result<Option<u32>, E> {
        let fresh = self.slots.len() as u32;
        let prefer_fresh =
            fresh < self.limit && (self.free.is_empty() || fresh < (self.limit / 4).min(1 << 12));
        let next_free = if prefer_fresh {
            Some(fresh)
        } else {
            self.free.front().copied()
        };
        let Some(slot) = next_free else {
            return Ok(None);
        };
        let number = self.base + slot;
        let object = Some(make(number)?);
        if prefer_fresh {
            self.slots.push(object);
        } else {
            self.free.pop_front();
            self.slots[slot as usize] = object;
        }
        self.used += 1;
        Ok(Some(number))
    }

    fn slot(&self, number: u32) -> Option<usize> {
        number.checked_sub(self.base).map(|slot| slot as usize)
    }

    /// The object under `number`.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(self.slot(number)?)?.as_ref()
    }

    /// The object under `number`, to be changed.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slot(number)?;
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Takes the object under `number` out and frees the number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let slot = self.slot(number)?;
        let taken = self.slots.get_mut(slot)?.take()?;
        self.free.push_back(slot as u32);
        self.used -= 1;
        Some(taken)
    }

    /// All objects with their numbers, in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let base = self.base;
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(move |(slot, object)| Some((base + slot as u32, object.as_ref()?)))
    }

    /// All objects with their numbers, to be changed, in order of number.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let base = self.base;
        let numbered = self.slots.iter_mut().enumerate();
        numbered.filter_map(move |(slot, object)| Some((base + slot as u32, object.as_mut()?)))
    }

    /// Forgets everything, as after a reset.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bounded_and_reused_late() {
        let mut table = Table::new(8, 3);
        let first = table.insert_with(|n| n).unwrap();
        assert_eq!(first, 8);
        assert_eq!(table.remove(first), Some(8));
        assert_eq!(table.remove(first), None);
        let numbers: Vec<_> = (0..3).map(|_| table.insert_with(|n| n).unwrap()).collect();
        assert_eq!(table.insert_with(|n| n), None);
        assert_eq!(table.len(), 3);
        assert!(numbers.iter().all(|n| (8..11).contains(n)));
    }

    #[test]
    fn foreign_numbers_find_nothing() {
        let mut table: Table<u32> = Table::new(8, 3);
        for number in [0, 7, 8, u32::MAX] {
            assert!(table.get(number).is_none());
            assert!(table.get_mut(number).is_none());
            assert!(table.remove(number).is_none());
        }
    }
}
