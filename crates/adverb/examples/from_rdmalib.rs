//! RDMALib's example with Adverb's calls: servers with an arena of items, one thread each, and messages in batches.
//!
//! Server 0 sends requests to server 1. The handler of server 1 answers each of them with a pointer to an item, and server
//! 0 reads the item from the memory of server 1.
//!
//! ```text
//! $ cargo run --release --features cluster --example from_rdmalib
//! ```
//!
//! runs both servers in one process. As two processes, on one host or two:
//!
//! ```text
//! $ cargo run --release --features cluster --example from_rdmalib -- 1 127.0.0.1:7471,127.0.0.2:7471 &
//! $ cargo run --release --features cluster --example from_rdmalib -- 0 127.0.0.1:7471,127.0.0.2:7471
//! ```
//!
//! The manual's chapter "Clusters" lists each call of RDMALib with its counterpart.

use std::time::Duration;

use adverb::cluster::{Arena, Broker, BrokerConfig, Cluster, Event, Member, PeerId, PostError, RemotePtr};
use adverb::memory::Payload;
use adverb::verbs::Access;

const VALUE: &[u8; 40] = b"an item of forty bytes, at some server..";
const REQUEST_COUNT: usize = 1000;
/// The time after which server 0 assumes that server 1 doesn't run.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The flags of RDMALib's example.
struct Flags {
    server_id: usize,
    /// The addresses of all servers.
    servers: Vec<String>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [] => run_both(),
        [server_id, servers] => {
            let servers = servers.split(',').map(str::to_owned).collect();
            server_id.parse().map_err(Into::into).and_then(|server_id| run(&Flags { server_id, servers }))
        }
        _ => Err("usage: from_rdmalib [SERVER-ID ADDRESS:PORT,ADDRESS:PORT,…]".into()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:?}");
        std::process::exit(1)
    });
}

/// Runs both servers in this process, at loopback addresses that depend on the process id.
fn run_both() -> Result<(), adverb::Report> {
    let pid = std::process::id();
    let addr =
        |server| format!("127.{}.{}.{}:7471", 64 + 2 * (pid >> 16 & 31) + server, pid >> 8 & 255, pid & 255);
    let servers = vec![addr(0), addr(1)];
    let flags = Flags { server_id: 1, servers: servers.clone() };
    std::thread::spawn(move || run(&flags).unwrap_or_else(|error| eprintln!("server 1: {error:?}")));
    run(&Flags { server_id: 0, servers })
}

fn run(flags: &Flags) -> Result<(), adverb::Report> {
    // Thread i of a server has a session with thread i of each other server. `join` doesn't wait for them.
    let config = BrokerConfig {
        send_slots: 64,
        recv_slots: 64,
        slot_size: 256,
        doorbell_batch: 16,
        ..Default::default()
    };
    let members = flags.servers.iter().enumerate();
    let members: Vec<Member> = members.map(|(id, addr)| Member::new(id.to_string(), addr.clone())).collect();
    let cluster = Cluster::builder()
        .membership(members)
        .threads(1)
        .config(config)
        .join(&flags.server_id.to_string())?;

    // The memory for items. The slots of messages are not part of it.
    let builder = Arena::builder().partitions(1).slab_size(1 << 20);
    let builder = builder.member(cluster.this_member().0.into()).epoch(cluster.epoch());
    let arena = builder.create(cluster.protection_domains())?;
    arena.allocate_segment(16 << 20, Access::REMOTE_READ)?;
    let mut draft = arena.allocate(VALUE.len())?;
    draft.write(0, VALUE)?;
    let item = draft.publish(); // dropping the item frees it

    let mut broker = cluster.take_broker(0)?;
    broker.publish(&arena)?;
    println!("server {} at {}", flags.server_id, flags.servers[flags.server_id]);
    match flags.server_id {
        0 => request(&mut broker, PeerId(1)),
        _ => serve(&mut broker, item.remote_ptr()),
    }
}

/// Sends requests to a server, and reads the items that it answers with.
fn request(broker: &mut Broker, server: PeerId) -> Result<(), adverb::Report> {
    let (mut sent, mut read) = (0, 0);
    let mut answers = Vec::new();
    let mut buffers = Vec::new(); // to be used again: registering memory takes time
    let mut is_equal = true;
    while read < REQUEST_COUNT {
        while broker.is_open(server) && sent < REQUEST_COUNT {
            let mut slot = match broker.allocate_send_buf(server) {
                Ok(slot) => slot,
                Err(PostError::WouldBlock { .. }) => break, // the event `Unblocked` follows
                Err(error) => return Err(error.into()),
            };
            slot.write(b"a")?;
            broker.post_send(slot)?; // each 16th request rings the doorbell for all 16
            sent += 1;
        }
        broker.flush(server); // the rest; `wait` and `poll` would post it, too
        if !broker.wait(TIMEOUT)? {
            return Err(format!("server {} did not answer within {TIMEOUT:?}", server.0).into());
        }
        let mut end = None;
        broker.poll(|_, event| match event {
            Event::Message { bytes, .. } => answers.push(RemotePtr::from_bytes(bytes)),
            Event::Completed { result: Ok(()), payloads, .. } => {
                for buffer in payloads.filter_map(Payload::into_buffer) {
                    is_equal &= buffer[..] == VALUE[..];
                    read += 1;
                    buffers.push(buffer);
                }
            }
            Event::SessionEnded { reason, .. } => end = Some(reason),
            _ => {}
        })?;
        if let Some(reason) = end {
            return Err(format!("the session with server {} ended: {reason}", server.0).into());
        }
        for ptr in answers.drain(..) {
            let ptr: RemotePtr = ptr?;
            let new_buffer = || broker.protection_domain().allocate_buffer(VALUE.len());
            let buffer = buffers.pop().map_or_else(new_buffer, Ok)?;
            broker.post_read(server, buffer, ptr).map_err(|refused| refused.error)?;
        }
    }
    if !is_equal {
        return Err("an item has another value".into());
    }
    println!("{sent} requests and answers, and {read} READs of {} bytes", VALUE.len());
    Ok(())
}

/// Answers each message with a pointer, until the process is ended.
fn serve(broker: &mut Broker, ptr: RemotePtr) -> Result<(), adverb::Report> {
    // The peers whose answers wait for a slot or a credit.
    let mut waiting: Vec<PeerId> = Vec::new();
    loop {
        broker.wait(None)?;
        broker.poll(|broker, event| {
            match event {
                Event::Message { from, .. } => waiting.push(from),
                Event::Unblocked { .. } => {}
                Event::SessionOpened { peer, .. } => return println!("server {} has connected", peer.0),
                Event::SessionEnded { peer, reason, .. } => return println!("server {}: {reason}", peer.0),
                _ => return,
            }
            // The answers are posted in batches, too: the rest at the end of the poll.
            let is_blocked = |sent| matches!(sent, Err(PostError::WouldBlock { .. }));
            waiting.retain(|peer| is_blocked(broker.send(*peer, &ptr.to_bytes())));
        })?;
    }
}
