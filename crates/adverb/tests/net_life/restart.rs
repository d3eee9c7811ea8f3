//! A transfer to a program that is killed and restarted.

use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::Error;
use adverb::net::Options;
use adverb::net::blocking::{Connection, Connector, Listener};

use crate::child::{Process, options};
use crate::random::Random;
use crate::{MAX_LEN, Messages, number};

/// The length of a message.
const MESSAGE_LEN: usize = MAX_LEN;

fn reconnecting_options() -> Options {
    options().reconnect(Duration::from_secs(10)).timeout(Duration::from_secs(60))
}

/// Returns the message with this number.
fn transfer_message(messages: &Messages, number: usize) -> &[u8] {
    messages.message(number, MESSAGE_LEN)
}

/// The other program: sends the number of messages that it has, and appends each received message to a file, which
/// remains when the program is killed.
pub(crate) fn receive(port: &str, path: &str) {
    let listener = loop {
        // The previous process may still have the port.
        match Listener::builder().options(&reconnecting_options()).bind(format!("127.0.0.1:{port}")) {
            Ok(listener) => break listener,
            Err(_) => sleep(Duration::from_millis(10)),
        }
    };
    println!("listening {}", listener.local_addr());
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    scope(|scope| {
        let connection = listener.accept().unwrap();
        // Accepts redials of the connection.
        scope.spawn(|| listener.accept().map(drop));
        let whole = file.metadata().unwrap().len() / MESSAGE_LEN as u64;
        file.set_len(whole * MESSAGE_LEN as u64).unwrap();
        connection.send(&whole.to_le_bytes()).unwrap();
        while let Some(message) = connection.recv().unwrap() {
            file.write_all(&message).unwrap();
        }
        connection.close().unwrap();
        std::process::exit(0);
    });
}

/// Sends all messages from the receiver's position on. If the connection fails, returns the number of sent messages.
fn send_from(connection: &Connection, messages: &Messages, count: usize) -> Result<(), (usize, Error)> {
    let first = match connection.recv() {
        Ok(Some(message)) => u64::from_le_bytes(message[..].try_into().unwrap()) as usize,
        Ok(None) => panic!("the receiver sent no position"),
        Err(error) => return Err((0, error.into())),
    };
    for number in first..count {
        connection
            .send(transfer_message(messages, number))
            .map_err(|failure| (number - first, failure.into()))?;
    }
    // The receiver has everything when it closes the connection.
    connection.shutdown().map_err(|error| (count - first, error.into()))?;
    match connection.recv() {
        Ok(None) => Ok(()),
        Ok(Some(_)) => panic!("the receiver sent a second message"),
        Err(error) => Err((count - first, error.into())),
    }
}

fn hash(mut next: impl FnMut(&mut [u8]) -> usize) -> u64 {
    let (mut hasher, mut bytes) = (DefaultHasher::new(), vec![0; MESSAGE_LEN]);
    loop {
        match next(&mut bytes) {
            0 => return hasher.finish(),
            len => hasher.write(&bytes[..len]),
        }
    }
}

fn hash_of(path: &Path) -> u64 {
    let mut file = File::open(path).unwrap();
    hash(|bytes| match file.read_exact(bytes) {
        Ok(()) => bytes.len(),
        Err(_) => 0,
    })
}

#[test]
fn a_transfer_to_a_killed_and_restarted_program_is_complete() {
    let _guard = crate::share_process();
    let count = number("ADVERB_MEBIBYTES", 64) * (1 << 20) / MESSAGE_LEN;
    let kills = number("ADVERB_RESTARTS", 2);
    let messages = &Messages::new();
    let path: PathBuf = std::env::temp_dir().join(format!("adverb-restart-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let start = |port: &str| Process::start(&format!("receive {port} {}", path.display()));
    let mut process = start("0");
    let address = process.wait_for_line("listening ");
    let port = address.rsplit(':').next().unwrap().to_owned();
    let (mut random, begin, mut killed, mut unacknowledged) = (Random(3), Instant::now(), 0, 0);
    loop {
        let connection = Connector::new().options(&reconnecting_options()).connect(&*address).unwrap();
        let result = scope(|scope| {
            let sending = scope.spawn(|| send_from(&connection, messages, count));
            if killed < kills {
                sleep(Duration::from_millis(50 + random.below(250) as u64));
                process.kill();
                killed += 1;
                process = start(&port);
                process.wait_for_line("listening ");
            }
            sending.join().unwrap()
        });
        let Err((sent, error)) = result else { break };
        assert!(error.is_retryable(), "{error:?}");
        let left = connection.take_unacknowledged();
        assert!(left.len() <= sent + 1 && left.windows(2).all(|pair| pair[0].index < pair[1].index));
        assert!(left.iter().all(|message| message.buffer.len() == MESSAGE_LEN));
        unacknowledged += left.len();
    }
    let expected = {
        let mut number = 0;
        hash(|bytes| {
            if number == count {
                return 0;
            }
            bytes.copy_from_slice(transfer_message(messages, number));
            number += 1;
            MESSAGE_LEN
        })
    };
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (count * MESSAGE_LEN) as u64);
    let found = hash_of(&path);
    println!(
        "{} MiB in {:?}, the receiver killed and restarted {killed} times: hash {found:x}, expected {expected:x}; {unacknowledged} \
         messages weren't acknowledged",
        (count * MESSAGE_LEN) >> 20,
        begin.elapsed()
    );
    assert_eq!(found, expected);
    std::fs::remove_file(&path).unwrap();
}
