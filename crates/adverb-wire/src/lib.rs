//! RoCEv2 packets: headers, opcodes, the invariant CRC (ICRC), and connection manager (CM) messages.
//!
//! This crate does no I/O, allocates nothing, keeps no state, builds without `std`, and contains no `unsafe`.
//!
//! - [`Packet`] is the payload of a UDP datagram to port 4791, parsed and checked once. Its [`Operation`] combines
//!   the opcode with exactly the extended headers that the opcode carries.
//! - [`Header`] holds all transport headers of a packet. [`Flow`] writes them for a payload in any number of slices,
//!   and computes and checks the ICRC.
//! - [`Frame`] adds the IP and UDP headers, for captures and raw sockets.
//! - [`cm`] contains the CM messages.
//! - [`Psn`] and [`Qpn`] are 24-bit packet sequence numbers and queue pair numbers.
//!
//! Packets, headers and messages implement `Display` as one line of text in the style of tcpdump.
//!
//! The examples of the items that the crate `adverb` re-exports use its paths, such as `adverb::verbs::Psn`.
//!
//! ```
//! use adverb_wire::{Flow, Header, Operation, Packet, Psn, Qpn, Ud, MAX_HEADER_LEN};
//!
//! // A datagram from a UDP socket on 10.0.0.1 to a RoCE device on 10.0.0.2:
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
//! Section numbers ("vol. 1, 9.7.2") refer to the InfiniBand Architecture Specification, volume 1, and its annexes
//! A11 (IP addressing for the CM), A17 (RoCEv2) and A19 (memory placement extensions). File names that start with
//! `rxe_` refer to `drivers/infiniband/sw/rxe` in Linux, and `cm.c` to `drivers/infiniband/core`.

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
#[doc(hidden)]
pub mod random;

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
