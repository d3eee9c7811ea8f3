//! A peer for the ping-pong programs of rdma-core: `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and
//! `ibv_srq_pingpong`.
//!
//! ```text
//! $ ibv_rc_pingpong -d mlx5_0 -g 3                                      # on 192.0.2.7
//! $ cargo run --example pingpong -- rc -d soft:192.0.2.8 192.0.2.7      # on 192.0.2.8
//! ```
//!
//! Without a server's name it is the server. The programs exchange the addresses of their queue pairs over TCP. Those
//! of rdma-core send back the last message that they received, and this one compares every byte.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use adverb::Report;
use adverb::memory::Buffer;
use adverb::verbs::{
    Completion, CompletionQueue, ConnectOptions, Device, Endpoint, Gid, PathMtu, ProtectionDomain, Psn, Qpn,
    QueuePair, RecvRequest, SendRequest, SharedReceiveQueue, Transport, UdDestination,
};

const USAGE: &str = "usage: pingpong rc|uc|ud|srq [-d DEVICE] [-a ADDRESS] [-p PORT] [-m MTU] [-n ROUNDS] [-s BYTES] [SERVER]";
const TIMEOUT: Duration = Duration::from_secs(20);

/// The queue key of rdma-core's programs.
const QKEY: u32 = 0x1111_1111;

/// The length of the route header (GRH) in front of a received datagram.
const GRH_LEN: usize = 40;

/// The number of posted receives.
const RECEIVES: u32 = 64;

/// The number of queue pairs of `ibv_srq_pingpong`, and of the addresses that it exchanges.
const SRQ_QUEUE_PAIRS: usize = 16;
const SRQ_ENDPOINTS: usize = 256;

/// The tag of receives. The tag of a send is the index of its queue pair.
const RECEIVE: u64 = u64::MAX;

/// The initial bytes of the messages of rdma-core's programs.
const RDMA_CORE_BYTES: [u8; 2] = [0, 0x7b];

type Outcome<T> = Result<T, Report>;

fn main() -> Result<(), Report> {
    let options = Options::from_args()?;
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::open_first()?,
    };
    let mut side = Side::new(&device, &options)?;
    side.exchange_endpoints()?;
    let start = Instant::now();
    side.run()?;
    let each = start.elapsed() / options.rounds;
    println!("{} rounds of {} bytes, all bytes correct, {each:?} per round", options.rounds, options.len);
    Ok(())
}

struct Options {
    transport: Transport,
    shared: bool,
    device: Option<String>,
    address: Option<IpAddr>,
    server: Option<String>,
    port: u16,
    mtu: usize,
    rounds: u32,
    len: usize,
}

impl Options {
    fn from_args() -> Outcome<Options> {
        let mut words = std::env::args().skip(1);
        let (transport, shared, len) = match words.next().as_deref() {
            Some("rc") => (Transport::Rc, false, 4096),
            Some("uc") => (Transport::Uc, false, 4096),
            Some("ud") => (Transport::Ud, false, 1024),
            Some("srq") => (Transport::Rc, true, 4096),
            _ => return Err(USAGE.into()),
        };
        let (device, address, server) = (None, None, None);
        let mut options =
            Options { transport, shared, device, address, server, port: 18515, mtu: 1024, rounds: 1000, len };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "-d" => options.device = Some(value()?),
                "-a" => options.address = Some(value()?.parse()?),
                "-p" => options.port = value()?.parse()?,
                "-m" => options.mtu = value()?.parse()?,
                "-n" => options.rounds = value()?.parse()?,
                "-s" => options.len = value()?.parse()?,
                _ if word.starts_with('-') => return Err(USAGE.into()),
                _ => options.server = Some(word),
            }
        }
        Ok(options)
    }
}

/// The queue pairs and their queues.
struct Side<'a> {
    options: &'a Options,
    completions: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    lanes: Vec<Lane>,
    domain: ProtectionDomain,
}

/// A queue pair, and the completions that it waits for before it sends again.
struct Lane {
    queue_pair: QueuePair,
    destination: Option<UdDestination>,
    is_sending: bool,
    is_receiving: bool,
}

impl<'a> Side<'a> {
    fn new(device: &Device, options: &'a Options) -> Outcome<Side<'a>> {
        let domain = device.create_protection_domain()?;
        let count = if options.shared { SRQ_QUEUE_PAIRS } else { 1 };
        let completions = device.completion_queue(RECEIVES + 2 * count as u32).events().create()?;
        let shared = options.shared.then(|| domain.shared_receive_queue(RECEIVES).create()).transpose()?;
        let mut lanes = Vec::new();
        for _ in 0..count {
            let mut builder = domain.queue_pair(options.transport).completion_queue(&completions);
            builder = builder.depth(2, RECEIVES).qkey(QKEY);
            if let Some(address) = options.address {
                builder = builder.local_addr(address);
            }
            if let Some(shared) = &shared {
                builder = builder.shared_receive_queue(shared);
            }
            let queue_pair = builder.create()?;
            lanes.push(Lane { queue_pair, destination: None, is_sending: false, is_receiving: true });
        }
        let side = Side { options, completions, shared, lanes, domain };
        for _ in 0..RECEIVES {
            let len = if options.transport == Transport::Ud { GRH_LEN } else { 0 } + options.len;
            side.post_recv(side.domain.allocate_buffer(len)?)?;
        }
        Ok(side)
    }

    /// Exchanges the endpoints with the peer over TCP, and connects the queue pairs.
    fn exchange_endpoints(&mut self) -> Outcome<()> {
        let ours: Vec<Endpoint> = self.lanes.iter().map(|lane| lane.queue_pair.endpoint()).collect();
        // `ibv_srq_pingpong` always sends a whole table and fills only a part of it.
        let count = if self.options.shared { SRQ_ENDPOINTS } else { 1 };
        let table = || (0..count).map(|at| ours.get(at).unwrap_or(&ours[0]));
        if let Some(server) = &self.options.server {
            let mut stream = TcpStream::connect((server.as_str(), self.options.port))?;
            table().try_for_each(|endpoint| send_endpoint(&mut stream, endpoint))?;
            let theirs = (0..count).map(|_| receive_endpoint(&mut stream)).collect::<Outcome<Vec<_>>>()?;
            self.connect(&theirs)?;
            stream.write_all(b"done\0")?;
            // The client sends first.
            return (0..self.lanes.len()).try_for_each(|at| self.send(at));
        }
        let (mut stream, _) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.options.port))?.accept()?;
        let theirs = (0..count).map(|_| receive_endpoint(&mut stream)).collect::<Outcome<Vec<_>>>()?;
        self.connect(&theirs)?;
        table().try_for_each(|endpoint| send_endpoint(&mut stream, endpoint))?;
        stream.read_exact(&mut [0; 5])?;
        Ok(())
    }

    fn connect(&mut self, theirs: &[Endpoint]) -> Outcome<()> {
        let mtu = PathMtu::at_most(self.options.mtu).ok_or("the minimum MTU is 256")?;
        for (lane, theirs) in self.lanes.iter_mut().zip(theirs) {
            if self.options.transport == Transport::Ud {
                lane.queue_pair.move_to_rts()?;
                lane.destination = Some(lane.queue_pair.create_ud_destination(theirs, QKEY)?);
            } else {
                // The options of rdma-core's programs.
                let options = ConnectOptions::new().mtu(mtu).retry_count(7).max_rd_atomic(1);
                lane.queue_pair.connect_with(theirs, &options)?;
            }
        }
        Ok(())
    }

    /// Sends the next message after each reply, until all rounds are done.
    fn run(&mut self) -> Outcome<()> {
        let (mut sent, mut received) = (0, 0);
        let mut completions = Vec::new();
        while sent < self.options.rounds || received < self.options.rounds {
            if self.completions.poll_timeout(&mut completions, TIMEOUT)? == 0 {
                return Err(format!(
                    "no completion within {TIMEOUT:?}, after {sent} sent and {received} received"
                )
                .into());
            }
            for completion in completions.drain(..) {
                completion.result()?;
                let at = if completion.tag() == RECEIVE {
                    // The first message of rdma-core's client is its own, not an echo.
                    let is_echo = self.options.server.is_some() || received >= self.lanes.len() as u32;
                    received += 1;
                    self.receive(completion, is_echo)?
                } else {
                    sent += 1;
                    let at = completion.tag() as usize;
                    self.lanes[at].is_sending = false;
                    at
                };
                let lane = &self.lanes[at];
                if sent < self.options.rounds && !lane.is_sending && !lane.is_receiving {
                    self.send(at)?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Outcome<()> {
        let mut message = self.domain.allocate_buffer(self.options.len)?;
        (0..).zip(&mut message[..]).for_each(|(index, byte)| *byte = ours(index));
        let lane = &mut self.lanes[at];
        let request = SendRequest::send(message).tag(at as u64);
        let request = match &lane.destination {
            Some(destination) => request.destination(destination),
            None => request,
        };
        lane.queue_pair.post_send(request)?;
        (lane.is_sending, lane.is_receiving) = (true, true);
        Ok(())
    }

    /// Checks a message, and returns the index of the queue pair that received it.
    fn receive(&mut self, completion: Completion, is_echo: bool) -> Outcome<usize> {
        let qpn = completion.qpn().ok_or("the completion has no queue pair number")?;
        let at = self
            .lanes
            .iter()
            .position(|lane| lane.queue_pair.qpn() == qpn)
            .ok_or("the completion is of an unknown queue pair")?;
        let mut message = match self.options.transport {
            Transport::Ud => completion.into_datagram()?.message,
            _ => completion.into_message()?,
        };
        if message.len() != self.options.len {
            return Err(format!("received a message of {} bytes", message.len()).into());
        }
        for (index, byte) in (0..).zip(&message[..]) {
            if *byte != ours(index) && (is_echo || !RDMA_CORE_BYTES.contains(byte)) {
                return Err(format!("byte {index} is {byte:#04x}, not {:#04x}", ours(index)).into());
            }
        }
        self.lanes[at].is_receiving = false;
        message.reset_range();
        self.post_recv(message)?;
        Ok(at)
    }

    /// Posts a receive.
    fn post_recv(&self, buffer: Buffer) -> Outcome<()> {
        let receive = RecvRequest::new(buffer).tag(RECEIVE);
        match &self.shared {
            Some(shared) => shared.post_recv(receive)?,
            None => self.lanes[0].queue_pair.post_recv(receive)?,
        };
        Ok(())
    }
}

/// The byte at an index of a message of this program.
fn ours(index: u32) -> u8 {
    (index % 251) as u8 ^ 0xa5
}

/// Sends the endpoint of a queue pair in the format of rdma-core's programs: hexadecimal, with a zero at the end.
fn send_endpoint(stream: &mut TcpStream, endpoint: &Endpoint) -> Outcome<()> {
    let gid: String = endpoint.gid.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("{:04x}:{:06x}:{:06x}:{gid}\0", endpoint.lid, endpoint.qpn.get(), endpoint.psn.get());
    Ok(stream.write_all(line.as_bytes())?)
}

/// Receives the endpoint of a queue pair.
fn receive_endpoint(stream: &mut TcpStream) -> Outcome<Endpoint> {
    let mut line = *b"0000:000000:000000:00000000000000000000000000000000\0";
    stream.read_exact(&mut line)?;
    let line = std::str::from_utf8(&line)?.trim_end_matches('\0');
    let fields: Vec<&str> = line.split(':').collect();
    let [_, qpn, psn, gid] = fields[..] else { return Err(format!("invalid endpoint {line:?}").into()) };
    let gid = Ipv6Addr::from(u128::from_str_radix(gid, 16)?);
    let (qpn, psn) = (u32::from_str_radix(qpn, 16)?, u32::from_str_radix(psn, 16)?);
    Ok(Endpoint::new(Gid::from(IpAddr::from(gid)), Qpn::truncate(qpn), Psn::wrapping(psn)))
}
