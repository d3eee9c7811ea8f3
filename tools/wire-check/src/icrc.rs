//! A reference implementation of the invariant CRC: bit by bit, from the text of Annex A17.3.3.

/// Returns the ICRC of an IP datagram without IP options, as a CRC-32 value. The datagram's last four bytes, which hold
/// the ICRC, are ignored. `udp` is the offset of the UDP header.
pub(super) fn reference(frame: &[u8], udp: usize) -> u32 {
    // Eight bytes of ones replace the local route header, which RoCE packets lack.
    let mut covered = vec![0xff; 8];
    covered.extend(&frame[..frame.len() - 4]);
    let ip = 8;
    let udp = ip + udp;
    let transport = udp + 8;
    // Variant fields: the UDP checksum; FECN, BECN and the reserved bits next to them.
    let mut variant = vec![udp + 6, udp + 7, transport + 4];
    if frame[0] >> 4 == 4 {
        variant.extend([ip + 1, ip + 8, ip + 10, ip + 11]); // TOS, TTL, header checksum
    } else {
        covered[ip] |= 0x0f; // the traffic class's upper half
        variant.extend([ip + 1, ip + 2, ip + 3, ip + 7]); // its lower half, flow label, hop limit
    }
    for at in variant {
        covered[at] = 0xff;
    }
    crc32(&covered)
}

/// Returns the CRC-32 of Ethernet and zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let mut state = u32::MAX;
    for byte in bytes {
        state ^= u32::from(*byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { state >> 1 ^ 0xedb8_8320 } else { state >> 1 };
        }
    }
    !state
}

#[cfg(test)]
mod tests {
    use super::super::vectors::bytes;
    use super::*;

    #[test]
    fn crc_of_the_standard_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    /// Two packets with ICRC from the tests of scapy's RoCE layer: a CNP captured from a ConnectX-4 Lx, and a UC SEND.
    #[test]
    fn icrc_of_packets_captured_elsewhere() {
        let cnp = "45c2003c718c400040119161 0a001101 0a001201 0000 12b7 0028 0000
                   8100ffff 40000118 00000000 00*16 82fd002a";
        let send = "45010040 0478 4000 4011 b4d5 c0a80007 c0a80007 c000 12b7 002c aca2
                    2460ffff 000000d3 00cf1710 4630818be28935d90e9a95505401be885e500000 78f353f3";
        for packet in [cnp, send] {
            let packet = bytes(packet).unwrap();
            assert_eq!(packet[packet.len() - 4..], reference(&packet, 20).to_le_bytes());
        }
    }
}
