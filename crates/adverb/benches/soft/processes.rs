//! Measurements with two processes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::memory::MemoryRegion;
use adverb::verbs::recording::ActiveRecording;
use adverb::verbs::{
    Access, Completion, CompletionQueue, CompletionQueueBuilder, ConnectOptions, Device, ProtectionDomain,
    QueuePair, RecvRequest, SendRequest, SharedReceiveQueue, Transport,
};
use serde::{Deserialize, Serialize};

use crate::peer::{self, Offer, Peer, Plan};
use crate::{Outcome, cpu_time, print_result};

/// The number of outstanding writes.
const WRITES: usize = 64;

/// The number of requests that are posted with one doorbell.
const BATCH: usize = 64;

/// The maximum number of messages in flight.
const MESSAGES: usize = 2048;

/// The number of posted receives for messages that arrive one at a time.
const RECEIVES_FOR_ONE: u32 = 8;

/// The number of posted receives for many messages.
const RECEIVES: u32 = 8192;

/// A message contains its number, and from this bit on the index of the sending queue pair.
const SENDER_SHIFT: u32 = 40;

/// The timeout of every operation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// The queue pairs, queues and memory of one side.
pub(crate) struct Side {
    domain: ProtectionDomain,
    pub(crate) completions: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    pub(crate) queue_pairs: Vec<QueuePair>,
    pub(crate) memory: MemoryRegion,
}

impl Side {
    pub(crate) fn new(device: &Device, len: usize, depth: u32) -> Outcome<Side> {
        Side::with(device, device.completion_queue(depth), len)
    }

    pub(crate) fn with_events(device: &Device, len: usize, depth: u32) -> Outcome<Side> {
        Side::with(device, device.completion_queue(depth).events(), len)
    }

    fn with(device: &Device, completions: CompletionQueueBuilder, len: usize) -> Outcome<Side> {
        let domain = device.create_protection_domain()?;
        let completions = completions.create()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = domain.allocate_region(len.max(8), access)?;
        Ok(Side { domain, completions, shared: None, queue_pairs: Vec::new(), memory })
    }

    /// Creates queue pairs, with the shared receive queue if there is one.
    pub(crate) fn add(&mut self, count: u32, sends: u32, receives: u32) -> Outcome {
        for _ in 0..count {
            let builder = self.domain.queue_pair(Transport::Rc).completion_queue(&self.completions);
            let builder = builder.access(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
            let builder = match &self.shared {
                Some(shared) => builder.shared_receive_queue(shared).depth(sends, 1),
                None => builder.depth(sends, receives),
            };
            self.queue_pairs.push(builder.create()?);
        }
        Ok(())
    }

    pub(crate) fn offer(&self, which: Range<usize>) -> Offer {
        let endpoints = self.queue_pairs[which].iter().map(QueuePair::endpoint).collect();
        Offer { endpoints, memory: self.memory.remote() }
    }

    pub(crate) fn connect(&self, offer: &Offer) -> Outcome {
        for (queue_pair, endpoint) in self.queue_pairs.iter().zip(&offer.endpoints) {
            // Short RNR backoff, for a receiver that was preempted and ran out of receives.
            queue_pair.connect_with(endpoint, &ConnectOptions::new().min_rnr_timer(6))?;
        }
        Ok(())
    }

    /// Connects with the process that was started.
    fn connect_to_child(&self, peer: &mut Peer) -> Outcome<Offer> {
        peer.send_line(&self.offer(0..self.queue_pairs.len()))?;
        let theirs: Offer = peer.receive_line()?;
        self.connect(&theirs)?;
        // Neither side sends before both are ready.
        peer.send_line(&())?;
        peer.receive_line::<()>()?;
        Ok(theirs)
    }

    /// Connects with the process that started this one.
    fn connect_to_parent(&self) -> Outcome {
        let theirs: Offer = peer::receive_line()?;
        self.connect(&theirs)?;
        peer::send_line(&self.offer(0..self.queue_pairs.len()))?;
        peer::receive_line::<()>()?;
        peer::send_line(&())
    }
}

/// Measures RDMA WRITEs. Both sides poll, or both sleep while they wait.
pub(crate) fn write(ours: &str, theirs: &str, time: Duration, len: usize, asleep: bool) -> Outcome {
    let mut peer = Peer::start(&if asleep { Plan::Sleep(len) } else { Plan::Poll(len) }, theirs)?;
    let mut side = Side::with_events(&Device::open(ours)?, len, 2 * WRITES as u32)?;
    side.add(1, WRITES as u32, 1)?;
    let remote = side.connect_to_child(&mut peer)?.memory;
    let slice = || side.memory.slice(0..len);
    let mut done: Vec<Completion> = Vec::with_capacity(WRITES);
    let (mut posted, mut completed) = (0, 0);
    let (start, cpu) = (Instant::now(), cpu_time());
    let mut count = |posted: &mut usize, completed: &mut usize, wanted: usize| -> Outcome {
        for _ in 0..wanted {
            side.queue_pairs[0].post_send(SendRequest::write(slice()?, remote.at(0)))?;
            *posted += 1;
        }
        if asleep {
            side.completions.poll_timeout(&mut done, TIMEOUT)?;
        } else {
            side.completions.poll(&mut done)?;
        }
        for completion in done.drain(..) {
            completion.result()?;
            *completed += 1;
        }
        Ok(())
    };
    while start.elapsed() < time {
        let free = WRITES - (posted - completed);
        count(&mut posted, &mut completed, free)?;
    }
    while completed < posted {
        count(&mut posted, &mut completed, 0)?;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    let bytes = completed as f64 * len as f64;
    print_result("bandwidth", bytes / seconds / 1e6);
    print_result("processor-ns-per-KiB", cpu.as_secs_f64() * 1e9 / (bytes / 1024.0));
    counters(&side.domain);
    peer.finish::<f64>()?;
    Ok(())
}

/// Measures SENDs, over one connection or over many in turn.
pub(crate) fn rate(ours: &str, theirs: &str, plan: Plan, time: Duration) -> Outcome {
    let Plan::Rate { queue_pairs, len, is_recorded } = plan else {
        return Err("the plan is not `Rate`".into());
    };
    let mut peer = Peer::start(&plan, theirs)?;
    let before = resident();
    let (sends, batch) = per_queue_pair(queue_pairs);
    let device = Device::open(ours)?;
    // Each queue pair has a slot per request: the bytes of a message must stay until it is acknowledged, also while
    // messages of other queue pairs overtake it.
    let slots = (sends * queue_pairs) as usize;
    let mut side = Side::new(&device, len * slots, (sends + 1) * queue_pairs)?;
    side.add(queue_pairs, sends, 1)?;
    let mut posted_by_queue_pair = vec![0; queue_pairs as usize];
    let active = if is_recorded { Some(device.recording().start()?) } else { None };
    side.connect_to_child(&mut peer)?;
    let after_setup = resident();
    let mut done: Vec<Completion> = Vec::with_capacity(MESSAGES);
    let (mut posted, mut completed) = (0u64, 0u64);
    // Warms up every queue pair: its first message allocates its rings.
    let warm = 2 * u64::from(batch) * u64::from(queue_pairs);
    let mut begin = None;
    let mut next = 0;
    loop {
        if begin.is_none() && completed >= warm {
            begin = Some((Instant::now(), cpu_time(), completed));
        }
        if begin.is_some_and(|(start, ..)| start.elapsed() >= time) {
            break;
        }
        while posted - completed + u64::from(batch) <= MESSAGES as u64 {
            let queue_pair = &side.queue_pairs[next];
            if queue_pair.outstanding_send_count() + batch > sends {
                break;
            }
            let sender = (next as u64) << SENDER_SHIFT;
            let (first_slot, posted_here) = (next * sends as usize, posted_by_queue_pair[next]);
            posted_by_queue_pair[next] += batch as usize;
            next = (next + 1) % side.queue_pairs.len();
            let request = |index: u32| {
                let number = posted + u64::from(index);
                let at = (first_slot + (posted_here + index as usize) % sends as usize) * len;
                let word = side.memory.word(at).expect("the word is aligned and lies in the region");
                word.store(sender | (number + 1), Ordering::Relaxed);
                let slice = side.memory.slice(at..at + len).expect("the slice lies in the region");
                let request = SendRequest::send(slice);
                // One signaled request completes the whole batch.
                if index == batch - 1 { request } else { request.unsignaled() }
            };
            if batch == 1 {
                queue_pair.post_send(request(0))?;
            } else {
                queue_pair.post_sends((0..batch).map(request))?;
            }
            posted += u64::from(batch);
        }
        side.completions.poll(&mut done)?;
        for completion in done.drain(..) {
            completion.result()?;
            completed += 1;
        }
    }
    let deadline = Instant::now() + TIMEOUT;
    while completed < posted {
        side.completions.poll(&mut done)?;
        for completion in done.drain(..) {
            completion.result()?;
            completed += 1;
        }
        if Instant::now() > deadline {
            return Err(format!("{completed} of {posted} messages were acknowledged").into());
        }
    }
    let (start, cpu, warm_up_count) = begin.ok_or("the time ended before the measurement started")?;
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    let theirs: ReceiveResult = peer.finish()?;
    let measured = (completed - warm_up_count) as f64;
    print_result("rate", measured / seconds);
    print_result("processor-us-per-message", cpu.as_secs_f64() * 1e6 / measured);
    print_result("sent", posted as f64);
    print_result("received", theirs.messages as f64);
    if let Some(active) = active {
        let recording = active.stop();
        let events = recording.lost_count + recording.events.len() as u64;
        print_result("events-per-message", (events + theirs.events) as f64 / posted as f64);
    }
    print_result("out-of-order", theirs.out_of_order as f64);
    let per_queue_pair = |bytes: u64| bytes as f64 / 1024.0 / f64::from(queue_pairs);
    print_result("KiB-per-queue-pair", per_queue_pair(after_setup.saturating_sub(before)));
    print_result("KiB-per-queue-pair-after", per_queue_pair(resident().saturating_sub(before)));
    print_result("KiB-per-queue-pair-peer", per_queue_pair(theirs.bytes));
    counters(&side.domain);
    if theirs.messages != posted || theirs.out_of_order != 0 {
        return Err("messages were lost, doubled or out of order".into());
    }
    Ok(())
}

/// The maximum number of outstanding sends of a queue pair, and the number that is posted at a time.
fn per_queue_pair(queue_pairs: u32) -> (u32, u32) {
    if queue_pairs == 1 { (MESSAGES as u32, BATCH as u32) } else { (8, 1) }
}

/// The result of the receiving side.
#[derive(Debug, Serialize, Deserialize)]
struct ReceiveResult {
    messages: u64,
    out_of_order: u64,
    bytes: u64,
    /// The number of recorded events.
    events: u64,
}

/// Measures round trips of SENDs.
pub(crate) fn latency(ours: &str, theirs: &str, times: u32) -> Outcome {
    let mut peer = Peer::start(&Plan::Echo(times), theirs)?;
    let mut side = Side::new(&Device::open(ours)?, 16, 64)?;
    side.add(1, 16, 16)?;
    let queue_pair = &side.queue_pairs[0];
    let receive = || -> Outcome<RecvRequest> { Ok(RecvRequest::new(side.memory.slice(8..16)?).tag(1)) };
    for _ in 0..RECEIVES_FOR_ONE {
        queue_pair.post_recv(receive()?)?;
    }
    side.connect_to_child(&mut peer)?;
    let mut done: Vec<Completion> = Vec::with_capacity(64);
    let mut rounds = Vec::with_capacity(times as usize);
    for _ in 0..times {
        let start = Instant::now();
        queue_pair.post_send(SendRequest::send(side.memory.slice(0..8)?))?;
        while !poll_for(&side.completions, &mut done, 1)? {}
        rounds.push(start.elapsed());
        queue_pair.post_recv(receive()?)?;
    }
    percentiles("half-round-us", rounds, 2.0);
    peer.finish::<f64>()?;
    Ok(())
}

/// Polls once, and returns whether there was a completion with this tag.
fn poll_for(completions: &CompletionQueue, done: &mut Vec<Completion>, tag: u64) -> Outcome<bool> {
    completions.poll(done)?;
    let mut found = false;
    for completion in done.drain(..) {
        completion.result()?;
        found |= completion.tag() == tag;
    }
    Ok(found)
}

/// Measures atomics.
pub(crate) fn fetch_add(ours: &str, theirs: &str, times: u32, asleep: bool) -> Outcome {
    let mut peer = Peer::start(&if asleep { Plan::Sleep(8) } else { Plan::Poll(8) }, theirs)?;
    let mut side = Side::new(&Device::open(ours)?, 8, 64)?;
    side.add(1, 16, 1)?;
    let remote = side.connect_to_child(&mut peer)?.memory;
    let mut done: Vec<Completion> = Vec::with_capacity(64);
    let mut rounds = Vec::with_capacity(times as usize);
    for round in 0..times {
        let start = Instant::now();
        let request = SendRequest::fetch_add(side.memory.slice(0..8)?, remote.at(0), 1);
        side.queue_pairs[0].post_send(request.tag(1))?;
        while !poll_for(&side.completions, &mut done, 1)? {}
        rounds.push(start.elapsed());
        let original = side.memory.word(0)?.load(Ordering::Acquire);
        if original != u64::from(round) {
            return Err(format!("fetch-add number {round} found {original}").into());
        }
    }
    percentiles("round-us", rounds, 1.0);
    peer.finish::<f64>()?;
    Ok(())
}

fn percentiles(name: &str, mut times: Vec<Duration>, by: f64) {
    for (part, per_mille) in [("p50", 500), ("p99", 990), ("p999", 999)] {
        print_result(&format!("{name}-{part}"), percentile(&mut times, per_mille) / by);
    }
}

/// Returns a percentile in µs.
pub(crate) fn percentile(times: &mut [Duration], per_mille: usize) -> f64 {
    times.sort_unstable();
    let at = times.get(times.len() * per_mille / 1000).copied().unwrap_or_default();
    at.as_secs_f64() * 1e6
}

/// Runs the other process.
pub(crate) fn serve(plan: &Plan, device: &str) -> Outcome {
    match *plan {
        Plan::Sleep(len) => {
            let side = connect_to_child(device, len)?;
            peer::wait_for_finish();
            drop(side);
            peer::send_line(&0.0)
        }
        Plan::Poll(len) => {
            let side = connect_to_child(device, len)?;
            let is_over = spawn_end_watcher();
            let mut done = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                side.completions.poll(&mut done)?;
            }
            peer::send_line(&0.0)
        }
        Plan::Echo(times) => echo(device, times),
        Plan::Rate { queue_pairs, len, is_recorded } => receive(device, queue_pairs, len, is_recorded),
    }
}

fn connect_to_child(device: &str, len: usize) -> Outcome<Side> {
    let mut side = Side::new(&Device::open(device)?, len, 64)?;
    side.add(1, 16, 1)?;
    side.connect_to_parent()?;
    Ok(side)
}

/// Returns a flag that becomes true when the other process ends the measurement.
fn spawn_end_watcher() -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    std::thread::spawn(move || {
        peer::wait_for_finish();
        seen.store(true, Ordering::Relaxed);
    });
    is_over
}

fn echo(device: &str, times: u32) -> Outcome {
    let mut side = Side::new(&Device::open(device)?, 16, 64)?;
    side.add(1, 16, 16)?;
    let queue_pair = &side.queue_pairs[0];
    let receive = || -> Outcome<RecvRequest> { Ok(RecvRequest::new(side.memory.slice(8..16)?).tag(1)) };
    for _ in 0..RECEIVES_FOR_ONE {
        queue_pair.post_recv(receive()?)?;
    }
    side.connect_to_parent()?;
    let mut done = Vec::with_capacity(64);
    for _ in 0..times {
        while !poll_for(&side.completions, &mut done, 1)? {}
        queue_pair.post_send(SendRequest::send(side.memory.slice(0..8)?))?;
        queue_pair.post_recv(receive()?)?;
    }
    // The last message may have to be retransmitted.
    let is_over = spawn_end_watcher();
    while !is_over.load(Ordering::Relaxed) {
        side.completions.poll(&mut done)?;
    }
    peer::send_line(&0.0)
}

/// Receives messages, and checks that those of each queue pair are in order.
fn receive(device: &str, queue_pairs: u32, len: usize, is_recorded: bool) -> Outcome {
    let before = resident();
    let device = Device::open(device)?;
    let mut side = Side::new(&device, len * RECEIVES as usize, 3 * RECEIVES + queue_pairs)?;
    if queue_pairs > 1 {
        side.shared = Some(side.domain.shared_receive_queue(RECEIVES).create()?);
    }
    side.add(queue_pairs, 1, RECEIVES)?;
    let mut receives = Vec::with_capacity(RECEIVES as usize);
    for tag in 0..RECEIVES as usize {
        receives.push(RecvRequest::new(side.memory.slice(tag * len..(tag + 1) * len)?).tag(tag as u64));
    }
    let post = |receives: &mut Vec<RecvRequest>| -> Outcome {
        match &side.shared {
            Some(shared) => {
                for receive in receives.drain(..) {
                    shared.post_recv(receive)?;
                }
            }
            None => _ = side.queue_pairs[0].post_recvs(receives.drain(..))?,
        }
        Ok(())
    };
    post(&mut receives)?;
    let active = if is_recorded { Some(device.recording().start()?) } else { None };
    side.connect_to_parent()?;
    let is_over = spawn_end_watcher();
    let mut done: Vec<Completion> = Vec::with_capacity(RECEIVES as usize);
    let (mut messages, mut out_of_order) = (0u64, 0u64);
    let mut last = vec![0; queue_pairs as usize];
    loop {
        // Read before polling, so that messages before the end are polled.
        let is_over = is_over.load(Ordering::Relaxed);
        side.completions.poll(&mut done)?;
        for completion in done.drain(..) {
            completion.result()?;
            let tag = completion.tag();
            let number = side.memory.word(tag as usize * len)?.load(Ordering::Relaxed);
            let from = &mut last[(number >> SENDER_SHIFT) as usize % queue_pairs as usize];
            out_of_order += u64::from(number <= *from);
            *from = number;
            messages += 1;
            receives.push(RecvRequest::new(completion.into_payload()).tag(tag));
            // Posts receives in batches, so that they don't run out meanwhile.
            if receives.len() == BATCH {
                post(&mut receives)?;
            }
        }
        if !receives.is_empty() {
            post(&mut receives)?;
        }
        if is_over {
            break;
        }
    }
    let bytes = resident().saturating_sub(before);
    let recording = active.map(ActiveRecording::stop);
    let events = recording.map_or(0, |recording| recording.lost_count + recording.events.len() as u64);
    peer::send_line(&ReceiveResult { messages, out_of_order, bytes, events })
}

/// The resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Prints the device's counters of errors and retransmissions, if they aren't 0.
fn counters(domain: &ProtectionDomain) {
    let Ok(counters) = domain.device().counters(1) else { return };
    let is_bad = |name: &str, value| value > 0 && (name.contains("err") || name.contains("retransmitted"));
    for (name, value) in counters.iter().filter(|(name, value)| is_bad(name, *value)) {
        print_result(name, value as f64);
    }
}
