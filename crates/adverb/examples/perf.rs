//! Latency and bandwidth of Adverb, measured like perftest's `ib_send_lat -e`, `ib_write_bw` and `ib_send_bw`.
//!
//! ```text
//! $ cargo run --release --example perf -- listen 192.0.2.7:7471
//! $ cargo run --release --example perf -- latency 192.0.2.7:7471 [MESSAGES] [BYTES]
//! $ cargo run --release --example perf -- events 192.0.2.7:7471 [MESSAGES] [BYTES]
//! $ cargo run --release --example perf -- bandwidth 192.0.2.7:7471 [MESSAGES] [BYTES]
//! $ cargo run --release --example perf -- take 192.0.2.7:7471
//! $ cargo run --release --example perf -- messages 192.0.2.7:7471 [MESSAGES] [BYTES]
//! ```
//!
//! - `latency` sends one message at a time back and forth, and prints half of the round-trip time. It polls before it
//!   sleeps.
//! - `events` does the same, but waits for an event of every completion, like `ib_send_lat -e`.
//! - `bandwidth` writes into the peer's memory as fast as possible.
//! - `messages` sends messages over an `adverb::net` connection, to a process that runs `take`.
//!
//! `listen` and `take` serve one peer and exit.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use adverb::Report;
use adverb::memory::{Buffer, MemoryRegion, RemoteMemory};
use adverb::net::{Options, blocking as net};
use adverb::verbs::cm::{Connection, Connector, Listener, Path};
use adverb::verbs::{Access, ArmFor, Completion, CompletionQueue, QueuePair, SendRequest};

const NO_TIMEOUT: Option<Duration> = None;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of outstanding writes.
const WRITES: u32 = 128;

/// The number of posted receives.
const RECEIVES: u32 = 16;

fn main() -> Result<(), Report> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: perf listen|take ADDRESS:PORT | perf latency|events|bandwidth|messages ADDRESS:PORT [MESSAGES] [BYTES]";
    let [command, address, numbers @ ..] = &words[..] else { return Err(usage.into()) };
    let address: SocketAddr = address.parse()?;
    let number = |at: usize, default| numbers.get(at).map_or(Ok(default), |word| word.parse::<u32>());
    match command.as_str() {
        "listen" => listen(address),
        "latency" => latency(address, Plan { kind: LATENCY, count: number(0, 1000)?, len: number(1, 2)? }),
        "events" => latency(address, Plan { kind: EVENTS, count: number(0, 1000)?, len: number(1, 2)? }),
        "bandwidth" => {
            bandwidth(address, Plan { kind: BANDWIDTH, count: number(0, 5000)?, len: number(1, 65536)? })
        }
        "take" => receive_messages(address),
        "messages" => messages(address, number(0, 5000)?, number(1, 65536)? as usize),
        _ => Err(usage.into()),
    }
}

/// Under strace on a slow machine, finding the device alone takes seconds.
fn long_connect_timeout() -> Options {
    Options::new().connect_timeout(Duration::from_secs(60))
}

/// Receives the messages of one peer.
fn receive_messages(address: SocketAddr) -> Result<(), Report> {
    let connection = net::Listener::builder().options(&long_connect_timeout()).bind(address)?.accept()?;
    while connection.recv()?.is_some() {}
    Ok(connection.close()?)
}

/// Sends messages, and waits until the peer has received them all.
fn messages(address: SocketAddr, count: u32, len: usize) -> Result<(), Report> {
    let connection = net::Connector::new().options(&long_connect_timeout()).connect(address)?;
    let start = Instant::now();
    for _ in 0..count {
        connection.send(connection.pool().allocate(len)?)?;
    }
    connection.close()?;
    let bytes = f64::from(count) * len as f64;
    println!(
        "{count} messages of {len} bytes: {:.2} MiB/s",
        bytes / start.elapsed().as_secs_f64() / f64::from(1 << 20)
    );
    Ok(())
}

const LATENCY: u32 = 1;
const EVENTS: u32 = 2;
const BANDWIDTH: u32 = 3;

/// The measurement, which the connector sends to the listener as private data.
#[derive(Clone, Copy)]
struct Plan {
    kind: u32,
    count: u32,
    len: u32,
}

impl Plan {
    fn to_bytes(self) -> Vec<u8> {
        [self.kind, self.count, self.len].iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Plan> {
        let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at * 4..at * 4 + 4)?.try_into().ok()?));
        Some(Plan { kind: number(0)?, count: number(1)?, len: number(2)? })
    }
}

/// Serves one peer.
fn listen(address: SocketAddr) -> Result<(), Report> {
    let listener = Listener::bind(address)?;
    println!("listening at {}", listener.local_addr());
    let request = listener.accept()?;
    let plan = Plan::from_bytes(request.private_data()).ok_or("the peer's private data is too short")?;
    let mut side = Side::new(request.path(), &plan)?;
    let memory = side.memory.remote();
    let mut answer = memory.addr.to_be_bytes().to_vec();
    answer.extend(memory.rkey.to_be_bytes());
    let connection =
        request.accept(side.queue_pair.take().ok_or("the queue pair is already in use")?, &answer)?;
    if plan.kind != BANDWIDTH {
        let mut payload = side.payload.take().ok_or("the message is already in use")?;
        for _ in 0..plan.count {
            side.receive(&connection)?;
            payload = side.send(&connection, payload)?;
        }
    }
    connection.wait_event(NO_TIMEOUT)?;
    Ok(())
}

fn latency(address: SocketAddr, plan: Plan) -> Result<(), Report> {
    let (connection, mut side) = connect(address, plan)?;
    let mut payload = side.payload.take().ok_or("the message is already in use")?;
    let mut times = Vec::with_capacity(plan.count as usize + 1);
    for _ in 0..plan.count {
        times.push(Instant::now());
        payload = side.send(&connection, payload)?;
        side.receive(&connection)?;
    }
    times.push(Instant::now());
    connection.close(TIMEOUT)?;
    let mut halves: Vec<f64> =
        times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e6 / 2.0).collect();
    let average = halves.iter().sum::<f64>() / halves.len() as f64;
    halves.sort_by(f64::total_cmp);
    let at = |part: usize| halves[(halves.len() * part / 100).min(halves.len() - 1)];
    println!(
        "{} messages of {} bytes: average {average:.2} µs, typical {:.2}, least {:.2}, 99 % {:.2}",
        plan.count,
        plan.len,
        at(50),
        at(0),
        at(99)
    );
    Ok(())
}

fn bandwidth(address: SocketAddr, plan: Plan) -> Result<(), Report> {
    let (connection, side) = connect(address, plan)?;
    let (addr, rkey) = connection.private_data().split_first_chunk().ok_or("the peer sent no address")?;
    let rkey = rkey.first_chunk().ok_or("the peer sent no key")?;
    let remote = RemoteMemory {
        addr: u64::from_be_bytes(*addr),
        rkey: u32::from_be_bytes(*rkey),
        len: plan.len.into(),
    };
    let start = Instant::now();
    let (mut posted, mut completed, mut completions) = (0, 0, Vec::with_capacity(WRITES as usize));
    while completed < plan.count {
        while posted < plan.count && posted - completed < WRITES {
            let source = side.memory.slice(0..plan.len as usize)?;
            connection.queue_pair().post_send(SendRequest::write(source, remote.at(0)))?;
            posted += 1;
        }
        side.sends.poll(&mut completions)?;
        for completion in completions.drain(..) {
            completion.result()?;
            completed += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    connection.close(TIMEOUT)?;
    let mebibytes = f64::from(plan.count) * f64::from(plan.len) / f64::from(1 << 20);
    println!("{} writes of {} bytes: {:.2} MiB/s", plan.count, plan.len, mebibytes / seconds);
    Ok(())
}

fn connect(address: SocketAddr, plan: Plan) -> Result<(Connection, Side), Report> {
    let mut side = None;
    let connector = Connector::new().timeout(TIMEOUT).private_data(&plan.to_bytes());
    let connection = connector.connect(address, |path| {
        let created = side.insert(Side::new(path, &plan)?);
        Ok(created.queue_pair.take().expect("it was just created"))
    })?;
    Ok((connection, side.ok_or("created with the queue pair")?))
}

/// The queues and memory of one side.
struct Side {
    /// `None` after it was connected.
    queue_pair: Option<QueuePair>,
    sends: CompletionQueue,
    receives: CompletionQueue,
    /// Whether to wait for an event of every completion.
    waits_for_events: bool,
    /// Completions that were polled but not handled.
    completed: Vec<Completion>,
    payload: Option<Buffer>,
    memory: MemoryRegion,
}

impl Side {
    fn new(path: &Path, plan: &Plan) -> adverb::verbs::Result<Side> {
        let device = path.open_device()?;
        let domain = device.create_protection_domain()?;
        let sends = device.completion_queue(WRITES).events().create()?;
        let receives = device.completion_queue(RECEIVES).events().create()?;
        let queue_pair = path
            .queue_pair(&domain)?
            .send_completion_queue(&sends)
            .recv_completion_queue(&receives)
            .depth(WRITES, RECEIVES)
            .access(Access::REMOTE_WRITE)
            .create()?;
        for _ in 0..RECEIVES {
            queue_pair.post_recv(domain.allocate_buffer(plan.len as usize)?)?;
        }
        let waits_for_events = plan.kind == EVENTS;
        if waits_for_events {
            sends.arm(ArmFor::Any)?;
            receives.arm(ArmFor::Any)?;
        }
        let payload = Some(domain.allocate_buffer(plan.len as usize)?);
        let memory = domain.allocate_region(plan.len as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let (queue_pair, completed) = (Some(queue_pair), Vec::new());
        Ok(Side { queue_pair, sends, receives, waits_for_events, completed, payload, memory })
    }

    /// Sends a message, and waits for its completion.
    fn send(&mut self, connection: &Connection, payload: Buffer) -> Result<Buffer, adverb::Error> {
        connection.queue_pair().post_send(SendRequest::send(payload))?;
        Side::completion(&self.sends, &mut self.completed, self.waits_for_events)
    }

    /// Waits for a message, and posts its buffer again.
    fn receive(&mut self, connection: &Connection) -> Result<(), adverb::Error> {
        let message = Side::completion(&self.receives, &mut self.completed, self.waits_for_events)?;
        connection.queue_pair().post_recv(message)?;
        Ok(())
    }

    /// Waits for the only outstanding completion of the queue, and returns its buffer.
    fn completion(
        queue: &CompletionQueue,
        completed: &mut Vec<Completion>,
        waits_for_events: bool,
    ) -> Result<Buffer, adverb::Error> {
        loop {
            if let Some(completion) = completed.pop() {
                completion.result()?;
                return Ok(completion.into_buffer().expect("the request had a buffer"));
            }
            if waits_for_events {
                queue.wait_event(NO_TIMEOUT)?;
                queue.arm(ArmFor::Any)?;
                queue.poll(completed)?;
            } else {
                queue.poll_timeout(completed, NO_TIMEOUT)?;
            }
        }
    }
}
