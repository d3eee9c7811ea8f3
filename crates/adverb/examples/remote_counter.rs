//! A server has a counter in its memory for each client. A client increments its counter with RDMA atomics; the server's
//! program makes no call for them.
//!
//! ```text
//! $ cargo run --release --example remote_counter -- serve 127.0.0.1:7471
//! $ cargo run --release --example remote_counter -- 127.0.0.1:7471
//! ```

use std::sync::atomic::Ordering;

use adverb::Report;
use adverb::net::RemoteAccess;
use adverb::net::blocking::{Connection, Listener, connect};

fn main() -> Result<(), Report> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            let listener = Listener::bind(address)?;
            println!("listening at {}", listener.local_addr());
            loop {
                let connection = listener.accept()?;
                std::thread::spawn(move || match serve(&connection) {
                    Ok(count) => println!("{} counted to {count}", connection.peer_addr()),
                    Err(error) => println!("{error}"),
                });
            }
        }
        [address] => {
            let connection = connect(address)?;
            let counter = connection.remote_region("counter")?;
            for _ in 0..1000 {
                counter.fetch_add(0, 1)?;
            }
            println!("the counter was {} before the last increment", counter.fetch_add(0, 1)?);
            Ok(connection.close()?)
        }
        _ => Err("usage: remote_counter [serve] ADDRESS:PORT".into()),
    }
}

fn serve(connection: &Connection) -> adverb::Result<u64> {
    let counter = connection.expose("counter", 8, RemoteAccess::READ | RemoteAccess::ATOMIC)?;
    // Waits until the client closes the connection.
    while connection.recv()?.is_some() {}
    Ok(counter.word(0)?.load(Ordering::Relaxed))
}
