//! The process that handles a received packet. These functions do no I/O.

use adverb_wire::Qpn;
use adverb_wire::cm::{MAD_LEN, Mad, Message, ServiceId};

use crate::link::AddressShare;

/// The destination of a packet that the receiving process doesn't own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// The process that received the packet.
    ThisProcess,
    /// The process with this share of the queue pair numbers. Without such a process, the packet is dropped.
    QueuePair(AddressShare),
    /// The process with this share of the communication IDs. Without such a process, the receiving process replies.
    Connection(AddressShare),
    /// The process that listens on this service. Without such a process, the receiving process replies.
    Service(ServiceId),
}

/// The length of the base transport header and the datagram extended transport header.
const UD_HEADER_LEN: usize = 12 + 8;

/// Whether a packet's destination is an ordinary queue pair of this share. This is called for each received packet.
#[inline]
pub(super) fn is_own(bytes: &[u8], share: AddressShare) -> bool {
    dest_qp(bytes).is_some_and(|qpn| share.contains(qpn))
}

/// Returns the destination of a packet that [isn't the process's own](is_own).
pub(super) fn target(bytes: &[u8]) -> Target {
    match dest_qp(bytes) {
        Some(Qpn::GSI) => management_target(bytes),
        Some(qpn) if qpn.get() > 1 => Target::QueuePair(AddressShare::of_qpn(qpn)),
        // Queue pair 0 doesn't exist in RoCE, and too short a packet is dropped.
        _ => Target::ThisProcess,
    }
}

/// Whether the kernel delivers two packets to the same process.
pub(in crate::link::udp) fn have_same_process(a: &[u8], b: &[u8]) -> bool {
    // The process is the dispatcher, or the process with the share.
    let process = |bytes| {
        let qpn = dest_qp(bytes)?;
        Some((qpn.get() <= 1, AddressShare::of_qpn(qpn)))
    };
    process(a) == process(b)
}

fn dest_qp(bytes: &[u8]) -> Option<Qpn> {
    let word = bytes.get(4..8)?.first_chunk()?;
    Some(Qpn::truncate(u32::from_be_bytes(*word)))
}

/// Returns the destination of a packet to queue pair 1. The packet isn't checked, because its receiver checks it.
fn management_target(bytes: &[u8]) -> Target {
    let mad = bytes.get(UD_HEADER_LEN..UD_HEADER_LEN + MAD_LEN).and_then(|mad| Mad::parse(mad).ok());
    let id = match mad.map(|mad| mad.message) {
        Some(Message::Req(req)) => return Target::Service(req.service_id),
        Some(Message::SidrReq(req)) => return Target::Service(req.service_id),
        Some(Message::Mra(mra)) => mra.remote_comm_id,
        Some(Message::Rej(rej)) => rej.remote_comm_id,
        Some(Message::Rep(rep)) => rep.remote_comm_id,
        Some(Message::Rtu(rtu)) => rtu.remote_comm_id,
        Some(Message::Dreq(dreq)) => dreq.remote_comm_id,
        Some(Message::Drep(drep)) => drep.remote_comm_id,
        Some(Message::SidrRep(rep)) => rep.request_id,
        _ => 0,
    };
    // 0 means none. A REJ without an ID only shortens the wait of a half-open connection.
    if id == 0 { Target::ThisProcess } else { Target::Connection(AddressShare::of_comm_id(id)) }
}

#[cfg(test)]
mod tests {
    use adverb_wire::cm::{Drep, Dreq, Rtu, SidrReq};

    use super::*;

    fn packet(qpn: u32, mad: Option<Message>) -> Vec<u8> {
        let mut bytes = vec![0; UD_HEADER_LEN];
        // The upper byte has other bits.
        bytes[4..8].copy_from_slice(&(0xc0 << 24 | qpn).to_be_bytes());
        if let Some(message) = mad {
            bytes.extend_from_slice(&Mad { transaction_id: 7, message }.emit());
        }
        bytes.extend_from_slice(&[0; 4]);
        bytes
    }

    #[test]
    fn numbers_and_ids_determine_their_share() {
        for index in 0..AddressShare::MAX_COUNT {
            let share = AddressShare::new(index).unwrap();
            for random in [0, 2, 0x1_ffff, 0x2_0000, u32::MAX] {
                let qpn = Qpn::truncate(share.qpn(random));
                assert_eq!(AddressShare::of_qpn(qpn), share);
                assert_eq!(share.contains(qpn), qpn.get() > 1);
                assert_eq!(AddressShare::of_comm_id(share.comm_id(random)), share);
                assert_eq!(is_own(&packet(qpn.get(), None), share), qpn.get() > 1);
            }
        }
        assert_eq!(AddressShare::new(AddressShare::MAX_COUNT), None);
    }

    #[test]
    fn packets_to_queue_pairs_belong_to_the_share_of_the_number() {
        let share = |index| AddressShare::new(index).unwrap();
        assert_eq!(target(&packet(2, None)), Target::QueuePair(share(0)));
        assert_eq!(target(&packet(0x2_0000, None)), Target::QueuePair(share(1)));
        assert_eq!(target(&packet(0xff_fffe, None)), Target::QueuePair(share(127)));
        assert_eq!(target(&packet(0, None)), Target::ThisProcess);
        assert_eq!(target(&packet(1, None)), Target::ThisProcess);
        for length in 0..8 {
            assert_eq!(target(&packet(0x2_0000, None)[..length]), Target::ThisProcess);
            assert!(!is_own(&packet(0x2_0000, None)[..length], share(1)));
        }
    }

    #[test]
    fn messages_belong_to_the_listener_or_to_the_share_of_the_id() {
        let (share, private_data) = (AddressShare::new(77).unwrap(), Default::default());
        let (local_comm_id, remote_comm_id) = (5, share.comm_id(0x1234_5678));
        let service_id = ServiceId::udp_port(4444);
        let dreq = |remote_comm_id| {
            let remote_qpn = Qpn::truncate(9);
            Message::Dreq(Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn,
                private_data: Default::default(),
            })
        };
        let target_of = |message| target(&packet(1, Some(message)));
        assert_eq!(target_of(dreq(remote_comm_id)), Target::Connection(share));
        assert_eq!(target_of(dreq(0)), Target::ThisProcess);
        let rtu = Rtu { local_comm_id, remote_comm_id, private_data: Default::default() };
        assert_eq!(target_of(Message::Rtu(rtu)), Target::Connection(share));
        let drep = Drep { local_comm_id, remote_comm_id, private_data: Default::default() };
        assert_eq!(target_of(Message::Drep(drep)), Target::Connection(share));
        let query = SidrReq { request_id: 5, pkey: 0xffff, service_id, private_data };
        assert_eq!(target_of(Message::SidrReq(query)), Target::Service(service_id));
        let whole = packet(1, Some(dreq(remote_comm_id)));
        assert_eq!(target(&whole[..UD_HEADER_LEN + MAD_LEN - 1]), Target::ThisProcess);
    }
}
