//! What becomes of an end when the other fails.

use std::process::Command;
use std::thread::{JoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use adverb::Error;
use adverb::net::RemoteAccess;

use super::{End, Random, check, fill};

/// Notices, whatever it waits for, that the other end is no more.
pub(super) fn detect_failure(end: End) {
    let words = end.remote_region("words").unwrap();
    end.send(b"found").unwrap();
    let start = Instant::now();
    scope(|scope| {
        scope.spawn(|| {
            let error = end.recv().unwrap_err();
            assert!(matches!(error, Error::Disconnected { .. }), "{error}");
        });
        scope.spawn(|| {
            let error = loop {
                if let Err(error) = words.fetch_add(0, 1) {
                    break error;
                }
            };
            assert!(matches!(error, Error::Disconnected { .. }), "{error}");
        });
    });
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(matches!(end.send(b"?"), Err(Error::Disconnected { .. })));
}

/// Goes without a word.
pub(super) fn drop_connection(end: End) {
    let words = end.expose("words", 8, RemoteAccess::ATOMIC).unwrap();
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"found");
    drop(words);
    drop(end);
}

/// The network between two ends, which is cut for some seconds while they play, if one of them knows how: by this command.
const COMMAND_VARIABLE: &str = "ADVERB_CUT";

/// What comes of cutting it.
pub(super) struct Interruption {
    /// For how long to go on.
    pub(super) time: Duration,
    /// How long nothing comes, at least.
    pub(super) gap: Duration,
    command_thread: Option<JoinHandle<()>>,
}

impl Interruption {
    /// Agrees with the other end on whether it is cut, and has that done soon.
    pub(super) fn agree(end: &End) -> Interruption {
        let command = std::env::var(COMMAND_VARIABLE).ok();
        end.send(&[u8::from(command.is_some())]).unwrap();
        let is_interrupted = end.recv().unwrap().unwrap()[..] == [1] || command.is_some();
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

/// Sends messages for a while, and looks at what comes back.
pub(super) fn send_despite_interruption(end: End) {
    let interruption = Interruption::agree(&end);
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
            unreachable!("there are always more")
        });
        let (mut lens, mut gap, mut last, mut count) = (lens(), Duration::ZERO, Instant::now(), 0);
        while let Some(message) = end.recv().unwrap() {
            let (number, len) = lens.next().unwrap();
            check(number, len, &message);
            (gap, last, count) = (gap.max(last.elapsed()), Instant::now(), count + 1);
        }
        assert_eq!(count, sending.join().unwrap());
        assert!(gap >= interruption.gap, "it wasn't cut: nothing came for {gap:?} at most");
    });
    interruption.end();
    end.close().unwrap();
}

/// Sends back what comes.
pub(super) fn echo_despite_interruption(end: End) {
    let interruption = Interruption::agree(&end);
    while let Some(message) = end.recv().unwrap() {
        end.send(message).unwrap();
    }
    interruption.end();
    end.close().unwrap();
}
