//! rdma-core's `rping` on soft-RoCE against Adverb's example `rping` on the software NIC: the connection manager, READ
//! and WRITE.

use support::process;

use super::Program;
use super::matrix::Ip;

/// Returns the programs: both address families, a clean and a lossy link, the C program as server and as client.
pub(super) fn programs(rping: &str) -> Vec<Program> {
    let rping = process::quote(rping);
    let mut programs = Vec::new();
    for ip in Ip::ALL {
        let (theirs, ours) = ip.addresses();
        for (netem, network) in [("", ""), (" loss 5% delay 2ms reorder 1%", ", 5 % loss")] {
            for role in ["server", "client"] {
                programs.push(Program {
                    name: format!("rping as {role}, {}{network}", ip.name()),
                    line: format!("network{netem}\nrping_{role} {rping} {theirs} {ours}"),
                });
            }
        }
    }
    programs
}
