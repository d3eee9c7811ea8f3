//! RDMA on any machine, with two software NICs: a message, and memory of the server that the client reads and changes
//! without the server's CPU.
//!
//! ```text
//! $ cargo run --example hello
//! ```
//!
//! To use an RDMA NIC, open it by its name or address ([`Device::open`], [`Device::open_by_addr`]). The rest stays the
//! same.

use std::sync::atomic::Ordering;
use std::time::Duration;

use adverb::Report;
use adverb::verbs::{Access, Device, SendRequest, SoftDevice, Transport};

const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Report> {
    // Usually these are two programs on two machines. Each opens its device and creates a queue pair.
    let (client, server) = (SoftDevice::new().open()?, SoftDevice::new().open()?);
    let queue_pair = |device: &Device| {
        let completions = device.completion_queue(32).create()?;
        let domain = device.create_protection_domain()?;
        domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(16, 16).create()
    };
    let (client, server) = (queue_pair(&client)?, queue_pair(&server)?);

    // They exchange their endpoints by any means, and connect.
    client.connect(&server.endpoint())?;
    server.connect(&client.endpoint())?;
    println!("{} and {} are connected", client.endpoint().gid.ip(), server.endpoint().gid.ip());

    // The server posts a receive, and the client a send. Each request owns its buffer until it completes.
    let receiving = server.post_recv(server.protection_domain().allocate_buffer(64)?)?;
    let mut hello = client.protection_domain().allocate_buffer(12)?;
    hello.copy_from_slice(b"hello, world");
    let sending = client.post_send(SendRequest::send(hello))?;
    client.send_completion_queue().wait(sending, TIMEOUT)?.result()?;
    let message = server.recv_completion_queue().wait(receiving, TIMEOUT)?.into_message()?;
    println!("the server received “{}”", str::from_utf8(&message)?);

    // The server exposes memory, and gives the client its address and key. From here on the server does nothing.
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let table = server.protection_domain().allocate_region(4096, access)?;
    table.write(8, b"server's text")?;
    let remote = table.remote();

    let reading =
        client.post_send(SendRequest::read(client.protection_domain().allocate_buffer(13)?, remote.at(8)))?;
    let read = client.send_completion_queue().wait(reading, TIMEOUT)?.into_message()?;
    println!("the client read “{}” out of the server's memory", str::from_utf8(&read)?);

    for _ in 0..3 {
        let counter = client.protection_domain().allocate_buffer(8)?;
        let adding = client.post_send(SendRequest::fetch_add(counter, remote.at(0), 7))?;
        let before = client.send_completion_queue().wait(adding, TIMEOUT)?.into_message()?;
        println!(
            "the client added 7 to the server's counter, which was {}",
            u64::from_ne_bytes(before[..].try_into()?)
        );
    }
    println!("the server's counter is {}", table.word(0)?.load(Ordering::Relaxed));
    Ok(())
}
