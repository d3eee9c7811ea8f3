//! From a first word to a connection.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_verbs::internal::{Deadline, Watch};
use adverb_verbs::{Device, Error, QueuePair, Result, Transport, cm, internal};

use super::devices::ServedDevices;
use super::gid::check_gid;
use super::{device, explain, not_watched, refused, unreachable};
use crate::Options;
use crate::link::{Link, Parts};
use crate::protocol::handshake::{Flaw, Greeting, LONGEST_REASON, PREFIX_LEN, Prefix, Side};
use crate::protocol::proof::{Ends, Introduction, Role, Seal};

/// On the way to a connection, at either side. [Poll](Handshake::poll) it when its descriptor can be read, or its time is up.
///
/// Dropped, it gives up, and the peer notices.
pub(crate) struct Handshake {
    stage: Stage,
    peer: SocketAddr,
    options: Options,
    deadline: Deadline,
    /// When it came to where it is.
    since: Instant,
    /// Whether the listener has ended TCP, so that its hello is under way, or won't come.
    has_ended: bool,
    /// Readable when there is something to be done.
    watch: Watch,
}

/// How long the hello of a listener that has ended TCP may be under way: as long as its device tries to send it.
const HELLO_UNDER_WAY: Duration = Duration::from_secs(2);

enum Stage {
    /// A listener's: over TCP, the peer's greeting is to come.
    Asked(Wire, Arc<ServedDevices>),
    /// A connector's: over TCP, the answer is to come.
    Asking(Wire, Box<(Parts, QueuePair, Introduction)>),
    /// A connector's: the connection manager looks for the way.
    Resolving(cm::PendingRoute, Introduction),
    /// A connector's: the connection manager's answer is to come.
    Requested(cm::PendingConnection, Box<(Parts, Introduction)>),
    /// A listener's: the connection manager's last word is to come.
    Accepting(cm::PendingConnection, Box<(Parts, Option<Seal>)>),
    /// The peer's hello is to come. If it went over TCP, that is held until then, so that who gives up is noticed.
    Connected(Box<Link>, Option<Wire>),
    /// Over.
    Over,
}

impl Handshake {
    /// A connector's, over TCP.
    pub(crate) fn over_tcp(
        stream: TcpStream,
        peer: SocketAddr,
        options: &Options,
        deadline: Deadline,
    ) -> Result<Handshake> {
        let unreachable = |error| unreachable(peer, error);
        let mut wire = Wire::new(stream).map_err(unreachable)?;
        let local = wire.stream.local_addr().map_err(unreachable)?.ip().to_canonical();
        let introduction = introduction(options)?;
        let (parts, queue_pair) = parts(&device(local, options)?, local, peer, options)?;
        wire.send(&introduction.ask(Some(queue_pair.endpoint()))).map_err(unreachable)?;
        let stage = Stage::Asking(wire, Box::new((parts, queue_pair, introduction)));
        Handshake::new(stage, peer, options, deadline)
    }

    /// A connector's, by the connection manager.
    pub(crate) fn by_manager(
        from: Option<IpAddr>,
        peer: SocketAddr,
        options: &Options,
        deadline: Deadline,
    ) -> Result<Handshake> {
        let introduction = introduction(options)?;
        let mut connector = internal::with_deadline(cm::Connector::new(), deadline)
            .options(Parts::connect_options())
            .private_data(&introduction.ask(None).emit());
        if let Some(from) = from {
            connector = connector.local_addr(SocketAddr::new(from, 0));
        }
        let resolving = connector.begin_resolve(peer)?;
        Handshake::new(Stage::Resolving(resolving, introduction), peer, options, deadline)
    }

    /// A listener's, with who came over TCP.
    pub(super) fn with_stream(
        stream: TcpStream,
        peer: SocketAddr,
        devices: Arc<ServedDevices>,
        options: &Options,
    ) -> Result<Handshake> {
        let wire = Wire::new(stream).map_err(|error| unreachable(peer, error))?;
        Handshake::new(Stage::Asked(wire, devices), peer, options, Deadline::new(options.connect_timeout))
    }

    /// A listener's, with who came by the connection manager.
    pub(super) fn with_request(
        request: cm::ConnectRequest,
        devices: &ServedDevices,
        options: &Options,
    ) -> Result<Handshake> {
        let peer = request.path().peer_addr();
        let admitted = admit(peer, Greeting::parse(request.private_data()), options).and_then(|admitted| {
            if admitted.1.endpoint.is_some() {
                return Err(refused(peer, &Flaw::Malformed));
            }
            let device = devices.on_path(request.path()).map_err(|flaw| refused(peer, &flaw))?;
            Ok((device, admitted))
        });
        match admitted {
            Ok((device, (introduction, asking))) => {
                let stage = accept(request, device, introduction, asking, options)?;
                Handshake::new(stage, peer, options, Deadline::new(options.connect_timeout))
            }
            Err(error) => {
                // If it is gone meanwhile, it isn't told.
                let _ = request.reject(&refusal(&error).emit());
                Err(error)
            }
        }
    }

    fn new(stage: Stage, peer: SocketAddr, options: &Options, deadline: Deadline) -> Result<Handshake> {
        let watch = Watch::new().map_err(not_watched)?;
        if let Some(fd) = stage.descriptor() {
            watch.add(fd).map_err(not_watched)?;
        }
        let (since, options) = (Instant::now(), options.clone());
        Ok(Handshake { stage, peer, options, deadline, since, has_ended: false, watch })
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How much time it has.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.left()
    }

    /// For how long the peer has kept it waiting.
    pub(super) fn silence(&self) -> Duration {
        self.since.elapsed()
    }

    /// Why it isn't waited for, though it has time.
    pub(super) fn too_slow(&self) -> Error {
        let words = format!(
            "the peer sent nothing for {:?}, and the listener needs its place for other peers",
            self.silence()
        );
        self.unfinished(io::Error::new(io::ErrorKind::TimedOut, words))
    }

    /// The connection, if it is there by now.
    ///
    /// # Errors
    ///
    /// If there will be none, and when its time is up.
    pub(crate) fn poll(&mut self) -> Result<Option<Box<Link>>> {
        loop {
            match self.advance()? {
                Progress::Done(link) => return Ok(Some(link)),
                Progress::Next => {}
                Progress::Wait if self.left().is_zero() => return Err(self.too_late()),
                Progress::Wait => return Ok(None),
            }
        }
    }

    /// Takes a step.
    fn advance(&mut self) -> Result<Progress> {
        let peer = self.peer;
        let unreachable = |error| unreachable(peer, error);
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Asked(mut wire, devices) => {
                let Some(greeting) = wire.recv().map_err(unreachable)? else {
                    return self.wait(Stage::Asked(wire, devices));
                };
                let answered = self.answer(&mut wire, &devices, greeting);
                if let Err(error) = &answered {
                    // If it is gone meanwhile, it isn't told.
                    let _ = wire.send(&refusal(error));
                }
                self.connected(answered?, Some(wire))
            }
            Stage::Asking(mut wire, made) => {
                let Some(greeting) = wire.recv().map_err(unreachable)? else {
                    return self.wait(Stage::Asking(wire, made));
                };
                let (parts, queue_pair, introduction) = *made;
                let answer = side(peer, greeting)?;
                let listener = answer.endpoint.ok_or_else(|| refused(peer, &Flaw::Malformed))?;
                let checked = check_gid(listener.gid, peer.ip(), &queue_pair, &self.options);
                checked.map_err(|flaw| refused(peer, &flaw))?;
                let ends = Ends { connector: queue_pair.endpoint(), listener };
                let seal = introduction.answered(&answer, &ends).map_err(|flaw| refused(peer, &flaw))?;
                queue_pair.connect_with(&listener, &Parts::connect_options())?;
                self.connected(Link::new(parts, queue_pair, None, Role::Connector, seal), Some(wire))
            }
            Stage::Resolving(mut resolving, introduction) => {
                let Some(route) = resolving.poll()? else {
                    return self.wait(Stage::Resolving(resolving, introduction));
                };
                let device = match &self.options.device {
                    Some(device) => device.clone(),
                    None => route.path().device()?,
                };
                let (parts, queue_pair) = parts_for(&device, route.path(), peer, &self.options)?;
                // The descriptor is the same, of the same identifier.
                let connecting = route.begin_connect(queue_pair)?;
                self.next(Stage::Requested(connecting, Box::new((parts, introduction))))
            }
            Stage::Requested(mut connecting, made) => {
                let Some(connection) = connecting.poll().map_err(rejection)? else {
                    return self.wait(Stage::Requested(connecting, made));
                };
                let (parts, introduction) = *made;
                let (queue_pair, hold, listener, private_data) = internal::into_parts(connection);
                let answer = side(peer, Greeting::parse(&private_data))?;
                let (Some(listener), None) = (listener, answer.endpoint) else {
                    return Err(refused(peer, &Flaw::Malformed));
                };
                let ends = Ends::by_manager(queue_pair.endpoint(), listener);
                let seal = introduction.answered(&answer, &ends).map_err(|flaw| refused(peer, &flaw))?;
                self.connected(Link::new(parts, queue_pair, Some(hold), Role::Connector, seal), None)
            }
            Stage::Accepting(mut connecting, made) => {
                let Some(connection) = connecting.poll()? else {
                    return self.wait(Stage::Accepting(connecting, made));
                };
                let ((parts, seal), (queue_pair, hold, ..)) = (*made, internal::into_parts(connection));
                self.connected(Link::new(parts, queue_pair, Some(hold), Role::Listener, seal), None)
            }
            Stage::Connected(link, wire) => {
                link.take_events()?;
                let (is_established, _) = link.step(false, &mut |link, state| link.is_established(state));
                if is_established?.is_some() {
                    return Ok(Progress::Done(link));
                }
                let is_gone = match &wire {
                    Some(wire) => wire.has_ended(),
                    None => link.was_ended_by_manager()?,
                };
                if !is_gone {
                    return self.wait(Stage::Connected(link, wire));
                }
                // A listener ends TCP as soon as it has said hello, which goes another way, and may take longer.
                if wire.is_some() && link.role() == Role::Connector {
                    self.has_ended = true;
                    if self.left() > HELLO_UNDER_WAY {
                        self.deadline = Deadline::new(HELLO_UNDER_WAY);
                    }
                    return self.next(Stage::Connected(link, None));
                }
                Err(self.gave_up())
            }
            Stage::Over => Err(self.gave_up()),
        }
    }

    /// Answers who greets over TCP: connects a queue pair to its, and says which.
    fn answer(
        &self,
        wire: &mut Wire,
        devices: &ServedDevices,
        greeting: Result<Greeting, Flaw>,
    ) -> Result<Link> {
        let peer = self.peer;
        let (introduction, asking) = admit(peer, greeting, &self.options)?;
        let connector = asking.endpoint.ok_or_else(|| refused(peer, &Flaw::Malformed))?;
        let unreachable = |error| unreachable(peer, error);
        let local = wire.stream.local_addr().map_err(unreachable)?.ip().to_canonical();
        let device = devices.at(local).map_err(|flaw| refused(peer, &flaw))?;
        let (parts, queue_pair) = parts(device, local, peer, &self.options)?;
        let checked = check_gid(connector.gid, peer.ip(), &queue_pair, &self.options);
        checked.map_err(|flaw| refused(peer, &flaw))?;
        let listener = queue_pair.endpoint();
        let answered = introduction.answer(&asking, Some(listener), &Ends { connector, listener });
        let (answer, seal) = answered.map_err(|flaw| refused(peer, &flaw))?;
        queue_pair.connect_with(&connector, &Parts::connect_options())?;
        wire.send(&answer).map_err(unreachable)?;
        Ok(Link::new(parts, queue_pair, None, Role::Listener, seal))
    }

    /// The queue pairs are connected: the peer's hello is to come.
    fn connected(&mut self, link: Link, wire: Option<Wire>) -> Result<Progress> {
        if let Some(events) = link.lane().completions.event_fd() {
            self.watch.add(events).map_err(not_watched)?;
        }
        self.next(Stage::Connected(Box::new(link), wire))
    }

    fn wait(&mut self, stage: Stage) -> Result<Progress> {
        self.stage = stage;
        Ok(Progress::Wait)
    }

    fn next(&mut self, stage: Stage) -> Result<Progress> {
        (self.stage, self.since) = (stage, Instant::now());
        Ok(Progress::Next)
    }

    fn too_late(&self) -> Error {
        if self.has_ended {
            return self.gave_up();
        }
        let words = format!("no answer within {:?}", self.deadline.timeout);
        self.unfinished(io::Error::new(io::ErrorKind::TimedOut, words))
    }

    fn gave_up(&self) -> Error {
        self.unfinished(io::Error::new(io::ErrorKind::ConnectionReset, "the peer closed the connection"))
    }

    fn unfinished(&self, error: io::Error) -> Error {
        let (stage, hint) = match (&self.stage, &self.options.key) {
            (Stage::Asked(..) | Stage::Asking(..), _) => return unreachable(self.peer, error),
            (Stage::Resolving(..) | Stage::Requested(..) | Stage::Accepting(..), _) => (
                "connecting by the connection manager",
                "check that a listener has this address and port, and that the network passes UDP port 4791",
            ),
            (Stage::Connected(..) | Stage::Over, Some(_)) => {
                ("waiting for the peer's hello", "check that both sides have the same `Options::key`")
            }
            (Stage::Connected(..) | Stage::Over, None) => (
                "waiting for the peer's hello",
                "check that the network passes RoCEv2 (UDP port 4791) in both directions",
            ),
        };
        Error::Unreachable { peer: self.peer, stage, error, hint: hint.into() }
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

/// What came of a step.
enum Progress {
    Done(Box<Link>),
    /// There may be more to do.
    Next,
    /// There is nothing to do until the descriptor can be read.
    Wait,
}

impl Stage {
    /// What to wait for in the stages that a handshake begins with, and later too.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Stage::Asked(wire, _) | Stage::Asking(wire, _) => Some(wire.stream.as_fd()),
            Stage::Resolving(resolving, _) => Some(resolving.as_fd()),
            Stage::Requested(connecting, _) | Stage::Accepting(connecting, _) => Some(connecting.as_fd()),
            Stage::Connected(..) | Stage::Over => None,
        }
    }
}

/// Accepts a request of the connection manager's.
fn accept(
    request: cm::ConnectRequest,
    device: &Device,
    introduction: Introduction,
    asking: Side,
    options: &Options,
) -> Result<Stage> {
    let peer = request.path().peer_addr();
    let (parts, queue_pair) = parts_for(device, request.path(), peer, options)?;
    let mut seal = Err(Flaw::Malformed);
    let connecting = internal::begin_accept_with(request, queue_pair, |queue_pair, connector| {
        let ends = Ends::by_manager(*connector, queue_pair.endpoint());
        let answered = introduction.answer(&asking, None, &ends);
        let greeting = answered.map(|(answer, made)| {
            seal = Ok(made);
            answer
        });
        greeting.unwrap_or_else(|flaw| Greeting::Refusal(explain(&flaw))).emit()
    })?;
    let seal = seal.map_err(|flaw| refused(peer, &flaw))?;
    Ok(Stage::Accepting(connecting, Box::new((parts, seal))))
}

/// What a greeting says, if it says anything but no.
fn side(peer: SocketAddr, greeting: Result<Greeting, Flaw>) -> Result<Side> {
    match greeting {
        Ok(Greeting::Side(side)) => Ok(side),
        Ok(Greeting::Refusal(reason)) => Err(Error::HandshakeRejected { peer, reason }),
        Err(flaw) => Err(refused(peer, &flaw)),
    }
}

/// Who asks a listener, and what that is to be answered with, if it can be.
fn admit(
    peer: SocketAddr,
    greeting: Result<Greeting, Flaw>,
    options: &Options,
) -> Result<(Introduction, Side)> {
    let (introduction, asking) = (introduction(options)?, side(peer, greeting)?);
    introduction.admits(&asking).map_err(|flaw| refused(peer, &flaw))?;
    Ok((introduction, asking))
}

fn introduction(options: &Options) -> Result<Introduction> {
    let mut nonce = [0; 32];
    if options.key.is_some() {
        let failed = |error| super::verb("reading random bytes", io::Error::other(error), "");
        getrandom::fill(&mut nonce).map_err(failed)?;
    }
    Ok(Introduction::new(options.key.as_ref(), nonce))
}

/// What is to be connected, on a device and at an address by which the peer is reached.
fn parts(device: &Device, local: IpAddr, peer: SocketAddr, options: &Options) -> Result<(Parts, QueuePair)> {
    Parts::new(device, peer, options, |domain| {
        let builder = domain.queue_pair(Transport::Rc);
        // The address by which the peer knows this side, if the device has it.
        Ok(if domain.device().has_addr(local) { builder.local_addr(local) } else { builder })
    })
}

/// What is to be connected, for a path of the connection manager's.
fn parts_for(
    device: &Device,
    path: &cm::Path,
    peer: SocketAddr,
    options: &Options,
) -> Result<(Parts, QueuePair)> {
    Parts::new(device, peer, options, |domain| path.queue_pair(domain))
}

/// What a listener tells who it doesn't connect.
fn refusal(error: &Error) -> Greeting {
    Greeting::Refusal(match error {
        Error::HandshakeRejected { reason, .. } => reason.clone(),
        // What is the matter on this machine isn't for everybody.
        _ => "the listener could not establish the connection; its log has the cause".to_owned(),
    })
}

/// What the connection manager's refusal says, if a listener of ours made it.
fn rejection(error: Error) -> Error {
    match error {
        Error::CmRejected { peer, reason: cm::RejectReason::ConsumerReject, ref private_data, .. } => {
            match Greeting::parse(private_data) {
                Ok(Greeting::Refusal(reason)) => Error::HandshakeRejected { peer, reason },
                _ => error,
            }
        }
        error => error,
    }
}

/// A TCP connection over which a greeting comes.
struct Wire {
    stream: TcpStream,
    bytes: [u8; PREFIX_LEN + LONGEST_REASON],
    len: usize,
}

impl Wire {
    fn new(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nonblocking(true)?;
        Ok(Wire { stream, bytes: [0; PREFIX_LEN + LONGEST_REASON], len: 0 })
    }

    /// Says something. It fits the socket, to which nothing was said before, or there is no such peer.
    fn send(&mut self, greeting: &Greeting) -> io::Result<()> {
        self.stream.write_all(&greeting.emit())
    }

    /// The peer's greeting, once all of it has come.
    fn recv(&mut self) -> io::Result<Option<Result<Greeting, Flaw>>> {
        loop {
            let wanted = match self.bytes[..self.len].first_chunk() {
                None => PREFIX_LEN,
                Some(prefix) => match Prefix::parse(prefix) {
                    Ok(prefix) => PREFIX_LEN + prefix.len,
                    Err(flaw) => return Ok(Some(Err(flaw))),
                },
            };
            if self.len == wanted {
                return Ok(Some(Greeting::parse(&self.bytes[..self.len])));
            }
            match self.stream.read(&mut self.bytes[self.len..wanted]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.len += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the peer has closed it, or says more than there is to say.
    fn has_ended(&self) -> bool {
        let read = (&self.stream).read(&mut [0]);
        !matches!(read, Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted))
    }
}
