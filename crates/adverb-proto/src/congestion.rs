//! Congestion control of queue pairs.
//!
//! A switch whose queue grows marks packets (ECN's "congestion experienced"). The receiver responds with a congestion
//! notification packet (CNP, Annex A17.9), and the sender reduces its rate. A queue pair gets a [`Pacer`] with its
//! first CNP; before that, congestion control has no cost.

use core::time::Duration;

use crate::Time;
use crate::mutation::mutant;

/// The congestion control of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// No congestion control: the queue pair sends as fast as its window allows.
    #[default]
    None,
    /// DCQCN: a congestion notification packet (CNP) reduces the rate, which then increases with time and with bytes
    /// sent.
    Dcqcn(Dcqcn),
}

/// The parameters of DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015). Rates are
/// in bits per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Dcqcn {
    /// The rate of the link, which is also the maximum rate of a queue pair that has received a CNP.
    pub line_rate: u64,
    /// The minimum rate.
    pub min_rate: u64,
    /// The increase of the target rate per step of additive increase. If this value is less than 1/4096 of `line_rate`,
    /// the increase is 1/4096 of `line_rate`.
    pub additive_increase: u64,
    /// The increase of the target rate in the first step of hyper increase. In step *n* the target rate increases by
    /// *n* times this value.
    pub hyper_increase: u64,
    /// The number of fast recovery steps, in which the rate approaches the target rate before the target rate
    /// increases.
    pub fast_recovery_steps: u32,
    /// The number of sent bytes after which the next increase step occurs.
    pub byte_counter: u64,
    /// The time after which the next increase step occurs.
    pub increase_interval: Duration,
    /// The time without a CNP after which the congestion estimate (alpha) decreases. With a lower estimate, the next
    /// CNP reduces the rate less.
    pub alpha_interval: Duration,
    /// The gain *g* of the congestion estimate, as a shift: *g* is 2 to the power of `-gain_shift`.
    pub gain_shift: u8,
}

impl Dcqcn {
    /// Creates the parameters that the paper recommends, for a link of `line_rate` bits per second.
    ///
    /// ```
    /// # mod adverb { pub use adverb_proto as verbs; }
    /// use adverb::verbs::Dcqcn;
    ///
    /// let dcqcn = Dcqcn::new(100_000_000_000);
    /// assert_eq!(dcqcn.additive_increase, 40_000_000);
    /// ```
    pub const fn new(line_rate: u64) -> Dcqcn {
        Dcqcn {
            line_rate,
            min_rate: 10_000_000,
            additive_increase: 40_000_000,
            hyper_increase: 200_000_000,
            fast_recovery_steps: 5,
            byte_counter: 10_000_000,
            increase_interval: Duration::from_micros(55),
            alpha_interval: Duration::from_micros(55),
            gain_shift: 8,
        }
    }
}

/// The minimum interval between two CNPs of a receiver (50 µs in the paper), independent of the number of marked
/// packets.
pub(crate) const CNP_INTERVAL: Duration = Duration::from_micros(50);

/// The time after a CNP within which another CNP is a duplicate.
const REDUCTION_INTERVAL: Duration = Duration::from_micros(4);

/// The value 1 of [`Pacer::alpha`], a fixed-point number.
const ONE: u64 = 1 << 16;

/// The maximum unused sending time that later packets may use. Timers aren't exact, so a pause may be too long.
const SLACK: Duration = Duration::from_micros(10);

/// The number of bytes that a packet occupies on a link besides its payload: headers, checksums, gaps.
const OVERHEAD: u64 = 90;

/// The rate control of a queue pair that has received a CNP.
#[derive(Debug)]
pub(crate) struct Pacer {
    params: Dcqcn,
    rate: u64,
    /// The target rate of the recovery.
    target: u64,
    /// The congestion estimate, from 0 to [`ONE`].
    alpha: u64,
    reduced_at: Time,
    decay_at: Time,
    increase_at: Time,
    bytes_left: u64,
    timer_steps: u32,
    byte_steps: u32,
    /// The time at which the next packet may be sent.
    next: Time,
    /// Whether a packet waits for that time.
    pub(crate) paused: bool,
}

impl Pacer {
    pub(crate) fn new(now: Time, mut params: Dcqcn) -> Pacer {
        // Values that are too small are raised: rates must be positive, and the recovery must end. A shift above 16 is
        // reduced to 16, because the gain would be 0.
        params.min_rate = params.min_rate.max(1000);
        params.line_rate = params.line_rate.max(params.min_rate);
        params.additive_increase = params.additive_increase.max(params.line_rate >> 12);
        params.increase_interval = params.increase_interval.max(Duration::from_micros(1));
        params.alpha_interval = params.alpha_interval.max(Duration::from_micros(1));
        params.byte_counter = params.byte_counter.max(1 << 12);
        params.gain_shift = params.gain_shift.min(16);
        Pacer {
            params,
            rate: params.line_rate,
            target: params.line_rate,
            alpha: ONE,
            reduced_at: Time::ZERO,
            decay_at: now + params.alpha_interval,
            increase_at: now + params.increase_interval,
            bytes_left: params.byte_counter,
            timer_steps: 0,
            byte_steps: 0,
            next: now,
            paused: false,
        }
    }

    pub(crate) const fn rate(&self) -> u64 {
        self.rate
    }

    /// Handles a CNP: reduces the rate, and restarts the recovery. A duplicate CNP has no effect.
    pub(crate) fn handle_cnp(&mut self, now: Time) {
        if now < self.reduced_at + REDUCTION_INTERVAL && self.rate < self.params.line_rate {
            return;
        }
        self.advance(now);
        let Dcqcn { min_rate, gain_shift, byte_counter, increase_interval, alpha_interval, .. } = self.params;
        self.target = self.rate;
        let cut = u128::from(self.rate) * u128::from(self.alpha) / u128::from(2 * ONE);
        self.rate = self.rate.saturating_sub(cut as u64).max(min_rate);
        self.alpha = (self.alpha - (self.alpha >> gain_shift) + (ONE >> gain_shift)).min(ONE);
        self.reduced_at = now;
        self.decay_at = now + alpha_interval;
        self.increase_at = now + increase_interval;
        self.bytes_left = byte_counter;
        self.timer_steps = 0;
        self.byte_steps = 0;
    }

    /// Performs the steps that are due at `now`. The pacer calls this on use, so it needs no timer. The number of steps
    /// is bounded even after a long idle time: they end when the rate is the line rate and the congestion estimate is
    /// 0.
    fn advance(&mut self, now: Time) {
        let Dcqcn { gain_shift, increase_interval, alpha_interval, line_rate, .. } = self.params;
        while self.alpha > 0 && self.decay_at <= now {
            self.alpha -= (self.alpha >> gain_shift).max(1);
            self.decay_at = self.decay_at + alpha_interval;
        }
        while self.rate < line_rate && self.increase_at <= now {
            self.increase_at = self.increase_at + increase_interval;
            self.timer_steps += 1;
            self.increase();
        }
        if self.alpha == 0 {
            self.decay_at = self.decay_at.max(now);
        }
        if self.rate >= line_rate {
            self.increase_at = self.increase_at.max(now);
        }
    }

    /// Performs one step of the recovery. Fast recovery halves the distance to the target. Then additive increase
    /// raises the target. After enough steps of both time and bytes, hyper increase raises the target faster.
    fn increase(&mut self) {
        if mutant!(RateNeverRecovers) {
            return;
        }
        let Dcqcn { line_rate, additive_increase, hyper_increase, fast_recovery_steps, .. } = self.params;
        let max_steps = self.timer_steps.max(self.byte_steps);
        let min_steps = self.timer_steps.min(self.byte_steps);
        if min_steps > fast_recovery_steps {
            let steps = u64::from(min_steps - fast_recovery_steps);
            self.target = self.target.saturating_add(hyper_increase.saturating_mul(steps));
        } else if max_steps > fast_recovery_steps {
            self.target = self.target.saturating_add(additive_increase);
        }
        self.target = self.target.min(line_rate);
        self.rate = self.rate.midpoint(self.target);
        // Halving approaches the target, but never reaches it.
        if self.target - self.rate <= line_rate >> 10 {
            self.rate = self.target;
        }
    }

    /// Pauses the flow if its next packet is not due. Returns whether the flow is paused.
    pub(crate) fn pause_if_early(&mut self, now: Time) -> bool {
        if mutant!(RateNotEnforced) {
            return false;
        }
        self.advance(now);
        self.paused = self.next > now;
        self.paused
    }

    /// Returns the time at which the waiting packet may be sent.
    pub(crate) const fn deadline(&self) -> Option<Time> {
        if self.paused { Some(self.next) } else { None }
    }

    /// Accounts for a sent packet.
    pub(crate) fn record_sent(&mut self, now: Time, payload_len: u32) {
        let bytes = u64::from(payload_len) + OVERHEAD;
        let Dcqcn { line_rate, byte_counter, .. } = self.params;
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => self.bytes_left = left,
            None if self.rate >= line_rate => self.bytes_left = byte_counter,
            None => {
                self.bytes_left = byte_counter;
                self.byte_steps += 1;
                self.increase();
            }
        }
        let earliest = Time::from_nanos(now.as_nanos().saturating_sub(SLACK.as_nanos() as u64));
        self.next =
            self.next.max(earliest) + Duration::from_nanos(bytes.saturating_mul(8_000_000_000) / self.rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE_RATE: u64 = 10_000_000_000;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    /// Returns a pacer that has received one CNP, at time 0.
    fn pacer_after_cnp() -> Pacer {
        let mut pacer = Pacer::new(at(0), Dcqcn::new(LINE_RATE));
        pacer.handle_cnp(at(0));
        pacer
    }

    #[test]
    fn first_cnp_halves_the_rate() {
        assert_eq!(pacer_after_cnp().rate(), LINE_RATE / 2);
    }

    #[test]
    fn cnps_within_the_reduction_interval_count_once() {
        let mut pacer = pacer_after_cnp();
        pacer.handle_cnp(at(3));
        assert_eq!(pacer.rate(), LINE_RATE / 2);
        pacer.handle_cnp(at(50));
        assert_eq!(pacer.rate(), LINE_RATE / 4);
    }

    #[test]
    fn rate_never_falls_below_the_minimum() {
        let mut pacer = pacer_after_cnp();
        for next_cnp in 1..100 {
            pacer.handle_cnp(at(50 * next_cnp));
        }
        assert_eq!(pacer.rate(), Dcqcn::new(LINE_RATE).min_rate);
    }

    #[test]
    fn fast_recovery_halves_the_distance_and_additive_increase_raises_the_target() {
        let mut pacer = pacer_after_cnp();
        // The rate approaches the target, which is the line rate here, from half of it.
        for (step, left) in [(1, 4), (2, 8), (3, 16), (4, 32), (5, 64)] {
            pacer.advance(at(55 * step));
            assert_eq!(pacer.rate(), LINE_RATE - LINE_RATE / left);
        }
        // After another CNP, the target is the rate before the reduction.
        pacer.handle_cnp(at(55 * 5));
        let target = LINE_RATE - LINE_RATE / 64;
        for step in 1..=5 {
            pacer.advance(at(55 * (5 + step)));
        }
        assert!(pacer.rate() < target && pacer.target == target);
        pacer.advance(at(55 * 11));
        assert_eq!(pacer.target, target + 40_000_000, "the sixth step raises the target");
    }

    #[test]
    fn hyper_increase_needs_both_time_and_byte_steps() {
        let mut params = Dcqcn::new(LINE_RATE);
        params.byte_counter = 10_000;
        let mut pacer = Pacer::new(at(0), params);
        for next_cnp in 0..20 {
            pacer.handle_cnp(at(50 * next_cnp));
        }
        let start = 50 * 19;
        let mut now = start;
        let mut raises = Vec::new();
        for _ in 0..8 {
            now += 55;
            let before = pacer.target;
            pacer.advance(at(now));
            for _ in 0..10 {
                pacer.record_sent(at(now), 1000);
            }
            raises.push(pacer.target - before);
        }
        assert!(raises[..5].iter().all(|raise| *raise == 0), "{raises:?}");
        assert!(raises[5] >= 40_000_000, "{raises:?}");
        // From the sixth step of both kinds on, hyper increase raises the target, more with each step.
        assert!(raises[6] > 200_000_000 && raises[7] > raises[6], "{raises:?}");
    }

    #[test]
    fn time_without_cnps_restores_the_line_rate_and_makes_the_next_reduction_smaller() {
        let mut pacer = pacer_after_cnp();
        pacer.advance(at(1_000_000));
        assert_eq!((pacer.rate(), pacer.alpha), (LINE_RATE, 0));
        pacer.handle_cnp(at(1_000_000));
        assert_eq!(pacer.rate(), LINE_RATE, "the congestion estimate is 0");
        pacer.handle_cnp(at(1_000_050));
        assert!(pacer.rate() < LINE_RATE && pacer.rate() > LINE_RATE - LINE_RATE / 100);
    }

    #[test]
    fn packets_are_paced_at_the_rate() {
        let mut pacer = pacer_after_cnp();
        let mut now = at(20);
        let start = now;
        let mut sent = 0u64;
        while now < at(50) {
            if pacer.pause_if_early(now) {
                now = pacer.deadline().unwrap();
            }
            pacer.record_sent(now, 1024);
            sent += 1024 + OVERHEAD;
        }
        let allowed = (now - start + SLACK).as_nanos() as u64 * (LINE_RATE / 2) / 8_000_000_000;
        assert!(sent <= allowed + 2 * 1200 && sent * 10 > allowed * 9, "{sent} of {allowed}");
    }

    #[test]
    fn line_rate_is_enforced_after_recovery() {
        let mut pacer = pacer_after_cnp();
        pacer.advance(at(1_000_000));
        let mut now = at(1_000_000);
        let start = now;
        for _ in 0..1000 {
            if pacer.pause_if_early(now) {
                now = pacer.deadline().unwrap();
            }
            pacer.record_sent(now, 4096);
        }
        let wanted = 1000 * (4096 + OVERHEAD) * 8_000_000_000 / LINE_RATE;
        let elapsed = (now - start).as_nanos() as u64;
        assert!(elapsed.abs_diff(wanted) * 100 < wanted, "{elapsed} ns instead of {wanted}");
    }

    #[test]
    fn invalid_parameters_are_corrected() {
        let nonsense = Dcqcn {
            line_rate: 0,
            min_rate: 0,
            additive_increase: 0,
            hyper_increase: u64::MAX,
            fast_recovery_steps: 0,
            byte_counter: 0,
            increase_interval: Duration::ZERO,
            alpha_interval: Duration::ZERO,
            gain_shift: 255,
        };
        let mut pacer = Pacer::new(at(0), nonsense);
        for step in 0..100 {
            pacer.handle_cnp(at(step * 7));
            pacer.pause_if_early(at(step * 100));
            pacer.record_sent(at(step * 100), u32::MAX);
        }
        pacer.advance(Time::MAX);
    }
}
