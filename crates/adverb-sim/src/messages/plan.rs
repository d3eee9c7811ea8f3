//! What happens in a run of messages, as plain data that follows from a seed and can be made smaller.

use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::types::{PathMtu, Transport};

use crate::Random;
use crate::fabric::Faults;

/// Queue pairs of all transports that write to each other, over a fabric that fails.
#[derive(Clone, Debug)]
pub struct MessagePlan {
    /// Where all randomness of the run comes from.
    pub seed: u64,
    /// How many devices there are.
    pub devices: usize,
    /// Whether their addresses are IPv6.
    pub v6: bool,
    /// The queue pairs.
    pub endpoints: Vec<EndpointPlan>,
    /// How the fabric fails.
    pub faults: Faults,
    /// When it stops failing.
    pub heal_at: Time,
    /// How long a packet takes.
    pub latency: Duration,
    /// The code of the acknowledge timeout.
    pub timeout: u8,
}

/// A queue pair and what it does.
#[derive(Clone, Debug)]
pub struct EndpointPlan {
    /// Its device.
    pub device: usize,
    /// Its transport.
    pub transport: Transport,
    /// The endpoint that it is connected to, unless it is for datagrams.
    pub peer: Option<usize>,
    /// Whether its receives come from the device's shared queue.
    pub shared: bool,
    /// The payload of one packet of a connection.
    pub mtu: PathMtu,
    /// What it does, in order.
    pub steps: Vec<MessageStep>,
    /// How many receives it keeps posted, if they are its own.
    pub recv_depth: usize,
    /// How long it takes to post another.
    pub recv_delay: Duration,
}

/// Something that a endpoint does.
#[derive(Clone, Copy, Debug)]
pub struct MessageStep {
    /// How long to wait afterwards.
    pub pause: Duration,
    /// What to do.
    pub action: MessageAction,
    /// Where all randomness of this step comes from.
    pub seed: u64,
    /// How long the message is.
    pub length: u32,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageAction {
    /// A SEND: to the peer, or to some datagram endpoint.
    Send,
    /// A SEND with immediate data.
    SendWithImm,
    /// A WRITE to memory of its own.
    Write,
    /// A WRITE with immediate data.
    WriteWithImm,
    /// A datagram to the group.
    Multicast,
    /// A datagram with a wrong queue key.
    WrongQkey,
    /// A datagram to a queue pair that isn't there.
    UnknownQp,
    /// Binds the endpoint's window.
    Bind,
    /// Invalidates it.
    Invalidate,
    /// A SEND that invalidates the peer's window.
    SendInvalidate,
    /// A WRITE through the peer's window.
    WriteThroughWindow,
    /// A WRITE that ends one byte behind the peer's window.
    WriteBeyondWindow,
    /// A WRITE with the key of an earlier binding.
    StaleKey,
    /// A WRITE through a window that was bound for another.
    ForeignKey,
    /// Asks to be told when the device's shared queue is nearly empty.
    ArmSrqLimit,
    /// Ends the queue pair and its peer's, and makes new ones.
    Recreate,
    /// Resets the queue pair and its peer's, and connects them anew.
    Reset,
}

impl MessagePlan {
    /// The messages of a seed.
    pub(crate) fn random(random: &mut Random, faults: Faults, heal_at: Time, timeout: u8) -> MessagePlan {
        let devices = random.between(2, 3) as usize;
        let mut endpoints = Vec::new();
        let connected = random.between(2, 4);
        for _ in 0..connected {
            let transport = random.pick(&[Transport::Uc, Transport::Uc, Transport::Rc]);
            let mtu = random.pick(&[PathMtu::Mtu256, PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024]);
            let first = endpoints.len();
            for side in 0..2 {
                let mut plan = EndpointPlan::random(random, devices, transport, mtu);
                plan.peer = Some(first + 1 - side);
                endpoints.push(plan);
            }
        }
        for _ in 0..random.between(2, 3) {
            endpoints.push(EndpointPlan::random(random, devices, Transport::Ud, PathMtu::Mtu4096));
        }
        let latency = Duration::from_nanos(random.between(500, 8000));
        let seed = random.u64();
        let v6 = random.chance(400_000);
        MessagePlan { seed, devices, v6, endpoints, faults, heal_at, latency, timeout }
    }

    /// How many requests there are at most.
    pub fn requests(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.steps.len()).sum()
    }
}

impl EndpointPlan {
    fn random(random: &mut Random, devices: usize, transport: Transport, mtu: PathMtu) -> EndpointPlan {
        let slow = random.chance(300_000);
        let steps =
            (0..random.between(15, 45)).map(|_| MessageStep::random(random, transport, mtu)).collect();
        EndpointPlan {
            device: random.below(devices as u64) as usize,
            transport,
            peer: None,
            shared: random.chance(500_000),
            mtu,
            steps,
            recv_depth: if slow { random.between(1, 3) } else { random.between(8, 24) } as usize,
            recv_delay: Duration::from_nanos(if slow { random.below(60_000) } else { random.below(2000) }),
        }
    }
}

impl MessageStep {
    fn random(random: &mut Random, transport: Transport, mtu: PathMtu) -> MessageStep {
        use MessageAction as A;
        let action = match (transport, random.below(100)) {
            (Transport::Ud, 0..45) => A::Send,
            (Transport::Ud, 45..60) => A::SendWithImm,
            (Transport::Ud, 60..80) => A::Multicast,
            (Transport::Ud, 80..88) => A::WrongQkey,
            (Transport::Ud, 88..92) => A::UnknownQp,
            (Transport::Ud, 92..96) => A::ArmSrqLimit,
            (Transport::Ud, _) => A::Recreate,
            (_, 0..20) => A::Send,
            (_, 20..30) => A::SendWithImm,
            (_, 30..40) => A::Write,
            (_, 40..48) => A::WriteWithImm,
            (_, 48..62) => A::Bind,
            (_, 62..68) => A::Invalidate,
            (Transport::Rc, 68..72) => A::SendInvalidate,
            (_, 68..84) => A::WriteThroughWindow,
            (Transport::Uc, 84..87) => A::WriteBeyondWindow,
            (Transport::Uc, 87..90) => A::StaleKey,
            (Transport::Uc, 90..93) => A::ForeignKey,
            // These end a reliable connection, which is connected anew.
            (Transport::Rc, 84) => A::WriteBeyondWindow,
            (Transport::Rc, 85) => A::StaleKey,
            (Transport::Rc, 86) => A::ForeignKey,
            (_, 84..96) => A::ArmSrqLimit,
            (_, 96..98) => A::Recreate,
            _ => A::Reset,
        };
        let mtu = u64::from(mtu.bytes());
        let length = match (transport, random.below(6)) {
            (Transport::Ud, 0..5) => random.between(8, 300),
            (Transport::Ud, _) => random.between(8, mtu),
            (_, 0..2) => random.between(8, 64),
            (_, 2) => mtu,
            _ => random.between(8, MOST_PACKETS * mtu),
        };
        let pause = if random.chance(400_000) { 0 } else { random.below(20_000) };
        MessageStep { pause: Duration::from_nanos(pause), action, seed: random.u64(), length: length as u32 }
    }
}

/// How many packets a message has at most.
pub(super) const MOST_PACKETS: u64 = 4;
