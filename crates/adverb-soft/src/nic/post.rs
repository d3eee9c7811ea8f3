//! Posting of requests.

use std::ptr::NonNull;

use adverb_proto::types::{RecvRequest, SendFlags, SendRequest};
use adverb_proto::{AddressVector, PostError, Srq, Time};
use adverb_wire::Qpn;

use super::engine::Engine;
use super::{Nic, guard, progress};
use crate::error::{BatchPostError, Error};
use crate::memory::copy_out;

/// The maximum number of bytes of an inline request.
pub const MAX_INLINE: u32 = 1024;

impl Nic {
    /// Posts send requests and starts to transmit them. The second element of each item is the data of an inline
    /// request, or `None` for other requests.
    ///
    /// # Errors
    ///
    /// Returns [`BatchPostError`] if a request can't be posted. The requests before it are posted, and the requests
    /// after it are not.
    #[inline]
    pub fn post_sends<'a, Handle: AddressVector>(
        &self,
        qpn: Qpn,
        requests: impl IntoIterator<Item = (SendRequest<'a, Handle>, Option<&'a [u8]>)>,
    ) -> Result<(), BatchPostError> {
        self.post(true, requests, |engine, now, (request, inline)| {
            match inline {
                None => engine.device.post_send(now, qpn, &request)?,
                Some(bytes) => engine.device.post_send_inline(now, qpn, &request, bytes)?,
            }
            Ok(())
        })
    }

    /// Does the same as [`post_sends`](Nic::post_sends), and copies the data of inline requests from the addresses of
    /// their segments. The keys of these segments are ignored, as by other devices.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_sends`](Nic::post_sends).
    ///
    /// # Safety
    ///
    /// The memory of the segments of inline requests is readable, and concurrent writes to it follow the rules of
    /// [`RegisteredMemory::add`](crate::memory::RegisteredMemory::add).
    #[inline]
    pub unsafe fn post_sends_and_copy<'a, Handle: AddressVector>(
        &self,
        qpn: Qpn,
        requests: impl IntoIterator<Item = SendRequest<'a, Handle>>,
    ) -> Result<(), BatchPostError> {
        self.post(true, requests, |engine, now, request| {
            if request.flags.contains(SendFlags::INLINE) {
                // SAFETY: as the caller says.
                return unsafe { engine.post_inline(now, qpn, &request) };
            }
            Ok(engine.device.post_send(now, qpn, &request)?)
        })
    }

    /// Posts receive requests.
    ///
    /// # Errors
    ///
    /// Returns [`BatchPostError`] if a request can't be posted. The requests before it are posted, and the requests
    /// after it are not.
    #[inline]
    pub fn post_recvs<'a>(
        &self,
        qpn: Qpn,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), BatchPostError> {
        self.post(false, requests, |engine, now, request| Ok(engine.device.post_recv(now, qpn, &request)?))
    }

    /// Posts receive requests to a shared receive queue.
    ///
    /// # Errors
    ///
    /// Returns [`BatchPostError`] if a request can't be posted. The requests before it are posted, and the requests
    /// after it are not.
    pub fn post_srq_recvs<'a>(
        &self,
        srq: Srq,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), BatchPostError> {
        self.post(false, requests, |engine, now, request| {
            Ok(engine.device.post_srq_recv(now, srq, &request)?)
        })
    }

    #[inline]
    fn post<T>(
        &self,
        are_sends: bool,
        requests: impl IntoIterator<Item = T>,
        mut post: impl FnMut(&mut Engine, Time, T) -> Result<(), Error>,
    ) -> Result<(), BatchPostError> {
        let mut posted_count = 0;
        let mut engine = self.shared.engine.lock();
        if engine.schedule.has_failed() {
            return Err(BatchPostError { posted_count, error: Error::NicFailed });
        }
        let now = if are_sends { engine.now() } else { engine.recv_time() };
        let posted = guard(&mut engine, |engine| {
            for request in requests {
                post(engine, now, request)?;
                posted_count += 1;
            }
            Ok(())
        });
        // Posting receives doesn't send delayed ACKs early.
        if are_sends || !engine.schedule.delayed_ack.is_pending() {
            let work = self.drive(&mut engine, |engine| engine.send_posted(now));
            progress::wake(&self.shared, &mut engine, work);
        }
        posted.map_err(|error| BatchPostError { posted_count, error })
    }
}

impl Engine {
    /// Posts an inline request, and copies its data from the addresses of its segments.
    ///
    /// # Safety
    ///
    /// The memory of the segments is readable, and concurrent writes to it follow the rules of
    /// [`RegisteredMemory::add`](crate::memory::RegisteredMemory::add).
    #[cold]
    unsafe fn post_inline<Handle: AddressVector>(
        &mut self,
        now: Time,
        qpn: Qpn,
        request: &SendRequest<'_, Handle>,
    ) -> Result<(), Error> {
        let length: u64 = request.segments.iter().map(|segment| u64::from(segment.length)).sum();
        if length > MAX_INLINE.into() {
            return Err(PostError::InvalidInline.into());
        }
        self.inline.clear();
        for segment in request.segments {
            let start = self.inline.len();
            self.inline.resize(start + segment.length as usize, 0);
            let address = usize::try_from(segment.addr).unwrap_or(0);
            if let Some(from) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) {
                // SAFETY: as the caller says.
                unsafe { copy_out(from, &mut self.inline[start..]) };
            }
        }
        Ok(self.device.post_send_inline(now, qpn, request, &self.inline)?)
    }
}
