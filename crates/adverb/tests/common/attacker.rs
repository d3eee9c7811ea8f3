//! Peers that speak the protocol over a queue pair of their own, and violate it.

#![allow(dead_code, reason = "each test uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::memory::MemoryRegion;
use adverb::net::Options;
use adverb::net::blocking::{Connection, Listener};
use adverb::verbs::{
    Access, Device, Endpoint, Gid, Psn, Qpn, RecvRequest, RemoteAddress, SendRequest, Status,
};

use crate::common::{End, TIMEOUT};
use crate::greeting::greeting;

/// The queue pair of an attacker, and the listener's greeting.
pub(crate) struct Attacker {
    pub(crate) end: End,
    /// Kept open: closing it would end the handshake.
    _stream: TcpStream,
    pub(crate) server_greeting: Vec<u8>,
}

pub(crate) const RECEIVE: u64 = 99;

impl Attacker {
    /// Sends a greeting to a listener, and connects to the queue pair in the listener's greeting.
    pub(crate) fn new(
        device: &Device,
        address: SocketAddr,
        greet: impl FnOnce(Endpoint) -> Vec<u8>,
    ) -> Attacker {
        let end = End::new(device, 8, false);
        for _ in 0..4 {
            end.queue_pair.post_recv(RecvRequest::new(end.buffer(0, 4096)).tag(RECEIVE)).unwrap();
        }
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(&greet(end.queue_pair.endpoint())).unwrap();
        let mut server_greeting = vec![0; 16];
        stream.read_exact(&mut server_greeting).unwrap();
        assert_eq!(
            server_greeting[..11],
            *b"adverb\r\n\x02\x00\x01",
            "{}",
            String::from_utf8_lossy(&server_greeting)
        );
        let mut body = vec![0; usize::from(server_greeting[12])];
        stream.read_exact(&mut body).unwrap();
        server_greeting.extend(body);
        let word = |at: usize| u32::from_le_bytes(server_greeting[at..at + 4].try_into().unwrap());
        let gid = Gid::new(server_greeting[16..32].try_into().unwrap());
        let peer = Endpoint::new(gid, Qpn::new(word(36)).unwrap(), Psn::new(word(40)).unwrap());
        end.queue_pair.connect(&peer).unwrap();
        Attacker { end, _stream: stream, server_greeting }
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Option<Status> {
        let mut buffer = self.end.domain.allocate_buffer(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        self.end.run(SendRequest::send(buffer)).outcome().err().map(|failure| failure.status)
    }

    /// Returns the message that arrives within this time.
    pub(crate) fn receive_within(&self, time: Duration) -> Option<Vec<u8>> {
        let (start, mut done) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            self.end.completions.poll(&mut done).unwrap();
            for completion in done.drain(..) {
                if completion.tag() == RECEIVE && completion.is_ok() {
                    return Some(completion.into_message().unwrap().to_vec());
                }
            }
            sleep(Duration::from_millis(10));
        }
        None
    }
}

/// A connected peer that violates the protocol.
pub(crate) struct HostilePeer {
    pub(crate) attacker: Attacker,
    /// The hello of the listener.
    pub(crate) hello: Vec<u8>,
    /// Registered while the listener writes to it.
    _ring: MemoryRegion,
    /// The number of bytes written to the listener's ring.
    written: u64,
}

impl HostilePeer {
    pub(crate) fn new(device: &Device, options: &Options) -> (Connection, HostilePeer) {
        let listener = Listener::builder().options(options).bind("127.0.0.1:0").unwrap();
        let (server, attacker, ring) = scope(|scope| {
            let server = scope.spawn(|| listener.accept().unwrap());
            let greet = |endpoint| greeting(Some(endpoint), None, None);
            let attacker = Attacker::new(device, listener.local_addr(), greet);
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let ring = attacker.end.domain.allocate_region(4096, rights).unwrap();
            let mut hello = b"adverb\r\n\x02\x00".to_vec();
            hello.extend(64u16.to_le_bytes());
            hello.extend(4096u32.to_le_bytes());
            hello.extend(ring.remote().addr.to_le_bytes());
            hello.extend(ring.remote().rkey.to_le_bytes());
            hello.extend((1u32 << 30).to_le_bytes());
            // The hello has no session to resume.
            hello.resize(64, 0);
            assert_eq!(attacker.send(&hello), None);
            (server.join().unwrap(), attacker, ring)
        });
        let hello = attacker.receive_within(TIMEOUT).expect("the listener sends its hello");
        (server, HostilePeer { attacker, hello, _ring: ring, written: 0 })
    }

    /// Writes frames at the next position of the listener's ring, which is long enough not to wrap.
    pub(crate) fn write(&mut self, frames: &[u8]) -> Option<Status> {
        let mut buffer = self.attacker.end.buffer(0, frames.len());
        buffer.copy_from_slice(frames);
        let addr = u64::from_le_bytes(self.hello[16..24].try_into().unwrap()) + self.written;
        let rkey = u32::from_le_bytes(self.hello[24..28].try_into().unwrap());
        self.written += frames.len().next_multiple_of(16) as u64;
        let write = SendRequest::write_with_imm(buffer, RemoteAddress { addr, rkey }, 0);
        self.attacker.end.run(write).outcome().err().map(|failure| failure.status)
    }
}
