//! Outcomes of requests, in the backends' common format.

use adverb_proto::types::{CompletedOperation, Failure, Gid, Qpn, Status, Success, TimestampSource};

/// A completion in rdma-core's format, so that it isn't copied more often than necessary.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawCompletion {
    pub(crate) wr_id: u64,
    pub(crate) outcome: RawOutcome,
    /// The fields that Adverb doesn't use: P_Key index, source LID, service level and path bits.
    _unused: u64,
}

impl RawCompletion {
    /// A value for arrays that the device fills.
    pub(crate) const EMPTY: RawCompletion = RawCompletion::new(0, RawOutcome::implied(0));

    pub(super) const fn new(wr_id: u64, outcome: RawOutcome) -> RawCompletion {
        RawCompletion { wr_id, outcome, _unused: 0 }
    }

    /// Converts a completion from the plain form.
    #[cfg(feature = "soft")]
    #[inline]
    pub(super) fn of(completion: &adverb_proto::types::Completion) -> RawCompletion {
        RawCompletion::new(completion.wr_id, RawOutcome::of(completion.outcome, completion.qpn))
    }
}

/// The outcome of a request, with the numbers and the field order of rdma-core. It is copied often, and decoded only on
/// demand. `status` and `opcode` determine the valid fields.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RawOutcome {
    /// The code of a [`Status`].
    pub(crate) status: u32,
    /// The code of a [`CompletedOperation`].
    pub(crate) opcode: u32,
    pub(super) vendor_error: u32,
    pub(crate) length: u32,
    /// Immediate data, in network byte order, or the key that was invalidated.
    pub(crate) immediate: u32,
    pub(crate) qpn: u32,
    /// The sender of a datagram.
    pub(super) source: u32,
    /// Some of the [`flag`]s.
    pub(crate) flags: u32,
}

/// The operations of completions that this crate distinguishes: some of the codes of [`CompletedOperation`].
pub(crate) mod opcode {
    use adverb_proto::types::CompletedOperation;

    pub(crate) const BIND_WINDOW: u32 = CompletedOperation::BindWindow.code();
    pub(crate) const LOCAL_INVALIDATE: u32 = CompletedOperation::LocalInvalidate.code();
    pub(crate) const RECV: u32 = CompletedOperation::RECV_CODE;
    pub(crate) const RECV_WRITE: u32 = CompletedOperation::RECV_WRITE_CODE;
}

/// The flags of completions.
pub(crate) mod flag {
    /// The flags that need the slow path: [`INVALIDATED`], and the flag that soft-RoCE sets instead.
    pub(crate) const SLOW_PATH: u32 = INVALIDATED | 1 << 2;
    pub(crate) const GRH: u32 = 1 << 0;
    pub(crate) const IMMEDIATE: u32 = 1 << 1;
    pub(crate) const INVALIDATED: u32 = 1 << 3;
    /// Adverb's own flag: the request belongs to a shared receive queue for datagrams.
    pub(crate) const DATAGRAM: u32 = 1 << 31;
    /// Adverb's own flag: a timestamp is stored in otherwise unused fields.
    pub(super) const TIMESTAMP: u32 = 1 << 30;
    /// Adverb's own flag: the timestamp is the kernel's.
    pub(super) const KERNEL_TIME: u32 = 1 << 29;
    /// Adverb's own flag: the timestamp is the process's.
    pub(super) const PROCESS_TIME: u32 = 1 << 28;
    /// Adverb's own flag: a failed outcome has the peer's GID in otherwise unused fields.
    pub(super) const PEER: u32 = 1 << 27;
    /// Adverb's own flag: a failed outcome is that of a receive request.
    pub(crate) const RECV: u32 = 1 << 26;
}

impl RawOutcome {
    /// Returns the outcome of a request that succeeded without its own completion.
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

    /// Converts an outcome to numbers, which [`decode`](RawOutcome::decode) converts back.
    #[cfg(feature = "soft")]
    #[inline]
    fn of(outcome: Result<Success, Failure>, qpn: Qpn) -> RawOutcome {
        let qpn = qpn.get();
        let Success { operation, length } = match outcome {
            Ok(success) => success,
            Err(Failure { status, vendor_error }) => {
                return RawOutcome { status: status.code(), vendor_error, qpn, ..RawOutcome::implied(0) };
            }
        };
        let (immediate, source, flags) = match operation {
            CompletedOperation::Recv { immediate, invalidated, source, has_grh } => {
                let (immediate, flags) = match (invalidated, immediate) {
                    (Some(rkey), _) => (rkey, flag::INVALIDATED),
                    (None, Some(immediate)) => (immediate.to_be(), flag::IMMEDIATE),
                    (None, None) => (0, 0),
                };
                (immediate, source.map_or(0, Qpn::get), flags | if has_grh { flag::GRH } else { 0 })
            }
            CompletedOperation::RecvWrite { immediate } => (immediate.to_be(), 0, flag::IMMEDIATE),
            // The other operations have no further fields.
            _ => (0, 0, 0),
        };
        let opcode = operation.code();
        RawOutcome { status: 0, opcode, vendor_error: 0, length, immediate, qpn, source, flags }
    }

    /// Stores the device's timestamp in fields that are unused in this outcome, so that outcomes without a timestamp
    /// aren't larger.
    pub(super) fn store_timestamp(&mut self, timestamp: u64) {
        let [a, b, c, d, e, f, g, h] = timestamp.to_be_bytes();
        self.qpn = u32::from_be_bytes([a, b, c, d]);
        *self.spare_field() = u32::from_be_bytes([e, f, g, h]);
        self.flags |= flag::TIMESTAMP;
    }

    /// Stores a timestamp from a source that may differ from the device.
    #[cfg(feature = "soft")]
    pub(super) fn store_timestamp_from(&mut self, timestamp: u64, source: TimestampSource) {
        self.store_timestamp(timestamp);
        self.flags |= match source {
            TimestampSource::Device => 0,
            TimestampSource::Kernel => flag::KERNEL_TIME,
            TimestampSource::Process => flag::PROCESS_TIME,
        };
    }

    /// Returns the source of the timestamp, if there is one.
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

    /// Returns the queue pair, if the outcome contains it.
    pub(crate) fn qpn(&self) -> Option<Qpn> {
        (self.flags & flag::TIMESTAMP == 0 && self.qpn != 0).then(|| Qpn::truncate(self.qpn))
    }

    /// Returns the timestamp, if there is one.
    pub(crate) fn timestamp(mut self) -> Option<u64> {
        let (high, low) = (self.qpn, *self.spare_field());
        (self.flags & flag::TIMESTAMP != 0).then(|| u64::from(high) << 32 | u64::from(low))
    }

    /// Stores the peer of a request that failed in fields that are unused in this outcome, so that outcomes aren't
    /// larger. An outcome with a timestamp has no room for it.
    #[cold]
    pub(crate) fn store_peer(&mut self, peer: Gid) {
        if self.status == 0 || self.flags & flag::TIMESTAMP != 0 {
            return;
        }
        let bits = u128::from_be_bytes(peer.bytes());
        [self.opcode, self.length, self.immediate, self.source] =
            [bits >> 96, bits >> 64, bits >> 32, bits].map(|part| part as u32);
        self.flags |= flag::PEER;
    }

    /// Returns the peer of a request that failed, if it is known.
    pub(crate) fn peer(&self) -> Option<Gid> {
        let parts = [self.opcode, self.length, self.immediate, self.source];
        let bits = parts.into_iter().fold(0, |bits, part| bits << 32 | u128::from(part));
        (self.status != 0 && self.flags & flag::PEER != 0).then(|| Gid::new(bits.to_be_bytes()))
    }

    /// Returns the unused field: a failure has no length, and a success has no vendor error.
    fn spare_field(&mut self) -> &mut u32 {
        if self.status == 0 { &mut self.vendor_error } else { &mut self.length }
    }

    /// Decodes the outcome. Only the outcome of a datagram has a source: `is_datagram` is true, or the flag
    /// [`DATAGRAM`](flag::DATAGRAM) is set.
    #[inline]
    pub(crate) fn decode(&self, is_datagram: bool) -> Result<Success, Failure> {
        if self.status != Status::Success.code() {
            return Err(self.decode_failure());
        }
        let has = |flag: u32| self.flags & flag != 0;
        let is_datagram = is_datagram || has(flag::DATAGRAM);
        let operation = match (CompletedOperation::of_send(self.opcode), self.opcode) {
            (Some(operation), _) => operation,
            (None, opcode::RECV_WRITE) => {
                CompletedOperation::RecvWrite { immediate: u32::from_be(self.immediate) }
            }
            (None, _) => CompletedOperation::Recv {
                immediate: has(flag::IMMEDIATE).then(|| u32::from_be(self.immediate)),
                invalidated: has(flag::INVALIDATED).then_some(self.immediate),
                source: is_datagram.then(|| Qpn::truncate(self.source)),
                // Some devices (rxe) set this flag for connections, too, whose buffers have no GRH.
                has_grh: is_datagram && has(flag::GRH),
            },
        };
        Ok(Success { operation, length: self.length })
    }

    #[cold]
    fn decode_failure(&self) -> Failure {
        Failure { status: Status::from_code(self.status), vendor_error: self.vendor_error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_a_stored_peer_and_its_other_fields() {
        let failure = RawOutcome { status: 12, vendor_error: 0x81, qpn: 17, ..RawOutcome::implied(3) };
        assert_eq!(failure.peer(), None);
        let mut marked = failure;
        let peer = Gid::new(*b"\xfe\x80\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\xff");
        marked.store_peer(peer);
        assert_eq!((marked.peer(), marked.qpn()), (Some(peer), failure.qpn()));
        assert_eq!(marked.decode(false), failure.decode(false));
        // A success, and a failure with a timestamp, need the fields.
        let mut success = RawOutcome::implied(3);
        success.store_peer(peer);
        assert_eq!(success.peer(), None);
        let mut timed = failure;
        timed.store_timestamp(7);
        timed.store_peer(peer);
        assert_eq!((timed.peer(), timed.timestamp()), (None, Some(7)));
    }

    #[test]
    fn a_stored_timestamp_changes_no_decoded_field() {
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
                    assert_eq!(marked.decode(is_datagram), plain.decode(is_datagram));
                }
            }
        }
    }
}
