//! Sources of field values: a different number for each field, all ones, or all zeros.

use std::net::Ipv6Addr;

use adverb_wire::cm::{Bits, Timeout};
use adverb_wire::random::SplitMix64;
use adverb_wire::{Psn, Qpn};

/// A deterministic source of numbers.
#[derive(Clone, Copy)]
pub(super) enum Values {
    /// All bits set.
    Ones,
    /// No bit set.
    Zeros,
    /// Pseudo-random numbers, so that no two fields are equal; contains the generator's state.
    Mixed(u64),
}

impl Values {
    /// Returns the name of a new source in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Values::Ones => "ones".to_owned(),
            Values::Zeros => "zeros".to_owned(),
            Values::Mixed(seed) => format!("mixed {seed}"),
        }
    }

    /// Returns a source of the same kind for another packet, so that mixed values differ between packets.
    pub(super) fn fork(&self, packet: u64) -> Values {
        match self {
            Values::Mixed(seed) => Values::Mixed(seed.wrapping_mul(0x1_0000_0001) ^ packet << 20),
            other => *other,
        }
    }

    /// Returns 64 bits.
    pub(super) fn u64(&mut self) -> u64 {
        match self {
            Values::Ones => u64::MAX,
            Values::Zeros => 0,
            Values::Mixed(state) => {
                let mut random = SplitMix64(*state);
                let number = random.next_u64();
                *state = random.0;
                number
            }
        }
    }

    /// Returns 32 bits.
    pub(super) fn u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.u64().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns 16 bits.
    pub(super) fn u16(&mut self) -> u16 {
        let [a, b, ..] = self.u64().to_be_bytes();
        u16::from_be_bytes([a, b])
    }

    /// Returns eight bits.
    pub(super) fn u8(&mut self) -> u8 {
        let [a, ..] = self.u64().to_be_bytes();
        a
    }

    /// Returns one bit.
    pub(super) fn bool(&mut self) -> bool {
        self.u8() >= 0x80
    }

    /// Returns `N` bits.
    pub(super) fn bits<const N: usize>(&mut self) -> Bits<N> {
        Bits::truncate(self.u32())
    }

    /// Returns a five-bit timeout.
    pub(super) fn timeout(&mut self) -> Timeout {
        Timeout::new(self.u8() & 31).unwrap_or(Timeout::MAX)
    }

    /// Returns a queue pair number, but never 0 or 1: tshark dissects packets to those as management datagrams.
    pub(super) fn qpn(&mut self) -> Qpn {
        Qpn::truncate((self.u32() >> 8).max(2))
    }

    /// Returns a packet sequence number.
    pub(super) fn psn(&mut self) -> Psn {
        Psn::wrapping(self.u32())
    }

    /// Returns an array of bytes.
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.u8())
    }

    /// Returns an address in 2001:db8::/32, for which tshark shows no extra fields.
    pub(super) fn ipv6(&mut self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = std::array::from_fn(|_| self.u16());
        Ipv6Addr::new(0x2001, 0x0db8, a, b, c, d, e, f)
    }

    /// Returns `len` bytes.
    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.u8()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pair_numbers_are_never_those_of_management() {
        for seed in 0..1000 {
            assert!(Values::Mixed(seed).qpn().get() > 1);
        }
        assert!(Values::Zeros.qpn().get() > 1);
        assert_eq!(Values::Ones.qpn(), Qpn::MULTICAST);
    }
}
