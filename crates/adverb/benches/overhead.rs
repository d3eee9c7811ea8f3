//! Posts RDMA WRITEs and polls their completions on the first device. `cargo xtask overhead` counts the instructions,
//! on a device that does nothing.
//!
//! ```text
//! overhead owned-single|owned-batch|raw-single|raw-batch ROUNDS
//! ```

#[allow(dead_code, reason = "nothing is asserted here")]
#[path = "../tests/common/counting.rs"]
mod counting;

use adverb::memory::{Buffer, RemoteMemory};
use adverb::verbs::raw::{Completions, Segment, SendFlags, SendOperation};
use adverb::verbs::{Access, Completion, CompletionQueue, Device, QueuePair, SendRequest, Transport};
use counting::allocations;

const BATCH: u32 = 32;
const REMOTE: RemoteMemory = RemoteMemory { addr: 0x1000, rkey: 7, len: 4096 };

fn main() -> adverb::verbs::Result<()> {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let (Some(mode), Some(rounds)) = (args.next(), args.next().and_then(|rounds| rounds.parse().ok())) else {
        println!("nothing to do: `cargo xtask overhead` runs this with arguments");
        return Ok(());
    };
    let device = Device::open_first()?;
    let domain = device.create_protection_domain()?;
    let completions = device.completion_queue(1024).create()?;
    let queue_pair =
        domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(256, 1).create()?;
    queue_pair.connect(&queue_pair.endpoint())?;
    let buffers: Vec<Buffer> =
        (0..BATCH).map(|_| domain.allocate_buffer(64)).collect::<adverb::verbs::Result<_>>()?;

    let count = match mode.as_str() {
        "raw-single" | "raw-batch" => run_raw(&mode, &queue_pair, &completions, rounds)?,
        _ => {
            // The first rounds allocate the memory that later rounds reuse.
            let (buffers, _) = run(&mode, &queue_pair, &completions, buffers, u64::from(BATCH) * 2)?;
            run(&mode, &queue_pair, &completions, buffers, rounds)?.1
        }
    };
    println!("{count} allocations");
    Ok(())
}

fn run(
    mode: &str,
    queue_pair: &QueuePair,
    completions: &CompletionQueue,
    mut buffers: Vec<Buffer>,
    rounds: u64,
) -> adverb::verbs::Result<(Vec<Buffer>, u64)> {
    let mut done: Vec<Completion> = Vec::with_capacity(64);
    let before = allocations();
    match mode {
        "owned-single" => {
            let mut buffer = buffers.pop().expect("there are 32 buffers");
            for _ in 0..rounds {
                queue_pair.post_send(SendRequest::write(buffer, REMOTE.at(0)))?;
                completions.poll(&mut done)?;
                buffer = done.pop().and_then(Completion::into_buffer).expect("the request has completed");
            }
            buffers.push(buffer);
        }
        "owned-batch" => {
            for _ in 0..rounds / u64::from(BATCH) {
                queue_pair
                    .post_sends(buffers.drain(..).map(|buffer| SendRequest::write(buffer, REMOTE.at(0))))?;
                completions.poll(&mut done)?;
                buffers
                    .extend(done.drain(..).map(|done| done.into_buffer().expect("the request had a buffer")));
            }
        }
        mode => panic!("no mode {mode}"),
    }
    Ok((buffers, allocations() - before))
}

fn run_raw(
    mode: &str,
    queue_pair: &QueuePair,
    completions: &CompletionQueue,
    rounds: u64,
) -> adverb::verbs::Result<u64> {
    let batch = if mode == "raw-batch" { u64::from(BATCH) } else { 1 };
    let region = queue_pair.protection_domain().allocate_region(4096, Access::LOCAL_WRITE)?;
    let segment = Segment { addr: region.remote().addr, length: 64, lkey: region.lkey() };
    let (mut list, mut entries) = (queue_pair.raw_send_list(), Completions::new(16));
    let (mut round, mut completed, mut before) = (0, 0, 0);
    while round < rounds {
        list.clear();
        for n in 0..batch {
            list.add(round + n, SendOperation::Write(REMOTE.at(0)), SendFlags::SIGNALED, &[segment]);
        }
        if round == 0 {
            // From here on the list doesn't grow.
            before = allocations();
        }
        // SAFETY: the device does nothing with the region, which outlives the requests; the queue is polled below.
        unsafe { queue_pair.post_raw_sends(&mut list) }?;
        let mut polled = 0;
        while polled < batch {
            polled += completions.poll_raw(&mut entries)? as u64;
            completed += entries.iter().filter(|completion| completion.is_ok()).count() as u64;
        }
        round += batch;
    }
    assert_eq!(completed, rounds);
    Ok(allocations() - before)
}
