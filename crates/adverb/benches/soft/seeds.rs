//! The cost of posting, processing, polling and notifying, within one process.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb::memory::RemoteMemory;
use adverb::verbs::{ArmFor, Completion, Device, SendRequest, SoftDevice, Switch};

use crate::processes::{Side, TIMEOUT, percentile};
use crate::{Outcome, cpu_time, print_result};

/// The numbers of outstanding requests.
const DEPTHS: [usize; 4] = [1, 16, 128, 1024];

/// The number of measured requests of each median latency.
const LATENCY_SAMPLES: usize = 20_000;

/// The number of wake-ups.
const WAKEUPS: usize = 2_000;

/// The time for the waiting thread to fall asleep.
const SLEEP_DELAY: Duration = Duration::from_micros(100);

pub(crate) fn run(link: &str, time: Duration) -> Outcome {
    let (ours, theirs) = open(link)?;
    let max_depth = DEPTHS[DEPTHS.len() - 1] as u32;
    let mut side = Side::new(&ours, 8, max_depth + 1)?;
    side.add(1, max_depth, 1)?;
    let mut target = Side::new(&theirs, 8, 64)?;
    target.add(2, 16, 1)?;
    side.connect(&target.offer(0..1))?;
    target.connect(&side.offer(0..1))?;
    let remote = target.offer(0..1).memory;
    // The waiting thread has its own completion queue.
    let mut sleeper = Side::with_events(&ours, 8, 64)?;
    sleeper.add(1, 16, 1)?;
    sleeper.connect(&target.offer(1..2))?;
    target.queue_pairs[1].connect(&sleeper.queue_pairs[0].endpoint())?;

    let is_over = Arc::new(AtomicBool::new(false));
    // A loopback device needs no second poller.
    let target = Arc::new(target);
    let poller = (link != "loopback").then(|| poll(Arc::clone(&target), Arc::clone(&is_over)));
    latencies(&side, &remote)?;
    notifications(sleeper, &remote)?;
    for depth in DEPTHS {
        throughput(&side, &remote, depth, time)?;
    }
    is_over.store(true, Ordering::Relaxed);
    if let Some(poller) = poller {
        poller.join().map_err(|_| "the polling thread panicked")?;
    }
    Ok(())
}

/// Opens a device and its peer.
fn open(link: &str) -> Outcome<(Device, Device)> {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let address = |network| IpAddr::from([127, network, high, low]);
    Ok(match link {
        "loopback" => {
            let device = SoftDevice::loopback().open()?;
            (device.clone(), device)
        }
        "mem" => {
            let switch = Switch::default();
            (
                SoftDevice::on_switch(&switch, address(113)).open()?,
                SoftDevice::on_switch(&switch, address(114)).open()?,
            )
        }
        "udp" => (SoftDevice::at_addr(address(113)).open()?, SoftDevice::at_addr(address(114)).open()?),
        _ => return Err(format!("unknown link {link}").into()),
    })
}

/// Polls the target on a thread, as a busy application does.
fn poll(target: Arc<Side>, is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut done = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            target.completions.poll(&mut done).expect("the device can be polled");
        }
    })
}

/// Measures one request at a time.
fn latencies(side: &Side, remote: &RemoteMemory) -> Outcome {
    let mut done: Vec<Completion> = Vec::with_capacity(16);
    let [mut posts, mut processes, mut polls] = [(); 3].map(|()| Vec::with_capacity(LATENCY_SAMPLES));
    for _ in 0..LATENCY_SAMPLES {
        let request = SendRequest::write(side.memory.slice(0..8)?, remote.at(0));
        let start = Instant::now();
        side.queue_pairs[0].post_send(request)?;
        let posted = Instant::now();
        let mut before = posted;
        while side.completions.poll(&mut done)? == 0 {
            before = Instant::now();
        }
        let polled = Instant::now();
        done.drain(..).try_for_each(|completion| completion.result().map(|_| ()))?;
        posts.push(posted - start);
        processes.push(polled - posted);
        polls.push(polled - before);
    }
    print_result("post", percentile(&mut posts, 500));
    print_result("process", percentile(&mut processes, 500));
    print_result("poll", percentile(&mut polls, 500));
    Ok(())
}

/// Measures the time from posting a request to the wake-up of the waiting thread.
fn notifications(sleeper: Side, remote: &RemoteMemory) -> Outcome {
    let base = Instant::now();
    let (woken, wakes) = channel();
    let mut times = Vec::with_capacity(WAKEUPS);
    let (memory, queue_pair, completions) = (&sleeper.memory, &sleeper.queue_pairs[0], &sleeper.completions);
    std::thread::scope(|scope| -> Outcome {
        let waiter = scope.spawn(move || -> adverb::verbs::Result<()> {
            let mut done = Vec::new();
            let mut count = 0;
            while count < WAKEUPS {
                completions.arm(ArmFor::Any)?;
                let mut at = base.elapsed();
                if completions.poll(&mut done)? == 0 {
                    completions.wait_event(None)?;
                    at = base.elapsed();
                    completions.poll(&mut done)?;
                }
                // The completion of this event was already polled.
                if done.is_empty() {
                    continue;
                }
                count += done.len();
                done.drain(..).try_for_each(|completion| completion.result().map(|_| ()))?;
                // This fails only if the receiver has failed.
                _ = woken.send(at);
            }
            Ok(())
        });
        for _ in 0..WAKEUPS {
            std::thread::sleep(SLEEP_DELAY);
            let request = SendRequest::write(memory.slice(0..8)?, remote.at(0));
            let start = base.elapsed();
            queue_pair.post_send(request)?;
            // Sleeps, so that the waiting thread gets a CPU.
            let at = wakes.recv_timeout(TIMEOUT).map_err(|_| "the waiting thread was not woken")?;
            times.push(at.saturating_sub(start));
        }
        waiter.join().map_err(|_| "the waiting thread panicked")??;
        Ok(())
    })?;
    print_result("notify", percentile(&mut times, 500));
    Ok(())
}

/// Measures `depth` outstanding requests.
fn throughput(side: &Side, remote: &RemoteMemory, depth: usize, time: Duration) -> Outcome {
    let mut done: Vec<Completion> = Vec::with_capacity(depth);
    let (mut posted, mut completed) = (0, 0);
    let (start, cpu) = (Instant::now(), cpu_time());
    loop {
        let is_over = start.elapsed() >= time;
        if is_over && completed == posted {
            break;
        }
        let free = if is_over { 0 } else { depth - (posted - completed) };
        // Posts batches of a quarter of the depth or more, so that some requests are always in flight.
        if free >= depth.div_ceil(4) {
            let requests = (0..free).map(|_| SendRequest::write(slice(side), remote.at(0)));
            side.queue_pairs[0].post_sends(requests)?;
            posted += free;
        }
        completed += side.completions.poll(&mut done)?;
        done.drain(..).try_for_each(|completion| completion.result().map(|_| ()))?;
    }
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu);
    print_result(&format!("wqe-{depth}"), posted as f64 / seconds);
    print_result(&format!("cqe-{depth}"), completed as f64 / seconds);
    print_result(&format!("processor-{depth}"), cpu.as_secs_f64() * 1e6 / completed as f64);
    Ok(())
}

fn slice(side: &Side) -> adverb::memory::RegionSlice {
    side.memory.slice(0..8).expect("the region has 8 bytes")
}
