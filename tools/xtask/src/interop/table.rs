//! The table of results.

use std::collections::BTreeMap;

use serde_json::Value;

use super::matrix::{Cell, Ip, Mtu, Network};

type Outcomes = BTreeMap<String, Value>;

/// Returns a table for each MTU, with a row for each operation and direction.
pub(super) fn table(cells: &[Cell], outcomes: &Outcomes) -> String {
    let mut text = String::new();
    for mtu in Mtu::ALL {
        let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.mtu == mtu).collect();
        let mut cases: Vec<&str> = Vec::new();
        for cell in &cells {
            if !cases.contains(&&*cell.case) {
                cases.push(&cell.case);
            }
        }
        if cases.is_empty() {
            continue;
        }
        text += &format!("\nMTU {:<16}", mtu.name());
        for (ip, network) in columns() {
            text += &format!(" {:>11}", format!("{} {}", ip.name(), network.name()));
        }
        text.push('\n');
        for case in cases {
            text += &format!("{case:<20}");
            for (ip, network) in columns() {
                let is_cell = |cell: &&&Cell| cell.ip == ip && cell.network == network && cell.case == case;
                let word = cells.iter().find(is_cell).map_or("·".to_owned(), |cell| word(cell, outcomes));
                text += &format!(" {word:>11}");
            }
            text.push('\n');
        }
    }
    text + "\n"
}

fn columns() -> impl Iterator<Item = (Ip, Network)> {
    Ip::ALL.into_iter().flat_map(|ip| Network::ALL.map(|network| (ip, network)))
}

/// Returns a cell's entry in the table: the number of messages that arrived, and of those sent if it differs.
fn word(cell: &Cell, outcomes: &Outcomes) -> String {
    let Some(outcome) = outcomes.get(&cell.name()) else { return "NOT RUN".to_owned() };
    let number = |field: &str| outcome[field].as_u64().unwrap_or(0);
    match (outcome["outcome"].as_str(), number("arrived"), number("sent")) {
        (Some("passed"), arrived, sent) if arrived == sent => format!("ok {sent}"),
        (Some("passed"), arrived, sent) => format!("ok {arrived}/{sent}"),
        (Some("skipped"), ..) => "SKIPPED".to_owned(),
        _ => "FAILED".to_owned(),
    }
}

/// Returns the cells that failed or did not report, with the reasons. Soft-RoCE and the software NIC support every
/// operation, so a skipped cell counts as failed.
pub(super) fn failures(cells: &[Cell], outcomes: &Outcomes) -> Vec<String> {
    let failure = |cell: &Cell| {
        let Some(outcome) = outcomes.get(&cell.name()) else {
            return Some(format!("{}: it did not finish", cell.name()));
        };
        let passed = outcome["outcome"] == "passed";
        (!passed).then(|| format!("{}: {}", cell.name(), outcome["reason"].as_str().unwrap_or_default()))
    };
    cells.iter().filter_map(failure).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_cell_is_in_the_table_and_a_missing_result_is_a_failure() {
        let cell = |ip, network, case: &str| Cell { mtu: Mtu::Mtu256, ip, network, case: case.to_owned() };
        let cells = [
            cell(Ip::V4, Network::Clean, "ud:reverse"),
            cell(Ip::V4, Network::Loss1, "ud:reverse"),
            cell(Ip::V6, Network::Loss5, "ud:reverse"),
            cell(Ip::V6, Network::Clean, "ud:reverse"),
        ];
        let outcomes = Outcomes::from([
            (cells[0].name(), json!({"outcome": "passed", "arrived": 7, "sent": 7})),
            (cells[1].name(), json!({"outcome": "passed", "arrived": 6, "sent": 7})),
            (cells[2].name(), json!({"outcome": "failed", "reason": "a byte"})),
        ]);
        let expected = "\n\
            MTU 256               ipv4 clean  ipv4 loss1  ipv4 loss5  ipv6 clean  ipv6 loss1  ipv6 loss5\n\
            ud:reverse                  ok 7      ok 6/7           ·     NOT RUN           ·      FAILED\n\n";
        assert_eq!(table(&cells, &outcomes), expected);
        let failures = failures(&cells, &outcomes);
        assert_eq!(
            failures,
            ["256 ipv6 loss5 ud:reverse: a byte", "256 ipv6 clean ud:reverse: it did not finish"]
        );
    }
}
