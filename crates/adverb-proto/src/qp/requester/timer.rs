//! The timers of a requester: the acknowledgement timeout (vol. 1, 9.7.6) and the RNR backoff (vol. 1, 9.7.5).

use core::time::Duration;

use crate::Time;
use crate::mutation::mutant;
use crate::qp::{Context, QueuePair, ReadyToSend};
use crate::trace::{EventSink, RetryCause, TimerKind, TraceEvent};

/// The timers of a requester.
#[derive(Debug, Default)]
pub(in crate::qp) struct RetransmitTimer {
    /// The time after which packets without acknowledgement are retransmitted, or `None` if they never are.
    timeout: Option<Duration>,
    /// The time at which the acknowledgement timeout expires.
    ack_deadline: Option<Time>,
    /// The end of the RNR backoff, during which no request is sent.
    rnr_until: Option<Time>,
}

impl RetransmitTimer {
    pub(super) fn new(ready_to_send: &ReadyToSend) -> RetransmitTimer {
        // Code 0 means no timeout (vol. 1, 9.7.6).
        let timeout = (ready_to_send.timeout.code() != 0).then(|| ready_to_send.timeout.duration());
        RetransmitTimer { timeout, ack_deadline: None, rnr_until: None }
    }

    /// Whether unacknowledged packets are retransmitted after a time.
    #[inline]
    pub(super) const fn is_enabled(&self) -> bool {
        self.timeout.is_some()
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// Whether no request is sent, because the peer had no receive.
    #[inline]
    pub(super) const fn is_backing_off(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Starts the acknowledgement timer, unless it runs.
    #[inline]
    pub(super) fn start(&mut self, now: Time) {
        let starts_timer = self.ack_deadline.is_none() && !mutant!(NeverStartRetransmitTimer);
        if starts_timer {
            self.ack_deadline = self.timeout.map(|timeout| now + timeout);
        }
    }

    /// Restarts the acknowledgement timer, or stops it if no packet is outstanding (vol. 1, 9.7.6).
    #[inline]
    pub(super) fn restart(&mut self, now: Time, is_outstanding: bool) {
        let is_outstanding = is_outstanding && !mutant!(TimerNotRearmed);
        self.ack_deadline = match self.timeout {
            Some(timeout) if is_outstanding => Some(now + timeout),
            _ => None,
        };
    }

    /// Starts an RNR backoff. No packet is outstanding until its end.
    pub(super) fn start_backoff(&mut self, until: Time) {
        self.rnr_until = Some(until);
        self.ack_deadline = None;
    }

    /// Ends the RNR backoff, because the peer made progress.
    #[inline]
    pub(super) fn end_backoff(&mut self) {
        self.rnr_until = None;
    }

    pub(super) fn stop(&mut self) {
        self.rnr_until = None;
        self.ack_deadline = None;
    }
}

impl QueuePair {
    /// Handles an expired timer of the requester.
    pub(in crate::qp) fn handle_requester_timeout<S: EventSink>(&mut self, cx: &mut Context<'_, S>) {
        let timer = &mut self.requester.timer;
        if let Some(until) = timer.rnr_until {
            if until <= cx.now {
                cx.event(|| TraceEvent::TimerExpired { qpn: self.qpn, timer: TimerKind::Rnr });
                // The next packet restarts the acknowledgement timer.
                timer.stop();
            }
            return;
        }
        if timer.ack_deadline.is_some_and(|deadline| deadline <= cx.now) {
            cx.event(|| TraceEvent::TimerExpired { qpn: self.qpn, timer: TimerKind::AckTimeout });
            cx.stats.ack_timeouts += 1;
            self.retry(cx, RetryCause::Timeout);
        }
    }
}
