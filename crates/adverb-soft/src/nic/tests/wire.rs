//! A wire between two NICs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::link::{
    AddressSharing, Link, MulticastGroups, ReceiveTimestamps, RxPacket, SourcePorts, TimedSend, TxPacket,
};

/// One end of a wire between two NICs: two queues of packets. A test can make it fail.
pub(super) struct Wire {
    out: Sender<(SocketAddr, SocketAddr, Vec<u8>)>,
    incoming: Receiver<(SocketAddr, SocketAddr, Vec<u8>)>,
    ready: Arc<Channel>,
    peer: Arc<Channel>,
    mode: SharedWireMode,
    batches: Batches,
}

/// The mode of a wire, which a test can change.
pub(super) type SharedWireMode = Arc<Mutex<Option<WireMode>>>;

/// The numbers of packets that were passed to a wire at once.
pub(super) type Batches = Arc<Mutex<Vec<usize>>>;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum WireMode {
    Panics,
    Fails,
    /// The wire accepts all packets at once.
    AcceptsAll,
    /// The wire refuses the packets of this number of calls.
    Refuses(u32),
    /// The wire accepts all packets, except those to this queue pair.
    Blocks(Qpn),
}

impl Wire {
    /// Whether the wire refuses a packet because of its receiver.
    fn blocks(&self, packet: &TxPacket<'_>) -> bool {
        let Some(WireMode::Blocks(blocked)) = *self.mode.lock() else { return false };
        let qpn = packet.bytes[4..8].first_chunk().copied().map(u32::from_be_bytes);
        qpn.map(Qpn::truncate) == Some(blocked)
    }
}

impl Link for Wire {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        match &mut *self.mode.lock() {
            Some(WireMode::Panics) => panic!("a panic injected by a test"),
            Some(WireMode::Fails) => return Err(io::ErrorKind::BrokenPipe.into()),
            Some(WireMode::Refuses(count)) if *count > 0 => {
                *count -= 1;
                return Ok(0);
            }
            Some(WireMode::AcceptsAll | WireMode::Refuses(_) | WireMode::Blocks(_)) | None => {}
        }
        self.batches.lock().push(packets.len());
        // By default, the wire accepts few packets at once, so that the sender must retry.
        let max = match *self.mode.lock() {
            Some(WireMode::AcceptsAll | WireMode::Blocks(_)) => usize::MAX,
            _ => 7,
        };
        let unblocked = packets.iter().take_while(|packet| !self.blocks(packet)).count();
        let accepted = unblocked.min(max);
        for packet in &packets[..accepted] {
            _ = self.out.send((packet.source, packet.destination, packet.bytes.to_vec()));
            self.peer.notify();
        }
        Ok(accepted)
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        let mut count = 0;
        while count < max.min(16)
            && let Ok((source, destination, bytes)) = self.incoming.try_recv()
        {
            _ = self.ready.take();
            count += 1;
            each(&rx_packet(source, destination, &bytes));
        }
        Ok(count)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        self.blocks(packet)
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?))
    }

    fn unsendable_packets(&self) -> u64 {
        0
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        None
    }

    fn set_wake_interest(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        None
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        None
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        None
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        None
    }
}

fn rx_packet(source: SocketAddr, destination: SocketAddr, bytes: &[u8]) -> RxPacket<'_> {
    RxPacket {
        source,
        destination,
        traffic_class: 0,
        hop_limit: None,
        flow_label: 0,
        icrc: IcrcCheck::IpId(0),
        received_at: None,
        bytes,
    }
}

/// Returns both ends of a wire.
fn wire() -> (Wire, Wire) {
    let (out, other_incoming) = channel();
    let (other_out, incoming) = channel();
    let (ready, other_ready) = (Arc::new(Channel::new().unwrap()), Arc::new(Channel::new().unwrap()));
    let end = |out, incoming, ready: &Arc<Channel>, peer: &Arc<Channel>| Wire {
        out,
        incoming,
        ready: Arc::clone(ready),
        peer: Arc::clone(peer),
        mode: Arc::default(),
        batches: Arc::default(),
    };
    (end(out, incoming, &ready, &other_ready), end(other_out, other_incoming, &other_ready, &ready))
}

fn open(address: &str, link: impl Link + 'static) -> Nic {
    Nic::open(NicOptions::new([address.parse().unwrap()], link).mtu(PathMtu::Mtu1024)).unwrap()
}

/// Returns two NICs with a wire between them, and the mode of the first NIC's end of the wire.
pub(super) fn two_nics() -> (Nic, Nic, SharedWireMode) {
    let (one, other, mode, _) = two_nics_and_batches();
    (one, other, mode)
}

/// Returns the same as [`two_nics`], and the numbers of packets that the second NIC sent at once.
pub(super) fn two_nics_and_batches() -> (Nic, Nic, SharedWireMode, Batches) {
    let (one, other) = wire();
    let (mode, batches) = (Arc::clone(&one.mode), Arc::clone(&other.batches));
    (open("10.0.0.1", one), open("10.0.0.2", other), mode, batches)
}

/// An end of a wire that delays received packets. No packet wakes a thread that sleeps on its descriptor.
struct DelayingWire {
    wire: Wire,
    delayed: VecDeque<(Instant, SocketAddr, SocketAddr, Vec<u8>)>,
    never_ready: Channel,
}

impl Link for DelayingWire {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        self.wire.send(packets)
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        let now = Instant::now();
        self.wire.receive(max, &mut |packet| {
            let due = now + Duration::from_millis(5);
            self.delayed.push_back((due, packet.source, packet.destination, packet.bytes.to_vec()));
        })?;
        let mut count = 0;
        while count < max
            && self.delayed.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, source, destination, bytes)) = self.delayed.pop_front()
        {
            count += 1;
            each(&rx_packet(source, destination, &bytes));
        }
        Ok(count)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.never_ready.as_fd())
    }

    fn deadline(&self) -> Option<Instant> {
        self.delayed.front().map(|(due, ..)| *due)
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        self.wire.is_receiver_full(packet)
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        Ok(TimedSend::untimed(self.send(std::slice::from_ref(packet))?))
    }

    fn unsendable_packets(&self) -> u64 {
        0
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        None
    }

    fn set_wake_interest(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        None
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        None
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        None
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        None
    }
}

#[test]
fn a_packet_that_the_link_delays_after_a_poll_is_received_without_another_poll() {
    let (wire, delaying) = wire();
    let delaying =
        DelayingWire { wire: delaying, delayed: VecDeque::new(), never_ready: Channel::new().unwrap() };
    let (first, second) = (open("10.0.0.1", wire), open("10.0.0.2", delaying));
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    // The timeout is long, so that the request is not retransmitted.
    one.connect_with_timeout(&other, Timeout::new(22).unwrap());
    other.connect(&one);
    let unrelated = End::new(&second, Transport::Rc);
    // Most polls read no clock, but some do.
    for round in 0..16 {
        other.post_recv(round, &[]).unwrap();
        second.arm_cq(other.cq, ArmFor::Any).unwrap();
        one.send(round, SendOperation::Send, &[]).unwrap();
        // Usually this poll receives the packet, before the progress thread does.
        assert_eq!(unrelated.poll(), None);
        assert!(other.wait(), "round {round}: the delayed packet was not received");
        assert_eq!(other.completion().wr_id, round);
        assert!(one.completion().outcome.is_ok());
    }
}
