//! Test packets of every opcode.

use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Header, IpHeader, NakCode, Opcode, Operation, Rc, ReadResponse, Reth,
    RnrTimer, Send, Syndrome, Uc, Ud, Write,
};
use anyhow::{Context, Result, bail, ensure};

use super::case::{Case, Contents, FORGED_WORD, padding};
use super::outer::{Family, Outer};
use super::values::Values;
use super::vectors::Vectors;

/// Returns all packets.
pub(super) fn cases(vectors: &Vectors) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for opcode in Opcode::ALL {
        if UNDISSECTED.contains(opcode) {
            undissected(*opcode, vectors, &mut cases)?;
        } else {
            dissected(*opcode, &mut cases)?;
        }
    }
    syndromes(&mut cases)?;
    other_flags(&mut cases)?;
    Ok(cases)
}

/// The opcodes for which tshark shows raw bytes after the base transport header. Their packets have the vectors'
/// values.
const UNDISSECTED: &[Opcode] = &[Opcode::RcFlush, Opcode::RcAtomicWrite, Opcode::Cnp];

/// Returns whether packets of this opcode carry a payload (vol. 1, table 38; Annex A17.9.3; Annex A19).
fn carries_payload(opcode: Opcode) -> bool {
    !matches!(
        opcode,
        Opcode::RcReadRequest
            | Opcode::RcAcknowledge
            | Opcode::RcAtomicAcknowledge
            | Opcode::RcCompareSwap
            | Opcode::RcFetchAdd
            | Opcode::RcFlush
            | Opcode::Cnp
    )
}

/// The sources of field values, and the length of payload plus padding.
const SETS: &[(Values, usize)] = &[
    (Values::Mixed(1), 8),
    (Values::Mixed(2), 4),
    (Values::Mixed(3), 256),
    (Values::Ones, 64),
    (Values::Zeros, 12),
];

/// Adds packets of an opcode that tshark knows: over IPv4 and IPv6, with every pad count and each source of values.
fn dissected(opcode: Opcode, cases: &mut Vec<Case>) -> Result<()> {
    for family in Family::ALL {
        for pad in 0..4u8 {
            for (values, payload_len) in SETS {
                let details = format!("{}, pad {pad}, {}", family.name(), values.name());
                let mut values = values.fork(cases.len() as u64);
                let outer = Outer::new(family, &mut values);
                let header = header(&mut values, opcode)?;
                let case = if carries_payload(opcode) {
                    // One of the packets has an empty payload.
                    let len = if pad == 0 && *payload_len == 4 { 0 } else { payload_len - usize::from(pad) };
                    let payload = values.bytes(len);
                    emitted(Contents { outer, header, payload, mad: None })?
                } else {
                    without_payload(Contents { outer, header, payload: Vec::new(), mad: None }, pad)?
                };
                cases.push(case.details(details));
            }
        }
    }
    Ok(())
}

/// Returns a packet that adverb-wire emits. tshark shows payload and padding together.
fn emitted(contents: Contents) -> Result<Case> {
    let pad = padding(contents.payload.len());
    let mut data = contents.payload.clone();
    data.resize(data.len() + usize::from(pad), 0);
    let mut case = Case::emitted(contents.header.opcode().name(), contents)?;
    expect_data(&mut case, data);
    case.expected.number("infiniband.invariant.crc", case.icrc());
    Ok(case)
}

/// Returns a packet without a payload, or a forged packet if there is a pad count.
fn without_payload(contents: Contents, pad: u8) -> Result<Case> {
    let opcode = contents.header.opcode();
    if pad == 0 {
        return emitted(contents);
    }
    let mut case = Case::forged(opcode.name(), contents, pad)?;
    // tshark shows the forged payload only for this opcode; for the others, it doesn't show the ICRC either.
    if opcode == Opcode::RcReadRequest {
        expect_data(&mut case, FORGED_WORD.to_vec());
        case.expected.number("infiniband.invariant.crc", case.icrc());
    }
    Ok(case)
}

/// Adds packets of an opcode that tshark doesn't know, with the vectors' values: over IPv4 and IPv6, with every pad
/// count.
fn undissected(opcode: Opcode, vectors: &Vectors, cases: &mut Vec<Case>) -> Result<()> {
    let vectors: Vec<_> = vectors.packets().filter(|vector| vector.header.opcode() == opcode).collect();
    ensure!(!vectors.is_empty(), "vectors.txt has no packet of {opcode}");
    for vector in vectors {
        for family in Family::ALL {
            for pad in 0..4u8 {
                let outer = Outer::new(family, &mut Values::Mixed(cases.len() as u64));
                let payload = vector.payload.clone();
                let contents = Contents { outer, header: vector.header, payload, mad: None };
                let mut after_base = vector.bytes[12..].to_vec();
                let mut case = if pad == 0 {
                    Case::emitted(opcode.name(), contents)?
                } else {
                    if !carries_payload(opcode) {
                        after_base.extend(FORGED_WORD);
                    }
                    Case::forged(opcode.name(), contents, pad)?
                };
                after_base.extend(case.icrc().to_be_bytes());
                // tshark shows the first four bytes as a header, and then all bytes as its content.
                case.expected.undissected("infiniband.vendor", &after_base[..4]);
                case.expected.undissected("infiniband.vendor", after_base);
                cases.push(case.details(format!("{}, pad {pad}, {}", family.name(), vector.name)));
            }
        }
    }
    Ok(())
}

/// Adds acknowledgements with every syndrome.
fn syndromes(cases: &mut Vec<Case>) -> Result<()> {
    for byte in 0..=u8::MAX {
        let syndrome = Syndrome::from_byte(byte);
        ensure!(syndrome.byte() == byte, "syndrome {byte:#04x} became {:#04x}", syndrome.byte());
        let mut values = Values::Mixed(4).fork(cases.len() as u64);
        let outer = Outer::new(Family::V4, &mut values);
        let operation = Operation::Rc(Rc::Acknowledge(Aeth { syndrome, msn: values.u32() >> 8 }));
        let header = Header { operation, ..header(&mut values, Opcode::RcAcknowledge)? };
        let case = emitted(Contents { outer, header, payload: Vec::new(), mad: None })?;
        cases.push(case.details(format!("IPv4, syndrome {byte:#04x}")));
    }
    Ok(())
}

/// Adds packets with IPv4 flags that RoCE senders don't set, but that the ICRC covers.
fn other_flags(cases: &mut Vec<Case>) -> Result<()> {
    for flags in [0x0000, 0x8000, 0xc000] {
        let mut values = Values::Mixed(5).fork(cases.len() as u64);
        let mut outer = Outer::new(Family::V4, &mut values);
        if let IpHeader::V4(ip) = &mut outer.ip {
            ip.flags_and_offset = flags;
        }
        let header = header(&mut values, Opcode::RcSendOnly)?;
        let case = emitted(Contents { outer, header, payload: values.bytes(7), mad: None })?;
        cases.push(case.details(format!("IPv4, flags {flags:#06x}")));
    }
    Ok(())
}

/// Adds the payload's fields. tshark shows none for an empty payload.
fn expect_data(case: &mut Case, data: Vec<u8>) {
    if !data.is_empty() {
        case.expected.number("data.len", data.len() as u64);
        case.expected.bytes("data.data", data);
    }
}

/// Returns a header with these values.
fn header(values: &mut Values, opcode: Opcode) -> Result<Header> {
    let header = Header {
        dest_qp: values.qpn(),
        psn: values.psn(),
        solicited: values.bool(),
        migrated: values.bool(),
        pkey: values.u16(),
        fecn: values.bool(),
        becn: values.bool(),
        ack_request: values.bool(),
        operation: operation(values, opcode)?,
    };
    ensure!(header.opcode() == opcode, "requested {opcode}, created {}", header.opcode());
    Ok(header)
}

/// Returns an operation with these values.
fn operation(values: &mut Values, opcode: Opcode) -> Result<Operation> {
    Ok(match opcode {
        Opcode::RcSendFirst => Operation::Rc(Rc::Send(Send::First)),
        Opcode::RcSendMiddle => Operation::Rc(Rc::Send(Send::Middle)),
        Opcode::RcSendLast => Operation::Rc(Rc::Send(Send::Last(None))),
        Opcode::RcSendLastWithImm => Operation::Rc(Rc::Send(Send::Last(Some(values.u32())))),
        Opcode::RcSendOnly => Operation::Rc(Rc::Send(Send::Only(None))),
        Opcode::RcSendOnlyWithImm => Operation::Rc(Rc::Send(Send::Only(Some(values.u32())))),
        Opcode::RcWriteFirst => Operation::Rc(Rc::Write(Write::First(reth(values)))),
        Opcode::RcWriteMiddle => Operation::Rc(Rc::Write(Write::Middle)),
        Opcode::RcWriteLast => Operation::Rc(Rc::Write(Write::Last(None))),
        Opcode::RcWriteLastWithImm => Operation::Rc(Rc::Write(Write::Last(Some(values.u32())))),
        Opcode::RcWriteOnly => Operation::Rc(Rc::Write(Write::Only(reth(values), None))),
        Opcode::RcWriteOnlyWithImm => Operation::Rc(Rc::Write(Write::Only(reth(values), Some(values.u32())))),
        Opcode::RcReadRequest => Operation::Rc(Rc::ReadRequest(reth(values))),
        Opcode::RcReadResponseFirst => Operation::Rc(Rc::ReadResponse(ReadResponse::First(aeth(values)?))),
        Opcode::RcReadResponseMiddle => Operation::Rc(Rc::ReadResponse(ReadResponse::Middle)),
        Opcode::RcReadResponseLast => Operation::Rc(Rc::ReadResponse(ReadResponse::Last(aeth(values)?))),
        Opcode::RcReadResponseOnly => Operation::Rc(Rc::ReadResponse(ReadResponse::Only(aeth(values)?))),
        Opcode::RcAcknowledge => Operation::Rc(Rc::Acknowledge(aeth(values)?)),
        Opcode::RcAtomicAcknowledge => Operation::Rc(Rc::AtomicAcknowledge(aeth(values)?, values.u64())),
        Opcode::RcCompareSwap => Operation::Rc(Rc::CompareSwap(CompareSwap {
            va: values.u64(),
            rkey: values.u32(),
            swap: values.u64(),
            compare: values.u64(),
        })),
        Opcode::RcFetchAdd => {
            Operation::Rc(Rc::FetchAdd(FetchAdd { va: values.u64(), rkey: values.u32(), add: values.u64() }))
        }
        Opcode::RcSendLastInvalidate => Operation::Rc(Rc::SendLastInvalidate(values.u32())),
        Opcode::RcSendOnlyInvalidate => Operation::Rc(Rc::SendOnlyInvalidate(values.u32())),
        Opcode::UcSendFirst => Operation::Uc(Uc::Send(Send::First)),
        Opcode::UcSendMiddle => Operation::Uc(Uc::Send(Send::Middle)),
        Opcode::UcSendLast => Operation::Uc(Uc::Send(Send::Last(None))),
        Opcode::UcSendLastWithImm => Operation::Uc(Uc::Send(Send::Last(Some(values.u32())))),
        Opcode::UcSendOnly => Operation::Uc(Uc::Send(Send::Only(None))),
        Opcode::UcSendOnlyWithImm => Operation::Uc(Uc::Send(Send::Only(Some(values.u32())))),
        Opcode::UcWriteFirst => Operation::Uc(Uc::Write(Write::First(reth(values)))),
        Opcode::UcWriteMiddle => Operation::Uc(Uc::Write(Write::Middle)),
        Opcode::UcWriteLast => Operation::Uc(Uc::Write(Write::Last(None))),
        Opcode::UcWriteLastWithImm => Operation::Uc(Uc::Write(Write::Last(Some(values.u32())))),
        Opcode::UcWriteOnly => Operation::Uc(Uc::Write(Write::Only(reth(values), None))),
        Opcode::UcWriteOnlyWithImm => Operation::Uc(Uc::Write(Write::Only(reth(values), Some(values.u32())))),
        Opcode::UdSendOnly => Operation::Ud(ud(values, false)),
        Opcode::UdSendOnlyWithImm => Operation::Ud(ud(values, true)),
        other => bail!("there is no test packet of {other}: add one"),
    })
}

fn reth(values: &mut Values) -> Reth {
    Reth { va: values.u64(), rkey: values.u32(), length: values.u32() }
}

fn ud(values: &mut Values, immediate: bool) -> Ud {
    let (qkey, source_qp) = (values.u32(), values.qpn());
    Ud { qkey, source_qp, immediate: immediate.then(|| values.u32()) }
}

/// Returns an acknowledgement. All ones give an RNR NAK with the timer code 31; all zeros give an ACK without
/// credits.
fn aeth(values: &mut Values) -> Result<Aeth> {
    let (kind, value) = (values.u8(), values.u8() & 31);
    let syndrome = match kind {
        // Credits can only be created from their byte.
        0..0x60 => Syndrome::from_byte(value),
        0x60..0xa0 => Syndrome::Nak(match value {
            0..8 => NakCode::SequenceError,
            8..16 => NakCode::InvalidRequest,
            16..24 => NakCode::RemoteAccess,
            _ => NakCode::RemoteOperational,
        }),
        _ => Syndrome::RnrNak(RnrTimer::new(value).context("an RNR timer has five bits")?),
    };
    Ok(Aeth { syndrome, msn: values.u32() >> 8 })
}
