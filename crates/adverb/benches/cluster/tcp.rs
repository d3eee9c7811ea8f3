//! Calls as length-prefixed messages over tokio's TCP.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::meter::Meter;
use crate::peer::{self, Peer};
use crate::{Outcome, TIMEOUT};

/// The length of the prefix.
const PREFIX: usize = 4;

/// The way in which a side writes several messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writes {
    /// With one call: all that it has, when the received bytes are consumed.
    Coalesced,
    /// With a call for each.
    Single,
}

/// A stream of length-prefixed messages, with buffers for both directions.
struct Framed {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    received: Vec<u8>,
    /// The range of the received bytes that were not consumed.
    unread: std::ops::Range<usize>,
    unsent: Vec<u8>,
    writes: Writes,
}

impl Framed {
    fn new(stream: TcpStream, writes: Writes) -> Outcome<Framed> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let (received, unsent) = (vec![0; 64 << 10], Vec::with_capacity(64 << 10));
        Ok(Framed { reader, writer, received, unread: 0..0, unsent, writes })
    }

    /// Takes a message that was received already, and returns its range.
    fn take(&mut self) -> Option<std::ops::Range<usize>> {
        let unread = &self.received[self.unread.clone()];
        let (prefix, rest) = unread.split_first_chunk::<PREFIX>()?;
        let len = u32::from_be_bytes(*prefix) as usize;
        if rest.len() < len {
            return None;
        }
        let start = self.unread.start + PREFIX;
        self.unread.start = start + len;
        Some(start..start + len)
    }

    /// Receives bytes, and returns `false` at the end of the stream.
    async fn fill(&mut self) -> Outcome<bool> {
        self.received.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let count = self.reader.read(&mut self.received[self.unread.end..]).await?;
        self.unread.end += count;
        Ok(count > 0)
    }

    /// Sends a message, now or with the next flush.
    async fn send(&mut self, message: &[u8]) -> Outcome {
        push(&mut self.unsent, message);
        if self.writes == Writes::Single { self.flush().await } else { Ok(()) }
    }

    /// Sends a message that was received, now or with the next flush.
    async fn echo(&mut self, message: std::ops::Range<usize>) -> Outcome {
        push(&mut self.unsent, &self.received[message]);
        if self.writes == Writes::Single { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Outcome {
        if !self.unsent.is_empty() {
            self.writer.write_all(&self.unsent).await?;
            self.unsent.clear();
        }
        Ok(())
    }
}

/// Appends a message and its length.
fn push(unsent: &mut Vec<u8>, message: &[u8]) {
    unsent.extend_from_slice(&(message.len() as u32).to_be_bytes());
    unsent.extend_from_slice(message);
}

fn runtime() -> Outcome<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Makes calls, with a number of them outstanding.
pub(crate) fn call(peer: &mut Peer, time: Duration, outstanding: usize, writes: Writes) -> Outcome {
    let address = peer.receive_line()?;
    let calls = async {
        let mut framed = Framed::new(TcpStream::connect(address).await?, writes)?;
        let mut meter = Meter::new(time);
        for _ in 0..outstanding {
            framed.send(&meter.request(meter.now())).await?;
        }
        let mut waiting = outstanding;
        while waiting > 0 {
            framed.flush().await?;
            if !framed.fill().await? {
                return Err("the peer closed the connection".into());
            }
            while let Some(reply) = framed.take() {
                waiting -= 1;
                if let Some(request) = meter.count(&framed.received[reply])? {
                    framed.send(&request).await?;
                    waiting += 1;
                }
            }
        }
        meter.print_calls()
    };
    runtime()?.block_on(async { tokio::time::timeout(time + TIMEOUT, calls).await? })
}

/// Answers calls until the client closes the connection.
pub(crate) fn answer(address: &str, writes: Writes) -> Outcome {
    runtime()?.block_on(async {
        let listener = TcpListener::bind((address, 0)).await?;
        peer::send_line(&listener.local_addr()?.to_string());
        let (stream, _) = listener.accept().await?;
        let mut framed = Framed::new(stream, writes)?;
        while framed.fill().await? {
            while let Some(request) = framed.take() {
                framed.echo(request).await?;
            }
            framed.flush().await?;
        }
        Ok(())
    })
}
