//! CRC-32 as algebra: the operations that the ICRC needs and `crc32fast` doesn't provide.
//!
//! A CRC state is a polynomial over GF(2) modulo P = x³² + x²⁶ + … + 1. Its bits are reversed, as in CRC-32: bit 31 is
//! the coefficient of 1, and bit 0 is the coefficient of x³¹. Appending a zero byte multiplies the state by x⁸. All
//! operations are linear, so the contribution of one field can be computed separately, and removed.

#![expect(
    clippy::indexing_slicing,
    reason = "256 entries indexed by a byte, and tables made at compile time"
)]

/// P without its x³² term.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// `TABLES[n]` is the contribution of a byte that is followed by `n` bytes.
static TABLES: [Effect; 12] = [
    Effect::followed_by(0),
    Effect::followed_by(1),
    Effect::followed_by(2),
    Effect::followed_by(3),
    Effect::followed_by(4),
    Effect::followed_by(5),
    Effect::followed_by(6),
    Effect::followed_by(7),
    Effect::followed_by(8),
    Effect::followed_by(9),
    Effect::followed_by(10),
    Effect::followed_by(11),
];

/// `INVERSE_WORD_POWERS[k]` = x^(−32k), the factor that removes `k` words of zeros.
static INVERSE_WORD_POWERS: [u32; WORD_POWERS_LEN] = {
    let mut powers = [ONE; WORD_POWERS_LEN];
    let mut k = 1;
    while k < WORD_POWERS_LEN {
        let mut power = powers[k - 1];
        let mut bit = 0;
        while bit < 32 {
            power = divide_by_x(power);
            bit += 1;
        }
        powers[k] = power;
        k += 1;
    }
    powers
};

/// `WORD_POWERS[k]` = x^(32k), the factor that appends `k` words of zeros.
static WORD_POWERS: [u32; WORD_POWERS_LEN] = {
    let mut powers = [ONE; WORD_POWERS_LEN];
    let mut k = 1;
    while k < WORD_POWERS_LEN {
        let mut power = powers[k - 1];
        let mut bit = 0;
        while bit < 32 {
            power = multiply_by_x(power);
            bit += 1;
        }
        powers[k] = power;
        k += 1;
    }
    powers
};

/// The number of powers, enough for a 9,000-byte MTU. RoCE packets are shorter; longer spans take several steps.
const WORD_POWERS_LEN: usize = 2304;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// The contribution of a byte at some position to the state, as a table over the byte's values.
pub(crate) struct Effect([u32; 256]);

impl Effect {
    /// Returns the contribution of a byte that is followed by `bytes_after` bytes.
    pub(crate) const fn followed_by(bytes_after: usize) -> Effect {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            #[expect(clippy::cast_possible_truncation, reason = "below 256")]
            let mut state = byte as u32;
            let mut bit = 0;
            while bit < 8 * (bytes_after + 1) {
                state = multiply_by_x(state);
                bit += 1;
            }
            table[byte] = state;
            byte += 1;
        }
        Effect(table)
    }

    #[inline]
    pub(crate) fn of(&self, byte: u8) -> u32 {
        self.0[usize::from(byte)]
    }
}

#[inline]
pub(crate) fn append_four_bytes(state: u32, bytes: [u8; 4]) -> u32 {
    let [a, b, c, d] = (state ^ u32::from_le_bytes(bytes)).to_le_bytes();
    TABLES[3].of(a) ^ TABLES[2].of(b) ^ TABLES[1].of(c) ^ TABLES[0].of(d)
}

/// Returns the state after twelve bytes, starting from state 0. The table lookups are independent of each other.
#[inline]
pub(crate) fn state_of_twelve_bytes(bytes: [u8; 12]) -> u32 {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
    (TABLES[11].of(a) ^ TABLES[10].of(b) ^ TABLES[9].of(c) ^ TABLES[8].of(d))
        ^ (TABLES[7].of(e) ^ TABLES[6].of(f) ^ TABLES[5].of(g) ^ TABLES[4].of(h))
        ^ (TABLES[3].of(i) ^ TABLES[2].of(j) ^ TABLES[1].of(k) ^ TABLES[0].of(l))
}

/// Returns `state` as it was before `words` × 4 zero bytes.
#[inline]
pub(crate) fn remove_zero_words(mut state: u32, mut words: usize) -> u32 {
    loop {
        if let Some(inverse) = INVERSE_WORD_POWERS.get(words) {
            return multiply(state, *inverse);
        }
        state = multiply(state, INVERSE_WORD_POWERS[WORD_POWERS_LEN - 1]);
        words -= WORD_POWERS_LEN - 1;
    }
}

/// Returns `state` as it is after `words` × 4 more zero bytes.
#[inline]
pub(crate) fn append_zero_words(mut state: u32, mut words: usize) -> u32 {
    loop {
        if let Some(power) = WORD_POWERS.get(words) {
            return multiply(state, *power);
        }
        state = multiply(state, WORD_POWERS[WORD_POWERS_LEN - 1]);
        words -= WORD_POWERS_LEN - 1;
    }
}

/// Returns a · b modulo P.
fn multiply(a: u32, b: u32) -> u32 {
    // The product has 63 coefficients, the first in bit 62. After the shift, the upper half holds those of 1 to x³¹.
    let product = carryless_product(a, b) << 1;
    let [l0, l1, l2, l3, h0, h1, h2, h3] = product.to_le_bytes();
    // The lower half must be multiplied by x³², as appending four bytes does.
    u32::from_le_bytes([h0, h1, h2, h3]) ^ append_four_bytes(0, [l0, l1, l2, l3])
}

/// Returns the product of two polynomials over GF(2), by integer multiplications.
///
/// Each factor is split into four parts that hold every fourth bit. Then at most eight ones are added in each column of
/// a product. Their sum fits the four bits up to the next column, and its lowest bit is their parity.
fn carryless_product(a: u32, b: u32) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let part = |value: u32, k: u32| u64::from(value) & EVERY_FOURTH << k;
    let (a0, a1, a2, a3) = (part(a, 0), part(a, 1), part(a, 2), part(a, 3));
    let (b0, b1, b2, b3) = (part(b, 0), part(b, 1), part(b, 2), part(b, 3));
    let column = |sum: u64, k: u32| sum & EVERY_FOURTH << k;
    let mul = u64::wrapping_mul;
    column(mul(a0, b0) ^ mul(a1, b3) ^ mul(a2, b2) ^ mul(a3, b1), 0)
        | column(mul(a0, b1) ^ mul(a1, b0) ^ mul(a2, b3) ^ mul(a3, b2), 1)
        | column(mul(a0, b2) ^ mul(a1, b1) ^ mul(a2, b0) ^ mul(a3, b3), 2)
        | column(mul(a0, b3) ^ mul(a1, b2) ^ mul(a2, b1) ^ mul(a3, b0), 3)
}

const fn multiply_by_x(state: u32) -> u32 {
    if state & 1 == 1 { state >> 1 ^ POLYNOMIAL } else { state >> 1 }
}

const fn divide_by_x(state: u32) -> u32 {
    // A state with the term 1 isn't divisible by x. P also has the term 1, so adding P removes that term.
    if state & ONE != 0 { (state ^ POLYNOMIAL) << 1 | 1 } else { state << 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divide_by_x_inverts_multiply_by_x() {
        let mut state = 0x9e37_79b9;
        for _ in 0..10_000 {
            let next = multiply_by_x(state);
            assert_eq!(divide_by_x(next), state);
            state = next.wrapping_mul(0x2545_f491).wrapping_add(1);
        }
    }

    #[test]
    fn multiply_agrees_with_bit_by_bit_multiplication() {
        let bit_by_bit = |a: u32, b: u32| {
            let (mut power, mut product) = (a, 0);
            for bit in 0..32 {
                if b << bit & ONE != 0 {
                    product ^= power;
                }
                power = multiply_by_x(power);
            }
            product
        };
        let mut seed = 1u32;
        let mut random = || {
            seed = seed.wrapping_mul(0x2545_f491).rotate_left(7).wrapping_add(0x9e37_79b9);
            seed
        };
        for _ in 0..100_000 {
            let (a, b) = (random(), random());
            assert_eq!(multiply(a, b), bit_by_bit(a, b), "{a:#x} · {b:#x}");
        }
        assert_eq!(multiply(u32::MAX, u32::MAX), bit_by_bit(u32::MAX, u32::MAX));
    }

    #[test]
    fn remove_zero_words_inverts_append_zero_words_at_every_length() {
        let mut state = 0x1234_5678;
        for words in 0..16_384 {
            assert_eq!(remove_zero_words(state, words), 0x1234_5678, "{words} words");
            assert_eq!(append_zero_words(0x1234_5678, words), state, "{words} words");
            for _ in 0..32 {
                state = multiply_by_x(state);
            }
        }
    }

    #[test]
    fn appended_bytes_agree_with_crc32fast() {
        let bytes = [1, 2, 0xff, 4, 0x80, 6, 7, 0x5a, 0, 0, 0xaa, 0x11];
        let state =
            bytes.chunks_exact(4).fold(!0, |state, word| append_four_bytes(state, word.try_into().unwrap()));
        assert_eq!(!state, crc32fast::hash(&bytes));
        // State 0 corresponds to the CRC !0 in crc32fast.
        let mut zero_state_hasher = crc32fast::Hasher::new_with_initial(!0);
        zero_state_hasher.update(&bytes);
        assert_eq!(!state_of_twelve_bytes(bytes), zero_state_hasher.finalize());
    }
}
