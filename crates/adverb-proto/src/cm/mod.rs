//! The connection manager (CM), which establishes and ends connections between queue pairs, as a pure state machine.
//!
//! A [`Manager`] takes calls, received messages and the time, and produces messages and [events](Event). It creates no
//! queue pairs: it returns the attributes that they need ([`QpAttributes`]). Messages are management datagrams (MADs),
//! the payload of unreliable datagrams between queue pair 1 (QP1) of one adapter and QP1 of another.
//!
//! The protocol is that of the InfiniBand Architecture Specification, volume 1, chapter 12. The peer may be another
//! [`Manager`] or Linux's `rdma_cm` ([`drivers/infiniband/core/cm.c` and `cma.c`][linux], which comments here cite). If
//! the [service ID](adverb_wire::cm::ServiceId) stands for a TCP or UDP port, requests start with a header of IP
//! addresses (Annex A11), as `rdma_cm` requires.
//!
//! ```
//! use adverb_proto::Time;
//! use adverb_proto::cm::{AddrPair, BindAddr, Config, ConnectParams, Event, ListenParams, LocalQp, Manager};
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
//! server.listen(ListenParams { service, bind: BindAddr::Any, transport: Transport::Rc, backlog: 16 }).unwrap();
//!
//! let addrs = AddrPair { local: client_address, remote: server_address };
//! let local_qp = LocalQp::new(Qpn::truncate(0x11));
//! let mut connect = ConnectParams::new(addrs, service, local_qp, deadline);
//! connect.private_data = b"hello";
//! let connecting = client.connect(now, &connect, &mut random).unwrap();
//!
//! // Delivers all messages of one manager to the other, in place of a network.
//! let mut deliver = |from: &mut Manager, to: &mut Manager| {
//!     while let Some(datagram) = from.poll_transmit() {
//!         let addrs = AddrPair { local: datagram.addrs.remote, remote: datagram.addrs.local };
//!         to.handle(now, addrs, &datagram.mad.emit(), &mut random);
//!     }
//! };
//! deliver(&mut client, &mut server);
//! let Some(Event::Request(request)) = server.poll_event() else { panic!() };
//! assert_eq!(request.private_data[..5], *b"hello");
//! let local_qp = LocalQp::new(Qpn::truncate(0x22));
//! // The queue pair must be ready to receive before the server accepts.
//! let attributes = server.qp_attributes(request.id, &local_qp).unwrap();
//! assert_eq!(attributes.ready_to_receive.remote_qpn, Qpn::truncate(0x11));
//! server.accept(now, request.id, &local_qp, b"welcome", deadline).unwrap();
//!
//! deliver(&mut server, &mut client);
//! let Some(Event::Accepted(acceptance)) = client.poll_event() else { panic!() };
//! assert_eq!(acceptance.private_data[..7], *b"welcome");
//! client.establish(now, connecting).unwrap();
//! assert_eq!(client.poll_event(), Some(Event::Established(connecting)));
//!
//! deliver(&mut client, &mut server);
//! assert_eq!(server.poll_event(), Some(Event::Established(request.id)));
//! ```
//!
//! # Forged messages
//!
//! Any host can send any bytes to QP1. The manager accepts a message about an established connection only if its source
//! is the peer's address and it carries both communication IDs, which are random. The manager sends at most one
//! response to a message, of the same size, to the message's source. It never responds to a message that is itself a
//! response (REJ, DREP, MRA, SIDR_REP), so two managers can't respond to each other in a loop.
//!
//! The manager sends a second message in one case only: a REQ or REP names a queue pair of the peer that already has an
//! established connection. Either the peer has restarted and lost that connection, or another host has forged the
//! message. The manager rejects the message as stale and, at most once per response timeout, also sends a probe: a DREQ
//! with both communication IDs and queue pair number 0. A peer that has lost the connection responds with a DREP. The
//! manager then ends the connection, and the peer's next REQ succeeds. A peer that still has the connection drops the
//! probe because of the wrong queue pair number. A forged REQ therefore can't end an established connection.
//!
//! The sizes of all tables are [limited](Config). A flood of requests with spoofed sources occupies only the slots of
//! half-open connections, which expire and are then in timewait for a short time, and affects no established
//! connection. Once half of these slots are occupied, an IPv4 address or IPv6 /64 network that occupies a sixteenth
//! of them gets no further one.
//!
//! If the application accepts a REQ with a spoofed source, the manager sends several messages to the spoofed address: a
//! REP, its retransmissions, and a REJ at the deadline. If half of the slots are occupied, or a sixteenth by that
//! source, the manager retransmits the REP at most once on its own, and sends the REJ only in response to a further
//! message. A peer that did not receive the REP retransmits its REQ, and the manager responds to each retransmission
//! with the REP.
//!
//! [linux]: https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/drivers/infiniband/core

mod compose;
mod connection;
mod event;
mod manager;
mod parameters;
mod receive;
mod sidr;
mod sources;
mod table;
mod timers;

pub use connection::{QpAttributes, State};
pub use event::{
    Acceptance, ConnectionId, Event, ListenerId, Query, QueryId, Rejection, Request, Resolution,
};
pub use manager::{Datagram, Manager, ResourceCounts, Statistics};
pub use parameters::{
    AddrPair, BindAddr, CallError, Config, ConnectParams, ListenParams, LocalQp, RdAtomicLimits,
    ResolveParams, UDP_QKEY,
};
