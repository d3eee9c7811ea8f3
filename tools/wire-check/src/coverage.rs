//! The bits of a frame that tshark's fields cover. tshark doesn't dissect the other bits.

use super::pdml::Shown;

/// The bits of a frame that compared fields cover.
pub(super) struct Coverage(Vec<u8>);

impl Coverage {
    /// Returns an empty coverage for a frame of `len` bytes.
    pub(super) fn of_frame(len: usize) -> Coverage {
        Coverage(vec![0; len])
    }

    /// Adds the bits of a field.
    pub(super) fn add(&mut self, shown: &Shown) {
        let mask = mask(&shown.label, shown.len);
        for (covered, mask) in self.0.iter_mut().skip(shown.offset).zip(mask) {
            *covered |= mask;
        }
    }

    /// Returns the offsets of bytes that are not fully covered.
    pub(super) fn gaps(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, covered)| **covered != 0xff).map(|(at, _)| at)
    }
}

/// Returns the mask of a field in its bytes. For a field that isn't whole bytes, tshark draws the mask before the
/// field's name: `..01 .... = Pad Count: 1`.
fn mask(label: &str, len: usize) -> Vec<u8> {
    let drawing = label.split_once(" = ").map(|(drawing, _)| drawing);
    let Some(drawing) = drawing.filter(|drawing| drawing.chars().all(|c| ". 01".contains(c))) else {
        return vec![0xff; len];
    };
    let bits: Vec<bool> = drawing.chars().filter(|c| *c != ' ').map(|c| c != '.').collect();
    let bytes = bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)));
    bytes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_parsed_from_the_drawing() {
        assert_eq!(mask("..01 .... = Pad Count: 1", 1), [0x30]);
        assert_eq!(mask(".... 0001 0010 0011 0100 0101 = Flow Label: 0x12345", 3), [0x0f, 0xff, 0xff]);
        assert_eq!(mask("Partition Key: 65535", 2), [0xff, 0xff]);
        assert_eq!(mask("Text that has = a sign", 1), [0xff]);
    }

    #[test]
    fn bytes_without_a_field_are_gaps() {
        let mut coverage = Coverage::of_frame(3);
        let mut cover = |label: &str, offset, len| {
            coverage.add(&Shown { label: label.to_owned(), offset, len, ..Shown::default() });
        };
        cover("0000 .... = High: 0", 0, 1);
        cover(".... 0000 = Low: 0", 0, 1);
        cover(".000 0000 = Seven: 0", 1, 1);
        assert_eq!(coverage.gaps().collect::<Vec<_>>(), [1, 2]);
    }
}
