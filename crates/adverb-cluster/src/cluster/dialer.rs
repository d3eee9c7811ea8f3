//! The decisions about attempts to establish sessions, as a state machine without I/O: the members to dial or to invite, the
//! order, and the pauses after failures.
//!
//! Of two members, the one with the larger number dials, so no two attempts cross. The other one can invite it to do so.

use std::collections::BTreeSet;
use std::time::Duration;

use adverb_cluster_proto::PeerId;
use adverb_proto::Time;

use super::exchange::Purpose;

/// The minimum and maximum pause between attempts to reach a member.
pub(super) const MIN_BACKOFF: Duration = Duration::from_millis(10);
pub(super) const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// The pause between attempts to reach a member that has left. It sends an invitation when it returns.
const LEFT_BACKOFF: Duration = Duration::from_secs(10);
/// The maximum number of attempts at a time. Each has a socket.
const MAX_ATTEMPTS: usize = 256;
/// The time between warnings about the same member.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// An attempt to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attempt {
    pub(super) peer: PeerId,
    pub(super) thread: u16,
    pub(super) purpose: Purpose,
}

/// The end of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Established,
    /// The member can't be reached, so attempts for other threads would fail too.
    Unreachable,
    /// The attempt failed, but those of other threads may succeed.
    Failed,
}

#[derive(Debug)]
pub(super) struct Dialer {
    this_member: u16,
    is_lazy: bool,
    /// Whether the application polls the broker of a thread.
    polled: Vec<bool>,
    peers: Vec<DialedPeer>,
    /// The peers in the phase `Due`, by time.
    due: BTreeSet<(Time, u16)>,
    attempt_count: usize,
}

#[derive(Debug)]
struct DialedPeer {
    /// The sessions, by thread.
    sessions: Vec<Session>,
    phase: Phase,
    /// The first thread that was not tried in this round. A round tries all threads without a session.
    next_thread: u16,
    has_round_failed: bool,
    backoff: Duration,
    /// The time before which no invitation causes an attempt.
    quiet_until: Time,
    /// Whether the member has left and not returned.
    has_left: bool,
    /// Whether the member must be informed that this member has joined.
    must_invite: bool,
    warned_at: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Session {
    Absent,
    /// The application or the peer asked for it.
    Wanted,
    Open,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Due(Time),
    Attempting,
}

impl Dialer {
    pub(super) fn new(this_member: u16, member_count: u16, thread_count: u16, is_lazy: bool) -> Dialer {
        let threads = usize::from(thread_count);
        let peer = |member| DialedPeer {
            sessions: vec![Session::Absent; threads],
            phase: Phase::Idle,
            next_thread: 0,
            has_round_failed: false,
            backoff: MIN_BACKOFF,
            quiet_until: Time::ZERO,
            has_left: false,
            must_invite: !is_lazy && member > this_member,
            warned_at: None,
        };
        Dialer {
            this_member,
            is_lazy,
            polled: vec![false; threads],
            peers: (0..member_count).map(peer).collect(),
            due: BTreeSet::new(),
            attempt_count: 0,
        }
    }

    /// Sets whether the application polls the broker of a thread.
    pub(super) fn set_polled(&mut self, thread: u16, is_polled: bool, now: Time) {
        if let Some(polled) = self.polled.get_mut(usize::from(thread)) {
            *polled = is_polled;
        }
        for peer in (0..self.peers.len()).map(|index| PeerId(index as u16)) {
            self.schedule(peer, now);
        }
    }

    /// Returns the number of open sessions with a peer, of threads whose brokers are polled.
    pub(super) fn open_session_count(&self, peer: PeerId) -> usize {
        let Some(state) = self.peers.get(usize::from(peer.0)) else { return 0 };
        let threads = state.sessions.iter().zip(&self.polled);
        threads.filter(|(session, is_polled)| **session == Session::Open && **is_polled).count()
    }

    /// Processes the application's request for a session.
    pub(super) fn handle_wanted(&mut self, peer: PeerId, thread: u16, now: Time) {
        let is_new = self.mark_wanted(peer, thread);
        // A repeated request causes no further attempts.
        if is_new || self.peer_mut(peer).is_some_and(|state| state.has_left) {
            self.hasten(peer, now);
        }
    }

    /// Processes a peer's invitation.
    pub(super) fn handle_invitation(&mut self, peer: PeerId, thread: u16, now: Time) {
        if self.is_lazy {
            self.mark_wanted(peer, thread);
        }
        self.hasten(peer, now);
    }

    /// Marks a session as wanted. Returns whether it was not before.
    fn mark_wanted(&mut self, peer: PeerId, thread: u16) -> bool {
        let mut is_new = false;
        self.set_session(peer, thread, |session| match session {
            Session::Absent => {
                is_new = true;
                Session::Wanted
            }
            Session::Wanted | Session::Open => session,
        });
        is_new
    }

    /// Makes an attempt due now, or a short time after the last one.
    fn hasten(&mut self, peer: PeerId, now: Time) {
        let Some(state) = self.peer_mut(peer) else { return };
        (state.has_left, state.backoff) = (false, MIN_BACKOFF);
        let at = now.max(state.quiet_until);
        if matches!(state.phase, Phase::Due(due) if due > at) {
            self.set_phase(peer, Phase::Due(at));
        }
        self.schedule(peer, at);
    }

    pub(super) fn handle_opened(&mut self, peer: PeerId, thread: u16, now: Time) {
        self.set_session(peer, thread, |_| Session::Open);
        if let Some(state) = self.peer_mut(peer) {
            (state.has_left, state.backoff, state.must_invite) = (false, MIN_BACKOFF, false);
        }
        self.schedule(peer, now);
    }

    pub(super) fn handle_ended(&mut self, peer: PeerId, thread: u16, has_left: bool, now: Time) {
        self.set_session(peer, thread, |_| Session::Absent);
        let Some(state) = self.peer_mut(peer) else { return };
        state.has_left |= has_left;
        if state.has_left && state.phase == Phase::Idle && self.next_attempt(peer).is_some() {
            self.set_phase(peer, Phase::Due(now + LEFT_BACKOFF));
        } else {
            self.schedule(peer, now);
        }
    }

    /// Returns an attempt that is due. The caller must report its end.
    pub(super) fn poll_attempt(&mut self, now: Time) -> Option<Attempt> {
        while self.attempt_count < MAX_ATTEMPTS {
            let (_, peer) = self.due.first().filter(|(at, _)| *at <= now).copied()?;
            let peer = PeerId(peer);
            match self.next_attempt(peer) {
                Some(attempt) => {
                    self.set_phase(peer, Phase::Attempting);
                    self.attempt_count += 1;
                    return Some(attempt);
                }
                None => self.set_phase(peer, Phase::Idle),
            }
        }
        None
    }

    /// Returns the time at which [`poll_attempt`](Dialer::poll_attempt) may return an attempt.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let at = self.due.first().map(|(at, _)| *at);
        at.filter(|_| self.attempt_count < MAX_ATTEMPTS)
    }

    /// Processes the end of an attempt. Returns whether a failure must be logged as a warning.
    pub(super) fn handle_finished(&mut self, attempt: Attempt, outcome: Outcome, now: Time) -> bool {
        let Attempt { peer, thread, purpose } = attempt;
        self.attempt_count -= 1;
        let is_lazy = self.is_lazy;
        let Some(state) = self.peer_mut(peer) else { return false };
        let has_failed = outcome != Outcome::Established;
        state.quiet_until = now + MIN_BACKOFF;
        let is_quiet = state.warned_at.is_some_and(|at| now < at + WARNING_INTERVAL);
        // A failure is expected if the member was never started, or has left.
        let is_expected = state.has_left || state.must_invite;
        let is_warning = has_failed && !is_quiet && !is_expected;
        if is_warning {
            state.warned_at = Some(now);
        }
        state.must_invite = false;
        state.has_round_failed |= has_failed;
        state.next_thread = if outcome == Outcome::Unreachable { u16::MAX } else { thread + 1 };
        self.set_phase(peer, Phase::Idle);
        if self.next_attempt(peer).is_some() {
            self.set_phase(peer, Phase::Due(now));
            return is_warning;
        }
        let Some(state) = self.peer_mut(peer) else { return false };
        state.next_thread = 0;
        // An invited member needs time to dial.
        let must_wait =
            std::mem::take(&mut state.has_round_failed) || is_lazy && purpose == Purpose::Invitation;
        let pause = match must_wait {
            true if state.has_left => LEFT_BACKOFF,
            true => state.backoff,
            false => Duration::ZERO,
        };
        state.backoff = if must_wait { (state.backoff * 2).min(MAX_BACKOFF) } else { MIN_BACKOFF };
        if self.next_attempt(peer).is_some() {
            self.set_phase(peer, Phase::Due(now + pause));
        }
        is_warning
    }

    /// Makes an attempt due if one is needed, unless one is due already.
    fn schedule(&mut self, peer: PeerId, now: Time) {
        let is_idle = self.peers.get(usize::from(peer.0)).is_some_and(|state| state.phase == Phase::Idle);
        if is_idle && self.next_attempt(peer).is_some() {
            self.set_phase(peer, Phase::Due(now));
        }
    }

    /// Returns the next attempt of a peer in this round.
    fn next_attempt(&self, peer: PeerId) -> Option<Attempt> {
        let state = self.peers.get(usize::from(peer.0)).filter(|_| peer.0 != self.this_member)?;
        let dials = peer.0 < self.this_member;
        let is_missing = |(thread, session): &(u16, &Session)| {
            let is_wanted = match session {
                Session::Absent if dials => !self.is_lazy,
                Session::Absent => state.must_invite,
                Session::Wanted => true,
                Session::Open => false,
            };
            is_wanted && *thread >= state.next_thread && self.polled[usize::from(*thread)]
        };
        let (thread, _) = (0..).zip(&state.sessions).find(is_missing)?;
        let purpose = if dials { Purpose::Session } else { Purpose::Invitation };
        Some(Attempt { peer, thread, purpose })
    }

    fn set_session(&mut self, peer: PeerId, thread: u16, change: impl FnOnce(Session) -> Session) {
        let state = self.peer_mut(peer);
        if let Some(session) = state.and_then(|state| state.sessions.get_mut(usize::from(thread))) {
            *session = change(*session);
        }
    }

    fn set_phase(&mut self, peer: PeerId, phase: Phase) {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return };
        if let Phase::Due(at) = std::mem::replace(&mut state.phase, phase) {
            self.due.remove(&(at, peer.0));
        }
        if let Phase::Due(at) = phase {
            self.due.insert((at, peer.0));
        }
    }

    fn peer_mut(&mut self, peer: PeerId) -> Option<&mut DialedPeer> {
        self.peers.get_mut(usize::from(peer.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Time {
        Time::ZERO + MS * ms
    }

    fn dial(peer: u16, thread: u16) -> Attempt {
        Attempt { peer: PeerId(peer), thread, purpose: Purpose::Session }
    }

    fn invite(peer: u16, thread: u16) -> Attempt {
        Attempt { peer: PeerId(peer), thread, purpose: Purpose::Invitation }
    }

    fn attempts(dialer: &mut Dialer, now: Time) -> Vec<Attempt> {
        std::iter::from_fn(|| dialer.poll_attempt(now)).collect()
    }

    /// Returns the dialer of member 2 of 4, with two threads of which the first one is polled.
    fn eager() -> Dialer {
        let mut dialer = Dialer::new(2, 4, 2, false);
        dialer.set_polled(0, true, at(0));
        dialer
    }

    #[test]
    fn smaller_numbers_are_dialed_and_larger_ones_are_invited_once() {
        let mut dialer = Dialer::new(2, 4, 2, false);
        assert_eq!(attempts(&mut dialer, at(0)), []);
        dialer.set_polled(0, true, at(0));
        assert_eq!(attempts(&mut dialer, at(0)), [dial(0, 0), dial(1, 0), invite(3, 0)]);
        dialer.handle_finished(invite(3, 0), Outcome::Unreachable, at(1));
        for peer in [0, 1] {
            dialer.handle_opened(PeerId(peer), 0, at(1));
            dialer.handle_finished(dial(peer, 0), Outcome::Established, at(1));
        }
        assert_eq!(dialer.poll_timeout(), None);
        dialer.set_polled(1, true, at(2));
        assert_eq!(attempts(&mut dialer, at(2)), [dial(0, 1), dial(1, 1)]);
    }

    #[test]
    fn pauses_double_until_the_maximum() {
        let mut dialer = eager();
        let mut now = at(0);
        let mut pauses = Vec::new();
        assert_eq!(attempts(&mut dialer, now).len(), 3);
        for round in 0..9 {
            dialer.handle_finished(dial(0, 0), Outcome::Unreachable, now);
            let next = dialer.poll_timeout().unwrap();
            pauses.push((next - now).as_millis());
            assert_eq!(attempts(&mut dialer, now), [], "round {round}");
            now = next;
            assert_eq!(attempts(&mut dialer, now), [dial(0, 0)]);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        // The other member is not affected, and a success resets the pause.
        dialer.handle_opened(PeerId(0), 0, now);
        dialer.handle_finished(dial(0, 0), Outcome::Established, now);
        dialer.handle_ended(PeerId(0), 0, false, now);
        assert_eq!(attempts(&mut dialer, now), [dial(0, 0)]);
        dialer.handle_finished(dial(0, 0), Outcome::Unreachable, now);
        assert_eq!(dialer.poll_timeout(), Some(now + MIN_BACKOFF));
    }

    #[test]
    fn a_thread_that_fails_delays_no_other_thread() {
        let mut dialer = Dialer::new(1, 2, 3, false);
        (0..3).for_each(|thread| dialer.set_polled(thread, true, at(0)));
        assert_eq!(attempts(&mut dialer, at(0)), [dial(0, 0)]);
        dialer.handle_finished(dial(0, 0), Outcome::Failed, at(1));
        assert_eq!(attempts(&mut dialer, at(1)), [dial(0, 1)]);
        dialer.handle_opened(PeerId(0), 1, at(2));
        dialer.handle_finished(dial(0, 1), Outcome::Established, at(2));
        assert_eq!(attempts(&mut dialer, at(2)), [dial(0, 2)]);
        // A member that can't be reached ends the round.
        dialer.handle_finished(dial(0, 2), Outcome::Unreachable, at(3));
        assert_eq!(dialer.poll_timeout(), Some(at(13)));
        assert_eq!(attempts(&mut dialer, at(13)), [dial(0, 0)]);
        dialer.handle_finished(dial(0, 0), Outcome::Unreachable, at(13));
        assert_eq!(dialer.poll_timeout(), Some(at(33)));
    }

    #[test]
    fn a_member_that_left_is_dialed_seldom_until_it_invites() {
        let mut dialer = eager();
        attempts(&mut dialer, at(0));
        dialer.handle_opened(PeerId(0), 0, at(0));
        dialer.handle_finished(dial(0, 0), Outcome::Established, at(0));
        dialer.handle_ended(PeerId(0), 0, true, at(5));
        assert_eq!(dialer.poll_timeout(), Some(at(5) + LEFT_BACKOFF));
        let now = at(5) + LEFT_BACKOFF;
        assert_eq!(attempts(&mut dialer, now), [dial(0, 0)]);
        assert!(!dialer.handle_finished(dial(0, 0), Outcome::Unreachable, now), "no warning");
        assert_eq!(dialer.poll_timeout(), Some(now + LEFT_BACKOFF));
        // Many invitations cause one attempt, after a pause.
        dialer.handle_invitation(PeerId(0), 0, now);
        dialer.handle_invitation(PeerId(0), 0, now);
        assert_eq!(attempts(&mut dialer, now), []);
        assert_eq!(attempts(&mut dialer, now + MIN_BACKOFF), [dial(0, 0)]);
        // A member that left and has a larger number dials when it returns.
        dialer.handle_opened(PeerId(3), 0, now);
        dialer.handle_ended(PeerId(3), 0, true, now);
        assert_eq!(dialer.poll_timeout(), None);
    }

    #[test]
    fn lazy_sessions_are_established_when_they_are_wanted() {
        let mut dialer = Dialer::new(1, 3, 2, true);
        (0..2).for_each(|thread| dialer.set_polled(thread, true, at(0)));
        assert_eq!(dialer.poll_timeout(), None);
        dialer.handle_wanted(PeerId(0), 1, at(0));
        dialer.handle_wanted(PeerId(2), 0, at(0));
        assert_eq!(attempts(&mut dialer, at(0)), [dial(0, 1), invite(2, 0)]);
        // The invitation is repeated until the session is open.
        dialer.handle_finished(invite(2, 0), Outcome::Established, at(1));
        assert_eq!(dialer.poll_timeout(), Some(at(11)));
        dialer.handle_wanted(PeerId(2), 0, at(2));
        assert_eq!(dialer.poll_timeout(), Some(at(11)), "the request is known");
        assert_eq!(attempts(&mut dialer, at(11)), [invite(2, 0)]);
        dialer.handle_opened(PeerId(2), 0, at(12));
        dialer.handle_finished(invite(2, 0), Outcome::Established, at(12));
        dialer.handle_opened(PeerId(0), 1, at(12));
        dialer.handle_finished(dial(0, 1), Outcome::Established, at(12));
        assert_eq!(dialer.poll_timeout(), None);
        // A session that ended is established when it is wanted again.
        dialer.handle_ended(PeerId(0), 1, false, at(13));
        assert_eq!(dialer.poll_timeout(), None);
        dialer.handle_wanted(PeerId(0), 1, at(14));
        assert_eq!(dialer.poll_timeout(), Some(at(22)), "the last attempt was at 12 ms");
        // An invitation requests a session, too.
        dialer.handle_invitation(PeerId(0), 0, at(30));
        assert_eq!(attempts(&mut dialer, at(30)), [dial(0, 0)]);
    }

    #[test]
    fn warnings_about_a_member_are_a_minute_apart() {
        let mut dialer = eager();
        let mut now = at(0);
        let mut warnings = 0;
        attempts(&mut dialer, now);
        while now < at(100_000) {
            warnings += u32::from(dialer.handle_finished(dial(0, 0), Outcome::Unreachable, now));
            now = dialer.poll_timeout().unwrap();
            assert_eq!(attempts(&mut dialer, now), [dial(0, 0)]);
        }
        assert_eq!(warnings, 2);
    }

    #[test]
    fn dead_members_leave_attempts_for_others() {
        let mut dialer = Dialer::new(1000, 1001, 1, false);
        dialer.set_polled(0, true, at(0));
        // All but the last 10 are dead: their attempts end after 2 s. Live ones take no time.
        let mut in_flight = std::collections::VecDeque::new();
        let (mut now, mut established) = (at(0), Vec::new());
        while established.len() < 10 {
            assert!(now < at(60_000), "live members wait for dead ones");
            for attempt in attempts(&mut dialer, now) {
                if attempt.peer.0 < 990 {
                    in_flight.push_back((now + 2000 * MS, attempt));
                } else {
                    dialer.handle_opened(attempt.peer, 0, now);
                    dialer.handle_finished(attempt, Outcome::Established, now);
                    established.push(now);
                }
            }
            assert!(in_flight.len() <= MAX_ATTEMPTS);
            now = in_flight.front().map_or(now, |(at, _)| *at);
            while in_flight.front().is_some_and(|(at, _)| *at <= now) {
                let (_, attempt) = in_flight.pop_front().unwrap();
                dialer.handle_finished(attempt, Outcome::Unreachable, now);
            }
        }
        // Four rounds of 256 attempts.
        assert_eq!(established.last(), Some(&at(6000)));
    }
}
