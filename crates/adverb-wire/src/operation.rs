//! Operations: opcodes with their extended headers.

use crate::header::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, CNP_RESERVED_LEN, DETH_LEN, FETH_LEN, IMMEDIATE_LEN,
    RETH_LEN,
};
use crate::{Aeth, Opcode, Qpn};

/// The operation of a packet, by transport: the opcode and its extended headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// An operation of the reliable connection (RC) transport.
    Rc(Rc),
    /// An operation of the unreliable connection (UC) transport.
    Uc(Uc),
    /// An operation of the unreliable datagram (UD) transport.
    Ud(Ud),
    /// A congestion notification packet. Its 16 reserved bytes are sent as zeros and ignored on receipt.
    Cnp,
}

/// An operation of the reliable connection transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rc {
    /// A packet of a SEND, which the responder places into its next receive request.
    Send(Send),
    /// The last packet of a SEND that also invalidates this remote key of the responder.
    SendLastInvalidate(u32),
    /// A SEND in one packet that also invalidates this remote key of the responder.
    SendOnlyInvalidate(u32),
    /// A packet of an RDMA WRITE into the responder's memory.
    Write(Write),
    /// An RDMA READ request for a range of the responder's memory.
    ReadRequest(Reth),
    /// A packet of an RDMA READ response.
    ReadResponse(ReadResponse),
    /// An ACK or a NAK.
    Acknowledge(Aeth),
    /// The response to an atomic operation, with the original value.
    AtomicAcknowledge(Aeth, u64),
    /// An atomic compare-and-swap.
    CompareSwap(CompareSwap),
    /// An atomic fetch-and-add.
    FetchAdd(FetchAdd),
    /// A FLUSH, which makes earlier writes visible or persistent.
    Flush(Flush),
    /// An atomic write of the eight bytes of payload.
    AtomicWrite(Reth),
}

/// An operation of the unreliable connection transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uc {
    /// A packet of a SEND, which the responder places into its next receive request.
    Send(Send),
    /// A packet of an RDMA WRITE into the responder's memory.
    Write(Write),
}

/// A SEND, the only operation of the unreliable datagram transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ud {
    /// The Q_Key, which must match that of the destination queue pair.
    pub qkey: u32,
    /// The number of the source queue pair.
    pub source_qp: Qpn,
    /// The immediate data, if any.
    pub immediate: Option<u32>,
}

/// A packet of a SEND. The `Option<u32>` is the immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Send {
    /// The first packet of several.
    First,
    /// A packet that is neither the first nor the last.
    Middle,
    /// The last packet of several.
    Last(Option<u32>),
    /// The only packet, with the whole message.
    Only(Option<u32>),
}

/// A packet of an RDMA WRITE. The `Option<u32>` is the immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Write {
    /// The first packet of several, with the memory range of the whole message.
    First(Reth),
    /// A packet that is neither the first nor the last.
    Middle,
    /// The last packet of several.
    Last(Option<u32>),
    /// The only packet, with the whole message.
    Only(Reth, Option<u32>),
}

/// A packet of an RDMA READ response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadResponse {
    /// The first packet of several.
    First(Aeth),
    /// A packet that is neither the first nor the last. It has no AETH.
    Middle,
    /// The last packet of several.
    Last(Aeth),
    /// The only packet, with the whole response.
    Only(Aeth),
}

/// The RDMA extended transport header (RETH): a range of the responder's memory, and its remote key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// The virtual address.
    pub va: u64,
    /// The remote key.
    pub rkey: u32,
    /// The length of the whole message in bytes.
    pub length: u32,
}

impl Reth {
    /// Returns the address after the last byte, or `None` if the range exceeds the address space.
    ///
    /// ```
    /// use adverb_wire::Reth;
    ///
    /// assert_eq!(Reth { va: 4096, rkey: 1, length: 64 }.end(), Some(4160));
    /// assert_eq!(Reth { va: u64::MAX - 7, rkey: 1, length: 64 }.end(), None);
    /// ```
    pub const fn end(&self) -> Option<u64> {
        self.va.checked_add(self.length as u64)
    }

    const fn from_bytes(bytes: &[u8; RETH_LEN]) -> Reth {
        let &[a, b, c, d, e, f, g, h, k0, k1, k2, k3, l0, l1, l2, l3] = bytes;
        Reth {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    #[inline]
    fn emit(&self, out: &mut Writer<'_>) {
        out.put(self.va.to_be_bytes());
        out.put(self.rkey.to_be_bytes());
        out.put(self.length.to_be_bytes());
    }
}

/// An atomic compare-and-swap on an aligned 64-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompareSwap {
    /// The virtual address.
    pub va: u64,
    /// The remote key.
    pub rkey: u32,
    /// The value to write.
    pub swap: u64,
    /// The expected value. The write happens only if the word has this value.
    pub compare: u64,
}

/// An atomic fetch-and-add on an aligned 64-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchAdd {
    /// The virtual address.
    pub va: u64,
    /// The remote key.
    pub rkey: u32,
    /// The value to add. The sum wraps.
    pub add: u64,
}

/// A FLUSH: a memory range and its placement type (Annex A19.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// Whether the bytes must be globally visible at the responder.
    pub global: bool,
    /// Whether the bytes must be persistent, so that they survive a loss of power.
    pub persistent: bool,
    /// Whether the FLUSH applies to the whole memory region of the key instead of the range.
    pub whole_region: bool,
    /// The memory range to flush.
    pub range: Reth,
}

impl Flush {
    const GLOBAL: u8 = 0x01;
    const PERSISTENT: u8 = 0x02;
    const WHOLE_REGION: u8 = 0x10;
}

impl Operation {
    /// Returns the opcode of this operation.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        match self {
            Operation::Rc(rc) => match rc {
                Rc::Send(Send::First) => Opcode::RcSendFirst,
                Rc::Send(Send::Middle) => Opcode::RcSendMiddle,
                Rc::Send(Send::Last(None)) => Opcode::RcSendLast,
                Rc::Send(Send::Last(Some(_))) => Opcode::RcSendLastWithImm,
                Rc::Send(Send::Only(None)) => Opcode::RcSendOnly,
                Rc::Send(Send::Only(Some(_))) => Opcode::RcSendOnlyWithImm,
                Rc::SendLastInvalidate(_) => Opcode::RcSendLastInvalidate,
                Rc::SendOnlyInvalidate(_) => Opcode::RcSendOnlyInvalidate,
                Rc::Write(Write::First(_)) => Opcode::RcWriteFirst,
                Rc::Write(Write::Middle) => Opcode::RcWriteMiddle,
                Rc::Write(Write::Last(None)) => Opcode::RcWriteLast,
                Rc::Write(Write::Last(Some(_))) => Opcode::RcWriteLastWithImm,
                Rc::Write(Write::Only(_, None)) => Opcode::RcWriteOnly,
                Rc::Write(Write::Only(_, Some(_))) => Opcode::RcWriteOnlyWithImm,
                Rc::ReadRequest(_) => Opcode::RcReadRequest,
                Rc::ReadResponse(ReadResponse::First(_)) => Opcode::RcReadResponseFirst,
                Rc::ReadResponse(ReadResponse::Middle) => Opcode::RcReadResponseMiddle,
                Rc::ReadResponse(ReadResponse::Last(_)) => Opcode::RcReadResponseLast,
                Rc::ReadResponse(ReadResponse::Only(_)) => Opcode::RcReadResponseOnly,
                Rc::Acknowledge(_) => Opcode::RcAcknowledge,
                Rc::AtomicAcknowledge(..) => Opcode::RcAtomicAcknowledge,
                Rc::CompareSwap(_) => Opcode::RcCompareSwap,
                Rc::FetchAdd(_) => Opcode::RcFetchAdd,
                Rc::Flush(_) => Opcode::RcFlush,
                Rc::AtomicWrite(_) => Opcode::RcAtomicWrite,
            },
            Operation::Uc(uc) => match uc {
                Uc::Send(Send::First) => Opcode::UcSendFirst,
                Uc::Send(Send::Middle) => Opcode::UcSendMiddle,
                Uc::Send(Send::Last(None)) => Opcode::UcSendLast,
                Uc::Send(Send::Last(Some(_))) => Opcode::UcSendLastWithImm,
                Uc::Send(Send::Only(None)) => Opcode::UcSendOnly,
                Uc::Send(Send::Only(Some(_))) => Opcode::UcSendOnlyWithImm,
                Uc::Write(Write::First(_)) => Opcode::UcWriteFirst,
                Uc::Write(Write::Middle) => Opcode::UcWriteMiddle,
                Uc::Write(Write::Last(None)) => Opcode::UcWriteLast,
                Uc::Write(Write::Last(Some(_))) => Opcode::UcWriteLastWithImm,
                Uc::Write(Write::Only(_, None)) => Opcode::UcWriteOnly,
                Uc::Write(Write::Only(_, Some(_))) => Opcode::UcWriteOnlyWithImm,
            },
            Operation::Ud(Ud { immediate: None, .. }) => Opcode::UdSendOnly,
            Operation::Ud(Ud { immediate: Some(_), .. }) => Opcode::UdSendOnlyWithImm,
            Operation::Cnp => Opcode::Cnp,
        }
    }

    /// Parses the extended headers of `opcode`, and returns them with the remaining bytes. Returns `None` if `bytes` is
    /// too short.
    #[inline]
    pub(crate) fn parse(opcode: Opcode, bytes: &[u8]) -> Option<(Operation, &[u8])> {
        use Operation as Op;
        let mut reader = Reader(bytes);
        let operation = match opcode {
            Opcode::RcSendFirst => Op::Rc(Rc::Send(Send::First)),
            Opcode::RcSendMiddle => Op::Rc(Rc::Send(Send::Middle)),
            Opcode::RcSendLast => Op::Rc(Rc::Send(Send::Last(None))),
            Opcode::RcSendLastWithImm => Op::Rc(Rc::Send(Send::Last(Some(reader.u32()?)))),
            Opcode::RcSendOnly => Op::Rc(Rc::Send(Send::Only(None))),
            Opcode::RcSendOnlyWithImm => Op::Rc(Rc::Send(Send::Only(Some(reader.u32()?)))),
            Opcode::RcWriteFirst => Op::Rc(Rc::Write(Write::First(reader.reth()?))),
            Opcode::RcWriteMiddle => Op::Rc(Rc::Write(Write::Middle)),
            Opcode::RcWriteLast => Op::Rc(Rc::Write(Write::Last(None))),
            Opcode::RcWriteLastWithImm => Op::Rc(Rc::Write(Write::Last(Some(reader.u32()?)))),
            Opcode::RcWriteOnly => Op::Rc(Rc::Write(Write::Only(reader.reth()?, None))),
            Opcode::RcWriteOnlyWithImm => Op::Rc(Rc::Write(Write::Only(reader.reth()?, Some(reader.u32()?)))),
            Opcode::RcReadRequest => Op::Rc(Rc::ReadRequest(reader.reth()?)),
            Opcode::RcReadResponseFirst => Op::Rc(Rc::ReadResponse(ReadResponse::First(reader.aeth()?))),
            Opcode::RcReadResponseMiddle => Op::Rc(Rc::ReadResponse(ReadResponse::Middle)),
            Opcode::RcReadResponseLast => Op::Rc(Rc::ReadResponse(ReadResponse::Last(reader.aeth()?))),
            Opcode::RcReadResponseOnly => Op::Rc(Rc::ReadResponse(ReadResponse::Only(reader.aeth()?))),
            Opcode::RcAcknowledge => Op::Rc(Rc::Acknowledge(reader.aeth()?)),
            Opcode::RcAtomicAcknowledge => Op::Rc(Rc::AtomicAcknowledge(reader.aeth()?, reader.u64()?)),
            Opcode::RcCompareSwap => Op::Rc(Rc::CompareSwap(reader.compare_swap()?)),
            Opcode::RcFetchAdd => {
                // The compare field exists, but is reserved (vol. 1, 9.3.5).
                let CompareSwap { va, rkey, swap: add, compare: _ } = reader.compare_swap()?;
                Op::Rc(Rc::FetchAdd(FetchAdd { va, rkey, add }))
            }
            Opcode::RcSendLastInvalidate => Op::Rc(Rc::SendLastInvalidate(reader.u32()?)),
            Opcode::RcSendOnlyInvalidate => Op::Rc(Rc::SendOnlyInvalidate(reader.u32()?)),
            Opcode::RcFlush => Op::Rc(Rc::Flush(reader.flush()?)),
            Opcode::RcAtomicWrite => Op::Rc(Rc::AtomicWrite(reader.reth()?)),
            Opcode::UcSendFirst => Op::Uc(Uc::Send(Send::First)),
            Opcode::UcSendMiddle => Op::Uc(Uc::Send(Send::Middle)),
            Opcode::UcSendLast => Op::Uc(Uc::Send(Send::Last(None))),
            Opcode::UcSendLastWithImm => Op::Uc(Uc::Send(Send::Last(Some(reader.u32()?)))),
            Opcode::UcSendOnly => Op::Uc(Uc::Send(Send::Only(None))),
            Opcode::UcSendOnlyWithImm => Op::Uc(Uc::Send(Send::Only(Some(reader.u32()?)))),
            Opcode::UcWriteFirst => Op::Uc(Uc::Write(Write::First(reader.reth()?))),
            Opcode::UcWriteMiddle => Op::Uc(Uc::Write(Write::Middle)),
            Opcode::UcWriteLast => Op::Uc(Uc::Write(Write::Last(None))),
            Opcode::UcWriteLastWithImm => Op::Uc(Uc::Write(Write::Last(Some(reader.u32()?)))),
            Opcode::UcWriteOnly => Op::Uc(Uc::Write(Write::Only(reader.reth()?, None))),
            Opcode::UcWriteOnlyWithImm => Op::Uc(Uc::Write(Write::Only(reader.reth()?, Some(reader.u32()?)))),
            Opcode::UdSendOnly => Op::Ud(reader.deth()?),
            Opcode::UdSendOnlyWithImm => {
                let deth = reader.deth()?;
                Op::Ud(Ud { immediate: Some(reader.u32()?), ..deth })
            }
            Opcode::Cnp => {
                reader.take::<CNP_RESERVED_LEN>()?;
                Op::Cnp
            }
        };
        Some((operation, reader.0))
    }

    /// Writes the extended headers.
    #[inline]
    pub(crate) fn emit(&self, out: &mut [u8; ATOMIC_ETH_LEN]) {
        let mut out = Writer(out);
        match self {
            Operation::Rc(rc) => match rc {
                Rc::Send(send) => send.emit(&mut out),
                Rc::SendLastInvalidate(rkey) | Rc::SendOnlyInvalidate(rkey) => out.put(rkey.to_be_bytes()),
                Rc::Write(write) => write.emit(&mut out),
                Rc::ReadRequest(reth) | Rc::AtomicWrite(reth) => reth.emit(&mut out),
                Rc::ReadResponse(ReadResponse::Middle) => {}
                Rc::ReadResponse(
                    ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth),
                )
                | Rc::Acknowledge(aeth) => out.put(aeth.to_bytes()),
                Rc::AtomicAcknowledge(aeth, original) => {
                    out.put(aeth.to_bytes());
                    out.put(original.to_be_bytes());
                }
                Rc::CompareSwap(CompareSwap { va, rkey, swap, compare }) => {
                    out.put(va.to_be_bytes());
                    out.put(rkey.to_be_bytes());
                    out.put(swap.to_be_bytes());
                    out.put(compare.to_be_bytes());
                }
                Rc::FetchAdd(FetchAdd { va, rkey, add }) => {
                    out.put(va.to_be_bytes());
                    out.put(rkey.to_be_bytes());
                    out.put(add.to_be_bytes());
                    out.put([0; 8]);
                }
                Rc::Flush(flush) => {
                    let flags = if flush.global { Flush::GLOBAL } else { 0 }
                        | if flush.persistent { Flush::PERSISTENT } else { 0 }
                        | if flush.whole_region { Flush::WHOLE_REGION } else { 0 };
                    out.put([0, 0, 0, flags]);
                    flush.range.emit(&mut out);
                }
            },
            Operation::Uc(Uc::Send(send)) => send.emit(&mut out),
            Operation::Uc(Uc::Write(write)) => write.emit(&mut out),
            Operation::Ud(Ud { qkey, source_qp, immediate }) => {
                let [a, b, c] = source_qp.to_be_bytes();
                out.put(qkey.to_be_bytes());
                out.put([0, a, b, c]);
                out.put_immediate(*immediate);
            }
            Operation::Cnp => out.put([0; CNP_RESERVED_LEN]),
        }
    }
}

impl Send {
    #[inline]
    fn emit(&self, out: &mut Writer<'_>) {
        match self {
            Send::First | Send::Middle => {}
            Send::Last(immediate) | Send::Only(immediate) => out.put_immediate(*immediate),
        }
    }
}

impl Write {
    #[inline]
    fn emit(&self, out: &mut Writer<'_>) {
        match self {
            Write::First(reth) => reth.emit(out),
            Write::Middle => {}
            Write::Last(immediate) => out.put_immediate(*immediate),
            Write::Only(reth, immediate) => {
                reth.emit(out);
                out.put_immediate(*immediate);
            }
        }
    }
}

/// A reader of the extended headers. Every method returns `None` if too few bytes are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(head)
    }

    #[inline]
    fn u32(&mut self) -> Option<u32> {
        self.take::<IMMEDIATE_LEN>().map(|bytes| u32::from_be_bytes(*bytes))
    }

    #[inline]
    fn u64(&mut self) -> Option<u64> {
        self.take::<ATOMIC_ACK_ETH_LEN>().map(|bytes| u64::from_be_bytes(*bytes))
    }

    #[inline]
    fn reth(&mut self) -> Option<Reth> {
        self.take().map(Reth::from_bytes)
    }

    #[inline]
    fn aeth(&mut self) -> Option<Aeth> {
        self.take::<AETH_LEN>().map(|bytes| Aeth::from_bytes(*bytes))
    }

    #[inline]
    fn deth(&mut self) -> Option<Ud> {
        let &[k0, k1, k2, k3, _, a, b, c] = self.take::<DETH_LEN>()?;
        Some(Ud {
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            source_qp: Qpn::from_be_bytes([a, b, c]),
            immediate: None,
        })
    }

    #[inline]
    fn compare_swap(&mut self) -> Option<CompareSwap> {
        if self.0.len() < ATOMIC_ETH_LEN {
            return None;
        }
        Some(CompareSwap { va: self.u64()?, rkey: self.u32()?, swap: self.u64()?, compare: self.u64()? })
    }

    #[inline]
    fn flush(&mut self) -> Option<Flush> {
        let &[_, _, _, flags] = self.take::<FETH_LEN>()?;
        Some(Flush {
            global: flags & Flush::GLOBAL != 0,
            persistent: flags & Flush::PERSISTENT != 0,
            whole_region: flags & Flush::WHOLE_REGION != 0,
            range: self.reth()?,
        })
    }
}

/// A writer of headers into the space after the base transport header.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    /// Appends `bytes`. The space has the maximum length of the extended headers, so they always fit.
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        let space = core::mem::take(&mut self.0);
        if let Some((head, rest)) = space.split_first_chunk_mut::<N>() {
            *head = bytes;
            self.0 = rest;
        } else {
            debug_assert!(false, "a header chain exceeds the maximum length");
        }
    }

    fn put_immediate(&mut self, immediate: Option<u32>) {
        if let Some(immediate) = immediate {
            self.put(immediate.to_be_bytes());
        }
    }
}
