//! Injects known delays between two software NICs that are joined in memory, and prints the reported ones: a line for
//! each probe and figure, with the injected and the reported delay in nanoseconds. `cargo xtask probe timing` runs it.
//!
//! ```text
//! cargo run --release -p adverb-probe --example timing 100
//! ```

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adverb_probe::answer::{AnswerConfig, AnswerState, RandomNumbers};
use adverb_probe::session::ProbeEventKind;
use adverb_probe::stamp::Stamp;
use adverb_probe::ud_queue::{Event, UdQueue};
use adverb_probe::{ProbeError, ProbePath, ProberOptions};
use adverb_verbs::{Device, FaultConfig, Result, SoftDevice, Switch, Traffic};

/// The delays to inject.
struct Case {
    name: &'static str,
    /// To the responder, and back.
    network: [Duration; 2],
    responder: Duration,
    prober: Duration,
}

fn main() -> Result<(), ProbeError> {
    let count = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(100);
    let [none, network] = [[Duration::ZERO; 2], [2, 3].map(Duration::from_millis)];
    let (zero, long) = (Duration::ZERO, Duration::from_millis(20));
    let cases = [
        Case { name: "none", network: none, responder: zero, prober: zero },
        Case { name: "network 2 + 3 ms", network, responder: zero, prober: zero },
        Case { name: "network, responder", network, responder: long, prober: zero },
        Case { name: "network, prober", network, responder: zero, prober: long },
    ];
    cases.iter().try_for_each(|case| run(case, count))
}

/// Sends probes one after the other.
fn run(case: &Case, count: u32) -> Result<(), ProbeError> {
    let switch = Switch::default();
    let here = device(&switch, [10, 0, 0, 1], case.network[0])?;
    let there = device(&switch, [10, 0, 0, 2], case.network[1])?;
    let mut queue = UdQueue::builder(move || Ok(there.clone())).open()?;
    let addr = queue.listen(0, &[])?;
    let waker = queue.waker();
    let delay = case.responder;
    // The time for which the responder slept before it answered the last probe.
    let slept = Arc::new(Mutex::new(Duration::ZERO));
    let last_slept = Arc::clone(&slept);
    let responder = std::thread::spawn(move || respond(&mut queue, delay, &last_slept));

    let options = ProberOptions::new().timeout(Duration::from_secs(20)).grace(Duration::from_secs(1));
    let mut prober = options.open(move || Ok(here.clone()))?;
    let peer = prober.connect(addr)?;
    for _ in 0..count {
        let started = Instant::now();
        prober.post(&peer, ProbePath::default())?;
        if !case.prober.is_zero() {
            std::thread::sleep(case.prober);
        }
        let handled = started.elapsed();
        let mut result = None;
        while result.is_none() {
            prober.wait(Duration::from_secs(30), |_, event| {
                if let ProbeEventKind::Finished(finished) = event.kind {
                    result = Some(finished);
                }
            });
        }
        let Some(figures) = result.as_ref().and_then(|result| result.figures()) else { continue };
        let network: Duration = case.network.iter().sum();
        let responder = slept.lock().map_or(Duration::ZERO, |slept| *slept);
        // ACK1 arrived while the prober slept.
        let prober = handled.saturating_sub(network + responder);
        let prober = if case.prober.is_zero() { Duration::ZERO } else { prober };
        let pairs = [
            ("network", network, figures.round_trip),
            ("responder", responder, figures.responder_delay),
            ("prober", prober, figures.prober_delay),
        ];
        for (name, injected, reported) in pairs {
            println!("{}\t{name}\t{}\t{}", case.name, injected.as_nanos(), reported.as_nanos());
        }
    }
    waker.stop();
    responder.join().expect("the responder's thread doesn't panic");
    Ok(())
}

/// Opens a device that delays the packets that it sends.
fn device(switch: &Switch, addr: [u8; 4], delay: Duration) -> Result<Device> {
    let device = SoftDevice::on_switch(switch, IpAddr::from(addr));
    if delay.is_zero() {
        return device.open();
    }
    let delayed =
        FaultConfig { delay_ppm: 1_000_000, min_delay: delay, max_delay: delay, ..FaultConfig::new(1) };
    device.faults(delayed).open()
}

/// Answers probes, each after a delay.
fn respond(queue: &mut UdQueue, delay: Duration, slept: &Mutex<Duration>) {
    let mut answers = AnswerState::new(AnswerConfig::default(), RandomNumbers { epoch: 1, seed: 1 });
    let mut prober = None;
    while !queue.is_stopped() {
        queue.wait(Duration::MAX, |queue, event| match event {
            Event::Received(datagram) => {
                let started = Instant::now();
                if !delay.is_zero() {
                    std::thread::sleep(delay);
                    *slept.lock().expect("no thread panics") = started.elapsed();
                }
                let (source, now) = (datagram.source(), Stamp::now().nanos);
                prober = Some(source);
                let answer = answers.handle_datagram(datagram.payload, source, datagram.stamp, now);
                let answer = answer.expect("a valid probe");
                queue.send(0, &source, Traffic::new(), &answer.bytes).expect("a free slot");
            }
            Event::Sent(sent) if sent.id == 0 => {
                if let (Some(answer), Some(prober)) = (answers.handle_ack1_sent(0, Some(sent.stamp)), &prober)
                {
                    queue.send(1, prober, Traffic::new(), &answer.bytes).expect("a free slot");
                }
            }
            _ => {}
        });
    }
}
