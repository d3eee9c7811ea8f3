//! Two queue pairs of one device play ping-pong over a reliable connection.
//!
//! ```text
//! $ cargo run --release --example rc_pingpong -- [DEVICE]
//! ```

use std::time::{Duration, Instant};

use adverb::memory::Buffer;
use adverb::verbs::{CompletionQueue, Device, QueuePair, RequestId, SendRequest, Transport};

const ROUNDS: u32 = 1000;
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::first()?,
    };
    let mut left = Player::new(&device)?;
    let mut right = Player::new(&device)?;
    // Two processes would tell each other their endpoints over TCP, say.
    left.queue_pair.connect(&right.queue_pair.endpoint())?;
    right.queue_pair.connect(&left.queue_pair.endpoint())?;

    let start = Instant::now();
    let mut ball = left.domain_buffer(64)?;
    ball.copy_from_slice(&[b'.'; 64]);
    for round in 0..ROUNDS {
        ball[0] = round.to_le_bytes()[0];
        ball = left.send(ball)?;
        let ping = right.receive()?;
        assert_eq!(ping[..], ball[..]);
        let pong = right.send(ping)?;
        right.offer(pong)?;
        let back = left.receive()?;
        left.offer(back)?;
    }
    println!("{}: {ROUNDS} rounds, {:?} each", device.name(), start.elapsed() / ROUNDS);
    Ok(())
}

struct Player {
    queue_pair: QueuePair,
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Player {
    fn new(device: &Device) -> Result<Player, adverb::Error> {
        let domain = device.protection_domain()?;
        let completions = device.completion_queue(8).events().create()?;
        let queue_pair =
            domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(4, 4).create()?;
        let receiving = queue_pair.post_recv(domain.buffer(64)?)?;
        Ok(Player { queue_pair, completions, receiving })
    }

    fn domain_buffer(&self, len: usize) -> Result<Buffer, adverb::Error> {
        self.queue_pair.protection_domain().buffer(len)
    }

    /// Sends the ball, and waits until it may be used again.
    fn send(&self, ball: Buffer) -> Result<Buffer, adverb::Error> {
        let id = self.queue_pair.post_send(SendRequest::send(ball))?;
        let completion = self.completions.wait(id, PATIENCE)?;
        completion.success()?;
        Ok(completion.into_buffer().expect("it had one"))
    }

    /// Waits for a message.
    fn receive(&self) -> Result<Buffer, adverb::Error> {
        self.completions.wait(self.receiving, PATIENCE)?.into_message()
    }

    /// Gives the device a place for the next message.
    fn offer(&mut self, buffer: Buffer) -> Result<(), adverb::Error> {
        self.receiving = self.queue_pair.post_recv(buffer)?;
        Ok(())
    }
}
