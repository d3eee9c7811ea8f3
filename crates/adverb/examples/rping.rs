//! rdma-core's `rping` in Rust, for any device. Each side interoperates with the original.
//!
//! In each round the client sends the address, key and length of its text. The server READs the text and confirms. The
//! client sends the address of a second buffer. The server WRITEs the text there and confirms, and the client compares.
//!
//! ```text
//! $ cargo run --example rping -- -s -a 192.0.2.7 -d soft:192.0.2.7       # or `rping -s -a 192.0.2.7`
//! $ cargo run --example rping -- -c -a 192.0.2.7 -d soft:192.0.2.9 -C 10 # or `rping -c -a 192.0.2.7 -C 10`
//! ```

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use adverb::verbs::cm::{Connection, ConnectionEvent, Connector, Listener, Path};
use adverb::verbs::{
    Access, Completion, CompletionQueue, Device, ProtectionDomain, QueuePair, RemoteAddress, RequestId,
    SendRequest,
};

const USAGE: &str = "rping -s|-c -a ADDRESS [-p PORT] [-C COUNT] [-S SIZE] [-d DEVICE] [-v]

  -s  run as server            -c  run as client
  -a  address of the server    -p  port of the server (default 7174)
  -C  number of rounds (default: until the client disconnects; client: 10)
  -S  length of the text in bytes (default 64)
  -d  open this device first: needed for a software device (soft:ADDRESS)
  -v  print the text";

const TIMEOUT: Duration = Duration::from_secs(30);

/// Longer than a few retransmissions of an unacknowledged message.
const LINGER: Duration = Duration::from_millis(500);

type Outcome<T> = Result<T, adverb::Report>;

fn main() -> ExitCode {
    match Options::parse().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    server: bool,
    address: SocketAddr,
    count: Option<usize>,
    size: usize,
    device: Option<String>,
    verbose: bool,
}

impl Options {
    fn parse() -> Outcome<Options> {
        let (mut server, mut address, mut port, mut verbose) = (None, None, 7174, false);
        let (mut count, mut size, mut device) = (None, 64, None);
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "-s" => server = Some(true),
                "-c" => server = Some(false),
                "-v" => verbose = true,
                "-a" => address = Some(value()?.parse::<IpAddr>()?),
                "-p" => port = value()?.parse()?,
                "-C" => count = Some(value()?.parse()?),
                "-S" => size = value()?.parse()?,
                "-d" => device = Some(value()?),
                _ => return Err(USAGE.into()),
            }
        }
        let (Some(server), Some(address)) = (server, address) else { return Err(USAGE.into()) };
        // The text starts with a word and ends with a zero.
        if !(32..=1 << 20).contains(&size) {
            return Err("the size must be 32 to 1048576".into());
        }
        Ok(Options { server, address: SocketAddr::new(address, port), count, size, device, verbose })
    }
}

fn run(options: &Options) -> Outcome<()> {
    // The connection manager uses a software device at a network address only if it is open.
    let _device = options.device.as_deref().map(Device::open).transpose()?;
    let start = Instant::now();
    let rounds = if options.server { serve(options)? } else { run_client(options)? };
    println!("{rounds} rounds of {} bytes in {:?}", options.size, start.elapsed());
    Ok(())
}

fn serve(options: &Options) -> Outcome<usize> {
    let listener = Listener::bind(options.address)?;
    println!("listening at {}", listener.local_addr());
    let request = listener.accept()?;
    let (queue_pair, mut side) = Side::new(request.path())?;
    let connection = request.accept(queue_pair, b"")?;
    println!("{}", connection.path());
    let mut rounds = 0;
    while options.count.is_none_or(|count| rounds < count) {
        let Some(source) = side.next_buffer(&connection)? else { break };
        let text = side.domain.allocate_buffer(source.length.min(options.size))?;
        let read = side.post(&connection, SendRequest::read(text, source.addr))?;
        read.result()?;
        let text = read.into_buffer().ok_or("the READ returned no buffer")?;
        if options.verbose {
            println!("{}", String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(&text)));
        }
        side.send(&connection, &[0; MESSAGE_LEN])?;
        let Some(sink) = side.next_buffer(&connection)? else { break };
        if sink.length < text.len() {
            return Err("the client's second buffer is too short for its text".into());
        }
        side.post(&connection, SendRequest::write(text, sink.addr))?.result()?;
        let sent = side.send(&connection, &[0; MESSAGE_LEN]);
        rounds += 1;
        if let Err(error) = sent {
            // A client disconnects right after its last round. Its last acknowledgement may be lost, and its disconnect
            // request too: rdma-core's client doesn't repeat it. Only the client knows whether the last confirmation arrived.
            let is_last = options.count == Some(rounds);
            if !is_last && connection.wait_event(LINGER)? != Some(ConnectionEvent::Disconnected) {
                return Err(error);
            }
            break;
        }
    }
    Ok(rounds)
}

fn run_client(options: &Options) -> Outcome<usize> {
    let mut side = None;
    let connector = Connector::new().timeout(TIMEOUT);
    let connection = connector.connect(options.address, |path| {
        let (queue_pair, created) = Side::new(path)?;
        side = Some(created);
        Ok(queue_pair)
    })?;
    println!("{}", connection.path());
    let mut side = side.expect("created with the queue pair");
    let size = options.size;
    let source = side.domain.allocate_region(size, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let sink = side.domain.allocate_region(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let rounds = options.count.unwrap_or(10);
    for round in 0..rounds {
        let text = text(round, size);
        source.write(0, &text)?;
        sink.write(0, &vec![0; size])?;
        for region in [&source, &sink] {
            side.send(&connection, &RemoteBuffer { addr: region.remote().at(0), length: size }.to_bytes())?;
            side.next(&connection)?.ok_or("the server has disconnected")?;
        }
        let mut back = vec![0; size];
        sink.read(0, &mut back)?;
        if back != text {
            return Err(format!("round {round}: received different bytes").into());
        }
        if options.verbose {
            println!("{}", String::from_utf8_lossy(&back[..size - 1]));
        }
    }
    // If the last acknowledgement is lost, the server retransmits and needs another.
    thread::sleep(LINGER);
    connection.close(TIMEOUT)?;
    Ok(rounds)
}

/// The text of a round, as in rdma-core's rping: printable, with a zero at the end.
fn text(round: usize, size: usize) -> Vec<u8> {
    let letters = (b'A'..=b'z').cycle().skip(round % 58);
    let mut text: Vec<u8> = format!("rdma-ping-{round}: ").into_bytes();
    text.extend(letters.take(size.saturating_sub(text.len())));
    text[size - 1] = 0;
    text
}

/// The peer's buffer that a text is read from or written to.
struct RemoteBuffer {
    addr: RemoteAddress,
    length: usize,
}

/// The length of a message with a place: address, key and length, in network byte order.
const MESSAGE_LEN: usize = 16;

impl RemoteBuffer {
    fn to_bytes(&self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[..8].copy_from_slice(&self.addr.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.addr.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&(self.length as u32).to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Outcome<RemoteBuffer> {
        let (addr, rest) = bytes.split_first_chunk().ok_or("the message is too short")?;
        let (rkey, rest) = rest.split_first_chunk().ok_or("the message is too short")?;
        let length = rest.first_chunk().ok_or("the message is too short")?;
        let addr = RemoteAddress { addr: u64::from_be_bytes(*addr), rkey: u32::from_be_bytes(*rkey) };
        Ok(RemoteBuffer { addr, length: u32::from_be_bytes(*length) as usize })
    }
}

/// The completion queue of a queue pair, and the receive that is posted to it.
struct Side {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Side {
    fn new(path: &Path) -> Result<(QueuePair, Side), adverb::verbs::Error> {
        let device = path.open_device()?;
        let domain = device.create_protection_domain()?;
        let completions = device.completion_queue(16).events().create()?;
        let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()?;
        let receiving = queue_pair.post_recv(domain.allocate_buffer(MESSAGE_LEN)?)?;
        Ok((queue_pair, Side { domain, completions, receiving }))
    }

    fn post(&self, connection: &Connection, request: SendRequest) -> Outcome<Completion> {
        let id = connection.queue_pair().post_send(request)?;
        Ok(self.completions.wait(id, TIMEOUT)?)
    }

    fn send(&self, connection: &Connection, message: &[u8; MESSAGE_LEN]) -> Outcome<()> {
        let mut buffer = self.domain.allocate_buffer(MESSAGE_LEN)?;
        buffer.copy_from_slice(message);
        self.post(connection, SendRequest::send(buffer))?.result()?;
        Ok(())
    }

    /// Waits for the next message. Returns `None` if the peer has disconnected.
    fn next(&mut self, connection: &Connection) -> Outcome<Option<Vec<u8>>> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if connection.try_event()? == Some(ConnectionEvent::Disconnected) {
                return Ok(None);
            }
            match self.completions.wait(self.receiving, Duration::from_millis(100)) {
                Err(adverb::verbs::Error::TimedOut { .. }) if Instant::now() < deadline => {}
                Err(adverb::verbs::Error::TimedOut { .. }) => {
                    return Err(format!("no message from the peer within {TIMEOUT:?}").into());
                }
                Err(error) => return Err(error.into()),
                Ok(completion) => {
                    let message = completion.into_message()?.to_vec();
                    self.receiving =
                        connection.queue_pair().post_recv(self.domain.allocate_buffer(MESSAGE_LEN)?)?;
                    return Ok(Some(message));
                }
            }
        }
    }

    fn next_buffer(&mut self, connection: &Connection) -> Outcome<Option<RemoteBuffer>> {
        self.next(connection)?.map(|message| RemoteBuffer::from_bytes(&message)).transpose()
    }
}
