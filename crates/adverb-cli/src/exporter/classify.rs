//! The meaning of counters by their names. Drivers choose the names, and the kernel provides no other information.

use adverb::verbs::Counters;

/// The direction of packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

impl Direction {
    /// Returns the value of the label `direction`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
        }
    }

    /// Splits the direction off a name: `rx_dropped` is `dropped` in the direction [`Rx`](Self::Rx).
    fn of(name: &str) -> Option<(Direction, &str)> {
        let (direction, rest) = name.split_once('_')?;
        match direction {
            "rx" => Some((Self::Rx, rest)),
            "tx" => Some((Self::Tx, rest)),
            _ => None,
        }
    }
}

/// The meaning of an RDMA counter. Each counter has exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RdmaCounter {
    /// Packets. A driver may have several such counters, to be added.
    Packets(Direction),
    /// Bytes, in units of this many bytes. A driver may have several such counters, to be added.
    Bytes(Direction, u64),
    /// Events that should not happen on a healthy network.
    Error,
    /// A current number of objects, or the maximum since the start.
    Gauge,
    /// Other events.
    Event,
}

impl RdmaCounter {
    /// Returns the meaning of the counter with the driver's name `name`.
    pub(super) fn of(name: &str) -> RdmaCounter {
        match name {
            "rcvd_pkts" | "port_rcv_packets" | "rx_pkts" | "ip4InPkts" | "ip6InPkts" => {
                Self::Packets(Direction::Rx)
            }
            "sent_pkts" | "port_xmit_packets" | "tx_pkts" | "ip4OutPkts" | "ip6OutPkts" => {
                Self::Packets(Direction::Tx)
            }
            "rcvd_bytes" | "rx_bytes" | "ip4InOctets" | "ip6InOctets" => Self::Bytes(Direction::Rx, 1),
            "sent_bytes" | "tx_bytes" | "ip4OutOctets" | "ip6OutOctets" => Self::Bytes(Direction::Tx, 1),
            // IBTA vol. 1, 16.1.3.5: "data octets, divided by 4".
            "port_rcv_data" => Self::Bytes(Direction::Rx, 4),
            "port_xmit_data" => Self::Bytes(Direction::Tx, 4),
            // bnxt_re: numbers of objects.
            _ if name.starts_with("active_") || name.starts_with("watermark_") => Self::Gauge,
            _ if Counters::is_error(name) => Self::Error,
            _ => Self::Event,
        }
    }
}

/// The meaning of a statistic of a network interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NetdevStatistic {
    /// Pause frames of a priority (PFC), or of the whole link. A driver may have several such statistics, to be added.
    PauseFrames(Direction, Priority),
    /// The time in which a pause stopped the priority, in microseconds.
    PauseMicroseconds(Direction, Priority),
    /// Discarded packets.
    Discards(Direction),
    /// Erroneous packets.
    Errors(Direction),
}

/// The priority that pause frames apply to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Priority {
    /// All priorities: link-level pause frames (IEEE 802.3x).
    All,
    /// One priority (PFC, IEEE 802.1Qbb).
    One(u8),
}

impl Priority {
    /// Returns the value of the label `priority`.
    pub(super) fn label(self) -> &'static str {
        const NAMES: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
        match self {
            Self::All => "all",
            Self::One(priority) => NAMES[usize::from(priority & 7)],
        }
    }

    /// Parses a priority in decimal.
    fn parse(word: &str) -> Option<Priority> {
        word.parse().ok().filter(|priority| *priority < 8).map(Self::One)
    }
}

impl NetdevStatistic {
    /// Returns the meaning of a statistic in `/sys/class/net/*/statistics`. `None` means that it is not exported.
    pub(super) fn of_kernel(name: &str) -> Option<NetdevStatistic> {
        let (direction, rest) = Direction::of(name)?;
        match rest {
            // `rx_errors` and `tx_errors` are sums of the others.
            "errors" => None,
            "dropped" | "missed_errors" | "fifo_errors" | "over_errors" => Some(Self::Discards(direction)),
            _ if rest.ends_with("_errors") => Some(Self::Errors(direction)),
            _ => None,
        }
    }

    /// Returns the meaning of a driver's statistic. `None` means that it is not exported: it counts something else, or
    /// only a queue's share.
    pub(super) fn of_driver(name: &str) -> Option<NetdevStatistic> {
        // i40e and ice add this prefix or suffix to the names of the port's statistics.
        let name = name.strip_prefix("port.").unwrap_or(name);
        let name = name.strip_suffix(".nic").unwrap_or(name);
        if let Some(pause) = pause(name) {
            return Some(pause);
        }
        let (direction, rest) = Direction::of(name)?;
        // Other digits number the queues.
        let without_priority = match rest.strip_prefix("prio") {
            Some(tail) => tail.strip_prefix(|c: char| c.is_ascii_digit())?,
            None => rest,
        };
        let is_discard = ["discard", "drop", "out_of_buffer", "no_buf", "missed"]
            .iter()
            .any(|sign| without_priority.contains(sign));
        let is_partial =
            without_priority.contains(|c: char| c.is_ascii_digit()) || without_priority.contains("xdp");
        (is_discard && !is_partial).then_some(Self::Discards(direction))
    }
}

/// Returns the meaning of a statistic about pause frames, in the notations of several drivers.
fn pause(name: &str) -> Option<NetdevStatistic> {
    // i40e, ice: link_xoff_rx.
    match name {
        "link_xon_rx" | "link_xoff_rx" => {
            return Some(NetdevStatistic::PauseFrames(Direction::Rx, Priority::All));
        }
        "link_xon_tx" | "link_xoff_tx" => {
            return Some(NetdevStatistic::PauseFrames(Direction::Tx, Priority::All));
        }
        _ => {}
    }
    // hns3: mac_rx_pfc_pri3_pkt_num, mac_rx_mac_pause_num.
    let name = name.strip_prefix("mac_").unwrap_or(name);
    let (direction, rest) = Direction::of(name)?;
    let frames = |priority| Some(NetdevStatistic::PauseFrames(direction, priority));
    let microseconds = |priority| Some(NetdevStatistic::PauseMicroseconds(direction, priority));
    match rest {
        // mlx5; bnxt_en, qede and others; igb, ixgbe; hns3.
        "global_pause" | "pause" | "pause_frames" | "flow_control_xon" | "flow_control_xoff"
        | "mac_pause_num" => return frames(Priority::All),
        "global_pause_duration" => return microseconds(Priority::All),
        _ => {}
    }
    let between =
        |prefix: &str, suffix: &str| Priority::parse(rest.strip_prefix(prefix)?.strip_suffix(suffix)?);
    // mlx5; bnxt_en; i40e, ice; ixgbe; hns3.
    const FRAMES: [(&str, &str); 7] = [
        ("prio", "_pause"),
        ("pfc_ena_frames_pri", ""),
        ("priority_", "_xon"),
        ("priority_", "_xoff"),
        ("pb_", "_pxon"),
        ("pb_", "_pxoff"),
        ("pfc_pri", "_pkt_num"),
    ];
    let priority = FRAMES.iter().find_map(|(prefix, suffix)| between(prefix, suffix));
    // mlx5.
    priority.and_then(frames).or_else(|| between("prio", "_pause_duration").and_then(microseconds))
}

#[cfg(test)]
mod tests {
    use super::NetdevStatistic::{Discards, Errors, PauseFrames, PauseMicroseconds};
    use super::*;
    use Direction::{Rx, Tx};

    #[test]
    fn rdma_counters_have_the_meaning_of_their_drivers_names() {
        for (name, meaning) in [
            ("rcvd_pkts", RdmaCounter::Packets(Rx)),
            ("port_xmit_packets", RdmaCounter::Packets(Tx)),
            ("port_rcv_data", RdmaCounter::Bytes(Rx, 4)),
            ("sent_bytes", RdmaCounter::Bytes(Tx, 1)),
            ("out_of_sequence", RdmaCounter::Error),
            ("rx_icrc_encapsulated", RdmaCounter::Error),
            ("active_qps", RdmaCounter::Gauge),
            ("np_cnp_sent", RdmaCounter::Event),
            ("port_xmit_wait", RdmaCounter::Event),
        ] {
            assert_eq!(RdmaCounter::of(name), meaning, "{name}");
        }
    }

    #[test]
    fn statistics_of_drivers_have_one_meaning() {
        for (name, meaning) in [
            ("rx_prio3_pause", PauseFrames(Rx, Priority::One(3))),
            ("tx_prio3_pause_duration", PauseMicroseconds(Tx, Priority::One(3))),
            ("rx_global_pause", PauseFrames(Rx, Priority::All)),
            ("rx_global_pause_duration", PauseMicroseconds(Rx, Priority::All)),
            ("tx_pfc_ena_frames_pri0", PauseFrames(Tx, Priority::One(0))),
            ("port.rx_priority_7_xoff", PauseFrames(Rx, Priority::One(7))),
            ("tx_priority_2_xon.nic", PauseFrames(Tx, Priority::One(2))),
            ("link_xoff_rx.nic", PauseFrames(Rx, Priority::All)),
            ("tx_pb_1_pxoff", PauseFrames(Tx, Priority::One(1))),
            ("mac_rx_pfc_pri4_pkt_num", PauseFrames(Rx, Priority::One(4))),
            ("rx_discards_phy", Discards(Rx)),
            ("rx_prio3_discards", Discards(Rx)),
            ("rx_out_of_buffer", Discards(Rx)),
            ("tx_dropped.nic", Discards(Tx)),
            ("rx_drops", Discards(Rx)),
        ] {
            assert_eq!(NetdevStatistic::of_driver(name), Some(meaning), "{name}");
        }
    }

    #[test]
    fn a_queues_share_and_other_statistics_are_not_exported() {
        for name in [
            "rx12_dropped",
            "rx_queue_0_drops",
            "rx_queue_0_xdp_drops",
            "[3]: rx_discards",
            "ch0_events",
            "peer_ifindex",
            "rx_xdp_drops",
            "rx_prio9_pause",
            "rx_prio3_bytes",
            "rx_packets_phy",
            "drops",
            "",
        ] {
            assert_eq!(NetdevStatistic::of_driver(name), None, "{name}");
        }
    }

    #[test]
    fn statistics_of_the_kernel_are_not_counted_twice() {
        assert_eq!(NetdevStatistic::of_kernel("rx_dropped"), Some(Discards(Rx)));
        assert_eq!(NetdevStatistic::of_kernel("rx_crc_errors"), Some(Errors(Rx)));
        assert_eq!(NetdevStatistic::of_kernel("tx_carrier_errors"), Some(Errors(Tx)));
        for name in ["rx_errors", "tx_errors", "rx_packets", "collisions", "multicast", "rx_nohandler"] {
            assert_eq!(NetdevStatistic::of_kernel(name), None, "{name}");
        }
    }
}
