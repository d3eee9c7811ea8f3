//! Extended completion queues: completions are read one by one, and may have timestamps.

use std::io;
use std::ptr::NonNull;

use adverb_proto::explain::Call;
use adverb_sys::{self as sys, ibv_comp_channel, ibv_cq_ex};
use parking_lot::Mutex;

use super::{CompletionQueue, Device, unsupported};
use crate::backend::{CompletionQueueKind, RawCompletion, RawOutcome, flag, opcode};
use crate::error::{Feature, Result, call_failed};

/// An extended completion queue.
pub(super) struct Extended {
    pub(super) handle: NonNull<ibv_cq_ex>,
    has_timestamps: bool,
    /// The lock that a poll holds. Unlike `ibv_poll_cq`, the library's functions for these queues may be called by
    /// only one thread at a time, and raw polls don't take the lock of [`crate::CompletionQueue`].
    polling: Mutex<()>,
}

impl Extended {
    /// Creates an extended queue. The channel must belong to the device's context, or be null.
    pub(super) fn new(
        device: &Device,
        depth: u32,
        channel: *mut ibv_comp_channel,
        vector: u32,
        kind: CompletionQueueKind,
    ) -> Result<Extended> {
        let has_timestamps = kind.has_timestamps();
        let mut attr = sys::ibv_cq_init_attr_ex::zeroed();
        attr.cqe = depth;
        attr.channel = channel;
        attr.comp_vector = vector;
        attr.wc_flags = sys::IBV_WC_EX_WITH_BYTE_LEN
            | sys::IBV_WC_EX_WITH_IMM
            | sys::IBV_WC_EX_WITH_QP_NUM
            | sys::IBV_WC_EX_WITH_SRC_QP;
        if has_timestamps {
            attr.wc_flags |= sys::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
        }
        // SAFETY: the context is open, the attributes can be read, and the caller guarantees that the channel is valid.
        let handle = unsafe { sys::ibv_create_cq_ex(device.context.as_ptr(), &mut attr) };
        let Some(handle) = NonNull::new(handle) else {
            let error = io::Error::last_os_error();
            let action = format!("creating an extended completion queue of depth {depth} on {}", device.name);
            let error = call_failed(Call::Create, action, error);
            return Err(unsupported(error, Feature::ExtendedCompletionQueue, &device.name));
        };
        Ok(Extended { handle, has_timestamps, polling: Mutex::new(()) })
    }
}

impl CompletionQueue {
    /// Polls up to `out.len()` completions, and returns their number.
    #[cold]
    pub(super) fn poll_extended(&self, extended: &Extended, out: &mut [RawCompletion]) -> Result<usize> {
        // Soft-RoCE's provider ends the poll itself when there is no next completion, and a second end skips the
        // completion that arrives next (`cq_next_poll` in its rxe.c). So the poll never continues on soft-RoCE.
        let can_continue = !self.device.is_soft_roce;
        extended.poll(out, can_continue).map_err(|code| self.poll_error(code))
    }
}

impl Extended {
    /// Polls up to `out.len()` completions, and returns their number, or the error number if there are none.
    ///
    /// Several threads may call this: each poll holds the lock from its start to its end.
    fn poll(&self, out: &mut [RawCompletion], can_continue: bool) -> Result<usize, libc::c_int> {
        let queue = self.handle.as_ptr();
        let _polling = self.polling.lock();
        let mut count = 0;
        while count < out.len() {
            let mut attr = sys::ibv_poll_cq_attr::zeroed();
            // SAFETY: the queue exists, and no other thread polls it, because this thread holds the lock.
            let mut code = unsafe { sys::ibv_start_poll(queue, &mut attr) };
            let has_started = code == 0;
            while code == 0 {
                // SAFETY: a poll is in progress.
                out[count] = unsafe { self.read() };
                count += 1;
                if count == out.len() || !can_continue {
                    break;
                }
                // SAFETY: a poll is in progress.
                code = unsafe { sys::ibv_next_poll(queue) };
            }
            if has_started {
                // SAFETY: a poll is in progress.
                unsafe { sys::ibv_end_poll(queue) };
            }
            match code {
                0 => {}
                libc::ENOENT => break,
                // The completions before the error are returned. The next poll fails, too.
                _ if count > 0 => break,
                code => return Err(code),
            }
        }
        Ok(count)
    }
}

impl Extended {
    /// Returns the current completion of the poll. For a failure only some fields are valid, and only those are read.
    ///
    /// # Safety
    ///
    /// A poll is in progress.
    unsafe fn read(&self) -> RawCompletion {
        let queue = self.handle.as_ptr();
        // SAFETY: a poll is in progress, and the queue was created with the flags for the fields that are read.
        unsafe {
            let (wr_id, status) = ((*queue).wr_id, (*queue).status);
            let mut outcome = RawOutcome::implied(0);
            outcome.status = status;
            outcome.qpn = sys::ibv_wc_read_qp_num(queue);
            if status == sys::IBV_WC_SUCCESS {
                outcome.opcode = sys::ibv_wc_read_opcode(queue);
                outcome.length = sys::ibv_wc_read_byte_len(queue);
                outcome.flags = sys::ibv_wc_read_wc_flags(queue);
                let has_word = outcome.flags & (flag::IMMEDIATE | flag::SLOW_PATH) != 0;
                if has_word || outcome.opcode == opcode::RECV_WRITE {
                    outcome.immediate = sys::ibv_wc_read_imm_data(queue);
                }
                outcome.source = sys::ibv_wc_read_src_qp(queue);
            } else {
                outcome.vendor_error = sys::ibv_wc_read_vendor_err(queue);
            }
            if self.has_timestamps {
                outcome.store_timestamp(sys::ibv_wc_read_completion_ts(queue));
            }
            RawCompletion::new(wr_id, outcome)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use adverb_sys::{ibv_poll_cq_attr, ibv_wc_opcode};

    use super::*;

    static IS_POLLED: AtomicBool = AtomicBool::new(false);
    static OVERLAPS: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> libc::c_int {
        if IS_POLLED.swap(true, Ordering::SeqCst) {
            OVERLAPS.fetch_add(1, Ordering::SeqCst);
            return libc::ENOENT;
        }
        // Another thread may start a poll now, if the lock doesn't prevent it.
        std::thread::yield_now();
        // SAFETY: the test's queue exists, and no other thread polls it.
        unsafe { (*queue).wr_id += 1 };
        0
    }

    unsafe extern "C" fn end_poll(_: *mut ibv_cq_ex) {
        IS_POLLED.store(false, Ordering::SeqCst);
    }

    unsafe extern "C" fn opcode(_: *mut ibv_cq_ex) -> ibv_wc_opcode {
        sys::IBV_WC_SEND
    }

    unsafe extern "C" fn zero(_: *mut ibv_cq_ex) -> u32 {
        0
    }

    /// Returns an extended queue of a device that always has a completion. Its `wr_id` is the number of the completion.
    fn endless_queue() -> ibv_cq_ex {
        let mut queue = ibv_cq_ex::zeroed();
        queue.start_poll = Some(start_poll);
        queue.end_poll = Some(end_poll);
        queue.read_opcode = Some(opcode);
        queue.read_byte_len = Some(zero);
        queue.read_qp_num = Some(zero);
        queue.read_src_qp = Some(zero);
        queue.read_wc_flags = Some(zero);
        queue
    }

    #[test]
    fn only_one_thread_at_a_time_polls_an_extended_queue() {
        // Each poll yields, which takes milliseconds on a busy machine.
        const POLLS: usize = 500;
        struct Shared(Extended);
        // SAFETY: the queue outlives the threads. The test checks their accesses to it.
        unsafe impl Sync for Shared {}

        let mut queue = endless_queue();
        let handle = NonNull::from(&mut queue);
        let shared = Shared(Extended { handle, has_timestamps: false, polling: Mutex::new(()) });
        let poll = || {
            let shared = &shared;
            let mut out = [RawCompletion::EMPTY; 1];
            (0..POLLS).for_each(|_| assert_eq!(shared.0.poll(&mut out, false), Ok(1)));
        };
        std::thread::scope(|threads| {
            (0..2).for_each(|_| drop(threads.spawn(poll)));
        });
        assert_eq!(OVERLAPS.load(Ordering::SeqCst), 0);
        // SAFETY: the threads have ended.
        assert_eq!(unsafe { handle.as_ref() }.wr_id, 2 * POLLS as u64);
    }
}
