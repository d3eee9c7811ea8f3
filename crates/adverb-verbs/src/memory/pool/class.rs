//! The lengths of a pool's slots.
//!
//! The lengths are multiples of 64 bytes up to 256, and then four per doubling. Less than a fifth of a slot of more than
//! 256 bytes is wasted, and no two slots share a cache line.

/// The maximum length of a slot.
pub(super) const MAX_LEN: usize = 1 << 30;

/// The number of lengths.
pub(super) const COUNT: usize = of(MAX_LEN) + 1;

/// Returns the class with the shortest slots that hold `len` bytes, which is at most [`MAX_LEN`].
#[inline]
pub(super) const fn of(len: usize) -> usize {
    if len <= 256 {
        return len.saturating_sub(1) / 64;
    }
    let last = len - 1;
    let doubling = last.ilog2() as usize;
    4 + (doubling - 8) * 4 + ((last >> (doubling - 2)) & 3)
}

/// Returns the length of the slots of a class.
pub(super) const fn len(class: usize) -> usize {
    if class < 4 { (class + 1) * 64 } else { (5 + class % 4) << (class / 4 + 5) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_holds_the_lengths_above_the_previous_class() {
        assert_eq!(len(COUNT - 1), MAX_LEN);
        assert_eq!(of(0), 0);
        let mut shorter = 0;
        for class in 0..COUNT {
            assert!(len(class) > shorter && len(class).is_multiple_of(64));
            assert_eq!((of(shorter + 1), of(len(class))), (class, class));
            assert!(shorter < 256 || (len(class) - shorter) * 5 <= len(class), "{class} wastes too much");
            shorter = len(class);
        }
    }
}
