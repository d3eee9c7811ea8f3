//! Resuming a session over another lane.

use std::sync::Arc;

use adverb_net_proto::{Hello, Payload, PhaseKind};
use adverb_verbs::internal;
use adverb_verbs::memory::PoolBuf;

use super::memory::{Buffer, Region};
use super::{Core, Driver, Lane};
use crate::session::ResumeOrigin;

impl Driver {
    /// Enables reconnecting.
    pub(crate) fn enable_reconnect(&self, origin: ResumeOrigin) {
        let mut core = self.lock();
        // The method is called once.
        let _ = self.origin.set(origin);
        // The lane may have failed before.
        if core.connection.phase() == PhaseKind::Disconnected {
            self.redial(&mut core);
            self.advance(&mut core);
        }
    }

    /// Makes the redialer reconnect the connection, or end it when the time limit expires.
    pub(super) fn redial(&self, core: &mut Core) {
        let (Some(origin), Some(timeout)) = (self.origin.get(), self.options.reconnect) else { return };
        if core.redial.is_some() {
            return;
        }
        let reason = core.failure.as_ref().map_or("", |failure| &failure.reason);
        tracing::info!(peer = %self.peer, %reason, "a connection failed; reconnecting");
        core.redial_count += 1;
        match origin.redial(core.redial_count, timeout) {
            Ok(handle) => core.redial = Some(handle),
            Err(error) => {
                core.redial_failure = Some(error.to_string());
                core.connection.handle_redial_failed();
            }
        }
    }

    /// Ends a connection that the redialer could not reconnect. Has no effect if the connection is established, or has
    /// been redialed again since the redial with this count.
    pub(crate) fn give_up_after(&self, redial_count: u32, reason: &str) {
        let mut core = self.lock();
        if core.redial_count != redial_count || core.connection.phase() == PhaseKind::Established {
            return;
        }
        core.redial_failure = Some(reason.to_owned());
        core.now = self.time();
        core.connection.handle_redial_failed();
        self.advance(&mut core);
    }

    /// Gives a connector's connection another lane. Returns whether the connection uses it.
    pub(super) fn attach(&self, lane: &Arc<Lane>) -> bool {
        let mut core = self.lock();
        core.now = self.time();
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
        core.now = self.time();
        let now = core.now;
        if !core.connection.resume(hello, lane.config, now) {
            return false;
        }
        if core.connection.phase() == PhaseKind::Handshake {
            self.use_lane(&mut core, Arc::clone(lane));
        } else {
            core.note_failure("the peer reconnected over another path", "");
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
            core.now = self.time();
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
        Payload::Region(region) => internal::reclaim(region.0),
    }
}
