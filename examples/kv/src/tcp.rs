//! The same server and client over TCP, for comparison.
//!
//! A frame has its length (4 bytes) and then, in a request, the method (2 bytes) and the request, or, in a reply, the
//! reply. Replies have the order of their requests. Both sides process all frames that a system call has received
//! before the next system call.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use adverb::cluster::ArenaError;
use adverb::verbs::SoftDevice;

use crate::client::{KvError, Outcome};
use crate::load::Connection;
use crate::protocol::{self, Status};
use crate::store::{Store, StoreConfig};

const READ_SIZE: usize = 64 << 10;
/// The maximum length of a frame. A connection with a longer one is closed.
const MAX_FRAME: usize = 1 << 20;

/// Creates a store whose memory no peer can access.
///
/// # Errors
///
/// Returns an error if the memory can't be allocated.
pub fn new_store(config: &StoreConfig) -> Result<Store, ArenaError> {
    let domain = SoftDevice::loopback().open()?.create_protection_domain()?;
    Store::new(config, 1, 0, 0, &[domain])
}

/// Accepts connections, and serves each in a thread.
///
/// # Errors
///
/// Returns an error if accepting failed.
pub fn serve(listener: &TcpListener, store: &Arc<Store>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let store = Arc::clone(store);
        std::thread::spawn(move || serve_connection(stream, &store));
    }
}

/// Serves a connection until it ends.
///
/// # Errors
///
/// Returns the error that ended it, or `Ok` if the peer closed it.
pub fn serve_connection(mut stream: TcpStream, store: &Store) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut output, mut reply) = (Frames::default(), Vec::new(), Vec::new());
    while input.fill(&mut stream)? {
        let now = Instant::now();
        while let Some(frame) = input.next_frame()? {
            let (method, request) = frame.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
            if !store.handle(u16::from_le_bytes(*method), request, now, &mut reply) {
                reply = vec![Status::Invalid as u8];
            }
            output.extend_from_slice(&(reply.len() as u32).to_le_bytes());
            output.extend_from_slice(&reply);
        }
        stream.write_all(&output)?;
        output.clear();
    }
    Ok(())
}

/// Received bytes, as frames.
#[derive(Default, Debug)]
struct Frames {
    bytes: Vec<u8>,
    /// The start of the next frame.
    start: usize,
    /// The end of the received bytes.
    end: usize,
}

impl Frames {
    /// Receives bytes. Returns `false` if the peer has closed the connection.
    fn fill(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.bytes.len() < self.end + READ_SIZE {
            self.bytes.resize(self.end + READ_SIZE, 0);
        }
        let received = stream.read(&mut self.bytes[self.end..])?;
        self.end += received;
        Ok(received > 0)
    }

    /// Returns the next frame, if all of it was received.
    fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let Some((len, rest)) = self.bytes[self.start..self.end].split_first_chunk() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > MAX_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        self.start += 4 + len;
        Ok(Some(frame))
    }
}

/// A client over TCP.
#[derive(Debug)]
pub struct TcpClient {
    stream: TcpStream,
    input: Frames,
    output: Vec<u8>,
    request: Vec<u8>,
    /// The tags of outstanding requests, and whether they are GETs.
    outstanding: VecDeque<(u64, bool)>,
    /// The address of the server, for errors.
    server: String,
}

impl TcpClient {
    /// Connects to a server.
    ///
    /// # Errors
    ///
    /// Returns an error if the server can't be reached.
    pub fn connect(addr: SocketAddr) -> io::Result<TcpClient> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        let (input, output, request) = (Frames::default(), Vec::new(), Vec::new());
        let (outstanding, server) = (VecDeque::new(), addr.to_string());
        Ok(TcpClient { stream, input, output, request, outstanding, server })
    }

    fn start(&mut self, method: u16, key: &[u8], value: &[u8], tag: u64) {
        protocol::encode_request(&mut self.request, key, value);
        self.output.extend_from_slice(&(self.request.len() as u32 + 2).to_le_bytes());
        self.output.extend_from_slice(&method.to_le_bytes());
        self.output.extend_from_slice(&self.request);
        self.outstanding.push_back((tag, method == protocol::GET));
    }
}

impl Connection for TcpClient {
    fn start_get(&mut self, key: &[u8], tag: u64) -> Result<(), KvError> {
        self.start(protocol::GET, key, b"", tag);
        Ok(())
    }

    fn start_put(&mut self, key: &[u8], value: &[u8], tag: u64) -> Result<(), KvError> {
        self.start(protocol::PUT, key, value, tag);
        Ok(())
    }

    fn advance(&mut self, handler: &mut dyn FnMut(u64, Result<Outcome<'_>, KvError>)) -> Result<(), KvError> {
        let TcpClient { stream, input, output, outstanding, server, .. } = self;
        let session_ended = |_| KvError::SessionEnded { server: server.clone() };
        stream.write_all(output).map_err(session_ended)?;
        output.clear();
        if !input.fill(stream).map_err(session_ended)? {
            return Err(KvError::SessionEnded { server: server.clone() });
        }
        while let Some(frame) = input.next_frame().map_err(session_ended)? {
            let Some((tag, is_get)) = outstanding.pop_front() else { break };
            let result = match protocol::parse_reply(frame) {
                Some((Status::Ok, value)) if is_get => Ok(Outcome::Value(value)),
                Some((Status::Ok, _)) => Ok(Outcome::Stored),
                Some((Status::Missing, _)) => Ok(Outcome::Missing),
                Some((Status::Full, _)) => Err(KvError::Full { server: server.clone() }),
                _ => Err(KvError::Refused { server: server.clone() }),
            };
            handler(tag, result);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{self, LoadConfig, Mix};

    #[test]
    fn a_load_over_tcp_finds_its_values() {
        let config = StoreConfig { memory: 4 << 20, buckets: 256, ..StoreConfig::default() };
        let store = Arc::new(new_store(&config).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || serve_connection(listener.accept().unwrap().0, &store));
        let mut client = TcpClient::connect(addr).unwrap();
        let load =
            LoadConfig { mix: Mix::A, keys: 500, value_len: 100, operations: 5000, window: 32, seed: 1 };
        load::fill(&mut client, &load).unwrap();
        let report = load::run(&mut client, &load).unwrap();
        assert_eq!((report.succeeded, report.missing, report.failed), (5000, 0, 0));
        drop(client);
        server.join().unwrap().unwrap();
    }
}
