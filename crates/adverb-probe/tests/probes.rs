//! `Prober` and `Responder` on the software NIC, over UDP sockets and over a switch in memory.

#![cfg(feature = "soft")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use adverb_probe::answer::{AnswerConfig, AnswerState, RandomNumbers, Rate};
use adverb_probe::format::{Message, PROBE_LEN};
use adverb_probe::paths::choose_flow_labels;
use adverb_probe::session::{ProbeEventKind, ProbeResult};
use adverb_probe::stamp::{Stamp, StampKind};
use adverb_probe::ud_queue::{Event, UdQueue};
use adverb_probe::{Key, Peer, ProbeError, ProbePath, Prober, ProberOptions, Responder, ResponderOptions};
use adverb_verbs::{Device, FaultConfig, SoftDevice, Switch, Traffic};

/// The limit of waits that succeed at once unless something is broken.
const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// Returns a loopback address that no other test of this process uses.
fn loopback() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high & 0x7f, low, NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// Returns an address that no other device of this process has: a lookup finds its device by the address.
fn unique() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    Ipv4Addr::new(10, 0, 0, NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

fn on_switch(switch: &Switch) -> Device {
    SoftDevice::on_switch(switch, unique()).open().unwrap()
}

/// Options with a timeout that a loaded machine doesn't reach.
fn patient() -> ProberOptions {
    ProberOptions::new().timeout(Duration::from_secs(20)).grace(Duration::from_secs(1))
}

fn prober_on(options: ProberOptions, device: &Device) -> Prober {
    let device = device.clone();
    options.open(move || Ok(device.clone())).unwrap()
}

fn responder_on(options: ResponderOptions, device: &Device) -> Responder {
    let device = device.clone();
    options.port(0).start(move || Ok(device.clone())).unwrap()
}

/// Sends probes and returns their results, in the order of completion.
fn probe_many(prober: &mut Prober, peer: &Peer, paths: &[ProbePath]) -> Vec<(ProbePath, ProbeResult)> {
    let deadline = Instant::now() + TEST_DEADLINE;
    let (mut posted, mut results) = (0, Vec::new());
    while results.len() < paths.len() {
        assert!(Instant::now() < deadline, "{:?}", prober.counts(peer));
        while posted < paths.len() && prober.post(peer, paths[posted]).unwrap() {
            posted += 1;
        }
        prober.wait(Duration::from_millis(100), |_, event| {
            if let ProbeEventKind::Finished(result) = event.kind {
                let path = ProbePath { flow_label: event.probe.flow_label, dscp: event.probe.dscp };
                results.push((path, result));
            }
        });
    }
    results
}

#[test]
fn probes_over_sockets_are_answered_over_all_paths_and_classes() {
    let [here, there] = [loopback(), loopback()].map(|address| SoftDevice::at_addr(address).open().unwrap());
    let responder = responder_on(ResponderOptions::new(), &there);
    let mut prober = prober_on(patient(), &here);
    let peer = prober.connect(responder.local_addr()).unwrap();
    let labels = choose_flow_labels(8, 0x1234_5678_9abc_def0);
    let paths: Vec<ProbePath> = (0..400)
        .map(|number| ProbePath { flow_label: labels[number % 8], dscp: (number % 3) as u8 * 13 })
        .collect();
    let results = probe_many(&mut prober, &peer, &paths);
    for (path, result) in &results {
        assert!(
            matches!(result, ProbeResult::Answered(_) | ProbeResult::Impossible(_)),
            "{path:?} {result:?}"
        );
    }
    let counts = prober.counts(&peer);
    assert_eq!((counts.conclusive(), counts.loss()), (400, Some(0.0)));
    assert_eq!((counts.unmatched_acks, counts.duplicate_acks, counts.stale_acks), (0, 0, 0));
    assert_eq!(prober.strays().invalid, 0);
    // Each path and class needs one address handle, and no more.
    assert_eq!(prober.queue().stats().address_handles_created, 24);
    drop(prober);
    let stats = responder.stop();
    assert_eq!((stats.answers.answered, stats.answers.completed, stats.answers.not_sent), (400, 400, 0));
}

#[test]
fn process_stamps_are_never_evidence_about_the_network() {
    let switch = Switch::default();
    let [here, there] = [(); 2].map(|()| on_switch(&switch));
    let responder = Responder::start(&there).unwrap();
    let mut prober = Prober::open(&here).unwrap();
    let peer = prober.connect(responder.local_addr()).unwrap();
    let result = prober.probe(&peer).unwrap();
    if let Some(figures) = result.figures() {
        assert_eq!((figures.stamps, figures.network_rtt()), (StampKind::Process, None));
    }
}

/// The table of injected and reported delays: `cargo test -p adverb-probe --test probes injected -- --nocapture`.
#[test]
fn injected_delays_of_the_network_are_reported_as_the_networks() {
    println!("injected (ms)  reported round trip (ms): min  median  max");
    for injected in [1, 5, 20] {
        let fault = FaultConfig {
            delay_ppm: 1_000_000,
            min_delay: Duration::from_millis(injected),
            max_delay: Duration::from_millis(injected),
            ..FaultConfig::new(7)
        };
        let switch = Switch::default();
        let here = SoftDevice::on_switch(&switch, unique()).faults(fault).open().unwrap();
        let there = on_switch(&switch);
        let responder = responder_on(ResponderOptions::new(), &there);
        let mut prober = prober_on(patient(), &here);
        let peer = prober.connect(responder.local_addr()).unwrap();
        let mut trips = Vec::new();
        for _ in 0..50 {
            let result = prober.probe(&peer).unwrap();
            trips.extend(result.figures().map(|figures| figures.round_trip));
        }
        trips.sort();
        let [min, median, max] = [0, trips.len() / 2, trips.len() - 1].map(|index| trips[index]);
        println!("{injected:13}  {min:?}  {median:?}  {max:?}");
        assert!(trips.len() >= 45, "{} of 50", trips.len());
        // The network delays no packet less than this. How much more a loaded machine adds isn't bounded.
        assert!(min >= Duration::from_millis(injected), "{min:?}");
    }
}

/// The test answers the probes itself, after a delay.
#[test]
fn injected_delays_of_the_responder_are_not_the_networks() {
    let switch = Switch::default();
    let [here, there] = [(); 2].map(|()| on_switch(&switch));
    let mut queue = UdQueue::builder(move || Ok(there.clone())).open().unwrap();
    let address = queue.listen(0, &[]).unwrap();
    let waker = queue.waker();
    let delay = Duration::from_millis(30);
    let thread = std::thread::spawn(move || {
        let config = AnswerConfig::default();
        let mut answers = AnswerState::new(config, RandomNumbers { epoch: 1, seed: 1 });
        let mut prober = None;
        while !queue.is_stopped() {
            queue.wait(Duration::MAX, |queue, event| match event {
                Event::Received(datagram) => {
                    std::thread::sleep(delay);
                    let now = Stamp::now().nanos;
                    let source = datagram.source();
                    let answer = answers.handle_datagram(datagram.payload, source, datagram.stamp, now);
                    prober = Some(source);
                    queue.send(0, &source, Traffic::new(), &answer.unwrap().bytes).unwrap();
                }
                Event::Sent(sent) if sent.id == 0 => {
                    let answer = answers.handle_ack1_sent(0, Some(sent.stamp));
                    if let (Some(answer), Some(prober)) = (answer, &prober) {
                        queue.send(1, prober, Traffic::new(), &answer.bytes).unwrap();
                    }
                }
                _ => {}
            });
        }
    });
    let mut prober = prober_on(patient(), &here);
    let peer = prober.connect(address).unwrap();
    let (mut shortest, mut count) = (Duration::MAX, 0);
    for _ in 0..20 {
        if let Some(figures) = prober.probe(&peer).unwrap().figures() {
            assert!(figures.responder_delay >= delay, "{figures:?}");
            shortest = shortest.min(figures.round_trip);
            count += 1;
        }
    }
    waker.stop();
    thread.join().unwrap();
    // The delay of the responder isn't part of the round trip, in at least one of the probes of a loaded machine.
    assert!(count >= 15 && shortest < delay, "{count} {shortest:?}");
}

#[test]
fn a_lossy_network_is_measured() {
    let fault = FaultConfig { loss_ppm: 100_000, ..FaultConfig::new(3) };
    let switch = Switch::default();
    let here = SoftDevice::on_switch(&switch, unique()).faults(fault).open().unwrap();
    let there = on_switch(&switch);
    let responder = responder_on(ResponderOptions::new(), &there);
    let options = ProberOptions::new()
        .timeout(Duration::from_secs(4))
        .grace(Duration::from_secs(1))
        .max_outstanding(256);
    let mut prober = prober_on(options, &here);
    let peer = loop {
        // The lookup's own packets may be lost, too.
        if let Ok(peer) = prober.connect(responder.local_addr()) {
            break peer;
        }
    };
    let results = probe_many(&mut prober, &peer, &[ProbePath::default(); 1000]);
    let lost = results.iter().filter(|(_, result)| matches!(result, ProbeResult::Lost)).count();
    // The binomial distribution of 1000 probes at 10 %: six standard deviations.
    assert!((43..=157).contains(&lost), "{lost}");
    assert_eq!(prober.counts(&peer).ended, 0);
}

#[test]
fn a_responder_with_a_key_answers_only_probers_with_the_key() {
    let switch = Switch::default();
    let [here, there] = [(); 2].map(|()| on_switch(&switch));
    let key = Key::new([1; 32]).unwrap();
    let responder = responder_on(ResponderOptions::new().key(&key), &there);
    let mut good = prober_on(patient().key(&key), &here);
    let peer = good.connect(responder.local_addr()).unwrap();
    assert!(!matches!(good.probe(&peer).unwrap(), ProbeResult::Lost));
    let quick = || ProberOptions::new().timeout(Duration::from_millis(50)).grace(Duration::from_millis(50));
    for options in [quick(), quick().key(&Key::new([2; 32]).unwrap())] {
        let mut bad = prober_on(options, &here);
        let peer = bad.connect(responder.local_addr()).unwrap();
        // The lookup finds the responder alive.
        assert_eq!(bad.probe(&peer).unwrap(), ProbeResult::Lost);
    }
    let answers = responder.stop().answers;
    assert_eq!((answers.answered, answers.bad_tags), (1, 2));
}

#[test]
fn hostile_datagrams_change_nothing_but_counts_and_are_not_amplified() {
    let switch = Switch::default();
    let [here, there] = [(); 2].map(|()| on_switch(&switch));
    let rate = Rate { per_second: 1, burst: 20 };
    let responder = responder_on(ResponderOptions::new().source_rate(rate), &there);
    let mut queue = UdQueue::builder(move || Ok(here.clone())).open().unwrap();
    let target = queue.lookup(responder.local_addr(), Duration::from_secs(10)).unwrap().destination;
    let local = queue.local().unwrap();
    let (mut sent, mut received, mut number) = (0, 0, 0_u32);
    let deadline = Instant::now() + TEST_DEADLINE;
    let mut probe = [0; PROBE_LEN];
    while responder.stats().answers.rate_limited < 100 || responder.stats().answers.invalid < 100 {
        assert!(Instant::now() < deadline, "{:?}", responder.stats());
        number += 1;
        let sequence = adverb_probe::format::Sequence { epoch: 1, number };
        adverb_probe::format::Probe { sequence, flow_label: 0, dscp: 0 }.write(&mut probe, &local, None);
        if number % 2 == 0 {
            probe[..4].copy_from_slice(&number.to_be_bytes());
        }
        let len = if number % 3 == 0 { 1 + number as usize % 90 } else { PROBE_LEN };
        if queue.send(0, &target, Traffic::new(), &probe[..len]).is_ok() {
            sent += len;
        }
        queue.poll(|_, event| {
            if let Event::Received(datagram) = event {
                assert!(matches!(Message::parse(datagram.payload, &local, None), Ok(Message::Ack(_))));
                received += datagram.payload.len();
            }
        });
    }
    queue.wait(Duration::from_millis(200), |_, event| {
        if let Event::Received(datagram) = event {
            received += datagram.payload.len();
        }
    });
    println!("{sent} bytes sent, {received} received");
    assert!(received > 0 && received <= sent);
}

#[test]
fn responders_and_probers_that_restart_in_turn_cause_no_false_loss() {
    let [here, there] = [loopback(), loopback()];
    let options =
        || ProberOptions::new().timeout(Duration::from_millis(200)).grace(Duration::from_millis(200));
    let open = |address| move || SoftDevice::at_addr(address).open();
    let mut prober = options().open(open(here)).unwrap();
    let mut responder = ResponderOptions::new().port(0).start(open(there)).unwrap();
    let address = SocketAddr::new(there, responder.local_addr().port());
    let mut peer = prober.connect(responder.local_addr()).unwrap();
    let (mut answered, mut ended) = (0, 0);
    for turn in 0..50 {
        if turn % 2 == 0 {
            // The responder stops while probes are sent to it, and another one starts at its port.
            responder.stop();
            for _ in 0..3 {
                prober.post(&peer, ProbePath::default()).unwrap();
            }
            let port = address.port();
            responder = ResponderOptions::new().port(port).start(open(there)).unwrap();
        } else {
            drop(prober);
            prober = options().open(open(here)).unwrap();
            peer = prober.connect(responder.local_addr()).unwrap();
        }
        let deadline = Instant::now() + TEST_DEADLINE;
        let mut is_answered = false;
        while !is_answered {
            assert!(Instant::now() < deadline, "turn {turn}: {:?}", prober.counts(&peer));
            if prober.outstanding_count(&peer) == 0 {
                prober.post(&peer, ProbePath::default()).unwrap();
            }
            prober.wait(Duration::from_millis(50), |_, event| {
                if let ProbeEventKind::Finished(result) = event.kind {
                    match result {
                        ProbeResult::Ended => ended += 1,
                        ProbeResult::Lost | ProbeResult::ReturnLost | ProbeResult::Unreachable => {
                            panic!("turn {turn}: {result:?}")
                        }
                        _ => is_answered = true,
                    }
                }
            });
        }
        answered += 1;
    }
    println!("{answered} turns, {ended} probes ended with their responder");
    assert!(ended >= 25);
}

#[test]
fn a_stopped_prober_or_responder_returns_at_once() {
    let switch = Switch::default();
    let [here, there] = [(); 2].map(|()| on_switch(&switch));
    let responder = responder_on(ResponderOptions::new(), &there);
    let mut prober = prober_on(patient(), &here);
    let waker = prober.waker();
    let thread = std::thread::spawn(move || prober.wait(None, |_, _| {}));
    waker.stop();
    thread.join().unwrap();
    let started = Instant::now();
    responder.stop();
    assert!(started.elapsed() < TEST_DEADLINE / 2);
}

#[test]
fn options_outside_their_range_are_errors() {
    let switch = Switch::default();
    for (options, expected) in [
        (
            ProberOptions::new().max_outstanding(0),
            "`ProberOptions::max_outstanding` is 0, but must be from 1 to 1024",
        ),
        (ProberOptions::new().max_outstanding(1025), "`ProberOptions::max_outstanding` is 1025, but "),
        (ProberOptions::new().probe_len(95), "`ProberOptions::probe_len` is 95, but must be from 96 to 4096"),
        (ProberOptions::new().probe_len(4097), "`ProberOptions::probe_len` is 4097, but "),
    ] {
        let device = on_switch(&switch);
        let error = options.open(move || Ok(device.clone())).expect_err("an error");
        assert!(matches!(error, ProbeError::InvalidOption { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
