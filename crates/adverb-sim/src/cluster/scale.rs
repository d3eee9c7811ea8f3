//! A large cluster.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use adverb_cluster_proto::{Broker, BrokerConfig, Event, LocalMemory, PeerId, Post, PostError};
use adverb_proto::Time;
use adverb_proto::types::{CompletedOperation, Completion, Qpn, SendFlags, SendOperation, Success};

/// The figures of [`run_cluster_scale`].
#[derive(Clone, Debug)]
pub struct ClusterScale {
    /// The number of members, each with one broker.
    pub member_count: usize,
    /// The number of sessions of all members, which counts the sessions of both ends of a connection.
    pub session_count: u64,
    /// The CPU time to create the brokers, and to prepare and establish all sessions.
    pub setup_time: Duration,
    /// The number of messages that arrived.
    pub message_count: u64,
    /// The CPU time of sending and receiving the messages.
    pub message_time: Duration,
    /// The bytes of a member's broker state.
    pub state_bytes_per_member: usize,
    /// The bytes of a member's message slots, which a driver would register.
    pub message_bytes_per_member: u64,
    /// A hash of all messages in the order of their arrival.
    pub digest: u64,
}

impl fmt::Display for ClusterScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterScale { member_count, session_count, message_count, digest, .. } = self;
        let setup = self.setup_time.as_secs_f64();
        let messages = self.message_time.as_secs_f64();
        let per_session = self.state_bytes_per_member as f64 / (member_count - 1).max(1) as f64;
        writeln!(f, "{member_count} members, {session_count} sessions")?;
        writeln!(
            f,
            "set-up {setup:.2} s of CPU time ({:.2} ms per member, {:.2} us per session)",
            setup * 1e3 / *member_count as f64,
            setup * 1e6 / *session_count as f64
        )?;
        writeln!(
            f,
            "memory per member: {:.2} MiB of state ({per_session:.0} bytes per peer), {:.1} MiB of message slots",
            self.state_bytes_per_member as f64 / f64::from(1 << 20),
            self.message_bytes_per_member as f64 / f64::from(1 << 20)
        )?;
        writeln!(
            f,
            "{message_count} messages in {messages:.2} s of CPU time: {:.2} million per core per second, both ends",
            *message_count as f64 / messages / 1e6
        )?;
        write!(f, "digest of the messages: {digest:#018x}")
    }
}

/// Connects each pair of `member_count` members, and sends `rounds` messages from each member to each other member.
///
/// Requests are executed at once, in memory, so the time is that of the brokers and of the model's queues. Returns an
/// error if a message is lost or out of order.
pub fn run_cluster_scale(member_count: usize, rounds: u32) -> Result<ClusterScale, String> {
    let config = BrokerConfig {
        send_slots: 4,
        recv_slots: 4,
        slot_size: 1024,
        queue_depth: 4,
        send_queue_depth: 8,
        doorbell_batch: 4,
        signal_interval: 2,
        keepalive: Some(Duration::from_secs(1)),
    };
    let clock = CpuClock::new();
    let mut cluster = Cluster::new(config, member_count)?;
    let setup_time = clock.elapsed();
    let clock = CpuClock::new();
    for round in 0..rounds {
        for member in 0..member_count {
            // Each member begins with a different peer, as clients of a real cluster do.
            for offset in 1..member_count {
                cluster.send(member, (member + offset) % member_count, round)?;
            }
            cluster.poll(member)?;
        }
    }
    // Process the last credit messages and completions.
    for _ in 0..2 {
        for member in 0..member_count {
            cluster.poll(member)?;
        }
    }
    let message_time = clock.elapsed();
    let expected = u64::from(rounds) * (member_count * (member_count - 1)) as u64;
    if cluster.received != expected {
        return Err(format!("{} of {expected} messages arrived", cluster.received));
    }
    let memory = cluster.brokers[0].memory_use();
    Ok(ClusterScale {
        member_count,
        session_count: (member_count * (member_count - 1)) as u64,
        setup_time,
        message_count: cluster.received,
        message_time,
        state_bytes_per_member: memory.state_bytes,
        message_bytes_per_member: memory.message_bytes,
        digest: cluster.digest,
    })
}

/// A clock of the thread's CPU time, so that other processes don't affect the figures. Without `/proc`, it is a clock
/// of the elapsed time.
struct CpuClock {
    start: Instant,
    cpu_time: Option<Duration>,
}

impl CpuClock {
    fn new() -> CpuClock {
        CpuClock { start: Instant::now(), cpu_time: CpuClock::read() }
    }

    fn read() -> Option<Duration> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }

    fn elapsed(&self) -> Duration {
        let cpu_time = self.cpu_time.and_then(|start| CpuClock::read()?.checked_sub(start));
        cpu_time.filter(|time| !time.is_zero()).unwrap_or_else(|| self.start.elapsed())
    }
}

/// The brokers of all members, and queue pairs that execute requests at once.
struct Cluster {
    brokers: Vec<Broker>,
    /// The posted receives, by receiver and sender.
    receives: Vec<VecDeque<u64>>,
    /// The completions of each member.
    completions: Vec<VecDeque<Completion>>,
    /// The number of messages that arrived, by receiver and sender.
    arrived: Vec<u32>,
    received: u64,
    digest: u64,
}

impl Cluster {
    fn new(config: BrokerConfig, count: usize) -> Result<Cluster, String> {
        let new = |_| Broker::new(config, count).map_err(|error| error.to_string());
        let mut cluster = Cluster {
            brokers: (0..count).map(new).collect::<Result<_, _>>()?,
            receives: (0..count * count).map(|_| VecDeque::new()).collect(),
            completions: (0..count).map(|_| VecDeque::new()).collect(),
            arrived: vec![0; count * count],
            received: 0,
            digest: 0,
        };
        for a in 0..count {
            for b in a + 1..count {
                let (peer_a, peer_b) = (PeerId(a as u16), PeerId(b as u16));
                let credits_a = cluster.brokers[a].prepare(peer_b).map_err(|error| error.to_string())?;
                let credits_b = cluster.brokers[b].prepare(peer_a).map_err(|error| error.to_string())?;
                cluster.post(a)?;
                cluster.post(b)?;
                let established = [
                    cluster.brokers[a].establish(peer_b, 1, credits_b, Time::ZERO),
                    cluster.brokers[b].establish(peer_a, 1, credits_a, Time::ZERO),
                ];
                established.into_iter().collect::<Result<(), _>>().map_err(|error| error.to_string())?;
            }
        }
        for member in 0..count {
            cluster.post(member)?;
        }
        Ok(cluster)
    }

    /// Sends a message. If the sender has no credits, both members poll first.
    fn send(&mut self, from: usize, to: usize, round: u32) -> Result<(), String> {
        let peer = PeerId(to as u16);
        for _ in 0..4 {
            match self.brokers[from].allocate_send_buf(peer) {
                Ok(slot) => {
                    // The model carries the round in the length of the message.
                    return self.brokers[from]
                        .post_send(slot, round % 1024)
                        .map_err(|error| error.to_string());
                }
                Err(PostError::WouldBlock { .. }) => {
                    self.poll(from)?;
                    self.poll(to)?;
                    self.poll(from)?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(format!("member {from} cannot send to member {to}"))
    }

    fn poll(&mut self, member: usize) -> Result<(), String> {
        while let Some(completion) = self.completions[member].pop_front() {
            self.brokers[member].handle_completion(&completion);
        }
        while let Some(event) = self.brokers[member].poll_event() {
            match event {
                Event::Message { from, slot, length } => {
                    let arrived = &mut self.arrived[member * self.brokers.len() + usize::from(from.0)];
                    if length != *arrived % 1024 {
                        return Err(format!("a message of member {} is out of order", from.0));
                    }
                    *arrived += 1;
                    self.received += 1;
                    let value = (member as u64) << 32 | u64::from(from.0) << 16 | u64::from(length);
                    self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
                    self.brokers[member].release(slot);
                }
                Event::SessionEnded { peer, reason, .. } => {
                    return Err(format!("the session with {peer} ended: {reason}"));
                }
                _ => {}
            }
        }
        self.brokers[member].flush_all();
        self.post(member)
    }

    /// Executes the requests of a member.
    fn post(&mut self, member: usize) -> Result<(), String> {
        let count = self.brokers.len();
        while let Some(post) = self.brokers[member].poll_post() {
            match post {
                Post::Receives { peer, requests, .. } => {
                    let receives = &mut self.receives[member * count + usize::from(peer.0)];
                    receives.extend(requests.iter().map(|request| request.wr_id));
                }
                Post::Sends { peer, requests, .. } => {
                    let to = usize::from(peer.0);
                    for request in requests {
                        if let SendOperation::SendWithImm(immediate) = request.operation {
                            let length = match request.local {
                                LocalMemory::Slot { length, .. } => length,
                                _ => 0,
                            };
                            let wr_id = self.receives[to * count + member].pop_front();
                            let wr_id = wr_id.ok_or_else(|| format!("RNR from member {member} to {to}"))?;
                            let operation = CompletedOperation::Recv {
                                immediate: Some(immediate),
                                invalidated: None,
                                source: None,
                                has_grh: false,
                            };
                            self.completions[to].push_back(completion(wr_id, operation, length));
                        }
                        if request.flags.contains(SendFlags::SIGNALED) {
                            let sent = completion(request.wr_id, CompletedOperation::Send, 0);
                            self.completions[member].push_back(sent);
                        }
                    }
                }
                Post::Close { peer } => return Err(format!("the session with {peer} ended")),
            }
        }
        Ok(())
    }
}

fn completion(wr_id: u64, operation: CompletedOperation, length: u32) -> Completion {
    Completion { wr_id, qpn: Qpn::GSI, outcome: Ok(Success { operation, length }) }
}
