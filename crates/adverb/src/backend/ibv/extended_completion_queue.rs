//! Extended completion queues: completions are looked at one by one, and may have timestamps.

use std::io;
use std::ptr::NonNull;

use adverb_sys::{self as sys, ibv_comp_channel, ibv_cq_ex};

use super::{CompletionQueue, Device, verb_error};
use crate::backend::{CompletionQueueKind, RawCompletion, RawOutcome, flag, opcode};
use crate::error::{Error, Result};

/// An extended completion queue.
#[derive(Clone, Copy)]
pub(super) struct Extended {
    pub(super) handle: NonNull<ibv_cq_ex>,
    has_timestamps: bool,
}

impl Extended {
    /// Makes one. The channel must be of the device's context, or NULL.
    pub(super) fn new(
        device: &Device,
        depth: u32,
        channel: *mut ibv_comp_channel,
        vector: u32,
        kind: CompletionQueueKind,
    ) -> Result<Extended> {
        let has_timestamps = kind == CompletionQueueKind::Timestamps;
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
        // SAFETY: the context is open, the attributes can be read, and the channel is as the caller says.
        let handle = unsafe { sys::ibv_create_cq_ex(device.context.as_ptr(), &mut attr) };
        let Some(handle) = NonNull::new(handle) else {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS) => Error::Unsupported {
                    what: format!("an extended completion queue on {}", device.name).into(),
                    hint: "make an ordinary one".into(),
                },
                _ => verb_error(
                    error,
                    format!("making an extended completion queue of {depth} on {}", device.name),
                ),
            });
        };
        Ok(Extended { handle, has_timestamps })
    }
}

impl CompletionQueue {
    /// Takes as many completions as there is room for; says how many there were.
    #[cold]
    pub(super) fn poll_extended(&self, extended: Extended, room: &mut [RawCompletion]) -> Result<usize> {
        let queue = extended.handle.as_ptr();
        let mut count = 0;
        while count < room.len() {
            let mut attr = sys::ibv_poll_cq_attr::zeroed();
            // SAFETY: the queue is alive, and only one thread polls it at a time: the caller has its lock.
            let mut code = unsafe { sys::ibv_start_poll(queue, &mut attr) };
            let has_begun = code == 0;
            while code == 0 {
                // SAFETY: a poll is under way.
                room[count] = unsafe { extended.read() };
                count += 1;
                // Soft-RoCE's part of the library ends the poll itself when there is no next completion, and ending it
                // once more passes over the one that comes then (`cq_next_poll` in its rxe.c): it isn't asked.
                if count == room.len() || self.device.is_soft_roce {
                    break;
                }
                // SAFETY: a poll is under way.
                code = unsafe { sys::ibv_next_poll(queue) };
            }
            if has_begun {
                // SAFETY: a poll is under way.
                unsafe { sys::ibv_end_poll(queue) };
            }
            match code {
                0 => {}
                libc::ENOENT => break,
                // What came before it isn't lost: the next poll fails too.
                _ if count > 0 => break,
                code => return Err(self.poll_error(code)),
            }
        }
        Ok(count)
    }
}

impl Extended {
    /// The completion that the poll is at. Of a failure only some fields are valid, and only those are read.
    ///
    /// # Safety
    ///
    /// A poll is under way.
    unsafe fn read(self) -> RawCompletion {
        let queue = self.handle.as_ptr();
        // SAFETY: a poll is under way, and the queue was made with the flags for what is read.
        unsafe {
            let (wr_id, status) = ((*queue).wr_id, (*queue).status);
            let mut outcome = RawOutcome::implied(0);
            outcome.status = status;
            outcome.qpn = sys::ibv_wc_read_qp_num(queue);
            if status == sys::IBV_WC_SUCCESS {
                outcome.opcode = sys::ibv_wc_read_opcode(queue);
                outcome.length = sys::ibv_wc_read_byte_len(queue);
                outcome.flags = sys::ibv_wc_read_wc_flags(queue);
                let has_word = outcome.flags & (flag::IMMEDIATE | flag::UNUSUAL) != 0;
                if has_word || outcome.opcode == opcode::RECV_WRITE {
                    outcome.immediate = sys::ibv_wc_read_imm_data(queue);
                }
                outcome.source = sys::ibv_wc_read_src_qp(queue);
            } else {
                outcome.vendor_error = sys::ibv_wc_read_vendor_err(queue);
            }
            if self.has_timestamps {
                outcome.carry_timestamp(sys::ibv_wc_read_completion_ts(queue));
            }
            RawCompletion::new(wr_id, outcome)
        }
    }
}
