//! The paths of probes: flow labels, source ports, and the number of ports that cover all paths.
//!
//! Switches choose one of several equal paths by a hash of addresses and ports (ECMP). The destination port of RoCE v2
//! is always 4791, so the source port selects the path. On RoCE v2 the flow label of an address handle determines the
//! source port: see [`Traffic::flow_label`](adverb_verbs::Traffic::flow_label).

use adverb_proto::Path;

/// The first source port of flow labels.
const FIRST_PORT: u16 = 0xc000;

/// Maximum number of paths that a prober uses at once. A software NIC opens one socket for each, and has at most 256 of
/// them.
pub const MAX_PATHS: usize = 128;

/// Returns the number of source ports, chosen at random, that together take all of `path_count` equally likely paths
/// with the probability `confidence`: ⌈ln(1 − p^(1/m)) / ln((m − 1)/m)⌉ for *m* paths and the probability *p*.
///
/// ```
/// use adverb::probe::paths::ports_to_cover;
///
/// assert_eq!(ports_to_cover(1, 0.99), 1);
/// assert_eq!(ports_to_cover(2, 0.99), 8);
/// assert_eq!(ports_to_cover(16, 0.99), 115);
/// ```
///
/// # Panics
///
/// Panics if `path_count` is 0, or if `confidence` isn't between 0 and 1, both excluded.
pub fn ports_to_cover(path_count: u32, confidence: f64) -> u32 {
    assert!(path_count > 0, "no paths");
    assert!(confidence > 0.0 && confidence < 1.0, "a confidence of {confidence}");
    if path_count == 1 {
        return 1;
    }
    let paths = f64::from(path_count);
    // 1 − p^(1/m), without the cancellation for p near 1.
    let missed = -(confidence.ln() / paths).exp_m1();
    let ports = missed.ln() / (-1.0 / paths).ln_1p();
    ports.ceil() as u32
}

/// Returns the UDP source port that a flow label maps to on RoCE v2, or `None` for the label 0, for which the device
/// chooses the port.
pub fn source_port_of(flow_label: u32) -> Option<u16> {
    (flow_label & 0xf_ffff != 0).then(|| Path::source_port_of_label(flow_label))
}

/// Returns a flow label that maps to a UDP source port, or `None` if no label does: the ports of flow labels begin at
/// 0xC000.
///
/// ```
/// use adverb::probe::paths::{flow_label_of, source_port_of};
///
/// assert_eq!(flow_label_of(0xc123), Some(0x123));
/// assert_eq!(source_port_of(flow_label_of(0xc000).unwrap()), Some(0xc000));
/// assert_eq!(flow_label_of(4791), None);
/// ```
pub fn flow_label_of(source_port: u16) -> Option<u32> {
    match source_port.checked_sub(FIRST_PORT)? {
        // The label 0 would mean that no label is set.
        0 => Some(0x4001),
        low => Some(u32::from(low)),
    }
}

/// Maximum number of source ports of a responder's acknowledgements to probes that have flow labels. A software NIC
/// opens a socket for each source port, so a sender of random flow labels could otherwise make the responder open a
/// socket for each probe.
pub const MAX_ACK_PORTS: u16 = 128;

/// Returns the flow label of a probe's acknowledgements. It follows from the probe's, so the acknowledgements of one path
/// always take one path back. The switches choose that path: a label can't select the reverse of the probe's path.
///
/// All flow labels together result in [`MAX_ACK_PORTS`] source ports. The labels that
/// [`choose_flow_labels`] returns result in different ones.
///
/// ```
/// use adverb::probe::paths::{ack_flow_label, source_port_of};
///
/// assert_eq!(source_port_of(ack_flow_label(0x3fff)), Some(0xc07f));
/// assert_eq!(ack_flow_label(0), 0);
/// ```
pub fn ack_flow_label(probe_flow_label: u32) -> u32 {
    source_port_of(probe_flow_label)
        .and_then(|port| flow_label_of(FIRST_PORT | (port % MAX_ACK_PORTS)))
        .unwrap_or_default()
}

/// Returns `count` flow labels with different source ports, at most [`MAX_PATHS`], which follow from a random number.
pub fn choose_flow_labels(count: usize, random: u64) -> Vec<u32> {
    // An odd step visits all 2^14 ports before it repeats one.
    let (start, step) = (random as u32, (random >> 32) as u32 | 1);
    let port = |index: u32| FIRST_PORT | (start.wrapping_add(index.wrapping_mul(step)) & 0x3fff) as u16;
    (0..count.min(MAX_PATHS) as u32).filter_map(|index| flow_label_of(port(index))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Returns the probability that `ports` random ports take all of `paths` paths, by dynamic programming over the number
    /// of paths already taken.
    fn coverage(paths: usize, ports: u32) -> f64 {
        let mut taken = vec![0.0; paths + 1];
        taken[0] = 1.0;
        for _ in 0..ports {
            for count in (0..=paths).rev() {
                let stays = taken[count] * count as f64 / paths as f64;
                let grows = match count {
                    0 => 0.0,
                    _ => taken[count - 1] * (paths - count + 1) as f64 / paths as f64,
                };
                taken[count] = stays + grows;
            }
        }
        taken[paths]
    }

    #[test]
    fn the_number_of_ports_covers_the_paths() {
        for paths in [2, 3, 4, 8, 16, 64, 256] {
            for confidence in [0.9, 0.99, 0.999] {
                let ports = ports_to_cover(paths, confidence);
                // The formula treats the paths as independent, which is almost exact for high confidence.
                assert!(coverage(paths as usize, ports) >= confidence - 0.001, "{paths} {confidence}");
                assert!(coverage(paths as usize, ports / 2) < confidence, "{paths} {confidence}");
            }
        }
    }

    #[test]
    fn every_port_of_the_range_has_a_label() {
        for port in 0xc000..=u16::MAX {
            let label = flow_label_of(port).expect("a label");
            assert_eq!(source_port_of(label), Some(port));
        }
        assert_eq!(flow_label_of(0xbfff), None);
        assert_eq!(source_port_of(0), None);
    }

    /// A socket of the responder's software NIC is opened for each port of an acknowledgement.
    #[test]
    fn acknowledgements_have_few_source_ports() {
        let labels = 1..1 << 20;
        let ports: HashSet<_> = labels.map(|label| source_port_of(ack_flow_label(label))).collect();
        assert_eq!(ports.len(), usize::from(MAX_ACK_PORTS));
        assert!(!ports.contains(&None));
        assert_eq!(ack_flow_label(0), 0);
    }

    proptest! {
        #[test]
        fn chosen_labels_have_different_ports(count in 0_usize..300, random: u64) {
            let labels = choose_flow_labels(count, random);
            prop_assert_eq!(labels.len(), count.min(MAX_PATHS));
            let ports: HashSet<_> = labels.iter().map(|&label| source_port_of(label)).collect();
            prop_assert_eq!(ports.len(), labels.len());
            prop_assert!(!ports.contains(&None));
            let ack_ports: HashSet<_> = labels.iter().map(|&label| ack_flow_label(label)).collect();
            prop_assert_eq!(ack_ports.len(), labels.len());
        }
    }
}
