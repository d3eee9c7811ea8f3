//! What becomes of an end when the other fails.

use std::thread::scope;
use std::time::{Duration, Instant};

use adverb::Error;
use adverb::net::Rights;

use super::End;

/// Notices, whatever it waits for, that the other end is no more.
pub(super) fn notice(end: End) {
    let words = end.remote("words").unwrap();
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
pub(super) fn vanish(end: End) {
    let words = end.expose("words", 8, Rights::ATOMIC).unwrap();
    assert_eq!(&end.recv().unwrap().unwrap()[..], b"found");
    drop(words);
    drop(end);
}
