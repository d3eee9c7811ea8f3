//! What happens in a run, as plain data that follows from a seed and can be made smaller.

use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::types::PathMtu;

use crate::Random;
use crate::fabric::{Bottleneck, Faults, Partition, Stall};
use crate::messages::MessagePlan;

/// A run: devices, connections between them, what is done over each, and how the fabric fails.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where all randomness of the run comes from.
    pub seed: u64,
    /// Which devices have IPv6 addresses; there are as many devices.
    pub devices: Vec<bool>,
    /// The connections.
    pub connections: Vec<Connection>,
    /// How the fabric fails.
    pub faults: Faults,
    /// When it stops failing.
    pub heal_at: Time,
    /// How long a packet takes.
    pub latency: Duration,
    /// How long devices collect packets before they answer.
    pub batching: Duration,
    /// How many words of each device all its peers do atomics on.
    pub shared_words: usize,
    /// What happens on other devices, over another fabric that fails in the same way.
    pub messages: MessagePlan,
}

/// A connection and what is done over it.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its devices, which may be the same.
    pub devices: [usize; 2],
    /// The payload of one packet.
    pub mtu: PathMtu,
    /// The first packet's number in each direction.
    pub psns: [u32; 2],
    /// Whether credits are used.
    pub credits: bool,
    /// Packets under way.
    pub window: u32,
    /// The acknowledge timeout's code.
    pub timeout: u8,
    /// How often to try again.
    pub retry_count: u8,
    /// How often to try again when no receive is posted.
    pub rnr_retry: u8,
    /// The code of the wait then.
    pub rnr_timer: u8,
    /// READs and atomics outstanding.
    pub max_outstanding_reads: u8,
    /// Whether it heeds congestion.
    pub paced: bool,
    /// What each side does.
    pub programs: [Program; 2],
}

impl Connection {
    /// Bytes of answers to READs under way: where the window is small, READs are asked for in parts.
    pub(crate) fn read_window(&self) -> u32 {
        self.window << 10
    }

    /// Behind how many requests short ones gather: any few, or none.
    pub(crate) fn gather(&self) -> u32 {
        self.psns[0] % 4
    }

    /// How many packets such a part has (see `QpConfig::read_window`).
    pub(crate) fn read_part(&self) -> u32 {
        (self.read_window() / (u32::from(self.mtu.bytes()) + 512) / 2).max(1)
    }
}

/// What one side of a connection does.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its requests, in order.
    pub steps: Vec<Step>,
    /// How many receives it keeps posted.
    pub recv_depth: usize,
    /// How long it takes to post another.
    pub recv_delay: Duration,
    /// How many requests it keeps outstanding.
    pub depth: usize,
}

/// A request and what comes before it.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// How long to wait first.
    pub pause: Duration,
    /// What to do.
    pub action: Action,
    /// Where all randomness of this step comes from.
    pub seed: u64,
    /// Whether a completion is wanted.
    pub signaled: bool,
    /// How long the message is.
    pub length: u32,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A SEND.
    Send,
    /// A SEND with immediate data.
    SendWithImm,
    /// A SEND that invalidates one of the peer's keys.
    SendInvalidate,
    /// A SEND whose bytes are taken at once.
    SendInline,
    /// A WRITE.
    Write,
    /// A WRITE with immediate data.
    WriteWithImm,
    /// A WRITE of nothing, with a key that means nothing.
    WriteNothing,
    /// A READ.
    Read,
    /// A READ of nothing, with a key that means nothing.
    ReadNothing,
    /// A compare-and-swap of a word that only this connection uses.
    CompareSwap,
    /// A fetch-and-add to a word that only this connection uses.
    FetchAdd,
    /// A compare-and-swap of a word that all use.
    SharedCompareSwap,
    /// A fetch-and-add to a word that all use.
    SharedFetchAdd,
    /// Eight bytes at once.
    AtomicWrite,
    /// A flush.
    Flush,
    /// Invalidates a key of its own.
    LocalInvalidate,
    /// A WRITE to memory that the peer may take away meanwhile.
    WriteRevocable,
    /// Drains the send queue, and goes on when it is drained.
    Drain,
    /// Ends the queue pair without a word.
    Destroy,
    /// Takes the queue pair into error.
    Error,
    /// Something that must be refused.
    Invalid(InvalidRequest),
}

/// Something that must be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidRequest {
    /// A WRITE with a key that doesn't exist.
    UnknownKey,
    /// A WRITE that ends one byte behind its region.
    WriteBeyondEnd,
    /// A READ that ends one byte behind its region.
    ReadBeyondEnd,
    /// A WRITE that begins before its region.
    WriteBeforeStart,
    /// A WRITE to what may only be read.
    WriteReadOnly,
    /// A READ of what may only be written.
    ReadWriteOnly,
    /// An atomic on what may only be written.
    AtomicWriteOnly,
    /// A WRITE to another protection domain.
    OtherDomain,
    /// An atomic on a word that isn't aligned.
    MisalignedAtomic,
    /// A SEND that is longer than its receive.
    SendTooLong,
    /// A WRITE with a key that was invalidated.
    InvalidatedKey,
    /// A SEND from memory with a key that doesn't exist.
    UnknownLocalKey,
    /// A SEND that invalidates a key which a peer may not.
    ForbiddenInvalidate,
}

impl InvalidRequest {
    const ALL: [InvalidRequest; 13] = [
        InvalidRequest::UnknownKey,
        InvalidRequest::WriteBeyondEnd,
        InvalidRequest::ReadBeyondEnd,
        InvalidRequest::WriteBeforeStart,
        InvalidRequest::WriteReadOnly,
        InvalidRequest::ReadWriteOnly,
        InvalidRequest::AtomicWriteOnly,
        InvalidRequest::OtherDomain,
        InvalidRequest::MisalignedAtomic,
        InvalidRequest::SendTooLong,
        InvalidRequest::InvalidatedKey,
        InvalidRequest::UnknownLocalKey,
        InvalidRequest::ForbiddenInvalidate,
    ];
}

impl Action {
    /// Whether it uses up one of the peer's receives.
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

    /// Whether it is a request, not something done to the queue pair.
    pub fn is_request(self) -> bool {
        !matches!(self, Action::Drain | Action::Destroy | Action::Error)
    }
}

impl Scenario {
    /// The run of a seed.
    pub fn new(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let random = &mut random;
        let family = random.chance(300_000);
        let devices: Vec<bool> = (0..random.between(2, 4)).map(|_| family).collect();
        let latency = Duration::from_nanos(random.between(500, 8000));
        let timeout = random.between(5, 8) as u8;
        let heal_at = Time::from_nanos(random.between(3, 20) * 1_000_000);
        let connections = (0..random.between(2, 5))
            .map(|_| Connection::random(random, devices.len() as u64, timeout))
            .collect();
        let faults = faults(random, devices.len() as u64, heal_at, timeout);
        let batching = Duration::from_nanos(random.pick(&[0, 0, 500, 2000, 5000]));
        let messages = MessagePlan::random(random, faults.clone(), heal_at, timeout);
        Scenario { seed, devices, connections, faults, heal_at, latency, batching, shared_words: 3, messages }
    }

    /// How many requests there are.
    pub fn requests(&self) -> usize {
        let programs = self.connections.iter().flat_map(|connection| &connection.programs);
        let requests =
            |program: &Program| program.steps.iter().filter(|step| step.action.is_request()).count();
        programs.map(requests).sum::<usize>() + self.messages.requests()
    }
}

impl Connection {
    fn random(random: &mut Random, devices: u64, timeout: u8) -> Connection {
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
        // Often so that the numbers wrap during the run.
        let psn = |random: &mut Random| match random.below(3) {
            0 => 0x100_0000 - random.between(1, 400) as u32,
            _ => random.u32() & 0xff_ffff,
        };
        let psns = [psn(random), psn(random)];
        let reads = random.pick(&[1, 2, 4, 8, 16]);
        let slow = random.chance(250_000);
        // At most one side ends badly.
        let ends_badly = random.below(6);
        let programs = [0, 1].map(|side| Program::random(random, mtu, slow, side == ends_badly));
        Connection {
            devices: [a, b],
            mtu,
            psns,
            credits: random.chance(400_000),
            window: random.pick(&[2, 8, 32, 64, 256]),
            timeout,
            retry_count: random.pick(&[3, 5, 6, 7, 7]),
            rnr_retry: if slow { random.pick(&[3, 7, 7, 7]) } else { 7 },
            rnr_timer: random.pick(&[1, 2, 5, 8]),
            max_outstanding_reads: reads,
            programs,
            paced: random.chance(500_000),
        }
    }
}

impl Program {
    fn random(random: &mut Random, mtu: PathMtu, slow: bool, ends_badly: bool) -> Program {
        let count = random.between(50, 150);
        let mut steps: Vec<Step> = (0..count).map(|_| Step::random(random, mtu)).collect();
        let tail = |random: &mut Random, action| Step { action, ..Step::random(random, mtu) };
        match random.below(10) {
            _ if !ends_badly => {}
            0..6 => {
                let violation = random.pick(&InvalidRequest::ALL);
                if violation == InvalidRequest::InvalidatedKey {
                    steps.push(tail(random, Action::SendInvalidate));
                }
                steps.push(tail(random, Action::Invalid(violation)));
                steps.push(Step::random(random, mtu));
                steps.push(Step::random(random, mtu));
            }
            6..8 => {
                for _ in 0..random.between(3, 12) {
                    let length = u32::from(mtu.bytes()) * random.between(2, 6) as u32;
                    steps.push(Step { length, ..tail(random, Action::WriteRevocable) });
                }
            }
            _ => {
                let place = random.below(steps.len() as u64) as usize;
                let action = random.pick(&[Action::Destroy, Action::Error]);
                steps.insert(place, tail(random, action));
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
            depth: random.pick(&[1, 4, 16, 64]),
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
            51..53 => Action::WriteNothing,
            53..69 => Action::Read,
            69..70 => Action::ReadNothing,
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
            signaled: !random.chance(300_000),
            length: length as u32,
        }
    }
}

/// How the fabric fails: in one run in six not at all, in most a little, in some a lot.
fn faults(random: &mut Random, devices: u64, heal_at: Time, timeout: u8) -> Faults {
    let most = match random.below(12) {
        0..2 => return Faults::default(),
        2..8 => 15_000,
        8..11 => 60_000,
        _ => 150_000,
    };
    let chance = |random: &mut Random| if random.chance(600_000) { random.below(most) as u32 } else { 0 };
    let mut faults = Faults {
        loss: chance(random),
        duplication: chance(random),
        reordering: chance(random),
        corruption: chance(random),
        delay: chance(random) / 3,
        ..Faults::default()
    };
    let period = 4096u64 << timeout;
    let span = |random: &mut Random| {
        let start = random.below(heal_at.as_nanos());
        let length = period * random.between(1, 24) / 4;
        (Time::from_nanos(start), Time::from_nanos((start + length).min(heal_at.as_nanos())))
    };
    if random.chance(300_000) {
        for _ in 0..random.between(1, 3) {
            let between = [random.below(devices) as usize, random.below(devices) as usize];
            let (start, end) = span(random);
            faults.partitions.push(Partition { devices: between, start, end });
        }
    }
    if random.chance(300_000) {
        for _ in 0..random.between(1, 3) {
            let device = random.below(devices) as usize;
            let (start, end) = span(random);
            faults.stalls.push(Stall { device, start, end });
        }
    }
    if random.chance(250_000) {
        let to = random.below(devices) as usize;
        let mark_threshold = random.between(1, 20) << 10;
        let rate = random.between(1, 8) * 1_000_000_000;
        faults.bottleneck =
            Some(Bottleneck { device: to, rate, mark_threshold, capacity: 5 * mark_threshold + (16 << 10) });
    }
    faults
}
