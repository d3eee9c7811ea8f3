//! Failures of the peer and of the network.

use std::process::Command;
use std::thread::{JoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::{ConnectionError, RecvError, RemoteAccess, RemoteErrorKind, SendErrorKind};

use super::{End, Random, check, fill};

/// Checks that receives and remote operations fail after the peer is dropped.
pub(super) fn detect_failure(end: End) {
    let words = end.remote_region("words").unwrap();
    end.send(b"found").unwrap();
    let start = Instant::now();
    scope(|scope| {
        scope.spawn(|| {
            let error = end.recv().unwrap_err();
            assert!(
                matches!(error, RecvError::ConnectionLost(ConnectionError::PeerAborted { .. })),
                "{error:?}"
            );
        });
        scope.spawn(|| {
            let error = loop {
                if let Err(error) = words.fetch_add(0, 1) {
                    break error;
                }
            };
            assert!(matches!(error, RemoteErrorKind::ConnectionLost(_)), "{error:?}");
        });
    });
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(matches!(end.send(b"?"), Err(SendErrorKind::ConnectionLost(_))));
}

/// Drops the connection without a close.
pub(super) fn drop_connection(end: End) {
    let words = end.expose("words", 8, RemoteAccess::ATOMIC).unwrap();
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"found");
    drop(words);
    drop(end);
}

/// The environment variable with a command that interrupts the network for some seconds. One of the two processes may
/// have it.
const COMMAND_VARIABLE: &str = "ADVERB_CUT";

/// An interruption of the network.
pub(super) struct Interruption {
    /// The duration of the case.
    pub(super) time: Duration,
    /// The minimum time without a received message.
    pub(super) gap: Duration,
    command_thread: Option<JoinHandle<()>>,
}

impl Interruption {
    /// Agrees with the peer on whether the network is interrupted, by exchanging a byte, and starts the command.
    pub(super) fn agree(exchange: impl FnOnce(u8) -> u8) -> Interruption {
        let command = std::env::var(COMMAND_VARIABLE).ok();
        let is_interrupted = exchange(u8::from(command.is_some())) == 1 || command.is_some();
        let command_thread = command.map(|command| {
            std::thread::spawn(move || {
                sleep(Duration::from_millis(500));
                assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
            })
        });
        let [time, gap] = if is_interrupted { [6000, 1500] } else { [300, 0] }.map(Duration::from_millis);
        Interruption { time, gap, command_thread }
    }

    pub(super) fn end(self) {
        if let Some(command_thread) = self.command_thread {
            command_thread.join().unwrap();
        }
    }
}

fn exchange(end: &End, byte: u8) -> u8 {
    end.send(&[byte]).unwrap();
    end.recv().unwrap().unwrap()[0]
}

/// Sends messages for a while, and checks the echoes.
pub(super) fn send_despite_interruption(end: End) {
    let interruption = Interruption::agree(|byte| exchange(&end, byte));
    let lens = || {
        let mut random = Random(11);
        (0..).map(move |number| (number, random.len(60_000)))
    };
    scope(|scope| {
        let sending = scope.spawn(|| {
            let (start, mut bytes) = (Instant::now(), Vec::new());
            for (number, len) in lens() {
                if start.elapsed() > interruption.time {
                    end.shutdown().unwrap();
                    return number;
                }
                bytes.resize(len, 0);
                fill(number, &mut bytes);
                end.send(&bytes).unwrap();
            }
            unreachable!("the lengths have no end")
        });
        let (mut lens, mut gap, mut last, mut count) = (lens(), Duration::ZERO, Instant::now(), 0);
        while let Some(message) = end.recv().unwrap() {
            let (number, len) = lens.next().unwrap();
            check(number, len, &message);
            (gap, last, count) = (gap.max(last.elapsed()), Instant::now(), count + 1);
        }
        assert_eq!(count, sending.join().unwrap());
        assert!(gap >= interruption.gap, "the network was not interrupted: the longest gap is {gap:?}");
    });
    interruption.end();
    end.close().unwrap();
}

/// Sends every message back.
pub(super) fn echo_despite_interruption(end: End) {
    let interruption = Interruption::agree(|byte| exchange(&end, byte));
    while let Some(message) = end.recv().unwrap() {
        end.send(message).unwrap();
    }
    interruption.end();
    end.close().unwrap();
}
