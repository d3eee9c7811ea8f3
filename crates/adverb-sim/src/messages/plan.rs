//! Message plans: plain data that a seed determines and that can be shrunk.

use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::types::{PathMtu, Transport};

use crate::Random;
use crate::fabric::Faults;

/// The plan of a run in which queue pairs of all transports exchange messages over a fabric with faults.
#[derive(Clone, Debug)]
pub struct MessagePlan {
    /// The seed of the run's random numbers, except those of the steps.
    pub seed: u64,
    /// The number of devices.
    pub device_count: usize,
    /// Whether the devices have IPv6 addresses.
    pub has_ipv6: bool,
    /// The plans of the queue pairs.
    pub endpoints: Vec<EndpointPlan>,
    /// The faults of the fabric.
    pub faults: Faults,
    /// The virtual time at which the faults end.
    pub faults_end_at: Time,
    /// The latency of the fabric.
    pub latency: Duration,
    /// The exponent of the ACK timeout, which is 4.096 µs × 2^exponent.
    pub ack_timeout_exponent: u8,
}

/// The plan of one queue pair: its properties and its actions.
#[derive(Clone, Debug)]
pub struct EndpointPlan {
    /// The index of the device.
    pub device: usize,
    /// The transport of the queue pair.
    pub transport: Transport,
    /// The index of the connected endpoint. The value is `None` for datagrams.
    pub peer: Option<usize>,
    /// Whether the queue pair uses the device's shared receive queue.
    pub has_srq: bool,
    /// The path MTU of the connection.
    pub mtu: PathMtu,
    /// The steps of the queue pair, in order.
    pub steps: Vec<MessageStep>,
    /// The number of receives that the queue pair keeps posted. A queue pair with a shared receive
    /// queue ignores this field.
    pub recv_depth: usize,
    /// The delay between the completion of a receive and the posting of another one.
    pub recv_delay: Duration,
}

/// An action of an endpoint, and the pause after it.
#[derive(Clone, Copy, Debug)]
pub struct MessageStep {
    /// The pause after the action.
    pub pause: Duration,
    /// The action of the step.
    pub action: MessageAction,
    /// The seed of the step's random numbers.
    pub seed: u64,
    /// The length of the message in bytes.
    pub length: u32,
}

/// The action of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageAction {
    /// A SEND to the peer, or a datagram to any datagram endpoint.
    Send,
    /// A SEND with immediate data.
    SendWithImm,
    /// A WRITE to memory that no other message uses.
    Write,
    /// A WRITE with immediate data.
    WriteWithImm,
    /// A datagram to the multicast group.
    Multicast,
    /// A datagram with a wrong Q_Key, which the receiver must drop.
    SendWithWrongQkey,
    /// A datagram to a queue pair that doesn't exist.
    SendToUnknownQp,
    /// A bind request for the endpoint's memory window.
    Bind,
    /// A local invalidate request for the endpoint's memory window.
    Invalidate,
    /// A SEND with invalidate of the peer's memory window.
    SendInvalidate,
    /// A WRITE through the peer's memory window.
    WriteThroughWindow,
    /// A WRITE that ends one byte beyond the peer's memory window.
    WriteBeyondWindow,
    /// A WRITE with the key of an earlier bind of the peer's memory window.
    WriteWithStaleKey,
    /// A WRITE through a memory window that is bound to another queue pair.
    WriteThroughForeignWindow,
    /// Arming of the limit event of the device's shared receive queue.
    ArmSrqLimit,
    /// Destruction and recreation of the queue pair and its peer.
    Recreate,
    /// A reset and reconnection of the queue pair and its peer.
    Reset,
}

impl MessagePlan {
    /// Creates a random plan with this exponent of the ACK timeout.
    pub(crate) fn random(
        random: &mut Random,
        faults: Faults,
        faults_end_at: Time,
        exponent: u8,
    ) -> MessagePlan {
        let devices = random.between(2, 3) as usize;
        let mut endpoints = Vec::new();
        let connection_count = random.between(2, 4);
        for _ in 0..connection_count {
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
        let v6 = random.chance_per_million(400_000);
        MessagePlan {
            seed,
            device_count: devices,
            has_ipv6: v6,
            endpoints,
            faults,
            faults_end_at,
            latency,
            ack_timeout_exponent: exponent,
        }
    }

    /// Returns the maximum number of requests that the queue pairs post.
    pub fn max_request_count(&self) -> usize {
        self.endpoints.iter().map(|endpoint| endpoint.steps.len()).sum()
    }
}

impl EndpointPlan {
    fn random(random: &mut Random, devices: usize, transport: Transport, mtu: PathMtu) -> EndpointPlan {
        let slow = random.chance_per_million(300_000);
        let steps =
            (0..random.between(15, 45)).map(|_| MessageStep::random(random, transport, mtu)).collect();
        EndpointPlan {
            device: random.below(devices as u64) as usize,
            transport,
            peer: None,
            has_srq: random.chance_per_million(500_000),
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
            (Transport::Ud, 80..88) => A::SendWithWrongQkey,
            (Transport::Ud, 88..92) => A::SendToUnknownQp,
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
            (Transport::Uc, 87..90) => A::WriteWithStaleKey,
            (Transport::Uc, 90..93) => A::WriteThroughForeignWindow,
            // These fail a reliable connection, which then reconnects.
            (Transport::Rc, 84) => A::WriteBeyondWindow,
            (Transport::Rc, 85) => A::WriteWithStaleKey,
            (Transport::Rc, 86) => A::WriteThroughForeignWindow,
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
            _ => random.between(8, MAX_PACKETS * mtu),
        };
        let pause = if random.chance_per_million(400_000) { 0 } else { random.below(20_000) };
        MessageStep { pause: Duration::from_nanos(pause), action, seed: random.u64(), length: length as u32 }
    }
}

/// The maximum number of packets of a message.
pub(super) const MAX_PACKETS: u64 = 4;
