//! Completion queues and their event channels.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::ArmFor;
use adverb_sys::{self as sys, ibv_comp_channel, ibv_cq, ibv_wc};

use super::extended_completion_queue::Extended;
use super::{Device, check, set_nonblocking};
use crate::backend::{self, CompletionQueueKind, RawCompletion, RawOutcome, flag, opcode};
use crate::error::{Error, Result, WithCauses, call_failed};

pub(crate) struct CompletionQueue {
    pub(super) device: Arc<Device>,
    pub(super) handle: NonNull<ibv_cq>,
    /// The queue's own channel, so that no caller consumes an event of another queue.
    channel: Option<Channel>,
    /// The number of entries. Resizing changes it.
    pub(super) depth: AtomicU32,
    /// The extended interface of the queue, if it was created with it.
    extended: Option<Extended>,
}

// SAFETY: libibverbs' completion queues may be used from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above. Polling locks its shared state.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub(in crate::backend) fn new(
        device: &Arc<Device>,
        depth: u32,
        has_events: bool,
        vector: u32,
        kind: CompletionQueueKind,
    ) -> Result<CompletionQueue> {
        let channel = if has_events { Some(Channel::new(device)?) } else { None };
        let channel_pointer =
            channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.handle.as_ptr());
        let created = match kind {
            CompletionQueueKind::Plain => {
                // SAFETY: the channel, if there is one, belongs to the device's context.
                unsafe { create(device, depth, channel_pointer, vector) }.map(|handle| (handle, None))
            }
            _ => Extended::new(device, depth, channel_pointer, vector, kind)
                .map(|extended| (extended.handle.cast(), Some(extended))),
        };
        match created {
            Ok((handle, extended)) => {
                let (device, depth) = (Arc::clone(device), AtomicU32::new(depth));
                Ok(CompletionQueue { device, handle, channel, depth, extended })
            }
            Err(error) => {
                if let Some(channel) = channel {
                    channel.destroy(device);
                }
                Err(error)
            }
        }
    }

    pub(in crate::backend) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Acquire)
    }

    #[inline]
    pub(in crate::backend) fn poll(&self, out: &mut [RawCompletion]) -> Result<usize> {
        if let Some(extended) = &self.extended {
            return self.poll_extended(extended, out);
        }
        let max_count = libc::c_int::try_from(out.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the queue exists, and `max_count` completions may be written: both types have the same layout. For a
        // failure, devices leave most fields unchanged, and these are initialized.
        let count = unsafe { sys::ibv_poll_cq(self.handle.as_ptr(), max_count, out.as_mut_ptr().cast()) };
        // A negative count is an error.
        if count > max_count || count < 0 { Err(self.poll_error(count)) } else { Ok(count as usize) }
    }

    #[cold]
    pub(super) fn poll_error(&self, code: libc::c_int) -> Error {
        let error = io::Error::from_raw_os_error(code.abs());
        call_failed(Call::Poll, format!("polling a completion queue on {}", self.device.name), error)
    }

    /// Translates the flag that soft-RoCE sets if a message invalidated a key. Soft-RoCE writes completions directly to the
    /// memory that the library reads, with the kernel's flag instead of the library's (rxe_resp.c, `do_complete`).
    #[cold]
    pub(in crate::backend) fn normalize(&self, outcome: &mut RawOutcome) {
        /// `IB_WC_WITH_INVALIDATE` (ib_verbs.h). The library's flag of the same value is `IBV_WC_IP_CSUM_OK`, which
        /// soft-RoCE never sets.
        const KERNEL_INVALIDATED: u32 = 1 << 2;
        const { assert!(flag::SLOW_PATH == KERNEL_INVALIDATED | flag::INVALIDATED) };
        if self.device.is_soft_roce && outcome.flags & KERNEL_INVALIDATED != 0 {
            outcome.flags ^= KERNEL_INVALIDATED | flag::INVALIDATED;
        }
    }

    pub(in crate::backend) fn arm(&self, arm_for: ArmFor) -> Result<()> {
        let solicited_only = arm_for == ArmFor::Solicited;
        // SAFETY: the queue exists.
        let code = unsafe { sys::ibv_req_notify_cq(self.handle.as_ptr(), solicited_only.into()) };
        check(Call::Poll, code, || format!("arming a completion queue on {}", self.device.name))
    }

    pub(in crate::backend) fn has_events(&self) -> bool {
        self.channel.is_some()
    }

    pub(in crate::backend) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.channel.as_ref()?;
        channel.make_nonblocking();
        // SAFETY: the channel, and so its descriptor, lives as long as the queue, which is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(channel.fd()) })
    }

    pub(in crate::backend) fn try_event(&self) -> Result<bool> {
        let channel = self.channel()?;
        channel.make_nonblocking();
        channel.try_event(&self.device)
    }

    pub(in crate::backend) fn wait_event(&self, timeout: Option<Duration>) -> Result<bool> {
        let channel = self.channel()?;
        // Without a timeout, reading an event blocks until there is one. This works only while all callers block: a
        // caller that first checks for an event, and then reads it, would block forever if another caller read it in
        // between.
        if timeout.is_none() && channel.blocks() {
            return channel.try_event(&self.device);
        }
        channel.make_nonblocking();
        Ok(wait_readable(channel.fd(), timeout)? && channel.try_event(&self.device)?)
    }

    fn channel(&self) -> Result<&Channel> {
        self.channel.as_ref().ok_or_else(backend::no_event_channel)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.device.is_owned() {
            return;
        }
        // SAFETY: the queue is destroyed once, and the queue pairs that used it are destroyed, because they hold it.
        let code = unsafe { self.device.library.ibv_destroy_cq(self.handle.as_ptr()) };
        if let Err(error) = check(Call::Destroy, code, || "destroying a completion queue".to_owned()) {
            tracing::error!(error = %WithCauses(&error), "destroying a completion queue failed");
        }
        if let Some(channel) = &self.channel {
            channel.destroy(&self.device);
        }
    }
}

/// Creates a completion queue.
///
/// # Safety
///
/// The channel belongs to the device's context, or is null.
unsafe fn create(
    device: &Device,
    depth: u32,
    channel: *mut ibv_comp_channel,
    vector: u32,
) -> Result<NonNull<ibv_cq>> {
    let cqe = libc::c_int::try_from(depth).unwrap_or(libc::c_int::MAX);
    let vector = libc::c_int::try_from(vector).unwrap_or(libc::c_int::MAX);
    let context = device.context.as_ptr();
    // SAFETY: the context is open, and the caller guarantees that the channel is valid.
    let handle = unsafe { device.library.ibv_create_cq(context, cqe, std::ptr::null_mut(), channel, vector) };
    let create_error = || {
        let action = format!("creating a completion queue of depth {depth} on {}", device.name);
        call_failed(Call::Create, action, io::Error::last_os_error())
    };
    NonNull::new(handle).ok_or_else(create_error)
}

/// The event channel of a queue.
struct Channel {
    handle: NonNull<ibv_comp_channel>,
    /// Whether the descriptor is non-blocking, as event loops require.
    is_nonblocking: AtomicBool,
}

impl Channel {
    fn new(device: &Device) -> Result<Channel> {
        // SAFETY: the context is open.
        let handle = unsafe { device.library.ibv_create_comp_channel(device.context.as_ptr()) };
        let error = || {
            let action = format!("creating a completion channel on {}", device.name);
            call_failed(Call::Create, action, io::Error::last_os_error())
        };
        let handle = NonNull::new(handle).ok_or_else(error)?;
        Ok(Channel { handle, is_nonblocking: AtomicBool::new(false) })
    }

    fn fd(&self) -> libc::c_int {
        // SAFETY: the channel exists until it is destroyed.
        unsafe { (*self.handle.as_ptr()).fd }
    }

    /// Whether reading an event blocks.
    fn blocks(&self) -> bool {
        !self.is_nonblocking.load(Ordering::Acquire)
    }

    /// Makes the descriptor non-blocking. A caller that is already blocked stays blocked.
    fn make_nonblocking(&self) {
        if self.blocks() {
            match set_nonblocking(self.fd()) {
                Ok(()) => self.is_nonblocking.store(true, Ordering::Release),
                // This can't happen to an open descriptor.
                Err(error) => tracing::error!(%error, "setting a completion channel to non-blocking failed"),
            }
        }
    }

    /// Reads and acknowledges an event. Returns `false` if there is none, or a signal interrupted the call.
    fn try_event(&self, device: &Device) -> Result<bool> {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, and both pointers may be written.
        let code = unsafe { device.library.ibv_get_cq_event(self.handle.as_ptr(), &mut queue, &mut context) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(call_failed(Call::Poll, "reading an event of a completion queue", error)),
            };
        }
        // The event is acknowledged at once, because a queue with an unacknowledged event can't be destroyed.
        // SAFETY: the event belongs to the channel's only queue.
        unsafe { device.library.ibv_ack_cq_events(queue, 1) };
        Ok(true)
    }

    /// Destroys the channel, after the only queue that used it.
    fn destroy(&self, device: &Device) {
        // SAFETY: this is called once, by the owner of the channel, before the owner is dropped.
        let code = unsafe { device.library.ibv_destroy_comp_channel(self.handle.as_ptr()) };
        if let Err(error) = check(Call::Destroy, code, || "destroying a completion channel".to_owned()) {
            tracing::error!(error = %WithCauses(&error), "destroying a completion channel failed");
        }
    }
}

/// Waits until a descriptor is readable. Returns `false` if the timeout expires first, or a signal interrupts the wait.
pub(super) fn wait_readable(fd: libc::c_int, timeout: Option<Duration>) -> Result<bool> {
    let timeout = timeout.map_or(-1, |timeout| {
        // The timeout is rounded up, so that a short wait doesn't spin.
        libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
    });
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: there is one entry, which may be written.
    match unsafe { libc::poll(&mut poll, 1, timeout) } {
        0 => Ok(false),
        count if count > 0 => Ok(true),
        _ => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => Ok(false),
                _ => Err(call_failed(Call::Poll, "waiting for an event", error)),
            }
        }
    }
}

// Both backends use the library's format of a completion.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<RawCompletion>() == size_of::<ibv_wc>());
    assert!(align_of::<RawCompletion>() == align_of::<ibv_wc>());
    assert!(offset_of!(RawCompletion, wr_id) == offset_of!(ibv_wc, wr_id));
    const OUTCOME: usize = offset_of!(RawCompletion, outcome);
    assert!(OUTCOME + offset_of!(RawOutcome, status) == offset_of!(ibv_wc, status));
    assert!(OUTCOME + offset_of!(RawOutcome, opcode) == offset_of!(ibv_wc, opcode));
    assert!(OUTCOME + offset_of!(RawOutcome, vendor_error) == offset_of!(ibv_wc, vendor_err));
    assert!(OUTCOME + offset_of!(RawOutcome, length) == offset_of!(ibv_wc, byte_len));
    assert!(OUTCOME + offset_of!(RawOutcome, immediate) == offset_of!(ibv_wc, imm));
    assert!(OUTCOME + offset_of!(RawOutcome, qpn) == offset_of!(ibv_wc, qp_num));
    assert!(OUTCOME + offset_of!(RawOutcome, source) == offset_of!(ibv_wc, src_qp));
    assert!(OUTCOME + offset_of!(RawOutcome, flags) == offset_of!(ibv_wc, wc_flags));
    assert!(opcode::RECV == sys::IBV_WC_RECV && opcode::RECV_WRITE == sys::IBV_WC_RECV_RDMA_WITH_IMM);
    assert!(flag::GRH == sys::IBV_WC_GRH);
    assert!(flag::IMMEDIATE == sys::IBV_WC_WITH_IMM && flag::INVALIDATED == sys::IBV_WC_WITH_INV);
};
