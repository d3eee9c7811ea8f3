//! More peers than a listener has slots or descriptors for. This test has its own process, whose descriptors it uses
//! up.

#![cfg(feature = "soft")]

use std::io::Write;
use std::net::TcpStream;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::Options;
use adverb::net::blocking::{Connector, Listener};
use adverb::verbs::Device;

/// Returns the process's limit of descriptors.
fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for a write.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    limit
}

fn set_limit(descriptors: u64) {
    let limit = libc::rlimit { rlim_cur: descriptors, ..limit() };
    // SAFETY: the pointer is valid for a read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

/// Returns the number of open descriptors.
fn descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

/// Stops a listener when it is dropped.
struct Stop<'a>(&'a Listener);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Clients that only open TCP connections don't keep others out for long, however many they are and however long the
/// listener's timeout is. `accept` doesn't fail because of them.
#[test]
fn silent_clients_dont_keep_others_from_connecting() {
    let options = Options::new().device(&Device::open("soft").unwrap());
    let options = options.connect_timeout(Duration::from_secs(60)).timeout(Duration::from_secs(30));
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    for is_fd_limited in [true, false] {
        let start = Instant::now();
        scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().unwrap());
            let before = descriptors();
            set_limit(if is_fd_limited { before + 60 } else { limit().rlim_max.min(8192) });
            // Stops the listener after a failure too, so that no thread waits forever.
            let stop = Stop(&listener);
            let mut silent_clients: Vec<TcpStream> = Vec::new();
            // As many connections as possible. Some of them send a part of a greeting.
            for number in 0..1000 {
                let Ok(mut stream) = TcpStream::connect(address) else { break };
                if number % 2 == 0 {
                    stream.write_all(b"adverb").unwrap();
                }
                silent_clients.push(stream);
                // The listener accepts the first clients, so that these hold the descriptors that it lacks later.
                while is_fd_limited && number == 4 && descriptors() < before + 3 * 5 {
                    assert!(start.elapsed() < Duration::from_secs(30));
                    sleep(Duration::from_millis(1));
                }
            }
            if is_fd_limited {
                assert!((10..=60).contains(&silent_clients.len()), "{}", silent_clients.len());
                // Time for the listener to run out of descriptors, and for the connector.
                sleep(Duration::from_millis(300));
                silent_clients.truncate(10);
            }
            let client = loop {
                match Connector::new().options(&options).connect(address) {
                    Ok(client) => break client,
                    // The listener may reject connections until enough descriptors are free.
                    Err(error) => {
                        assert!(is_fd_limited && start.elapsed() < Duration::from_secs(30), "{error}");
                    }
                }
                sleep(Duration::from_millis(50));
            };
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
            client.send(b"hello").unwrap();
            assert_eq!(&accepting.join().unwrap().recv().unwrap().unwrap()[..], b"hello");
            std::mem::forget(stop);
        });
        println!("few descriptors: {is_fd_limited}: {:?}", start.elapsed());
    }
}
