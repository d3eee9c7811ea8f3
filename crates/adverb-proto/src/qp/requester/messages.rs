//! The message sequence numbers and credits of a requester (vol. 1, 9.7.7).

use adverb_wire::Psn;

/// The messages of a requester, as its peer counts them.
#[derive(Debug, Default)]
pub(in crate::qp) struct Messages {
    /// The number of the next message (vol. 1, 9.7.7: send sequence number).
    next_ssn: Psn,
    /// The number of messages of the requests that were removed from the send queue.
    completed: Psn,
    /// The last message for which the peer has a receive, or `None` if this queue pair does not use credits or the
    /// peer sends none.
    credit_limit: Option<Psn>,
}

impl Messages {
    pub(super) fn new(credits: bool) -> Messages {
        Messages {
            next_ssn: Psn::ZERO + 1,
            completed: Psn::default(),
            credit_limit: credits.then_some(Psn::ZERO),
        }
    }

    /// Whether the peer can have completed this number of messages: at least those of the requests that were removed
    /// from the send queue, and at most those that were started. A peer counts a message when it has executed it (vol.
    /// 1, 9.7.7), and a READ when it accepts the request (C9-148; `execute` in `rxe_resp.c`). It doesn't count a
    /// duplicate request again.
    #[inline]
    pub(in crate::qp) fn is_plausible(&self, msn: u32) -> bool {
        let msn = Psn::wrapping(msn);
        msn.since(self.completed) >= 0 && msn.since(self.next_ssn) < 0
    }

    /// Whether the peer has a receive for the next message, as far as this queue pair knows.
    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        self.credit_limit.is_none_or(|limit| self.next_ssn.since(limit) <= 0)
    }

    /// Sets the last message for which the peer has a receive.
    #[inline]
    pub(in crate::qp) fn set_credit_limit(&mut self, limit: Option<Psn>) {
        self.credit_limit = limit;
    }

    #[inline]
    pub(super) fn record_started(&mut self, count: u32) {
        self.next_ssn += count;
    }

    /// Counts messages of a request that is removed from the send queue.
    #[inline]
    pub(super) fn record_completed(&mut self, count: u32) {
        self.completed += count;
    }
}
