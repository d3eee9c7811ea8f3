//! A server that trains a model, and a client that reads its parameters out of the server's memory meanwhile.
//!
//! ```text
//! $ cargo run --release --example parameter_read -- serve 127.0.0.1:7471
//! $ cargo run --release --example parameter_read -- 127.0.0.1:7471
//! ```

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use adverb::Report;
use adverb::net::RemoteAccess;
use adverb::net::blocking::{Listener, connect};

/// The length of the parameters in bytes. Their version, a word, is in front of them.
const LEN: usize = 1 << 16;

fn main() -> Result<(), Report> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [command, address] if command == "serve" => Ok(serve(address)?),
        [address] => Ok(read(address)?),
        _ => Err("usage: parameter_read [serve] ADDRESS:PORT".into()),
    }
}

fn serve(address: &str) -> adverb::Result<()> {
    let listener = Listener::bind(address)?;
    println!("listening at {}", listener.local_addr());
    let (connection, mut step) = (listener.accept()?, 0);
    let parameters = connection.expose("parameters", 8 + LEN, RemoteAccess::READ)?;
    // The client sends no messages. Its reads don't involve this program.
    while connection.recv_timeout(Duration::from_millis(1)).is_err() {
        step += 1;
        train(&parameters, step)?;
    }
    println!("trained {step} steps meanwhile");
    connection.close()?;
    Ok(())
}

/// The version is odd while the parameters change.
fn train(parameters: &adverb::memory::MemoryRegion, step: u64) -> adverb::Result<()> {
    parameters.word(0)?.store(2 * step - 1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    parameters.write(8, &[step as u8; LEN])?;
    parameters.word(0)?.store(2 * step, Ordering::Release);
    Ok(())
}

fn read(address: &str) -> adverb::Result<()> {
    let connection = connect(address)?;
    let parameters = connection.remote_region("parameters")?;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(2));
        // The reads execute in this order: equal even versions before and after mean consistent parameters.
        let read = parameters.read_many([0..8, 8..8 + LEN as u64, 0..8])?;
        let is_whole = read[0][..] == read[2][..] && read[0][0] % 2 == 0;
        println!(
            "{:?} …: {}",
            &read[1][..4],
            if is_whole { "consistent" } else { "changed while they were read" }
        );
    }
    connection.close()?;
    Ok(())
}
