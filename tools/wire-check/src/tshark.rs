//! Running tshark.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{packages, process};

use super::pdml::{self, Dissection};

/// Protocols that take a payload for theirs by the look of it, and would show it instead of the bytes that
/// were sent.
const GUESSERS: &[&str] = &[
    "fcoib",
    "infiniband.eoib",
    "infiniband_sdp",
    "iser",
    "lnet",
    "nvme-rdma",
    "rpcordma",
    "smb_direct",
    "smc",
];

/// Settings: check IPv4's checksum, and don't mind that RoCEv2 sends none in UDP over IPv6.
const SETTINGS: &[&str] = &["ip.check_checksum:TRUE", "udp.ignore_ipv6_zero_checksum:TRUE"];

/// The version, as in `4.0.17`. Installs tshark if it is missing and can be.
pub(super) fn version() -> Result<String> {
    if process::find("tshark").is_none() {
        packages::ensure(&["tshark"])?;
    }
    let text = process::text(Command::new("tshark").arg("--version"))?;
    let version = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    Ok(version.context("tshark doesn't say its version")?.trim_end_matches('.').to_owned())
}

/// What tshark makes of each packet of a capture.
pub(super) fn dissect(capture: &Path, packets: usize) -> Result<Vec<Dissection>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "pdml", "-r"]).arg(capture);
    for protocol in GUESSERS {
        command.args(["--disable-protocol", protocol]);
    }
    // Ethernet types in the first two bytes: a protocol of its own only as a guess.
    command.args(["--disable-heuristic", "eth_over_ib"]);
    for setting in SETTINGS {
        command.args(["-o", setting]);
    }
    // An empty directory for a configuration, so that a person's own doesn't change what is shown.
    if let Some(directory) = capture.parent() {
        command.env("WIRESHARK_CONFIG_DIR", directory);
    }
    let dissections = pdml::parse(&process::text(&mut command)?)?;
    ensure!(
        dissections.len() == packets,
        "tshark shows {} packets of {packets} in {}",
        dissections.len(),
        capture.display()
    );
    Ok(dissections)
}
