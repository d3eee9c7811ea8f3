//! Queue pair 1 (GSI), which sends and receives the datagrams of the connection manager.

use std::net::IpAddr;

use adverb_proto::cm::{AddrPair, Config, Datagram, Manager};
use adverb_proto::memory::{Memory, Registration, RemoteInvalidate, Span, StorageId};
use adverb_proto::types::{
    Access, ArmFor, CompletedOperation, Destination, Gid, PathMtu, RecvRequest, Segment, SendFlags,
    SendOperation, SendRequest, Success,
};
use adverb_proto::{Cq, Init, Path, PostError, QpConfig, ReadyToSend, Time, Transition};
use adverb_wire::cm::{GSI_QKEY, MAD_LEN};
use adverb_wire::{GRH_LEN, IpHeader, Psn, Qpn};

use super::cm::CmEventChannels;
use super::engine::Device;
use super::lock::Notifications;
use super::random;
use crate::error::Error;
use crate::link::AddressShare;
use crate::memory::RegisteredMemory;

/// Queue pair 1 and the connection manager that uses it.
pub(super) struct Gsi {
    pub(super) manager: Manager,
    pub(super) channels: CmEventChannels,
    /// The share of the communication IDs, if other processes have the other shares.
    pub(super) share: Option<AddressShare>,
    /// The NIC's unicast addresses. Messages are received and sent only with these.
    addresses: Vec<IpAddr>,
    /// The number of messages that could not be sent.
    pub(super) unsendable: u64,
    cq: Cq,
    /// The memory of the receives.
    storage: StorageId,
    key: u32,
    /// A message that did not fit the send queue.
    unsent: Option<Datagram>,
    /// Whether [`serve`](Gsi::serve) must be called, because the manager was called or a message arrived.
    is_serve_requested: bool,
    /// The manager's next timeout.
    due: Time,
}

impl Gsi {
    /// Creates the queue pair, ready for messages to `addresses`.
    pub(super) fn new(
        device: &mut Device,
        memory: &mut RegisteredMemory,
        addresses: Vec<IpAddr>,
        mtu: PathMtu,
    ) -> Result<Gsi, Error> {
        let mut config = Config::new(u64::from(random()) << 32 | u64::from(random()));
        config.path_mtu = mtu;
        let pd = device.create_domain();
        let cq = device.create_cq(RECV_DEPTH + SEND_DEPTH);
        let storage = memory.add_own(RECV_DEPTH as usize * RECV_LEN as usize);
        let registration = Registration {
            addr: 0,
            length: u64::from(RECV_DEPTH * RECV_LEN),
            access: Access::LOCAL_WRITE,
            storage,
            remote_invalidate: RemoteInvalidate::Denied,
        };
        let key = device.register(pd, registration, random)?;
        let mut qp = QpConfig::ud(pd, cq, cq);
        (qp.max_recv_wr, qp.max_recv_sge) = (RECV_DEPTH, 1);
        (qp.max_send_wr, qp.max_inline) = (SEND_DEPTH, MAD_LEN as u32);
        device.create_gsi(qp)?;
        let mut gsi = Gsi {
            manager: Manager::new(config),
            channels: CmEventChannels::default(),
            share: None,
            addresses,
            unsendable: 0,
            cq,
            storage,
            key,
            unsent: None,
            is_serve_requested: false,
            due: Time::MAX,
        };
        let sending = ReadyToSend::unreliable(Psn::wrapping(random()));
        for step in [
            Transition::Init(Init::datagrams(GSI_QKEY)),
            Transition::ReadyToReceiveUd,
            Transition::ReadyToSend(sending),
        ] {
            device.modify_qp(Time::ZERO, Qpn::GSI, &step)?;
        }
        for number in 0..RECV_DEPTH {
            gsi.post_receive(device, Time::ZERO, number.into())?;
        }
        device.arm_cq(cq, ArmFor::Any);
        Ok(gsi)
    }

    /// Returns the time of the next call to [`serve`](Gsi::serve).
    pub(super) fn due(&self) -> Time {
        // An unsent message is retried when the link accepts more packets.
        if self.is_serve_requested { Time::ZERO } else { self.due }
    }

    /// Requests a call to [`serve`](Gsi::serve).
    pub(super) fn request_serve(&mut self) {
        self.is_serve_requested = true;
    }

    /// Whether this is the completion queue of queue pair 1.
    pub(super) fn owns_cq(&self, cq: Cq) -> bool {
        self.cq == cq
    }

    /// Whether [`serve`](Gsi::serve) may have work.
    #[inline]
    pub(super) fn may_have_work(&self, now: Time) -> bool {
        self.is_serve_requested || self.due <= now || self.unsent.is_some()
    }

    /// Handles received messages and timeouts, and returns whether packets are to be sent.
    pub(super) fn serve(
        &mut self,
        now: Time,
        device: &mut Device,
        memory: &RegisteredMemory,
        notifications: &mut Notifications,
        mut path: impl FnMut(AddrPair) -> Option<Path>,
    ) -> bool {
        self.is_serve_requested = false;
        // The queue is armed first, so that no completion is missed.
        device.arm_cq(self.cq, ArmFor::Any);
        while let Some(completion) = device.poll_completion(self.cq) {
            if let Ok(success) = completion.outcome
                && let Success { operation: CompletedOperation::Recv { source, .. }, length } = success
            {
                // Replies are sent to queue pair 1, so only requests from queue pair 1 are accepted.
                if source == Some(Qpn::GSI) && length == RECV_LEN {
                    self.handle_datagram(now, memory, completion.wr_id);
                }
                // This fails only if the queue pair has failed, and then no more messages arrive.
                _ = self.post_receive(device, now, completion.wr_id);
            }
        }
        if self.manager.poll_timeout().is_some_and(|due| due <= now) {
            self.manager.handle_timeout(now);
        }
        while let Some(event) = self.manager.poll_event() {
            self.channels.deliver(event, &self.manager, notifications);
        }
        let mut sent = false;
        while let Some(datagram) = self.unsent.take().or_else(|| self.manager.poll_transmit()) {
            // There is no path from an address of another host, or to an address of another family.
            let path = Some(datagram.addrs)
                .filter(|addrs| self.addresses.contains(&addrs.local))
                .and_then(&mut path);
            let Some(path) = path else {
                self.unsendable += 1;
                continue;
            };
            let request = SendRequest {
                wr_id: 0,
                tag: 0,
                operation: SendOperation::Send,
                flags: SendFlags::INLINE,
                segments: &[],
                destination: Some(Destination { handle: path, qpn: Qpn::GSI, qkey: GSI_QKEY }),
            };
            match device.post_send_inline(now, Qpn::GSI, &request, &datagram.mad.emit()) {
                Ok(()) => sent = true,
                Err(PostError::QueueFull) => {
                    self.unsent = Some(datagram);
                    break;
                }
                // The message is dropped, so that it doesn't block the next ones.
                Err(_) => self.unsendable += 1,
            }
        }
        self.due = self.manager.poll_timeout().unwrap_or(Time::MAX);
        sent
    }

    /// Returns a queue pair number that no connection uses or has used recently, unless many attempts find none.
    pub(super) fn fresh_qpn(&self, mut random: impl FnMut() -> u32) -> u32 {
        let mut next_number = || {
            let number = random();
            self.share.map_or(number, |share| share.qpn(number))
        };
        for _ in 0..MAX_NUMBER_ATTEMPTS {
            let number = next_number();
            if self.manager.is_qpn_free(Qpn::truncate(number)) {
                return number;
            }
        }
        next_number()
    }

    /// Handles the datagram of a receive.
    fn handle_datagram(&mut self, now: Time, memory: &RegisteredMemory, number: u64) {
        let mut bytes = [0; RECV_LEN as usize];
        let span = Span { storage: self.storage, offset: number * u64::from(RECV_LEN), length: RECV_LEN };
        if memory.read(span, &mut bytes).is_err() {
            return;
        }
        let Some((grh, message)) = bytes.split_first_chunk::<GRH_LEN>() else { return };
        let Some(ip) = IpHeader::from_grh(grh) else { return };
        let addrs = AddrPair { local: ip.destination(), remote: ip.source() };
        // The connection manager must not reply to a message to a group, or with a group as its source.
        if !self.addresses.contains(&addrs.local) || Gid::from(addrs.remote).udp_addr().ip().is_multicast() {
            return;
        }
        self.manager.handle(now, addrs, message, &mut random_ids(self.share));
    }

    /// Posts a receive.
    fn post_receive(&mut self, device: &mut Device, now: Time, number: u64) -> Result<(), Error> {
        let segment = Segment { addr: number * u64::from(RECV_LEN), length: RECV_LEN, lkey: self.key };
        Ok(device.post_recv(now, Qpn::GSI, &RecvRequest { wr_id: number, tag: 0, segments: &[segment] })?)
    }
}

/// Returns a source of random communication IDs for a share. Their lower 24 bits are random packet sequence numbers, too.
pub(super) fn random_ids(share: Option<AddressShare>) -> impl FnMut() -> u32 {
    move || share.map_or_else(random, |share| share.comm_id(random()))
}

/// The number of posted receives. If more messages arrive at once, they are lost, and their senders retransmit them.
const RECV_DEPTH: u32 = 256;

/// The maximum number of attempts to find a queue pair number that no connection has used recently.
const MAX_NUMBER_ATTEMPTS: usize = 1000;

/// The depth of the send queue.
const SEND_DEPTH: u32 = 64;

/// The size of a receive: the GRH and a message.
const RECV_LEN: u32 = (GRH_LEN + MAD_LEN) as u32;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use adverb_proto::cm::{ConnectParams, LocalQp};
    use adverb_wire::cm::{Dreq, Mad, Message, ServiceId};

    use super::*;

    #[test]
    fn a_qpn_is_not_reused_until_its_connection_leaves_timewait() {
        let (mut device, mut memory) =
            (Device::new(adverb_proto::trace::Recorder::default()), RegisteredMemory::default());
        let mut gsi =
            Gsi::new(&mut device, &mut memory, vec![[10, 0, 0, 1].into()], PathMtu::Mtu1024).unwrap();
        let addrs = AddrPair { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into() };
        let local_qp = LocalQp::new(Qpn::truncate(0x77));
        let connect = ConnectParams::new(addrs, ServiceId::tcp_port(1), local_qp, Time::MAX);
        let number = |gsi: &Gsi| {
            let mut numbers = [0x77, 0xff00_0077, 0x78].into_iter();
            gsi.fresh_qpn(|| numbers.next().unwrap())
        };
        assert_eq!(number(&gsi), 0x77);
        let id = gsi.manager.connect(Time::ZERO, &connect, &mut random).unwrap();
        assert_eq!(number(&gsi), 0x78);
        gsi.manager.abort(Time::ZERO, id, Time::ZERO).unwrap();
        assert_eq!(number(&gsi), 0x78, "the connection is in timewait");
        let due = gsi.manager.poll_timeout().unwrap();
        gsi.manager.handle_timeout(due);
        assert_eq!(number(&gsi), 0x77);
    }

    /// Passes a DREQ of an unknown connection to the connection manager, which responds with a DREP.
    fn handle_dreq(gsi: &mut Gsi, memory: &mut RegisteredMemory, source: IpAddr, destination: IpAddr) {
        let dreq = Dreq {
            local_comm_id: 6,
            remote_comm_id: 5,
            remote_qpn: Qpn::truncate(0x77),
            private_data: Default::default(),
        };
        let mad = Mad { transaction_id: 1, message: Message::Dreq(dreq) }.emit();
        let grh = IpHeader::new(source, destination).unwrap().to_grh(MAD_LEN as u16);
        let bytes = [&grh[..], &mad[..]].concat();
        memory.write(Span { storage: gsi.storage, offset: 0, length: RECV_LEN }, &bytes).unwrap();
        gsi.handle_datagram(Time::ZERO, memory, 0);
    }

    #[test]
    fn messages_to_other_addresses_and_from_groups_are_ignored() {
        let (mut device, mut memory) =
            (Device::new(adverb_proto::trace::Recorder::default()), RegisteredMemory::default());
        let at_port = Gid::from("10.0.0.1:4792".parse::<SocketAddr>().unwrap()).ip();
        let addresses: Vec<IpAddr> = vec![[10, 0, 0, 1].into(), "fd77::1".parse().unwrap(), at_port];
        let mut gsi = Gsi::new(&mut device, &mut memory, addresses, PathMtu::Mtu1024).unwrap();
        for (source, destination, has_response) in [
            ("10.0.0.2", "10.0.0.1", true),
            ("fd77::2", "fd77::1", true),
            ("100::12b9:a00:2", "100::12b8:a00:1", true),
            ("10.0.0.2", "239.1.2.3", false),
            ("fd77::2", "ff0e::77", false),
            ("10.0.0.2", "10.0.0.3", false),
            ("239.1.2.3", "10.0.0.1", false),
            ("100::12b9:ef01:203", "100::12b8:a00:1", false),
        ] {
            handle_dreq(&mut gsi, &mut memory, source.parse().unwrap(), destination.parse().unwrap());
            let response = gsi.manager.poll_transmit();
            assert_eq!(response.is_some(), has_response, "{source} to {destination}: {response:?}");
        }
    }

    #[test]
    fn messages_are_sent_only_from_addresses_of_the_nic() {
        let (mut device, mut memory) =
            (Device::new(adverb_proto::trace::Recorder::default()), RegisteredMemory::default());
        let addresses = vec![[10, 0, 0, 1].into()];
        let mut gsi = Gsi::new(&mut device, &mut memory, addresses, PathMtu::Mtu1024).unwrap();
        for (qpn, local, is_sent) in
            [(2, [10, 0, 0, 1], true), (3, [239, 1, 2, 3], false), (4, [10, 0, 0, 3], false)]
        {
            let addrs = AddrPair { local: local.into(), remote: [10, 0, 0, 2].into() };
            let local_qp = LocalQp::new(Qpn::truncate(qpn));
            let connect = ConnectParams::new(addrs, ServiceId::tcp_port(1), local_qp, Time::MAX);
            let before = gsi.unsendable;
            gsi.manager.connect(Time::ZERO, &connect, &mut random).unwrap();
            let mut notifications = Notifications::default();
            let sent = gsi.serve(Time::ZERO, &mut device, &memory, &mut notifications, |addrs| {
                Path::new(addrs.local, addrs.remote, 0xc000)
            });
            assert_eq!((sent, gsi.unsendable - before), (is_sent, u64::from(!is_sent)), "{local:?}");
        }
    }
}
