//! Messages and calls between the brokers of two processes, and the same calls over TCP. `cargo xtask bench cluster`
//! runs it.
//!
//! ```text
//! cluster messages OURS THEIRS [MILLISECONDS] [BATCH]          messages from one broker to another: messages/s
//! cluster calls KIND OURS THEIRS [MILLISECONDS] [OUTSTANDING]  calls that are echoed: calls/s, and µs for each
//! ```
//!
//! All messages, requests and replies have 64 bytes of data. `BATCH` is the number of messages per doorbell. `KIND` is one
//! of
//!
//! - `rpc`: calls between brokers;
//! - `tcp`: length-prefixed messages over tokio's TCP, with addresses in place of devices; each side writes the messages
//!   that it has with one call. `tcp-single`: it writes each message with a call of its own.
//!
//! `OURS` and `THEIRS` are the devices of the two processes. The environment variable `PEER_CPU` pins the other process
//! to a CPU. Each result is a line with a name and a number.

mod brokers;
mod meter;
#[path = "../net/peer.rs"]
mod peer;
mod tcp;

use std::time::Duration;

use peer::Peer;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The length of the data of messages, requests and replies.
pub(crate) const LEN: usize = 64;

/// The timeout of every operation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse::<u64>());
    let time = |at: usize| number(at, 700).map(Duration::from_millis);
    match words[..] {
        [] => println!("nothing to do: `cargo xtask bench cluster` runs this with arguments"),
        ["serve", kind, device_or_addr, ref rest @ ..] => serve(kind, device_or_addr, rest)?,
        ["messages", ours, theirs, ..] => {
            let batch = number(4, 16)?;
            let mut peer = Peer::start("messages", theirs, &[])?;
            brokers::send(&mut peer, ours, time(3)?, u16::try_from(batch)?)?;
            peer.finish()?;
        }
        ["calls", kind, ours, theirs, ..] => {
            let (time, outstanding) = (time(4)?, number(5, 1)? as usize);
            let mut peer = Peer::start(kind, theirs, &[outstanding.to_string()])?;
            match kind {
                "rpc" => brokers::call(&mut peer, ours, time, outstanding)?,
                "tcp" => tcp::call(&mut peer, time, outstanding, tcp::Writes::Coalesced)?,
                "tcp-single" => tcp::call(&mut peer, time, outstanding, tcp::Writes::Single)?,
                _ => return Err(format!("unknown kind {kind}").into()),
            }
            peer.finish()?;
        }
        _ => return Err("usage: see the top of benches/cluster/main.rs".into()),
    }
    Ok(())
}

/// Runs the other side of a measurement.
fn serve(kind: &str, device_or_addr: &str, words: &[&str]) -> Outcome {
    match (kind, words) {
        ("messages", _) => brokers::receive(device_or_addr)?,
        ("rpc", [outstanding]) => brokers::answer(device_or_addr, outstanding.parse()?)?,
        ("tcp", _) => tcp::answer(device_or_addr, tcp::Writes::Coalesced)?,
        ("tcp-single", _) => tcp::answer(device_or_addr, tcp::Writes::Single)?,
        _ => return Err(format!("unknown kind {kind}").into()),
    }
    peer::send_line("done");
    Ok(())
}
