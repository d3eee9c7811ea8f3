//! The threads that connect sessions: one that accepts, and one for each member that this member dials.
//!
//! Of two members, the one with the larger number dials, so no two attempts cross. The application's threads take part only
//! by polling their brokers.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use adverb_cluster_proto::PeerId;
use adverb_verbs::internal::{Deadline, wait_either};
use adverb_verbs::{ConnectOptions, LinkLayer, QueuePair, QueuePairBuilder};

use super::hello::{ACCEPTED, BUSY, Hello, READY, REJECTED};
use super::membership::Membership;
use crate::broker::{BrokerError, Command, Mailbox, Offer};

/// The time limit of each step of the exchange.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// The time limit of the last step. It is longer, because the dialing member has a session that the listening member must
/// not close while the exchange goes on. A member that dies closes its connection.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a connecting thread waits for a broker whose thread doesn't poll.
const BROKER_TIMEOUT: Duration = Duration::from_secs(1);
/// The minimum and maximum pause between attempts to reach a member.
const MIN_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The state that the connecting threads share.
pub(super) struct Shared {
    pub(super) membership: Box<dyn Membership>,
    pub(super) connect_options: ConnectOptions,
    pub(super) fingerprint: u64,
    pub(super) member_count: u16,
    pub(super) this_member: u16,
    pub(super) threads: Vec<BrokerThread>,
    pub(super) is_stopped: AtomicBool,
    pub(super) next_attempt: AtomicU64,
    /// The number of inbound exchanges.
    pub(super) inbound_count: AtomicUsize,
}

/// A thread of the application, seen from the connecting threads.
pub(super) struct BrokerThread {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) queue_pairs: QueuePairBuilder,
}

/// The reason why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Broker(#[from] BrokerError),
    #[error("{0}")]
    Verbs(#[from] adverb_verbs::Error),
    #[error("the member has another list of members, number of threads, or protocol version")]
    Mismatch,
    #[error("the member's thread is not ready")]
    Busy,
    #[error("the thread of this member does not poll its broker")]
    NotPolled,
    #[error("the offered address does not belong to the member")]
    ForeignGid,
}

type Result<T> = std::result::Result<T, AttemptError>;

impl Shared {
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Accepts connections of members until `stop` can be read.
    pub(super) fn run_listener(self: &Arc<Shared>, listener: &TcpListener, stop: &UnixStream) {
        // A member dials with one connection at a time. Strangers must leave room for members.
        let max_inbound = 2 * usize::from(self.member_count) + 16;
        while !self.is_stopped() {
            if let Err(error) = wait_either(listener.as_fd(), Some(stop.as_fd()), None) {
                tracing::error!(%error, "waiting for members failed");
                return;
            }
            let (stream, addr) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Too few descriptors, for example.
                    tracing::warn!(%error, "accepting a member's connection failed");
                    std::thread::sleep(MIN_BACKOFF);
                    continue;
                }
            };
            if self.inbound_count.fetch_add(1, Ordering::AcqRel) >= max_inbound {
                self.inbound_count.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let shared = Arc::clone(self);
            let exchange = move || {
                if let Err(error) = shared.accept(stream, addr) {
                    tracing::debug!(%addr, %error, "an inbound session was not established");
                }
                shared.inbound_count.fetch_sub(1, Ordering::AcqRel);
            };
            if std::thread::Builder::new().name("adverb-accept".into()).spawn(exchange).is_err() {
                self.inbound_count.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Keeps sessions with a member, until the cluster is stopped.
    pub(super) fn run_dialer(&self, member: u16) {
        let peer = PeerId(member);
        for thread in &self.threads {
            thread.mailbox.set_dialer(peer, std::thread::current());
        }
        let mut backoff = MIN_BACKOFF;
        while !self.is_stopped() {
            let is_missing = |thread: &&(u16, &BrokerThread)| {
                thread.1.mailbox.is_taken() && !thread.1.mailbox.is_open(peer)
            };
            let threads = (0..).zip(&self.threads).collect::<Vec<_>>();
            let mut failed = false;
            for &(index, thread) in threads.iter().filter(is_missing) {
                if let Err(error) = self.dial(peer, index, thread) {
                    tracing::debug!(%peer, thread = index, %error, "a session was not established");
                    failed = true;
                    if matches!(error, AttemptError::Io(_)) {
                        break; // the other threads would wait for the same dead member
                    }
                }
            }
            if failed {
                std::thread::park_timeout(backoff);
                backoff = (backoff * 2).min(MAX_BACKOFF);
            } else {
                backoff = MIN_BACKOFF;
                if !threads.iter().any(|thread| is_missing(&thread)) {
                    std::thread::park_timeout(MAX_BACKOFF);
                }
            }
        }
    }

    /// Establishes a session as the dialing member.
    fn dial(&self, peer: PeerId, index: u16, thread: &BrokerThread) -> Result<()> {
        let addr = self.membership.resolve(usize::from(peer.0))?;
        let mut stream = TcpStream::connect_timeout(&addr, STEP_TIMEOUT)?;
        set_options(&stream)?;
        let (session, offer) = Attempt::prepare(self, thread, peer, None)?;
        let hello = Hello {
            cluster: self.fingerprint,
            from: self.this_member,
            to: peer.0,
            thread: index,
            offer: offer.to_bytes(),
        };
        stream.write_all(&hello.to_bytes())?;
        let [answer] = read(&mut stream, STEP_TIMEOUT)?;
        match answer {
            ACCEPTED => {}
            BUSY => return Err(AttemptError::Busy),
            _ => return Err(AttemptError::Mismatch),
        }
        let offer = Offer::from_bytes(&read(&mut stream, STEP_TIMEOUT)?)?;
        session.connect(&offer, addr.ip(), &self.connect_options)?;
        // The peer opens its session after this byte. Until then it sends nothing.
        stream.write_all(&[READY])?;
        session.open(offer)
    }

    /// Establishes a session as the listening member.
    fn accept(&self, mut stream: TcpStream, addr: SocketAddr) -> Result<()> {
        stream.set_nonblocking(false)?;
        set_options(&stream)?;
        let accepted = self.prepare_inbound(&mut stream, addr.ip());
        let (session, answer, offer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let code = if matches!(error, AttemptError::Mismatch) { REJECTED } else { BUSY };
                stream.write_all(&[code])?;
                return Err(error);
            }
        };
        stream.write_all(&[ACCEPTED])?;
        stream.write_all(&answer.to_bytes())?;
        let [READY] = read(&mut stream, READY_TIMEOUT)? else { return Err(AttemptError::Mismatch) };
        session.open(offer)
    }

    /// Reads a hello, and prepares and connects a session. Returns the offers of this side and of the peer.
    fn prepare_inbound(&self, stream: &mut TcpStream, addr: IpAddr) -> Result<(Attempt<'_>, Offer, Offer)> {
        let hello = Hello::from_bytes(&read(stream, STEP_TIMEOUT)?).ok_or(AttemptError::Mismatch)?;
        let is_expected = hello.cluster == self.fingerprint
            && hello.to == self.this_member
            && hello.from > self.this_member
            && hello.from < self.member_count;
        let thread = self.threads.get(usize::from(hello.thread)).filter(|_| is_expected);
        let thread = thread.ok_or(AttemptError::Mismatch)?;
        let offer = Offer::from_bytes(&hello.offer)?;
        if !thread.mailbox.is_taken() {
            return Err(AttemptError::Busy);
        }
        let (session, answer) = Attempt::prepare(self, thread, PeerId(hello.from), Some(offer.epoch))?;
        session.connect(&offer, addr, &self.connect_options)?;
        Ok((session, answer, offer))
    }
}

/// An attempt to establish a session. Dropping it closes the session, unless it was opened.
struct Attempt<'a> {
    mailbox: &'a Mailbox,
    peer: PeerId,
    number: u64,
    queue_pair: Arc<QueuePair>,
}

impl<'a> Attempt<'a> {
    fn prepare(
        shared: &Shared,
        thread: &'a BrokerThread,
        peer: PeerId,
        peer_epoch: Option<u64>,
    ) -> Result<(Attempt<'a>, Offer)> {
        let queue_pair = Arc::new(thread.queue_pairs.clone().create()?);
        let number = shared.next_attempt.fetch_add(1, Ordering::Relaxed);
        let attempt = Attempt { mailbox: &thread.mailbox, peer, number, queue_pair };
        let (reply, prepared) = mpsc::sync_channel(1);
        let queue_pair = Arc::clone(&attempt.queue_pair);
        attempt.mailbox.send(Command::Prepare { peer, attempt: number, queue_pair, peer_epoch, reply });
        let offer = wait_for(&prepared)?;
        Ok((attempt, offer))
    }

    /// Connects the queue pair.
    fn connect(&self, offer: &Offer, addr: IpAddr, options: &ConnectOptions) -> Result<()> {
        let device = self.queue_pair.protection_domain().device();
        let is_on_ip_network =
            device.is_on_ip_network() && self.queue_pair.link_layer() != LinkLayer::InfiniBand;
        let (offered, addr) = (offer.endpoint.gid.udp_addr().ip(), addr.to_canonical());
        // No member can aim packets of this member at a third party.
        if is_on_ip_network && offered != addr && !(offered.is_loopback() && addr.is_loopback()) {
            return Err(AttemptError::ForeignGid);
        }
        Ok(self.queue_pair.connect_with(&offer.endpoint, options)?)
    }

    /// Opens the session.
    fn open(self, offer: Offer) -> Result<()> {
        let (reply, opened) = mpsc::sync_channel(1);
        self.mailbox.send(Command::Open { peer: self.peer, attempt: self.number, offer, reply });
        wait_for(&opened)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // The command has no effect on an open session.
        self.mailbox.send(Command::Abort { peer: self.peer, attempt: self.number });
    }
}

/// Waits for the broker's reply.
fn wait_for<T>(reply: &mpsc::Receiver<std::result::Result<T, BrokerError>>) -> Result<T> {
    match reply.recv_timeout(BROKER_TIMEOUT) {
        Ok(result) => Ok(result?),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(AttemptError::NotPolled),
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))
}

fn read<const N: usize>(stream: &mut TcpStream, timeout: Duration) -> io::Result<[u8; N]> {
    let deadline = Deadline::new(timeout);
    let mut bytes = [0; N];
    let mut filled = 0;
    // A peer that sends single bytes has no more time than others.
    while filled < N {
        let left = deadline.left();
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
