//! A summary of attacks.

use std::fmt;

use adverb_proto::Statistics;

/// The kinds of hostile packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Kind {
    /// A packet for a queue pair whose state the attacker knows.
    KnownQueuePair,
    /// A packet for the members of a group.
    Group,
    /// A connection manager's message to an address of the NIC.
    Message,
    /// A connection manager's message to a group.
    GroupMessage,
    /// A packet for a queue pair of the well-behaved pair, with correct numbers, from a wrong address.
    WrongAddress,
    /// A packet from the address of the well-behaved peer, with guessed numbers.
    Spoofed,
    /// A packet that the NIC sent, sent back to it.
    Reflected,
}

const NAMES: [&str; 7] = [
    "to known queue pairs",
    "to groups",
    "CM messages",
    "CM messages to groups",
    "from wrong addresses",
    "spoofed",
    "reflected",
];

/// A summary of attacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// The number of attacks, each on another NIC.
    pub(crate) rounds: u64,
    /// The numbers of packets sent, by [`Kind`].
    pub(crate) sent: [u64; 7],
    /// The number of GSO batches among them.
    pub(crate) batches: u64,
    /// The number of packets that the kernel rejected.
    pub(crate) rejected: u64,
    /// The number of operations of the well-behaved pair.
    pub(crate) operations: u64,
    /// The number of connections of the well-behaved pair.
    pub(crate) connections: u64,
    /// The number of connection requests of attackers.
    pub(crate) requests: u64,
    /// The counters of the attacked NICs.
    counters: Vec<(&'static str, u64)>,
}

impl Report {
    /// Adds the counters of an attacked NIC.
    pub(crate) fn add(&mut self, statistics: &Statistics) {
        self.counters.resize(statistics.counters().len(), ("", 0));
        for ((name, sum), (counter, count)) in self.counters.iter_mut().zip(statistics.counters()) {
            *name = counter;
            *sum += count;
        }
    }

    /// Returns the number of hostile packets.
    pub(crate) fn packets(&self) -> u64 {
        self.sent.iter().sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hostile packets in {} rounds:", self.packets(), self.rounds)?;
        for (index, (name, count)) in NAMES.iter().zip(self.sent).enumerate() {
            write!(f, "{} {count} {name}", if index == 0 { "" } else { "," })?;
        }
        writeln!(f, "; {} GSO batches, {} rejected by the kernel", self.batches, self.rejected)?;
        writeln!(
            f,
            "well-behaved pair: {} operations, of which {} connections; attackers requested {} connections",
            self.operations, self.connections, self.requests
        )?;
        write!(f, "attacked NIC:")?;
        for (name, count) in self.counters.iter().filter(|(_, count)| *count > 0) {
            write!(f, " {name} {count}")?;
        }
        Ok(())
    }
}
