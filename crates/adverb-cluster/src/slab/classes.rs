//! Size classes: the sizes of slots.

use super::slot_set::SlotSet;

/// The options that determine the size classes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Layout {
    /// The size of a slab, which is the largest class.
    pub(crate) slab_size: usize,
    /// The smallest class, before it is rounded up to the alignment.
    pub(crate) min_item_size: usize,
    /// The minimum ratio of a class to the class below.
    pub(crate) growth_factor: f64,
    /// The alignment of slots within a slab.
    pub(crate) item_align: usize,
}

/// An option of a [`Layout`] that is out of range: its name, and the rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InvalidLayout {
    pub(crate) option: &'static str,
    pub(crate) rule: &'static str,
}

/// The sizes of slots, in ascending order.
#[derive(Debug)]
pub(crate) struct SizeClasses {
    sizes: Box<[u32]>,
    /// The classes of short items, by their length in units of the alignment.
    table: Box<[u16]>,
    /// The alignment is 1 shifted by this: a shift is faster than a division.
    align_shift: u32,
}

/// The maximum number of entries of [`SizeClasses::table`].
const MAX_TABLE_LEN: usize = 1024;

impl Layout {
    /// Checks the options.
    fn check(&self) -> Result<(), InvalidLayout> {
        let invalid = |option, rule| Err(InvalidLayout { option, rule });
        let Layout { slab_size, min_item_size, growth_factor, item_align } = *self;
        if !item_align.is_power_of_two() || !(8..=4096).contains(&item_align) {
            return invalid("item_align", "it must be a power of two from 8 to 4096");
        }
        if !(4096..=1 << 30).contains(&slab_size) || !slab_size.is_multiple_of(4096) {
            return invalid("slab_size", "it must be a multiple of 4096, from 4096 to 1 GiB");
        }
        if !(1..=slab_size).contains(&min_item_size) {
            return invalid("min_item_size", "it must be from 1 to the slab size");
        }
        if !(1.05..=4.0).contains(&growth_factor) {
            return invalid("growth_factor", "it must be from 1.05 to 4");
        }
        if slab_size / min_item_size.next_multiple_of(item_align) > SlotSet::MAX_LEN {
            return invalid("min_item_size", "a slab must not have more than 262,144 slots");
        }
        Ok(())
    }
}

impl SizeClasses {
    /// Computes the classes of a layout. Each class is enlarged as far as the same number of slots still fits into a slab.
    ///
    /// # Errors
    ///
    /// Returns an error if an option is out of range.
    pub(crate) fn new(layout: &Layout) -> Result<SizeClasses, InvalidLayout> {
        layout.check()?;
        let Layout { slab_size, min_item_size, growth_factor, item_align } = *layout;
        let mut sizes = Vec::new();
        let mut size = min_item_size.next_multiple_of(item_align);
        loop {
            let slot_count = slab_size / size;
            size = slab_size / slot_count / item_align * item_align;
            sizes.push(size as u32);
            if slot_count == 1 {
                break;
            }
            // At most 4 GiB, because the slab is at most 1 GiB and the factor at most 4.
            let grown = (size as f64 * growth_factor).ceil() as usize;
            size = grown.next_multiple_of(item_align).max(size + item_align).min(slab_size);
        }
        let table_len = MAX_TABLE_LEN.min(slab_size / item_align + 1);
        let class_of = |len| sizes.partition_point(|size| (*size as usize) < len) as u16;
        let table = (0..table_len).map(|units| class_of(units * item_align)).collect();
        Ok(SizeClasses { sizes: sizes.into(), table, align_shift: item_align.trailing_zeros() })
    }

    /// Returns the class of items of `len` bytes, or `None` if they are longer than a slab.
    #[inline]
    pub(crate) fn class_of(&self, len: usize) -> Option<u16> {
        let units = len.saturating_add((1 << self.align_shift) - 1) >> self.align_shift;
        if let Some(class) = self.table.get(units) {
            return Some(*class);
        }
        if len > self.max_size() {
            return None;
        }
        Some(self.sizes.partition_point(|size| (*size as usize) < len) as u16)
    }

    /// Returns the size of a class' slots.
    #[inline]
    pub(crate) fn size(&self, class: u16) -> u32 {
        self.sizes[class as usize]
    }

    /// Returns the number of slots in a slab of a class.
    #[inline]
    pub(crate) fn slot_count(&self, class: u16) -> u32 {
        self.max_size() as u32 / self.size(class)
    }

    /// Returns the size of the largest class, which is the size of a slab.
    pub(crate) fn max_size(&self) -> usize {
        self.sizes.last().map_or(0, |size| *size as usize)
    }

    /// Returns the number of classes.
    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: Layout =
        Layout { slab_size: 1 << 20, min_item_size: 64, growth_factor: 1.25, item_align: 64 };

    #[test]
    fn default_classes() {
        let classes = SizeClasses::new(&DEFAULT).unwrap();
        assert_eq!(classes.sizes[..8], [64, 128, 192, 256, 320, 448, 576, 768]);
        assert_eq!(classes.sizes[classes.len() - 2..], [524_288, 1 << 20]);
        assert_eq!(classes.class_of(0), Some(0));
        assert_eq!(classes.class_of(64), Some(0));
        assert_eq!(classes.class_of(65), Some(1));
        assert_eq!(classes.class_of(1 << 20), Some(classes.len() as u16 - 1));
        assert_eq!(classes.class_of((1 << 20) + 1), None);
        assert_eq!(classes.class_of(usize::MAX), None);
        // As the manual says.
        assert_eq!(classes.len(), 35);
        assert_eq!(SizeClasses::new(&Layout { slab_size: 64 << 10, ..DEFAULT }).unwrap().len(), 23);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let refused = |layout: Layout| SizeClasses::new(&layout).unwrap_err().option;
        assert_eq!(refused(Layout { item_align: 4, ..DEFAULT }), "item_align");
        assert_eq!(refused(Layout { item_align: 48, ..DEFAULT }), "item_align");
        assert_eq!(refused(Layout { slab_size: 0, ..DEFAULT }), "slab_size");
        assert_eq!(refused(Layout { slab_size: 5000, ..DEFAULT }), "slab_size");
        assert_eq!(refused(Layout { slab_size: 2 << 30, ..DEFAULT }), "slab_size");
        assert_eq!(refused(Layout { min_item_size: 0, ..DEFAULT }), "min_item_size");
        assert_eq!(refused(Layout { min_item_size: usize::MAX, ..DEFAULT }), "min_item_size");
        assert_eq!(refused(Layout { slab_size: 1 << 30, ..DEFAULT }), "min_item_size");
        for growth_factor in [f64::NAN, 1.0, 5.0, f64::INFINITY] {
            assert_eq!(refused(Layout { growth_factor, ..DEFAULT }), "growth_factor");
        }
    }

    proptest! {
        #[test]
        fn classes_grow_by_the_factor_and_fill_the_slab(
            pages in 1usize..600,
            min_item_size in 1usize..3000,
            growth_factor in 1.05f64..4.0,
            align_log in 3u32..8,
            len in 0usize..3_000_000,
        ) {
            let layout = Layout { slab_size: pages * 4096, min_item_size, growth_factor, item_align: 1 << align_log };
            let Ok(classes) = SizeClasses::new(&layout) else {
                // Only the number of slots can be out of range.
                prop_assert!(layout.slab_size / min_item_size.next_multiple_of(layout.item_align) > SlotSet::MAX_LEN);
                return Ok(());
            };
            prop_assert_eq!(classes.max_size(), layout.slab_size);
            prop_assert!(classes.sizes[0] as usize >= min_item_size);
            for (index, size) in classes.sizes.iter().enumerate() {
                prop_assert_eq!(*size as usize % layout.item_align, 0);
                let count = classes.slot_count(index as u16) as usize;
                // With slots longer by one unit of the alignment, one slot less would fit.
                prop_assert!((*size as usize + layout.item_align) * count > layout.slab_size);
            }
            for pair in classes.sizes.windows(2) {
                prop_assert!(pair[0] < pair[1]);
                prop_assert!(f64::from(pair[1]) >= f64::from(pair[0]) * growth_factor || pair[1] == classes.sizes[classes.len() - 1]);
            }
            match classes.class_of(len) {
                Some(class) => {
                    prop_assert!(classes.size(class) as usize >= len);
                    prop_assert!(class == 0 || (classes.size(class - 1) as usize) < len);
                }
                None => prop_assert!(len > layout.slab_size),
            }
        }
    }
}
