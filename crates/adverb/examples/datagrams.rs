//! Two UD queue pairs of one device exchange datagrams. The second replies to the sender of what it received.
//!
//! ```text
//! $ cargo run --example datagrams -- [DEVICE]
//! ```

use std::time::Duration;

use adverb::verbs::{CompletionQueue, Device, QueuePair, RequestId, SendRequest, Transport};

/// Datagrams with another queue key are dropped.
const QKEY: u32 = 0x1234_5678;
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() {
    run().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(1)
    });
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let device = match std::env::args().nth(1) {
        Some(name) => Device::open(&name)?,
        None => Device::open_first()?,
    };
    let (asker, asker_completions, asker_receiving) = queue_pair(&device)?;
    let (answerer, answerer_completions, answerer_receiving) = queue_pair(&device)?;

    let mut question = asker.protection_domain().buffer(100)?;
    question.set_range(0..9)?;
    question.copy_from_slice(b"any news?");
    let answerer_address = asker.ud_destination(&answerer.endpoint(), QKEY)?;
    let sent = asker.post_send(SendRequest::send(question).destination(&answerer_address))?;
    asker_completions.wait(sent, TIMEOUT)?.result()?;

    let asked = answerer_completions.wait(answerer_receiving, TIMEOUT)?.into_datagram()?;
    println!("queue pair {} asks: {}", asked.source_qpn, String::from_utf8_lossy(&asked.message));
    let destination = asked.reply_destination(&answerer, QKEY)?;
    let mut answer = asked.message;
    answer.set_range(0..7)?;
    answer.copy_from_slice(b"not yet");
    let sent = answerer.post_send(SendRequest::send_with_imm(answer, 42).destination(&destination))?;
    answerer_completions.wait(sent, TIMEOUT)?.result()?;

    let answered = asker_completions.wait(asker_receiving, TIMEOUT)?.into_datagram()?;
    let source = answered.ip_header.map(|ip| ip.source().to_string()).unwrap_or_default();
    println!(
        "queue pair {} at {source} replies: {}",
        answered.source_qpn,
        String::from_utf8_lossy(&answered.message)
    );
    assert_eq!(answered.immediate, Some(42));
    Ok(())
}

/// Creates a queue pair with a posted receive.
fn queue_pair(device: &Device) -> Result<(QueuePair, CompletionQueue, RequestId), adverb::Error> {
    let domain = device.create_protection_domain()?;
    let completions = device.completion_queue(8).events().create()?;
    let queue_pair =
        domain.queue_pair(Transport::Ud).completion_queue(&completions).depth(4, 4).qkey(QKEY).create()?;
    let receiving = queue_pair.post_recv(domain.buffer(40 + 4096)?)?;
    queue_pair.move_to_rts()?;
    Ok((queue_pair, completions, receiving))
}
