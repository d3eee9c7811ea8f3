//! Resuming a session over another lane.

use std::sync::Arc;
use std::time::Duration;

use adverb_net_proto::{Hello, Payload, PhaseKind};
use adverb_verbs::internal::WithCauses;
use adverb_verbs::memory::PoolBuf;

use super::memory::Buffer;
use super::region::Region;
use super::{Core, Driver, Lane};
use crate::error::{ConnectError, ConnectionError};

/// The source of a connection's lanes after the first one.
pub(crate) trait LaneSource: Send + Sync {
    /// Requests another lane for the connection, or its [end](Driver::end_after) when the time limit expires. `count` is
    /// the number of requests, with this one. Never blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the source cannot handle requests.
    fn request(&self, count: u32, timeout: Duration) -> Result<Box<dyn LaneRequest>, ConnectError>;

    /// Destroys a lane that another one has replaced. The caller may be a thread of a runtime, and the device may take
    /// long.
    fn destroy(&self, lane: Arc<Lane>);
}

/// A request for a lane. Dropping it cancels the request.
pub(crate) trait LaneRequest: Send {}

impl Driver {
    /// Enables reconnecting.
    pub(crate) fn enable_reconnect(&self, source: Box<dyn LaneSource>) {
        let mut core = self.lock();
        // The method is called once.
        let _ = self.lane_source.set(source);
        // The lane may have failed before.
        if core.connection.phase() == PhaseKind::Disconnected {
            self.request_lane(&mut core);
            self.advance(&mut core);
        }
    }

    /// Requests another lane for the connection, or its end when the time limit expires.
    pub(super) fn request_lane(&self, core: &mut Core) {
        let (Some(source), Some(timeout)) = (self.lane_source.get(), self.options.reconnect) else { return };
        if core.lane_request.is_some() {
            return;
        }
        let reason = core.failure.as_ref().map(|failure| tracing::field::display(WithCauses(failure)));
        tracing::info!(peer = %self.peer, reason, "a connection failed; reconnecting");
        core.request_count += 1;
        match source.request(core.request_count, timeout) {
            Ok(request) => core.lane_request = Some(request),
            Err(error) => {
                core.request_failure = Some(Arc::new(error));
                core.connection.handle_redial_failed();
            }
        }
    }

    /// Records the error of an attempt to get another lane, for the case that none succeeds in time. Has no effect if the
    /// connection has requested a lane again since the request with this count.
    pub(crate) fn note_request_failure(&self, request_count: u32, error: Arc<ConnectError>) {
        let mut core = self.lock();
        if core.request_count == request_count {
            core.request_failure = Some(error);
        }
    }

    /// Ends a connection for which there is no other lane. Has no effect if the connection is established, or has
    /// requested a lane again since the request with this count.
    pub(crate) fn end_after(&self, request_count: u32, error: Option<Arc<ConnectError>>) {
        let mut core = self.lock();
        if core.request_count != request_count || core.connection.phase() == PhaseKind::Established {
            return;
        }
        core.request_failure = error;
        self.update_time(&mut core);
        core.connection.handle_redial_failed();
        self.advance(&mut core);
    }

    /// Gives a connector's connection another lane. Returns whether the connection uses it.
    pub(super) fn attach(&self, lane: &Arc<Lane>) -> bool {
        let mut core = self.lock();
        self.update_time(&mut core);
        // The program may make no calls on the connection, so this one continues the drain of the old lane.
        self.advance(&mut core);
        let now = core.now;
        if !core.connection.attach(lane.config, now) {
            return false;
        }
        self.use_lane(&mut core, Arc::clone(lane));
        self.advance(&mut core);
        true
    }

    /// Gives an accepted connection another lane, which has received the connector's hello. Returns whether the session
    /// is known. The connection uses the lane as soon as the old one is drained.
    pub(super) fn resume(&self, lane: &Arc<Lane>, hello: Hello) -> bool {
        let mut core = self.lock();
        self.update_time(&mut core);
        let now = core.now;
        if !core.connection.resume(hello, lane.config, now) {
            return false;
        }
        if core.connection.phase() == PhaseKind::Handshake {
            self.use_lane(&mut core, Arc::clone(lane));
        } else {
            core.note_failure(|peer| ConnectionError::PeerLost { peer, has_exited: false });
            core.successor = Some(Arc::clone(lane));
        }
        self.advance(&mut core);
        true
    }

    /// Fails a lane whose handshake was aborted.
    pub(super) fn abort_lane(&self, lane: &Arc<Lane>) {
        let mut core = self.lock();
        if core.successor.as_ref().is_some_and(|successor| Arc::ptr_eq(successor, lane)) {
            core.successor = None;
        }
        if Arc::ptr_eq(&core.lane, lane) && core.connection.phase() == PhaseKind::Handshake {
            self.update_time(&mut core);
            let now = core.now;
            core.connection.handle_lane_failed(now);
            self.advance(&mut core);
        }
    }
}

/// Returns the buffer of a message.
pub(super) fn reclaim(payload: Payload<Buffer, Region>) -> Option<PoolBuf> {
    match payload {
        Payload::Buf(buffer) => Some(buffer.0),
        Payload::Region(region) => region.reclaim(),
    }
}
