//! Traces to a host with a responder.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use adverb_verbs::{Key, Qpn};

use super::trace::RouteResponder;
use super::{RouteProbe, RouteTarget};
use crate::error::Result;
use crate::format::{Message, PROBE_LEN, Probe, Sequence, TagKey};
use crate::paths::flow_label_of;
use crate::random;
use crate::ud_queue::{Event, UdQueue};

/// The local end of a trace to a host with a responder, whose acknowledgements show that a packet has reached it.
///
/// Events of the queue other than acknowledgements of the trace's probes are dropped, so the queue should have no other
/// user.
#[derive(Debug)]
pub struct QueueResponder<'a> {
    queue: &'a mut UdQueue,
    key: Option<TagKey>,
    epoch: u32,
    dscp: u8,
}

/// The maximum time of a wait for acknowledgements, because the wait doesn't end when an ICMP message arrives. The
/// message is then read late, but its timestamp is correct, because the kernel takes it.
const MAX_WAIT: Duration = Duration::from_millis(1);

impl<'a> QueueResponder<'a> {
    /// Looks up the responder at an address and port, and returns it as the target of a trace, with the local end of the
    /// trace.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`UdQueue::lookup`], and [`ProbeError::System`](crate::ProbeError::System) if the system
    /// has no random numbers.
    pub fn find(
        queue: &'a mut UdQueue,
        responder: SocketAddr,
        timeout: Duration,
    ) -> Result<(RouteTarget, QueueResponder<'a>)> {
        let found = queue.lookup(responder, timeout)?.destination;
        let target = RouteTarget { address: responder.ip(), qpn: found.qpn, qkey: found.qkey };
        let epoch = random::<4>().map(u32::from_be_bytes)?;
        Ok((target, QueueResponder { queue, key: None, epoch, dscp: 0 }))
    }

    /// Sets the key, which must be that of the responder. By default there is none.
    pub fn key(mut self, key: &Key) -> QueueResponder<'a> {
        self.key = Some(TagKey::new(key));
        self
    }

    /// Sets the differentiated services code point of the acknowledgements, which should be that of the
    /// [trace](super::RouteTrace::dscp). The default is 0.
    pub fn dscp(mut self, dscp: u8) -> QueueResponder<'a> {
        self.dscp = dscp;
        self
    }
}

impl RouteResponder for QueueResponder<'_> {
    fn source_qpn(&self) -> Qpn {
        self.queue.qpn().unwrap_or(Qpn::GSI)
    }

    fn payload(&mut self, probe: &RouteProbe) -> Vec<u8> {
        let mut bytes = vec![0; PROBE_LEN];
        let sequence = Sequence { epoch: self.epoch, number: probe.id };
        let flow_label = flow_label_of(probe.source_port).unwrap_or_default();
        // Without a device, the packet isn't sent.
        if let Some(prober) = self.queue.local() {
            Probe { sequence, flow_label, dscp: self.dscp }.write(&mut bytes, &prober, self.key.as_ref());
        }
        bytes
    }

    fn wait(
        &mut self,
        timeout: Duration,
        _icmp: BorrowedFd<'_>,
        acknowledge: &mut dyn FnMut(u32, Instant),
    ) -> Result<()> {
        let (key, epoch) = (self.key.as_ref(), self.epoch);
        self.queue.wait(timeout.min(MAX_WAIT), |queue, event| {
            if let Event::Received(datagram) = event
                && let Some(prober) = queue.local()
                && let Ok(Message::Ack(ack)) = Message::parse(datagram.payload, &prober, key)
                && ack.sequence.epoch == epoch
            {
                acknowledge(ack.sequence.number, Instant::now());
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use adverb_verbs::{Device, Traffic};

    use super::super::{HopState, NoResponder, PathEnd, RouteTrace, TraceOptions};
    use super::*;
    use crate::format::{Ack, AckKind};

    #[test]
    fn acknowledgements_show_that_packets_arrive() {
        let [local, remote] = ["127.92.1.1", "127.92.1.2"].map(|text| text.parse().unwrap());
        let mut service = UdQueue::builder(|| Device::open("soft:127.92.1.2")).open().unwrap();
        let responder = service.listen(0, b"").unwrap();
        let stop = service.waker();
        let thread = std::thread::spawn(move || {
            let mut probe_count = 0;
            while !service.is_stopped() {
                service.wait(None, |queue, event| {
                    let Event::Received(datagram) = event else { return };
                    let prober = datagram.source();
                    let Ok(Message::Probe(probe)) = Message::parse(datagram.payload, &prober, None) else {
                        return;
                    };
                    assert_eq!(probe.dscp, 26);
                    probe_count += 1;
                    let ack = Ack { sequence: probe.sequence, responder_epoch: 1, kind: AckKind::First };
                    queue.send(0, &prober, Traffic::new(), &ack.to_bytes(&prober, None)).unwrap();
                });
            }
            probe_count
        });
        let device = Device::open("soft:127.92.1.1").unwrap();
        let mut queue = UdQueue::builder(|| Device::open("soft:127.92.1.1")).open().unwrap();
        let timeout = Duration::from_secs(10);
        let (target, end) = QueueResponder::find(&mut queue, responder, timeout).unwrap();
        let mut end = end.dscp(26);
        assert_eq!(target.address, remote);
        let mut options = TraceOptions::new();
        options.timeout = Duration::from_secs(2);
        let trace = RouteTrace { device: &device, local, target, dscp: 26, options, random: 3 };
        let route = trace.run(&mut end, |_| true).unwrap();
        assert_eq!(route.paths.len(), 1);
        let path = &route.paths[0];
        assert_eq!((path.hops.len(), path.end), (1, PathEnd::Destination), "{route:?}");
        assert!(matches!(path.hops[0].state, HopState::Answered { address, .. } if address == remote));

        // Without acknowledgements, the trace can't detect that the packets arrive.
        options.timeout = Duration::from_millis(20);
        let target = RouteTarget::without_responder(remote);
        let trace = RouteTrace { device: &device, local, target, dscp: 26, options, random: 4 };
        let route = trace.run(&mut NoResponder, |_| true).unwrap();
        assert_eq!((route.paths[0].hops.len(), route.paths[0].end), (0, PathEnd::NoAnswer), "{route:?}");

        stop.stop();
        assert!(thread.join().unwrap() > 0, "the probes arrived");
    }
}
