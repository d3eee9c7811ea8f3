//! The matrix of tests between the software NIC and soft-RoCE through Adverb's API.

use serde_json::Value;
use support::process;

/// One test of the matrix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    pub(super) mtu: Mtu,
    pub(super) ip: Ip,
    pub(super) network: Network,
    /// An operation and a direction, as `adverb peertest --list` prints them.
    pub(super) case: String,
}

impl Cell {
    pub(super) fn name(&self) -> String {
        format!("{} {} {} {}", self.mtu.name(), self.ip.name(), self.network.name(), self.case)
    }
}

/// Declares an enum whose variants have names.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(super) enum $type {
            $($variant,)+
        }

        impl $type {
            pub(super) const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            pub(super) fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }
    };
}

named! {
    /// The MTU of queue pairs.
    Mtu { Mtu256 = "256", Mtu1024 = "1024", Mtu4096 = "4096", }
}

named! {
    /// The address family.
    Ip { V4 = "ipv4", V6 = "ipv6", }
}

named! {
    /// The quality of the link, in each direction.
    Network { Clean = "clean", Loss1 = "loss1", Loss5 = "loss5", }
}

impl Mtu {
    /// Returns the MTU of the link: IPv6's minimum, Ethernet's, or one for jumbo frames.
    pub(super) fn of_link(self) -> u32 {
        match self {
            Mtu::Mtu256 => 1280,
            Mtu::Mtu1024 => 1500,
            Mtu::Mtu4096 => 9000,
        }
    }
}

impl Ip {
    /// Returns the addresses of soft-RoCE and of the software NIC.
    pub(super) fn addresses(self) -> (&'static str, &'static str) {
        match self {
            Ip::V4 => ("10.77.0.1", "10.77.0.2"),
            Ip::V6 => ("fd77::1", "fd77::2"),
        }
    }

    /// Returns the index of the address in soft-RoCE's GID table.
    pub(super) fn gid_index(self) -> u8 {
        match self {
            Ip::V4 => 1,
            Ip::V6 => 2,
        }
    }
}

impl Network {
    /// Returns netem's parameters.
    fn netem(self) -> &'static str {
        match self {
            Network::Clean => "",
            Network::Loss1 => "loss 1%",
            Network::Loss5 => "delay 2ms reorder 1% loss 5%",
        }
    }
}

/// Returns all cells.
pub(super) fn cells(cases: &[&str]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for mtu in Mtu::ALL {
        for ip in Ip::ALL {
            for network in Network::ALL {
                let cell = |case: &&str| Cell { mtu, ip, network, case: (*case).to_owned() };
                cells.extend(cases.iter().map(cell));
            }
        }
    }
    cells
}

/// Returns a tenth of the cells, the same number for each MTU, otherwise in pseudo-random order. The ten tenths
/// together are all cells.
pub(super) fn tenth(cells: &[Cell], tenth: u8) -> Vec<Cell> {
    let mut chosen = Vec::new();
    for mtu in Mtu::ALL {
        let mut of_mtu: Vec<&Cell> = cells.iter().filter(|cell| cell.mtu == mtu).collect();
        of_mtu.sort_by_key(|cell| (mixed(&cell.name()), cell.name()));
        chosen.extend(of_mtu.into_iter().skip(tenth.into()).step_by(10).cloned());
    }
    chosen
}

/// Returns the FNV-1a hash of a name.
fn mixed(name: &str) -> u64 {
    let step = |state: u64, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Cells that the same two processes run, one after the other.
pub(super) struct Group {
    mtu: Mtu,
    ip: Ip,
    network: Network,
    pub(super) cells: Vec<Cell>,
}

/// Returns the cells in as few groups as possible, in order.
pub(super) fn groups<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> Vec<Group> {
    let mut groups = Vec::new();
    for mtu in Mtu::ALL {
        for ip in Ip::ALL {
            for network in Network::ALL {
                let is_here = |cell: &&Cell| (cell.mtu, cell.ip, cell.network) == (mtu, ip, network);
                let cells: Vec<Cell> = cells.clone().filter(is_here).cloned().collect();
                if !cells.is_empty() {
                    groups.push(Group { mtu, ip, network, cells });
                }
            }
        }
    }
    groups
}

impl Group {
    pub(super) fn name(&self) -> String {
        format!("{} {} {}", self.mtu.name(), self.ip.name(), self.network.name())
    }

    /// Returns the shell command for the group.
    pub(super) fn line(&self, adverb: &str) -> String {
        let (theirs, ours) = self.ip.addresses();
        let lossy = if self.network == Network::Clean { "" } else { "--lossy" };
        let only: Vec<String> = self.cells.iter().map(|cell| format!("--only {}", cell.case)).collect();
        format!(
            "network {}\npeertest {} {theirs} {ours} --mtu {} {lossy} {}",
            self.network.netem(),
            process::quote(adverb),
            self.mtu.name(),
            only.join(" ")
        )
    }

    /// Returns the results of the cells by name: the program's JSON, with MTU, address family and network added.
    pub(super) fn outcomes(&self, printed: &str) -> Vec<(String, Value)> {
        let mut outcomes = Vec::new();
        for line in printed.lines() {
            let Ok(Value::Object(mut fields)) = serde_json::from_str(line) else { continue };
            let (Some(operation), Some(direction)) = (fields.get("operation"), fields.get("direction"))
            else {
                continue;
            };
            let case = format!(
                "{}:{}",
                operation.as_str().unwrap_or_default(),
                direction.as_str().unwrap_or_default()
            );
            let Some(cell) = self.cells.iter().find(|cell| cell.case == case) else { continue };
            for (field, value) in
                [("mtu", self.mtu.name()), ("ip", self.ip.name()), ("network", self.network.name())]
            {
                fields.insert(field.to_owned(), value.into());
            }
            outcomes.push((cell.name(), Value::Object(fields)));
        }
        outcomes
    }
}

/// Sums up the dropped packets in tc's output.
pub(super) fn dropped(printed: &str) -> u64 {
    let counts = printed
        .lines()
        .filter_map(|line| line.split_once("(dropped ")?.1.split(',').next()?.parse::<u64>().ok());
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: &[&str] =
        &["rc-send:forward", "rc-send:reverse", "ud:forward", "ud:reverse", "uc-send:forward"];

    #[test]
    fn tenths_are_all_cells_together_and_each_has_every_mtu() {
        let all = cells(CASES);
        let mut seen = Vec::new();
        for number in 0..10 {
            let cells = tenth(&all, number);
            for mtu in Mtu::ALL {
                assert_eq!(cells.iter().filter(|cell| cell.mtu == mtu).count(), 3);
            }
            seen.extend(cells.iter().map(Cell::name));
        }
        seen.sort();
        let mut names: Vec<String> = all.iter().map(Cell::name).collect();
        names.sort();
        assert_eq!(seen, names);
    }

    #[test]
    fn a_tenth_contains_all_values_of_each_dimension() {
        let cells = tenth(&cells(CASES), 3);
        for ip in Ip::ALL {
            assert!(cells.iter().any(|cell| cell.ip == ip), "{cells:?}");
        }
        for network in Network::ALL {
            assert!(cells.iter().any(|cell| cell.network == network), "{cells:?}");
        }
    }

    #[test]
    fn results_are_found_in_the_output() {
        let all = cells(CASES);
        let groups = groups(all.iter());
        assert_eq!(groups.len(), 18);
        let printed = "noise\n{\"operation\":\"ud\",\"direction\":\"reverse\",\"outcome\":\"passed\"}\n{\"operation\":\"x\"}\n";
        let outcomes = groups[0].outcomes(printed);
        assert_eq!(outcomes.len(), 1);
        assert_eq!(outcomes[0].0, "256 ipv4 clean ud:reverse");
        assert_eq!(outcomes[0].1["network"], "clean");
    }

    #[test]
    fn dropped_packets_are_summed() {
        let printed = "Sent 1 bytes 1 pkt (dropped 3, overlimits 0 requeues 0)\n Sent 9 bytes 9 pkt (dropped 40, overlimits 0)\n";
        assert_eq!(dropped(printed), 43);
    }
}
