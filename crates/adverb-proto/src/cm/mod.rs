//! The connection manager: how two queue pairs find each other, as a pure state machine (vol. 1, chapter 12).
//!
//! A [`Manager`] is to connections what a [`Device`](crate::Device) is to packets: calls, messages and time go in,
//! messages and [events](Event) come out. It makes no queue pairs; it says what they must be told ([`Ready`]).
//! Messages are management datagrams, the payload of unreliable datagrams between the queue pairs 1 of two adapters.
//!
//! It speaks to Linux's `rdma_cm` ([`drivers/infiniband/core/cm.c` and `cma.c`][linux], which comments here cite) as
//! well as to itself: services are ports of TCP or UDP, and requests begin with IP addresses (Annex A11).
//!
//! ```
//! use adverb_proto::Time;
//! use adverb_proto::cm::{Bind, Config, Connect, Ends, Event, Listen, Manager, Offer};
//! use adverb_proto::types::{Qpn, Transport};
//! use adverb_wire::cm::ServiceId;
//! use std::time::Duration;
//!
//! let mut random = 0x1234u32;
//! let mut random = || { random = random.wrapping_mul(0x9e37_79b9).wrapping_add(1); random };
//! let (client_address, server_address) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
//! let mut client = Manager::new(Config::new(0xc11e));
//! let mut server = Manager::new(Config::new(0x5e77));
//! let now = Time::ZERO;
//! let deadline = now + Duration::from_secs(2);
//!
//! let service = ServiceId::tcp_port(7471);
//! server.listen(Listen { service, bind: Bind::Any, transport: Transport::Rc, backlog: 16 }).unwrap();
//!
//! let ends = Ends { local: client_address, remote: server_address };
//! let offer = Offer::new(Qpn::truncate(0x11));
//! let mut connect = Connect::new(ends, service, offer, deadline);
//! connect.private_data = b"hello";
//! let connecting = client.connect(now, &connect, &mut random).unwrap();
//!
//! // The fabric: what one side sends, the other gets.
//! let mut carry = |from: &mut Manager, to: &mut Manager| {
//!     while let Some(datagram) = from.poll_transmit() {
//!         let ends = Ends { local: datagram.ends.remote, remote: datagram.ends.local };
//!         to.handle(now, ends, &datagram.mad.emit(), &mut random);
//!     }
//! };
//! carry(&mut client, &mut server);
//! let Some(Event::Request(request)) = server.poll_event() else { panic!() };
//! assert_eq!(request.private_data[..5], *b"hello");
//! let offer = Offer::new(Qpn::truncate(0x22));
//! let ready = server.ready(request.id, &offer).unwrap(); // for the queue pair, before the peer may send
//! assert_eq!(ready.ready_to_receive.remote_qpn, Qpn::truncate(0x11));
//! server.accept(now, request.id, &offer, b"welcome", deadline).unwrap();
//!
//! carry(&mut server, &mut client);
//! let Some(Event::Accepted(acceptance)) = client.poll_event() else { panic!() };
//! assert_eq!(acceptance.private_data[..7], *b"welcome");
//! client.establish(now, connecting).unwrap();
//! assert_eq!(client.poll_event(), Some(Event::Established(connecting)));
//!
//! carry(&mut client, &mut server);
//! assert_eq!(server.poll_event(), Some(Event::Established(request.id)));
//! ```
//!
//! # Whom it believes
//!
//! Any host can send any bytes to queue pair 1. A message about an established connection is believed only if it comes
//! from the peer's address and names both communication IDs, which are random. A message gets at most one answer, of
//! the same size, sent to its source; and messages that are answers themselves (REJ, DREP, MRA, SIDR_REP) are never
//! answered, so that nothing goes round.
//!
//! One exception sends a second message: a REQ or REP that names a queue pair of the peer's which already has an
//! established connection. The peer may have restarted and lost that connection, or a stranger may have forged the
//! message. It is rejected as stale, and at most once per response timeout a probe follows: a DREQ with both
//! communication IDs and queue pair number 0. A peer without the connection answers with a DREP, which ends it here,
//! and its next REQ succeeds. A peer that has the connection drops the probe because of the wrong number. So a forged
//! REQ ends nothing.
//!
//! Tables are [bounded](Config): a flood of requests in strangers' names fills those for half open connections, which
//! empty themselves with time, and touches no connection that stands. Once half of those slots are occupied, an IPv4
//! address or an IPv6 /64 gets at most a sixteenth of them.
//!
//! A REQ from a spoofed address makes this side send to that address: a REP, its retransmissions, and a REJ when the
//! deadline passes. While half of the slots are occupied, or a sixteenth by that source, the REP is retransmitted at
//! most once and the REJ is only sent if the peer shows itself. A peer that lost the REP repeats its REQ, and each
//! repetition gets the REP again.
//!
//! [linux]: https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/drivers/infiniband/core

mod agenda;
mod arrival;
mod compose;
mod connection;
mod event;
mod manager;
mod parameters;
mod sidr;
mod sources;
mod table;

pub use connection::{Ready, State};
pub use event::{
    Acceptance, ConnectionId, Event, ListenerId, Query, QueryId, Rejection, Request, Resolution,
};
pub use manager::{Datagram, Manager, ResourceCounts, Statistics};
pub use parameters::{Bind, CallError, Config, Connect, Depths, Ends, Listen, Offer, Resolve, UDP_QKEY};
