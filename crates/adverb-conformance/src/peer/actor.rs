//! An end that executes commands with its device.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adverb::memory::RemoteMemory;
use adverb::verbs::{
    Access, CompletedOperation, Completion, CompletionQueue, ConnectOptions, FlushPlacement, MemoryWindow,
    PathMtu, QueuePair, RecvRequest, SendRequest, Status, Transport as QpTransport, UdDestination,
};
use anyhow::{Context, Result, bail, ensure};

use super::Port;
use super::message::{
    Action, Answer, Arrived, Atomics, Batch, Command, Connect, ExpectedMemory, ExpectedReceives, Kind,
    Opened, Perform, Transport,
};
use super::store::Store;
use crate::fixture::{COMPLETION_TIMEOUT, QKEY, check, expect, fill};

/// The depth of a queue.
const DEPTH: u32 = 64;

/// The time without completions after which no more are expected, longer than a network delays packets.
const QUIET_PERIOD: Duration = Duration::from_millis(150);

/// An end that executes commands.
pub(super) struct Actor {
    port: Port,
    objects: Option<CaseObjects>,
    /// The memory, while no case uses it.
    store: Option<Store>,
}

impl Actor {
    pub(super) fn new(port: Port) -> Actor {
        Actor { port, objects: None, store: None }
    }

    pub(super) fn execute(&mut self, command: Command) -> Answer {
        self.try_execute(command).unwrap_or_else(|error| Answer::Failed(format!("{error:#}")))
    }

    fn try_execute(&mut self, command: Command) -> Result<Answer> {
        if let Command::Open(transport) = command {
            self.close();
            let store = self.store.take().map_or_else(|| Store::new(&self.port), Ok)?;
            let objects = self.objects.insert(CaseObjects::new(&self.port, store, transport)?);
            return Ok(Answer::Opened(objects.describe(&self.port)));
        }
        if let Command::Close = command {
            self.close();
            return Ok(Answer::Done);
        }
        self.objects.as_mut().context("no queue pair is open")?.execute(command)
    }

    /// Ends a case. The memory stays for the next.
    fn close(&mut self) {
        if let Some(CaseObjects { store, .. }) = self.objects.take() {
            self.store = Some(store);
        }
    }
}

/// A queue pair and the other objects of a case.
struct CaseObjects {
    transport: Transport,
    // A window is dropped before the queue pair that it is bound to.
    window: Option<MemoryWindow>,
    qp: QueuePair,
    cq: CompletionQueue,
    store: Store,
    /// Completions of receives that arrived while those of sends were awaited, and the reverse.
    early: Vec<Completion>,
}

/// The tag of receives. The tag of a send is its index in a batch.
const RECV_TAG: u64 = 1 << 63;

impl CaseObjects {
    fn new(port: &Port, store: Store, transport: Transport) -> Result<CaseObjects> {
        let cq = port.device.completion_queue(2 * DEPTH).events().create()?;
        let transport_of_qp = match transport {
            Transport::Rc => QpTransport::Rc,
            Transport::Uc => QpTransport::Uc,
            Transport::Ud => QpTransport::Ud,
        };
        let builder = store.domain.queue_pair(transport_of_qp).completion_queue(&cq).depth(DEPTH, DEPTH);
        let builder = match port.address {
            Some(address) => builder.local_addr(address),
            None => builder,
        };
        let qp = builder.qkey(QKEY).create()?;
        Ok(CaseObjects { transport, window: None, qp, cq, store, early: Vec::new() })
    }

    fn describe(&self, port: &Port) -> Opened {
        let attributes = port.device.attributes();
        Opened {
            endpoint: self.qp.endpoint(),
            memory: self.store.memory.remote(),
            mtu: self.qp.endpoint().mtu,
            max_rd_atomic: attributes.max_rd_atomic.min(attributes.max_dest_rd_atomic),
            atomics: attributes.has_atomics,
            memory_windows: attributes.has_memory_windows,
            atomic_write: attributes.has_atomic_write,
            flush: attributes.flush.global,
        }
    }

    fn execute(&mut self, command: Command) -> Result<Answer> {
        match command {
            Command::Connect(connect) => self.connect(&connect)?,
            Command::PostReceives { count, len } => self.post_receives(count, len)?,
            Command::Receive(expected) => return self.receive_batch(&expected).map(Answer::Arrived),
            Command::Clear(batch) => self.store.clear(&batch)?,
            Command::Fill(batch) => {
                self.store.clear(&batch)?;
                self.store.write(&batch)?;
            }
            Command::CheckMemory(expected) => return self.check_memory(&expected).map(Answer::Arrived),
            Command::Perform(perform) => self.perform(&perform)?,
            Command::Atomics(atomics) => return self.atomics(&atomics).map(Answer::Word),
            Command::Exchange(word) => {
                return Ok(Answer::Word(self.store.memory.word(0)?.swap(word, Ordering::SeqCst)));
            }
            Command::Bind => return self.bind(),
            Command::Hello(_) | Command::Open(_) | Command::Close | Command::Bye => {
                bail!("unexpected command")
            }
        }
        Ok(Answer::Done)
    }

    fn connect(&mut self, connect: &Connect) -> Result<()> {
        if self.transport == Transport::Ud {
            return Ok(self.qp.move_to_rts()?);
        }
        let mtu = PathMtu::at_most(connect.mtu.into()).context("invalid MTU")?;
        // The maximum number of retries is used, because Linux's rxe counts losses between two ACKs even if other
        // packets arrive.
        let options = ConnectOptions::new().mtu(mtu).max_rd_atomic(connect.max_rd_atomic).retry_count(7);
        Ok(self.qp.connect_with(&connect.peer, &options)?)
    }

    fn post_receives(&mut self, count: u32, len: u32) -> Result<()> {
        for _ in self.qp.outstanding_recv_count()..count.min(DEPTH) {
            let receive = RecvRequest::new(self.store.take(len as usize)?).tag(RECV_TAG);
            self.qp.post_recv(receive).map_err(adverb::verbs::Error::from)?;
        }
        Ok(())
    }

    /// Returns the next completion of a receive or of a send, or `None` if none arrives in time.
    fn next(&mut self, is_recv: bool, deadline: Instant) -> Result<Option<Completion>> {
        loop {
            let wanted = |completion: &Completion| (completion.tag() & RECV_TAG != 0) == is_recv;
            if let Some(place) = self.early.iter().position(wanted) {
                return Ok(Some(self.early.remove(place)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.cq.poll_timeout(&mut self.early, left)? == 0 {
                return Ok(None);
            }
        }
    }

    fn receive_batch(&mut self, expected_receives: &ExpectedReceives) -> Result<Arrived> {
        let ExpectedReceives { batch, kind, lossy, invalidated } = *expected_receives;
        let has_completion = |index: &u32| kind == Kind::Message || batch.immediate_of(*index).is_some();
        let mut missing: Vec<u32> = (0..batch.count).filter(has_completion).collect();
        let expected = missing.len();
        let mut arrived = Arrived::default();
        while !missing.is_empty() {
            let completion_timeout = if lossy { QUIET_PERIOD } else { COMPLETION_TIMEOUT };
            let Some(completion) = self.next(true, Instant::now() + completion_timeout)? else { break };
            let received = self.receive(completion)?;
            ensure!(
                received.invalidated == invalidated,
                "{:x?} was invalidated, not {invalidated:x?}",
                received.invalidated
            );
            // Messages arrive in order, unless the network loses or reorders packets.
            let candidates = if self.transport == Transport::Rc { &missing[..1] } else { &missing[..] };
            let place = candidates.iter().position(|index| received.matches(&batch, *index, kind).is_ok());
            let Some(place) = place else {
                received.matches(&batch, candidates[0], kind)?;
                bail!("a received message of {} bytes equals none of the sent ones", received.bytes.len());
            };
            arrived.indices.push(missing.remove(place));
        }
        let received = arrived.indices.len();
        ensure!(
            lossy || missing.is_empty(),
            "{received} of {expected} messages of {} bytes arrived",
            batch.len
        );
        if invalidated.is_some() {
            let window = self.window.as_ref().context("there is no window")?;
            ensure!(!window.is_bound(), "the window is still bound");
        }
        Ok(arrived)
    }

    fn check_memory(&mut self, expected: &ExpectedMemory) -> Result<Arrived> {
        let ExpectedMemory { batch, lossy, mtu, whole } = expected;
        let deadline = Instant::now() + if *lossy { QUIET_PERIOD } else { COMPLETION_TIMEOUT };
        let unreliable = self.transport == Transport::Uc;
        loop {
            let may_lack = |index| unreliable && !whole.contains(&index);
            let indices = self.store.find(batch, (*mtu).into(), may_lack)?;
            let complete = indices.len() == batch.count as usize;
            if complete || Instant::now() >= deadline {
                let count = indices.len();
                ensure!(complete || *lossy, "{count} of {} writes are complete", batch.count);
                return Ok(Arrived { indices });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn perform(&mut self, perform: &Perform) -> Result<()> {
        let Perform { action, batch, memory, recipient, refused } = perform;
        ensure!(batch.count <= DEPTH, "the batch exceeds the queue's depth");
        let recipient =
            recipient.as_ref().map(|peer| self.qp.create_ud_destination(peer, QKEY)).transpose()?;
        for index in 0..batch.count {
            let mut bytes = self.store.take(batch.len as usize)?;
            // The buffer must differ from the bytes to be read.
            fill(&mut bytes, if *action == Action::Read { !batch.seed } else { batch.seed_of(index) });
            let place = memory.at(batch.offset_of(index) as u64);
            let request = match (action, batch.immediate_of(index)) {
                (Action::Send, None) => SendRequest::send(bytes),
                (Action::Send, Some(immediate)) => SendRequest::send_with_imm(bytes, immediate),
                (Action::SendInvalidate(key), _) => SendRequest::send_invalidate(bytes, *key),
                (Action::Write, None) => SendRequest::write(bytes, place),
                (Action::Write, Some(immediate)) => SendRequest::write_with_imm(bytes, place, immediate),
                (Action::Read, _) => SendRequest::read(bytes, place),
                (Action::AtomicWrite, _) => {
                    let word = bytes[..].try_into().context("an ATOMIC WRITE has eight bytes")?;
                    self.store.keep(Some(bytes));
                    SendRequest::atomic_write(word, place)
                }
                (Action::WriteAndFlush, _) => {
                    self.post(SendRequest::write(bytes, place).unsignaled().tag(index.into()), None)?;
                    let written = RemoteMemory { addr: place.addr, len: batch.len.into(), ..*memory };
                    match index % 2 {
                        0 => SendRequest::flush(written, FlushPlacement::GLOBAL),
                        _ => SendRequest::flush_region(memory.rkey, FlushPlacement::GLOBAL),
                    }
                }
            };
            self.post(request.tag(index.into()), recipient.as_ref())?;
        }
        for index in 0..batch.count {
            if *action == Action::WriteAndFlush {
                let written = self.sent(index)?;
                written.result().with_context(|| format!("write {index} of {} bytes", batch.len))?;
                self.store.keep(written.into_buffer());
            }
            let completion = self.sent(index)?;
            if *refused {
                expect("the request without access", &completion, Status::RemoteAccess)?;
                continue;
            }
            completion.result().with_context(|| format!("request {index} of {} bytes", batch.len))?;
            if matches!(action, Action::AtomicWrite | Action::WriteAndFlush) {
                continue;
            }
            let bytes = completion.into_buffer().context("the completion has no buffer")?;
            if *action == Action::Read {
                check(&bytes, batch.seed_of(index)).with_context(|| format!("read {index}"))?;
            }
            self.store.keep(Some(bytes));
        }
        Ok(())
    }

    /// Executes atomics on one word, each of which depends on the one before. Some must not change it.
    fn atomics(&mut self, atomics: &Atomics) -> Result<u64> {
        let Atomics { swap, count, mut word, memory } = *atomics;
        ensure!(count <= DEPTH, "the batch exceeds the queue's depth");
        let mut before = Vec::new();
        for index in 0..count {
            before.push(word);
            let original = self.store.take(8)?;
            let operand = (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let request = if !swap {
                word = word.wrapping_add(operand);
                SendRequest::fetch_add(original, memory.at(0), operand)
            } else if index % 4 == 3 {
                SendRequest::compare_swap(original, memory.at(0), !word, operand)
            } else {
                let compare = std::mem::replace(&mut word, operand);
                SendRequest::compare_swap(original, memory.at(0), compare, operand)
            };
            self.post(request.tag(index.into()), None)?;
        }
        for (index, before) in (0..count).zip(before) {
            let completion = self.sent(index)?;
            completion.result().with_context(|| format!("atomic {index}"))?;
            let bytes = completion.into_buffer().context("the completion has no buffer")?;
            let original = u64::from_ne_bytes(bytes[..].try_into()?);
            ensure!(
                original == before,
                "atomic {index} returned {original:#x}, but the word was {before:#x}"
            );
            self.store.keep(Some(bytes));
        }
        Ok(word)
    }

    fn bind(&mut self) -> Result<Answer> {
        let window = match self.window.take() {
            Some(window) => window,
            None => self.store.domain.create_memory_window()?,
        };
        let slice = self.store.memory.slice(0..self.store.memory.len())?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.post(SendRequest::bind(window, slice, access), None)?;
        let completion = self.sent(0)?;
        completion.result().context("binding a window")?;
        let window = completion.into_window().context("the completion has no window")?;
        let remote = window.remote().context("the window isn't bound")?;
        self.window = Some(window);
        Ok(Answer::Window(remote))
    }

    fn post(&self, request: SendRequest, recipient: Option<&UdDestination>) -> Result<()> {
        let request = match recipient {
            Some(recipient) => request.destination(recipient),
            None => request,
        };
        self.qp.post_send(request).map_err(adverb::verbs::Error::from)?;
        Ok(())
    }

    /// Returns the completion of the next send, and checks that it has this index.
    fn sent(&mut self, index: u32) -> Result<Completion> {
        let completion = self.next(false, Instant::now() + COMPLETION_TIMEOUT)?;
        let completion = completion
            .with_context(|| format!("request {index} did not complete within {COMPLETION_TIMEOUT:?}"))?;
        ensure!(
            completion.tag() == u64::from(index),
            "request {} completed before {index}",
            completion.tag()
        );
        Ok(completion)
    }

    /// Returns the contents of a receive.
    fn receive(&mut self, completion: Completion) -> Result<ReceivedMessage> {
        let operation = completion.result().context("a receive")?.operation;
        if let CompletedOperation::RecvWrite { immediate } = operation {
            self.store.keep(completion.into_buffer());
            return Ok(ReceivedMessage {
                bytes: vec![],
                immediate: Some(immediate),
                invalidated: None,
                kind: Kind::Write,
            });
        }
        let CompletedOperation::Recv { immediate, invalidated, .. } = operation else {
            bail!("the completion is not that of a receive: {completion}")
        };
        let message = match self.transport {
            Transport::Ud => completion.into_datagram()?.message,
            _ => completion.into_message()?,
        };
        let bytes = message.to_vec();
        self.store.keep(Some(message));
        Ok(ReceivedMessage { bytes, immediate, invalidated, kind: Kind::Message })
    }
}

/// The contents of a receive.
struct ReceivedMessage {
    bytes: Vec<u8>,
    immediate: Option<u32>,
    invalidated: Option<u32>,
    kind: Kind,
}

impl ReceivedMessage {
    /// Checks that this is the message of a batch with this index.
    fn matches(&self, batch: &Batch, index: u32, kind: Kind) -> Result<()> {
        let immediate = batch.immediate_of(index);
        ensure!(self.kind == kind, "a receive is of a {:?}, not of a {kind:?}", self.kind);
        ensure!(self.immediate == immediate, "immediate data is {:x?}, not {immediate:x?}", self.immediate);
        if kind == Kind::Message {
            let (received, sent) = (self.bytes.len(), batch.len as usize);
            ensure!(received == sent, "{received} bytes arrived, not {sent}");
            check(&self.bytes, batch.seed_of(index)).with_context(|| format!("message {index}"))?;
        }
        Ok(())
    }
}
