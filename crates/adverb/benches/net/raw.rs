//! The bare device: SENDs on a queue pair, by processes that poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::memory::MemoryRegion;
use adverb::verbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, QueuePair, RecvRequest, SendRequest,
    Transport,
};

use crate::peer::{self, Peer};
use crate::{MESSAGE_LEN, Meter, Outcome, TIMEOUT, Work, cpu_time, round_trips};

/// The number of requests that are posted with one doorbell.
pub(crate) const BATCH: u32 = 64;

/// The queue pair, queue and memory of one side.
struct Side {
    completions: CompletionQueue,
    queue_pair: QueuePair,
    memory: MemoryRegion,
    len: usize,
    depth: u32,
}

impl Side {
    fn new(device: &str, work: Work) -> Outcome<Side> {
        let device = Device::open(device)?;
        let domain = device.create_protection_domain()?;
        let (len, depth) = match work {
            // About as many bytes as fit a cache, and at most 2048 messages.
            Work::Rate { len, .. } => (len, ((4 << 20) / len).clamp(8, 2048) as u32),
            _ => (MESSAGE_LEN, 16),
        };
        let completions = device.completion_queue(2 * depth + 8).create()?;
        let memory = domain.allocate_region(len * depth as usize, Access::LOCAL_WRITE)?;
        let queue_pair = domain.queue_pair(Transport::Rc).completion_queue(&completions);
        let queue_pair = queue_pair.depth(depth, depth).create()?;
        Ok(Side { completions, queue_pair, memory, len, depth })
    }

    fn connect(&self, endpoint: &str) -> Outcome {
        // Short RNR backoff, for a receiver that was preempted and ran out of receives.
        let options = ConnectOptions::new().min_rnr_timer(6);
        Ok(self.queue_pair.connect_with(&serde_json::from_str(endpoint)?, &options)?)
    }

    fn receive(&self, number: u32) -> Outcome<RecvRequest> {
        let at = (number % self.depth) as usize * self.len;
        Ok(RecvRequest::new(self.memory.slice(at..at + self.len)?).tag(1))
    }

    fn send(&self, number: u64) -> Outcome<SendRequest> {
        let at = (number % u64::from(self.depth)) as usize * self.len;
        Ok(SendRequest::send(self.memory.slice(at..at + self.len)?))
    }

    fn fill_receives(&self) -> Outcome {
        let receives = (0..self.depth).map(|number| self.receive(number)).collect::<Outcome<Vec<_>>>()?;
        self.queue_pair.post_recvs(receives)?;
        Ok(())
    }

    /// Polls once, and returns the number of completions with this tag.
    fn poll(&self, done: &mut Vec<Completion>, tag: u64) -> Outcome<u32> {
        self.completions.poll(done)?;
        let mut found = 0;
        for completion in done.drain(..) {
            completion.result()?;
            found += u32::from(completion.tag() == tag);
        }
        Ok(found)
    }

    fn endpoint(&self) -> Outcome<String> {
        Ok(serde_json::to_string(&self.queue_pair.endpoint())?)
    }
}

pub(crate) fn run_client(peer: &mut Peer, device: &str, work: Work, batch: u32) -> Outcome {
    let side = Side::new(device, work)?;
    side.fill_receives()?;
    side.connect(&peer.receive_line()?)?;
    peer.send_line(&side.endpoint()?)?;
    peer.receive_line()?;
    let mut done = Vec::with_capacity(side.depth as usize);
    match work {
        Work::Rate { time, len } => {
            let batch = u64::from(batch.min(side.depth / 2));
            let mut meter = Meter::new(time);
            let (mut posted, mut completed) = (0, 0);
            while meter.should_continue(completed) {
                while posted - completed + batch <= u64::from(side.depth) {
                    if batch == 1 {
                        let request = side.send(posted)?;
                        // One signaled request in 16 completes all before it.
                        side.queue_pair.post_send(if posted % 16 == 15 {
                            request
                        } else {
                            request.unsignaled()
                        })?;
                    } else {
                        let request = |number| {
                            let request = side.send(posted + number).expect("the slice lies in the region");
                            if number == batch - 1 { request } else { request.unsignaled() }
                        };
                        side.queue_pair.post_sends((0..batch).map(request))?;
                    }
                    posted += batch;
                }
                completed += u64::from(side.poll(&mut done, 0)?);
            }
            meter.print_result(completed, len)?;
            // A signaled request completes the unsignaled ones before it.
            let (deadline, mut last) = (Instant::now() + TIMEOUT, Some(side.send(posted)?));
            while completed <= posted {
                if posted - completed < u64::from(side.depth)
                    && let Some(last) = last.take()
                {
                    side.queue_pair.post_send(last)?;
                }
                completed += u64::from(side.poll(&mut done, 0)?);
                if Instant::now() > deadline {
                    return Err(format!("{completed} of {posted} messages were acknowledged").into());
                }
            }
        }
        Work::Latency { times } => {
            let mut received = 0;
            round_trips(times, || {
                side.queue_pair.post_send(side.send(0)?)?;
                while side.poll(&mut done, 1)? == 0 {}
                side.queue_pair.post_recv(side.receive(received)?)?;
                received += 1;
                Ok(())
            })?;
        }
        Work::Idle { .. } => return Err("`idle` needs a kind that waits".into()),
    }
    Ok(())
}

pub(crate) fn serve(device: &str, work: Work) -> Outcome<Duration> {
    let side = Side::new(device, work)?;
    side.fill_receives()?;
    peer::send_line(&side.endpoint()?);
    side.connect(&peer::receive_line()?)?;
    peer::send_line("ready");
    let cpu = cpu_time();
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    std::thread::spawn(move || {
        peer::wait_for_finish();
        seen.store(true, Ordering::Relaxed);
    });
    let mut done = Vec::with_capacity(side.depth as usize);
    let mut receives = Vec::with_capacity(side.depth as usize);
    let mut received = 0;
    while !is_over.load(Ordering::Relaxed) {
        let count = side.poll(&mut done, 1)?;
        if let (Work::Latency { .. }, 1..) = (work, count) {
            side.queue_pair.post_send(side.send(0)?)?;
        }
        for _ in 0..count {
            receives.push(side.receive(received)?);
            received += 1;
        }
        if !receives.is_empty() {
            side.queue_pair.post_recvs(receives.drain(..))?;
        }
    }
    Ok(cpu_time() - cpu)
}
