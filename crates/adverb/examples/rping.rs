//! rdma-core's `rping`, in Rust: either side of it talks to either side of that, or to itself, on any device.
//!
//! The client says where its text is (address, key, length); the server READs it, and says so; the client says where it
//! wants it; the server WRITEs it there, and says so; the client compares.
//!
//! ```text
//! $ cargo run --example rping -- -s -a 192.0.2.7 -d soft:192.0.2.7       # or `rping -s -a 192.0.2.7`
//! $ cargo run --example rping -- -c -a 192.0.2.7 -d soft:192.0.2.9 -C 10 # or `rping -c -a 192.0.2.7 -C 10`
//! ```

use std::error::Error;
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

  -s  be the server            -c  be the client
  -a  the server's address     -p  its port (7174)
  -C  how often (as long as the client likes; 10)
  -S  how many bytes of text (64)
  -d  open this device first: a software device (soft:ADDRESS) must be
  -v  show the text";

const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than it takes to repeat a message that wasn't acknowledged a few times.
const LINGER: Duration = Duration::from_millis(500);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match Options::parse().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
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
        // The text begins with a word and ends with a zero.
        if !(32..=1 << 20).contains(&size) {
            return Err("a size from 32 to 1048576 will do".into());
        }
        Ok(Options { server, address: SocketAddr::new(address, port), count, size, device, verbose })
    }
}

fn run(options: &Options) -> Outcome<()> {
    // Software devices at addresses of a network are only used if they are open.
    let _device = options.device.as_deref().map(Device::open).transpose()?;
    let start = Instant::now();
    let rounds = if options.server { serve(options)? } else { ask(options)? };
    println!("{rounds} rounds of {} bytes in {:?}", options.size, start.elapsed());
    Ok(())
}

fn serve(options: &Options) -> Outcome<usize> {
    let listener = Listener::bind(options.address)?;
    println!("listening at {}", listener.local_addr());
    let request = listener.accept()?;
    let (queue_pair, mut desk) = Desk::new(request.path())?;
    let connection = request.accept(queue_pair, b"")?;
    println!("{}", connection.path());
    let mut rounds = 0;
    while options.count.is_none_or(|count| rounds < count) {
        let Some(source) = desk.next_place(&connection)? else { break };
        let text = desk.domain.buffer(source.length.min(options.size))?;
        let read = desk.post(&connection, SendRequest::read(text, source.place))?;
        read.success()?;
        let text = read.into_buffer().ok_or("a READ gives its buffer back")?;
        if options.verbose {
            println!("{}", String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(&text)));
        }
        desk.say(&connection, &[0; PLACE])?;
        let Some(sink) = desk.next_place(&connection)? else { break };
        if sink.length < text.len() {
            return Err("the client's text is longer than the place for it".into());
        }
        desk.post(&connection, SendRequest::write(text, sink.place))?.success()?;
        let said = desk.say(&connection, &[0; PLACE]);
        rounds += 1;
        if let Err(error) = said {
            // A client that has all it wants leaves at once, and its last acknowledgement may have been lost.
            match connection.wait_event(LINGER)? {
                Some(ConnectionEvent::Disconnected) => break,
                _ => return Err(error),
            }
        }
    }
    Ok(rounds)
}

fn ask(options: &Options) -> Outcome<usize> {
    let mut desk = None;
    let connector = Connector::new().timeout(PATIENCE);
    let connection = connector.connect(options.address, |path| {
        let (queue_pair, made) = Desk::new(path)?;
        desk = Some(made);
        Ok(queue_pair)
    })?;
    println!("{}", connection.path());
    let mut desk = desk.expect("it goes with the queue pair");
    let size = options.size;
    let source = desk.domain.region(size, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let sink = desk.domain.region(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let rounds = options.count.unwrap_or(10);
    for round in 0..rounds {
        let text = text(round, size);
        source.write(0, &text)?;
        sink.write(0, &vec![0; size])?;
        for region in [&source, &sink] {
            desk.say(&connection, &Place { place: region.remote().at(0), length: size }.to_bytes())?;
            desk.next(&connection)?.ok_or("the server has gone")?;
        }
        let mut back = vec![0; size];
        sink.read(0, &mut back)?;
        if back != text {
            return Err(format!("in round {round} something else came back").into());
        }
        if options.verbose {
            println!("{}", String::from_utf8_lossy(&back[..size - 1]));
        }
    }
    // Should our last acknowledgement be lost, the server will want another.
    thread::sleep(LINGER);
    connection.close(PATIENCE)?;
    Ok(rounds)
}

/// What the client sends in a round, as rdma-core's does: printable, and a zero at the end.
fn text(round: usize, size: usize) -> Vec<u8> {
    let letters = (b'A'..=b'z').cycle().skip(round % 58);
    let mut text: Vec<u8> = format!("rdma-ping-{round}: ").into_bytes();
    text.extend(letters.take(size.saturating_sub(text.len())));
    text[size - 1] = 0;
    text
}

/// Where a text is, or is to be.
struct Place {
    place: RemoteAddress,
    length: usize,
}

/// The bytes of a message that says so: address, key and length, the most significant byte first.
const PLACE: usize = 16;

impl Place {
    fn to_bytes(&self) -> [u8; PLACE] {
        let mut bytes = [0; PLACE];
        bytes[..8].copy_from_slice(&self.place.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.place.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&(self.length as u32).to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Outcome<Place> {
        let (addr, rest) = bytes.split_first_chunk().ok_or("a message is too short")?;
        let (rkey, rest) = rest.split_first_chunk().ok_or("a message is too short")?;
        let length = rest.first_chunk().ok_or("a message is too short")?;
        let place = RemoteAddress { addr: u64::from_be_bytes(*addr), rkey: u32::from_be_bytes(*rkey) };
        Ok(Place { place, length: u32::from_be_bytes(*length) as usize })
    }
}

/// What goes with a queue pair: where its requests complete, and the receive that it has.
struct Desk {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Desk {
    fn new(path: &Path) -> Result<(QueuePair, Desk), adverb::Error> {
        let device = path.device()?;
        let domain = device.protection_domain()?;
        let completions = device.completion_queue(16).events().create()?;
        let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()?;
        let receiving = queue_pair.post_recv(domain.buffer(PLACE)?)?;
        Ok((queue_pair, Desk { domain, completions, receiving }))
    }

    fn post(&self, connection: &Connection, request: SendRequest) -> Outcome<Completion> {
        let id = connection.queue_pair().post_send(request)?;
        Ok(self.completions.wait(id, PATIENCE)?)
    }

    fn say(&self, connection: &Connection, message: &[u8; PLACE]) -> Outcome<()> {
        let mut buffer = self.domain.buffer(PLACE)?;
        buffer.copy_from_slice(message);
        self.post(connection, SendRequest::send(buffer))?.success()?;
        Ok(())
    }

    /// The next message, or `None` if the peer has gone.
    fn next(&mut self, connection: &Connection) -> Outcome<Option<Vec<u8>>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if connection.try_event()? == Some(ConnectionEvent::Disconnected) {
                return Ok(None);
            }
            match self.completions.wait(self.receiving, Duration::from_millis(100)) {
                Err(adverb::Error::Timeout { .. }) if Instant::now() < deadline => {}
                Err(adverb::Error::Timeout { .. }) => {
                    return Err(format!("the peer has said nothing for {PATIENCE:?}").into());
                }
                Err(error) => return Err(error.into()),
                Ok(completion) => {
                    let message = completion.into_message()?.to_vec();
                    self.receiving = connection.queue_pair().post_recv(self.domain.buffer(PLACE)?)?;
                    return Ok(Some(message));
                }
            }
        }
    }

    fn next_place(&mut self, connection: &Connection) -> Outcome<Option<Place>> {
        self.next(connection)?.map(|message| Place::from_bytes(&message)).transpose()
    }
}
