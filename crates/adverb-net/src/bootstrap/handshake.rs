//! The handshake that turns two queue pairs into a connection.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::cm::ConnectionParts;
use adverb_verbs::internal::{Deadline, Interest, Watch, start_connect};
use adverb_verbs::{self as verbs, Device, Endpoint, PathMtu, QueuePair, Transport, cm, internal};

use super::devices::ServedDevices;
use super::gid::check_gid;
use super::greeting_stream::GreetingStream;
use super::{device, fill_random};
use crate::driver::{Established, HelloExchange, Lane, LaneParts, LanePurpose};
use crate::error::{ConnectError, HandshakeError, HandshakeStage};
use crate::key::Role;
use crate::options::Options;
use crate::protocol::handshake::{Flaw, Greeting, Refusal, Side};
use crate::protocol::proof::{Credentials, Ends, Seal};

/// A handshake, on either side. No call blocks: [poll](Handshake::poll) it when its descriptor is readable, and when
/// the time [left](Handshake::time_left) is over.
///
/// Dropping it aborts the handshake, and the peer notices that.
pub(crate) struct Handshake {
    phase: Phase,
    peer: SocketAddr,
    options: Options,
    purpose: LanePurpose,
    /// The end of the time that is left to connect.
    end: Deadline,
    /// The end of the current phase: [`end`](Handshake::end), or earlier, to leave time for a dial with a smaller MTU.
    deadline: Deadline,
    /// The time when the current phase began.
    since: Instant,
    /// The time of the next check whether the old lane of a resuming connection has drained, which no descriptor
    /// reports.
    retry_at: Option<Instant>,
    /// Whether the handshake has failed because hellos of more than [`FALLBACK_MTU`] did not arrive.
    has_lost_long_hello: bool,
    /// Readable when the handshake can make progress.
    watch: Arc<Watch>,
}

/// The maximum time to wait for the hello of a listener that has closed TCP: its device retransmits the hello for this
/// long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// The path MTU with which a connector dials again if hellos of a larger one do not arrive. Packets with this payload
/// have less than 1280 bytes, the minimum MTU of IPv6, and so fit every usual network.
pub(super) const FALLBACK_MTU: PathMtu = PathMtu::Mtu1024;

/// The interval in which a handshake checks whether the old lane of a resuming connection has drained.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

type Result<T, E = HandshakeError> = std::result::Result<T, E>;

enum Phase {
    /// Connector: the kernel establishes the TCP connection.
    TcpConnecting(TcpStream),
    /// Connector: the listener's greeting has not arrived over TCP yet.
    AwaitingAnswer(GreetingStream, Box<(LaneParts, QueuePair, Credentials)>),
    /// Listener: the connector's greeting has not arrived over TCP yet.
    AwaitingGreeting(GreetingStream, Arc<ServedDevices>),
    /// Connector: the connection manager resolves the route.
    ResolvingRoute(cm::PendingRoute, Credentials),
    /// Connector: the listener's connection manager has not answered yet.
    CmConnecting(cm::PendingConnection, Box<(LaneParts, Credentials)>),
    /// Listener: the connector's connection manager has not confirmed the connection yet.
    CmAccepting(cm::PendingConnection, Box<(LaneParts, Option<Seal>)>),
    /// The queue pairs are connected, and the peer's hello has not arrived yet.
    AwaitingHello(Box<HelloExchange>, Channel),
    /// The handshake has returned its result.
    Finished,
}

/// The channel by which a side notices that the peer has aborted the handshake before its hello arrived.
enum Channel {
    /// The TCP connection, which each side keeps open until the peer's hello has arrived.
    Tcp(GreetingStream),
    /// The TCP connection, which the listener has closed: its hello is in flight, or the listener has aborted.
    ClosedByListener,
    /// The connection manager.
    Cm,
}

/// The result of a step.
enum Progress {
    Done(Established),
    /// The next phase may have something to do.
    Next,
    /// There is nothing to do until the descriptor is readable, or the time is up.
    Wait,
}

impl Handshake {
    /// Begins a connector's handshake over TCP.
    pub(super) fn over_tcp(
        peer: SocketAddr,
        options: &Options,
        purpose: LanePurpose,
        deadline: Deadline,
        now: Instant,
        watch: Arc<Watch>,
    ) -> Result<Handshake> {
        let stream =
            start_connect(peer).map_err(|error| ConnectError::tcp(peer, HandshakeStage::Tcp, error))?;
        watch.add_as(stream.as_fd(), Interest::Write, 0).map_err(not_watched)?;
        Ok(Handshake::new(Phase::TcpConnecting(stream), peer, options, purpose, deadline, now, watch))
    }

    /// Begins a connector's handshake by the connection manager.
    pub(super) fn by_manager(
        from: Option<IpAddr>,
        peer: SocketAddr,
        options: &Options,
        purpose: LanePurpose,
        deadline: Deadline,
        now: Instant,
        watch: Arc<Watch>,
    ) -> Result<Handshake> {
        let credentials = credentials(options)?;
        let mut connector = internal::with_deadline(cm::Connector::new(), deadline)
            .options(LaneParts::connect_options(options))
            .private_data(&credentials.connector_greeting(None).emit());
        if let Some(from) = from {
            connector = connector.local_addr(SocketAddr::new(from, 0));
        }
        let resolving = connector.begin_resolve(peer)?;
        watch.add(resolving.as_fd()).map_err(not_watched)?;
        let phase = Phase::ResolvingRoute(resolving, credentials);
        Ok(Handshake::new(phase, peer, options, purpose, deadline, now, watch))
    }

    /// Begins a listener's handshake with a peer that has connected over TCP.
    pub(super) fn with_stream(
        stream: TcpStream,
        peer: SocketAddr,
        devices: Arc<ServedDevices>,
        options: &Options,
        purpose: LanePurpose,
        now: Instant,
    ) -> Result<Handshake> {
        let watch = Watch::new().map_err(not_watched)?;
        let stream = GreetingStream::new(stream)
            .map_err(|error| ConnectError::tcp(peer, HandshakeStage::Greeting, error))?;
        watch.add(stream.as_fd()).map_err(not_watched)?;
        let phase = Phase::AwaitingGreeting(stream, devices);
        let deadline = Deadline::after(now, options.connect_timeout);
        Ok(Handshake::new(phase, peer, options, purpose, deadline, now, Arc::new(watch)))
    }

    /// Begins a listener's handshake with a peer that has sent a request by the connection manager.
    pub(super) fn with_request(
        request: cm::ConnectRequest,
        devices: &ServedDevices,
        options: &Options,
        purpose: LanePurpose,
        now: Instant,
    ) -> Result<Handshake> {
        let watch = Watch::new().map_err(not_watched)?;
        let peer = request.path().peer_addr();
        let checked = check_connector(Greeting::parse(request.private_data()), options).and_then(|checked| {
            if checked.1.endpoint.is_some() {
                return Err(Flaw::Malformed.into());
            }
            Ok((parts_for(devices.on_path(request.path())?, request.path(), peer, options)?, checked))
        });
        match checked {
            Ok((lane, (credentials, connector_side))) => {
                let phase = accept(request, lane, credentials, connector_side, &watch)?;
                let deadline = Deadline::after(now, options.connect_timeout);
                Ok(Handshake::new(phase, peer, options, purpose, deadline, now, Arc::new(watch)))
            }
            Err(error) => {
                // The rejection is lost if the peer has aborted meanwhile.
                let _ = request.reject(&Greeting::Refusal(error.refusal()).emit());
                Err(error)
            }
        }
    }

    fn new(
        phase: Phase,
        peer: SocketAddr,
        options: &Options,
        purpose: LanePurpose,
        deadline: Deadline,
        since: Instant,
        watch: Arc<Watch>,
    ) -> Handshake {
        Handshake {
            phase,
            peer,
            options: options.clone(),
            purpose,
            end: deadline,
            deadline,
            since,
            retry_at: None,
            has_lost_long_hello: false,
            watch,
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the time after which the handshake must be polled even if its descriptor is not readable.
    pub(super) fn time_left(&self, now: Instant) -> Duration {
        let retry = self.retry_at.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        self.deadline.left_at(now).min(retry)
    }

    /// Returns the time for which the current phase has waited for the peer.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns the error of a handshake that a listener drops before its time is up.
    pub(super) fn silence_error(&self, now: Instant) -> HandshakeError {
        ConnectError::TimedOut { peer: self.peer, timeout: self.silence(now), stage: self.stage() }.into()
    }

    /// Makes progress. Returns the connection once it is established.
    ///
    /// # Errors
    ///
    /// Returns an error if the handshake has failed, also when the time is up.
    pub(super) fn poll(&mut self, now: Instant) -> Result<Option<Established>> {
        loop {
            match self.advance(now)? {
                Progress::Done(established) => return Ok(Some(established)),
                Progress::Next => {}
                Progress::Wait if self.deadline.left_at(now).is_zero() => return Err(self.timed_out()),
                Progress::Wait => return Ok(None),
            }
        }
    }

    /// Advances the current phase.
    fn advance(&mut self, now: Instant) -> Result<Progress> {
        let (peer, stage) = (self.peer, self.stage());
        let unreachable = |error| ConnectError::tcp(peer, stage, error);
        match std::mem::replace(&mut self.phase, Phase::Finished) {
            Phase::TcpConnecting(stream) => {
                if !is_connected(&stream).map_err(unreachable)? {
                    return self.wait(Phase::TcpConnecting(stream));
                }
                self.watch.remove(stream.as_fd()).map_err(not_watched)?;
                let mut stream = GreetingStream::new(stream).map_err(unreachable)?;
                self.watch.add(stream.as_fd()).map_err(not_watched)?;
                let local = stream.local_ip().map_err(unreachable)?;
                let credentials = credentials(&self.options)?;
                let (parts, queue_pair) = parts(&device(local, &self.options)?, local, peer, &self.options)?;
                let endpoint = endpoint(&queue_pair, &self.options);
                stream.send(&credentials.connector_greeting(Some(endpoint))).map_err(unreachable)?;
                self.next(Phase::AwaitingAnswer(stream, Box::new((parts, queue_pair, credentials))), now)
            }
            Phase::AwaitingGreeting(mut stream, devices) => {
                let Some(greeting) = stream.recv().map_err(unreachable)? else {
                    return self.wait(Phase::AwaitingGreeting(stream, devices));
                };
                let answered = self.answer(&mut stream, &devices, greeting);
                if let Err(error) = &answered {
                    // The refusal is lost if the peer has aborted meanwhile.
                    let _ = stream.send(&Greeting::Refusal(error.refusal()));
                }
                self.connected(answered?, Channel::Tcp(stream), now)
            }
            Phase::AwaitingAnswer(mut stream, prepared) => {
                let Some(greeting) = stream.recv().map_err(unreachable)? else {
                    return self.wait(Phase::AwaitingAnswer(stream, prepared));
                };
                let (parts, queue_pair, credentials) = *prepared;
                let answer = side(greeting)?;
                let listener = answer.endpoint.ok_or(Flaw::Malformed)?;
                check_gid(listener.gid, peer.ip(), &queue_pair, &self.options)?;
                let ends = Ends { connector: endpoint(&queue_pair, &self.options), listener };
                let seal = credentials.verify_answer(&answer, &ends)?;
                let listener = connect(&queue_pair, listener, &self.options)?;
                let lane = Lane::new(parts, queue_pair, Some(listener), None, seal);
                let exchange = HelloExchange::begin(lane, &self.purpose)?;
                self.connected(exchange, Channel::Tcp(stream), now)
            }
            Phase::ResolvingRoute(mut resolving, credentials) => {
                let Some(route) = resolving.poll()? else {
                    return self.wait(Phase::ResolvingRoute(resolving, credentials));
                };
                let device = match &self.options.device {
                    Some(device) => device.clone(),
                    None => route.path().open_device()?,
                };
                let (parts, queue_pair) = parts_for(&device, route.path(), peer, &self.options)?;
                // The identifier keeps its descriptor, which is watched already.
                let connecting = route.begin_connect(queue_pair)?;
                self.next(Phase::CmConnecting(connecting, Box::new((parts, credentials))), now)
            }
            Phase::CmConnecting(mut connecting, prepared) => {
                let Some(connection) = connecting.poll().map_err(parse_refusal)? else {
                    return self.wait(Phase::CmConnecting(connecting, prepared));
                };
                let (parts, credentials) = *prepared;
                let ConnectionParts { queue_pair, handle, peer, private_data, .. } = connection.into_parts();
                let answer = side(Greeting::parse(&private_data))?;
                let (Some(listener), None) = (peer, answer.endpoint) else {
                    return Err(Flaw::Malformed.into());
                };
                let ends = Ends::by_manager(queue_pair.endpoint(), listener);
                let seal = credentials.verify_answer(&answer, &ends)?;
                let lane = Lane::new(parts, queue_pair, Some(listener), Some(handle), seal);
                self.connected(HelloExchange::begin(lane, &self.purpose)?, Channel::Cm, now)
            }
            Phase::CmAccepting(mut connecting, prepared) => {
                let Some(connection) = connecting.poll()? else {
                    return self.wait(Phase::CmAccepting(connecting, prepared));
                };
                let (parts, seal) = *prepared;
                let ConnectionParts { queue_pair, handle, peer, .. } = connection.into_parts();
                let lane = Lane::new(parts, queue_pair, peer, Some(handle), seal);
                self.connected(HelloExchange::begin(lane, &self.purpose)?, Channel::Cm, now)
            }
            Phase::AwaitingHello(exchange, channel) => self.await_hello(exchange, channel, now),
            Phase::Finished => Err(self.aborted_by_peer()),
        }
    }

    /// Checks whether the peer's hello has arrived, or the peer has aborted.
    fn await_hello(
        &mut self,
        mut exchange: Box<HelloExchange>,
        channel: Channel,
        now: Instant,
    ) -> Result<Progress> {
        self.retry_at = None;
        // The connector keeps TCP open until this side's hello has arrived. A connector that has aborted may have sent
        // its hello before.
        if let Channel::Tcp(stream) = &channel
            && exchange.is_awaiting_connector()
            && stream.detect_end()
        {
            return Err(self.aborted_by_peer());
        }
        match exchange.poll() {
            Ok(None) => {}
            Ok(Some(established)) => return Ok(Progress::Done(established)),
            Err(_) if exchange.is_unacknowledged() => return Err(self.lost_hello(&exchange, &channel)),
            Err(error) => return Err(error),
        }
        if is_unanswered(&exchange, &channel) {
            self.deadline = self.end;
        }
        let has_ended = match &channel {
            Channel::Tcp(stream) => stream.detect_end(),
            Channel::ClosedByListener => false,
            Channel::Cm => exchange.lane().take_manager_events()?,
        };
        match channel {
            // A listener closes TCP as soon as it has sent its hello, which takes another path, and may arrive later.
            Channel::Tcp(_) if has_ended && exchange.role() == Role::Connector => {
                let timeout = self.hello_timeout(&exchange, now);
                self.deadline = Deadline::after(now, timeout.min(HELLO_TIMEOUT));
                self.next(Phase::AwaitingHello(exchange, Channel::ClosedByListener), now)
            }
            _ if has_ended => Err(self.aborted_by_peer()),
            channel => {
                self.retry_at = exchange.must_retry().then(|| now + DRAIN_POLL_INTERVAL);
                self.wait(Phase::AwaitingHello(exchange, channel))
            }
        }
    }

    /// Answers a connector's greeting over TCP: connects a queue pair to the connector's, and sends its endpoint.
    fn answer(
        &self,
        stream: &mut GreetingStream,
        devices: &ServedDevices,
        greeting: Result<Greeting, Flaw>,
    ) -> Result<HelloExchange> {
        let peer = self.peer;
        let (credentials, connector_side) = check_connector(greeting, &self.options)?;
        let connector = connector_side.endpoint.ok_or(Flaw::Malformed)?;
        let unreachable = |error| ConnectError::tcp(peer, HandshakeStage::Greeting, error);
        let local = stream.local_ip().map_err(unreachable)?;
        let (parts, queue_pair) = parts(devices.at(local)?, local, peer, &self.options)?;
        check_gid(connector.gid, peer.ip(), &queue_pair, &self.options)?;
        let listener = endpoint(&queue_pair, &self.options);
        let (answer, seal) =
            credentials.listener_greeting(&connector_side, Some(listener), &Ends { connector, listener })?;
        let connector = connect(&queue_pair, connector, &self.options)?;
        stream.send(&answer).map_err(unreachable)?;
        HelloExchange::begin(Lane::new(parts, queue_pair, Some(connector), None, seal), &self.purpose)
    }

    /// Continues with connected queue pairs.
    fn connected(&mut self, exchange: HelloExchange, channel: Channel, now: Instant) -> Result<Progress> {
        if has_long_hello(&exchange) {
            self.deadline = Deadline::after(now, self.hello_timeout(&exchange, now));
        }
        if let Some(events) = exchange.lane().event_fd() {
            self.watch.add(events).map_err(not_watched)?;
        }
        self.next(Phase::AwaitingHello(Box::new(exchange), channel), now)
    }

    /// Returns the maximum time to wait for a hello, which may be lost if it is long.
    fn hello_timeout(&self, exchange: &HelloExchange, now: Instant) -> Duration {
        match self.end.left_at(now) {
            // The other half is for a dial with a smaller MTU.
            left if left < Duration::MAX && has_long_hello(exchange) => left / 2,
            left => left,
        }
    }

    fn wait(&mut self, phase: Phase) -> Result<Progress> {
        self.phase = phase;
        Ok(Progress::Wait)
    }

    fn next(&mut self, phase: Phase, now: Instant) -> Result<Progress> {
        (self.phase, self.since) = (phase, now);
        Ok(Progress::Next)
    }

    fn timed_out(&mut self) -> HandshakeError {
        let stage = self.stage();
        if let Phase::AwaitingHello(exchange, channel) = std::mem::replace(&mut self.phase, Phase::Finished) {
            return self.lost_hello(&exchange, &channel);
        }
        ConnectError::TimedOut { peer: self.peer, timeout: self.deadline.timeout, stage }.into()
    }

    /// Whether the handshake has failed because hellos of more than [`FALLBACK_MTU`] did not arrive.
    pub(super) fn has_lost_long_hello(&self) -> bool {
        self.has_lost_long_hello
    }

    #[cfg(all(test, feature = "soft", not(loom)))]
    pub(super) fn is_awaiting_hello(&self) -> bool {
        matches!(self.phase, Phase::AwaitingHello(..))
    }

    /// Returns the error of a handshake whose hellos did not arrive in time.
    fn lost_hello(&mut self, exchange: &HelloExchange, channel: &Channel) -> HandshakeError {
        let (peer, timeout) = (self.peer, self.end.timeout);
        if is_unanswered(exchange, channel) {
            return ConnectError::TimedOut { peer, timeout, stage: HandshakeStage::Hello }.into();
        }
        self.has_lost_long_hello = has_long_hello(exchange);
        let lane = exchange.lane();
        let packets = match (exchange.role(), lane.udp_addrs()) {
            (_, Some((_, from))) if matches!(channel, Channel::ClosedByListener) => format!(
                "the listener's first RoCE packet to {from} (UDP) did not arrive in time, or the listener has aborted"
            ),
            (Role::Connector, Some((to, from))) => {
                format!(
                    "RoCE packets to {to} (UDP), or their acknowledgements to {from}, did not arrive in time"
                )
            }
            (Role::Listener, Some((_, from))) => format!("no RoCE packet arrived at {from} (UDP) in time"),
            (_, None) => "RoCE packets did not arrive in time".to_owned(),
        };
        let source = io::Error::new(io::ErrorKind::TimedOut, packets);
        ConnectError::RdmaUnreachable { peer, is_software: lane.is_software(), source }.into()
    }

    fn aborted_by_peer(&self) -> HandshakeError {
        ConnectError::Aborted { peer: self.peer, stage: self.stage() }.into()
    }

    /// Returns the step that the peer has not finished.
    fn stage(&self) -> HandshakeStage {
        match &self.phase {
            Phase::TcpConnecting(_) => HandshakeStage::Tcp,
            Phase::AwaitingGreeting(..) | Phase::AwaitingAnswer(..) => HandshakeStage::Greeting,
            Phase::ResolvingRoute(..) | Phase::CmConnecting(..) | Phase::CmAccepting(..) => {
                HandshakeStage::ConnectionManager
            }
            Phase::AwaitingHello(..) | Phase::Finished => HandshakeStage::Hello,
        }
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// Whether a TCP socket has connected.
fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Accepts a request of the connection manager, and watches for its end.
fn accept(
    request: cm::ConnectRequest,
    (parts, queue_pair): (LaneParts, QueuePair),
    credentials: Credentials,
    connector_side: Side,
    watch: &Watch,
) -> Result<Phase> {
    let mut seal = Err(Flaw::Malformed);
    let connecting = internal::begin_accept_with(request, queue_pair, |queue_pair, connector| {
        let ends = Ends::by_manager(*connector, queue_pair.endpoint());
        let answered = credentials.listener_greeting(&connector_side, None, &ends);
        let greeting = answered.map(|(answer, new_seal)| {
            seal = Ok(new_seal);
            answer
        });
        greeting.unwrap_or_else(|flaw| Greeting::Refusal(Refusal::from(&flaw))).emit()
    })?;
    let seal = seal?;
    watch.add(connecting.as_fd()).map_err(not_watched)?;
    Ok(Phase::CmAccepting(connecting, Box::new((parts, seal))))
}

/// Returns the endpoint of a queue pair, with the MTU that the options permit.
fn endpoint(queue_pair: &QueuePair, options: &Options) -> Endpoint {
    let mut endpoint = queue_pair.endpoint();
    endpoint.mtu = endpoint.mtu.min(options.mtu.bytes());
    endpoint
}

/// Connects a queue pair to the peer's. Returns the peer's endpoint with the path MTU of the connection.
fn connect(queue_pair: &QueuePair, mut peer: Endpoint, options: &Options) -> Result<Endpoint, verbs::Error> {
    let own = endpoint(queue_pair, options);
    let mtu = peer.common_mtu(PathMtu::at_most(own.mtu.into()).unwrap_or(PathMtu::Mtu256));
    queue_pair.connect_with(&peer, &LaneParts::connect_options(options).mtu(mtu))?;
    peer.mtu = mtu.bytes();
    Ok(peer)
}

/// Whether the listener's device has this side's hello, and the listener has neither answered nor closed TCP.
fn is_unanswered(exchange: &HelloExchange, channel: &Channel) -> bool {
    exchange.is_acknowledged() && !matches!(channel, Channel::ClosedByListener)
}

/// Whether this side dials, and its hello is longer than [`FALLBACK_MTU`].
fn has_long_hello(exchange: &HelloExchange) -> bool {
    exchange.role() == Role::Connector && exchange.lane().mtu() > FALLBACK_MTU.bytes()
}

/// Returns the side that a greeting describes, unless it is a refusal.
fn side(greeting: Result<Greeting, Flaw>) -> Result<Side> {
    match greeting? {
        Greeting::Side(side) => Ok(side),
        Greeting::Refusal(refusal) => Err(HandshakeError::Refused(refusal)),
    }
}

/// Returns the side that a connector's greeting describes, and the credentials of the answer, if both sides have a key
/// or neither has.
fn check_connector(greeting: Result<Greeting, Flaw>, options: &Options) -> Result<(Credentials, Side)> {
    let (credentials, connector_side) = (credentials(options)?, side(greeting)?);
    credentials.check_key_presence(&connector_side)?;
    Ok((credentials, connector_side))
}

fn credentials(options: &Options) -> Result<Credentials> {
    let mut nonce = [0; 32];
    if options.key.is_some() {
        fill_random(&mut nonce)?;
    }
    Ok(Credentials::new(options.key.as_ref(), nonce))
}

/// Creates a queue pair and the other parts of a lane, on a device and at a local address that reaches the peer.
fn parts(
    device: &Device,
    local: IpAddr,
    peer: SocketAddr,
    options: &Options,
) -> Result<(LaneParts, QueuePair), verbs::Error> {
    LaneParts::new(device, peer, options, |domain| {
        let builder = domain.queue_pair(Transport::Rc);
        // The peer has dialed this address, or was dialed from it. The device may have other addresses only.
        Ok(if domain.device().has_addr(local) { builder.local_addr(local) } else { builder })
    })
}

/// Creates a queue pair and the other parts of a lane, for a path of the connection manager.
fn parts_for(
    device: &Device,
    path: &cm::Path,
    peer: SocketAddr,
    options: &Options,
) -> Result<(LaneParts, QueuePair), verbs::Error> {
    LaneParts::new(device, peer, options, |domain| path.queue_pair(domain))
}

/// Returns the error of a descriptor that can't be watched.
fn not_watched(error: io::Error) -> HandshakeError {
    HandshakeError::system("waiting for a peer", error)
}

/// Returns the error for a rejection by the peer's connection manager: the listener's refusal, if it has sent one.
fn parse_refusal(error: verbs::Error) -> HandshakeError {
    if let verbs::Error::CmRejected { reason: cm::RejectReason::ConsumerReject, private_data, .. } = &error
        && let Ok(Greeting::Refusal(refusal)) = Greeting::parse(private_data)
    {
        return HandshakeError::Refused(refusal);
    }
    error.into()
}
