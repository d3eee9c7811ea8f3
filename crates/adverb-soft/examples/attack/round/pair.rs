//! Two NICs that communicate and check the results while one of them is attacked.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::Time;
use adverb_proto::cm::{AddrPair, BindAddr, ConnectParams, Event, ListenParams, LocalQp};
use adverb_proto::types::{Destination, SendOperation, Transport};
use adverb_soft::{CmEvent, CmEventChannel, Nic};
use adverb_wire::cm::{ServiceId, Timeout};
use adverb_wire::{GRH_LEN, Psn, Qpn};

use super::Outcome;
use super::end::{End, OPERATION_DEADLINE};

/// The service that the pair connects to. Attackers use another one.
const SERVICE: ServiceId = ServiceId::tcp_port(7472);

/// The length of a message, which is sent in several packets.
const MESSAGE_LEN: usize = 4096;

/// The length of a datagram, which is sent in one packet.
const DATAGRAM_LEN: usize = 512;

/// The number of steps of which one establishes and closes a connection.
const STEPS_PER_CONNECTION: u64 = 32;

/// The queue key of the pair's datagrams, which attackers don't know.
const QKEY: u32 = 0x5ec2_e701;

/// The queue pairs of the attacked NIC and of its peer.
pub(super) struct Pair {
    pub(super) rc_pairs: Vec<RcPair>,
    datagrams: [End; 2],
    /// The pairs of unicast addresses of both NICs.
    addresses: Vec<[IpAddr; 2]>,
    request_channels: [Arc<CmEventChannel>; 2],
    step: u64,
    pub(super) connections: u64,
}

/// A reliable connection between both NICs.
pub(super) struct RcPair {
    pub(super) victim: End,
    peer: End,
}

impl Pair {
    /// Connects two NICs by pairs of their addresses.
    pub(super) fn new(victim: &Arc<Nic>, peer: &Arc<Nic>, addresses: Vec<[IpAddr; 2]>) -> Outcome<Pair> {
        let mut rc_pairs = Vec::new();
        for (psn, [victim_addr, peer_addr]) in (0xff_ffe0..).zip(&addresses) {
            let rc_pair =
                RcPair { victim: End::new(victim, Transport::Rc)?, peer: End::new(peer, Transport::Rc)? };
            let psn = Psn::wrapping(psn);
            rc_pair.victim.connect(*victim_addr, *peer_addr, rc_pair.peer.qpn, psn)?;
            rc_pair.peer.connect(*peer_addr, *victim_addr, rc_pair.victim.qpn, psn)?;
            rc_pairs.push(rc_pair);
        }
        let datagrams = [End::new(victim, Transport::Ud)?, End::new(peer, Transport::Ud)?];
        datagrams.iter().try_for_each(|end| end.start_datagrams(QKEY))?;
        let listen = |nic: &Nic| -> Outcome<Arc<CmEventChannel>> {
            let channel = Arc::new(CmEventChannel::new().map_err(|error| error.to_string())?);
            let listen =
                ListenParams { service: SERVICE, bind: BindAddr::Any, transport: Transport::Rc, backlog: 8 };
            nic.cm().listen(listen, &channel).map_err(|error| format!("can't listen: {error}"))?;
            Ok(channel)
        };
        let request_channels = [listen(victim)?, listen(peer)?];
        Ok(Pair { rc_pairs, datagrams, addresses, request_channels, step: 0, connections: 0 })
    }

    /// Does one operation, and checks it.
    pub(super) fn step(&mut self) -> Outcome<()> {
        self.step += 1;
        if self.step.is_multiple_of(STEPS_PER_CONNECTION) {
            return self.connect().map_err(|error| format!("connection {}: {error}", self.connections));
        }
        let rc_pair = &self.rc_pairs[self.step as usize % self.rc_pairs.len()];
        // The directions alternate.
        let (from, to) = if self.step & 1 == 0 {
            (&rc_pair.victim, &rc_pair.peer)
        } else {
            (&rc_pair.peer, &rc_pair.victim)
        };
        from.fill(self.step << 20);
        match self.step / 2 % 5 {
            0 => {
                ensure(to.post_recv(2, MESSAGE_LEN), "receive")?;
                ensure(from.post(1, SendOperation::Send, MESSAGE_LEN, None), "send")?;
                from.wait_for(1, "SEND")?;
                to.wait_for(2, "RECV")?;
                to.ensure_equal(from, MESSAGE_LEN).map_err(|error| format!("SEND: {error}"))
            }
            1 => {
                ensure(from.post(1, SendOperation::Write(to.remote()), MESSAGE_LEN, None), "write")?;
                from.wait_for(1, "WRITE")?;
                to.ensure_equal(from, MESSAGE_LEN).map_err(|error| format!("WRITE: {error}"))
            }
            2 => {
                to.fill(self.step << 21);
                ensure(from.post(1, SendOperation::Read(to.remote()), MESSAGE_LEN, None), "read")?;
                from.wait_for(1, "READ")?;
                from.ensure_equal(to, MESSAGE_LEN).map_err(|error| format!("READ: {error}"))
            }
            3 => {
                to.store(self.step);
                let add = SendOperation::FetchAdd { remote: to.remote(), add: 7 };
                ensure(from.post(1, add, 8, None), "fetch and add")?;
                from.wait_for(1, "FETCH ADD")?;
                let (old, new) = (from.word(0), to.word(0));
                let is_correct = (old, new) == (self.step, self.step + 7);
                ensure(is_correct, &format!("FETCH ADD of {}: {old}, then {new}", self.step))
            }
            _ => self.send_datagram(),
        }
    }

    /// Sends a datagram repeatedly until it arrives, because datagrams aren't acknowledged.
    fn send_datagram(&self) -> Outcome<()> {
        let [victim, peer] = &self.datagrams;
        let [victim_addr, peer_addr] = self.addresses[self.step as usize % self.addresses.len()];
        let (from, to, local, remote) = if self.step & 1 == 0 {
            (victim, peer, victim_addr, peer_addr)
        } else {
            (peer, victim, peer_addr, victim_addr)
        };
        let path = from.nic.path(local, remote, 0xc123).ok_or("no path")?;
        from.fill(self.step << 20);
        ensure(to.post_recv(2, GRH_LEN + DATAGRAM_LEN), "receive")?;
        let start = Instant::now();
        loop {
            let destination = Destination { handle: path, qpn: to.qpn, qkey: QKEY };
            ensure(from.post(1, SendOperation::Send, DATAGRAM_LEN, Some(destination)), "send")?;
            from.wait_for(1, "UD SEND")?;
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_millis(100) {
                if let Some(completion) = to.poll() {
                    let is_correct = completion.outcome.is_ok()
                        && (0..DATAGRAM_LEN / 8)
                            .all(|index| to.word(GRH_LEN / 8 + index) == from.word(index));
                    return ensure(is_correct, &format!("UD RECV: {completion:?}"));
                }
                std::thread::yield_now();
            }
            ensure(start.elapsed() < OPERATION_DEADLINE, "no datagram arrived")?;
        }
    }

    /// Connects with the connection manager, sends a message and disconnects.
    fn connect(&mut self) -> Outcome<()> {
        self.connections += 1;
        let rc_pair = &self.rc_pairs[0];
        let (victim, peer) = (&rc_pair.victim.nic, &rc_pair.peer.nic);
        let [victim_addr, peer_addr] = self.addresses[self.connections as usize % self.addresses.len()];
        let victim_connects = self.connections & 1 == 0;
        let (active, passive, local, remote, request_channel) = if victim_connects {
            (victim, peer, victim_addr, peer_addr, &self.request_channels[1])
        } else {
            (peer, victim, peer_addr, victim_addr, &self.request_channels[0])
        };
        let (client, server) = (End::new(active, Transport::Rc)?, End::new(passive, Transport::Rc)?);
        client.init()?;
        server.init()?;
        let channels = [CmEventChannel::new(), CmEventChannel::new()].map(|channel| channel.map(Arc::new));
        let [Ok(client_events), Ok(server_events)] = channels else {
            return Err("no event channel".to_owned());
        };
        let ack_timeout = Timeout::new(17).ok_or("no timeout")?;
        let local_qps = [&client, &server].map(|end| {
            let mut local_qp = LocalQp::new(end.qpn);
            (local_qp.ack_timeout, local_qp.retry_count) = (ack_timeout, 7);
            local_qp
        });
        let connect = ConnectParams::new(AddrPair { local, remote }, SERVICE, local_qps[0], Time::ZERO);
        let text = |error: adverb_soft::Error| error.to_string();
        let id = active.cm().connect(connect, OPERATION_DEADLINE, &client_events).map_err(text)?;
        let request = loop {
            match next(request_channel)? {
                // An attacker's request is among them only if the attacker guessed the service.
                Event::Request(request) if request.addrs.remote == local => break request,
                Event::Request(request) => _ = passive.cm().reject(request.id, &[]),
                _ => {}
            }
        };
        passive.cm().subscribe(request.id, &server_events).map_err(text)?;
        let ready = passive.cm().qp_attributes(request.id, &local_qps[1]).map_err(text)?;
        server.move_to_rts(ready.ready_to_receive, ready.ready_to_send)?;
        ensure(server.post_recv(2, MESSAGE_LEN), "receive")?;
        passive.cm().accept(request.id, &local_qps[1], b"", OPERATION_DEADLINE).map_err(text)?;
        expect(&client_events, "acceptance", |event| matches!(event, Event::Accepted(_)))?;
        let ready = active.cm().qp_attributes(id, &local_qps[0]).map_err(text)?;
        client.move_to_rts(ready.ready_to_receive, ready.ready_to_send)?;
        active.cm().establish(id).map_err(text)?;
        expect(&client_events, "connection", |event| *event == Event::Established(id))?;
        expect(&server_events, "connection", |event| *event == Event::Established(request.id))?;
        client.fill(self.step << 20);
        ensure(client.post(1, SendOperation::Send, MESSAGE_LEN, None), "send")?;
        client.wait_for(1, "SEND of a connection")?;
        server.wait_for(2, "RECV of a connection")?;
        server.ensure_equal(&client, MESSAGE_LEN)?;
        active.cm().disconnect(id, OPERATION_DEADLINE).map_err(text)?;
        expect(&client_events, "disconnect", |event| *event == Event::Disconnected(id))?;
        expect(&server_events, "disconnect", |event| *event == Event::Disconnected(request.id))?;
        active.cm().abort(id, Duration::ZERO);
        passive.cm().abort(request.id, Duration::ZERO);
        Ok(())
    }

    pub(super) fn operations(&self) -> u64 {
        self.step
    }

    /// Whether a queue pair of the attacked NIC belongs to the pair.
    pub(super) fn has(&self, qpn: Qpn) -> bool {
        self.rc_pairs.iter().any(|rc_pair| rc_pair.victim.qpn == qpn) || self.datagrams[0].qpn == qpn
    }
}

fn ensure(holds: bool, check: &str) -> Outcome<()> {
    if holds { Ok(()) } else { Err(format!("failed: {check}")) }
}

/// Waits for the next event.
fn next(channel: &CmEventChannel) -> Outcome<Event> {
    let start = Instant::now();
    loop {
        match channel.take() {
            Some(CmEvent::Event(event)) => return Ok(event),
            Some(other) => return Err(format!("{other:?}")),
            None if start.elapsed() > OPERATION_DEADLINE => return Err("no event arrived".to_owned()),
            // The progress threads of the NICs do the work.
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

fn expect(channel: &CmEventChannel, step: &str, is_expected: impl Fn(&Event) -> bool) -> Outcome<()> {
    let event = next(channel).map_err(|error| format!("{step}: {error}"))?;
    if is_expected(&event) { Ok(()) } else { Err(format!("{step}: {event:?}")) }
}
