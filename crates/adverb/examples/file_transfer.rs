//! Sends a file. The receiver's device reads each piece from the sender's buffer, without a copy on the sender's side.
//!
//! ```text
//! $ cargo run --release --example file_transfer -- receive 127.0.0.1:7471 copy
//! $ cargo run --release --example file_transfer -- send 127.0.0.1:7471 original
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::time::Instant;

use adverb::Report;
use adverb::net::blocking::{Listener, connect};

/// The length of a message.
const PIECE: usize = 1 << 20;

fn main() -> Result<(), Report> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", address, path] => receive(address, path),
        ["send", address, path] => send(address, path),
        _ => Err("usage: file_transfer receive|send ADDRESS:PORT FILE".into()),
    }
}

fn receive(address: &str, path: &str) -> Result<(), Report> {
    let listener = Listener::bind(address)?;
    println!("listening at {}", listener.local_addr());
    let connection = listener.accept()?;
    let (mut file, mut len) = (File::create(path)?, 0);
    while let Some(piece) = connection.recv()? {
        file.write_all(&piece)?;
        len += piece.len() as u64;
    }
    // Confirms to the sender that everything was written.
    connection.send(&len.to_le_bytes())?;
    println!("received {len} bytes from {}", connection.peer_addr());
    Ok(connection.close()?)
}

fn send(address: &str, path: &str) -> Result<(), Report> {
    let mut file = File::open(path)?;
    let connection = connect(address)?;
    let start = Instant::now();
    loop {
        let mut piece = connection.pool().allocate(PIECE)?;
        let len = file.read(&mut piece)?;
        if len == 0 {
            break;
        }
        piece.resize(len)?;
        connection.send(piece)?;
    }
    connection.shutdown()?;
    let answer = connection.recv()?.ok_or("the receiver closed the connection without a confirmation")?;
    let len = u64::from_le_bytes(answer[..].try_into()?);
    println!("sent {len} bytes in {:?}", start.elapsed());
    Ok(connection.close()?)
}
