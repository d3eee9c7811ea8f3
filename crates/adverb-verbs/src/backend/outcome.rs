//! What became of requests, as engines tell it.

use adverb_proto::types::{CompletedOperation, Failure, Qpn, Status, Success, TimestampSource};

/// A completion as the device gave it, in rdma-core's own form, so that it is copied no more often than it must.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawCompletion {
    pub(crate) wr_id: u64,
    pub(crate) outcome: RawOutcome,
    /// What only management datagrams have.
    _rest: u64,
}

impl RawCompletion {
    /// Room for one.
    pub(crate) const EMPTY: RawCompletion = RawCompletion::new(0, RawOutcome::implied(0));

    pub(crate) const fn new(wr_id: u64, outcome: RawOutcome) -> RawCompletion {
        RawCompletion { wr_id, outcome, _rest: 0 }
    }

    /// A completion that is in plain form.
    #[cfg(feature = "soft")]
    pub(crate) fn of(completion: &adverb_proto::types::Completion) -> RawCompletion {
        let mut outcome = RawOutcome::of(completion.outcome);
        outcome.qpn = completion.qpn.get();
        RawCompletion::new(completion.wr_id, outcome)
    }
}

/// How a request ended, in rdma-core's numbers and order: copied often, and looked at when somebody asks. What is valid
/// depends on `status` and `opcode`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawOutcome {
    /// The code of a [`Status`].
    pub(crate) status: u32,
    /// One of the [`opcode`]s.
    pub(crate) opcode: u32,
    pub(crate) vendor_error: u32,
    pub(crate) length: u32,
    /// Immediate data, in network byte order, or the key that was invalidated.
    pub(crate) immediate: u32,
    pub(crate) qpn: u32,
    /// Who sent a datagram.
    pub(crate) source: u32,
    /// Some of the [`flag`]s.
    pub(crate) flags: u32,
}

/// What was done.
pub(crate) mod opcode {
    pub(crate) const SEND: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const READ: u32 = 2;
    pub(crate) const COMPARE_SWAP: u32 = 3;
    pub(crate) const FETCH_ADD: u32 = 4;
    pub(crate) const BIND_WINDOW: u32 = 5;
    pub(crate) const LOCAL_INVALIDATE: u32 = 6;
    pub(crate) const FLUSH: u32 = 8;
    pub(crate) const ATOMIC_WRITE: u32 = 9;
    pub(crate) const RECV: u32 = 128;
    pub(crate) const RECV_WRITE: u32 = 129;
}

/// What a completion has.
pub(crate) mod flag {
    /// Any of what is worth a closer look: [`INVALIDATED`], or what some device has in its place.
    pub(crate) const SLOW_PATH: u32 = INVALIDATED | 1 << 2;
    pub(crate) const GRH: u32 = 1 << 0;
    pub(crate) const IMMEDIATE: u32 = 1 << 1;
    pub(crate) const INVALIDATED: u32 = 1 << 3;
    /// Our own: the request was of a shared receive queue for datagrams.
    pub(crate) const DATAGRAM: u32 = 1 << 31;
    /// Our own: it has the device's time, where else would be what nobody reads.
    pub(crate) const TIMESTAMP: u32 = 1 << 30;
    /// Our own: that time is the kernel's.
    pub(crate) const KERNEL_TIME: u32 = 1 << 29;
    /// Our own: that time is the process's.
    pub(crate) const PROCESS_TIME: u32 = 1 << 28;
}

impl RawOutcome {
    /// The outcome of a request that succeeded without a completion of its own.
    #[inline]
    pub(crate) const fn implied(opcode: u32) -> RawOutcome {
        RawOutcome {
            status: 0,
            opcode,
            vendor_error: 0,
            length: 0,
            immediate: 0,
            qpn: 0,
            source: 0,
            flags: 0,
        }
    }

    /// What an outcome says, in numbers: what [`explain`](RawOutcome::explain) explains.
    #[cfg(feature = "soft")]
    fn of(outcome: Result<Success, Failure>) -> RawOutcome {
        let success = match outcome {
            Ok(success) => success,
            Err(Failure { status, vendor_error }) => {
                return RawOutcome { status: status.code(), vendor_error, ..RawOutcome::implied(0) };
            }
        };
        let opcode = match success.operation {
            CompletedOperation::Write => opcode::WRITE,
            CompletedOperation::Read => opcode::READ,
            CompletedOperation::CompareSwap => opcode::COMPARE_SWAP,
            CompletedOperation::FetchAdd => opcode::FETCH_ADD,
            CompletedOperation::BindWindow => opcode::BIND_WINDOW,
            CompletedOperation::LocalInvalidate => opcode::LOCAL_INVALIDATE,
            CompletedOperation::Flush => opcode::FLUSH,
            CompletedOperation::AtomicWrite => opcode::ATOMIC_WRITE,
            CompletedOperation::Recv { .. } => opcode::RECV,
            CompletedOperation::RecvWrite { .. } => opcode::RECV_WRITE,
            // The adverb-verbs API has a request for each other operation.
            _ => opcode::SEND,
        };
        let mut raw = RawOutcome { length: success.length, ..RawOutcome::implied(opcode) };
        match success.operation {
            CompletedOperation::Recv { immediate, invalidated, source, has_grh } => {
                if let Some(immediate) = immediate {
                    (raw.immediate, raw.flags) = (immediate.to_be(), flag::IMMEDIATE);
                }
                if let Some(rkey) = invalidated {
                    (raw.immediate, raw.flags) = (rkey, flag::INVALIDATED);
                }
                raw.source = source.map_or(0, Qpn::get);
                raw.flags |= if has_grh { flag::GRH } else { 0 };
            }
            CompletedOperation::RecvWrite { immediate } => {
                (raw.immediate, raw.flags) = (immediate.to_be(), flag::IMMEDIATE);
            }
            _ => {}
        }
        raw
    }

    /// Puts the device's time into fields that mean nothing in such an outcome, so that those without don't carry more.
    pub(crate) fn store_timestamp(&mut self, timestamp: u64) {
        let [a, b, c, d, e, f, g, h] = timestamp.to_be_bytes();
        self.qpn = u32::from_be_bytes([a, b, c, d]);
        *self.spare_field() = u32::from_be_bytes([e, f, g, h]);
        self.flags |= flag::TIMESTAMP;
    }

    /// Does the same for a time that is not the device's own.
    #[cfg(feature = "soft")]
    pub(crate) fn store_timestamp_from(&mut self, timestamp: u64, source: TimestampSource) {
        self.store_timestamp(timestamp);
        self.flags |= match source {
            TimestampSource::Device => 0,
            TimestampSource::Kernel => flag::KERNEL_TIME,
            TimestampSource::Process => flag::PROCESS_TIME,
        };
    }

    /// The source of the time, if there is one.
    pub(crate) fn timestamp_source(&self) -> Option<TimestampSource> {
        let has = |flag: u32| self.flags & flag != 0;
        let source = if has(flag::KERNEL_TIME) {
            TimestampSource::Kernel
        } else if has(flag::PROCESS_TIME) {
            TimestampSource::Process
        } else {
            TimestampSource::Device
        };
        has(flag::TIMESTAMP).then_some(source)
    }

    /// The queue pair, if it is told.
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        (self.flags & flag::TIMESTAMP == 0 && self.qpn != 0).then(|| Qpn::truncate(self.qpn))
    }

    /// The device's time, if it was told.
    pub(crate) fn timestamp(mut self) -> Option<u64> {
        let (high, low) = (self.qpn, *self.spare_field());
        (self.flags & flag::TIMESTAMP != 0).then(|| u64::from(high) << 32 | u64::from(low))
    }

    /// A failure has no length, and a success no vendor's code.
    fn spare_field(&mut self) -> &mut u32 {
        if self.status == 0 { &mut self.vendor_error } else { &mut self.length }
    }

    /// Says it in full. Only datagrams have a source; it may be one even if the caller doesn't know.
    pub(crate) fn explain(&self, is_datagram: bool) -> Result<Success, Failure> {
        let status = Status::from_code(self.status);
        if status != Status::Success {
            return Err(Failure { status, vendor_error: self.vendor_error });
        }
        let has = |flag: u32| self.flags & flag != 0;
        let is_datagram = is_datagram || has(flag::DATAGRAM);
        let operation = match self.opcode {
            opcode::SEND => CompletedOperation::Send,
            opcode::WRITE => CompletedOperation::Write,
            opcode::READ => CompletedOperation::Read,
            opcode::COMPARE_SWAP => CompletedOperation::CompareSwap,
            opcode::FETCH_ADD => CompletedOperation::FetchAdd,
            opcode::BIND_WINDOW => CompletedOperation::BindWindow,
            opcode::LOCAL_INVALIDATE => CompletedOperation::LocalInvalidate,
            opcode::FLUSH => CompletedOperation::Flush,
            opcode::ATOMIC_WRITE => CompletedOperation::AtomicWrite,
            opcode::RECV_WRITE => CompletedOperation::RecvWrite { immediate: u32::from_be(self.immediate) },
            _ => CompletedOperation::Recv {
                immediate: has(flag::IMMEDIATE).then(|| u32::from_be(self.immediate)),
                invalidated: has(flag::INVALIDATED).then_some(self.immediate),
                source: is_datagram.then(|| Qpn::truncate(self.source)),
                // Some devices (rxe) say so of connections too, whose buffers have none.
                has_grh: is_datagram && has(flag::GRH),
            },
        };
        Ok(Success { operation, length: self.length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_timestamp_changes_no_other_field() {
        let outcome = RawOutcome {
            status: 0,
            opcode: opcode::RECV,
            vendor_error: 0,
            length: 77,
            immediate: 5u32.to_be(),
            qpn: 0,
            source: 9,
            flags: flag::IMMEDIATE | flag::GRH,
        };
        let failure = RawOutcome { status: 12, vendor_error: 0x81, ..RawOutcome::implied(0) };
        for plain in [outcome, failure] {
            assert_eq!(plain.timestamp(), None);
            for timestamp in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
                let mut marked = plain;
                marked.store_timestamp(timestamp);
                assert_eq!(marked.timestamp(), Some(timestamp));
                for is_datagram in [false, true] {
                    assert_eq!(marked.explain(is_datagram), plain.explain(is_datagram));
                }
            }
        }
    }
}
