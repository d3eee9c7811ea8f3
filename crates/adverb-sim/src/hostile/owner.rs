//! The actions of the attacked device's owner.

use std::time::Duration;

use adverb_proto::memory::{Registration, RemoteInvalidate};
use adverb_proto::types::{
    Access, Destination, FlushRange, PathMtu, QpState, RecvRequest, RemoteAddress, Segment, SendFlags,
    SendOperation, SendRequest, Transport,
};
use adverb_proto::{Congestion, Dcqcn, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_wire::cm::Timeout;
use adverb_wire::{Qpn, RnrTimer};

use super::generator::AttackerState;
use super::{Attack, LOCAL, MAX_REGIONS, MAX_TARGETS, PEER, PORT, QKEY, Target};

impl Attack<'_> {
    /// Registers memory at one of several addresses, with one of several lengths and combinations of rights.
    pub(super) fn register(&mut self) {
        if self.memory.areas().iter().filter(|area| area.key != 0).count() >= MAX_REGIONS {
            return;
        }
        let length = self.decisions.pick(&[1, 8, 64, 255, 256, 257, 1024, 3000, 3000, 9000]);
        let addr = match self.decisions.below(4) {
            0 => 0,
            // The region reaches the end of the address space.
            1 => u64::MAX - length,
            2 => 0x7f00_0000_1003,
            _ => 0x7f00_0000_2000,
        };
        let access = match self.decisions.below(12) {
            0 => Access::empty(),
            1 => Access::LOCAL_WRITE,
            2 => Access::REMOTE_READ,
            3 => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            _ => Access::LOCAL_WRITE | Access::REMOTE,
        };
        let remote_invalidate =
            if self.decisions.one_in(3) { RemoteInvalidate::Allowed } else { RemoteInvalidate::Denied };
        let pd = if self.decisions.one_in(3) { self.pds[1] } else { self.pds[0] };
        let storage = self.memory.next_storage();
        let registration = Registration { addr, length, access, storage, remote_invalidate };
        let decisions = &mut self.decisions;
        // After its last byte, a fuzzer's input yields the same number forever, so the salt varies the key.
        let mut salt = 1u32;
        let random = || {
            salt = salt.wrapping_mul(0x9e37_79b1);
            salt ^ decisions.bits(32) as u32
        };
        if let Ok(key) = self.device.register(pd, registration, random) {
            self.memory.add(key, pd, registration);
        }
    }

    pub(super) fn deregister(&mut self) {
        let index = self.decisions.below(self.memory.areas().len() as u64 + 1) as usize;
        if let Some(key) = self.memory.areas().get(index).map(|area| area.key)
            && self.device.deregister(key).is_ok()
        {
            self.memory.remove(index);
        }
    }

    pub(super) fn create_target(&mut self) {
        if self.targets.len() >= MAX_TARGETS {
            return;
        }
        let pd = if self.decisions.one_in(4) { self.pds[1] } else { self.pds[0] };
        let cq = if self.decisions.one_in(4) { self.cqs[1] } else { self.cqs[0] };
        let transports = [Transport::Rc, Transport::Rc, Transport::Rc, Transport::Uc, Transport::Ud];
        let transport = self.decisions.pick(&transports);
        let mut config = QpConfig::new(transport, pd, cq, cq);
        config.max_send_wr = self.decisions.pick(&[1, 4, 32, 32]);
        config.max_recv_wr = config.max_send_wr;
        config.credits = self.decisions.one_in(2);
        config.signal_all = self.decisions.one_in(3);
        if self.decisions.one_in(2) {
            config.congestion = Congestion::Dcqcn(Dcqcn::new(1_000_000_000));
        }
        config.window = self.decisions.pick(&[1, 4, 64]);
        let decisions = &mut self.decisions;
        let mut salt = 1u32;
        let random = || {
            salt = salt.wrapping_mul(0x9e37_79b1);
            salt ^ decisions.bits(32) as u32
        };
        let Ok(qpn) = self.device.create_qp(config, random) else { return };
        self.created_qp_count += 1;
        self.targets.push(Target {
            qpn,
            transport,
            pd,
            access: Access::empty(),
            mtu: 256,
            peer: Qpn::truncate(0x10_0000 + self.created_qp_count as u32 % 0x1000),
            max_wr: config.max_send_wr,
            slots: 0,
            attacker_state: AttackerState::default(),
            posted: [0; 2],
            completed: [0; 2],
            id: self.created_qp_count,
        });
        let step_count = self.decisions.below(5);
        for _ in 0..step_count {
            self.advance(self.targets.len() - 1);
        }
    }

    pub(super) fn destroy_target(&mut self) {
        if let Some(index) = self.any_target() {
            let target = self.targets.swap_remove(index);
            self.device.destroy_qp(target.qpn);
        }
    }

    /// Changes the state of a queue pair.
    pub(super) fn change_state(&mut self) {
        let Some(mut index) = self.any_target() else { return };
        if self.state(index) == QpState::ReadyToSend
            && let Some(other) = self.any_target()
        {
            index = other;
        }
        if !self.decisions.one_in(16) {
            // Often all steps are taken, so that most of the time the queue pair is operational.
            let steps = if self.decisions.one_in(2) { 5 } else { 1 };
            for _ in 0..steps {
                if self.state(index) != QpState::ReadyToSend || self.decisions.one_in(16) {
                    self.advance(index);
                }
            }
            return;
        }
        let transition = match self.decisions.below(7) {
            0 => Transition::Drain,
            1 => Transition::Resume,
            2 => Transition::Error,
            3 => Transition::Reset,
            4 => Transition::Init(self.init(index)),
            5 => Transition::ReadyToReceive(self.ready_to_receive(index)),
            _ => Transition::ReadyToSend(self.ready_to_send()),
        };
        self.modify(index, &transition);
    }

    /// Moves a queue pair to its next state.
    fn advance(&mut self, index: usize) {
        let transition = match self.state(index) {
            QpState::Reset => Transition::Init(self.init(index)),
            QpState::Init if self.targets[index].transport == Transport::Ud => Transition::ReadyToReceiveUd,
            QpState::Init => Transition::ReadyToReceive(self.ready_to_receive(index)),
            QpState::ReadyToReceive => Transition::ReadyToSend(self.ready_to_send()),
            QpState::ReadyToSend => Transition::Drain,
            QpState::SendQueueDrained | QpState::SendQueueError => Transition::Resume,
            QpState::Error => Transition::Reset,
        };
        self.modify(index, &transition);
    }

    fn modify(&mut self, index: usize, transition: &Transition) {
        let qpn = self.targets[index].qpn;
        if self.device.modify_qp(self.now, qpn, transition).is_err() {
            return;
        }
        let target = &mut self.targets[index];
        match transition {
            Transition::Init(init) => target.access = init.access,
            Transition::ReadyToReceive(receiving) => {
                target.mtu = u32::from(receiving.path_mtu.bytes());
                target.slots = u32::from(receiving.max_dest_rd_atomic);
                target.attacker_state.discard_message();
            }
            Transition::Reset => {
                target.attacker_state = AttackerState::default();
                target.slots = 0;
            }
            _ => {}
        }
    }

    fn init(&mut self, index: usize) -> Init {
        if self.targets[index].transport == Transport::Ud {
            return Init::datagrams(QKEY);
        }
        let access = match self.decisions.below(12) {
            0 => Access::empty(),
            1 => Access::REMOTE_READ,
            _ => Access::LOCAL_WRITE | Access::REMOTE,
        };
        Init::new(access)
    }

    fn ready_to_receive(&mut self, index: usize) -> ReadyToReceive {
        ReadyToReceive {
            remote_qpn: self.targets[index].peer,
            path: Path::new(LOCAL, PEER, PORT).expect("two IPv4 addresses"),
            path_mtu: self.decisions.pick(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu1024]),
            psn: self.any_psn(),
            max_dest_rd_atomic: self.decisions.pick(&[0, 1, 2, 16, 16, 16, 16, 16]),
            min_rnr_timer: RnrTimer::new(self.decisions.below(32) as u8).expect("below 32"),
        }
    }

    fn ready_to_send(&mut self) -> ReadyToSend {
        ReadyToSend {
            psn: self.any_psn(),
            timeout: Timeout::new(self.decisions.pick(&[0, 1, 8])).expect("below 32"),
            retry_count: self.decisions.below(8) as u8,
            rnr_retry: self.decisions.below(8) as u8,
            max_rd_atomic: self.decisions.pick(&[0, 1, 16, 16]),
        }
    }

    /// Returns a segment, usually of existing memory.
    fn segment(&mut self, index: usize) -> Segment {
        let Some((registration, lkey)) = self.any_region(self.targets[index].pd) else {
            return Segment {
                addr: self.decisions.bits(64),
                length: 5,
                lkey: self.decisions.bits(32) as u32,
            };
        };
        let offset = self.decisions.below(registration.length);
        let left = (registration.length - offset) as u32;
        let beyond = u32::from(self.decisions.one_in(100));
        let length = self.decisions.below(u64::from(left) + 1) as u32 + beyond;
        Segment { addr: registration.addr.wrapping_add(offset), length, lkey }
    }

    fn segments(&mut self, index: usize) -> Vec<Segment> {
        (0..self.decisions.pick(&[1, 1, 1, 0, 2, 3])).map(|_| self.segment(index)).collect()
    }

    pub(super) fn post_send(&mut self) {
        let Some(index) = self.any_target() else { return };
        let remote = RemoteAddress { addr: 0x5000, rkey: 0x1234 };
        let mut segments = self.segments(index);
        let operation = match self.decisions.below(12) {
            0 => SendOperation::Send,
            1 => SendOperation::SendWithImm(9),
            2 => SendOperation::SendInvalidate(9),
            3 => SendOperation::Write(remote),
            4 => SendOperation::WriteWithImm(remote, 9),
            5..8 => SendOperation::Read(remote),
            8 => SendOperation::CompareSwap { remote, compare: 1, swap: 2 },
            9 => SendOperation::FetchAdd { remote, add: 3 },
            10 => match self.decisions.below(2) {
                0 => SendOperation::AtomicWrite { remote, bytes: [7; 8] },
                _ => SendOperation::Flush(FlushRange {
                    remote,
                    length: 9,
                    whole_region: false,
                    global: true,
                    persistent: false,
                }),
            },
            _ => SendOperation::LocalInvalidate(segments.first().map_or(1, |segment| segment.lkey)),
        };
        match operation {
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => {
                segments.truncate(1);
                segments.iter_mut().for_each(|segment| segment.length = 8);
            }
            SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_)
            | SendOperation::LocalInvalidate(_) => {
                segments.clear();
            }
            _ => {}
        }
        let mut flags = SendFlags::from_bits_truncate(self.decisions.below(8) as u32);
        let inline =
            matches!(operation, SendOperation::Send | SendOperation::Write(_)) && self.decisions.one_in(3);
        flags.set(SendFlags::INLINE, inline);
        let target = &mut self.targets[index];
        let wr_id = target.id << 32 | (target.posted[0] + 1) << 1;
        let path = Path::new(LOCAL, PEER, PORT).expect("two IPv4 addresses");
        let destination = Destination { handle: path, qpn: target.peer, qkey: QKEY };
        let destination = Some(destination).filter(|_| target.transport == Transport::Ud);
        let request = SendRequest { wr_id, tag: 0, operation, flags, segments: &segments, destination };
        let posted = if inline {
            let length = self.decisions.below(300) as usize;
            self.device.post_send_inline(self.now, target.qpn, &request, &[0x33; 300][..length])
        } else {
            self.device.post_send(self.now, target.qpn, &request)
        };
        if posted.is_ok() {
            target.posted[0] += 1;
            if let SendOperation::LocalInvalidate(key) = operation {
                self.invalidating.truncate(100);
                self.invalidating.push_front((wr_id, key));
            }
        }
    }

    pub(super) fn post_recv(&mut self) {
        let Some(index) = self.any_target() else { return };
        let mut segments = self.segments(index);
        // Most receives cover a whole region, so that messages fit.
        if let Some((registration, lkey)) = self.any_region(self.targets[index].pd)
            && !self.decisions.one_in(4)
        {
            segments = vec![Segment { addr: registration.addr, length: registration.length as u32, lkey }];
        }
        let target = &mut self.targets[index];
        let wr_id = target.id << 32 | (target.posted[1] + 1) << 1 | 1;
        if self
            .device
            .post_recv(self.now, target.qpn, &RecvRequest { wr_id, tag: 0, segments: &segments })
            .is_ok()
        {
            target.posted[1] += 1;
        }
    }

    pub(super) fn advance_time(&mut self) {
        let next = self.device.poll_timeout().filter(|_| !self.decisions.one_in(4));
        let pause = Duration::from_nanos(self.decisions.bits(20));
        self.now = next.map_or(self.now + pause, |next| next.max(self.now));
        self.device.handle_timeout(self.now);
    }
}
