//! Extended completion queues.

use std::time::{SystemTime, UNIX_EPOCH};

use adverb_sys::*;
use libc::{c_int, c_uint};
use parking_lot::lock_api::RawMutex as _;

use crate::calls::{explain, invalid};
use crate::cq::{CompletionQueue, work_completion};
use crate::entry::{fail, object};

/// The completion that an extended poll is at.
pub(crate) struct Current {
    wc: ibv_wc,
    /// The timestamp in nanoseconds of the NIC's clock.
    timestamp: u64,
}

impl Default for Current {
    fn default() -> Current {
        Current { wc: ibv_wc::zeroed(), timestamp: 0 }
    }
}

impl CompletionQueue {
    /// Moves to the next completion. Returns whether there is one.
    ///
    /// # Safety
    ///
    /// The calling thread holds `polling`.
    unsafe fn advance(&self) -> bool {
        let current = self.current.get();
        let count = self.nic.nic.poll_timed(self.cq, 1, |completion, timestamp| {
            self.nic.counts.complete(&completion);
            let wc = work_completion(&completion, self.nic.l3_type);
            let timestamp = timestamp.map_or(0, |timestamp| timestamp.time.as_nanos());
            // SAFETY: only the thread that polls uses these fields, as the caller says.
            unsafe {
                (*self.extended()).status = wc.status;
                (*self.extended()).wr_id = wc.wr_id;
                current.write(Current { wc, timestamp });
            }
        });
        count == 1
    }
}

/// Returns the completion that a poll is at.
///
/// # Safety
///
/// The calling thread polls the queue.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Current {
    // SAFETY: the queue is alive, and no other thread polls it.
    unsafe { &*CompletionQueue::of(cq.cast()).current.get() }
}

operations! {
    /// Creates an extended completion queue.
    fn create_cq_ex(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        // SAFETY: the attributes are valid for reads; older programs have no fields after the mask, which says so.
        let (flags, mask) = unsafe { ((*init_attr).wc_flags, (*init_attr).comp_mask) };
        let timed = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        if flags & !(IBV_WC_STANDARD_FLAGS | timed) != 0 {
            return fail(explain(libc::EOPNOTSUPP, format_args!("wc_flags is {flags:#x}")));
        }
        if mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return fail(invalid(format_args!("comp_mask is {mask:#x}")));
        }
        if mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
            // SAFETY: the mask says that the field exists.
            let flags = unsafe { (*init_attr).flags };
            if flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
                return fail(libc::EOPNOTSUPP);
            }
        }
        let mut attr = ibv_cq_init_attr_ex::zeroed();
        // SAFETY: these fields always exist.
        unsafe {
            (attr.cqe, attr.comp_vector) = ((*init_attr).cqe, (*init_attr).comp_vector);
            (attr.cq_context, attr.channel) = ((*init_attr).cq_context, (*init_attr).channel);
        }
        let made = CompletionQueue::create(context, &attr, flags & timed != 0, |cq| {
            cq.start_poll = Some(start_poll);
            cq.next_poll = Some(next_poll);
            cq.end_poll = Some(end_poll);
            cq.read_opcode = Some(read_opcode);
            cq.read_vendor_err = Some(read_vendor_err);
            cq.read_byte_len = Some(read_byte_len);
            cq.read_imm_data = Some(read_imm_data);
            cq.read_qp_num = Some(read_qp_num);
            cq.read_src_qp = Some(read_src_qp);
            cq.read_wc_flags = Some(read_wc_flags);
            cq.read_slid = Some(read_slid);
            cq.read_sl = Some(read_sl);
            cq.read_dlid_path_bits = Some(read_dlid_path_bits);
            cq.read_completion_ts = Some(read_completion_ts);
            cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        });
        object(made).cast()
    }

    /// Starts a poll.
    fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int, Infallible {
        // SAFETY: the attributes are valid for reads.
        if unsafe { (*attr).comp_mask } != 0 {
            return libc::EINVAL;
        }
        // SAFETY: the queue is alive.
        let this = unsafe { CompletionQueue::of(cq.cast()) };
        this.polling.lock();
        // SAFETY: the lock is held.
        unsafe {
            if this.advance() {
                return 0;
            }
            this.polling.unlock();
        }
        libc::ENOENT
    }

    /// Moves to the next completion.
    fn next_poll(cq: *mut ibv_cq_ex) -> c_int, Infallible {
        // SAFETY: the queue is alive, and the calling thread started a poll.
        if unsafe { CompletionQueue::of(cq.cast()).advance() } { 0 } else { libc::ENOENT }
    }

    /// Ends a poll.
    fn end_poll(cq: *mut ibv_cq_ex) {
        // SAFETY: the queue is alive, and the calling thread started a poll.
        unsafe { CompletionQueue::of(cq.cast()).polling.unlock() };
    }
}

/// Declares functions that read a field of the current completion.
macro_rules! readers {
    ($($name:ident -> $ty:ty = |$wc:ident| $field:expr;)*) => {
        operations! {
            $(
                /// Reads a field of the current completion.
                fn $name(cq: *mut ibv_cq_ex) -> $ty {
                    // SAFETY: the calling thread polls the queue.
                    let $wc = unsafe { current(cq) }.wc;
                    $field
                }
            )*
        }
    };
}

readers! {
    read_opcode -> ibv_wc_opcode = |wc| wc.opcode;
    read_vendor_err -> u32 = |wc| wc.vendor_err;
    read_byte_len -> u32 = |wc| wc.byte_len;
    read_imm_data -> __be32 = |wc| wc.imm_data();
    read_qp_num -> u32 = |wc| wc.qp_num;
    read_src_qp -> u32 = |wc| wc.src_qp;
    read_wc_flags -> c_uint = |wc| wc.wc_flags;
    read_slid -> u32 = |wc| wc.slid.into();
    read_sl -> u8 = |wc| wc.sl;
    read_dlid_path_bits -> u8 = |wc| wc.dlid_path_bits;
}

operations! {
    /// Reads the time of completion by the NIC's clock.
    fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
        // SAFETY: the calling thread polls the queue.
        unsafe { current(cq) }.timestamp
    }

    /// Reads the time of completion by the wall clock.
    fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
        // SAFETY: the calling thread polls the queue.
        let (timestamp, nic) = unsafe { (current(cq).timestamp, CompletionQueue::of(cq.cast()).nic) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let age = (nic.nic.clock_origin().elapsed().as_nanos() as u64).saturating_sub(timestamp);
        now.saturating_sub(age)
    }
}
