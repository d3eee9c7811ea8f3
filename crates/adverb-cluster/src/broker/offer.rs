//! The data that two brokers exchange to establish a session.

use adverb_verbs::{Endpoint, Gid, Psn, Qpn};

use super::BrokerError;

/// The data that a peer needs to establish a session: a queue pair, and the receives that were posted to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The queue pair.
    pub endpoint: Endpoint,
    /// The epoch of the member.
    pub epoch: u64,
    /// The number of messages that the peer may send.
    pub credits: u32,
    /// The size of a message slot in bytes.
    pub slot_size: u32,
}

impl Offer {
    /// The length of the byte representation.
    pub const ENCODED_LEN: usize = 44;

    /// Returns the byte representation.
    pub fn to_bytes(&self) -> [u8; Offer::ENCODED_LEN] {
        let Endpoint { gid, lid, qpn, psn, mtu, .. } = self.endpoint;
        let mut bytes = [0; Offer::ENCODED_LEN];
        let fields: [&[u8]; 8] = [
            &gid.bytes(),
            &lid.to_be_bytes(),
            &mtu.to_be_bytes(),
            &qpn.get().to_be_bytes(),
            &psn.get().to_be_bytes(),
            &self.epoch.to_be_bytes(),
            &self.credits.to_be_bytes(),
            &self.slot_size.to_be_bytes(),
        ];
        let mut rest = &mut bytes[..];
        for field in fields {
            let (head, tail) = rest.split_at_mut(field.len());
            head.copy_from_slice(field);
            rest = tail;
        }
        bytes
    }

    /// Parses the byte representation, which may come from any peer.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::InvalidOffer`] if a field is out of range.
    pub fn from_bytes(bytes: &[u8; Offer::ENCODED_LEN]) -> Result<Offer, BrokerError> {
        let mut rest = &bytes[..];
        let gid = Gid::new(take(&mut rest));
        let lid = u16::from_be_bytes(take(&mut rest));
        let mtu = u16::from_be_bytes(take(&mut rest));
        let qpn = u32::from_be_bytes(take(&mut rest));
        let psn = u32::from_be_bytes(take(&mut rest));
        let epoch = u64::from_be_bytes(take(&mut rest));
        let credits = u32::from_be_bytes(take(&mut rest));
        let slot_size = u32::from_be_bytes(take(&mut rest));
        let invalid = |violation| BrokerError::InvalidOffer { violation };
        if qpn >> 24 != 0 || psn >> 24 != 0 {
            return Err(invalid("a queue pair number or PSN has more than 24 bits"));
        }
        if gid.is_multicast() || gid.is_zero() && lid == 0 {
            return Err(invalid("the endpoint has no unicast address"));
        }
        let mut endpoint = Endpoint::new(gid, Qpn::truncate(qpn), Psn::wrapping(psn));
        (endpoint.lid, endpoint.mtu) = (lid, mtu);
        Ok(Offer { endpoint, epoch, credits, slot_size })
    }
}

/// Takes the first `N` bytes, which the array of the caller contains.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    match bytes.split_first_chunk() {
        Some((head, tail)) => {
            *bytes = tail;
            *head
        }
        None => [0; N],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let gid = Gid::from(std::net::IpAddr::from([192, 0, 2, 7]));
        let mut endpoint = Endpoint::new(gid, Qpn::truncate(0x12_3456), Psn::wrapping(0xab_cdef));
        (endpoint.lid, endpoint.mtu) = (3, 1024);
        Offer { endpoint, epoch: 0x0102_0304_0506_0708, credits: 64, slot_size: 4096 }
    }

    #[test]
    fn offers_round_trip() {
        assert_eq!(Offer::from_bytes(&offer().to_bytes()).unwrap(), offer());
    }

    #[test]
    fn invalid_offers_are_refused() {
        let mut bytes = offer().to_bytes();
        bytes[20] = 1; // the first byte of the queue pair number
        assert!(Offer::from_bytes(&bytes).is_err());
        let mut bytes = offer().to_bytes();
        bytes[0] = 0xff; // a multicast GID
        assert!(Offer::from_bytes(&bytes).is_err());
        assert!(Offer::from_bytes(&[0; Offer::ENCODED_LEN]).is_err());
    }
}
