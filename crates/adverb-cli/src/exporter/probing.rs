//! Probing of responders. For each local address, one thread sends probes and records the results of the probes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adverb::probe::session::{ProbeEventKind, ProbeResult};
use adverb::probe::{DEFAULT_PORT, Key, Peer, ProbeError, ProbePath, Prober, ProberOptions, paths};
use adverb::verbs::Device;
use anyhow::{Context, Result, ensure};

use super::totals::Destination;
use crate::ping::route_source;

/// The maximum number of pairs of a responder and a traffic class. Each pair has its own series in Prometheus, so this
/// maximum limits the number of series.
pub(super) const MAX_PAIRS: usize = 64;

/// The number of source ports that probes use in turn. Switches choose a packet's path by its source port, so the probes
/// measure several paths.
const PORTS: usize = 8;

/// The seed of the source ports. The seed is constant, so that all runs use the same ports and measure the same paths.
const PORTS_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A responder to probe.
pub(super) struct Target {
    /// The responder, as the operator named it.
    pub name: String,
    /// The responder's address and port, to which the prober sends its lookup.
    pub addr: SocketAddr,
    /// The device that sends the probes.
    pub device: Device,
    /// The address of the device from which the probes are sent.
    pub local_addr: IpAddr,
}

impl Target {
    /// Resolves a responder's name, and opens a device that can probe the responder: the system's route to the responder has
    /// a source address, and this device has that address.
    pub(super) fn resolve(name: &str) -> Result<Target> {
        let addr = resolve(name).with_context(|| format!("could not resolve {name}"))?;
        let local_addr = route_source(addr).with_context(|| format!("there is no route to {}", addr.ip()))?;
        let device = match local_addr.is_loopback() {
            true => Device::open("soft"),
            false => Device::open_by_addr(local_addr),
        };
        let device = device.with_context(|| format!("no RDMA device has the address {local_addr}"))?;
        let local_addr = own_addr(&device, local_addr)?;
        Ok(Target { name: name.to_owned(), addr, device, local_addr })
    }
}

/// Returns the preferred address if the device has it, or else the device's first address of the same family. The device
/// `soft` does not have the loopback addresses 127.0.0.1 and ::1, but other ones, while another process uses 127.0.0.1 and ::1.
fn own_addr(device: &Device, preferred: IpAddr) -> Result<IpAddr> {
    let gids = device.gids()?;
    let addrs = || gids.iter().map(|entry| entry.gid.udp_addr().ip());
    let own = addrs().find(|addr| *addr == preferred);
    let own = own.or_else(|| addrs().find(|addr| addr.is_ipv4() == preferred.is_ipv4()));
    own.with_context(|| format!("{} has no address of the same family as {preferred}", device.name()))
}

/// Resolves `HOST`, `HOST:PORT`, `ADDRESS` or `[ADDRESS]:PORT` to an address and a port.
fn resolve(name: &str) -> io::Result<SocketAddr> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, DEFAULT_PORT));
    }
    let mut addresses = match name.contains(':') {
        true => name.to_socket_addrs()?,
        false => (name, DEFAULT_PORT).to_socket_addrs()?,
    };
    addresses.next().ok_or_else(|| io::Error::other("the host has no address"))
}

/// The rate and the kinds of probes.
#[derive(Clone)]
pub(super) struct Plan {
    /// The time between two probes that have the same responder and the same class.
    pub interval: Duration,
    /// The traffic classes of the probes, as differentiated services code points.
    pub dscps: Vec<u8>,
    /// The key that all responders use, if they use one.
    pub key: Option<Key>,
}

/// The totals of the probes. The probing threads update the totals until the process ends.
#[derive(Clone, Default)]
pub(super) struct Probing(Arc<Mutex<Vec<Destination>>>);

impl Probing {
    pub(super) fn start(targets: &[Target], plan: &Plan) -> Result<Probing> {
        let pairs = targets.len() * plan.dscps.len();
        ensure!(
            pairs <= MAX_PAIRS,
            "{pairs} pairs of a host and a class are more than the maximum, {MAX_PAIRS}"
        );
        let destinations = targets.iter().map(|target| Destination::new(&target.name, &plan.dscps)).collect();
        let probing = Probing(Arc::new(Mutex::new(destinations)));
        let mut groups = BTreeMap::<_, Vec<usize>>::new();
        for (index, target) in targets.iter().enumerate() {
            groups.entry((target.device.name().to_owned(), target.local_addr)).or_default().push(index);
        }
        for ((_, local_addr), members) in groups {
            let device = &targets[members[0]].device;
            let mut prober = open(device, local_addr, plan)
                .with_context(|| format!("could not probe from {local_addr} of {}", device.name()))?;
            let mut peers = HashMap::new();
            for index in members {
                peers.insert(prober.add(targets[index].addr)?, index);
            }
            let worker = Worker { prober, peers, plan: plan.clone(), probing: probing.clone() };
            let thread = std::thread::Builder::new().name("adverb-probe".to_owned());
            thread.spawn(move || worker.run()).context("could not start a thread")?;
        }
        Ok(probing)
    }

    /// Creates totals that no thread updates.
    #[cfg(test)]
    pub(super) fn of(destinations: Vec<Destination>) -> Probing {
        Probing(Arc::new(Mutex::new(destinations)))
    }

    /// Returns the totals.
    pub(super) fn destinations(&self) -> Vec<Destination> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Destination>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(device: &Device, local_addr: IpAddr, plan: &Plan) -> Result<Prober, ProbeError> {
    let mut options = ProberOptions::new().local_addr(local_addr);
    if let Some(key) = &plan.key {
        options = options.key(key);
    }
    let name = device.name().to_owned();
    let mut first = Some(device.clone());
    options.open(move || match first.take() {
        Some(device) => Ok(device),
        None => Device::open(&name),
    })
}

/// The state of a thread, which sends probes from one local address.
struct Worker {
    prober: Prober,
    /// The index of each responder in the list of totals.
    peers: HashMap<Peer, usize>,
    plan: Plan,
    probing: Probing,
}

impl Worker {
    fn run(mut self) {
        let labels = paths::choose_flow_labels(PORTS, PORTS_SEED);
        let mut next_label = labels.iter().copied().cycle();
        let mut next = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next {
                self.post(next_label.next().unwrap_or_default());
                // After the process was suspended, the thread does not send the missed probes.
                next = (next + self.plan.interval).max(now);
            }
            self.wait(next);
        }
    }

    /// Sends a probe of each class to each responder. A responder that has not been found gets no probes.
    fn post(&mut self, flow_label: u32) {
        for (peer, index) in &self.peers {
            let is_found = self.prober.is_found(peer);
            for &dscp in &self.plan.dscps {
                let posted = self.prober.post(peer, ProbePath { flow_label, dscp });
                if is_found && !matches!(posted, Ok(true)) {
                    self.probing.lock()[*index].record(dscp, &ProbeResult::NotSent);
                }
            }
            self.probing.lock()[*index].is_found = is_found;
        }
    }

    /// Waits until the first result arrives, but no longer than until a time, and records the results that have arrived.
    fn wait(&mut self, until: Instant) {
        let mut events = Vec::new();
        let left = until.saturating_duration_since(Instant::now());
        self.prober.wait(left, |peer, event| events.push((peer, event)));
        let mut destinations = self.probing.lock();
        for (peer, event) in events {
            if let (ProbeEventKind::Finished(result), Some(index)) = (event.kind, self.peers.get(&peer)) {
                destinations[*index].record(event.probe.dscp, &result);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use adverb::probe::Responder;
    use adverb::verbs::{SoftDevice, Switch};

    use super::super::totals::ClassTotals;
    use super::*;

    #[test]
    fn results_of_every_class_are_recorded() {
        let switch = Switch::default();
        let addrs = [[10, 9, 0, 1], [10, 9, 0, 2]].map(IpAddr::from);
        let [device, peer] = addrs.map(|addr| SoftDevice::on_switch(&switch, addr).open().unwrap());
        let responder = Responder::start(&peer).unwrap();
        let name = "storage-1".to_owned();
        let target = Target { name, addr: responder.local_addr(), device, local_addr: addrs[0] };
        let plan = Plan { interval: Duration::from_millis(20), dscps: vec![0, 26], key: None };
        let probing = Probing::start(&[target], &plan).unwrap();
        let start = Instant::now();
        loop {
            let destination = probing.destinations().remove(0);
            // On a loaded machine, some answers are late.
            let answers = |class: &ClassTotals| class.results["answered"] + class.results["late"];
            if destination.is_found && destination.classes.iter().all(|class| answers(class) >= 3) {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "{destination:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn an_address_that_the_device_lacks_is_replaced_by_its_own() {
        let own = IpAddr::from([10, 9, 0, 3]);
        let device = SoftDevice::on_switch(&Switch::default(), own).open().unwrap();
        assert_eq!(own_addr(&device, own).unwrap(), own);
        assert_eq!(own_addr(&device, IpAddr::from([127, 0, 0, 1])).unwrap(), own);
        assert!(own_addr(&device, "::1".parse().unwrap()).is_err());
    }

    #[test]
    fn names_may_have_a_port() {
        let resolved = |name| resolve(name).unwrap().to_string();
        assert_eq!(resolved("192.0.2.7"), format!("192.0.2.7:{DEFAULT_PORT}"));
        assert_eq!(resolved("192.0.2.7:99"), "192.0.2.7:99");
        assert_eq!(resolved("2001:db8::7"), format!("[2001:db8::7]:{DEFAULT_PORT}"));
        assert_eq!(resolved("[2001:db8::7]:99"), "[2001:db8::7]:99");
        assert!(resolve("192.0.2.7:").is_err() && resolve("192.0.2.7:x").is_err());
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let device = Device::open("soft").unwrap();
        let local_addr = IpAddr::from([127, 0, 0, 1]);
        let target = |n: usize| Target {
            name: format!("host-{n}"),
            addr: SocketAddr::new(local_addr, DEFAULT_PORT),
            device: device.clone(),
            local_addr,
        };
        let targets: Vec<Target> = (0..33).map(target).collect();
        let plan = Plan { interval: Duration::from_secs(1), dscps: vec![0, 26], key: None };
        let error = Probing::start(&targets, &plan).err().unwrap();
        assert_eq!(error.to_string(), "66 pairs of a host and a class are more than the maximum, 64");
    }
}
