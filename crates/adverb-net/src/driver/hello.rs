//! The exchange of hellos over a new lane, until a connection is established or resumed.

use std::sync::{Arc, Weak};
use std::time::Instant;

use adverb_net_proto::{Connection, EndReason, Hello, PhaseKind, SessionHello, SessionId, Tag};
use adverb_verbs::{ArmFor, Status};

use super::lane::HELLO_RECV;
use super::progress::{open_hello, post_hello};
use super::{Core, Driver, Lane, ended, lane};
use crate::error::{ConnectError, ConnectionError, HandshakeError, HandshakeStage};
use crate::key::{HandshakeKey, Role};
use crate::wait::{Block, CallerKind, WaitingCaller};

type Result<T, E = HandshakeError> = std::result::Result<T, E>;

/// The exchange of hellos over a connected lane. No call blocks.
///
/// Dropping it aborts the lane.
pub(crate) struct HelloExchange {
    role: Role,
    lane: Arc<Lane>,
    state: State,
    /// Whether a thread polls the lane without the lock, so that the hello possibly raises no event.
    is_following: bool,
}

/// The connection for which a lane is established.
#[derive(Clone)]
pub(crate) enum LanePurpose {
    /// A new connection of a connector, which can resume if it has a session.
    Connect(Option<SessionId>),
    /// The connection of a connector that has no lane.
    Resume(Weak<Driver>),
    /// The connection of a listener with the session that the connector's hello requests, or a new one.
    Accept(FindSession),
    /// No connection: the connector requests a session to which it does not belong.
    #[cfg(all(test, feature = "soft", not(loom)))]
    Forge(SessionId),
}

/// Returns the accepted connection with a session, if it exists.
pub(crate) type FindSession = fn(&SessionId) -> Option<Arc<Driver>>;

enum State {
    /// The listener has not received the connector's hello.
    AwaitingConnector(FindSession),
    /// The listener's answer to a connector with an unknown session is in flight.
    Rejecting,
    /// The driver exchanges the hellos.
    Driven { driver: Arc<Driver>, is_resumed: bool },
    /// The answer to a forged hello has not arrived.
    #[cfg(all(test, feature = "soft", not(loom)))]
    Forging,
    /// The exchange has returned its result.
    Finished,
}

/// The result of an exchange.
pub(crate) enum Established {
    /// A new connection.
    New(Arc<Driver>),
    /// Another lane of a connection that exists.
    Resumed,
}

impl HelloExchange {
    /// Begins this side's part of the exchange.
    pub(crate) fn begin(lane: Lane, purpose: &LanePurpose) -> Result<HelloExchange> {
        let lane = Arc::new(lane);
        let (role, state) = match purpose {
            LanePurpose::Connect(id) => {
                let (epoch, config) = (Instant::now(), config(&lane));
                let id = id.unwrap_or_default();
                let connection = Connection::connect(config, id, adverb_net_proto::Time::ZERO);
                let driver = Driver::new(Arc::clone(&lane), connection, epoch);
                (Role::Connector, State::Driven { driver, is_resumed: false })
            }
            LanePurpose::Resume(driver) => {
                let driver = driver.upgrade().ok_or_else(|| session_unknown(&lane))?;
                if !driver.attach(&lane) {
                    // Another lane is dialed, unless the connection has ended.
                    let error = std::io::Error::other("the connection is not ready for another lane");
                    return Err(HandshakeError::system("attaching a queue pair", error));
                }
                (Role::Connector, State::Driven { driver, is_resumed: true })
            }
            LanePurpose::Accept(find) => (Role::Listener, State::AwaitingConnector(*find)),
            #[cfg(all(test, feature = "soft", not(loom)))]
            LanePurpose::Forge(id) => {
                let session = Some(SessionHello { id: *id, received: Some(0) });
                post_hello(&lane, &Hello { session, ..Hello::unknown_session() }.emit(), Tag::Hello.wr_id())?;
                (Role::Connector, State::Forging)
            }
        };
        Ok(HelloExchange { role, lane, state, is_following: false })
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Whether the exchange must be polled again without an event of its lane: the old lane of the connection may be
    /// draining, or a thread polls the lane.
    pub(crate) fn must_retry(&self) -> bool {
        let is_resuming =
            self.role == Role::Listener && matches!(self.state, State::Driven { is_resumed: true, .. });
        is_resuming || self.is_following
    }

    /// Whether the lane has failed because the peer's device acknowledged no packet.
    pub(crate) fn is_unacknowledged(&self) -> bool {
        let State::Driven { driver, .. } = &self.state else { return false };
        let core = driver.lock();
        Arc::ptr_eq(&core.lane, &self.lane) && core.lane_status == Some(Status::RetryExceeded)
    }

    /// Whether the peer's device has the connector's hello, and the listener has not answered.
    pub(crate) fn is_acknowledged(&self) -> bool {
        let State::Driven { driver, .. } = &self.state else { return false };
        let core = driver.lock();
        Arc::ptr_eq(&core.lane, &self.lane) && core.connection.is_hello_acknowledged()
    }

    /// Whether the listener has not received the connector's hello.
    pub(crate) fn is_awaiting_connector(&self) -> bool {
        matches!(self.state, State::AwaitingConnector(_))
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Makes progress. Returns the result once the lane is established.
    ///
    /// # Errors
    ///
    /// Returns an error if the lane can't be established, or the peer doesn't know the session.
    pub(crate) fn poll(&mut self) -> Result<Option<Established>> {
        loop {
            match &self.state {
                State::AwaitingConnector(find) => {
                    let find = *find;
                    let Some(hello) = self.poll_hello()? else { return Ok(None) };
                    self.state = self.identify(hello, find)?;
                }
                State::Rejecting => {
                    return match self.poll_completion(Tag::Hello.wr_id())? {
                        Some(_) => Err(session_unknown(&self.lane)),
                        None => Ok(None),
                    };
                }
                State::Driven { driver, is_resumed } => match drive(driver, &self.lane)? {
                    Err(block) => {
                        self.is_following = block == Block::Follow;
                        return Ok(None);
                    }
                    Ok(false) => self.state = self.reject()?,
                    Ok(true) => {
                        let established = match is_resumed {
                            true => Established::Resumed,
                            false => Established::New(Arc::clone(driver)),
                        };
                        self.state = State::Finished;
                        return Ok(Some(established));
                    }
                },
                #[cfg(all(test, feature = "soft", not(loom)))]
                State::Forging => match self.poll_completion(HELLO_RECV)? {
                    None => return Ok(None),
                    Some(completion) => {
                        let answer = completion.into_pool_message()?;
                        let answer = open_hello(&self.lane, &answer).and_then(Hello::parse);
                        assert_eq!(answer.map(|hello| hello.session), Ok(None));
                        return Err(session_unknown(&self.lane));
                    }
                },
                State::Finished => return Err(session_unknown(&self.lane)),
            }
        }
    }

    /// Returns the completion with this tag, if it has arrived. Otherwise an event is raised for the next completion.
    fn poll_completion(&self, tag: u64) -> Result<Option<adverb_verbs::Completion>> {
        self.lane.take_events().map_err(lost)?;
        self.lane.completions.arm(ArmFor::Any)?;
        let mut done = Vec::new();
        self.lane.completions.poll(&mut done)?;
        // Other completions may have arrived with it, and are not needed.
        Ok(done.into_iter().find(|completion| completion.tag() == tag))
    }

    /// Returns the connector's hello, if it has arrived.
    fn poll_hello(&self) -> Result<Option<Hello>> {
        let Some(completion) = self.poll_completion(HELLO_RECV)? else { return Ok(None) };
        let peer = self.lane.peer;
        if let Err(failure) = completion.outcome() {
            return Err(lost(ConnectionError::request_failed(peer, failure.status)));
        }
        let message = completion.into_pool_message()?;
        let hello = open_hello(&self.lane, &message).and_then(Hello::parse);
        let hello = hello
            .map_err(|violation| ConnectError::ProtocolViolation { peer, reason: violation.clause() })?;
        Ok(Some(hello))
    }

    /// Finds the connection to which the lane of a connector belongs, or creates it.
    fn identify(&self, hello: Hello, find: FindSession) -> Result<State> {
        let Some(SessionHello { id, received: Some(_) }) = hello.session else {
            let epoch = Instant::now();
            let connection = Connection::accept(config(&self.lane), hello, adverb_net_proto::Time::ZERO);
            let driver = Driver::new(Arc::clone(&self.lane), connection, epoch);
            return Ok(State::Driven { driver, is_resumed: false });
        };
        // Sessions belong to all listeners of the process, and a peer that has observed a session's ID does not
        // necessarily have its key.
        let key = self.lane.options.key.as_ref();
        let driver = find(&id).filter(|driver| HandshakeKey::is_same(key, driver.options.key.as_ref()));
        match driver {
            Some(driver) if driver.resume(&self.lane, hello) => {
                Ok(State::Driven { driver, is_resumed: true })
            }
            _ => self.reject(),
        }
    }

    /// Answers that the session is unknown.
    fn reject(&self) -> Result<State> {
        post_hello(&self.lane, &Hello::unknown_session().emit(), Tag::Hello.wr_id())?;
        Ok(State::Rejecting)
    }
}

impl Drop for HelloExchange {
    fn drop(&mut self) {
        if let State::Driven { driver, is_resumed: true } = &self.state
            && driver.is_owned()
        {
            driver.abort_lane(&self.lane);
        }
    }
}

fn config(lane: &Lane) -> adverb_net_proto::Config {
    lane::config(&lane.options, lane.config.max_read_len)
}

fn session_unknown(lane: &Lane) -> HandshakeError {
    ConnectError::SessionUnknown { peer: lane.peer }.into()
}

/// Returns the error of a handshake whose connection has failed.
fn lost(error: ConnectionError) -> HandshakeError {
    match error {
        ConnectionError::ProtocolViolation { peer, reason } => {
            ConnectError::ProtocolViolation { peer, reason }.into()
        }
        ConnectionError::Device { peer, source } => ConnectError::Device { peer, source }.into(),
        error => ConnectError::from(error).into(),
    }
}

/// Drives the connection until its lane is established, and not further: completions of messages belong to the calls
/// that wait for them. Returns whether the connection uses the lane, or the step that blocks.
fn drive(driver: &Driver, lane: &Arc<Lane>) -> Result<Result<bool, Block>> {
    let mut is_ready = |_: &Driver, core: &mut Core| is_established(core, lane);
    let mut caller = WaitingCaller::new(driver, CallerKind::Handshake);
    let mut locked = driver.locked();
    if let Some(is_used) = is_ready(driver, &mut locked.core)? {
        return Ok(Ok(is_used));
    }
    // The events of an old lane belong to the callers that wait for it.
    if Arc::ptr_eq(&locked.core.lane, lane) && lane.take_events().map_err(lost)? {
        caller.event_taken(&mut locked);
    }
    match caller.advance(&mut locked, |locked| driver.check(&mut locked.core, &mut is_ready)) {
        Ok(ended) => ended.map(Ok),
        Err(block) => Ok(Err(block)),
    }
}

/// Whether the lane is established: `Some(false)` if the connection will not use it.
fn is_established(core: &mut Core, lane: &Arc<Lane>) -> Result<Option<bool>> {
    let reason = core.connection.end_reason();
    if !Arc::ptr_eq(&core.lane, lane) {
        let is_next = core.successor.as_ref().is_some_and(|successor| Arc::ptr_eq(successor, lane));
        return match (is_next, reason) {
            (true, _) => Ok(None),
            (false, Some(_)) => Ok(Some(false)),
            // The peer reconnected over another path.
            (false, None) => Err(aborted(lane)),
        };
    }
    // One poll may return the peer's hello, its messages and its close.
    if core.is_lane_established {
        return Ok(Some(true));
    }
    match (core.connection.phase(), reason) {
        (PhaseKind::Established, _) => Ok(Some(true)),
        (PhaseKind::Handshake | PhaseKind::Draining, _) => Ok(None),
        (_, Some(EndReason::SessionUnknown)) => Err(session_unknown(lane)),
        (_, Some(reason)) => Err(lost(ended(core, reason))),
        (_, None) => Err(aborted(lane)),
    }
}

/// Returns the error of a handshake whose lane has failed.
fn aborted(lane: &Lane) -> HandshakeError {
    ConnectError::Aborted { peer: lane.peer, stage: HandshakeStage::Hello }.into()
}
