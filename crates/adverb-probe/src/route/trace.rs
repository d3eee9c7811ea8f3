//! Traces with sockets.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use adverb_verbs::internal::{PathSocket, Watch, path_socket, wait_either};
use adverb_verbs::{Device, Psn, Qpn};

use super::packet::{Packets, RouteTarget, icmp_message, quiet_mad};
use super::{Route, RouteProbe, TraceOptions, TraceProgress, Tracer};
use crate::error::{ProbeError, Result};
use crate::paths::flow_label_of;

/// The local end of a trace: it writes the payload of the probes, and receives the acknowledgements of the destination's
/// responder.
pub trait RouteResponder {
    /// Returns the number of the queue pair that receives the acknowledgements.
    fn source_qpn(&self) -> Qpn;

    /// Returns the payload of a probe.
    fn payload(&mut self, probe: &RouteProbe) -> Vec<u8>;

    /// Waits until `timeout` has elapsed, an acknowledgement arrives, or `icmp` is readable, and calls `acknowledge` with
    /// the number of each acknowledged probe and the time of the acknowledgement. May also return earlier.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair no longer works.
    fn wait(
        &mut self,
        timeout: Duration,
        icmp: BorrowedFd<'_>,
        acknowledge: &mut dyn FnMut(u32, Instant),
    ) -> Result<()>;
}

/// The local end of a trace to a destination without a responder
/// ([`RouteTarget::without_responder`]). Then only ICMP messages show that a packet has reached the destination.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoResponder;

impl RouteResponder for NoResponder {
    fn source_qpn(&self) -> Qpn {
        Qpn::GSI
    }

    fn payload(&mut self, _probe: &RouteProbe) -> Vec<u8> {
        quiet_mad().to_vec()
    }

    fn wait(
        &mut self,
        timeout: Duration,
        icmp: BorrowedFd<'_>,
        _acknowledge: &mut dyn FnMut(u32, Instant),
    ) -> Result<()> {
        wait_either(icmp, None, Some(timeout))
            .map(drop)
            .map_err(|error| failure("waiting for answers", error))
    }
}

/// The first source port of a trace. Software NICs use the ports below it for flows without a flow label.
const FIRST_PORT: u16 = 0xc040;

/// The maximum time of one wait, so that the caller sees the progress.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// The pause after a wait that ended early without an answer.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns all source ports of RoCE v2 that a trace can use, in an order that depends on a random number.
pub fn source_ports(random: u64) -> impl Iterator<Item = u16> {
    let (start, step) = (random as u32, (random >> 32) as u32 | 1);
    // An odd step visits all 2^14 ports before it repeats one.
    let port = move |index: u32| 0xc000 | (start.wrapping_add(index.wrapping_mul(step)) & 0x3fff) as u16;
    (0..1 << 14).map(port).filter(|&port| port >= FIRST_PORT)
}

/// A trace of the paths from an address of a device to a destination.
///
/// On the software NIC the packets are sent from the NIC's own sockets. On other devices they are sent from UDP sockets
/// with the same source ports as the device's packets. In both cases the packets have the addresses, ports and DSCP of
/// datagrams to the target whose flow label maps to the source port, so they take the same path.
///
/// ```no_run
/// use adverb::probe::route::{NoResponder, RouteTarget, RouteTrace, TraceOptions};
/// use adverb::verbs::Device;
///
/// let mut options = TraceOptions::new();
/// options.max_paths = 8;
/// let trace = RouteTrace {
///     device: &Device::open("soft:192.0.2.1")?,
///     local: "192.0.2.1".parse()?,
///     target: RouteTarget::without_responder("198.51.100.1".parse()?),
///     dscp: 26,
///     options,
///     random: 7,
/// };
/// let route = trace.run(&mut NoResponder, |_| true)?;
/// for path in &route.paths {
///     println!("source port {}: {:?}", path.source_port, path.addresses().collect::<Vec<_>>());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RouteTrace<'a> {
    /// The device.
    pub device: &'a Device,
    /// The local address, which must be one of the device's.
    pub local: IpAddr,
    /// The destination.
    pub target: RouteTarget,
    /// The differentiated services code point of the packets.
    pub dscp: u8,
    /// The options.
    pub options: TraceOptions,
    /// A random number, which chooses the source ports and the first packet sequence number.
    pub random: u64,
}

impl RouteTrace<'_> {
    /// Runs the trace. This takes milliseconds to minutes, depending on the number of paths and on the limits of the
    /// routers. It calls `progress` at least ten times per second, and ends without further paths if `progress` returns
    /// `false`.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::System`] if the packets can't be sent, or the device has no UDP sockets at the local address,
    /// [`ProbeError::AddressFamilyMismatch`] if the addresses are of different IP versions, and the errors of
    /// [`Tracer::new`].
    pub fn run(
        &self,
        responder: &mut dyn RouteResponder,
        mut progress: impl FnMut(TraceProgress) -> bool,
    ) -> Result<Route> {
        let RouteTrace { device, local, ref target, dscp, options, random } = *self;
        let mut tracer = Tracer::new(options, target.address, source_ports(random))?;
        let first_psn = Psn::wrapping((random >> 13) as u32);
        let packets = Packets { target: *target, source_qp: responder.source_qpn(), first_psn };
        let mut sockets = Sockets::new(device, local)?;
        let mut acknowledged = Vec::new();
        while !tracer.is_finished() {
            while let Some(probe) = tracer.poll_transmit(Instant::now()) {
                let Some(socket) = sockets.get(probe.source_port)? else {
                    tracer.handle_unavailable_port(probe.source_port);
                    continue;
                };
                let payload = responder.payload(&probe);
                let packet = packets.build(probe.id, socket.local_addr(), &payload);
                let destination = target.address;
                let packet = packet.ok_or(ProbeError::AddressFamilyMismatch { local, destination })?;
                let flow_label = flow_label_of(probe.source_port).unwrap_or_default();
                match socket.send(target.udp_addr(), dscp << 2, probe.hop_limit, flow_label, &packet) {
                    Ok(()) => {}
                    // The packet counts as lost.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        return Err(failure(format!("sending a packet to {destination}"), error));
                    }
                }
            }
            sockets.retain(|port| tracer.is_active(port));
            if !progress(tracer.progress()) {
                break;
            }
            let now = Instant::now();
            let Some(due) = tracer.poll_timeout() else { continue };
            let timeout = due.saturating_duration_since(now).min(MAX_WAIT);
            responder.wait(timeout, sockets.watch.as_fd(), &mut |id, at| acknowledged.push((id, at)))?;
            let mut is_answered = !acknowledged.is_empty();
            acknowledged.drain(..).for_each(|(id, at)| tracer.handle_ack(id, at));
            is_answered |= sockets.receive(&packets, &mut tracer)?;
            if !is_answered && now.elapsed() < timeout.min(PAUSE) {
                // A socket may be readable for another reason, for example a datagram from another host.
                std::thread::sleep(PAUSE);
            }
        }
        Ok(tracer.into_route())
    }
}

/// The sockets of the active source ports.
struct Sockets<'a> {
    device: &'a Device,
    local: IpAddr,
    by_port: BTreeMap<u16, PathSocket>,
    /// Readable when a socket has an ICMP message.
    watch: Watch,
}

impl<'a> Sockets<'a> {
    fn new(device: &'a Device, local: IpAddr) -> Result<Sockets<'a>> {
        let watch = Watch::new().map_err(|error| failure("creating an epoll descriptor", error))?;
        Ok(Sockets { device, local, by_port: BTreeMap::new(), watch })
    }

    /// Returns the socket with a source port, or `None` if another program has the port.
    fn get(&mut self, port: u16) -> Result<Option<&PathSocket>> {
        let local = self.local;
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.by_port.entry(port) {
            let opened = path_socket(self.device, local, port).and_then(|socket| {
                self.watch.add(socket.as_fd())?;
                Ok(socket)
            });
            match opened {
                Ok(socket) => _ = vacant.insert(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
                Err(error) => {
                    return Err(failure(format!("opening UDP port {port} of {local} for a trace"), error));
                }
            }
        }
        Ok(self.by_port.get(&port))
    }

    /// Closes the sockets of other ports.
    fn retain(&mut self, is_active: impl Fn(u16) -> bool) {
        let watch = &self.watch;
        self.by_port.retain(|&port, socket| {
            let is_active = is_active(port);
            if !is_active {
                // A link may have the socket, too, and then closing it doesn't end the watch.
                let _ = watch.remove(socket.as_fd());
            }
            is_active
        });
    }

    /// Passes the ICMP messages to the tracer. Returns whether there were any.
    fn receive(&mut self, packets: &Packets, tracer: &mut Tracer) -> Result<bool> {
        let mut has_messages = false;
        for (&port, socket) in &mut self.by_port {
            let mut quoted = [0; 64];
            loop {
                let received = socket.receive_error(&mut quoted);
                let error = match received.map_err(|error| failure("receiving ICMP messages", error))? {
                    Some(error) => error,
                    None => break,
                };
                has_messages = true;
                let Some(message) = icmp_message(self.local.is_ipv6(), error.kind, error.code) else {
                    continue;
                };
                if let (Some(from), Ok(id)) = (error.from, packets.id_of(&quoted[..error.quoted_len])) {
                    tracer.handle_icmp(port, id, from, message, error.received_at);
                }
            }
        }
        Ok(has_messages)
    }
}

/// Returns the error of a failed operation.
fn failure(action: impl Into<Cow<'static, str>>, source: io::Error) -> ProbeError {
    ProbeError::System { action: action.into(), source }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use adverb_verbs::SoftDevice;

    use super::super::{HopState, PathEnd};
    use super::*;

    #[test]
    fn source_ports_are_those_of_flow_labels_and_differ() {
        for random in [0, 1, u64::MAX, 0x1234_5678_9abc_def0] {
            let ports: BTreeSet<u16> = source_ports(random).collect();
            assert_eq!(ports.len(), (1 << 14) - 0x40);
            assert_eq!(ports.first(), Some(&FIRST_PORT));
        }
        assert_ne!(source_ports(300).next(), source_ports(400).next());
    }

    #[test]
    fn a_host_without_rdma_answers_with_icmp() {
        let local = "127.92.0.1".parse().unwrap();
        let device = SoftDevice::at_addr(local).open().unwrap();
        let target = RouteTarget::without_responder("127.92.0.2".parse().unwrap());
        let mut calls = 0;
        let options = TraceOptions { max_paths: 4, ..TraceOptions::new() };
        let trace = RouteTrace { device: &device, local, target, dscp: 26, options, random: 5 };
        let route = trace.run(&mut NoResponder, |_| {
            calls += 1;
            true
        });
        let route = route.unwrap();
        assert!(calls > 0);
        assert_eq!(route.paths.len(), 1, "{route:?}");
        let path = &route.paths[0];
        assert_eq!((path.hops.len(), path.end), (1, PathEnd::Destination));
        assert!(
            matches!(path.hops[0].state, HopState::Answered { address, .. } if address == target.address)
        );
    }

    #[test]
    fn a_device_without_sockets_is_not_traced() {
        let switch = adverb_verbs::Switch::default();
        let local = "10.0.0.1".parse().unwrap();
        let device = SoftDevice::on_switch(&switch, local).open().unwrap();
        let target = RouteTarget::without_responder("10.0.0.2".parse().unwrap());
        let options = TraceOptions::new();
        let trace = RouteTrace { device: &device, local, target, dscp: 0, options, random: 5 };
        let error = trace.run(&mut NoResponder, |_| true).unwrap_err();
        assert!(matches!(&error, ProbeError::System { action, .. } if action.ends_with("for a trace")));
        assert!(error.hint().unwrap().starts_with("trace from a device"), "{error:?}");
    }
}
