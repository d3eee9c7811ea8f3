//! Scenarios: the plan of a run, as plain data that a seed determines and that can be shrunk.

use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::types::PathMtu;

use crate::Random;
use crate::fabric::{Bottleneck, Faults, Partition, Stall};
use crate::messages::MessagePlan;

/// The plan of a run: devices, connections between them, the requests of each side, and the faults of the fabric.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the run's random numbers, except those of the steps and of `message_run`.
    pub seed: u64,
    /// Whether each device has an IPv6 address. The length is the number of devices.
    pub device_has_ipv6: Vec<bool>,
    /// The connections between the devices.
    pub connections: Vec<Connection>,
    /// The faults of the fabric.
    pub faults: Faults,
    /// The virtual time at which the faults end.
    pub faults_end_at: Time,
    /// The latency of the fabric.
    pub latency: Duration,
    /// The delay between an event at a device (a packet arrival, a posted request or a timeout) and the transmission of
    /// the device's packets. The packets of all events during the delay are transmitted as one batch.
    pub batch_delay: Duration,
    /// The number of 64-bit words per device on which all connections execute atomics.
    pub shared_words_per_device: usize,
    /// The plan of a second run: messages between other devices, over another fabric with the same faults.
    pub message_run: MessagePlan,
}

/// A connection and the requests of both sides.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The indexes of both sides' devices, which may be equal.
    pub devices: [usize; 2],
    /// The path MTU.
    pub mtu: PathMtu,
    /// The initial PSN in each direction.
    pub first_psns: [u32; 2],
    /// Whether the connection uses end-to-end credits.
    pub has_credits: bool,
    /// The maximum number of packets in flight.
    pub window: u32,
    /// The exponent of the ACK timeout, which is 4.096 µs × 2^exponent.
    pub ack_timeout_exponent: u8,
    /// The maximum number of retries after an ACK timeout or a sequence error NAK.
    pub retry_count: u8,
    /// The maximum number of retries after RNR NAKs. The value 7 means no limit.
    pub rnr_retry: u8,
    /// The code of the minimum RNR NAK timer, 0 to 31.
    pub rnr_timer: u8,
    /// The maximum number of outstanding READs and atomics.
    pub max_outstanding_reads: u8,
    /// Whether the connection uses congestion control.
    pub has_congestion_control: bool,
    /// The programs of both sides.
    pub programs: [Program; 2],
}

impl Connection {
    /// Returns the maximum number of response bytes of outstanding READs. With a small window, READs are requested in
    /// parts.
    pub(crate) fn read_window(&self) -> u32 {
        self.window << 10
    }

    /// Returns the maximum number of short requests that are coalesced; 0 disables coalescing.
    pub(crate) fn coalesce_limit(&self) -> u32 {
        self.first_psns[0] % 4
    }

    /// Returns the number of packets of a part of a READ (see `QpConfig::read_window`).
    pub(crate) fn read_part(&self) -> u32 {
        (self.read_window() / (u32::from(self.mtu.bytes()) + 512) / 2).max(1)
    }
}

/// The actions of one side of a connection.
#[derive(Clone, Debug)]
pub struct Program {
    /// The steps of the program, in order.
    pub steps: Vec<Step>,
    /// The number of receives that the side keeps posted.
    pub recv_depth: usize,
    /// The delay between the completion of a receive and the posting of another one.
    pub recv_delay: Duration,
    /// The maximum number of outstanding requests.
    pub send_depth: usize,
}

/// A request or another action, and the pause after it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The pause after the action.
    pub pause: Duration,
    /// The action of the step.
    pub action: Action,
    /// The seed of the step's random numbers.
    pub seed: u64,
    /// Whether the request is signaled.
    pub is_signaled: bool,
    /// The length of the message in bytes.
    pub length: u32,
}

/// The action of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A SEND.
    Send,
    /// A SEND with immediate data.
    SendWithImm,
    /// A SEND with invalidate of one of the peer's memory keys.
    SendInvalidate,
    /// An inline SEND.
    SendInline,
    /// A WRITE.
    Write,
    /// A WRITE with immediate data.
    WriteWithImm,
    /// A WRITE of zero bytes with an invalid key.
    ZeroLengthWrite,
    /// A READ.
    Read,
    /// A READ of memory that the peer deregisters when the READ has completed.
    ReadAndRelease,
    /// A READ of zero bytes with an invalid key.
    ZeroLengthRead,
    /// A compare-and-swap of a word that only this connection accesses.
    CompareSwap,
    /// A fetch-and-add of a word that only this connection accesses.
    FetchAdd,
    /// A compare-and-swap of a word that all connections access.
    SharedCompareSwap,
    /// A fetch-and-add of a word that all connections access.
    SharedFetchAdd,
    /// An ATOMIC WRITE of eight bytes.
    AtomicWrite,
    /// A FLUSH.
    Flush,
    /// A local invalidate request for a memory key.
    LocalInvalidate,
    /// A WRITE to memory that the peer may deregister concurrently.
    WriteToRevocableMemory,
    /// A transition of the queue pair to SQD. The next step starts when the send queue is drained.
    Drain,
    /// Destruction of the queue pair, of which the peer isn't notified.
    Destroy,
    /// A transition of the queue pair to the error state.
    MoveToError,
    /// An invalid request, which must fail.
    Invalid(InvalidRequest),
}

/// An invalid request, which must fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidRequest {
    /// A WRITE with a key that doesn't exist.
    UnknownKey,
    /// A WRITE that ends one byte beyond its memory region.
    WriteBeyondEnd,
    /// A READ that ends one byte beyond its memory region.
    ReadBeyondEnd,
    /// A WRITE that starts before its memory region.
    WriteBeforeStart,
    /// A WRITE to memory with remote read access only.
    WriteToReadOnlyMemory,
    /// A READ of memory with remote write access only.
    ReadOfWriteOnlyMemory,
    /// An atomic on memory with remote write access only.
    AtomicOnWriteOnlyMemory,
    /// A WRITE to memory of another protection domain.
    OtherDomain,
    /// An atomic on a misaligned word.
    MisalignedAtomic,
    /// A SEND that is longer than the buffer of the peer's receive.
    SendTooLong,
    /// A WRITE with an invalidated key.
    InvalidatedKey,
    /// A WRITE from memory with a local key that doesn't exist.
    UnknownLocalKey,
    /// A SEND with invalidate of a key for which remote invalidation isn't allowed.
    ForbiddenInvalidate,
}

impl InvalidRequest {
    const ALL: [InvalidRequest; 13] = [
        InvalidRequest::UnknownKey,
        InvalidRequest::WriteBeyondEnd,
        InvalidRequest::ReadBeyondEnd,
        InvalidRequest::WriteBeforeStart,
        InvalidRequest::WriteToReadOnlyMemory,
        InvalidRequest::ReadOfWriteOnlyMemory,
        InvalidRequest::AtomicOnWriteOnlyMemory,
        InvalidRequest::OtherDomain,
        InvalidRequest::MisalignedAtomic,
        InvalidRequest::SendTooLong,
        InvalidRequest::InvalidatedKey,
        InvalidRequest::UnknownLocalKey,
        InvalidRequest::ForbiddenInvalidate,
    ];
}

impl Action {
    /// Whether the action consumes one of the peer's receives.
    pub fn consumes_receive(self) -> bool {
        matches!(
            self,
            Action::Send
                | Action::SendWithImm
                | Action::SendInvalidate
                | Action::SendInline
                | Action::WriteWithImm
                | Action::Invalid(InvalidRequest::SendTooLong | InvalidRequest::ForbiddenInvalidate)
        )
    }

    /// Whether the action is a READ of the target.
    pub fn is_read(self) -> bool {
        matches!(self, Action::Read | Action::ReadAndRelease)
    }

    /// Whether the action posts a request.
    pub fn is_request(self) -> bool {
        !matches!(self, Action::Drain | Action::Destroy | Action::MoveToError)
    }
}

impl Scenario {
    /// Creates a random scenario from a seed.
    pub fn new(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let random = &mut random;
        let has_ipv6 = random.chance_per_million(300_000);
        let device_has_ipv6: Vec<bool> = (0..random.between(2, 4)).map(|_| has_ipv6).collect();
        let device_count = device_has_ipv6.len() as u64;
        let latency = Duration::from_nanos(random.between(500, 8000));
        let exponent = random.between(5, 8) as u8;
        let faults_end_at = Time::from_nanos(random.between(3, 20) * 1_000_000);
        let connections =
            (0..random.between(2, 5)).map(|_| Connection::random(random, device_count, exponent)).collect();
        let faults = faults(random, device_count, faults_end_at, exponent);
        let batching = Duration::from_nanos(random.pick(&[0, 0, 500, 2000, 5000]));
        let messages = MessagePlan::random(random, faults.clone(), faults_end_at, exponent);
        Scenario {
            seed,
            device_has_ipv6,
            connections,
            faults,
            faults_end_at,
            latency,
            batch_delay: batching,
            shared_words_per_device: 3,
            message_run: messages,
        }
    }

    /// Returns the maximum number of requests that the queue pairs post.
    pub fn max_request_count(&self) -> usize {
        let programs = self.connections.iter().flat_map(|connection| &connection.programs);
        let requests =
            |program: &Program| program.steps.iter().filter(|step| step.action.is_request()).count();
        programs.map(requests).sum::<usize>() + self.message_run.max_request_count()
    }
}

impl Connection {
    /// Creates a random connection with this exponent of the ACK timeout.
    fn random(random: &mut Random, devices: u64, exponent: u8) -> Connection {
        let a = random.below(devices) as usize;
        let b = random.below(devices) as usize;
        let mtu = random.pick(&[
            PathMtu::Mtu256,
            PathMtu::Mtu256,
            PathMtu::Mtu512,
            PathMtu::Mtu1024,
            PathMtu::Mtu1024,
            PathMtu::Mtu2048,
            PathMtu::Mtu4096,
        ]);
        // In many connections, the PSNs wrap around during the run.
        let psn = |random: &mut Random| match random.below(3) {
            0 => 0x100_0000 - random.between(1, 400) as u32,
            _ => random.u32() & 0xff_ffff,
        };
        let psns = [psn(random), psn(random)];
        let reads = random.pick(&[1, 2, 4, 8, 16]);
        let slow = random.chance_per_million(250_000);
        // At most one side fails.
        let failing_side = random.below(6);
        let programs = [0, 1].map(|side| Program::random(random, mtu, slow, side == failing_side));
        Connection {
            devices: [a, b],
            mtu,
            first_psns: psns,
            has_credits: random.chance_per_million(400_000),
            window: random.pick(&[2, 8, 32, 64, 256]),
            ack_timeout_exponent: exponent,
            retry_count: random.pick(&[3, 5, 6, 7, 7]),
            rnr_retry: if slow { random.pick(&[3, 7, 7, 7]) } else { 7 },
            rnr_timer: random.pick(&[1, 2, 5, 8]),
            max_outstanding_reads: reads,
            programs,
            has_congestion_control: random.chance_per_million(500_000),
        }
    }
}

impl Program {
    fn random(random: &mut Random, mtu: PathMtu, slow: bool, ends_with_failure: bool) -> Program {
        let count = random.between(50, 150);
        let mut steps: Vec<Step> = (0..count).map(|_| Step::random(random, mtu)).collect();
        let step_with = |random: &mut Random, action| Step { action, ..Step::random(random, mtu) };
        match random.below(10) {
            _ if !ends_with_failure => {}
            0..6 => {
                let invalid = random.pick(&InvalidRequest::ALL);
                if invalid == InvalidRequest::InvalidatedKey {
                    steps.push(step_with(random, Action::SendInvalidate));
                }
                steps.push(step_with(random, Action::Invalid(invalid)));
                steps.push(Step::random(random, mtu));
                steps.push(Step::random(random, mtu));
            }
            6..8 => {
                for _ in 0..random.between(3, 12) {
                    let length = u32::from(mtu.bytes()) * random.between(2, 6) as u32;
                    steps.push(Step { length, ..step_with(random, Action::WriteToRevocableMemory) });
                }
            }
            _ => {
                let place = random.below(steps.len() as u64) as usize;
                let action = random.pick(&[Action::Destroy, Action::MoveToError]);
                steps.insert(place, step_with(random, action));
            }
        }
        Program {
            steps,
            recv_depth: if slow { random.between(1, 4) } else { random.between(8, 40) } as usize,
            recv_delay: Duration::from_nanos(if slow {
                random.between(0, 300_000)
            } else {
                random.below(3000)
            }),
            send_depth: random.pick(&[1, 4, 16, 64]),
        }
    }
}

impl Step {
    fn random(random: &mut Random, mtu: PathMtu) -> Step {
        let action = match random.below(100) {
            0..16 => Action::Send,
            16..21 => Action::SendWithImm,
            21..23 => Action::SendInvalidate,
            23..27 => Action::SendInline,
            27..45 => Action::Write,
            45..51 => Action::WriteWithImm,
            51..53 => Action::ZeroLengthWrite,
            53..65 => Action::Read,
            65..69 => Action::ReadAndRelease,
            69..70 => Action::ZeroLengthRead,
            70..75 => Action::CompareSwap,
            75..80 => Action::FetchAdd,
            80..84 => Action::SharedCompareSwap,
            84..92 => Action::SharedFetchAdd,
            92..95 => Action::AtomicWrite,
            95..97 => Action::Flush,
            97..98 => Action::LocalInvalidate,
            _ => Action::Drain,
        };
        let mtu = u64::from(mtu.bytes());
        let length = match random.below(10) {
            0 => random.below(4),
            1..4 => random.below(64),
            4 => mtu,
            5 => mtu * random.between(1, 4),
            6..9 => random.below(3 * mtu),
            _ => random.below(8 * mtu),
        };
        let pause = match random.below(8) {
            0..5 => 0,
            5..7 => random.below(20_000),
            _ => random.below(400_000),
        };
        Step {
            pause: Duration::from_nanos(pause),
            action,
            seed: random.u64(),
            is_signaled: !random.chance_per_million(300_000),
            length: length as u32,
        }
    }
}

/// Returns the faults of a run: one run in six has none, most have few, and some have many. `exponent` is that of the
/// ACK timeout.
fn faults(random: &mut Random, devices: u64, faults_end_at: Time, exponent: u8) -> Faults {
    let max = match random.below(12) {
        0..2 => return Faults::default(),
        2..8 => 15_000,
        8..11 => 60_000,
        _ => 150_000,
    };
    let chance =
        |random: &mut Random| if random.chance_per_million(600_000) { random.below(max) as u32 } else { 0 };
    let mut faults = Faults {
        loss_per_million: chance(random),
        duplication_per_million: chance(random),
        reordering_per_million: chance(random),
        corruption_per_million: chance(random),
        delay_per_million: chance(random) / 3,
        ..Faults::default()
    };
    let ack_timeout = 4096u64 << exponent;
    let span = |random: &mut Random| {
        let start = random.below(faults_end_at.as_nanos());
        let length = ack_timeout * random.between(1, 24) / 4;
        (Time::from_nanos(start), Time::from_nanos((start + length).min(faults_end_at.as_nanos())))
    };
    if random.chance_per_million(300_000) {
        for _ in 0..random.between(1, 3) {
            let between = [random.below(devices) as usize, random.below(devices) as usize];
            let (start, end) = span(random);
            faults.partitions.push(Partition { devices: between, start, end });
        }
    }
    if random.chance_per_million(300_000) {
        for _ in 0..random.between(1, 3) {
            let device = random.below(devices) as usize;
            let (start, end) = span(random);
            faults.stalls.push(Stall { device, start, end });
        }
    }
    if random.chance_per_million(250_000) {
        let to = random.below(devices) as usize;
        let mark_threshold = random.between(1, 20) << 10;
        let rate = random.between(1, 8) * 1_000_000_000;
        faults.bottleneck = Some(Bottleneck {
            device: to,
            rate,
            mark_threshold,
            queue_capacity: 5 * mark_threshold + (16 << 10),
        });
    }
    faults
}
