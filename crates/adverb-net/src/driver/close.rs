//! The end of a connection: shutdown and close.

use std::time::Duration;

use adverb_net_proto::EndReason;

use super::send::refused;
use super::{Core, Driver, ended};
use crate::error::{ConnectionError, SendErrorKind};

/// The maximum time for which a dropped connection waits until the peer knows that its close has arrived.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

impl Driver {
    /// Shuts down sending.
    ///
    /// # Errors
    ///
    /// Returns an error if this side has already shut down sending, or the connection has ended.
    pub(crate) fn begin_shutdown(&self) -> Result<(), SendErrorKind> {
        let core = &mut *self.lock();
        match core.connection.check_send() {
            Ok(()) | Err(adverb_net_proto::SendError::WouldBlock) => {}
            Err(refusal) => return Err(refused(core, refusal)),
        }
        core.connection.shutdown();
        self.post_all(core);
        Ok(())
    }

    /// Shuts down sending. Returns `Some` once all messages are posted, or the peer has closed the connection.
    pub(crate) fn shutdown_and_flush(&self, core: &mut Core) -> Result<Option<()>, SendErrorKind> {
        self.shutdown(core);
        if core.connection.has_peer_closed() {
            return Ok(Some(()));
        }
        self.is_flushed(core)
    }

    fn shutdown(&self, core: &mut Core) {
        if core.connection.end_reason().is_none() && !core.connection.has_peer_closed() {
            core.connection.shutdown();
            self.post_all(core);
        }
    }

    /// Shuts down sending. Returns `Some` once the peer's device has all bytes of the stream.
    pub(crate) fn end_stream(&self, core: &mut Core) -> Result<Option<()>, SendErrorKind> {
        self.shutdown(core);
        if core.connection.is_delivered() {
            return Ok(Some(()));
        }
        let has_undelivered = core.connection.has_undelivered();
        match core.connection.end_reason() {
            Some(EndReason::Closed) => Ok(Some(())),
            // A peer that has sent everything may close the connection before this side shuts down.
            Some(EndReason::PeerClosed) if !has_undelivered => Ok(Some(())),
            Some(_)
                if !has_undelivered
                    && core.connection.has_peer_shutdown()
                    && core.connection.unacknowledged().is_empty() =>
            {
                Ok(Some(()))
            }
            Some(reason) => Err(ended(core, reason).into()),
            None => {
                core.connection.confirm();
                self.post_all(core);
                Ok(None)
            }
        }
    }

    /// Begins a graceful close.
    pub(crate) fn begin_close(&self) {
        let mut core = self.lock();
        self.update_time(&mut core);
        let now = core.now;
        core.connection.close(now);
        // The calls of other handles end, or wait no longer than the time limit of the close.
        core.has_changes = true;
        self.advance(&mut core);
    }

    /// Returns the result of a close, once there is one.
    pub(crate) fn is_closed(&self, core: &mut Core) -> Result<Option<()>, ConnectionError> {
        match core.connection.end_reason() {
            None => Ok(None),
            Some(EndReason::Closed) => Ok(Some(())),
            Some(EndReason::PeerClosed) if !core.connection.has_undelivered() => Ok(Some(())),
            Some(reason) => Err(ended(core, reason)),
        }
    }

    /// Polls the device, and returns whether the peer has closed the connection, and may not know that the close has
    /// arrived.
    pub(crate) fn is_lingering(&self) -> bool {
        let mut core = self.lock();
        if core.connection.is_lingering() {
            self.flush(&mut core);
            self.drive(&mut core);
        }
        core.connection.is_lingering()
    }
}

/// Returns an error if this side has closed the connection.
pub(super) fn check_not_closed(core: &Core) -> Result<(), ConnectionError> {
    if core.connection.is_closing() { Err(ended(core, EndReason::Closed)) } else { Ok(()) }
}
