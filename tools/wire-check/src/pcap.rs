//! A writer of capture files in the classic pcap format: a header, and a record for each packet.

/// The link type of frames that begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;

/// The maximum length of a captured packet; no packet is longer.
const SNAP_LEN: u32 = 0x4_0000;

/// Returns a capture file with these IP datagrams. All timestamps are 0, so equal datagrams give equal files.
pub(super) fn file<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut file = Vec::new();
    let (major, minor) = (2u16, 4u16);
    // The magic number defines the byte order, and microseconds as the unit of timestamps.
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend(major.to_le_bytes());
    file.extend(minor.to_le_bytes());
    file.extend([0; 8]); // time zone and accuracy, which are unused
    file.extend(SNAP_LEN.to_le_bytes());
    file.extend(LINKTYPE_RAW.to_le_bytes());
    for frame in frames {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_le_bytes();
        file.extend([0; 8]); // seconds and microseconds
        file.extend(len); // in this file
        file.extend(len); // on the wire
        file.extend(frame);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_a_header_and_a_record_for_each_frame() {
        let file = file([&b"ab"[..], b"xyz"]);
        let header = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0];
        assert_eq!(file[..24], header);
        assert_eq!(file[24..42], *b"\0\0\0\0\0\0\0\0\x02\0\0\0\x02\0\0\0ab");
        assert_eq!(file[42..], *b"\0\0\0\0\0\0\0\0\x03\0\0\0\x03\0\0\0xyz");
    }
}
