//! An agent: the prober and the responder of one local address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb::probe::format::Sequence;
use adverb::probe::mesh::{Cell, CellKey, STALL};
use adverb::probe::session::{ProbeEvent, ProbeEventKind, ProbeResult};
use adverb::probe::ud_queue::Waker;
use adverb::probe::{Peer, ProbePath, Prober, ProberOptions, Responder, ResponderOptions};
use adverb::verbs::Device;
use anyhow::{Context, Result};

/// The time after which a probe has timed out, and also the additional time for which late answers are accepted.
///
/// It is as long as a window, so a process that stops for less than a window loses no probe.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the number of receive slots of a prober or a responder: the acknowledgements of two seconds, or more. The
/// default of the library would take 66 MB for eight devices.
fn recv_slots(rate: u32) -> u32 {
    (4 * rate).clamp(256, 1024)
}

/// The time for which a responder may be missing, for example while it restarts, before it counts as silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// A part of the results of a mesh.
#[derive(Debug)]
pub(super) enum Report {
    /// Results of a route in a window.
    Cell(u64, CellKey, Cell),
    /// A round-trip time of the network.
    NetworkRtt(CellKey, Duration),
    /// This process did not run for some time, from this window on.
    Stall(u64, IpAddr, Duration),
}

/// The settings that all agents of a mesh have in common.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub port: u16,
    pub interval: Duration,
    pub classes: Vec<u8>,
    pub window: Duration,
    pub start: Instant,
}

/// A running agent. Dropping it stops it.
pub(super) struct Agent {
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// Answers probes until it is dropped.
    _responder: Responder,
    pub(super) device: String,
}

impl Agent {
    /// Opens the device of an address, and answers probes. [`Opened::start`] then sends `rate` probes per second.
    pub(super) fn open(address: IpAddr, port: u16, rate: u32) -> Result<Opened> {
        let open = move || open_device(address);
        let device = open().with_context(|| format!("could not open a device for {address}"))?;
        let name = device.name().to_owned();
        let opener = || {
            let mut first = Some(device.clone());
            move || first.take().map_or_else(|| open_device(address), Ok)
        };
        let responder = ResponderOptions::new()
            .port(port)
            .local_addr(address)
            .recv_slots(recv_slots(rate))
            .start(opener())
            .with_context(|| format!("could not answer probes at {address}"))?;
        let prober = ProberOptions::new()
            .local_addr(address)
            .timeout(TIMEOUT)
            .grace(TIMEOUT)
            .recv_slots(recv_slots(rate))
            .open(opener())
            .with_context(|| format!("could not send probes from {address}"))?;
        Ok(Opened { address, prober, responder, device: name })
    }
}

/// An agent that answers probes, and sends none yet.
pub(super) struct Opened {
    address: IpAddr,
    prober: Prober,
    responder: Responder,
    device: String,
}

impl Opened {
    /// Starts sending probes to the other members.
    pub(super) fn start(mut self, members: &[IpAddr], plan: &Plan, sender: Sender<Report>) -> Result<Agent> {
        let mut targets = Vec::new();
        for &address in members.iter().filter(|&&member| member != self.address) {
            let peer = self.prober.add(SocketAddr::new(address, plan.port))?;
            targets.push(Target { address, peer, missing_since: Some(Instant::now()) });
        }
        // Members begin at different targets, so that they don't all probe one at the same time.
        let offset = members.iter().position(|member| *member == self.address).unwrap_or_default();
        let count = targets.len().max(1);
        targets.rotate_left(offset % count);
        let waker = self.prober.waker();
        let mut probing =
            Probing { source: self.address, targets, plan: plan.clone(), timed_out: HashMap::new(), sender };
        let mut prober = self.prober;
        let thread = std::thread::Builder::new()
            .name("adverb-mesh".to_owned())
            .spawn(move || probing.run(&mut prober))
            .context("could not start a thread")?;
        Ok(Agent { waker, thread: Some(thread), _responder: self.responder, device: self.device })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

/// Opens the RDMA device of the address, or the software NIC at it.
fn open_device(address: IpAddr) -> adverb::verbs::Result<Device> {
    Device::open_by_addr(address).or_else(|_| Device::open(&format!("soft:{address}")))
}

struct Probing {
    source: IpAddr,
    targets: Vec<Target>,
    plan: Plan,
    /// The windows of probes that timed out and have no result.
    timed_out: HashMap<(Peer, Sequence), u64>,
    sender: Sender<Report>,
}

struct Target {
    address: IpAddr,
    peer: Peer,
    missing_since: Option<Instant>,
}

impl Probing {
    fn run(&mut self, prober: &mut Prober) {
        let mut due = Instant::now();
        for count in 0_usize.. {
            while !prober.queue().is_stopped() {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let mut events = Vec::new();
                prober.wait(left, |peer, event| events.push((peer, event)));
                for (peer, event) in events {
                    self.handle(peer, &event);
                }
            }
            if prober.queue().is_stopped() {
                return;
            }
            let now = Instant::now();
            if now.duration_since(due) >= STALL {
                self.report(Report::Stall(self.window(due), self.source, now - due));
                due = now;
            }
            due += self.plan.interval;
            self.post(prober, count, now);
        }
    }

    /// Sends the probe number `count`. With two targets A and B and two classes 0 and 1, the order is A0, B0, A1, B1,
    /// A0, …
    fn post(&mut self, prober: &mut Prober, count: usize, now: Instant) {
        let number = count % self.targets.len();
        let class = self.plan.classes[count / self.targets.len() % self.plan.classes.len()];
        let target = &mut self.targets[number];
        if prober.is_found(&target.peer) {
            target.missing_since = None;
            let path = ProbePath { flow_label: 0, dscp: class };
            // A probe that can't be sent isn't lost by the network.
            let _ = prober.post(&target.peer, path);
            return;
        }
        let since = *target.missing_since.get_or_insert(now);
        if now.duration_since(since) >= SILENT_AFTER {
            let route = CellKey { source: self.source, destination: target.address, class };
            self.report(Report::Cell(
                self.window(now),
                route,
                Cell { probes: 1, lost: 1, ..Cell::default() },
            ));
        }
    }

    fn handle(&mut self, peer: Peer, event: &ProbeEvent) {
        let Some(target) = self.targets.iter().find(|target| target.peer == peer) else { return };
        let route = CellKey { source: self.source, destination: target.address, class: event.probe.dscp };
        let key = (peer, event.probe.sequence);
        let now = Instant::now();
        let result = match event.kind {
            ProbeEventKind::TimedOut => {
                let window = self.window(now.checked_sub(TIMEOUT).unwrap_or(now));
                self.timed_out.insert(key, window);
                self.report(Report::Cell(window, route, Cell { probes: 1, lost: 1, ..Cell::default() }));
                return;
            }
            ProbeEventKind::Finished(result) => result,
            _ => return,
        };
        let timed_out = self.timed_out.remove(&key);
        let mut cell = Cell::default();
        let mut window = self.window(now);
        match result {
            ProbeResult::Answered(figures) | ProbeResult::Late(figures) => {
                let total = figures.round_trip + figures.prober_delay + figures.responder_delay;
                window = self.window(now.checked_sub(total).unwrap_or(now));
                cell.responder.record(figures.responder_delay);
                cell.prober.record(figures.prober_delay);
                match figures.network_rtt() {
                    Some(rtt) => {
                        cell.network.record(rtt);
                        self.report(Report::NetworkRtt(route, rtt));
                    }
                    None => cell.process_stamped.record(figures.round_trip),
                }
            }
            // The answers arrived, or the responder restarted: no loss of the network.
            ProbeResult::Impossible(_) | ProbeResult::Unstamped => {}
            ProbeResult::Ended | ProbeResult::NotSent if timed_out.is_none() => return,
            ProbeResult::Ended | ProbeResult::NotSent => {}
            ProbeResult::ReturnLost => {
                let cell = Cell { return_lost: 1, ..Cell::default() };
                return self.report(Report::Cell(timed_out.unwrap_or(window), route, cell));
            }
            // The loss was counted when the probe timed out.
            _ => return,
        }
        match timed_out {
            Some(timed_out) => {
                cell.late = 1;
                window = timed_out;
            }
            None => cell.probes = 1,
        }
        self.report(Report::Cell(window, route, cell));
    }

    fn window(&self, time: Instant) -> u64 {
        let windows =
            time.saturating_duration_since(self.plan.start).as_nanos() / self.plan.window.as_nanos();
        u64::try_from(windows).unwrap_or(u64::MAX)
    }

    fn report(&self, report: Report) {
        // The receiver is dropped at the end only.
        let _ = self.sender.send(report);
    }
}
