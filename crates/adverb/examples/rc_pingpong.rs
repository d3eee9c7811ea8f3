//! Two queue pairs of one device send a message back and forth over a reliable connection.
//!
//! ```text
//! $ cargo run --release --example rc_pingpong -- [DEVICE]
//! ```

use std::time::{Duration, Instant};

use adverb::Report;
use adverb::memory::Buffer;
use adverb::verbs::{
    CompletionQueue, Device, ProtectionDomain, QueuePair, RequestId, SendRequest, Transport,
};

const ROUNDS: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> Result<(), Report> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::open_first()?,
    };
    let domain = device.create_protection_domain()?;
    let mut left = Side::new(&domain)?;
    let mut right = Side::new(&domain)?;
    // Two processes would exchange their endpoints, for example over TCP.
    left.queue_pair.connect(&right.queue_pair.endpoint())?;
    right.queue_pair.connect(&left.queue_pair.endpoint())?;

    let mut payload = domain.allocate_buffer(64)?;
    let start = Instant::now();
    for round in 0..ROUNDS {
        payload[..4].copy_from_slice(&round.to_le_bytes());
        payload = left.send(payload)?;
        let ping = right.receive()?;
        assert_eq!(ping[..], payload[..]);
        let pong = right.send(ping)?;
        right.post_recv(pong)?;
        let back = left.receive()?;
        left.post_recv(back)?;
    }
    println!("{}: {ROUNDS} rounds, {:?} per round", device.name(), start.elapsed() / ROUNDS);
    Ok(())
}

struct Side {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Side {
    fn new(domain: &ProtectionDomain) -> adverb::verbs::Result<Side> {
        let completions = domain.device().completion_queue(8).events().create()?;
        let queue_pair =
            domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(4, 4).create()?;
        // The receive of the first message must be posted before the peer sends.
        let receiving = queue_pair.post_recv(domain.allocate_buffer(64)?)?;
        Ok(Side { queue_pair, completions, receiving })
    }

    /// Sends a buffer. The request owns it until the completion returns it.
    fn send(&self, payload: Buffer) -> adverb::verbs::Result<Buffer> {
        let id = self.queue_pair.post_send(SendRequest::send(payload))?;
        let completion = self.completions.wait(id, TIMEOUT)?;
        completion.result()?;
        Ok(completion.into_buffer().expect("the request had a buffer"))
    }

    /// Waits for a message.
    fn receive(&self) -> adverb::verbs::Result<Buffer> {
        self.completions.wait(self.receiving, TIMEOUT)?.into_message()
    }

    /// Posts a receive for the next message.
    fn post_recv(&mut self, buffer: Buffer) -> adverb::verbs::Result<()> {
        self.receiving = self.queue_pair.post_recv(buffer)?;
        Ok(())
    }
}
