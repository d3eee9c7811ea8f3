//! Credits: flow control of the messages between two brokers.
//!
//! A message consumes a receive of the peer, so a broker sends a message only with a credit from the peer. A broker grants
//! one credit for each receive that it posted. Grants are cumulative counts of 30 bits: each message carries the sender's
//! current count in its immediate data, so a repeated count changes nothing.
//!
//! # Credit messages
//!
//! If a broker has no message to send, it sends its count in a *credit message* of zero bytes. A credit message needs no
//! credit, but it consumes a receive of the peer too. A broker therefore posts `D + 3` receives and grants only `D`
//! credits: of the [`RESERVED_RECEIVES`] = 3 others, two are for credit messages, and one is for a *leave message*: the last
//! message of a session, which is like a credit message and ends the session.
//!
//! A broker sends a credit message when at least `T = ⌈D/2⌉` grants are unannounced (rule 1), or when at least one grant is
//! unannounced and the peer has used all announced credits (rule 2).
//!
//! **At most two credit messages are unprocessed**, so they never find the receive queue empty. Let A send credit messages
//! `M1 … Mk` to B, none of which B has processed, in this order. B processes a credit message by posting its receive again,
//! before B sends anything else.
//!
//! - None of `M2 … Mk` follows rule 2. It would require that B has used all credits that A announced, hence has processed
//!   the message that announced the last of them. That is `M1` or a later message, and B processes messages in order.
//! - So each of `M2 … Mk` announces at least `T` grants more than its predecessor. Let `a` be the largest count that B has
//!   processed. B has sent at most `a` messages, and A grants at most `D` more than it received, so `Mk` announces at most
//!   `a + D`. `M1` announces at least `a + 1`. Hence `(k − 1)·T ≤ D − 1`, and `k ≤ 2`.
//!
//! **No deadlock.** A posted request needs no further credit, because the credit is taken when the caller obtains the send
//! slot. So a broker's send queue drains with no help from the peer's application: the peer's receives are posted, and its
//! NIC acknowledges. Rule 2 announces a single grant to a peer that has no credits left, even if the application keeps all
//! other messages. So a sender waits for ever only if the receiving application releases no message at all.

use crate::mutation::mutant;

/// The receives for two credit messages and a leave message, in addition to those for which the broker grants credits.
pub const RESERVED_RECEIVES: u16 = 3;

/// The flag of a credit message in its immediate data.
const CREDIT_MESSAGE: u32 = 1 << 31;
/// The flag of a control message in its immediate data.
pub(crate) const CONTROL_MESSAGE: u32 = 1 << 30;
/// The flags of a leave message in its immediate data.
pub(crate) const LEAVE_MESSAGE: u32 = CREDIT_MESSAGE | CONTROL_MESSAGE;
/// The bits of a count.
const COUNT_MASK: u32 = CONTROL_MESSAGE - 1;
/// The maximum number of credits that a peer may grant.
const MAX_CREDITS: u32 = 1 << 16;

/// Returns the immediate data of a message, or of a credit message.
pub(crate) fn encode(count: u32, is_credit_message: bool) -> u32 {
    count & COUNT_MASK | if is_credit_message { CREDIT_MESSAGE } else { 0 }
}

/// Returns the count in a message's immediate data, and whether the message is a credit message.
pub(crate) fn decode(immediate: u32) -> (u32, bool) {
    (immediate & COUNT_MASK, immediate & CREDIT_MESSAGE != 0)
}

/// The credits that the peer granted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCredits {
    granted: u32,
    used: u32,
}

impl SendCredits {
    pub(crate) fn available(&self) -> u32 {
        if mutant!(IgnoreCredits) {
            return MAX_CREDITS;
        }
        self.granted.wrapping_sub(self.used) & COUNT_MASK
    }

    /// Takes credits, which must be available.
    pub(crate) fn take(&mut self, count: u32) {
        self.used = self.used.wrapping_add(count) & COUNT_MASK;
    }

    /// Returns a credit of a message that was not sent.
    pub(crate) fn put_back(&mut self) {
        self.used = self.used.wrapping_sub(1) & COUNT_MASK;
    }

    /// Processes the peer's initial count, unless a message with a later count has arrived. Returns `false` if the count
    /// is too large.
    #[must_use]
    pub(crate) fn start(&mut self, count: u32) -> bool {
        let is_older = self.granted.wrapping_sub(count) & COUNT_MASK <= MAX_CREDITS;
        is_older && self.granted != 0 || self.update(count)
    }

    /// Processes the peer's count. Returns `false` if the count decreased, or grants too many credits.
    #[must_use]
    pub(crate) fn update(&mut self, count: u32) -> bool {
        let increase = count.wrapping_sub(self.granted) & COUNT_MASK;
        if increase > MAX_CREDITS || self.available() + increase > MAX_CREDITS && !mutant!(IgnoreCredits) {
            return false;
        }
        self.granted = count & COUNT_MASK;
        true
    }
}

/// The credits that this broker grants to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvCredits {
    granted: u32,
    announced: u32,
    received: u32,
    threshold: u32,
}

impl RecvCredits {
    /// Returns the state after an initial grant that the peer knows. At most `max` credits are ever outstanding.
    pub(crate) fn new(initial: u32, max: u32) -> RecvCredits {
        let threshold = if mutant!(CreditMessagePerGrant) { 1 } else { max.div_ceil(2).max(1) };
        RecvCredits { granted: initial, announced: initial, received: 0, threshold }
    }

    /// Grants credits for posted receives.
    pub(crate) fn grant(&mut self, count: u32) {
        let count = if mutant!(GrantTwice) { 2 * count } else { count };
        self.granted = self.granted.wrapping_add(count) & COUNT_MASK;
    }

    /// Counts a message that used a credit. Returns `false` if the peer had none.
    #[must_use]
    pub(crate) fn receive(&mut self) -> bool {
        if self.outstanding() == 0 {
            return false;
        }
        self.received = self.received.wrapping_add(1) & COUNT_MASK;
        true
    }

    /// Returns the number of announced credits that the peer has not used.
    fn outstanding(&self) -> u32 {
        self.announced.wrapping_sub(self.received) & COUNT_MASK
    }

    /// Whether a credit message is due.
    pub(crate) fn is_due(&self) -> bool {
        let unannounced = self.granted.wrapping_sub(self.announced) & COUNT_MASK;
        if mutant!(NoCreditMessages) {
            return false;
        }
        unannounced >= self.threshold
            || unannounced > 0 && self.outstanding() == 0 && !mutant!(StarvedPeerIgnored)
    }

    /// Returns the count for a message that is posted now.
    pub(crate) fn announce(&mut self) -> u32 {
        self.announced = self.granted;
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_round_trips() {
        for (count, flag) in [(0, false), (5, true), (COUNT_MASK, true), (COUNT_MASK, false)] {
            assert_eq!(decode(encode(count, flag)), (count, flag));
        }
    }

    #[test]
    fn counts_wrap() {
        let mut credits = SendCredits { granted: COUNT_MASK - 1, used: COUNT_MASK - 1 };
        assert_eq!(credits.available(), 0);
        assert!(credits.update(3));
        assert_eq!(credits.available(), 5);
        credits.take(5);
        assert_eq!((credits.available(), credits.used), (0, 3));
        credits.put_back();
        assert_eq!(credits.available(), 1);
    }

    #[test]
    fn a_count_that_decreases_or_grants_too_much_is_refused() {
        let mut credits = SendCredits { granted: 10, used: 4 };
        assert!(!credits.update(9));
        assert!(!credits.update(4 + MAX_CREDITS + 1));
        assert!(credits.update(10));
        assert_eq!(credits.available(), 6);
    }

    #[test]
    fn a_message_without_credit_is_detected() {
        let mut credits = RecvCredits::new(1, 4);
        assert!(credits.receive());
        assert!(!credits.receive());
        credits.grant(1);
        // Granted, but not announced.
        assert!(!credits.receive());
        credits.announce();
        assert!(credits.receive());
    }

    #[test]
    fn a_credit_message_is_due_at_the_threshold_or_if_the_peer_has_no_credits() {
        let mut credits = RecvCredits::new(4, 4);
        assert!(credits.receive());
        credits.grant(1);
        assert!(!credits.is_due());
        assert!(credits.receive());
        credits.grant(1);
        assert!(credits.is_due());
        assert_eq!(credits.announce(), 6);
        assert!(!credits.is_due());
        for _ in 0..4 {
            assert!(credits.receive());
        }
        assert!(!credits.is_due());
        credits.grant(1);
        assert!(credits.is_due());
    }

    /// Runs random schedules of two brokers with small rings, and checks that at most two credit messages are
    /// unprocessed.
    #[test]
    fn at_most_two_credit_messages_are_unprocessed() {
        let mut state = 1u64;
        let mut random = move |end: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % end
        };
        let mut max_unprocessed = 0;
        for max in 1..9u32 {
            let mut sender = SendCredits::default();
            assert!(sender.update(max));
            let mut receiver = RecvCredits::new(max, max);
            let (mut held, mut messages) = (0u32, 0u32);
            let mut counts = std::collections::VecDeque::new();
            for _ in 0..20_000 {
                match random(5) {
                    0 if sender.available() > 0 => {
                        sender.take(1);
                        messages += 1;
                    }
                    1 if messages > 0 => {
                        assert!(receiver.receive());
                        messages -= 1;
                        held += 1;
                    }
                    2 if held > 0 => {
                        held -= 1;
                        receiver.grant(1);
                    }
                    3 if receiver.is_due() => counts.push_back(receiver.announce()),
                    4 if random(4) == 0 => {
                        if let Some(count) = counts.pop_front() {
                            assert!(sender.update(count));
                        }
                    }
                    _ => {}
                }
                max_unprocessed = max_unprocessed.max(counts.len());
                // The third reserved receive is for a leave message.
                assert!(counts.len() < usize::from(RESERVED_RECEIVES));
                assert!(messages + held <= max);
            }
        }
        assert_eq!(max_unprocessed, 2);
    }
}
