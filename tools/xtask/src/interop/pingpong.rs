//! rdma-core's example programs on soft-RoCE against Adverb's example `pingpong` on the software NIC.

use support::process;

use super::Program;
use super::matrix::Ip;

/// The kinds of `ibv_…_pingpong`.
const KINDS: &[&str] = &["rc", "uc", "ud", "srq"];

/// Returns the programs: every kind, both address families, the C program as server and as client.
pub(super) fn programs(pingpong: &str) -> Vec<Program> {
    let pingpong = process::quote(pingpong);
    let mut programs = Vec::new();
    for kind in KINDS {
        for ip in Ip::ALL {
            let (_, ours) = ip.addresses();
            let (gid, ip) = (ip.gid_index(), ip.name());
            for role in ["server", "client"] {
                programs.push(Program {
                    name: format!("ibv_{kind}_pingpong as {role}, {ip}"),
                    line: format!("network\npingpong_{role} {pingpong} {kind} {gid} {ours}"),
                });
            }
        }
    }
    programs
}
