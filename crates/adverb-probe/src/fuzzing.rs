//! Runs of a prober, a responder and a tracer that a fuzzer's bytes control: see `fuzz/fuzz_targets/probe.rs`.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::time::Duration;

use adverb_verbs::{Gid, Qpn};

use crate::Key;
use crate::answer::{AnswerConfig, AnswerCounts, AnswerState, RandomNumbers, Rate};
use crate::format::{ACK_LEN, Ack, AckKind, MAX_PROBE_LEN, Message, PROBE_LEN, Probe, Sequence};
use crate::key::TagKey;
use crate::session::{Lookup, ProbeCounts, ProbeEventKind, ProbeResult, Session, SessionConfig};
use crate::stamp::{Stamp, StampKind};
use crate::ud_queue::Destination;

/// Passes bytes to the parser of datagrams, and to a tracer or to a prober and a responder, which the first byte
/// selects. Checks their invariants.
///
/// # Panics
///
/// Panics if an invariant is violated.
pub fn probe(bytes: &[u8]) {
    parse(bytes);
    match bytes.first() {
        Some(0x80..) => _ = Run::new(Script(bytes)).run(),
        _ => crate::route::fuzzing::trace(&mut Script(bytes)),
    }
}

/// The bytes of a fuzzer, which are consumed as decisions. All decisions after the last byte are 0.
pub(crate) struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// Returns the next byte, or `None` after the last one.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_be_bytes([(); 4].map(|()| self.byte()))
    }

    /// Returns the next bytes, at most `count`.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns an element, or `None` if there is none.
    pub(crate) fn pick<'b, T>(&mut self, list: &'b [T]) -> Option<&'b T> {
        let number = usize::from(self.byte());
        list.get(number % list.len().max(1))
    }

    /// Returns the bytes with some changes: up to three other bytes, and another length.
    pub(crate) fn change(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..self.byte() % 4 {
            let (at, change) = (usize::from(self.byte()), self.byte());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= change;
            }
        }
        match self.byte() % 8 {
            0 => bytes.truncate(self.byte().into()),
            1 => bytes.extend_from_slice(self.bytes(32)),
            _ => {}
        }
        bytes
    }
}

fn key() -> &'static TagKey {
    static KEY: LazyLock<TagKey> = LazyLock::new(|| TagKey::new(&Key::new([7; 32]).expect("a long secret")));
    &KEY
}

/// Returns the address of the prober, 0, or of another host that sends recorded datagrams, 1.
fn prober_at(host: u8) -> Destination {
    let gid = Gid::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    Destination { gid, qpn: Qpn::truncate(17), qkey: 0 }
}

/// Checks that writing a parsed message results in the same bytes.
fn parse(bytes: &[u8]) {
    for key in [None, Some(key())] {
        let prober = prober_at(0);
        match Message::parse(bytes, &prober, key) {
            Ok(Message::Ack(ack)) => assert_eq!(ack.to_bytes(&prober, key)[..], *bytes),
            Ok(Message::Probe(probe)) => {
                assert!((PROBE_LEN..=MAX_PROBE_LEN).contains(&bytes.len()));
                let mut again = vec![0; bytes.len()];
                probe.write(&mut again, &prober, key);
                assert_eq!(Message::parse(&again, &prober, key), Ok(Message::Probe(probe)));
            }
            Err(_) => {}
        }
    }
}

const TIMEOUT: Duration = Duration::from_millis(100);
const SOURCE_RATE: Rate = Rate { per_second: 1000, burst: 4 };
const START: u64 = 1_000_000_000;
/// The maximum number of datagrams that the attacker records.
const MAX_RECORDED: usize = 64;

/// A prober and a responder, a network that changes and repeats datagrams, and an attacker without the key.
struct Run<'a> {
    script: Script<'a>,
    /// The key of the prober and the responder.
    key: Option<&'static TagKey>,
    now: u64,
    session: Session,
    epoch: u32,
    answers: AnswerState,
    /// The last datagrams. They can be delivered to either end, more than once.
    datagrams: Vec<Vec<u8>>,
    /// All datagrams that the prober and the responder sent.
    genuine: HashSet<Vec<u8>>,
    /// The numbers of answers whose ACK1 is in flight, and the lengths of their probes.
    acking: Vec<(usize, usize)>,
    answered: HashMap<Gid, u64>,
    probes: HashMap<Sequence, Begun>,
    begun: Vec<Sequence>,
}

/// A probe that was begun.
#[derive(Default)]
struct Begun {
    has_first: bool,
    has_second: bool,
    is_finished: bool,
}

impl<'a> Run<'a> {
    fn new(mut script: Script<'a>) -> Run<'a> {
        let setting = script.byte();
        let key = (setting & 1 == 1).then(key);
        let max_outstanding = 1 + usize::from(setting >> 4);
        let answers = AnswerConfig {
            key: key.cloned(),
            source_rate: SOURCE_RATE,
            total_rate: Rate { per_second: 5000, burst: 6 },
            max_outstanding: 1 + usize::from(setting >> 1 & 7),
        };
        let config = SessionConfig { timeout: TIMEOUT, grace: TIMEOUT / 2, max_outstanding };
        Run {
            script,
            key,
            now: START,
            session: Session::with_epoch(1, config),
            epoch: 1,
            answers: AnswerState::new(answers, RandomNumbers { epoch: 5, seed: 9 }),
            datagrams: Vec::new(),
            genuine: HashSet::new(),
            acking: Vec::new(),
            answered: HashMap::new(),
            probes: HashMap::new(),
            begun: Vec::new(),
        }
    }

    /// Runs the script to its end, and returns the counts of the prober.
    fn run(mut self) -> ProbeCounts {
        while let Some(action) = self.script.next() {
            self.act(action);
            self.handle_events();
        }
        self.session.finish();
        self.handle_events();
        let counts = *self.session.counts();
        assert_eq!(counts.begun, self.begun.len() as u64);
        assert_eq!(counts.begun, counts.conclusive() + counts.ended + counts.not_sent);
        assert_eq!((self.session.outstanding_count(), self.session.timed_out_count()), (0, 0));
        assert!(self.probes.values().all(|probe| probe.is_finished));
        counts
    }

    fn act(&mut self, action: u8) {
        match action % 12 {
            0 | 1 => self.begin(),
            2 => {
                let stamp = (self.script.byte() & 7 != 0).then_some(self.stamp());
                let Some(&sequence) = self.script.pick(&self.begun) else { return };
                match self.script.byte() & 15 {
                    0 => self.session.handle_not_sent(sequence),
                    _ => self.session.handle_sent(sequence, stamp),
                }
            }
            3 | 4 => {
                let Some(datagram) = self.datagram() else { return };
                self.respond(&datagram);
            }
            5 => self.complete_ack1(),
            6 | 7 => {
                let Some(datagram) = self.datagram() else { return };
                self.receive(&datagram);
            }
            8 => {
                let count = usize::from(self.script.byte());
                let bytes = self.script.bytes(count).to_vec();
                self.respond(&bytes);
                self.receive(&bytes);
            }
            9 => {
                self.now += 1 << (self.script.byte() % 30);
                self.session.handle_timeout(self.now);
                // A driver that sleeps until the next timeout doesn't spin.
                assert!(self.session.poll_timeout().is_none_or(|due| due > self.now));
            }
            10 => match self.script.byte() % 8 {
                0 => {
                    // Successive epochs replace random ones.
                    self.epoch += 1;
                    self.session.handle_lookup(Lookup::Ended, self.epoch, self.now);
                }
                1 => self.session.finish(),
                2 => {
                    self.answers.reset_outstanding();
                    self.acking.clear();
                }
                _ => self.session.handle_lookup(Lookup::Same, self.epoch, self.now),
            },
            _ => self.forge(),
        }
    }

    /// Returns a datagram of the network, as it was sent or changed.
    fn datagram(&mut self) -> Option<Vec<u8>> {
        let datagram = self.script.pick(&self.datagrams)?.clone();
        Some(if self.script.byte() & 1 == 0 { datagram } else { self.script.change(&datagram) })
    }

    fn stamp(&mut self) -> Stamp {
        let kind = match self.script.byte() % 3 {
            0 => StampKind::Process,
            1 => StampKind::Kernel,
            _ => StampKind::Nic,
        };
        Stamp { nanos: self.now, kind }
    }

    fn begin(&mut self) {
        let (flow_label, dscp) = (self.script.word(), self.script.byte());
        let posted = Stamp { nanos: self.now, kind: StampKind::Process };
        let Some(probe) = self.session.begin(posted, flow_label, dscp) else { return };
        let is_new = self.probes.insert(probe.sequence, Begun::default()).is_none();
        assert!(is_new, "{probe:?} was begun twice");
        self.begun.push(probe.sequence);
        let mut bytes = vec![0; PROBE_LEN + usize::from(self.script.byte())];
        probe.write(&mut bytes, &prober_at(0), self.key);
        self.send(bytes);
    }

    /// Adds a datagram of the prober or the responder to the network.
    fn send(&mut self, bytes: Vec<u8>) {
        self.genuine.insert(bytes.clone());
        self.datagrams.push(bytes);
        if self.datagrams.len() > MAX_RECORDED {
            self.datagrams.remove(0);
        }
    }

    /// Adds a message of the attacker, who doesn't have the key, to the network.
    fn forge(&mut self) {
        let sequence = Sequence { epoch: self.script.byte().into(), number: self.script.byte().into() };
        let bytes = match self.script.byte() % 3 {
            0 => {
                let mut bytes = vec![0; PROBE_LEN];
                Probe { sequence, flow_label: 0, dscp: 0 }.write(&mut bytes, &prober_at(0), None);
                bytes
            }
            kind => {
                let kind = if kind == 1 { AckKind::First } else { AckKind::Second(None) };
                Ack { sequence, responder_epoch: self.script.byte().into(), kind }
                    .to_bytes(&prober_at(0), None)
                    .to_vec()
            }
        };
        self.datagrams.push(bytes);
    }

    /// Delivers a datagram to the responder.
    fn respond(&mut self, bytes: &[u8]) {
        let (received, before) = (self.stamp(), *self.answers.counts());
        let host = self.script.byte() & 1;
        let source = prober_at(host);
        let answer = self.answers.handle_datagram(bytes, source, received, self.now);
        let counts = *self.answers.counts();
        assert_eq!(handled(&counts), handled(&before) + 1, "{bytes:?} is counted once");
        let Ok(answer) = answer else {
            assert_eq!(counts.answered, before.answered);
            return;
        };
        let Ok(Message::Probe(probe)) = Message::parse(bytes, &source, self.key) else {
            panic!("{bytes:?} was answered")
        };
        assert!(self.key.is_none() || self.genuine.contains(bytes), "an answer without the key: {bytes:?}");
        assert!(self.key.is_none() || host == 0, "an answer to another host than the prober: {bytes:?}");
        assert_eq!(answer.destination, source);
        // All answers to a probe together are not longer than the probe.
        assert!(2 * answer.bytes.len() <= bytes.len());
        assert_eq!(answer.dscp, probe.dscp);
        let answered = self.answered.entry(source.gid).or_default();
        *answered += 1;
        let elapsed = u128::from(self.now - START) * u128::from(SOURCE_RATE.per_second) / 1_000_000_000;
        assert!(u128::from(*answered) <= u128::from(SOURCE_RATE.burst) + elapsed, "over the rate limit");
        self.acking.push((answer.id, bytes.len()));
        self.send(answer.bytes.to_vec());
    }

    /// Completes the sending of an ACK1.
    fn complete_ack1(&mut self) {
        let sent = (self.script.byte() & 7 != 0).then_some(self.stamp());
        let number = usize::from(self.script.byte());
        if self.acking.is_empty() {
            // No answer has this number now.
            assert_eq!(self.answers.handle_ack1_sent(number, sent), None);
            return;
        }
        let (id, probe_len) = self.acking.swap_remove(number % self.acking.len());
        let answer = self.answers.handle_ack1_sent(id, sent);
        assert_eq!(answer.is_some(), sent.is_some());
        if let Some(answer) = answer {
            assert!(ACK_LEN + answer.bytes.len() <= probe_len);
            self.send(answer.bytes.to_vec());
        }
    }

    /// Delivers a datagram to the prober.
    fn receive(&mut self, bytes: &[u8]) {
        let Ok(Message::Ack(ack)) = Message::parse(bytes, &prober_at(0), self.key) else { return };
        assert!(self.key.is_none() || self.genuine.contains(bytes), "an ACK without the key: {bytes:?}");
        let (received, processed) = (self.stamp(), Stamp { nanos: self.now + 1, kind: StampKind::Process });
        self.session.handle_ack(&ack, received, processed);
        if let Some(probe) = self.probes.get_mut(&ack.sequence) {
            match ack.kind {
                AckKind::First => probe.has_first = true,
                AckKind::Second(_) => probe.has_second = true,
            }
        }
    }

    /// Checks each result against the acknowledgements that were delivered.
    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            let sequence = event.probe.sequence;
            let probe = self.probes.get_mut(&sequence).expect("a probe that was begun");
            assert!(!probe.is_finished, "{sequence:?} has two results");
            let ProbeEventKind::Finished(result) = event.kind else { continue };
            probe.is_finished = true;
            let acks = u8::from(probe.has_first) + u8::from(probe.has_second);
            let is_possible = match result {
                ProbeResult::Answered(_)
                | ProbeResult::Late(_)
                | ProbeResult::Impossible(_)
                | ProbeResult::Unstamped => acks == 2,
                ProbeResult::ReturnLost => acks == 1,
                ProbeResult::Lost | ProbeResult::Unreachable => acks == 0,
                ProbeResult::Ended | ProbeResult::NotSent => true,
            };
            assert!(is_possible, "{sequence:?} with {acks} acknowledgements: {result:?}");
        }
    }
}

/// The number of datagrams that a responder has handled.
fn handled(counts: &AnswerCounts) -> u64 {
    counts.answered + counts.invalid + counts.bad_tags + counts.rate_limited + counts.busy
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_script_without_bytes_decides_zero() {
        let mut script = Script(&[1, 2]);
        assert_eq!((script.word(), script.next(), script.pick::<u8>(&[])), (0x0102_0000, None, None));
    }

    #[test]
    fn a_script_can_answer_probes() {
        for setting in [0xf0, 0xf1] {
            let mut script = vec![setting];
            // Begin a probe, send it, deliver it, send ACK1, and deliver ACK1 and ACK2.
            script.extend([
                0, 0, 1, 2, 3, 26, 0, 2, 1, 1, 0, 1, 3, 0, 0, 1, 0, 5, 1, 1, 0, 6, 1, 0, 1, 6, 2, 0, 1,
            ]);
            // Let the timeout pass.
            script.extend([9, 29]);
            assert_eq!(Run::new(Script(&script)).run().answered, 1);
        }
    }

    proptest! {
        #[test]
        fn random_runs_violate_no_invariant(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            probe(&bytes);
        }
    }
}
