//! The application of one side, and its expectations.

use adverb_net_proto::{Connection, EndReason, ExposedRegion, PhaseKind, Post, Received, SendError};
use adverb_proto::Time;

use super::memory::{ModelRegion, ProcessMemory};

/// The number of messages per exposed region.
const EXPOSE_INTERVAL: u64 = 7;
/// The number of messages after the announcement of a region with an odd number until the region is withdrawn.
const WITHDRAW_DELAY: u64 = 2;
/// The length of an exposed region.
const EXPOSED_LEN: u32 = 40;

type ModelConnection = Connection<Vec<u8>, ModelRegion>;

/// The action of an application after its last message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Ending {
    /// The application leaves the connection open.
    Open,
    /// The application shuts down sending, and closes the connection when the peer has done the same.
    Shutdown,
    /// The application closes the connection.
    Close,
    /// The application aborts the connection.
    Abort,
}

/// A message of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PlannedMessage {
    pub(super) len: u32,
    /// Whether the message is sent from registered memory, even if it is short.
    pub(super) is_rendezvous: bool,
    pub(super) call: EagerCall,
}

/// The call that sends an eager message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum EagerCall {
    /// The message is coalesced with others.
    Feed,
    Send,
    /// The call returns the message's write if it can be posted. Otherwise, the message is sent by
    /// [`EagerCall::Send`].
    SendAtOnce,
}

/// The progress of an application.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Progress {
    Sending,
    /// The application has performed its planned ending, or can send no more because the connection has ended.
    Ended,
    /// The application has closed or aborted the connection, and receives nothing more.
    Left,
}

/// The messages that a receiver has received at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Receipt {
    /// The application has received this number of messages, and would have received more.
    Received(u64),
    /// The receiver's handshake exceeded its time limit, so its application never had a connection.
    NeverEstablished,
    /// The application has stopped receiving: it closed or aborted the connection, hangs, or its process was killed.
    Stopped,
}

/// The application of one side.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Application {
    side: u8,
    plan: Vec<PlannedMessage>,
    peer_plan: Vec<PlannedMessage>,
    ending: Ending,
    pub(super) progress: Progress,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Whether the application has received the peer's shutdown.
    pub(super) has_shutdown: bool,
    /// Whether the application makes no more calls.
    pub(super) is_hung: bool,
    pub(super) end: Option<EndReason>,
    pub(super) unacknowledged: Vec<u64>,
    /// The write of a message, which the driver posts before it does anything else.
    pub(super) unposted: Option<Post<Vec<u8>>>,
    /// The number of regions that were exposed.
    pub(super) exposed_count: u64,
    /// The number of regions that were withdrawn.
    withdrawn_count: u64,
    /// The regions that the peer exposes over the current lane, in order, by their numbers.
    peer_exposed: Vec<(u64, ExposedRegion)>,
    /// The number of regions that the peer has announced over the current lane, or had withdrawn before.
    peer_announced: u64,
    /// The number of reads of the peer's regions that the application will still post.
    reads_left: u32,
    pub(super) violation: Option<String>,
}

/// Returns the bytes of a message or of an exposed region.
fn content(side: u8, number: u64, len: u32) -> Vec<u8> {
    let first = (number as u8).wrapping_mul(31).wrapping_add(side.wrapping_mul(127));
    (0..len).map(|at| first.wrapping_add((at as u8).wrapping_mul(7))).collect()
}

/// Returns the number of messages before which a region is exposed.
fn exposed_at(number: u64) -> u64 {
    number * EXPOSE_INTERVAL + EXPOSE_INTERVAL / 2
}

/// Returns the number of messages before which a region is withdrawn.
fn withdrawn_at(number: u64) -> u64 {
    exposed_at(number) + WITHDRAW_DELAY
}

/// Whether a region is withdrawn.
fn is_withdrawn_later(number: u64) -> bool {
    number % 2 == 1
}

impl Application {
    pub(super) fn new(
        side: u8,
        plan: Vec<PlannedMessage>,
        peer_plan: Vec<PlannedMessage>,
        ending: Ending,
    ) -> Application {
        Application {
            side,
            plan,
            peer_plan,
            ending,
            progress: Progress::Sending,
            sent: 0,
            received: 0,
            has_shutdown: false,
            is_hung: false,
            end: None,
            unacknowledged: Vec::new(),
            unposted: None,
            exposed_count: 0,
            withdrawn_count: 0,
            peer_exposed: Vec::new(),
            peer_announced: 0,
            reads_left: 100,
            violation: None,
        }
    }

    fn report_violation(&mut self, what: String) {
        let side = self.side;
        self.violation.get_or_insert_with(|| format!("side {side}: {what}"));
    }

    /// Returns the counts that [`describe_change`](Application::describe_change) compares.
    pub(super) fn clone_counts(&self) -> (u64, u64, bool, Progress) {
        (self.sent, self.received, self.has_shutdown, self.progress)
    }

    /// Describes the change since the time of these counts.
    pub(super) fn describe_change(&self, before: (u64, u64, bool, Progress)) -> Option<String> {
        let (sent, received, had_shutdown, progress) = before;
        if self.sent > sent {
            let PlannedMessage { len, is_rendezvous, call } = self.plan[sent as usize];
            let kind = match (is_rendezvous, call) {
                (true, _) => "from registered memory",
                (false, EagerCall::Feed) => "coalesced",
                (false, EagerCall::Send) => "alone",
                (false, EagerCall::SendAtOnce) => "immediately",
            };
            Some(format!("sends message {sent}, {len} bytes, {kind}"))
        } else if self.received > received {
            Some(format!("receives message {received}"))
        } else if self.has_shutdown && !had_shutdown {
            Some("receives the shutdown".to_owned())
        } else if self.progress != progress {
            Some(format!("has sent all messages ({:?}, {:?})", self.ending, self.progress))
        } else {
            None
        }
    }

    /// Returns the maximum number of bytes that the connection keeps for a replay. If all messages are eager (at most
    /// `eager_limit` bytes), it keeps no more than the size of the peer's ring and a batch. Otherwise, it may keep all
    /// frames, because the peer may read other messages before a rendezvous message.
    pub(super) fn max_kept_bytes(&self, peer_ring: usize, eager_limit: u32) -> usize {
        let frames = self.plan.iter().map(|planned| planned.len as usize + 32).sum::<usize>();
        // The announcements of exposed regions are frames, too.
        let frames = frames + 64 * (2 + self.plan.len());
        let is_eager = |planned: &PlannedMessage| !planned.is_rendezvous && planned.len <= eager_limit;
        if self.plan.iter().all(is_eager) { frames.min(peer_ring + peer_ring / 4) } else { frames }
    }

    /// Whether the application has calls to make, besides receiving.
    pub(super) fn is_sending(&self) -> bool {
        self.progress != Progress::Left && self.end.is_none()
    }

    /// Sends the next message, exposes the next region, or ends the connection as planned. Returns whether the
    /// application did one of these.
    pub(super) fn send_next(
        &mut self,
        connection: &mut ModelConnection,
        memory: &mut ProcessMemory,
        now: Time,
    ) -> bool {
        if self.is_hung || self.end.is_some() {
            return false;
        }
        match self.progress {
            Progress::Sending => {}
            Progress::Ended => return self.close_after_shutdown(connection, now),
            Progress::Left => return false,
        }
        let Some(planned) = self.plan.get(self.sent as usize).copied() else {
            return self.perform_ending(connection, memory, now);
        };
        let withdrawn = 2 * self.withdrawn_count + 1;
        if self.sent == withdrawn_at(withdrawn) {
            connection.withdraw(|_, name, _| name == Some(&*withdrawn.to_string()));
            self.withdrawn_count += 1;
            return true;
        }
        let Some(limits) = connection.limits() else { return false };
        if self.sent == exposed_at(self.exposed_count) {
            return self.expose_next(connection, memory);
        }
        let bytes = content(self.side, self.sent, planned.len);
        let result = if planned.is_rendezvous || planned.len > limits.eager {
            let region = memory.register(bytes);
            connection.send_region(memory, region, limits.lane, None).map_err(|(error, region)| {
                memory.release(&region);
                error
            })
        } else {
            match planned.call {
                EagerCall::Feed => connection.feed(memory, &bytes, None),
                EagerCall::Send => connection.send(memory, &bytes, None),
                EagerCall::SendAtOnce => match connection.send_at_once(memory, &bytes, None) {
                    Some(write) => {
                        self.unposted = Some(write.into());
                        Ok(())
                    }
                    None => connection.send(memory, &bytes, None),
                },
            }
        };
        match result {
            Ok(()) => self.sent += 1,
            Err(SendError::Ended(_)) => self.progress = Progress::Ended,
            Err(_) => return false,
        }
        true
    }

    /// Exposes a region, whose name is its number.
    fn expose_next(&mut self, connection: &mut ModelConnection, memory: &mut ProcessMemory) -> bool {
        let number = self.exposed_count;
        let region = memory.register(content(self.side, number, EXPOSED_LEN));
        match connection.expose(&number.to_string(), region, 1) {
            Ok(_) => {
                self.exposed_count += 1;
                true
            }
            Err((error, region)) => {
                memory.release(&region);
                if let SendError::Ended(_) = error {
                    self.progress = Progress::Ended;
                }
                false
            }
        }
    }

    /// Records that a lane is established, over which the peer exposes its regions again.
    pub(super) fn record_lane(&mut self) {
        self.peer_exposed.clear();
        self.peer_announced = 0;
    }

    /// Records a region that the peer exposes.
    pub(super) fn add_exposed(&mut self, name: &str, region: ExposedRegion) {
        let Ok(number) = name.parse::<u32>().map(u64::from) else {
            return self.report_violation(format!("a region was announced as {name}"));
        };
        // The peer has withdrawn the regions that it skips.
        let mut skipped = self.peer_announced..number.min(self.peer_announced + 2);
        if number < self.peer_announced || skipped.any(|number| !is_withdrawn_later(number)) {
            self.report_violation(format!("region {name} was announced out of order"));
        }
        if self.is_withdrawn_by_peer(number) {
            self.report_violation(format!("region {name} was announced after its withdrawal"));
        }
        self.peer_announced = number.saturating_add(1);
        self.peer_exposed.push((number, region));
    }

    /// Records that the peer has withdrawn a region.
    pub(super) fn remove_exposed(&mut self, name: &str) {
        let before = self.peer_exposed.len();
        self.peer_exposed.retain(|(number, _)| *name != number.to_string());
        if self.peer_exposed.len() == before {
            self.report_violation(format!("region {name} was withdrawn, but not exposed"));
        }
    }

    /// Whether the peer withdrew a region before it sent the last message that this side has received.
    fn is_withdrawn_by_peer(&self, number: u64) -> bool {
        is_withdrawn_later(number) && self.received > withdrawn_at(number)
    }

    /// Returns the peer's region that the application reads next, if the application wants to read one.
    pub(super) fn next_read(&self) -> Option<ExposedRegion> {
        let is_reading = !self.is_hung && self.is_sending() && self.reads_left > 0;
        // A region that is withdrawn during a read breaks the lane, as a violation does.
        let mut regions = self.peer_exposed.iter().rev().filter(|(number, _)| !is_withdrawn_later(*number));
        regions.next().map(|(_, region)| *region).filter(|_| is_reading)
    }

    /// Records that a read was posted.
    pub(super) fn record_read(&mut self) {
        self.reads_left -= 1;
    }

    /// Checks the bytes of the peer's region.
    pub(super) fn check_read(&mut self, bytes: &[u8]) {
        let regions = self.peer_announced;
        if !(0..=regions).any(|number| content(1 - self.side, number, EXPOSED_LEN) == bytes) {
            self.report_violation("a read of the peer's region returned other bytes".to_owned());
        }
    }

    fn perform_ending(
        &mut self,
        connection: &mut ModelConnection,
        memory: &mut ProcessMemory,
        now: Time,
    ) -> bool {
        self.progress = Progress::Ended;
        match self.ending {
            Ending::Open => connection.flush(),
            Ending::Shutdown => {
                connection.shutdown();
                if connection.phase() == PhaseKind::Established
                    && connection.send(memory, b"late", None).is_ok()
                {
                    self.report_violation("a message was sent after the shutdown".to_owned());
                }
            }
            Ending::Close => return self.close(connection, memory, now),
            Ending::Abort => {
                self.progress = Progress::Left;
                connection.abort();
            }
        }
        true
    }

    /// Closes the connection if both sides have shut down.
    fn close_after_shutdown(&mut self, connection: &mut ModelConnection, now: Time) -> bool {
        if self.has_shutdown && self.ending == Ending::Shutdown {
            self.progress = Progress::Left;
            connection.close(now);
            return true;
        }
        false
    }

    /// Closes the connection.
    pub(super) fn close(
        &mut self,
        connection: &mut ModelConnection,
        _: &mut ProcessMemory,
        now: Time,
    ) -> bool {
        if self.is_hung || self.progress == Progress::Left || self.end.is_some() {
            return false;
        }
        self.progress = Progress::Left;
        connection.close(now);
        true
    }

    /// Receives a message or the peer's shutdown. Returns whether there was one.
    pub(super) fn receive_next(
        &mut self,
        connection: &mut ModelConnection,
        memory: &mut ProcessMemory,
        now: Time,
    ) -> bool {
        if self.is_hung {
            return false;
        }
        match connection.recv(memory, now) {
            Received::Message(message) => {
                if self.progress == Progress::Left && self.end.is_none() {
                    self.report_violation("a message was received after the close".to_owned());
                }
                if self.has_shutdown {
                    self.report_violation("a message was received after the peer's shutdown".to_owned());
                }
                let expected = self.peer_plan.get(self.received as usize);
                let expected = expected.map(|planned| content(1 - self.side, self.received, planned.len));
                if expected.as_ref() != Some(&message.buf) {
                    let (number, len) = (self.received, message.buf.len());
                    self.report_violation(format!(
                        "message {number} is lost, duplicated or altered ({len} bytes)"
                    ));
                }
                self.received += 1;
                let regions = self.peer_exposed.iter().map(|(number, _)| *number);
                if let Some(number) = regions.into_iter().find(|number| self.is_withdrawn_by_peer(*number)) {
                    self.report_violation(format!("the withdrawal of region {number} was announced late"));
                }
                true
            }
            Received::Shutdown => !std::mem::replace(&mut self.has_shutdown, true),
            Received::Pending | Received::Ended(_) => false,
        }
    }

    /// Records the end of the connection.
    pub(super) fn record_end(&mut self, reason: EndReason) {
        if self.end.is_some() {
            self.report_violation("the connection ended twice".to_owned());
        }
        if let EndReason::ProtocolViolation(_) = reason {
            self.report_violation(reason.to_string());
        }
        self.end = Some(reason);
    }

    /// Records a message that the peer may not have received.
    pub(super) fn add_unacknowledged(&mut self, number: u64, bytes: &[u8]) {
        let planned = self.plan.get(number as usize).filter(|_| number < self.sent);
        if planned.is_none_or(|planned| content(self.side, number, planned.len) != bytes) {
            self.report_violation(format!(
                "message {number} was reported as unacknowledged with other bytes"
            ));
        }
        if self.unacknowledged.last().is_some_and(|last| *last >= number) {
            self.report_violation("unacknowledged messages are out of order".to_owned());
        }
        self.unacknowledged.push(number);
    }

    /// Checks that the messages of this sender were received or reported. Without a session, posted messages may be
    /// lost. After a graceful close, the peer's device has all messages, so they are lost only if the peer never had a
    /// connection.
    pub(super) fn check_sent(&mut self, receipt: Receipt, has_session: bool) {
        let is_closed = self.end == Some(EndReason::Closed);
        let (received, is_promised) = match receipt {
            Receipt::Received(count) => (count, has_session || is_closed),
            Receipt::NeverEstablished => (0, has_session && !is_closed),
            Receipt::Stopped => return,
        };
        let lost = (received..self.sent).find(|number| !self.unacknowledged.contains(number));
        if let Some(number) = lost
            && is_promised
        {
            let end = self.end;
            self.report_violation(format!(
                "message {number} was neither received nor reported (end: {end:?})"
            ));
        }
    }
}
