//! Requests that bind and invalidate memory windows, and their completions.

use adverb_proto::types::{Access, SendOperation};

use super::{Completion, SendRequest};
use crate::memory::{MemoryWindow, Payload, RegionSlice};

impl SendRequest {
    /// Creates a request that binds a window to a part of a region: the peer may then execute the operations in
    /// `access` (`REMOTE_WRITE`, `REMOTE_READ` and `REMOTE_ATOMIC`) on that part, independently of the access rights of
    /// the region itself. The completion [returns](Completion::into_window) the window.
    ///
    /// Memory that a peer may write is never a `[u8]`, so a window can't be bound to a buffer:
    ///
    /// ```compile_fail,E0308
    /// # use adverb::{memory::Buffer, verbs::{Access, MemoryWindow, SendRequest}};
    /// fn show(window: MemoryWindow, buffer: Buffer) -> SendRequest {
    ///     SendRequest::bind(window, buffer, Access::REMOTE_READ)
    /// }
    /// ```
    ///
    /// The region needs the access right `WINDOW_BIND`, and `LOCAL_WRITE` if the peer may write. A bound window must be
    /// invalidated before it is bound again. Windows require a reliable connection.
    pub fn bind(mut window: MemoryWindow, slice: RegionSlice, access: Access) -> SendRequest {
        let bind = window.prepare_bind(slice, access);
        SendRequest::new(SendOperation::BindWindow(bind), Payload::Window(window))
    }

    /// Creates a request that revokes the access of a window: the device rejects the window's key afterwards. The
    /// completion [returns](Completion::into_window) the window.
    ///
    /// The request must be posted to the queue pair on which the window was bound. Posting fails if the window isn't
    /// bound, because it was never bound or because one of the two sides has invalidated it.
    ///
    /// If the peer may also invalidate the window, only one of the two sides should invalidate it: if both sides
    /// invalidate at once, the second invalidation is an error that moves the queue pair to the error state, and a bug
    /// of Linux 6.1's soft-RoCE then crashes the kernel.
    pub fn local_invalidate(window: MemoryWindow) -> SendRequest {
        let rkey = window.shared().rkey();
        SendRequest::new(SendOperation::LocalInvalidate(rkey), Payload::Window(window))
    }

    /// Returns the window of a request that was not posted.
    pub fn into_window(self) -> Option<MemoryWindow> {
        window_of(self.payload)
    }
}

impl Completion {
    /// Returns the window of a bind or an invalidation. If the request failed, the window isn't
    /// [usable](MemoryWindow::is_usable).
    pub fn into_window(self) -> Option<MemoryWindow> {
        self.update_window();
        window_of(self.payload)
    }

    /// Updates the state of the request's window, if it has one, by the outcome of the request.
    #[inline]
    pub(super) fn update_window(&self) {
        if let Payload::Window(window) = &self.payload {
            window.handle_outcome(&self.outcome);
        }
    }
}

fn window_of(payload: Payload) -> Option<MemoryWindow> {
    match payload {
        Payload::Window(mut window) => {
            window.release_slice();
            Some(window)
        }
        _ => None,
    }
}
