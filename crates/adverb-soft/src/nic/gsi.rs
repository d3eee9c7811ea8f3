//! Queue pair 1, where connection managers talk: their messages are datagrams like any other.

use adverb_proto::cm::{Config, Datagram, Ends, Manager};
use adverb_proto::memory::{Backing, Memory, Registration, RemoteInvalidate, Span};
use adverb_proto::vocabulary::{
    Access, CompletedOperation, Destination, PathMtu, RecvRequest, Segment, SendFlags, SendOperation,
    SendRequest, Success,
};
use adverb_proto::{Cq, Device, Init, Path, QpConfig, Sending, Time, Transition, Wake};
use adverb_wire::cm::{GSI_QKEY, MAD_LEN};
use adverb_wire::{GRH_LEN, IpHeader, Psn, Qpn};

use super::cm::Inboxes;
use super::random;
use crate::error::Error;
use crate::memory::RegisteredMemory;

/// Queue pair 1 and the connection manager behind it.
pub(super) struct Gsi {
    pub(super) manager: Manager,
    pub(super) inboxes: Inboxes,
    cq: Cq,
    /// Where receives lie, one behind another.
    backing: Backing,
    key: u32,
    /// A message that the queue pair had no room for.
    unsent: Option<Datagram>,
    /// Whether somebody called the manager, or something has come.
    attention: bool,
    /// When the manager wants to look at the clock.
    due: Time,
}

impl Gsi {
    /// Makes the queue pair, ready for messages.
    pub(super) fn new(
        device: &mut Device,
        memory: &mut RegisteredMemory,
        mtu: PathMtu,
    ) -> Result<Gsi, Error> {
        let mut config = Config::new(u64::from(random()) << 32 | u64::from(random()));
        config.path_mtu = mtu;
        let pd = device.create_domain();
        let cq = device.create_cq(RECEIVES + SENDS);
        let backing = memory.add_own(RECEIVES as usize * ROOM as usize);
        let registration = Registration {
            addr: 0,
            length: u64::from(RECEIVES * ROOM),
            access: Access::LOCAL_WRITE,
            backing,
            remote_invalidate: RemoteInvalidate::Denied,
        };
        let key = device.register(pd, registration, random)?;
        let mut qp = QpConfig::ud(pd, cq, cq);
        (qp.max_recv_wr, qp.max_recv_sge) = (RECEIVES, 1);
        (qp.max_send_wr, qp.max_inline) = (SENDS, MAD_LEN as u32);
        device.create_gsi(qp)?;
        let mut gsi = Gsi {
            manager: Manager::new(config),
            inboxes: Inboxes::default(),
            cq,
            backing,
            key,
            unsent: None,
            attention: false,
            due: Time::MAX,
        };
        let sending = Sending::unreliable(Psn::wrapping(random()));
        for step in [
            Transition::Init(Init::datagrams(GSI_QKEY)),
            Transition::ReceiveDatagrams,
            Transition::ReadyToSend(sending),
        ] {
            device.modify_qp(Time::ZERO, Qpn::GSI, &step)?;
        }
        for number in 0..RECEIVES {
            gsi.receive(device, Time::ZERO, number.into())?;
        }
        device.wake_on_completion(cq, Wake::Any);
        Ok(gsi)
    }

    /// When the clock is to be looked at again.
    pub(super) fn due(&self) -> Time {
        // What there was no room for goes when the link takes more, which is tried again soon.
        if self.attention { Time::ZERO } else { self.due }
    }

    /// Has it looked after soon.
    pub(super) fn attend(&mut self) {
        self.attention = true;
    }

    /// Whether this completion queue is its own: then something has come.
    pub(super) fn is_announced_by(&self, cq: Cq) -> bool {
        self.cq == cq
    }

    /// Whether there may be something to be done.
    #[inline]
    pub(super) fn wants(&self, now: Time) -> bool {
        self.attention || self.due <= now || self.unsent.is_some()
    }

    /// Takes in what has come and does what is due, and says whether there is something to be sent.
    pub(super) fn serve(
        &mut self,
        now: Time,
        device: &mut Device,
        memory: &RegisteredMemory,
        path: impl Fn(Ends) -> Option<Path>,
    ) -> bool {
        self.attention = false;
        // Armed first, so that what comes meanwhile isn't overlooked.
        device.wake_on_completion(self.cq, Wake::Any);
        while let Some(completion) = device.poll_completion(self.cq) {
            if let Ok(success) = completion.outcome
                && let Success { operation: CompletedOperation::Recv { source, .. }, length } = success
            {
                // Answers go to queue pair 1: only who is there may ask.
                if source == Some(Qpn::GSI) && length == ROOM {
                    self.take_in(now, memory, completion.wr_id);
                }
                // It can fail only where the queue pair has failed, and then nothing comes any more.
                _ = self.receive(device, now, completion.wr_id);
            }
        }
        if self.manager.poll_timeout().is_some_and(|due| due <= now) {
            self.manager.handle_timeout(now);
        }
        while let Some(event) = self.manager.poll_event() {
            self.inboxes.deliver(event, &self.manager);
        }
        let mut sent = false;
        while let Some(datagram) = self.unsent.take().or_else(|| self.manager.poll_transmit()) {
            // An address of another family than ours leads nowhere.
            let Some(path) = path(datagram.ends) else { continue };
            let request = SendRequest {
                wr_id: 0,
                operation: SendOperation::Send,
                flags: SendFlags::INLINE,
                segments: &[],
                destination: Some(Destination { handle: path, qpn: Qpn::GSI, qkey: GSI_QKEY }),
            };
            if device.post_send_inline(now, Qpn::GSI, &request, &datagram.mad.emit()).is_err() {
                self.unsent = Some(datagram);
                break;
            }
            sent = true;
        }
        self.due = self.manager.poll_timeout().unwrap_or(Time::MAX);
        sent
    }

    /// A number that no connection has or had a short while ago.
    pub(super) fn rested_number(&self, mut random: impl FnMut() -> u32) -> u32 {
        loop {
            let number = random();
            if self.manager.is_free(Qpn::truncate(number)) {
                return number;
            }
        }
    }

    /// Takes in the datagram of a receive.
    fn take_in(&mut self, now: Time, memory: &RegisteredMemory, number: u64) {
        let mut bytes = [0; ROOM as usize];
        let span = Span { backing: self.backing, offset: number * u64::from(ROOM), length: ROOM };
        if memory.read(span, &mut bytes).is_err() {
            return;
        }
        let Some((grh, message)) = bytes.split_first_chunk::<GRH_LEN>() else { return };
        let Some(ip) = IpHeader::from_grh(grh) else { return };
        let ends = Ends { local: ip.destination(), remote: ip.source() };
        self.manager.handle(now, ends, message, &mut random);
    }

    /// Posts a receive.
    fn receive(&mut self, device: &mut Device, now: Time, number: u64) -> Result<(), Error> {
        let segment = Segment { addr: number * u64::from(ROOM), length: ROOM, lkey: self.key };
        Ok(device.post_recv(now, Qpn::GSI, &RecvRequest { wr_id: number, segments: &[segment] })?)
    }
}

/// How many messages may come before they are looked at: more are lost, and sent again by who means them.
const RECEIVES: u32 = 256;

/// How many messages may wait for the link.
const SENDS: u32 = 64;

/// The room of a message behind its route header.
const ROOM: u32 = (GRH_LEN + MAD_LEN) as u32;

#[cfg(test)]
mod tests {
    use adverb_proto::cm::{Connect, Offer};
    use adverb_wire::cm::ServiceId;

    use super::*;

    #[test]
    fn a_number_is_not_used_again_while_its_connection_lasts_or_rests() {
        let (mut device, mut memory) = (Device::new(()), RegisteredMemory::default());
        let mut gsi = Gsi::new(&mut device, &mut memory, PathMtu::Mtu1024).unwrap();
        let ends = Ends { local: [10, 0, 0, 1].into(), remote: [10, 0, 0, 2].into() };
        let offer = Offer::new(Qpn::truncate(0x77));
        let connect = Connect::new(ends, ServiceId::tcp_port(1), offer, Time::MAX);
        let number = |gsi: &Gsi| {
            let mut numbers = [0x77, 0xff00_0077, 0x78].into_iter();
            gsi.rested_number(|| numbers.next().unwrap())
        };
        assert_eq!(number(&gsi), 0x77);
        let id = gsi.manager.connect(Time::ZERO, &connect, &mut random).unwrap();
        assert_eq!(number(&gsi), 0x78);
        gsi.manager.abandon(Time::ZERO, id, Time::ZERO).unwrap();
        assert_eq!(number(&gsi), 0x78, "it rests");
        let due = gsi.manager.poll_timeout().unwrap();
        gsi.manager.handle_timeout(due);
        assert_eq!(number(&gsi), 0x77);
    }
}
