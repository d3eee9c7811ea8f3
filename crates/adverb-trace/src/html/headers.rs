//! Packet headers and operations as lists of fields.

use adverb_proto::types::{RemoteAddress, SendOperation};
use adverb_wire::{
    Aeth, CompareSwap, FetchAdd, Flush, Operation, Rc, ReadResponse, Reth, Send, Uc, Ud, Write,
};

/// A field: its name and its value.
pub(super) type Field = (&'static str, String);

/// An extended header: its name and its fields.
pub(super) type ExtendedHeader = (&'static str, Vec<Field>);

/// Returns the extended headers of an operation, in their order on the wire.
pub(super) fn extended(operation: &Operation) -> Vec<ExtendedHeader> {
    match operation {
        Operation::Rc(rc) => match rc {
            Rc::Send(send) => immediate(send_immediate(send)),
            Rc::SendLastInvalidate(rkey) | Rc::SendOnlyInvalidate(rkey) => {
                vec![("IETH", vec![("rkey", hex(*rkey))])]
            }
            Rc::Write(write) => write_headers(write),
            Rc::ReadRequest(range) | Rc::AtomicWrite(range) => vec![reth(range)],
            Rc::ReadResponse(ReadResponse::Middle) => Vec::new(),
            Rc::ReadResponse(
                ReadResponse::First(ack) | ReadResponse::Last(ack) | ReadResponse::Only(ack),
            )
            | Rc::Acknowledge(ack) => vec![aeth(ack)],
            Rc::AtomicAcknowledge(ack, original) => {
                vec![aeth(ack), ("AtomicAckETH", vec![("original value", hex(*original))])]
            }
            Rc::CompareSwap(CompareSwap { va, rkey, swap, compare }) => vec![(
                "AtomicETH",
                vec![
                    ("virtual address", hex(*va)),
                    ("rkey", hex(*rkey)),
                    ("swap value", hex(*swap)),
                    ("compare value", hex(*compare)),
                ],
            )],
            Rc::FetchAdd(FetchAdd { va, rkey, add }) => vec![(
                "AtomicETH",
                vec![("virtual address", hex(*va)), ("rkey", hex(*rkey)), ("add value", hex(*add))],
            )],
            Rc::Flush(Flush { global, persistent, whole_region, range }) => {
                let placement = [
                    (*global, "global visibility"),
                    (*persistent, "persistence"),
                    (*whole_region, "whole region"),
                ];
                vec![("FETH", vec![("placement", flag_names(&placement))]), reth(range)]
            }
        },
        Operation::Uc(Uc::Send(send)) => immediate(send_immediate(send)),
        Operation::Uc(Uc::Write(write)) => write_headers(write),
        Operation::Ud(Ud { qkey, source_qp, immediate: data }) => {
            let mut headers =
                vec![("DETH", vec![("queue key", hex(*qkey)), ("source QP", source_qp.to_string())])];
            headers.extend(immediate(*data));
            headers
        }
        Operation::Cnp => Vec::new(),
    }
}

/// Returns the parameters of a posted send operation.
pub(super) fn posted_fields(operation: &SendOperation) -> Vec<Field> {
    match operation {
        SendOperation::Send => Vec::new(),
        SendOperation::SendWithImm(data) => vec![("immediate data", hex(*data))],
        SendOperation::SendInvalidate(rkey) => vec![("invalidates rkey", hex(*rkey))],
        SendOperation::Write(to) | SendOperation::Read(to) => remote(to),
        SendOperation::WriteWithImm(to, data) => join_fields(remote(to), [("immediate data", hex(*data))]),
        SendOperation::CompareSwap { remote: word, compare, swap } => {
            join_fields(remote(word), [("compare value", hex(*compare)), ("swap value", hex(*swap))])
        }
        SendOperation::FetchAdd { remote: word, add } => {
            join_fields(remote(word), [("add value", hex(*add))])
        }
        SendOperation::AtomicWrite { remote: word, bytes } => {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            join_fields(remote(word), [("bytes", bytes.join(" "))])
        }
        SendOperation::Flush(flush) => {
            let placement = [
                (flush.global, "global visibility"),
                (flush.persistent, "persistence"),
                (flush.whole_region, "whole region"),
            ];
            let length = format!("{} bytes", flush.length);
            join_fields(remote(&flush.remote), [("range", length), ("placement", flag_names(&placement))])
        }
        SendOperation::LocalInvalidate(rkey) => vec![("invalidates rkey", hex(*rkey))],
        SendOperation::BindWindow(bind) => vec![
            ("window rkey", hex(bind.rkey)),
            ("region lkey", hex(bind.lkey)),
            ("address", hex(bind.addr)),
            ("range", format!("{} bytes", bind.length)),
            ("access", format!("{:?}", bind.access)),
        ],
    }
}

/// Returns the names of the flags that are set, separated by commas.
pub(super) fn flag_names(flags: &[(bool, &str)]) -> String {
    let set: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}

fn remote(RemoteAddress { addr, rkey }: &RemoteAddress) -> Vec<Field> {
    vec![("remote address", hex(*addr)), ("rkey", hex(*rkey))]
}

fn join_fields<const N: usize>(mut fields: Vec<Field>, more: [Field; N]) -> Vec<Field> {
    fields.extend(more);
    fields
}

fn write_headers(write: &Write) -> Vec<ExtendedHeader> {
    match write {
        Write::First(range) => vec![reth(range)],
        Write::Middle => Vec::new(),
        Write::Last(data) => immediate(*data),
        Write::Only(range, data) => {
            let mut headers = vec![reth(range)];
            headers.extend(immediate(*data));
            headers
        }
    }
}

fn send_immediate(send: &Send) -> Option<u32> {
    match send {
        Send::First | Send::Middle => None,
        Send::Last(data) | Send::Only(data) => *data,
    }
}

fn immediate(data: Option<u32>) -> Vec<ExtendedHeader> {
    data.map(|data| ("ImmDt", vec![("immediate data", hex(data))])).into_iter().collect()
}

fn reth(Reth { va, rkey, length }: &Reth) -> ExtendedHeader {
    let fields =
        vec![("virtual address", hex(*va)), ("rkey", hex(*rkey)), ("DMA length", format!("{length} bytes"))];
    ("RETH", fields)
}

fn aeth(Aeth { syndrome, msn }: &Aeth) -> ExtendedHeader {
    let syndrome = format!("{:#04x} ({syndrome})", syndrome.byte());
    ("AETH", vec![("syndrome", syndrome), ("MSN", msn.to_string())])
}

fn hex(value: impl Into<u64>) -> String {
    format!("{:#x}", value.into())
}
