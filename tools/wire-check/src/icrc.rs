//! The invariant CRC a second time, bit by bit and from the text of Annex A17.3.3, to check the fast one by.

/// The ICRC that an IP datagram without IP options should end in, as a CRC-32 value; its last four bytes,
/// where the ICRC stands, are left out. `udp` is where the UDP header begins.
pub(super) fn reference(frame: &[u8], udp: usize) -> u32 {
    // In place of the local route header, which RoCE doesn't have.
    let mut covered = vec![0xff; 8];
    covered.extend(&frame[..frame.len() - 4]);
    let ip = 8;
    let udp = ip + udp;
    let transport = udp + 8;
    // The UDP checksum; FECN, BECN and what is reserved beside them.
    let mut changes_on_the_way = vec![udp + 6, udp + 7, transport + 4];
    if frame[0] >> 4 == 4 {
        changes_on_the_way.extend([ip + 1, ip + 8, ip + 10, ip + 11]); // TOS, TTL, header checksum
    } else {
        covered[ip] |= 0x0f; // the traffic class's upper half
        changes_on_the_way.extend([ip + 1, ip + 2, ip + 3, ip + 7]); // its lower half, flow label, hop limit
    }
    for at in changes_on_the_way {
        covered[at] = 0xff;
    }
    crc32(&covered)
}

/// CRC-32 as in Ethernet and zlib.
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
    fn crc_of_the_usual_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    /// Two packets that others have published with their ICRC: the tests of scapy's RoCE layer have a CNP
    /// captured from a ConnectX-4 Lx, and a UC SEND.
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
