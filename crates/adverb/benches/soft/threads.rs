//! The cost of one lock per NIC for threads that have their own queue pairs.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use adverb::verbs::{Completion, Device, SendRequest, SoftDevice};

use crate::processes::Side;
use crate::{Outcome, print_result};

/// The number of outstanding requests of each thread.
const DEPTH: usize = 64;

/// The number of requests that are posted with one doorbell.
const BATCH: usize = 16;

/// Measures RDMA WRITEs of 8 bytes within one software NIC: by one thread, by two threads that use one NIC, and by two threads
/// that have a NIC each.
pub(crate) fn run(time: Duration) -> Outcome {
    let open = || SoftDevice::loopback().open();
    let (shared, other) = (open()?, open()?);
    print_result("one-thread", rate(&[&shared], time)?);
    print_result("two-threads-one-nic", rate(&[&shared, &shared], time)?);
    print_result("two-threads-two-nics", rate(&[&shared, &other], time)?);
    Ok(())
}

/// Returns the number of requests that all threads together complete in a second. Each thread uses one of the devices.
fn rate(devices: &[&Device], time: Duration) -> Outcome<f64> {
    let barrier = Barrier::new(devices.len());
    let mut total = 0.0;
    std::thread::scope(|scope| -> Outcome {
        let threads: Vec<_> = devices
            .iter()
            .map(|device| scope.spawn(|| write(device, &barrier, time).map_err(|error| error.to_string())))
            .collect();
        for thread in threads {
            total += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })?;
    Ok(total)
}

/// Writes from one queue pair of the device to another, and returns the number of requests per second.
fn write(device: &Device, barrier: &Barrier, time: Duration) -> Outcome<f64> {
    let mut side = Side::new(device, 8, 2 * DEPTH as u32 + 2)?;
    side.add(2, DEPTH as u32, 1)?;
    let [left, right] = &side.queue_pairs[..] else { return Err("the side has two queue pairs".into()) };
    left.connect(&right.endpoint())?;
    right.connect(&left.endpoint())?;
    let remote = side.memory.remote();
    let mut done: Vec<Completion> = Vec::with_capacity(DEPTH);
    let (mut posted, mut completed) = (0, 0);
    barrier.wait();
    let start = Instant::now();
    while start.elapsed() < time {
        while posted - completed + BATCH <= DEPTH {
            let requests = (0..BATCH).map(|_| Ok(SendRequest::write(side.memory.slice(0..8)?, remote.at(0))));
            left.post_sends(requests.collect::<Outcome<Vec<_>>>()?)?;
            posted += BATCH;
        }
        completed += side.completions.poll(&mut done)?;
        done.drain(..).try_for_each(|completion| completion.result().map(|_| ()))?;
    }
    Ok(completed as f64 / start.elapsed().as_secs_f64())
}
