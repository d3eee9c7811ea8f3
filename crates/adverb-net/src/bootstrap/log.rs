//! A limit on the log lines about failed handshakes, which any peer can cause.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The maximum number of log lines about single peers per [`PERIOD`]. Further peers are counted, and the count is
/// logged when the period is over.
const MAX_LINES: u32 = 8;
const PERIOD: Duration = Duration::from_secs(1);

/// The log of peers whose handshakes failed: at most [`MAX_LINES`] lines and a count per [`PERIOD`].
#[derive(Debug)]
pub(super) struct FailureLog {
    period_start: Instant,
    lines: u32,
    /// Peers of the current period that were not logged.
    suppressed: u64,
}

impl FailureLog {
    pub(super) fn new() -> FailureLog {
        FailureLog { period_start: Instant::now(), lines: 0, suppressed: 0 }
    }

    /// Logs that a peer's handshake failed, or counts the peer.
    pub(super) fn record(&mut self, peer: SocketAddr, error: &impl fmt::Display) {
        if let Some(count) = self.advance(Instant::now()) {
            report(count);
        }
        if self.admit() {
            tracing::warn!(%peer, %error, "a peer's handshake failed");
        }
    }

    /// Logs the count of suppressed peers, if their period is over.
    pub(super) fn flush(&mut self) {
        if let Some(count) = self.advance(Instant::now()) {
            report(count);
        }
    }

    /// Returns the time until there is a count to [flush](FailureLog::flush).
    pub(super) fn time_left(&self) -> Duration {
        match self.suppressed {
            0 => Duration::MAX,
            _ => PERIOD.saturating_sub(self.period_start.elapsed()),
        }
    }

    /// Begins a new period if the current one is over, and returns the count of suppressed peers if there were any.
    fn advance(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.period_start) < PERIOD {
            return None;
        }
        (self.period_start, self.lines) = (now, 0);
        Some(std::mem::take(&mut self.suppressed)).filter(|count| *count > 0)
    }

    /// Whether the next peer gets a line of its own.
    fn admit(&mut self) -> bool {
        let is_admitted = self.lines < MAX_LINES;
        if is_admitted {
            self.lines += 1;
        } else {
            self.suppressed += 1;
        }
        is_admitted
    }
}

fn report(suppressed: u64) {
    tracing::warn!(suppressed, "handshakes of more peers failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_logged_in_few_lines_and_counted() {
        let mut log = FailureLog::new();
        let start = log.period_start;
        let admitted = (0..10_000).filter(|_| log.admit()).count();
        assert_eq!(admitted, MAX_LINES as usize);
        assert_eq!(log.advance(start + PERIOD / 2), None);
        assert!(log.time_left() <= PERIOD);
        assert_eq!(log.advance(start + PERIOD), Some(10_000 - u64::from(MAX_LINES)));
        assert_eq!(log.time_left(), Duration::MAX);
        assert!(log.admit(), "a new period has lines again");
        assert_eq!(log.advance(start + 2 * PERIOD), None, "there is nothing to count");
    }
}
