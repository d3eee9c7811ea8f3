//! The fields that tshark should show for a packet's transport headers.

use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Header, NakCode, Opcode, Operation, Rc, ReadResponse, Reth, Send, Syndrome,
    Uc, Ud, Write,
};

use super::field::Expected;

/// The headers of a packet, as tshark should show them.
pub(super) struct Headers {
    /// The fields.
    pub(super) expected: Expected,
    /// The length of the headers in bytes.
    pub(super) len: u16,
}

impl Headers {
    /// Returns the headers of a packet with the pad count `pad`. Headers that tshark doesn't dissect have no fields,
    /// but count in the length.
    pub(super) fn of(header: &Header, pad: u8) -> Headers {
        let mut headers = Headers { expected: Expected::default(), len: 0 };
        headers.base(header, pad);
        match &header.operation {
            Operation::Rc(rc) => headers.reliable(rc),
            Operation::Uc(Uc::Send(send)) => headers.send(send),
            Operation::Uc(Uc::Write(write)) => headers.write(write),
            Operation::Ud(Ud { qkey, source_qp, immediate }) => {
                let expected = headers.next(8);
                expected.number("infiniband.deth.q_key", *qkey);
                expected.bytes("infiniband.reserved", [0]);
                expected.number("infiniband.deth.srcqp", source_qp.get());
                headers.immediate(*immediate);
            }
            Operation::Cnp => headers.undissected(16),
        }
        headers
    }

    /// Starts a header of `len` bytes.
    fn next(&mut self, len: u16) -> &mut Expected {
        self.len += len;
        &mut self.expected
    }

    /// Skips `len` bytes that tshark doesn't dissect.
    fn undissected(&mut self, len: u16) {
        self.len += len;
    }

    /// Adds the base transport header (vol. 1, 9.2).
    fn base(&mut self, header: &Header, pad: u8) {
        let opcode = OPCODES.iter().find(|(opcode, ..)| *opcode == header.opcode());
        let (_, byte, meaning) =
            opcode.copied().unwrap_or((header.opcode(), 0xff, "not in the table OPCODES"));
        let expected = self.next(12);
        expected.named("infiniband.bth.opcode", byte, meaning);
        expected.number("infiniband.bth.se", header.solicited);
        expected.number("infiniband.bth.m", header.migrated);
        expected.number("infiniband.bth.padcnt", pad);
        expected.number("infiniband.bth.tver", 0u8);
        expected.number("infiniband.bth.p_key", header.pkey);
        // tshark doesn't know that the first two of these eight bits are FECN and BECN.
        expected.bytes("infiniband.reserved", [u8::from(header.fecn) << 7 | u8::from(header.becn) << 6]);
        expected.number("infiniband.bth.destqp", header.dest_qp.get());
        expected.number("infiniband.bth.a", header.ack_request);
        expected.number("infiniband.bth.reserved7", 0u8);
        expected.number("infiniband.bth.psn", header.psn.get());
    }

    fn reliable(&mut self, rc: &Rc) {
        match rc {
            Rc::Send(send) => self.send(send),
            Rc::SendLastInvalidate(rkey) | Rc::SendOnlyInvalidate(rkey) => {
                let expected = self.next(4);
                // tshark shows it twice: for the header and for its only field.
                expected.bytes("infiniband.ieth", rkey.to_be_bytes());
                expected.bytes("infiniband.ieth", rkey.to_be_bytes());
            }
            Rc::Write(write) => self.write(write),
            Rc::ReadRequest(reth) => self.reth(reth),
            Rc::ReadResponse(ReadResponse::Middle) => {}
            Rc::ReadResponse(
                ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth),
            )
            | Rc::Acknowledge(aeth) => self.aeth(aeth),
            Rc::AtomicAcknowledge(aeth, original) => {
                self.aeth(aeth);
                self.next(8).number("infiniband.atomicacketh.origremdt", *original);
            }
            Rc::CompareSwap(CompareSwap { va, rkey, swap, compare }) => {
                self.atomic_eth(*va, *rkey, *swap, *compare);
            }
            // The compare data is present, but reserved.
            Rc::FetchAdd(FetchAdd { va, rkey, add }) => self.atomic_eth(*va, *rkey, *add, 0),
            Rc::Flush(_) => self.undissected(4 + 16),
            Rc::AtomicWrite(_) => self.undissected(16),
        }
    }

    fn send(&mut self, send: &Send) {
        match send {
            Send::First | Send::Middle => {}
            Send::Last(immediate) | Send::Only(immediate) => self.immediate(*immediate),
        }
    }

    fn write(&mut self, write: &Write) {
        match write {
            Write::First(reth) => self.reth(reth),
            Write::Middle => {}
            Write::Last(immediate) => self.immediate(*immediate),
            Write::Only(reth, immediate) => {
                self.reth(reth);
                self.immediate(*immediate);
            }
        }
    }

    fn reth(&mut self, reth: &Reth) {
        let expected = self.next(16);
        expected.number("infiniband.reth.va", reth.va);
        expected.number("infiniband.reth.r_key", reth.rkey);
        expected.number("infiniband.reth.dmalen", reth.length);
    }

    /// Adds an AtomicETH. tshark names address and key as in a RETH.
    fn atomic_eth(&mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) {
        let expected = self.next(28);
        expected.number("infiniband.reth.va", va);
        expected.number("infiniband.reth.r_key", rkey);
        expected.number("infiniband.atomiceth.swapdt", swap_or_add);
        expected.number("infiniband.atomiceth.cmpdt", compare);
    }

    fn aeth(&mut self, aeth: &Aeth) {
        let expected = self.next(4);
        expected.number("infiniband.aeth.syndrome", syndrome_byte(aeth.syndrome));
        expected.number("infiniband.aeth.syndrome.reserved", syndrome_byte(aeth.syndrome) >> 7);
        expect_syndrome(expected, aeth.syndrome);
        expected.number("infiniband.aeth.msn", aeth.msn & 0x00ff_ffff);
    }

    fn immediate(&mut self, immediate: Option<u32>) {
        if let Some(immediate) = immediate {
            let expected = self.next(4);
            // tshark shows it twice: for the header and for its only field.
            expected.bytes("infiniband.immdt", immediate.to_be_bytes());
            expected.bytes("infiniband.immdt", immediate.to_be_bytes());
        }
    }
}

/// Adds the two parts of a syndrome: bits 6 and 5 are the kind of the lower five bits (vol. 1, tables 43 to 47).
fn expect_syndrome(expected: &mut Expected, syndrome: Syndrome) {
    const OPCODE: &str = "infiniband.aeth.syndrome.opcode";
    const ERROR: &str = "infiniband.aeth.syndrome.error_code";
    match syndrome {
        Syndrome::Ack(credits) => {
            expected.named(OPCODE, 0u8, "Ack");
            expected.number("infiniband.aeth.syndrome.credit_count", credits.code());
        }
        Syndrome::RnrNak(timer) => {
            // tshark shows the time in milliseconds, with two decimals.
            let millis = timer.duration().as_secs_f64() * 1000.0;
            expected.named(OPCODE, 1u8, "RNR Nak");
            expected.named("infiniband.aeth.syndrome.timer", timer.code(), format!("{millis:.2} ms"));
        }
        Syndrome::Nak(code) => {
            expected.named(OPCODE, 3u8, "Nak");
            let (code, meaning) = nak(code);
            expected.named(ERROR, code, meaning);
        }
        Syndrome::Reserved(_) => {
            // A reserved syndrome has no parts other than the bits of its byte.
            let (kind, value) = (syndrome.byte() >> 5 & 3, syndrome.byte() & 31);
            expected.number(OPCODE, kind);
            let name = match kind {
                0 => "infiniband.aeth.syndrome.credit_count",
                1 => "infiniband.aeth.syndrome.timer",
                2 => "infiniband.aeth.syndrome.reserved_value",
                _ => ERROR,
            };
            expected.number(name, value);
        }
    }
}

/// Returns the byte of a syndrome, computed from its parts.
fn syndrome_byte(syndrome: Syndrome) -> u8 {
    match syndrome {
        Syndrome::Ack(credits) => credits.code(),
        Syndrome::RnrNak(timer) => 0b001_00000 + timer.code(),
        Syndrome::Nak(code) => 0b011_00000 + nak(code).0,
        Syndrome::Reserved(_) => syndrome.byte(),
    }
}

/// Returns a NAK code's value (table 46) and tshark's text for it.
fn nak(code: NakCode) -> (u8, &'static str) {
    match code {
        NakCode::SequenceError => (0, "PSN Sequence Error"),
        NakCode::InvalidRequest => (1, "Invalid Request"),
        NakCode::RemoteAccess => (2, "Remote Access Error"),
        NakCode::RemoteOperational => (3, "Remote Operational Error"),
        NakCode::InvalidRdRequest => (4, "Invalid RD Request"),
    }
}

/// Every opcode with its value (vol. 1, table 38; Annexes A17 and A19) and tshark's text for it.
pub(super) const OPCODES: &[(Opcode, u8, &str)] = &[
    (Opcode::RcSendFirst, 0x00, "Reliable Connection (RC) - SEND First"),
    (Opcode::RcSendMiddle, 0x01, "Reliable Connection (RC) - SEND Middle"),
    (Opcode::RcSendLast, 0x02, "Reliable Connection (RC) - SEND Last"),
    (Opcode::RcSendLastWithImm, 0x03, "Reliable Connection (RC) - SEND Last with Immediate"),
    (Opcode::RcSendOnly, 0x04, "Reliable Connection (RC) - SEND Only"),
    (Opcode::RcSendOnlyWithImm, 0x05, "Reliable Connection (RC) - SEND Only with Immediate"),
    (Opcode::RcWriteFirst, 0x06, "Reliable Connection (RC) - RDMA WRITE First"),
    (Opcode::RcWriteMiddle, 0x07, "Reliable Connection (RC) - RDMA WRITE Middle"),
    (Opcode::RcWriteLast, 0x08, "Reliable Connection (RC) - RDMA WRITE Last"),
    (Opcode::RcWriteLastWithImm, 0x09, "Reliable Connection (RC) - RDMA WRITE Last with Immediate"),
    (Opcode::RcWriteOnly, 0x0a, "Reliable Connection (RC) - RDMA WRITE Only"),
    (Opcode::RcWriteOnlyWithImm, 0x0b, "Reliable Connection (RC) - RDMA WRITE Only with Immediate"),
    (Opcode::RcReadRequest, 0x0c, "Reliable Connection (RC) - RDMA READ Request"),
    (Opcode::RcReadResponseFirst, 0x0d, "Reliable Connection (RC) - RDMA READ response First"),
    (Opcode::RcReadResponseMiddle, 0x0e, "Reliable Connection (RC) - RDMA READ response Middle"),
    (Opcode::RcReadResponseLast, 0x0f, "Reliable Connection (RC) - RDMA READ response Last"),
    (Opcode::RcReadResponseOnly, 0x10, "Reliable Connection (RC) - RDMA READ response Only"),
    (Opcode::RcAcknowledge, 0x11, "Reliable Connection (RC) - Acknowledge"),
    (Opcode::RcAtomicAcknowledge, 0x12, "Reliable Connection (RC) - ATOMIC Acknowledge"),
    (Opcode::RcCompareSwap, 0x13, "Reliable Connection (RC) - CmpSwap"),
    (Opcode::RcFetchAdd, 0x14, "Reliable Connection (RC) - FetchAdd"),
    (Opcode::RcSendLastInvalidate, 0x16, "Reliable Connection (RC) - SEND Last with Invalidate"),
    (Opcode::RcSendOnlyInvalidate, 0x17, "Reliable Connection (RC) - SEND Only with Invalidate"),
    (Opcode::RcFlush, 0x1c, "Unknown"),
    (Opcode::RcAtomicWrite, 0x1d, "Unknown"),
    (Opcode::UcSendFirst, 0x20, "Unreliable Connection (UC) - SEND First"),
    (Opcode::UcSendMiddle, 0x21, "Unreliable Connection (UC) - SEND Middle"),
    (Opcode::UcSendLast, 0x22, "Unreliable Connection (UC) - SEND Last"),
    (Opcode::UcSendLastWithImm, 0x23, "Unreliable Connection (UC) - SEND Last with Immediate"),
    (Opcode::UcSendOnly, 0x24, "Unreliable Connection (UC) - SEND Only"),
    (Opcode::UcSendOnlyWithImm, 0x25, "Unreliable Connection (UC) - SEND Only with Immediate"),
    (Opcode::UcWriteFirst, 0x26, "Unreliable Connection (UC) - RDMA WRITE First"),
    (Opcode::UcWriteMiddle, 0x27, "Unreliable Connection (UC) - RDMA WRITE Middle"),
    (Opcode::UcWriteLast, 0x28, "Unreliable Connection (UC) - RDMA WRITE Last"),
    (Opcode::UcWriteLastWithImm, 0x29, "Unreliable Connection (UC) - RDMA WRITE Last with Immediate"),
    (Opcode::UcWriteOnly, 0x2a, "Unreliable Connection (UC) - RDMA WRITE Only"),
    (Opcode::UcWriteOnlyWithImm, 0x2b, "Unreliable Connection (UC) - RDMA WRITE Only with Immediate"),
    (Opcode::UdSendOnly, 0x64, "Unreliable Datagram (UD) - SEND only"),
    (Opcode::UdSendOnlyWithImm, 0x65, "Unreliable Datagram (UD) - SEND only with Immediate"),
    (Opcode::Cnp, 0x81, "Unknown"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_is_in_the_table() {
        assert!(OPCODES.iter().map(|(opcode, ..)| opcode).eq(Opcode::ALL));
    }
}
