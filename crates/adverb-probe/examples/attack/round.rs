//! One attack: a responder and a prober, and sockets that send hostile packets to both.
//!
//! The attacker knows the numbers and queue keys of all queue pairs, and the epochs. It doesn't know the key, but has
//! recorded probes. Its packets are complete RoCE packets with a valid ICRC.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use adverb_probe::answer::{AnswerCounts, Rate};
use adverb_probe::format::{ACK_LEN, PROBE_LEN, Probe, Sequence, TagKey};
use adverb_probe::paths::MAX_ACK_PORTS;
use adverb_probe::session::{ProbeEventKind, ProbeResult};
use adverb_probe::ud_queue::Destination;
use adverb_probe::{
    Key, Peer, ProbePath, Prober, ProberOptions, Responder, ResponderOptions, ResponderStats,
};
use adverb_verbs::cm::UD_QKEY;
use adverb_verbs::{Gid, Qpn, SoftDevice};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, ROCE_PORT, Ud};

use crate::datagrams::{Effect, Kind, Random, acknowledgement};
use crate::report::{Report, Totals, UD_OVERHEAD};

type Outcome<T> = Result<T, String>;

/// The number of bursts of a round. After each, the well-behaved prober sends a probe, so that the receive buffers of
/// the sockets never overflow.
const BURST_COUNT: usize = 60;
/// The maximum number of hostile datagrams of a burst.
const MAX_BURST_LEN: usize = 24;
/// The limit of waits that succeed at once unless the responder has failed.
const DEADLINE: Duration = Duration::from_secs(60);
/// The rate of rounds with a rate limit. The well-behaved prober stays below it, and the attacker exceeds it.
const RATE: Rate = Rate { per_second: 1, burst: BURST_COUNT as u32 + 10 };

/// Attacks a responder and a prober.
///
/// # Errors
///
/// Returns the reason if a check fails.
pub(crate) fn attack(seed: u64, report: &mut Report) -> Outcome<()> {
    let mut round = Round::new(seed)?;
    for _ in 0..BURST_COUNT {
        round.attack_responder();
        round.attack_prober();
        round.probe()?;
        round.receive_answers()?;
    }
    round.finish(report)
}

/// A hostile socket.
struct Attacker {
    socket: UdpSocket,
    addr: SocketAddr,
}

impl Attacker {
    fn bind(addr: IpAddr, port: u16) -> io::Result<Attacker> {
        let socket = UdpSocket::bind((addr, port))?;
        socket.set_nonblocking(true)?;
        Ok(Attacker { addr: socket.local_addr()?, socket })
    }

    /// Returns the UD packet from this socket to a queue pair.
    fn packet(&self, to: SocketAddr, destination: &Destination, source_qp: Qpn, payload: &[u8]) -> Vec<u8> {
        let flow = self.flow(to);
        let datagram = Ud { qkey: destination.qkey, source_qp, immediate: None };
        let header = Header::new(destination.qpn, Psn::ZERO, Operation::Ud(datagram));
        let mut head = [0; MAX_HEADER_LEN];
        let emitted = flow.emit(&header, 0, &[payload], &mut head).expect("a UD packet of any length");
        [&head[..emitted.header_len], payload, &emitted.trailer[..]].concat()
    }

    fn flow(&self, to: SocketAddr) -> Flow {
        Flow::new(self.addr, to).expect("two IPv4 addresses")
    }

    /// Changes the ICRC of a packet. The receiver doesn't know the IPv4 identification, so it accepts any ICRC that is
    /// right for one of them.
    fn break_icrc(&self, to: SocketAddr, packet: &mut [u8], random: &mut Random) {
        let at = packet.len() - 4;
        loop {
            packet[at + random.below(4)] ^= 1 << random.below(8);
            let parsed = Packet::parse(packet).expect("a packet");
            if self.flow(to).recover_ip_id(&parsed).is_err() {
                return;
            }
        }
    }
}

/// A hostile datagram that must be answered, if the rate allows it.
#[derive(Default)]
struct Sent {
    bytes_in: u64,
    answers: u64,
}

struct Round {
    random: Random,
    key: Option<TagKey>,
    is_limited: bool,
    responder: Responder,
    responder_addr: SocketAddr,
    /// The queue pairs of the responder and of the prober.
    target: Destination,
    prober_target: Destination,
    prober_addr: SocketAddr,
    prober: Prober,
    peer: Peer,
    attackers: Vec<Attacker>,
    /// A socket at the responder's address.
    itself: Attacker,
    max_payload: usize,
    started_at: Instant,
    /// The sequence of the well-behaved prober's last probe. All its probes have the same epoch.
    last: Option<Sequence>,
    good_probes: u64,
    sent: HashMap<Sequence, Sent>,
    totals: [Totals; Kind::ALL.len()],
    /// The source ports of the answers. The probes have random flow labels.
    answer_ports: HashSet<u16>,
    expected: AnswerCounts,
    /// The datagrams to the prober: acknowledgements of other epochs, of its own epoch and not of the last probes,
    /// duplicates, invalid ones, and ones with a wrong tag.
    to_prober: [u64; 5],
}

impl Round {
    fn new(seed: u64) -> Outcome<Round> {
        let mut round = None;
        while round.is_none() {
            round = match Round::open(seed) {
                Ok(round) => Some(round),
                Err(error) if error.contains("in use") => None,
                Err(error) => return Err(error),
            };
        }
        round.ok_or_else(|| "no round".to_owned())
    }

    /// Opens devices and sockets in a part of 127.192.0.0/10.
    fn open(seed: u64) -> Outcome<Round> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id().wrapping_mul(0x9e37_79b1) >> 12;
        let number = number.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let host = move |host: u32| {
            IpAddr::V4(Ipv4Addr::from_bits(127 << 24 | 0xc0_0000 | (number & 0x7_ffff) << 3 | host))
        };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let key = (seed & 1 == 1).then(|| Key::new([0x6b; 32])).transpose().map_err(|error| text(&error))?;
        let is_limited = seed & 2 == 2;
        let mut options = ResponderOptions::new().port(0);
        let mut prober = ProberOptions::new().timeout(DEADLINE).grace(DEADLINE).lookup_timeout(DEADLINE);
        if let Some(key) = &key {
            (options, prober) = (options.key(key), prober.key(key));
        }
        let unlimited = Rate { per_second: 1_000_000, burst: 1_000_000 };
        let rate = if is_limited { RATE } else { unlimited };
        let options = options.source_rate(rate).total_rate(unlimited);
        let responder = options.start(move || SoftDevice::at_addr(host(1)).open());
        let responder = responder.map_err(|error| text(&error))?;
        let prober = prober.open(move || SoftDevice::at_addr(host(2)).open());
        let mut prober = prober.map_err(|error| text(&error))?;
        let peer = prober.connect(responder.local_addr()).map_err(|error| text(&error))?;
        let target = prober.service(&peer).ok_or("the responder was not found")?.destination;
        let prober_target = prober.queue().local().ok_or("the prober's device has failed")?;
        let bind = |host, port| Attacker::bind(host, port).map_err(|error| text(&error));
        let attackers = [3, 4, 5].map(|number| bind(host(number), ROCE_PORT));
        Ok(Round {
            random: Random::new(seed),
            is_limited,
            responder,
            responder_addr: SocketAddr::new(host(1), ROCE_PORT),
            target,
            prober_target,
            prober_addr: SocketAddr::new(host(2), ROCE_PORT),
            max_payload: prober.queue().max_payload(),
            prober,
            peer,
            attackers: attackers.into_iter().collect::<Outcome<_>>()?,
            itself: bind(host(1), 0)?,
            started_at: Instant::now(),
            last: None,
            good_probes: 0,
            sent: HashMap::new(),
            totals: Default::default(),
            answer_ports: HashSet::new(),
            expected: AnswerCounts::default(),
            to_prober: [0; 5],
            key: key.as_ref().map(TagKey::new),
        })
    }

    fn attack_responder(&mut self) {
        for _ in 0..=self.random.below(MAX_BURST_LEN) {
            let number = self.random.below(Kind::ALL.len());
            let kind = Kind::ALL[number];
            // The answers of the responder to itself would make the counts depend on the rate.
            if self.is_limited && kind == Kind::FromItself {
                continue;
            }
            // The epoch identifies the kind when an answer arrives.
            let sequence = Sequence { epoch: number as u32, number: self.sent.len() as u32 };
            let from = match kind {
                Kind::FromItself => &self.itself,
                _ if self.is_limited => &self.attackers[0],
                _ => &self.attackers[self.random.below(self.attackers.len())],
            };
            let mut destination = self.target;
            let mut source_qp = Qpn::truncate(self.random.next() as u32);
            match kind {
                Kind::WrongQkey => destination.qkey ^= 1 << self.random.below(32),
                Kind::UnknownQpn => destination.qpn = Qpn::truncate(destination.qpn.get() ^ 0x80_0000),
                Kind::FromItself => source_qp = destination.qpn,
                _ => {}
            }
            let sender = Destination { gid: Gid::from(from.addr.ip()), qpn: source_qp, qkey: UD_QKEY };
            let probers = [&sender, &self.prober_target];
            let key = self.key.as_ref();
            let payload = kind.payload(&mut self.random, sequence, probers, key, self.max_payload);
            let mut packet = from.packet(self.responder_addr, &destination, source_qp, &payload);
            if kind == Kind::WrongIcrc {
                from.break_icrc(self.responder_addr, &mut packet, &mut self.random);
            }
            if from.socket.send_to(&packet, self.responder_addr).is_err() {
                continue;
            }
            let totals = &mut self.totals[number];
            totals.sent += 1;
            totals.bytes_in += payload.len() as u64;
            match kind.effect(self.key.is_some()) {
                Effect::Answered => {
                    self.expected.answered += 1;
                    self.sent.entry(sequence).or_default().bytes_in += payload.len() as u64;
                    // ACK1 and ACK2 arrive at the responder.
                    self.expected.invalid += if kind == Kind::FromItself { 2 } else { 0 };
                }
                Effect::Invalid => self.expected.invalid += 1,
                Effect::BadTag => self.expected.bad_tags += 1,
                Effect::DroppedByNic => {}
            }
        }
    }

    /// Sends datagrams to the prober that belong to none of its outstanding probes.
    fn attack_prober(&mut self) {
        let Some(last) = self.last else { return };
        for _ in 0..self.random.below(MAX_BURST_LEN / 2) {
            let choice = self.random.below(5);
            let (random, has_key) = (&mut self.random, self.key.is_some());
            let sequence = match choice {
                0 => Sequence { epoch: last.epoch ^ 1 << random.below(32), number: last.number },
                1 => Sequence { number: u32::MAX - random.below(1000) as u32, ..last },
                _ => Sequence { number: random.below(last.number as usize + 1) as u32, ..last },
            };
            let mut payload = acknowledgement(random, sequence, &self.prober_target);
            let effect = match choice {
                3 => {
                    payload.truncate(random.below(ACK_LEN));
                    3
                }
                4 => {
                    payload = vec![0; PROBE_LEN];
                    Probe { sequence, flow_label: 0, dscp: 0 }.write(&mut payload, &self.prober_target, None);
                    if has_key { 4 } else { 3 }
                }
                // An acknowledgement without the key.
                _ if has_key => 4,
                choice => choice,
            };
            let from = &self.attackers[random.below(self.attackers.len())];
            let packet = from.packet(self.prober_addr, &self.prober_target, self.target.qpn, &payload);
            if from.socket.send_to(&packet, self.prober_addr).is_ok() {
                self.to_prober[effect] += 1;
            }
        }
    }

    /// Sends a probe of the well-behaved prober, which must be answered.
    fn probe(&mut self) -> Outcome<()> {
        let Round { prober, peer, .. } = self;
        if !prober.post(peer, ProbePath::default()).map_err(|error| error.to_string())? {
            return Err("the well-behaved prober can't send".to_owned());
        }
        let (deadline, mut finished) = (Instant::now() + DEADLINE, None);
        while finished.is_none() {
            if Instant::now() > deadline {
                return Err(format!("a probe has no result: {:?}", prober.counts(peer)));
            }
            prober.wait(Duration::from_secs(1), |_, event| {
                if let ProbeEventKind::Finished(result) = event.kind {
                    finished = Some((event.probe.sequence, result));
                }
            });
        }
        let (sequence, result) = finished.ok_or("no result")?;
        self.last = Some(sequence);
        self.good_probes += 1;
        match result {
            ProbeResult::Answered(_)
            | ProbeResult::Late(_)
            | ProbeResult::Impossible(_)
            | ProbeResult::Unstamped => Ok(()),
            other => Err(format!("a probe of the well-behaved prober: {other:?}")),
        }
    }

    /// Receives the answers that arrived at the attackers, and checks that no probe has more than its answers.
    fn receive_answers(&mut self) -> Outcome<()> {
        let mut buffer = [0; 2048];
        for attacker in &self.attackers {
            while let Ok((len, from)) = attacker.socket.recv_from(&mut buffer) {
                let packet = Packet::parse(&buffer[..len]).map_err(|error| format!("an answer: {error}"))?;
                let payload = packet.payload();
                if from.ip() != self.responder_addr.ip() || payload.len() != ACK_LEN {
                    return Err(format!("{len} bytes from {from}: {packet:?}"));
                }
                let word =
                    |at: usize| payload[at..at + 4].iter().fold(0, |word, &byte| word << 8 | u32::from(byte));
                let sequence = Sequence { epoch: word(8), number: word(12) };
                let sent = self.sent.get_mut(&sequence).ok_or_else(|| {
                    format!("an answer to a datagram that must not be answered: {payload:x?}")
                })?;
                sent.answers += 1;
                self.answer_ports.insert(from.port());
                let totals = &mut self.totals[sequence.epoch as usize];
                totals.answers += 1;
                totals.bytes_out += len as u64 - UD_OVERHEAD;
                if sent.answers > 2 || sent.answers * ACK_LEN as u64 > sent.bytes_in {
                    return Err(format!("{} answers to {} bytes", sent.answers, sent.bytes_in));
                }
            }
        }
        Ok(())
    }

    /// Checks the counters.
    fn finish(mut self, report: &mut Report) -> Outcome<()> {
        let deadline = Instant::now() + DEADLINE;
        self.expected.answered += self.good_probes;
        let expected = handled(&self.expected);
        while handled(&self.responder.stats().answers) < expected {
            if Instant::now() > deadline {
                return Err(format!("{:?}, expected {:?}", self.responder.stats().answers, self.expected));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let elapsed = self.started_at.elapsed().as_secs_f64();
        let counts = self.prober.counts(&self.peer);
        let strays = self.prober.strays();
        let to_prober = [
            strays.unmatched_acks,
            counts.unmatched_acks,
            counts.duplicate_acks,
            strays.invalid,
            strays.bad_tags,
        ];
        if to_prober != self.to_prober || counts.stale_acks != 0 {
            return Err(format!("the prober dropped {to_prober:?}, expected {:?}", self.to_prober));
        }
        self.receive_answers()?;
        if self.answer_ports.len() > usize::from(MAX_ACK_PORTS) {
            return Err(format!("answers have {} source ports", self.answer_ports.len()));
        }
        let Round { responder, prober, .. } = self;
        drop(prober);
        let ResponderStats { answers, queue, .. } = responder.stop();
        let expected = &self.expected;
        let has_right_counts = if self.is_limited {
            // One attacker and the prober, each below its own limit.
            let allowed = 2.0 * (f64::from(RATE.burst) + f64::from(RATE.per_second) * elapsed);
            answers.answered + answers.rate_limited == expected.answered && answers.answered as f64 <= allowed
        } else {
            (answers.answered, answers.rate_limited) == (expected.answered, 0)
        };
        let dropped =
            (answers.invalid, answers.bad_tags, answers.busy, queue.device_failures, queue.recv_failures);
        if !has_right_counts || dropped != (expected.invalid, expected.bad_tags, 0, 0, 0) {
            return Err(format!("{answers:?}, {queue:?}, expected {expected:?}"));
        }
        report.rounds += 1;
        report.good_probes += self.good_probes;
        report.to_prober += self.to_prober.iter().sum::<u64>();
        for (sum, count) in
            report.dropped.iter_mut().zip([answers.invalid, answers.bad_tags, answers.rate_limited])
        {
            *sum += count;
        }
        for &Sent { bytes_in, answers } in self.sent.values() {
            let bytes_out = answers * ACK_LEN as u64;
            report.add_answers(&Totals { sent: 1, bytes_in, answers, bytes_out });
        }
        for (sum, totals) in report.kinds.iter_mut().zip(&self.totals) {
            sum.sent += totals.sent;
            sum.bytes_in += totals.bytes_in;
            sum.answers += totals.answers;
            sum.bytes_out += totals.bytes_out;
        }
        let (bytes_in, bytes_out) =
            report.kinds.iter().fold((0, 0), |sum, kind| (sum.0 + kind.bytes_in, sum.1 + kind.bytes_out));
        match bytes_out <= bytes_in {
            true => Ok(()),
            false => Err(format!("{bytes_out} bytes of answers to {bytes_in} bytes")),
        }
    }
}

/// The number of datagrams that a responder has handled.
fn handled(counts: &AnswerCounts) -> u64 {
    counts.answered + counts.invalid + counts.bad_tags + counts.rate_limited + counts.busy
}
