//! Packets as one line of text, in the style of tcpdump.

use core::fmt;

use crate::cm::Mad;
use crate::{Aeth, CompareSwap, FetchAdd, Flush, Header, Operation, Packet, Qpn, Rc, ReadResponse, Reth};
use crate::{Send, Uc, Ud, Write};

/// Prints the base transport header, such as `RC SEND only, qp 0x000012, psn 7, ackreq`, then the extended headers.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, qp {}, psn {}", self.opcode(), self.dest_qp, self.psn)?;
        let flags = [
            (self.ack_request, ", ackreq"),
            (self.solicited, ", solicited"),
            (self.fecn, ", fecn"),
            (self.becn, ", becn"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            f.write_str(name)?;
        }
        if self.pkey != crate::DEFAULT_PKEY {
            write!(f, ", pkey {:#06x}", self.pkey)?;
        }
        Details(&self.operation).fmt(f)
    }
}

/// Prints the headers, then the CM message in the payload, or the payload's length.
impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header().fmt(f)?;
        let to_gsi = self.header().dest_qp == Qpn::GSI && matches!(self.operation(), Operation::Ud(_));
        if let (true, Ok(mad)) = (to_gsi, Mad::parse(self.payload())) {
            return write!(f, ", {}", mad.message);
        }
        match self.payload().len() {
            0 => Ok(()),
            1 => f.write_str(", 1 byte"),
            len => write!(f, ", {len} bytes"),
        }
    }
}

/// The extended headers of an operation.
struct Details<'a>(&'a Operation);

impl fmt::Display for Details<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Operation::Rc(rc) => match rc {
                Rc::Send(send) => print_send(f, send),
                Rc::SendLastInvalidate(rkey) | Rc::SendOnlyInvalidate(rkey) => {
                    write!(f, ", invalidate rkey {rkey:#x}")
                }
                Rc::Write(write) => print_write(f, write),
                Rc::ReadRequest(reth) | Rc::AtomicWrite(reth) => print_reth(f, reth),
                Rc::ReadResponse(ReadResponse::Middle) => Ok(()),
                Rc::ReadResponse(
                    ReadResponse::First(aeth) | ReadResponse::Last(aeth) | ReadResponse::Only(aeth),
                )
                | Rc::Acknowledge(aeth) => print_aeth(f, aeth),
                Rc::AtomicAcknowledge(aeth, original) => {
                    print_aeth(f, aeth)?;
                    write!(f, ", original {original:#x}")
                }
                Rc::CompareSwap(CompareSwap { va, rkey, swap, compare }) => {
                    write!(f, ", va {va:#x} rkey {rkey:#x} compare {compare:#x} swap {swap:#x}")
                }
                Rc::FetchAdd(FetchAdd { va, rkey, add }) => {
                    write!(f, ", va {va:#x} rkey {rkey:#x} add {add:#x}")
                }
                Rc::Flush(Flush { global, persistent, whole_region, range }) => {
                    print_reth(f, range)?;
                    let flags = [
                        (*global, ", global"),
                        (*persistent, ", persistent"),
                        (*whole_region, ", whole region"),
                    ];
                    flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
                }
            },
            Operation::Uc(Uc::Send(send)) => print_send(f, send),
            Operation::Uc(Uc::Write(write)) => print_write(f, write),
            Operation::Ud(Ud { qkey, source_qp, immediate: imm }) => {
                write!(f, ", from qp {source_qp} qkey {qkey:#x}")?;
                print_immediate(f, *imm)
            }
            Operation::Cnp => Ok(()),
        }
    }
}

fn print_send(f: &mut fmt::Formatter<'_>, send: &Send) -> fmt::Result {
    match send {
        Send::First | Send::Middle => Ok(()),
        Send::Last(imm) | Send::Only(imm) => print_immediate(f, *imm),
    }
}

fn print_write(f: &mut fmt::Formatter<'_>, write: &Write) -> fmt::Result {
    match write {
        Write::First(reth) => print_reth(f, reth),
        Write::Middle => Ok(()),
        Write::Last(imm) => print_immediate(f, *imm),
        Write::Only(reth, imm) => {
            print_reth(f, reth)?;
            print_immediate(f, *imm)
        }
    }
}

fn print_reth(f: &mut fmt::Formatter<'_>, Reth { va, rkey, length }: &Reth) -> fmt::Result {
    write!(f, ", va {va:#x} rkey {rkey:#x} length {length}")
}

fn print_aeth(f: &mut fmt::Formatter<'_>, Aeth { syndrome, msn }: &Aeth) -> fmt::Result {
    write!(f, ", {syndrome}, msn {msn}")
}

fn print_immediate(f: &mut fmt::Formatter<'_>, immediate: Option<u32>) -> fmt::Result {
    match immediate {
        Some(immediate) => write!(f, ", imm {immediate:#x}"),
        None => Ok(()),
    }
}
