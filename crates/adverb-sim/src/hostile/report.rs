//! What attacks were.

use std::fmt;

/// What attacks were, and what came of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AttackReport {
    /// Attacks, each on a device of its own.
    pub attacks: u64,
    /// Packets sent at the devices.
    pub packets: u64,
    /// Those of them that aren't packets.
    pub malformed: u64,
    /// Those that came as far as a queue pair's own rules.
    pub accepted: u64,
    /// Those that were dropped, there or before.
    pub dropped: u64,
    /// How many packets the queue pair was sent in each state: reset, init, ready to receive, ready to send, send
    /// queue drained, send queue error, error.
    pub states: [u64; 7],
    /// Packets that the devices sent.
    pub sent: u64,
    /// NAKs among them.
    pub naks: u64,
    /// Times that memory was touched, rightly.
    pub memory_accesses: u64,
    /// Completions.
    pub completions: u64,
    /// Keys that their owners invalidated.
    pub invalidations: u64,
}

impl AttackReport {
    /// Adds those of another attack.
    pub fn add(&mut self, other: &AttackReport) {
        self.attacks += other.attacks;
        self.packets += other.packets;
        self.malformed += other.malformed;
        self.accepted += other.accepted;
        self.dropped += other.dropped;
        for (sum, count) in self.states.iter_mut().zip(other.states) {
            *sum += count;
        }
        self.sent += other.sent;
        self.naks += other.naks;
        self.memory_accesses += other.memory_accesses;
        self.completions += other.completions;
        self.invalidations += other.invalidations;
    }
}

impl fmt::Display for AttackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attacks, packets, malformed, accepted, dropped, sent, naks, memory_accesses, .. } = self;
        let [reset, init, rtr, rts, sqd, sqe, error] = self.states;
        writeln!(
            f,
            "{packets} packets in {attacks} attacks: {malformed} malformed, {accepted} accepted, {dropped} dropped"
        )?;
        writeln!(
            f,
            "in state: {reset} reset, {init} init, {rtr} ready to receive, {rts} ready to send, {sqd} drained, \
             {sqe} send queue error, {error} error"
        )?;
        write!(
            f,
            "{sent} packets sent ({naks} NAKs), memory touched {memory_accesses} times, {} completions, {} keys invalidated",
            self.completions, self.invalidations
        )
    }
}
