//! Names of the connection manager's messages.

/// Returns the name of a message from the header of its management datagram (vol. 1, 13.4.3), or `None` if the header is
/// not that of a CM message.
pub(crate) fn message_name(payload: &[u8]) -> Option<&'static str> {
    let header = payload.first_chunk::<24>()?;
    let &[1, CM_CLASS, ..] = header else { return None };
    Some(match u16::from_be_bytes([header[16], header[17]]) {
        0x10 => "REQ",
        0x11 => "MRA",
        0x12 => "REJ",
        0x13 => "REP",
        0x14 => "RTU",
        0x15 => "DREQ",
        0x16 => "DREP",
        0x17 => "SIDR_REQ",
        0x18 => "SIDR_REP",
        0x19 => "LAP",
        0x1a => "APR",
        _ => return None,
    })
}

/// The management class of communication management.
const CM_CLASS: u8 = 0x07;

#[cfg(test)]
mod tests {
    use adverb_wire::cm::Mad;

    use super::*;

    #[test]
    fn names_are_those_of_the_wire_crate() {
        for attribute in 0x10..=0x18u8 {
            let mut bytes = [0; 256];
            bytes[..4].copy_from_slice(&[1, CM_CLASS, 2, 3]);
            bytes[17] = attribute;
            let name = message_name(&bytes).unwrap();
            let printed = Mad::parse(&bytes).unwrap().message.to_string();
            assert!(printed.starts_with(&format!("CM {name} ")), "{printed} is not {name}");
            assert_eq!(message_name(&bytes[..36]), Some(name));
            assert_eq!(message_name(&bytes[..20]), None);
        }
        assert_eq!(message_name(&[0; 256]), None);
    }
}
