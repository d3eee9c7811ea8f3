//! rdma-core's `rping` on soft-RoCE, with adverb's example `rping` on the software NIC: connections through the connection
//! manager, READ and WRITE.

use support::process;

use super::Program;
use super::matrix::Ip;

/// With both kinds of addresses, over a cable that is well and one that isn't, the C program as server and as client.
pub(super) fn programs(rping: &str) -> Vec<Program> {
    let rping = process::quote(rping);
    let mut programs = Vec::new();
    for ip in Ip::ALL {
        let (theirs, ours) = ip.addresses();
        for (netem, network) in [("", ""), (" loss 5% delay 2ms reorder 1%", ", 5 % lost")] {
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
