//! The operations in the terms of libibverbs: the fields of `ibv_send_wr`, or a function `ibv_wr_*`.
//!
//! `ibv_post_send` can't post ATOMIC WRITE and FLUSH, so a queue pair that has them is created for the `ibv_wr_*` functions.
//! Only devices that report these operations get such queue pairs. Their other requests are still posted with
//! `ibv_post_send`, which every provider supports.

#![deny(clippy::wildcard_enum_match_arm)]

use std::ptr::NonNull;

use adverb_proto::types::{
    CompletedOperation, Destination, ExtendedOperation, FlushRange, RemoteAddress, SendOperation, SendRequest,
};
use adverb_sys::{self as sys, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_send_wr};

use super::{Device, ProtectionDomain};
use crate::backend::AddressHandle;

/// Sets the fields that only send requests have.
#[inline(always)]
pub(super) fn encode(wr: &mut ibv_send_wr, request: &SendRequest<'_, &AddressHandle>) {
    wr.send_flags = request.flags.bits();
    if let Some(Destination { handle, qpn, qkey }) = &request.destination {
        let ah = match handle {
            AddressHandle::Ibv(handle) => handle.handle.as_ptr(),
            #[cfg(feature = "soft")]
            AddressHandle::Soft(_) => unreachable!("a destination belongs to its queue pair's domain"),
        };
        wr.wr.ud = sys::ibv_send_wr_ud { ah, remote_qpn: qpn.get(), remote_qkey: *qkey };
    }
    wr.imm.imm_data = 0;
    match request.operation {
        SendOperation::Send => wr.opcode = sys::IBV_WR_SEND,
        SendOperation::SendWithImm(immediate) => {
            wr.opcode = sys::IBV_WR_SEND_WITH_IMM;
            wr.imm.imm_data = immediate.to_be();
        }
        SendOperation::SendInvalidate(rkey) => {
            wr.opcode = sys::IBV_WR_SEND_WITH_INV;
            wr.imm.invalidate_rkey = rkey;
        }
        SendOperation::Write(remote) => {
            wr.opcode = sys::IBV_WR_RDMA_WRITE;
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey };
        }
        SendOperation::WriteWithImm(remote, immediate) => {
            wr.opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
            wr.imm.imm_data = immediate.to_be();
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey };
        }
        SendOperation::Read(remote) => {
            wr.opcode = sys::IBV_WR_RDMA_READ;
            wr.wr.rdma = sys::ibv_send_wr_rdma { remote_addr: remote.addr, rkey: remote.rkey };
        }
        SendOperation::CompareSwap { remote, compare, swap } => {
            wr.opcode = sys::IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.wr.atomic = sys::ibv_send_wr_atomic {
                remote_addr: remote.addr,
                compare_add: compare,
                swap,
                rkey: remote.rkey,
            };
        }
        SendOperation::FetchAdd { remote, add } => {
            wr.opcode = sys::IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic = sys::ibv_send_wr_atomic {
                remote_addr: remote.addr,
                compare_add: add,
                swap: 0,
                rkey: remote.rkey,
            };
        }
        SendOperation::LocalInvalidate(rkey) => {
            wr.opcode = sys::IBV_WR_LOCAL_INV;
            wr.imm.invalidate_rkey = rkey;
        }
        // The other fields are set with the window.
        SendOperation::BindWindow(_) => wr.opcode = sys::IBV_WR_BIND_MW,
        // `ExtendedPosting` posts them: `ibv_send_wr` has no fields for them.
        SendOperation::AtomicWrite { .. } => wr.opcode = sys::IBV_WR_ATOMIC_WRITE,
        SendOperation::Flush(_) => wr.opcode = sys::IBV_WR_FLUSH,
    }
}

/// Returns the operation of a request on the fast path: a SEND or a WRITE, with or without immediate data.
pub(super) fn fast_operation_of(wr: &ibv_send_wr) -> SendOperation {
    // SAFETY: these members of the unions consist of integers.
    let (rdma, immediate) = unsafe { (wr.wr.rdma, u32::from_be(wr.imm.imm_data)) };
    let remote = RemoteAddress { addr: rdma.remote_addr, rkey: rdma.rkey };
    match wr.opcode {
        sys::IBV_WR_SEND => SendOperation::Send,
        sys::IBV_WR_SEND_WITH_IMM => SendOperation::SendWithImm(immediate),
        sys::IBV_WR_RDMA_WRITE => SendOperation::Write(remote),
        sys::IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::WriteWithImm(remote, immediate),
        opcode => unreachable!("requests with opcode {opcode} are not on the fast path"),
    }
}

/// Returns the library's opcode for the completion of a send operation.
const fn completion_opcode(operation: CompletedOperation) -> sys::ibv_wc_opcode {
    match operation {
        CompletedOperation::Send => sys::IBV_WC_SEND,
        CompletedOperation::Write => sys::IBV_WC_RDMA_WRITE,
        CompletedOperation::Read => sys::IBV_WC_RDMA_READ,
        CompletedOperation::CompareSwap => sys::IBV_WC_COMP_SWAP,
        CompletedOperation::FetchAdd => sys::IBV_WC_FETCH_ADD,
        CompletedOperation::BindWindow => sys::IBV_WC_BIND_MW,
        CompletedOperation::LocalInvalidate => sys::IBV_WC_LOCAL_INV,
        CompletedOperation::Flush => sys::IBV_WC_FLUSH,
        CompletedOperation::AtomicWrite => sys::IBV_WC_ATOMIC_WRITE,
        CompletedOperation::Recv { .. } => sys::IBV_WC_RECV,
        CompletedOperation::RecvWrite { .. } => sys::IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

// Completions contain the library's opcodes, which are decoded as the codes of plain operations.
const _: () = {
    let mut code = 0;
    while code < CompletedOperation::RECV_CODE {
        if let Some(operation) = CompletedOperation::of_send(code) {
            assert!(completion_opcode(operation) == code);
        }
        code += 1;
    }
};

/// The `ibv_wr_*` functions of a queue pair.
pub(super) struct ExtendedPosting {
    handle: NonNull<ibv_qp_ex>,
    /// The `IBV_QP_EX_WITH_*` flags that the queue pair was created with.
    flags: u64,
}

impl ExtendedPosting {
    /// Whether the queue pair was created for the operation.
    pub(super) fn has(&self, operation: ExtendedOperation) -> bool {
        self.flags & extended_flag(operation) != 0
    }

    /// Posts one request.
    ///
    /// # Safety
    ///
    /// The queue pair is alive, and the calling thread is the only one that posts to its send queue.
    pub(super) unsafe fn post(&self, operation: ExtendedOperation, wr: &ibv_send_wr) -> libc::c_int {
        let qp = self.handle.as_ptr();
        if !self.has(operation) {
            return libc::EOPNOTSUPP;
        }
        // SAFETY: the queue pair is alive, only this thread posts, and so it has no other batch. The operation's function
        // exists, because the queue pair was created with its flag. The eight bytes are copied during the call.
        unsafe {
            sys::ibv_wr_start(qp);
            (*qp).wr_id = wr.wr_id;
            (*qp).wr_flags = wr.send_flags;
            match operation {
                ExtendedOperation::AtomicWrite { remote, bytes } => {
                    sys::ibv_wr_atomic_write(qp, remote.rkey, remote.addr, bytes.as_ptr().cast());
                }
                ExtendedOperation::Flush(range) => {
                    let FlushRange { remote, length, whole_region, .. } = range;
                    let level = if whole_region { sys::IBV_FLUSH_MR } else { sys::IBV_FLUSH_RANGE };
                    let kind = range.placement().bits();
                    sys::ibv_wr_flush(qp, remote.rkey, remote.addr, length as usize, kind, level);
                }
            }
            sys::ibv_wr_complete(qp)
        }
    }
}

/// Returns the `IBV_QP_EX_WITH_*` flag of an operation.
const fn extended_flag(operation: ExtendedOperation) -> u64 {
    match operation {
        ExtendedOperation::AtomicWrite { .. } => sys::IBV_QP_EX_WITH_ATOMIC_WRITE,
        ExtendedOperation::Flush(_) => sys::IBV_QP_EX_WITH_FLUSH,
    }
}

/// Creates a queue pair that can post the operations of `flags`, or as many of them as the library supports: librxe
/// before rdma-core 45 rejects FLUSH. Returns null, with `errno` set, if the queue pair can't be created at all. The
/// capacities in `attr` become the actual ones.
///
/// # Safety
///
/// The domain is alive, and so are the completion queues and the shared receive queue of `attr`, which belong to the
/// domain's device.
pub(super) unsafe fn create_queue_pair(
    device: &Device,
    domain: &ProtectionDomain,
    attr: &mut ibv_qp_init_attr,
    flags: u64,
) -> (*mut ibv_qp, Option<ExtendedPosting>) {
    let library = device.library;
    let mut tried = 0;
    for flags in [flags, flags & !sys::IBV_QP_EX_WITH_FLUSH] {
        if flags == 0 || flags == tried {
            continue;
        }
        tried = flags;
        let mut extended = sys::ibv_qp_init_attr_ex::zeroed();
        extended.send_cq = attr.send_cq;
        extended.recv_cq = attr.recv_cq;
        extended.srq = attr.srq;
        extended.cap = attr.cap;
        extended.qp_type = attr.qp_type;
        extended.comp_mask = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        extended.pd = domain.handle.as_ptr();
        extended.send_ops_flags = flags;
        // SAFETY: the context is open, and the objects of the attributes are alive, as the caller guarantees.
        let handle = unsafe { library.ibv_create_qp_ex(device.context.as_ptr(), &mut extended) };
        if handle.is_null() {
            continue;
        }
        attr.cap = extended.cap;
        // SAFETY: the queue pair is alive.
        let posting = NonNull::new(unsafe { library.ibv_qp_to_qp_ex(handle) });
        return (handle, posting.map(|handle| ExtendedPosting { handle, flags }));
    }
    // SAFETY: as above.
    (unsafe { library.ibv_create_qp(domain.handle.as_ptr(), attr) }, None)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use adverb_proto::types::SendFlags;
    use libc::{c_int, c_void, size_t};

    use super::*;
    use crate::backend::ibv::request_list::SendList;

    thread_local! {
        /// The calls of the library's functions.
        static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn record_call(call: impl Into<String>) {
        CALLS.with_borrow_mut(|calls| calls.push(call.into()));
    }

    unsafe extern "C" fn start(_: *mut ibv_qp_ex) {
        record_call("start");
    }

    unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
        // SAFETY: the test passes a queue pair.
        record_call(format!("complete {} {:#x}", unsafe { (*qp).wr_id }, unsafe { (*qp).wr_flags }));
        0
    }

    unsafe extern "C" fn atomic_write(_: *mut ibv_qp_ex, rkey: u32, addr: u64, bytes: *const c_void) {
        // SAFETY: the caller passes eight bytes.
        let bytes: [u8; 8] = unsafe { bytes.cast::<[u8; 8]>().read_unaligned() };
        record_call(format!("atomic write {rkey:#x} {addr:#x} {bytes:?}"));
    }

    unsafe extern "C" fn flush(_: *mut ibv_qp_ex, rkey: u32, addr: u64, length: size_t, kind: u8, level: u8) {
        record_call(format!("flush {rkey:#x} {addr:#x}, {length} bytes, kind {kind}, level {level}"));
    }

    fn post_operation(operation: SendOperation, flags: u64) -> (c_int, Vec<String>) {
        let mut qp = ibv_qp_ex::zeroed();
        qp.wr_start = Some(start);
        qp.wr_complete = Some(complete);
        qp.wr_atomic_write = Some(atomic_write);
        qp.wr_flush = Some(flush);
        let posting = ExtendedPosting { handle: NonNull::from(&mut qp), flags };
        let mut list = SendList::default();
        let request: SendRequest<'_, &AddressHandle> = SendRequest {
            wr_id: 7,
            tag: 0,
            operation,
            flags: SendFlags::SIGNALED,
            segments: &[],
            destination: None,
        };
        list.add_slot();
        list.put(0, &request);
        let posted = list.post_each(|operation, chain| {
            let operation = operation.extended().expect("an operation of Annex A19");
            // SAFETY: the list has one request, the queue pair is alive, and only this thread posts to it.
            unsafe { posting.post(operation, &*chain.first) }
        });
        let code = posted.err().map_or(0, |errno| errno.error().raw_os_error().expect("a number"));
        (code, CALLS.take())
    }

    #[test]
    fn each_operation_calls_its_function_within_a_batch() {
        let remote = RemoteAddress { addr: 0x1000, rkey: 0x9 };
        let both = sys::IBV_QP_EX_WITH_ATOMIC_WRITE | sys::IBV_QP_EX_WITH_FLUSH;
        let write = SendOperation::AtomicWrite { remote, bytes: [1, 2, 3, 4, 5, 6, 7, 8] };
        let expected = ["start", "atomic write 0x9 0x1000 [1, 2, 3, 4, 5, 6, 7, 8]", "complete 7 0x2"];
        assert_eq!(post_operation(write, both), (0, expected.map(str::to_owned).into()));
        for (global, persistent, whole_region, call) in [
            (true, false, false, "flush 0x9 0x1000, 64 bytes, kind 1, level 0"),
            (false, true, false, "flush 0x9 0x1000, 64 bytes, kind 2, level 0"),
            (true, true, true, "flush 0x9 0x1000, 64 bytes, kind 3, level 1"),
        ] {
            let range = FlushRange { remote, length: 64, whole_region, global, persistent };
            let expected = ["start", call, "complete 7 0x2"];
            assert_eq!(
                post_operation(SendOperation::Flush(range), both),
                (0, expected.map(str::to_owned).into())
            );
        }
    }

    #[test]
    fn an_operation_that_the_queue_pair_was_not_created_for_is_not_posted() {
        let remote = RemoteAddress { addr: 0x1000, rkey: 0x9 };
        let range = FlushRange { remote, length: 64, whole_region: false, global: true, persistent: false };
        let posted = post_operation(SendOperation::Flush(range), sys::IBV_QP_EX_WITH_ATOMIC_WRITE);
        assert_eq!(posted, (libc::EOPNOTSUPP, Vec::new()));
    }
}
