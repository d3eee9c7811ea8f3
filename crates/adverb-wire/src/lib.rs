//! What a RoCEv2 packet is: headers, opcodes, the invariant CRC, and the connection manager's messages.
//!
//! Nothing here does any I/O, allocates, or holds state; it builds without `std`, and has no `unsafe`.
//!
//! - [`Packet`] is what a UDP datagram to port 4791 holds, parsed and checked once. Its [`Operation`] has the
//!   opcode together with just the headers that this opcode brings.
//! - [`Header`] is what is written before a payload, and [`Flow`] writes it, for a payload in any number of
//!   pieces, and computes and checks the ICRC.
//! - [`Frame`] adds the IP and UDP headers, for captures.
//! - [`cm`] has the connection manager's messages.
//! - [`Psn`] and [`Qpn`] are the 24-bit numbers.
//!
//! Everything prints as a line of text in the manner of tcpdump.
//!
//! ```
//! use adverb_wire::{Flow, Header, Operation, Packet, Psn, Qpn, Ud, MAX_HEADER_LEN};
//!
//! // From an ordinary UDP socket on 10.0.0.1 to a RoCE device on 10.0.0.2:
//! let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
//! let datagram = Ud { qkey: 0x1111_1111, source_qp: Qpn::truncate(0x42), immediate: None };
//! let header = Header::new(Qpn::truncate(0x11), Psn::ZERO, Operation::Ud(datagram));
//! let mut head = [0; MAX_HEADER_LEN];
//! let emitted = flow.emit(&header, 0, &[b"ping"], &mut head).unwrap();
//! let bytes = [&head[..emitted.header_len], b"ping", &emitted.trailer].concat();
//!
//! let packet = Packet::parse(&bytes).unwrap();
//! assert_eq!(
//!     packet.to_string(),
//!     "UD SEND only, qp 0x000011, psn 0, from qp 0x000042 qkey 0x11111111, 4 bytes"
//! );
//! assert!(flow.verify(&packet, 0).is_ok());
//! ```
//!
//! Sections named in comments are those of the InfiniBand Architecture Specification, volume 1, and its
//! annexes A11 (IP addressing for the connection manager), A17 (RoCEv2) and A19 (memory placement); files named
//! are those of Linux's `drivers/infiniband/sw/rxe`.

#![no_std]
#![forbid(unsafe_code)]
#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    clippy::indexing_slicing
)]

#[cfg(test)]
extern crate std;

mod aeth;
pub mod cm;
mod crc;
mod frame;
mod header;
mod icrc;
mod ip;
mod opcode;
mod operation;
mod packet;
mod print;
mod psn;
mod qpn;

pub use aeth::{Aeth, Credits, NakCode, ReservedSyndrome, RnrTimer, Syndrome};
pub use frame::{Frame, FrameError, MAX_OUTER_HEADER_LEN, UDP_HEADER_LEN};
pub use header::{DEFAULT_PKEY, Header, MAX_HEADER_LEN};
pub use icrc::{Emitted, Flow, IcrcHasher, IcrcMismatch, Trailer};
pub use ip::{GRH_LEN, IpHeader, Ipv4Header, Ipv6Header};
pub use opcode::{Opcode, PayloadRule};
pub use operation::{CompareSwap, FetchAdd, Flush, Operation, Rc, ReadResponse, Reth, Send, Uc, Ud, Write};
pub use packet::{EmitError, ICRC_LEN, MAX_PACKET_LEN, Packet, ParseError, ROCE_PORT};
pub use psn::Psn;
pub use qpn::Qpn;
