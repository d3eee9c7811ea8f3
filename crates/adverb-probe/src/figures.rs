//! The figures of one probe, computed from its six timestamps.

use std::fmt;
use std::time::Duration;

use crate::stamp::{Stamp, StampKind};

/// The timestamps of an answered probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeStamps {
    /// T1: the prober posted the probe. A process timestamp.
    pub posted: Stamp,
    /// T2: the send completion of the probe.
    pub sent: Stamp,
    /// T3 and T4, as ACK2 reports them.
    pub responder: ResponderStamps,
    /// T5: the receive completion of ACK1.
    pub acked: Stamp,
    /// T6: the prober processed ACK1. A process timestamp.
    pub processed: Stamp,
}

/// The timestamps of the responder, in nanoseconds of a clock of the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResponderStamps {
    /// T3: the receive completion of the probe.
    pub received: u64,
    /// The component that observed T3.
    pub received_kind: StampKind,
    /// T4: the send completion of ACK1, by the same clock as T3.
    pub acked: u64,
    /// The component that observed T4.
    pub acked_kind: StampKind,
}

/// The figures of an answered probe. Each is computed from differences within one clock, so no clocks need to be
/// synchronized.
///
/// ```
/// use adverb::probe::figures::{Figures, ProbeStamps, ResponderStamps};
/// use adverb::probe::stamp::{Stamp, StampKind};
/// use std::time::Duration;
///
/// let [process, kernel] = [StampKind::Process, StampKind::Kernel];
/// let stamps = ProbeStamps {
///     posted: Stamp { nanos: 1_000, kind: process },
///     sent: Stamp { nanos: 3_000, kind: kernel },
///     responder: ResponderStamps {
///         received: 900_000,
///         received_kind: kernel,
///         acked: 905_000,
///         acked_kind: kernel,
///     },
///     acked: Stamp { nanos: 18_000, kind: kernel },
///     processed: Stamp { nanos: 22_000, kind: process },
/// };
/// let figures = Figures::compute(&stamps)?;
/// assert_eq!(figures.network_rtt(), Some(Duration::from_micros(10)));
/// assert_eq!(figures.prober_delay, Duration::from_micros(6));
/// assert_eq!(figures.responder_delay, Duration::from_micros(5));
/// # Ok::<(), adverb::probe::figures::Impossible>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Figures {
    /// (T5 − T2) − (T4 − T3): the round trip without the responder's delay. It is the round-trip time of the network only
    /// if [`network_rtt`](Figures::network_rtt) returns it. With a process timestamp among T2 to T5, it also contains the
    /// time until a process was scheduled.
    pub round_trip: Duration,
    /// (T6 − T1) − (T5 − T2): the delay of the prober's host.
    pub prober_delay: Duration,
    /// T4 − T3: the delay of the responder's host.
    pub responder_delay: Duration,
    /// The least accurate of T2 to T5.
    pub stamps: StampKind,
}

impl Figures {
    /// Computes the figures of a probe.
    ///
    /// # Errors
    ///
    /// Returns the reason if the timestamps contradict each other. Such a probe was answered, but it has no figures.
    pub fn compute(stamps: &ProbeStamps) -> Result<Figures, Impossible> {
        let responder = &stamps.responder;
        let waited = stamps.acked.nanos_since(stamps.sent).ok_or(Impossible::ClocksDiffer)?;
        let total = stamps.processed.nanos_since(stamps.posted).ok_or(Impossible::ClocksDiffer)?;
        let responder_delay = responder.acked.wrapping_sub(responder.received).cast_signed();
        if responder_delay < 0 {
            return Err(Impossible::ResponderDelay);
        }
        if waited < 0 {
            return Err(Impossible::AckBeforeProbe);
        }
        let round_trip = waited.checked_sub(responder_delay).filter(|&nanos| nanos >= 0);
        let round_trip = round_trip.ok_or(Impossible::RoundTrip)?;
        let prober_delay = total.checked_sub(waited).filter(|&nanos| nanos >= 0);
        let prober_delay = prober_delay.ok_or(Impossible::ProberDelay)?;
        let responder_stamps = responder.received_kind.min(responder.acked_kind);
        Ok(Figures {
            round_trip: Duration::from_nanos(round_trip.unsigned_abs()),
            prober_delay: Duration::from_nanos(prober_delay.unsigned_abs()),
            responder_delay: Duration::from_nanos(responder_delay.unsigned_abs()),
            stamps: stamps.sent.kind.min(stamps.acked.kind).min(responder_stamps),
        })
    }

    /// Returns the round-trip time of the network, or `None` if one of T2 to T5 is a process timestamp:
    /// [`round_trip`](Figures::round_trip) then includes the time until a process was scheduled. On an in-memory
    /// [`Switch`](adverb_verbs::Switch), all timestamps are process timestamps.
    pub fn network_rtt(&self) -> Option<Duration> {
        (self.stamps > StampKind::Process).then_some(self.round_trip)
    }
}

/// A contradiction between the timestamps of an answered probe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Impossible {
    /// T4 is earlier than T3.
    ResponderDelay,
    /// T5 is earlier than T2.
    AckBeforeProbe,
    /// The responder reports a delay that is longer than the time that the prober waited.
    RoundTrip,
    /// The prober waited longer for ACK1 than from posting the probe to processing ACK1.
    ProberDelay,
    /// Two timestamps of one difference are of different clocks, for example because the device was opened again.
    ClocksDiffer,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Impossible::ResponderDelay => "the responder sent ACK1 before it received the probe",
            Impossible::AckBeforeProbe => "ACK1 was received before the probe was sent",
            Impossible::RoundTrip => "the responder's delay is longer than the time until ACK1",
            Impossible::ProberDelay => "the time until ACK1 is longer than the whole probe",
            Impossible::ClocksDiffer => "the timestamps are of different clocks",
        })
    }
}

impl std::error::Error for Impossible {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stamps() -> ProbeStamps {
        ProbeStamps {
            posted: Stamp::process(100),
            sent: Stamp::kernel(300),
            responder: ResponderStamps {
                received: 5_000,
                received_kind: StampKind::Kernel,
                acked: 5_500,
                acked_kind: StampKind::Kernel,
            },
            acked: Stamp::kernel(1_800),
            processed: Stamp::process(2_000),
        }
    }

    #[test]
    fn one_process_stamp_prevents_a_network_rtt() {
        let good = Figures::compute(&stamps()).expect("figures");
        assert_eq!((good.stamps, good.network_rtt()), (StampKind::Kernel, Some(Duration::from_nanos(1_000))));
        let weaken: [fn(&mut ProbeStamps); 4] = [
            |stamps| stamps.sent.kind = StampKind::Process,
            |stamps| stamps.acked.kind = StampKind::Process,
            |stamps| stamps.responder.received_kind = StampKind::Process,
            |stamps| stamps.responder.acked_kind = StampKind::Process,
        ];
        for weaken in weaken {
            let mut stamps = stamps();
            weaken(&mut stamps);
            let figures = Figures::compute(&stamps).expect("figures");
            assert_eq!(figures.network_rtt(), None);
            assert_eq!(figures.round_trip, good.round_trip);
        }
    }

    #[test]
    fn contradictions_are_named() {
        let case = |change: fn(&mut ProbeStamps)| {
            let mut stamps = stamps();
            change(&mut stamps);
            Figures::compute(&stamps).expect_err("a contradiction")
        };
        assert_eq!(case(|stamps| stamps.responder.acked = 4_999), Impossible::ResponderDelay);
        assert_eq!(case(|stamps| stamps.responder.acked = 7_000), Impossible::RoundTrip);
        assert_eq!(case(|stamps| stamps.acked.nanos = 299), Impossible::AckBeforeProbe);
        assert_eq!(case(|stamps| stamps.processed.nanos = 1_599), Impossible::ProberDelay);
        let mut mixed = stamps();
        mixed.sent = Stamp::nic(300);
        assert_eq!(Figures::compute(&mixed), Err(Impossible::ClocksDiffer));
    }

    proptest! {
        /// The offsets of the three clocks don't change any figure.
        #[test]
        fn offsets_of_clocks_cancel_out(
            offsets in any::<[u64; 3]>(),
            waits in prop::array::uniform6(0_u64..1 << 40),
        ) {
            let [process, nic, responder] = offsets;
            let [post, forward, answer, back, poll, _] = waits;
            let at = |ticks: u64| Stamp::nic(nic.wrapping_add(ticks));
            let sent = post;
            let acked = sent + forward + answer + back;
            let stamps = ProbeStamps {
                posted: Stamp::process(process),
                sent: at(sent),
                responder: ResponderStamps {
                    received: responder,
                    received_kind: StampKind::Nic,
                    acked: responder.wrapping_add(answer),
                    acked_kind: StampKind::Nic,
                },
                acked: at(acked),
                processed: Stamp::process(process.wrapping_add(acked + poll)),
            };
            let figures = Figures::compute(&stamps).expect("possible");
            prop_assert_eq!(figures.network_rtt(), Some(Duration::from_nanos(forward + back)));
            prop_assert_eq!(figures.responder_delay, Duration::from_nanos(answer));
            prop_assert_eq!(figures.prober_delay, Duration::from_nanos(post + poll));
        }
    }
}
