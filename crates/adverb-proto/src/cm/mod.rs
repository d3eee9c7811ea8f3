//! The connection manager (CM), which connects pairs of queue pairs, as a pure state machine (vol. 1, chapter 12).
//!
//! A [`Manager`] takes calls, received messages and the time, and produces messages and [events](Event). It creates no
//! queue pairs: it returns the attributes that they need ([`Ready`]). Messages are management datagrams (MADs), the
//! payload of unreliable datagrams between the queue pairs 1 of two adapters.
//!
//! The peer may be another [`Manager`] or Linux's `rdma_cm` ([`drivers/infiniband/core/cm.c` and `cma.c`][linux], which
//! comments here cite). A service that is a TCP or UDP port is compatible with `rdma_cm`: its requests start with a
//! header of IP addresses (Annex A11).
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
//! // The network: delivers the messages of one side to the other.
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
//! # Forged messages
//!
//! Any host can send any bytes to queue pair 1. A message about an established connection is accepted only if it comes
//! from the peer's address and names both communication IDs, which are random. A message gets at most one response, of
//! the same size, sent to its source. Messages that are responses themselves (REJ, DREP, MRA, SIDR_REP) are never
//! answered, so two managers can't answer each other in a loop.
//!
//! One exception sends a second message: a REQ or REP that names a queue pair of the peer's which already has an
//! established connection. The peer may have restarted and lost that connection, or another host may have forged the
//! message. It is rejected as stale, and at most once per response timeout a probe follows: a DREQ with both
//! communication IDs and queue pair number 0. A peer without the connection answers with a DREP, which ends it here,
//! and its next REQ succeeds. A peer that has the connection drops the probe because of the wrong number. So a forged
//! REQ ends nothing.
//!
//! Tables are [bounded](Config). A flood of requests with spoofed sources occupies only the slots of half-open
//! connections, which expire, and affects no established connection. Once half of these slots are occupied, an IPv4
//! address or an IPv6 /64 gets at most a sixteenth of them.
//!
//! A REQ from a spoofed address makes this side send to that address: a REP, its retransmissions, and a REJ when the
//! deadline passes. While half of the slots are occupied, or a sixteenth by that source, the REP is retransmitted at
//! most once, and the REJ is sent only if the peer sends another message. A peer that did not receive the REP
//! retransmits its REQ, and each retransmission gets the REP again.
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
