//! Messages of 64 bytes within one software NIC, with both ends on one thread: over a connection, between bare queue
//! pairs, and between brokers. `cargo xtask overhead` counts their instructions.
//!
//! ```text
//! messages write|recorded-write|send|feed ROUNDS
//! messages broker-1|broker-4|broker-16|broker-64|call ROUNDS    with the feature `cluster`
//! ```

#[cfg(feature = "cluster")]
mod brokers;

use std::thread::scope;

use adverb::Result;
use adverb::memory::{Pool, PoolBuf};
use adverb::net::Options;
use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::verbs::{Access, Completion, Device, RecvRequest, SendRequest, SoftDevice, Transport};

/// The number of messages in flight.
const IN_FLIGHT: u64 = 32;
const MESSAGE: [u8; 64] = [7; 64];

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let (Some(mode), Some(rounds)) = (args.next(), args.next().and_then(|rounds| rounds.parse().ok())) else {
        println!("nothing to do: `cargo xtask overhead` runs this with arguments");
        return Ok(());
    };
    match mode.as_str() {
        "write" => write_over_queue_pair(rounds, false),
        "recorded-write" => write_over_queue_pair(rounds, true),
        "send" => send_over_connection(rounds, |left| left.send(&MESSAGE).map_err(Into::into)),
        "feed" => send_over_connection(rounds, |left| left.feed(&MESSAGE).map_err(Into::into)),
        #[cfg(feature = "cluster")]
        "call" => brokers::call(rounds),
        mode => match mode.strip_prefix("broker-") {
            #[cfg(feature = "cluster")]
            Some(batch) => brokers::send(rounds, batch.parse().expect("the batch is a number")),
            _ => panic!("no mode {mode}"),
        },
    }
}

fn device() -> Result<Device> {
    Ok(SoftDevice::loopback().open()?)
}

/// Only the operations that a connection needs for a message: a pool buffer, a WRITE with immediate data, a receive
/// without memory, and a copy. They are recorded if `is_recorded` is set.
fn write_over_queue_pair(rounds: u64, is_recorded: bool) -> Result<()> {
    let device = device()?;
    let _recording = if is_recorded { Some(device.recording().capacity(1024).start()?) } else { None };
    let domain = device.create_protection_domain()?;
    let pool = Pool::builder().partitions(1).create(&domain);
    let ring = domain.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let completions = [device.completion_queue(1024).create()?, device.completion_queue(1024).create()?];
    let create = |queue| domain.queue_pair(Transport::Rc).completion_queue(queue).depth(256, 256).create();
    let (left, right) = (create(&completions[0])?, create(&completions[1])?);
    left.connect(&right.endpoint())?;
    right.connect(&left.endpoint())?;
    let mut done: Vec<Completion> = Vec::with_capacity(256);
    for _ in 0..rounds / IN_FLIGHT {
        right.post_recvs((0..IN_FLIGHT).map(|_| RecvRequest::new(())))?;
        for _ in 0..IN_FLIGHT {
            let buffer = pool.allocate_copy(&MESSAGE)?;
            left.post_send(SendRequest::write_with_imm(buffer, ring.remote().at(0), 1).unsignaled())?;
        }
        let mut received = 0;
        while received < IN_FLIGHT {
            completions[1].poll(&mut done)?;
            for completion in done.drain(..) {
                assert!(completion.is_ok(), "{completion:?}");
                let mut message: PoolBuf = pool.allocate(MESSAGE.len())?;
                ring.read(0, &mut message)?;
                received += 1;
            }
            completions[0].poll(&mut done)?;
            done.clear();
        }
    }
    Ok(())
}

fn send_over_connection(rounds: u64, send: impl Fn(&Connection) -> Result<()>) -> Result<()> {
    let options = Options::new().device(&device()?);
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0")?;
    let connector = Connector::new().options(&options);
    let (left, right) = scope(|scope| {
        let accepting = scope.spawn(|| listener.accept());
        let left = connector.connect(listener.local_addr())?;
        Ok::<_, adverb::Error>((left, accepting.join().expect("accept doesn't panic")?))
    })?;
    for _ in 0..rounds / IN_FLIGHT {
        for _ in 0..IN_FLIGHT {
            send(&left)?;
        }
        left.flush()?;
        for _ in 0..IN_FLIGHT {
            let message = right.recv()?;
            assert_eq!(message.map_or(0, |message| message.len()), MESSAGE.len());
        }
    }
    Ok(())
}
