//! The header tree of a packet, in the format of tcpdump and Wireshark.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Flush, Header, ICRC_LEN, Operation, Rc, ReadResponse, Reth, Send, Syndrome,
    Uc, Ud, Write as RdmaWrite,
};

use crate::model::Packet;

/// Returns the length of a packet's UDP payload: headers, payload, padding and ICRC.
pub(super) fn udp_payload_len(packet: &Packet) -> usize {
    packet.header.len() + (packet.payload_len as usize).next_multiple_of(4) + ICRC_LEN
}

/// Writes the addresses of a packet, such as `IP 10.0.0.1.49152 > 10.0.0.2.4791: UDP, length 80`.
pub(super) fn write_addresses(out: &mut dyn Write, packet: &Packet) -> io::Result<()> {
    match (packet.source, packet.destination) {
        (Some(source), Some(destination)) => {
            let version = if destination.is_ipv4() { "IP" } else { "IP6" };
            write!(out, "{version} {} > {}: UDP", TcpdumpAddr(source), TcpdumpAddr(destination))?;
        }
        _ => write!(out, "IP addresses not recorded: UDP")?,
    }
    write!(out, ", length {}", udp_payload_len(packet))
}

/// An address and a port in tcpdump's notation.
struct TcpdumpAddr(SocketAddr);

impl core::fmt::Display for TcpdumpAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0.port() {
            0 => write!(f, "{}.?", self.0.ip()),
            port => write!(f, "{}.{port}", self.0.ip()),
        }
    }
}

/// Writes the header tree of a packet.
pub(super) fn write_tree(out: &mut dyn Write, packet: &Packet) -> io::Result<()> {
    if let (Some(source), Some(destination)) = (packet.source, packet.destination) {
        let version = if matches!(destination.ip(), IpAddr::V4(_)) { 4 } else { 6 };
        let (from, to) = (source.ip(), destination.ip());
        writeln!(out, "    Internet Protocol Version {version}, Src: {from}, Dst: {to}")?;
        match source.port() {
            0 => write!(out, "    User Datagram Protocol, Src Port: not recorded")?,
            port => write!(out, "    User Datagram Protocol, Src Port: {port}")?,
        }
        writeln!(out, ", Dst Port: {}", destination.port())?;
    }
    let Header { dest_qp, psn, solicited, migrated, pkey, fecn, becn, ack_request, operation } =
        packet.header;
    let opcode = packet.header.opcode();
    writeln!(out, "    InfiniBand: Base Transport Header (12 bytes)")?;
    writeln!(out, "        Opcode: {} ({:#04x})", opcode.name(), opcode.byte())?;
    writeln!(out, "        Solicited Event: {}", u8::from(solicited))?;
    writeln!(out, "        Migrated: {}", u8::from(migrated))?;
    writeln!(out, "        Pad Count: {}", packet.payload_len.wrapping_neg() & 3)?;
    writeln!(out, "        Transport Header Version: 0")?;
    writeln!(out, "        Partition Key: {pkey:#06x}")?;
    if fecn || becn {
        writeln!(out, "        FECN: {}, BECN: {}", u8::from(fecn), u8::from(becn))?;
    }
    writeln!(out, "        Destination Queue Pair: {dest_qp}")?;
    writeln!(out, "        Acknowledge Request: {}", u8::from(ack_request))?;
    writeln!(out, "        Packet Sequence Number: {psn}")?;
    write_extended(out, &operation)?;
    if packet.payload_len > 0 {
        writeln!(out, "    Data: {} bytes", packet.payload_len)?;
        if let Some(payload) = packet.payload.as_deref() {
            write_payload(out, payload)?;
        }
    }
    writeln!(out, "    InfiniBand: Invariant CRC ({ICRC_LEN} bytes)")
}

/// Writes the first bytes of a payload.
fn write_payload(out: &mut dyn Write, payload: &[u8]) -> io::Result<()> {
    const MAX_BYTES: usize = 64;
    for row in payload.chunks(16).take(MAX_BYTES / 16) {
        write!(out, "       ")?;
        for byte in row {
            write!(out, " {byte:02x}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Writes the extended headers.
fn write_extended(out: &mut dyn Write, operation: &Operation) -> io::Result<()> {
    match operation {
        Operation::Rc(rc) => match rc {
            Rc::Send(send) => write_send(out, send),
            Rc::SendLastInvalidate(rkey) | Rc::SendOnlyInvalidate(rkey) => {
                writeln!(out, "    InfiniBand: Invalidate Extended Transport Header (4 bytes)")?;
                writeln!(out, "        Remote Key: {rkey:#010x}")
            }
            Rc::Write(write) => write_write(out, write),
            Rc::ReadRequest(reth) | Rc::AtomicWrite(reth) => write_reth(out, reth),
            Rc::ReadResponse(ReadResponse::Middle) => Ok(()),
            Rc::ReadResponse(
                ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth),
            )
            | Rc::Acknowledge(aeth) => write_aeth(out, aeth),
            Rc::AtomicAcknowledge(aeth, original) => {
                write_aeth(out, aeth)?;
                writeln!(out, "    InfiniBand: Atomic Acknowledge Extended Transport Header (8 bytes)")?;
                writeln!(out, "        Original Remote Data: {original:#018x}")
            }
            Rc::CompareSwap(CompareSwap { va, rkey, swap, compare }) => {
                write_atomic(out, *va, *rkey, *swap, *compare)
            }
            // The compare field of a fetch-and-add is reserved.
            Rc::FetchAdd(FetchAdd { va, rkey, add }) => write_atomic(out, *va, *rkey, *add, 0),
            Rc::Flush(Flush { global, persistent, whole_region, range }) => {
                writeln!(out, "    InfiniBand: FLUSH Extended Transport Header (4 bytes)")?;
                let (global, persistent) = (u8::from(*global), u8::from(*persistent));
                writeln!(
                    out,
                    "        Placement Type: global visibility {global}, persistence {persistent}"
                )?;
                let level = if *whole_region { "1 (memory region)" } else { "0 (range)" };
                writeln!(out, "        Selectivity Level: {level}")?;
                write_reth(out, range)
            }
        },
        Operation::Uc(Uc::Send(send)) => write_send(out, send),
        Operation::Uc(Uc::Write(write)) => write_write(out, write),
        Operation::Ud(Ud { qkey, source_qp, immediate }) => {
            writeln!(out, "    InfiniBand: Datagram Extended Transport Header (8 bytes)")?;
            writeln!(out, "        Queue Key: {qkey:#010x}")?;
            writeln!(out, "        Source Queue Pair: {source_qp}")?;
            write_immediate(out, *immediate)
        }
        Operation::Cnp => writeln!(out, "    InfiniBand: reserved (16 bytes)"),
    }
}

fn write_send(out: &mut dyn Write, send: &Send) -> io::Result<()> {
    match send {
        Send::First | Send::Middle => Ok(()),
        Send::Last(immediate) | Send::Only(immediate) => write_immediate(out, *immediate),
    }
}

fn write_write(out: &mut dyn Write, write: &RdmaWrite) -> io::Result<()> {
    match write {
        RdmaWrite::First(reth) => write_reth(out, reth),
        RdmaWrite::Middle => Ok(()),
        RdmaWrite::Last(immediate) => write_immediate(out, *immediate),
        RdmaWrite::Only(reth, immediate) => {
            write_reth(out, reth)?;
            write_immediate(out, *immediate)
        }
    }
}

fn write_reth(out: &mut dyn Write, Reth { va, rkey, length }: &Reth) -> io::Result<()> {
    writeln!(out, "    InfiniBand: RDMA Extended Transport Header (16 bytes)")?;
    writeln!(out, "        Virtual Address: {va:#018x}")?;
    writeln!(out, "        Remote Key: {rkey:#010x}")?;
    writeln!(out, "        DMA Length: {length}")
}

fn write_atomic(out: &mut dyn Write, va: u64, rkey: u32, swap: u64, compare: u64) -> io::Result<()> {
    writeln!(out, "    InfiniBand: Atomic Extended Transport Header (28 bytes)")?;
    writeln!(out, "        Virtual Address: {va:#018x}")?;
    writeln!(out, "        Remote Key: {rkey:#010x}")?;
    writeln!(out, "        Swap (or Add) Data: {swap:#018x}")?;
    writeln!(out, "        Compare Data: {compare:#018x}")
}

fn write_aeth(out: &mut dyn Write, Aeth { syndrome, msn }: &Aeth) -> io::Result<()> {
    writeln!(out, "    InfiniBand: ACK Extended Transport Header (4 bytes)")?;
    writeln!(out, "        Syndrome: {:#04x} ({})", syndrome.byte(), syndrome_words(*syndrome))?;
    writeln!(out, "        Message Sequence Number: {msn}")
}

fn write_immediate(out: &mut dyn Write, immediate: Option<u32>) -> io::Result<()> {
    let Some(immediate) = immediate else { return Ok(()) };
    writeln!(out, "    InfiniBand: Immediate Data Extended Transport Header (4 bytes)")?;
    writeln!(out, "        Immediate Data: {immediate:#010x}")
}

/// Describes a syndrome.
pub(super) fn syndrome_words(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(credits) => match credits.count() {
            Some(count) => format!("ACK, {count} credits"),
            None => "ACK, unlimited credits".to_owned(),
        },
        Syndrome::RnrNak(timer) => format!("RNR NAK: receiver not ready, retry after {:?}", timer.duration()),
        Syndrome::Nak(code) => format!("NAK: {code}"),
        Syndrome::Reserved(_) => "reserved".to_owned(),
    }
}
