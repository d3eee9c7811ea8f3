//! Two UD queue pairs of one device exchange datagrams. The second queue pair receives a datagram and replies to its sender.
//!
//! ```text
//! $ cargo run --example datagrams -- [DEVICE]
//! ```

use std::time::Duration;

use adverb::Report;
use adverb::verbs::{CompletionQueue, Device, QueuePair, RequestId, SendRequest, Transport};

/// The queue key of both queue pairs. A queue pair drops datagrams that have another queue key.
const QKEY: u32 = 0x1234_5678;
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> Result<(), Report> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::open_first()?,
    };
    let (client, client_completions, client_receiving) = queue_pair(&device)?;
    let (server, server_completions, server_receiving) = queue_pair(&device)?;

    let mut request = client.protection_domain().allocate_buffer(100)?;
    request.set_range(0..9)?;
    request.copy_from_slice(b"any news?");
    let server_destination = client.create_ud_destination(&server.endpoint(), QKEY)?;
    let sent = client.post_send(SendRequest::send(request).destination(&server_destination))?;
    client_completions.wait(sent, TIMEOUT)?.result()?;

    let received = server_completions.wait(server_receiving, TIMEOUT)?.into_datagram()?;
    println!("queue pair {} asks: {}", received.source_qpn, String::from_utf8_lossy(&received.message));
    let destination = received.create_reply_destination(&server, QKEY)?;
    let mut reply = received.message;
    reply.set_range(0..7)?;
    reply.copy_from_slice(b"not yet");
    let sent = server.post_send(SendRequest::send_with_imm(reply, 42).destination(&destination))?;
    server_completions.wait(sent, TIMEOUT)?.result()?;

    let response = client_completions.wait(client_receiving, TIMEOUT)?.into_datagram()?;
    let source = response.ip_header.map(|ip| ip.source().to_string()).unwrap_or_default();
    println!(
        "queue pair {} at {source} replies: {}",
        response.source_qpn,
        String::from_utf8_lossy(&response.message)
    );
    assert_eq!(response.immediate, Some(42));
    Ok(())
}

/// Creates a UD queue pair, posts a receive, and returns the queue pair, its completion queue and the receive's ID.
fn queue_pair(device: &Device) -> Result<(QueuePair, CompletionQueue, RequestId), adverb::Error> {
    let domain = device.create_protection_domain()?;
    let completions = device.completion_queue(8).events().create()?;
    let queue_pair =
        domain.queue_pair(Transport::Ud).completion_queue(&completions).depth(4, 4).qkey(QKEY).create()?;
    let receiving = queue_pair.post_recv(domain.allocate_buffer(40 + 4096)?)?;
    queue_pair.move_to_rts()?;
    Ok((queue_pair, completions, receiving))
}
