use proptest::prelude::*;

use super::*;
use crate::stamp::StampKind;

const MILLI: u64 = 1_000_000;
const RESPONDER: u32 = 9;

impl Session {
    /// Continues with the number `next`, as if the probes before it had a result.
    pub(crate) fn skip_to(&mut self, next: u32) {
        (self.next, self.oldest_waiting, self.oldest_open) = (next, next, next);
    }
}

/// A session on virtual time: 100 ms until the timeout, and 50 ms of grace.
struct TestSession {
    session: Session,
    now: u64,
}

impl TestSession {
    fn new() -> TestSession {
        let config = SessionConfig {
            timeout: Duration::from_millis(100),
            grace: Duration::from_millis(50),
            max_outstanding: 8,
        };
        TestSession { session: Session::with_epoch(1, config), now: 5_000 * MILLI }
    }

    /// Begins a probe that the device sends after 1 µs.
    fn probe(&mut self) -> Probe {
        let probe = self.session.begin(Stamp::process(self.now), 0x123, 26).expect("a free place");
        self.session.handle_sent(probe.sequence, Some(Stamp::kernel(self.now + 1_000)));
        probe
    }

    fn first(&mut self, probe: &Probe) {
        self.ack(probe, AckKind::First, RESPONDER);
    }

    fn second(&mut self, probe: &Probe) {
        self.ack(probe, second_kind(), RESPONDER);
    }

    /// Answers a probe, 10 µs later.
    fn answer(&mut self, probe: &Probe) {
        self.now += 10_000;
        self.first(probe);
        self.second(probe);
    }

    fn ack(&mut self, probe: &Probe, kind: AckKind, responder_epoch: u32) {
        let ack = Ack { sequence: probe.sequence, responder_epoch, kind };
        self.session.handle_ack(&ack, Stamp::kernel(self.now), Stamp::process(self.now + 2_000));
    }

    fn pass(&mut self, millis: u64) {
        self.now += millis * MILLI;
        self.session.handle_timeout(self.now);
    }

    /// The results since the last call, with the numbers of their probes.
    fn results(&mut self) -> Vec<(u32, ProbeResult)> {
        let result = |event: ProbeEvent| match event.kind {
            ProbeEventKind::Finished(result) => Some((event.probe.sequence.number, result)),
            ProbeEventKind::TimedOut => None,
        };
        std::iter::from_fn(|| self.session.poll_event()).filter_map(result).collect()
    }
}

/// Returns an ACK2 of a responder that took 3 µs.
fn second_kind() -> AckKind {
    AckKind::Second(Some(ResponderStamps {
        received: 1_000,
        received_kind: StampKind::Kernel,
        acked: 4_000,
        acked_kind: StampKind::Kernel,
    }))
}

#[test]
fn an_answered_probe_has_its_figures() {
    let mut test = TestSession::new();
    let probe = test.probe();
    assert_eq!((probe.flow_label, probe.dscp), (0x123, 26));
    test.answer(&probe);
    let [(0, ProbeResult::Answered(figures))] = test.results()[..] else { panic!("one answer") };
    assert_eq!(figures.network_rtt(), Some(Duration::from_nanos(10_000 - 1_000 - 3_000)));
    assert_eq!(figures.prober_delay, Duration::from_nanos(3_000));
    assert_eq!(figures.responder_delay, Duration::from_nanos(3_000));
    assert_eq!((test.session.outstanding_count(), test.session.poll_timeout()), (0, None));
}

#[test]
fn acknowledgements_may_be_reordered_and_precede_the_send_completion() {
    let mut test = TestSession::new();
    let probe = test.session.begin(Stamp::process(test.now), 0, 0).expect("a place");
    let sent = Stamp::kernel(test.now + 1_000);
    test.now += 10_000;
    test.second(&probe);
    test.first(&probe);
    assert_eq!(test.results(), []);
    test.session.handle_sent(probe.sequence, Some(sent));
    assert!(matches!(test.results()[..], [(0, ProbeResult::Answered(_))]));
}

#[test]
fn ack1_without_ack2_is_one_return_loss() {
    let mut test = TestSession::new();
    let probe = test.probe();
    test.first(&probe);
    test.pass(99);
    assert_eq!((test.session.timed_out_count(), test.session.outstanding_count()), (0, 1));
    test.pass(1);
    assert_eq!(test.session.timed_out_count(), 1);
    // A later answer shows that the responder didn't stop between ACK1 and ACK2.
    let later = test.probe();
    test.answer(&later);
    assert_eq!(test.session.poll_timeout(), Some(test.now - 10_000 + 50 * MILLI));
    test.pass(50);
    assert!(matches!(test.results()[..], [(1, ProbeResult::Answered(_)), (0, ProbeResult::ReturnLost)]));
    assert_eq!((test.session.counts().return_lost, test.session.counts().lost), (1, 0));
    assert_eq!(test.session.counts().loss(), Some(0.5));
}

#[test]
fn a_responder_that_stops_between_ack1_and_ack2_is_no_return_loss() {
    for (lookup, result) in [(Lookup::Ended, ProbeResult::Ended), (Lookup::Same, ProbeResult::ReturnLost)] {
        let mut test = TestSession::new();
        let probe = test.probe();
        test.first(&probe);
        test.pass(200);
        assert_eq!((test.results(), test.session.poll_timeout()), (vec![], None));
        assert!(test.session.is_unresponsive());
        test.session.handle_lookup(lookup, 2, test.now);
        test.pass(50);
        assert_eq!(test.results(), [(0, result)]);
    }
}

#[test]
fn an_epoch_that_used_all_numbers_is_followed_by_another() {
    let mut test = TestSession::new();
    test.session.skip_to(u32::MAX - 1);
    let last = test.probe();
    assert!(test.session.is_exhausted());
    assert_eq!(test.session.begin(Stamp::process(test.now), 0, 0), None);
    // The last probe has no result yet.
    assert!(!test.session.begin_epoch(2));
    test.pass(100);
    assert!(!test.session.begin_epoch(2));
    test.answer(&last);
    assert!(test.session.begin_epoch(2));
    assert_eq!((test.session.epoch(), test.session.responder_epoch()), (2, Some(RESPONDER)));
    let next = test.probe();
    assert_eq!(next.sequence, Sequence { epoch: 2, number: 0 });
    test.first(&last);
    test.answer(&next);
    assert!(matches!(test.results()[..], [(_, ProbeResult::Late(_)), (0, ProbeResult::Answered(_))]));
    assert_eq!((test.session.counts().stale_acks, test.session.counts().begun), (1, 2));
}

#[test]
fn an_answered_probe_without_a_send_completion_is_not_lost_at_the_end() {
    let mut test = TestSession::new();
    let probe = test.session.begin(Stamp::process(test.now), 0, 0).expect("a place");
    test.answer(&probe);
    test.pass(120);
    assert_eq!((test.results(), test.session.timed_out_count()), (vec![], 1));
    test.session.finish();
    assert_eq!(test.results(), [(0, ProbeResult::Unstamped)]);
    assert_eq!(test.session.counts().loss(), Some(0.0));
}

#[test]
fn a_probe_is_lost_only_if_a_later_one_is_answered() {
    let mut test = TestSession::new();
    let _lost = test.probe();
    test.pass(200);
    assert_eq!((test.results(), test.session.timed_out_count()), (vec![], 1));
    assert_eq!(test.session.poll_timeout(), None);
    let later = test.probe();
    test.answer(&later);
    test.pass(0);
    assert!(matches!(test.results()[..], [(1, ProbeResult::Answered(_)), (0, ProbeResult::Lost)]));
}

#[test]
fn a_late_answer_is_no_loss() {
    let mut test = TestSession::new();
    let probe = test.probe();
    test.pass(120);
    test.answer(&probe);
    let [(0, ProbeResult::Late(figures))] = test.results()[..] else { panic!("a late answer") };
    assert!(figures.network_rtt() > Some(Duration::from_millis(119)));
    assert_eq!(test.session.counts().loss(), Some(0.0));
}

#[test]
fn duplicate_and_unmatched_acks_are_counted() {
    let mut test = TestSession::new();
    let probe = test.probe();
    test.first(&probe);
    test.first(&probe);
    test.second(&probe);
    test.second(&probe);
    test.first(&probe);
    assert_eq!(test.results().len(), 1);
    assert_eq!(test.session.counts().duplicate_acks, 3);
    for sequence in [Sequence { epoch: 1, number: 1 }, Sequence { epoch: 2, number: 0 }] {
        test.first(&Probe { sequence, ..probe });
    }
    assert_eq!(test.session.counts().unmatched_acks, 2);
}

#[test]
fn losses_to_an_ended_epoch_are_not_the_networks() {
    let mut test = TestSession::new();
    let old = test.probe();
    test.pass(120);
    let _outstanding = test.probe();
    test.session.handle_lookup(Lookup::Ended, 2, test.now);
    assert_eq!(test.results(), [(0, ProbeResult::Ended), (1, ProbeResult::Ended)]);
    assert_eq!((test.session.epoch(), test.session.counts().loss()), (2, None));
    let new = test.probe();
    assert_eq!(new.sequence, Sequence { epoch: 2, number: 0 });
    test.first(&old);
    assert_eq!((test.session.counts().stale_acks, test.session.counts().unmatched_acks), (1, 0));
    test.answer(&new);
    assert!(matches!(test.results()[..], [(0, ProbeResult::Answered(_))]));
}

#[test]
fn a_responder_that_is_found_alive_confirms_losses() {
    let mut test = TestSession::new();
    let _lost = test.probe();
    test.pass(100);
    let _waiting = test.probe();
    assert!(test.session.is_unresponsive());
    test.session.handle_lookup(Lookup::Same, 2, test.now);
    // The responder may have answered the probe just before the lookup.
    assert!(!test.session.is_unresponsive());
    assert_eq!(test.session.poll_timeout(), Some(test.now + 50 * MILLI));
    test.pass(49);
    assert_eq!(test.results(), []);
    test.pass(1);
    assert_eq!(test.results(), [(0, ProbeResult::Lost)]);
    assert_eq!((test.session.epoch(), test.session.outstanding_count()), (1, 1));
}

#[test]
fn a_responder_that_is_found_alive_repeatedly_confirms_losses() {
    let mut test = TestSession::new();
    for _ in 0..20 {
        test.probe();
        test.pass(30);
        if test.session.is_unresponsive() {
            test.session.handle_lookup(Lookup::Same, 2, test.now);
        }
    }
    // A probe has a result at most 2 × 50 + 30 ms after its timeout, 100 ms after it was sent.
    let lost = test.session.counts().lost;
    assert!(lost >= (20 * 30 - 230) / 30, "{lost}");
}

#[test]
fn an_answer_soon_after_the_lookup_is_late_and_no_loss() {
    let mut test = TestSession::new();
    let probe = test.probe();
    test.pass(1_000);
    test.session.handle_lookup(Lookup::Same, 2, test.now);
    test.answer(&probe);
    test.pass(50);
    assert!(matches!(test.results()[..], [(0, ProbeResult::Late(_))]));
    assert_eq!(test.session.counts().loss(), Some(0.0));
}

#[test]
fn a_responder_that_restarts_with_its_queue_pair_number_ends_older_probes() {
    let mut test = TestSession::new();
    let first = test.probe();
    test.answer(&first);
    let _unanswered = test.probe();
    test.pass(100);
    let later = test.probe();
    test.now += 10_000;
    test.ack(&later, AckKind::First, RESPONDER + 1);
    test.ack(&later, second_kind(), RESPONDER + 1);
    test.pass(200);
    let results = test.results();
    assert!(matches!(
        results[..],
        [(0, ProbeResult::Answered(_)), (1, ProbeResult::Ended), (2, ProbeResult::Answered(_))]
    ));
}

#[test]
fn impossible_stamps_are_counted_and_have_no_figures() {
    let mut test = TestSession::new();
    let probe = test.probe();
    test.now += 2_000;
    test.first(&probe);
    test.second(&probe);
    assert_eq!(test.results(), [(0, ProbeResult::Impossible(Impossible::RoundTrip))]);
    assert_eq!((test.session.counts().impossible, test.session.counts().loss()), (1, Some(0.0)));
}

#[test]
fn missing_stamps_are_no_loss() {
    let mut test = TestSession::new();
    let unstamped = test.session.begin(Stamp::process(test.now), 0, 0).expect("a place");
    test.session.handle_sent(unstamped.sequence, None);
    test.answer(&unstamped);
    let probe = test.probe();
    test.first(&probe);
    test.ack(&probe, AckKind::Second(None), RESPONDER);
    assert_eq!(test.results(), [(0, ProbeResult::Unstamped), (1, ProbeResult::Unstamped)]);
}

#[test]
fn a_probe_that_was_not_sent_is_not_the_networks_loss() {
    let mut test = TestSession::new();
    let probe = test.session.begin(Stamp::process(test.now), 0, 0).expect("a place");
    test.session.handle_not_sent(probe.sequence);
    assert_eq!(test.results(), [(0, ProbeResult::NotSent)]);
    assert_eq!(test.session.counts().conclusive(), 0);
}

#[test]
fn outstanding_probes_are_bounded() {
    let mut test = TestSession::new();
    let probes: Vec<Probe> = (0..8).map(|_| test.probe()).collect();
    assert_eq!(test.session.begin(Stamp::process(test.now), 0, 0), None);
    test.answer(&probes[3]);
    test.probe();
    assert_eq!(test.session.begin(Stamp::process(test.now), 0, 0), None);
    test.pass(100);
    assert_eq!((test.session.outstanding_count(), test.session.timed_out_count()), (0, 8));
    test.probe();
}

#[test]
fn a_dead_responder_makes_old_probes_unreachable_and_bounds_the_memory() {
    let mut test = TestSession::new();
    for _ in 0..3_000 {
        test.probe();
        test.pass(100);
    }
    let unreachable = test.session.counts().unreachable;
    assert_eq!(unreachable, 3_000 - MIN_ENTRIES as u64);
    assert_eq!(test.session.timed_out_count(), MIN_ENTRIES);
    test.session.finish();
    assert_eq!(test.session.counts().unreachable, 3_000);
    assert_eq!((test.session.timed_out_count(), test.session.outstanding_count()), (0, 0));
}

/// The fate of one packet of a probe in the modeled network.
#[derive(Clone, Copy, Debug)]
struct Fate {
    lost: bool,
    copies: usize,
    delay: u64,
}

fn fates() -> impl Strategy<Value = Fate> {
    let delay = prop_oneof![9 => 0_u64..40, 1 => 0_u64..140];
    (prop::bool::weighted(0.2), 1_usize..3, delay).prop_map(|(lost, copies, delay)| Fate {
        lost,
        copies,
        delay,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Under loss, duplication and reordering, each probe has exactly one result, and the result is the truth.
    #[test]
    fn every_probe_has_one_true_result(
        fates in prop::collection::vec(prop::array::uniform3(fates()), 1..80),
    ) {
        let mut test = TestSession::new();
        let mut arrivals: Vec<(u64, Probe, bool)> = Vec::new();
        let mut truth = Vec::new();
        for (number, [there, first, second]) in fates.iter().enumerate() {
            let probe = test.probe();
            let sent = test.now;
            let mut arrived = [None; 2];
            if !there.lost {
                for (index, fate) in [first, second].into_iter().enumerate() {
                    if !fate.lost {
                        let at = sent + (there.delay + fate.delay) * MILLI + 10_000;
                        arrived[index] = Some(at);
                        arrivals.extend(std::iter::repeat_n((at, probe, index == 0), fate.copies * there.copies));
                    }
                }
            }
            truth.push((sent, arrived));
            let until = test.now + 20 * MILLI;
            deliver(&mut test, &mut arrivals, until);
            prop_assert_eq!(probe.sequence.number as usize, number);
        }
        let end = test.now + 300 * MILLI;
        deliver(&mut test, &mut arrivals, end);
        // The responder is alive.
        test.session.handle_lookup(Lookup::Same, 2, test.now);
        test.pass(50);
        let mut results = vec![None; truth.len()];
        for (number, result) in test.results() {
            prop_assert!(results[number as usize].replace(result).is_none());
        }
        for (result, (sent, arrived)) in results.into_iter().zip(truth) {
            let result = result.expect("a result");
            let last = arrived.into_iter().max().flatten();
            let expected = match (arrived, last) {
                ([None, None], _) => matches!(result, ProbeResult::Lost),
                ([Some(_), Some(_)], Some(last)) if last < sent + 100 * MILLI => matches!(result, ProbeResult::Answered(_)),
                // An answer after the grace period may or may not be counted as late.
                ([Some(_), Some(_)], _) => matches!(
                    result,
                    ProbeResult::Late(_) | ProbeResult::Answered(_) | ProbeResult::Lost | ProbeResult::ReturnLost
                ),
                (_, Some(last)) if last < sent + 150 * MILLI => matches!(result, ProbeResult::ReturnLost),
                _ => matches!(result, ProbeResult::ReturnLost | ProbeResult::Lost),
            };
            prop_assert!(expected, "{result:?} {sent} {arrived:?}");
        }
        let counts = test.session.counts();
        prop_assert_eq!(counts.begun, counts.conclusive() + counts.ended + counts.not_sent);
        prop_assert_eq!((counts.unmatched_acks, counts.impossible), (0, 0));
        prop_assert_eq!((test.session.outstanding_count(), test.session.timed_out_count()), (0, 0));
    }
}

/// Delivers the acknowledgements that arrive until then, millisecond by millisecond.
fn deliver(test: &mut TestSession, arrivals: &mut Vec<(u64, Probe, bool)>, until: u64) {
    arrivals.sort_by_key(|&(at, ..)| at);
    while test.now < until {
        test.now += MILLI;
        let count = arrivals.iter().take_while(|&&(at, ..)| at <= test.now).count();
        let now = test.now;
        for (at, probe, is_first) in arrivals.drain(..count) {
            test.now = at;
            match is_first {
                true => test.first(&probe),
                false => test.second(&probe),
            }
        }
        test.now = now;
        test.session.handle_timeout(now);
    }
}
