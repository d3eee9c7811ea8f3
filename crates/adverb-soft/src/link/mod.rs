//! What moves packets.
//!
//! A [`Link`] takes packets and brings packets, many at a time, and knows nothing of queue pairs. Some end in the kernel
//! ([`UdpLink`]) or in memory ([`Switch`]); others wrap links: they make one of several ([`Bundle`]), or do something to
//! what passes: harm ([`FaultLink`]), or a record of it ([`Capture`]).

mod bundle;
mod fault;
mod mem;
mod pcap;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use adverb_proto::IcrcCheck;

pub use bundle::Bundle;
pub use fault::{FaultConfig, FaultCounts, FaultLink};
pub use mem::{MemLink, Switch, SwitchConfig};
pub use pcap::{Capture, PcapLink};
pub use udp::{Interface, UdpConfig, UdpLink, UdpStatistics};

/// How many packets travel as one at most ([`UdpLink`]), so that Adverb's packets have IPv4 identifications below this.
const MAX_TRAIN: usize = 64;

/// How ICRCs are to be checked where only Adverb sends: with the strength of 26 bits.
const STRICT: IcrcCheck = IcrcCheck::IdentificationBelow(MAX_TRAIN as u16);

/// A packet to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxPacket<'a> {
    /// The address and port that it comes from. The port is one that [`Link::source_port`] has named: the ICRC
    /// covers it, so that no other will do.
    pub source: SocketAddr,
    /// The address and port that it goes to.
    pub destination: SocketAddr,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// How many routers it may pass; 0 is the system's default.
    pub hop_limit: u8,
    /// IPv6's flow label, of 20 bits; 0 is none.
    pub flow_label: u32,
    /// The payload of the UDP datagram: from the base transport header to the ICRC, which was computed for an IPv4
    /// identification of 0.
    pub bytes: &'a [u8],
}

/// A packet that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxPacket<'a> {
    /// The address and port that it comes from.
    pub source: SocketAddr,
    /// The address and port that it was sent to.
    pub destination: SocketAddr,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// How many routers it might still have passed, where the link knows.
    pub hop_limit: Option<u8>,
    /// IPv6's flow label, or 0.
    pub flow_label: u32,
    /// How its ICRC is to be checked.
    pub icrc: IcrcCheck,
    /// The payload of the UDP datagram: from the base transport header to the ICRC. A stranger may have sent it.
    pub bytes: &'a [u8],
}

impl RxPacket<'_> {
    /// Whether a switch on its way was congested, and marked it (RFC 3168: both ECN bits are 1).
    pub const fn is_ecn_marked(&self) -> bool {
        self.traffic_class & 0b11 == 0b11
    }
}

/// What moves packets: sockets, memory, or a wrapper round another link.
///
/// A link may lose packets, deliver them twice and in another order, as any network may. What becomes of one packet is
/// never an error; errors say that the link itself no longer works.
pub trait Link: Send {
    /// Sends packets, from the first on, without waiting; says how many were taken. If fewer than there were, the rest
    /// may be tried again when something has come or a little time has passed.
    ///
    /// A packet that can't be sent is taken, lost and [counted](Link::unsendable_packets): whatever its addresses, length
    /// and marks are, and whatever the system says of it.
    ///
    /// # Errors
    ///
    /// If the link no longer works, and no packet was taken.
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize>;

    /// Returns the number of packets that were taken but could not be sent.
    fn unsendable_packets(&self) -> u64 {
        0
    }

    /// Hands what has come to `each`, but no more than `max` packets, which is at least 1, without waiting; says how many
    /// packets came, some of which may have been lost in the link. There may be more: only 0 says that there are none.
    /// Packets that the link took from the system and hasn't handed over are announced by the
    /// [`deadline`](Link::deadline).
    ///
    /// # Errors
    ///
    /// If the link no longer works.
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize>;

    /// A descriptor that is readable when something has come since [`receive`](Link::receive) last said 0, for who
    /// [looks](Link::set_wake_interest). `None` if there is none: then only calling that tells.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Says whether anybody sleeps on the descriptor from now on; at first somebody may. While nobody does it needn't become
    /// readable, which can take a system call for each packet.
    ///
    /// # Errors
    ///
    /// If the link no longer works.
    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        _ = enabled;
        Ok(())
    }

    /// When to call [`receive`](Link::receive) at the latest, though the descriptor shows nothing: a wrapper may hold
    /// packets back, and a link may have more than it was asked for.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The source port for a flow from `local` that would have `wanted`: a link may have fewer ports than there are flows.
    /// The same for the same address and `wanted`.
    fn source_port(&self, local: IpAddr, wanted: u16) -> u16 {
        _ = local;
        wanted
    }

    /// How many bytes of packets wait for us at most: what comes when it is full is lost. `None` if there is no such
    /// limit.
    fn receive_buffer_bytes(&self) -> Option<usize> {
        None
    }

    /// Has packets to a multicast group come, too, until it is [left](Link::leave); but not those that this link itself
    /// sends: whoever sends knows its own members. A link that has no groups, or none of this family, does nothing.
    ///
    /// # Errors
    ///
    /// If the network or the system refuses.
    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        _ = group;
        Ok(())
    }

    /// Ends what [`join`](Link::join) began.
    fn leave(&mut self, group: IpAddr) {
        _ = group;
    }
}

impl<L: Link + ?Sized> Link for Box<L> {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        (**self).send(packets)
    }

    fn unsendable_packets(&self) -> u64 {
        (**self).unsendable_packets()
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        (**self).receive(max, each)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        (**self).readiness()
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        (**self).set_wake_interest(enabled)
    }

    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }

    fn source_port(&self, local: IpAddr, wanted: u16) -> u16 {
        (**self).source_port(local, wanted)
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        (**self).receive_buffer_bytes()
    }

    fn join(&mut self, group: IpAddr) -> io::Result<()> {
        (**self).join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        (**self).leave(group);
    }
}
