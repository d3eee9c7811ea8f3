//! Runs of tshark.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{packages, process};

use super::pdml::{self, Dissection};

/// Protocols whose heuristics claim arbitrary payloads, so that tshark would not show the payload's bytes.
const HEURISTIC_PROTOCOLS: &[&str] = &[
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

/// Preferences: check IPv4's checksum, and accept a UDP checksum of zero over IPv6, as RoCEv2 sends it.
const SETTINGS: &[&str] = &["ip.check_checksum:TRUE", "udp.ignore_ipv6_zero_checksum:TRUE"];

/// Returns tshark's version, such as `4.0.17`. Installs tshark if it is missing.
pub(super) fn version() -> Result<String> {
    if process::find("tshark").is_none() {
        packages::ensure(&["tshark"])?;
    }
    let text = process::text(Command::new("tshark").arg("--version"))?;
    let version = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    Ok(version.context("`tshark --version` prints no version")?.trim_end_matches('.').to_owned())
}

/// Dissects each packet of a capture.
pub(super) fn dissect(capture: &Path, packets: usize) -> Result<Vec<Dissection>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "pdml", "-r"]).arg(capture);
    for protocol in HEURISTIC_PROTOCOLS {
        command.args(["--disable-protocol", protocol]);
    }
    // This heuristic claims payloads whose first two bytes are an Ethernet type.
    command.args(["--disable-heuristic", "eth_over_ib"]);
    for setting in SETTINGS {
        command.args(["-o", setting]);
    }
    // An empty configuration directory, so that the user's own preferences have no effect.
    if let Some(directory) = capture.parent() {
        command.env("WIRESHARK_CONFIG_DIR", directory);
    }
    let dissections = pdml::parse(&process::text(&mut command)?)?;
    ensure!(
        dissections.len() == packets,
        "tshark dissected {} of {packets} packets in {}",
        dissections.len(),
        capture.display()
    );
    Ok(dissections)
}
