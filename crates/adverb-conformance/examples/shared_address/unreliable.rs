//! A process that exchanges messages over a transport that doesn't retransmit them, and a process that only has a device.

use std::io::BufRead;
use std::net::IpAddr;
use std::time::Duration;

use adverb::memory::Buffer;
use adverb::verbs::{
    CompletionQueue, Device, Endpoint, ProtectionDomain, QueuePair, RequestId, SendRequest, Transport,
    UdDestination,
};
use anyhow::{Context, Result, bail, ensure};

use super::worker::print_line;

/// The maximum time until a message arrives. A busy machine takes less than a second.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Datagrams with another queue key are dropped.
const QKEY: u32 = 0x1357_2468;

/// The size of a message over a UC queue pair: several packets.
const UC_LEN: usize = 10_000;

/// The size of a message over a UD queue pair: one packet.
const UD_LEN: usize = 1000;

/// The size of a receive: a message, or a datagram with its IP header.
const RECEIVE_LEN: usize = UC_LEN + 40;

/// Opens the device, and closes it when the input ends.
pub(crate) fn visit(address: IpAddr) -> Result<()> {
    let _device = Device::open(&format!("soft:{address}"))?;
    std::io::stdin().lock().read_until(b'\n', &mut Vec::new())?;
    Ok(())
}

/// Runs a process: prints `ready ENDPOINT`, and `done` or `failed REASON` for each line that it reads, until its input
/// ends. The lines are `connect ENDPOINT`, `ping COUNT` and `echo COUNT`.
pub(crate) fn run(address: IpAddr, transport: Transport) -> Result<()> {
    let device = Device::open(&format!("soft:{address}"))?;
    let mut side = Side::new(&device, transport)?;
    print_line(&format!("ready {}", serde_json::to_string(&side.queue_pair.endpoint())?))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let result = match line.split_once(' ') {
            Some(("connect", endpoint)) => side.connect(&serde_json::from_str(endpoint)?),
            Some(("ping", count)) => side.ping(count.parse()?),
            Some(("echo", count)) => side.echo(count.parse()?),
            _ => bail!("unknown command: {line}"),
        };
        match result {
            Ok(()) => print_line("done")?,
            Err(error) => print_line(&format!("failed {line}: {error:#}"))?,
        }
    }
    Ok(())
}

struct Side {
    transport: Transport,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    queue_pair: QueuePair,
    receiving: RequestId,
    /// The peer of a UD queue pair.
    destination: Option<UdDestination>,
}

impl Side {
    fn new(device: &Device, transport: Transport) -> Result<Side> {
        let domain = device.create_protection_domain()?;
        let completions = device.completion_queue(16).events().create()?;
        let queue_pair =
            domain.queue_pair(transport).completion_queue(&completions).depth(4, 4).qkey(QKEY).create()?;
        let receiving = queue_pair.post_recv(domain.allocate_buffer(RECEIVE_LEN)?)?;
        Ok(Side { transport, domain, completions, queue_pair, receiving, destination: None })
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<()> {
        if self.transport == Transport::Ud {
            self.queue_pair.move_to_rts()?;
            self.destination = Some(self.queue_pair.create_ud_destination(peer, QKEY)?);
        } else {
            self.queue_pair.connect(peer)?;
        }
        Ok(())
    }

    /// Sends messages, and waits for the return of each before the next.
    fn ping(&mut self, count: u32) -> Result<()> {
        for number in 0..count {
            let mut message = self.domain.allocate_buffer(message_len(self.transport))?;
            for (index, byte) in message.iter_mut().enumerate() {
                *byte = (index as u32).wrapping_mul(number + 7) as u8;
            }
            let sent = self.send(message).with_context(|| format!("sending message {number}"))?;
            let received = self.receive().with_context(|| format!("waiting for message {number}"))?;
            ensure!(received[..] == sent[..], "message {number} was altered");
        }
        Ok(())
    }

    /// Returns messages to the peer.
    fn echo(&mut self, count: u32) -> Result<()> {
        for number in 0..count {
            let received = self.receive().with_context(|| format!("waiting for message {number}"))?;
            self.send(received).with_context(|| format!("sending message {number}"))?;
        }
        Ok(())
    }

    fn send(&self, message: Buffer) -> Result<Buffer> {
        let request = SendRequest::send(message);
        let request = match &self.destination {
            Some(destination) => request.destination(destination),
            None => request,
        };
        let id = self.queue_pair.post_send(request)?;
        let completion = self.completions.wait(id, TIMEOUT)?;
        completion.result()?;
        completion.into_buffer().context("the request had a buffer")
    }

    /// Waits for a message, and posts the receive of the next one.
    fn receive(&mut self) -> Result<Buffer> {
        let completion = self.completions.wait(self.receiving, TIMEOUT)?;
        self.receiving = self.queue_pair.post_recv(self.domain.allocate_buffer(RECEIVE_LEN)?)?;
        if self.transport == Transport::Ud {
            Ok(completion.into_datagram()?.message)
        } else {
            Ok(completion.into_message()?)
        }
    }
}

const fn message_len(transport: Transport) -> usize {
    if matches!(transport, Transport::Ud) { UD_LEN } else { UC_LEN }
}
