//! Free slots of a table that is indexed by small numbers.

/// The free slots of a `Vec<Option<T>>`. Finding one takes constant time.
#[derive(Debug, Default)]
pub(crate) struct FreeSlots(Vec<u32>);

impl FreeSlots {
    /// Puts a value into a free slot of the table, or into a new one, and returns its index.
    pub(crate) fn occupy<T>(&mut self, table: &mut Vec<Option<T>>, value: T) -> u32 {
        if let Some(index) = self.0.pop()
            && let Some(slot @ None) = table.get_mut(index as usize)
        {
            *slot = Some(value);
            return index;
        }
        table.push(Some(value));
        table.len() as u32 - 1
    }

    /// Empties a slot of the table.
    pub(crate) fn vacate<T>(&mut self, table: &mut [Option<T>], index: u32) {
        if let Some(slot @ Some(_)) = table.get_mut(index as usize) {
            *slot = None;
            self.0.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_slots_are_reused_before_the_table_grows() {
        let (mut free, mut table) = (FreeSlots::default(), Vec::new());
        assert_eq!([10, 11, 12].map(|value| free.occupy(&mut table, value)), [0, 1, 2]);
        free.vacate(&mut table, 0);
        free.vacate(&mut table, 2);
        free.vacate(&mut table, 2);
        free.vacate(&mut table, 7);
        let mut reused = [20, 21].map(|value| free.occupy(&mut table, value));
        reused.sort_unstable();
        assert_eq!(reused, [0, 2]);
        assert_eq!(free.occupy(&mut table, 22), 3);
        assert_eq!(table.iter().flatten().count(), 4);
    }
}
