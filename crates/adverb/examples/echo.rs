//! A server that sends every message back, and a client that measures the round-trip time.
//!
//! ```text
//! $ cargo run --release --example echo -- serve 127.0.0.1:7471
//! $ cargo run --release --example echo -- 127.0.0.1:7471
//! ```

use std::time::Instant;

use adverb::Report;
use adverb::net::blocking::{Connection, Listener, connect};

const ROUNDS: u32 = 1000;

fn main() -> Result<(), Report> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [command, address] if command == "serve" => Ok(serve(address)?),
        [address] => Ok(measure(address)?),
        _ => Err("usage: echo [serve] ADDRESS:PORT".into()),
    }
}

fn serve(address: &str) -> adverb::Result<()> {
    let listener = Listener::bind(address)?;
    println!("listening at {}", listener.local_addr());
    loop {
        let connection = listener.accept()?;
        std::thread::spawn(move || {
            let peer = connection.peer_addr();
            match echo(connection) {
                Ok(()) => println!("{peer} closed the connection"),
                Err(error) => println!("{error}"),
            }
        });
    }
}

fn echo(connection: Connection) -> adverb::Result<()> {
    // A long message is sent without a copy.
    while let Some(message) = connection.recv()? {
        connection.send(message)?;
    }
    connection.close()?;
    Ok(())
}

fn measure(address: &str) -> adverb::Result<()> {
    let connection = connect(address)?;
    for len in [0, 64, 4096, 1 << 20] {
        let message = vec![7; len];
        let start = Instant::now();
        for _ in 0..ROUNDS {
            connection.send(&message)?;
            let answer = connection.recv()?.expect("an answer");
            assert_eq!(answer.len(), len);
        }
        println!("{len} bytes: {:?} per round trip", start.elapsed() / ROUNDS);
    }
    connection.close()?;
    Ok(())
}
