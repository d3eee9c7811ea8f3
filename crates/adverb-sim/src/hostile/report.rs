//! Statistics of attacks.

use std::fmt;

/// The statistics of one or more attacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AttackReport {
    /// The number of attacks, each on its own device.
    pub attacks: u64,
    /// The number of packets sent to the devices.
    pub packets: u64,
    /// The number of these that couldn't be parsed.
    pub malformed: u64,
    /// The number of these that reached a queue pair's checks.
    pub accepted: u64,
    /// The number of these that were dropped, by a queue pair or before.
    pub dropped: u64,
    /// The number of packets sent to the queue pair in each state: reset, init, ready to receive, ready to send, send
    /// queue drained, send queue error, error.
    pub states: [u64; 7],
    /// The number of packets that the devices sent.
    pub sent: u64,
    /// The number of NAKs among these.
    pub naks: u64,
    /// The number of permitted memory accesses.
    pub memory_accesses: u64,
    /// The number of completions.
    pub completions: u64,
    /// The number of keys that their owners invalidated.
    pub invalidations: u64,
}

impl AttackReport {
    /// Adds the statistics of another attack.
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
            "{sent} packets sent ({naks} NAKs), {memory_accesses} memory accesses, {} completions, {} keys invalidated",
            self.completions, self.invalidations
        )
    }
}
