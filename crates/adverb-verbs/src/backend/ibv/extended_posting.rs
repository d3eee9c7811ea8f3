//! ATOMIC WRITE and FLUSH: `ibv_post_send` can't post them, so a queue pair that has them is created for the `ibv_wr_*`
//! functions.
//!
//! Only devices that report these operations get such queue pairs. Their other requests are still posted with
//! `ibv_post_send`, which every provider supports.

use std::ptr::NonNull;

use adverb_proto::types::{FlushRange, SendOperation};
use adverb_sys::{self as sys, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_send_wr};

use super::{Device, ProtectionDomain};
use crate::backend::request_list::operation_of;

/// The `ibv_wr_*` functions of a queue pair.
pub(super) struct ExtendedPosting {
    handle: NonNull<ibv_qp_ex>,
    /// The `IBV_QP_EX_WITH_*` flags that the queue pair was created with.
    flags: u64,
}

impl ExtendedPosting {
    /// Whether the queue pair was created for the operation.
    pub(super) fn has(&self, operation: &SendOperation) -> bool {
        self.flags & flag(operation) != 0
    }

    /// Posts one request.
    ///
    /// # Safety
    ///
    /// The queue pair is alive, the calling thread is the only one that posts to its send queue, and the request is an
    /// ATOMIC WRITE or a FLUSH that the queue pair [has](ExtendedPosting::has).
    pub(super) unsafe fn post(&self, wr: &ibv_send_wr) -> libc::c_int {
        let (qp, operation) = (self.handle.as_ptr(), operation_of(wr));
        if !self.has(&operation) {
            return libc::EOPNOTSUPP;
        }
        // SAFETY: the queue pair is alive, only this thread posts, and so it has no other batch. The operation's function
        // exists, because the queue pair was created with its flag. The eight bytes are copied during the call.
        unsafe {
            sys::ibv_wr_start(qp);
            (*qp).wr_id = wr.wr_id;
            (*qp).wr_flags = wr.send_flags;
            match operation {
                SendOperation::AtomicWrite { remote, bytes } => {
                    sys::ibv_wr_atomic_write(qp, remote.rkey, remote.addr, bytes.as_ptr().cast());
                }
                SendOperation::Flush(range) => {
                    let FlushRange { remote, length, whole_region, .. } = range;
                    let level = if whole_region { sys::IBV_FLUSH_MR } else { sys::IBV_FLUSH_RANGE };
                    let kind = range.placement().bits();
                    sys::ibv_wr_flush(qp, remote.rkey, remote.addr, length as usize, kind, level);
                }
                _ => unreachable!("`has` is false for other operations"),
            }
            sys::ibv_wr_complete(qp)
        }
    }
}

/// Returns the `IBV_QP_EX_WITH_*` flag of an ATOMIC WRITE or a FLUSH, and 0 for other operations.
fn flag(operation: &SendOperation) -> u64 {
    match operation {
        SendOperation::AtomicWrite { .. } => sys::IBV_QP_EX_WITH_ATOMIC_WRITE,
        SendOperation::Flush(_) => sys::IBV_QP_EX_WITH_FLUSH,
        _ => 0,
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

    use adverb_proto::types::{RemoteAddress, SendFlags, SendRequest};
    use libc::{c_int, c_void, size_t};

    use super::*;
    use crate::backend::AddressHandle;
    use crate::backend::request_list::{Chain, SendList};

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
        list.add(&request);
        let mut code = 0;
        let chained = list.post(|Chain { first, .. }| {
            // SAFETY: the list has one request, the queue pair is alive, and only this thread posts to it.
            code = unsafe { posting.post(&*first) };
            0
        });
        assert!(chained.is_ok());
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
