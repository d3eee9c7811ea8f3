//! A thread that exchanges messages.
//!
//! Messages of a session are numbered from 0. A message has a header: its number, the number of the session at its sender,
//! its kind, and the number of WRITEs that its sender has checked.

use adverb::cluster::{Broker, Event, PeerId, SendBuf};
use anyhow::{Context, Result, ensure};

use crate::content::Purpose;
use crate::lines::{Fault, Tally};
use crate::session::{Pointers, Refusal, Session, refusal};
use crate::worker::{BURST, EVENT_TIMEOUT, FAULT_AT, Worker};

const HEADER_LEN: usize = 24;

/// The kinds of messages: pointers to memory, data, the announcement of a WRITE, and the final counts.
const POINTERS: u32 = 1;
const DATA: u32 = 2;
const WROTE: u32 = 3;
const FINAL: u32 = 4;

/// A thread that exchanges messages.
pub(crate) struct MessageThread {
    worker: Worker,
    peers: Vec<Peer>,
}

/// A peer of the thread.
#[derive(Default)]
struct Peer {
    /// The number of the last session.
    session_number: u32,
    /// The peer's number of its last session, and the peer's epoch.
    last_peer_session: Option<(u64, u32)>,
    link: Option<Link>,
}

/// An open session.
struct Link {
    session: Session,
    /// The peer's number of the session, which its first message contains.
    peer_session: Option<u32>,
    /// Whether a request was rejected, and no `Unblocked` event has followed.
    is_blocked: bool,
    has_sent_pointers: bool,
    has_sent_final: bool,
    has_received_final: bool,
    is_flowing: bool,
}

impl MessageThread {
    pub(crate) fn new(worker: Worker) -> MessageThread {
        let peers = worker.settings.addrs.iter().map(|_| Peer::default()).collect();
        MessageThread { worker, peers }
    }

    /// Runs until the coordinator closes the input.
    pub(crate) fn run(mut self, mut broker: Broker) -> Result<()> {
        while !self.worker.is_stopping() {
            let mut is_idle = true;
            for index in 0..self.peers.len() {
                is_idle &= !self.send(&mut broker, index).with_context(|| format!("with member {index}"))?;
            }
            if is_idle {
                broker.wait(EVENT_TIMEOUT)?;
            }
            let mut failure = None;
            broker.poll(|broker, event| {
                let peer = event.peer();
                if let Err(error) = self.handle(broker, event) {
                    failure.get_or_insert(error.context(format!("from member {}", peer.0)));
                }
            })?;
            failure.map_or(Ok(()), Err)?;
            self.finish()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let links = || self.peers.iter().filter_map(|peer| peer.link.as_ref());
        let is_finished = |link: &Link| link.has_sent_final && link.has_received_final;
        if links().count() == self.peers.len() - 1 && links().all(is_finished) {
            self.worker.finish(links().map(|link| &link.session))?;
        }
        let this_member = usize::from(self.worker.settings.member);
        let peers = self.peers.iter().enumerate().filter(|(index, _)| *index != this_member);
        self.worker.publish(|| {
            let describe = |(index, peer): (usize, &Peer)| match &peer.link {
                None => Some(format!("{index}: no session")),
                Some(link) if is_finished(link) => None,
                Some(link) => Some(format!("{index}: {}", link.describe())),
            };
            peers.filter_map(describe).collect::<Vec<_>>().join("; ")
        });
        Ok(())
    }

    /// Sends requests to a peer. Returns whether more can be sent at once.
    fn send(&mut self, broker: &mut Broker, index: usize) -> Result<bool> {
        let MessageThread { worker, peers } = self;
        let Peer { session_number, link, .. } = &mut peers[index];
        let Some(link) = link else { return Ok(false) };
        for _ in 0..BURST {
            if link.is_blocked {
                return Ok(false);
            }
            if worker.choose_close(&link.session) {
                broker.close(PeerId(index as u16));
                return Ok(false);
            }
            match link.send_next(worker, broker, PeerId(index as u16), *session_number)? {
                Ok(true) => {}
                // No message is left to send.
                Ok(false) | Err(Refusal::NotOpen) => return Ok(false),
                Err(Refusal::Later) => {}
                Err(Refusal::Blocked) => link.is_blocked = true,
            }
        }
        Ok(true)
    }

    fn handle(&mut self, broker: &mut Broker, event: Event<'_>) -> Result<()> {
        let MessageThread { worker, peers } = self;
        let index = event.peer().0;
        let peer = &mut peers[usize::from(index)];
        if let Event::SessionOpened { epoch, .. } = event {
            ensure!(peer.link.is_none(), "a session was opened before the last one ended");
            peer.session_number += 1;
            peer.link = Some(Link {
                session: worker.open(index, epoch)?,
                peer_session: None,
                is_blocked: false,
                has_sent_pointers: false,
                has_sent_final: false,
                has_received_final: false,
                is_flowing: false,
            });
            return Ok(());
        }
        let link = peer.link.as_mut().context("an event without a session")?;
        match event {
            Event::Message { bytes, .. } => {
                let (first, epoch) = (link.peer_session.is_none(), link.session.peer_side.epoch);
                link.handle_message(worker, bytes)
                    .with_context(|| format!("message {} of the session", link.session.received.messages))?;
                if let (true, Some(number)) = (first, link.peer_session) {
                    let last = peer.last_peer_session.replace((epoch, number));
                    ensure!(
                        last.is_none_or(|last| last < (epoch, number)),
                        "a message of session {number} arrived after one of {last:?}"
                    );
                }
                if worker.fault() == Some(Fault::ClosedSession) && link.session.received.messages > FAULT_AT {
                    broker.close(PeerId(index));
                }
            }
            Event::Immediate { immediate, length, .. } => {
                link.session.handle_immediate(immediate, length, &mut worker.counts)?;
            }
            Event::Completed { ticket, result, payloads, .. } => {
                link.session.handle_completed(ticket, result, payloads, &mut worker.counts)?;
            }
            Event::Unblocked { .. } => link.is_blocked = false,
            Event::SessionEnded { epoch, reason, .. } => {
                worker.end(&link.session, epoch, reason)?;
                peer.link = None;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Link {
    /// Sends the next request. Returns `false` if there is none.
    fn send_next(
        &mut self,
        worker: &mut Worker,
        broker: &mut Broker,
        peer: PeerId,
        session_number: u32,
    ) -> Result<std::result::Result<bool, Refusal>> {
        let number = self.session.sent.messages;
        if self.has_sent_final {
            return Ok(Ok(false));
        }
        if worker.fault() == Some(Fault::StoppedThread) && number == FAULT_AT {
            std::thread::sleep(std::time::Duration::MAX);
        }
        let has_more = worker.has_more(number + 1);
        let is_final = self.has_sent_pointers && !has_more;
        // The peer gets the final counts after all transfers.
        if is_final && self.session.ticket_count() > 0 {
            return Ok(Ok(false));
        }
        if self.has_sent_pointers
            && !is_final
            && let Some(kind) = Worker::choose(&mut self.session.random)
        {
            let posted = self.session.post(broker, kind, &mut worker.counts)?;
            return Ok(posted.map(|()| true));
        }
        let mut message = match broker.allocate_send_buf(peer) {
            Ok(message) => message,
            Err(error) => return Ok(Err(refusal(error)?)),
        };
        if !self.has_sent_pointers {
            self.write_header(&mut message, number, session_number, POINTERS)?;
            message.write(&self.session.local_pointers(&worker.shared).to_bytes())?;
        } else if is_final {
            self.write_header(&mut message, number, session_number, FINAL)?;
            let tally = Tally { messages: number + 1, ..self.session.sent };
            message.write(&tally.to_bytes())?;
        } else {
            let choice = self.session.random.below(16);
            // The slot for the announcement is already taken, so the announcement follows the WRITE.
            if choice < 2 && self.session.can_write() {
                match self.session.post_write(broker, choice == 1, &mut worker.counts)? {
                    Ok(write) => {
                        self.write_header(&mut message, number, session_number, WROTE)?;
                        message.write(&write.to_le_bytes())?;
                    }
                    Err(refusal) => return Ok(Err(refusal)),
                }
            } else {
                self.write_header(&mut message, number, session_number, DATA)?;
                let stream = self.session.outgoing(Purpose::Message);
                let len = stream.len(number, message.capacity() - HEADER_LEN);
                message.resize(HEADER_LEN + len)?;
                stream.fill(number, &mut message[HEADER_LEN..]);
            }
        }
        if number == FAULT_AT && self.inject_fault(worker, broker, peer, &mut message)? {
            return Ok(Ok(true));
        }
        match broker.post_send(message) {
            Ok(()) => {}
            Err(error) => return Ok(Err(refusal(error)?)),
        }
        self.session.sent.messages += 1;
        self.has_sent_final = is_final;
        self.has_sent_pointers = true;
        Ok(Ok(true))
    }

    fn write_header(&self, message: &mut SendBuf, number: u64, session: u32, kind: u32) -> Result<()> {
        message.write(&number.to_le_bytes())?;
        message.write(&session.to_le_bytes())?;
        message.write(&kind.to_le_bytes())?;
        Ok(message.write(&self.session.received.writes.to_le_bytes())?)
    }

    /// Injects a fault into one message. Returns whether the message must not be sent.
    fn inject_fault(
        &mut self,
        worker: &Worker,
        broker: &mut Broker,
        peer: PeerId,
        message: &mut SendBuf,
    ) -> Result<bool> {
        match worker.fault() {
            Some(Fault::WrongByte) => {
                let last = message.len() - 1;
                message[last] ^= 0x40;
            }
            // Without a credit, no second message is sent.
            Some(Fault::DuplicateMessage) => _ = broker.send(peer, message),
            Some(Fault::LostMessage) => {
                self.session.sent.messages += 1;
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    fn handle_message(&mut self, worker: &mut Worker, bytes: &[u8]) -> Result<()> {
        let (header, body) = bytes.split_first_chunk::<HEADER_LEN>().context("the message has no header")?;
        let (words, _) = header.as_chunks::<8>();
        let [number, middle, checked] = [0, 1, 2].map(|index| u64::from_le_bytes(words[index]));
        let (session, kind) = (middle as u32, (middle >> 32) as u32);
        let expected = self.session.received.messages;
        ensure!(number == expected, "number {number} arrived instead of {expected}");
        let known = *self.peer_session.get_or_insert(session);
        ensure!(session == known, "it belongs to session {session} of the peer instead of {known}");
        ensure!(!self.has_received_final, "it arrived after the final counts");
        self.session.handle_checked(checked)?;
        self.session.received.messages += 1;
        worker.counts.messages += 1;
        worker.counts.bytes += bytes.len() as u64;
        match kind {
            POINTERS => {
                ensure!(number == 0, "it has pointers");
                self.session.pointers = Some(Pointers::from_bytes(body)?);
            }
            DATA => {
                let stream = self.session.incoming(Purpose::Message);
                let max = crate::member::SLOT_SIZE as usize - HEADER_LEN;
                let len = stream.len(number, max);
                ensure!(body.len() == len, "it has {} bytes instead of {len}", body.len());
                stream.check(number, 0, body)?;
            }
            WROTE => {
                let write = u64::from_le_bytes(body.try_into().context("the number of a WRITE")?);
                self.session.handle_write(write, &mut worker.counts)?;
            }
            FINAL => {
                let tally = Tally::from_bytes(body.try_into().context("the final counts")?);
                let received = self.session.received.messages;
                ensure!(tally.messages == received, "the peer sent {} messages", tally.messages);
                self.session.handle_final(tally)?;
                self.has_received_final = true;
            }
            _ => ensure!(false, "its kind is {kind}"),
        }
        if number > 0 && !self.is_flowing {
            self.is_flowing = true;
            worker.print_flowing(&self.session);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let Link { session, is_blocked, has_sent_final, has_received_final, .. } = self;
        format!(
            "sent {}, received {}, {} tickets, blocked {is_blocked}, final sent {has_sent_final}, received {has_received_final}",
            session.sent.messages,
            session.received.messages,
            session.ticket_count()
        )
    }
}
