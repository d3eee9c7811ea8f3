//! An echo server and client that connect their queue pairs by IP address and port, with the connection manager.
//!
//! ```text
//! $ cargo run --example cm_echo -- listen 192.0.2.7:7471
//! $ cargo run --example cm_echo -- 192.0.2.7:7471 "any text"
//! ```

use std::time::Duration;

use adverb::Report;
use adverb::memory::Buffer;
use adverb::verbs::cm::{Connection, Connector, Listener, Path};
use adverb::verbs::{CompletionQueue, QueuePair, RequestId, SendRequest};

const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> Result<(), Report> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => {
            let listener = Listener::bind(address.parse()?)?;
            println!("listening at {}", listener.local_addr());
            loop {
                let request = listener.accept()?;
                println!("{}", request.path());
                let (queue_pair, side) = Side::new(request.path())?;
                let connection = request.accept(queue_pair, b"echo")?;
                if let Err(error) = side.echo(&connection) {
                    println!("{error}");
                }
            }
        }
        [address, text] => {
            let mut side = None;
            let connection = Connector::new().timeout(TIMEOUT).connect(address.parse()?, |path| {
                let (queue_pair, created) = Side::new(path)?;
                side = Some(created);
                Ok(queue_pair)
            })?;
            let side = side.expect("created with the queue pair");
            let mut message = connection.queue_pair().protection_domain().allocate_buffer(text.len())?;
            message.copy_from_slice(text.as_bytes());
            side.send(&connection, message)?;
            let answer = side.completions.wait(side.receiving, TIMEOUT)?.into_message()?;
            println!("{}: {}", connection.path(), String::from_utf8_lossy(&answer));
            connection.close(TIMEOUT)?;
            Ok(())
        }
        _ => Err("usage: cm_echo listen ADDRESS:PORT | cm_echo ADDRESS:PORT TEXT".into()),
    }
}

/// The completion queue of a queue pair, and the receive that is posted to it.
struct Side {
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Side {
    fn new(path: &Path) -> Result<(QueuePair, Side), adverb::verbs::Error> {
        let device = path.open_device()?;
        let domain = device.create_protection_domain()?;
        let completions = device.completion_queue(8).events().create()?;
        let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()?;
        let receiving = queue_pair.post_recv(domain.allocate_buffer(4096)?)?;
        Ok((queue_pair, Side { completions, receiving }))
    }

    fn send(&self, connection: &Connection, message: Buffer) -> Result<(), adverb::verbs::Error> {
        let id = connection.queue_pair().post_send(SendRequest::send(message))?;
        self.completions.wait(id, TIMEOUT)?.result()?;
        Ok(())
    }

    /// Sends the first message back, and waits until the peer disconnects.
    fn echo(&self, connection: &Connection) -> Result<(), adverb::verbs::Error> {
        let message = self.completions.wait(self.receiving, TIMEOUT)?.into_message()?;
        self.send(connection, message)?;
        match connection.wait_event(TIMEOUT)? {
            Some(event) => println!("{event:?}"),
            None => println!("the peer did not disconnect within {TIMEOUT:?}"),
        }
        Ok(())
    }
}
