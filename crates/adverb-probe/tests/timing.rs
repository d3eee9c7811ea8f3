//! The figures of probes are exactly the delays of a modeled network and of modeled hosts, in virtual time.

use std::time::Duration;

use adverb_probe::answer::{AnswerConfig, AnswerState, RandomNumbers};
use adverb_probe::figures::Figures;
use adverb_probe::format::{Ack, Message, PROBE_LEN, Probe};
use adverb_probe::session::{ProbeEventKind, ProbeResult, Session, SessionConfig};
use adverb_probe::stamp::{Stamp, StampKind};
use adverb_probe::ud_queue::Destination;
use adverb_verbs::{Gid, Qpn};
use proptest::prelude::*;

/// The delays of one probe, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Delays {
    /// From posting the probe to its send completion.
    post: u64,
    forward: u64,
    /// From receiving the probe to sending ACK1.
    answer: u64,
    back: u64,
    /// From receiving ACK1 to processing it.
    process: u64,
    /// From ACK1's send completion to sending ACK2. It is part of no figure.
    report: u64,
}

fn delays() -> impl Strategy<Value = Delays> {
    let delay = || prop_oneof![Just(0), 1..20_000_u64, 1..2_000_000_000_u64];
    (delay(), delay(), delay(), delay(), delay(), delay()).prop_map(
        |(post, forward, answer, back, process, report)| Delays {
            post,
            forward,
            answer,
            back,
            process,
            report,
        },
    )
}

/// The clocks: the prober's, and the responder's.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    prober: u64,
    responder: u64,
    kind: StampKind,
}

/// Sends a probe with its acknowledgements as bytes between a prober and a responder, and returns its result.
fn probe(session: &mut Session, answers: &mut AnswerState, clocks: Clocks, delays: Delays) -> ProbeResult {
    let process = |at: u64| Stamp { nanos: clocks.prober + at, kind: StampKind::Process };
    let prober = |at: u64| Stamp { nanos: clocks.prober + at, kind: clocks.kind };
    let responder = |at: u64| Stamp { nanos: clocks.responder + at, kind: clocks.kind };
    let sent: Probe = session.begin(process(0), 0x123, 26).expect("a free place");
    let mut bytes = [0; PROBE_LEN];
    sent.write(&mut bytes, &prober_addr(), None);
    let mut now = delays.post;
    session.handle_sent(sent.sequence, Some(prober(now)));
    now += delays.forward;
    let received = responder(now);
    let first = answers.handle_datagram(&bytes, prober_addr(), received, received.nanos).expect("an answer");
    now += delays.answer;
    let second = answers.handle_ack1_sent(first.id, Some(responder(now))).expect("ACK2");
    now += delays.back;
    session.handle_ack(&parse(&first.bytes), prober(now), process(now + delays.process));
    let second_at = now + delays.report;
    session.handle_ack(&parse(&second.bytes), prober(second_at), process(second_at + delays.process));
    let event = session.poll_event().expect("a result");
    match event.kind {
        ProbeEventKind::Finished(result) => result,
        other => panic!("{other:?}"),
    }
}

fn prober_addr() -> Destination {
    let gid = Gid::from(std::net::IpAddr::from([10, 0, 0, 1]));
    Destination { gid, qpn: Qpn::truncate(17), qkey: 0 }
}

fn parse(bytes: &[u8]) -> Ack {
    match Message::parse(bytes, &prober_addr(), None) {
        Ok(Message::Ack(ack)) => ack,
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// Whatever the hosts' clocks show, each figure is exactly the injected delay, and no delay is part of another
    /// figure.
    #[test]
    fn injected_delays_are_reported_exactly(
        probes in prop::collection::vec(delays(), 1..20),
        offsets in prop::array::uniform2(0..1_u64 << 62),
        kind in prop::sample::select(vec![StampKind::Process, StampKind::Kernel]),
    ) {
        let [prober, responder] = offsets;
        let mut session = Session::with_epoch(7, SessionConfig::default());
        let mut answers = AnswerState::new(AnswerConfig::default(), RandomNumbers { epoch: 9, seed: 1 });
        for delays in probes {
            let result = probe(&mut session, &mut answers, Clocks { prober, responder, kind }, delays);
            let ProbeResult::Answered(figures) = result else { panic!("{result:?}") };
            let Figures { round_trip, prober_delay, responder_delay, stamps, .. } = figures;
            prop_assert_eq!(round_trip, Duration::from_nanos(delays.forward + delays.back));
            prop_assert_eq!(responder_delay, Duration::from_nanos(delays.answer));
            prop_assert_eq!(prober_delay, Duration::from_nanos(delays.post + delays.process));
            prop_assert_eq!(stamps, kind);
            prop_assert_eq!(figures.network_rtt(), (kind == StampKind::Kernel).then_some(round_trip));
        }
        prop_assert_eq!(session.counts().answered, session.counts().begun);
    }
}
