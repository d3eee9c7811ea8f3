//! Statistics of attacks.

use std::fmt;

/// The statistics of one or more attacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AttackReport {
    /// The number of attacks, each on its own device.
    pub attack_count: u64,
    /// The number of packets that the attackers sent to the devices.
    pub attacker_packet_count: u64,
    /// The number of the attackers' packets that couldn't be parsed.
    pub malformed_count: u64,
    /// The number of the attackers' packets that were delivered to a queue pair.
    pub delivered_count: u64,
    /// The number of the attackers' packets that a device dropped, before or after delivery to a queue pair.
    pub dropped_count: u64,
    /// The number of the attackers' packets by the state of the target queue pair: Reset, Init, RTR, RTS, SQD, SQE and
    /// Error.
    pub packets_per_state: [u64; 7],
    /// The number of packets that the devices sent.
    pub device_packet_count: u64,
    /// The number of NAKs that the devices sent.
    pub nak_count: u64,
    /// The number of the devices' memory writes, atomics and flushes.
    pub memory_access_count: u64,
    /// The number of polled completions.
    pub completion_count: u64,
    /// The number of memory keys that local invalidate requests invalidated.
    pub invalidation_count: u64,
}

impl AttackReport {
    /// Adds the statistics of another attack.
    pub fn add(&mut self, other: &AttackReport) {
        self.attack_count += other.attack_count;
        self.attacker_packet_count += other.attacker_packet_count;
        self.malformed_count += other.malformed_count;
        self.delivered_count += other.delivered_count;
        self.dropped_count += other.dropped_count;
        for (sum, count) in self.packets_per_state.iter_mut().zip(other.packets_per_state) {
            *sum += count;
        }
        self.device_packet_count += other.device_packet_count;
        self.nak_count += other.nak_count;
        self.memory_access_count += other.memory_access_count;
        self.completion_count += other.completion_count;
        self.invalidation_count += other.invalidation_count;
    }
}

impl fmt::Display for AttackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reset, init, rtr, rts, sqd, sqe, error] = self.packets_per_state;
        writeln!(
            f,
            "{} packets in {} attacks: {} malformed, {} delivered to a queue pair, {} dropped",
            self.attacker_packet_count,
            self.attack_count,
            self.malformed_count,
            self.delivered_count,
            self.dropped_count
        )?;
        writeln!(
            f,
            "in state: {reset} reset, {init} init, {rtr} ready to receive, {rts} ready to send, {sqd} drained, \
             {sqe} send queue error, {error} error"
        )?;
        write!(
            f,
            "{} packets sent ({} NAKs), {} memory accesses, {} completions, {} keys invalidated",
            self.device_packet_count,
            self.nak_count,
            self.memory_access_count,
            self.completion_count,
            self.invalidation_count
        )
    }
}
