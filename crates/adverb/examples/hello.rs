//! RDMA on any machine: two devices made of software and sockets, a message, and memory that one reads and changes at the
//! other while that does nothing.
//!
//! ```text
//! $ cargo run --example hello
//! ```
//!
//! With hardware, open it by its name or address instead ([`Device::open`], [`Device::by_address`]): the rest is the same.

use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adverb::verbs::{Access, Device, SendRequest, SoftDevice, Transport};

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    // Usually these are two programs, on two machines; each opens its device and makes a queue pair.
    let (alice, bob) = (SoftDevice::new().open()?, SoftDevice::new().open()?);
    let queue_pair = |device: &Device| {
        let completions = device.completion_queue(32).create()?;
        let domain = device.protection_domain()?;
        domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(16, 16).create()
    };
    let (left, right) = (queue_pair(&alice)?, queue_pair(&bob)?);

    // They tell each other where they are, by any means: then they are connected.
    left.connect(&right.endpoint())?;
    right.connect(&left.endpoint())?;
    println!("{} and {} are connected", left.endpoint().gid.ip(), right.endpoint().gid.ip());

    // Bob lends a buffer to receive into; Alice sends. Each request owns its memory until it is done.
    let receiving = right.post_recv(right.protection_domain().buffer(64)?)?;
    let mut hello = left.protection_domain().buffer(12)?;
    hello.copy_from_slice(b"hello, world");
    let sending = left.post_send(SendRequest::send(hello))?;
    left.send_completion_queue().wait(sending, PATIENCE)?.success()?;
    let message = right.recv_completion_queue().wait(receiving, PATIENCE)?.into_message()?;
    println!("Bob received “{}”", str::from_utf8(&message)?);

    // Bob exposes memory, and tells Alice its address and key. From here on he does nothing.
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let table = right.protection_domain().region(4096, rights)?;
    table.write(8, b"what Bob wrote")?;
    let remote = table.remote();

    let reading = left.post_send(SendRequest::read(left.protection_domain().buffer(14)?, remote.at(8)))?;
    let read = left.send_completion_queue().wait(reading, PATIENCE)?.into_message()?;
    println!("Alice read “{}” out of Bob's memory", str::from_utf8(&read)?);

    for _ in 0..3 {
        let counter = left.protection_domain().buffer(8)?;
        let adding = left.post_send(SendRequest::fetch_add(counter, remote.at(0), 7))?;
        let before = left.send_completion_queue().wait(adding, PATIENCE)?.into_message()?;
        println!("Alice added 7 to Bob's counter, which was {}", u64::from_ne_bytes(before[..].try_into()?));
    }
    println!("Bob's counter is {}", table.word(0)?.load(Ordering::Relaxed));
    Ok(())
}
