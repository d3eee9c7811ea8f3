//! Hostile datagrams to probers and responders over sockets: some rounds of `cargo xtask attack --probe`.

#![cfg(feature = "soft")]

#[path = "../examples/attack/datagrams.rs"]
mod datagrams;
#[path = "../examples/attack/report.rs"]
mod report;
#[path = "../examples/attack/round.rs"]
mod round;

use report::Report;

/// The four seeds cover all combinations of a key and a rate limit.
#[test]
fn attacked_responders_and_probers_only_count_drops() {
    let mut report = Report::default();
    for seed in 0..4 {
        round::attack(seed, &mut report).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    println!("{report}");
    let [invalid, bad_tags, rate_limited] = report.dropped;
    assert!(invalid > 0 && bad_tags > 0 && rate_limited > 0, "{report}");
    assert!(report.kinds.iter().all(|kind| kind.sent > 0), "{report}");
}
