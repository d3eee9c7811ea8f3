//! C programs on adverb-preload against the same programs on soft-RoCE.

use std::path::Path;

use support::process;

use super::Program;

/// The shell functions that run the programs.
const FUNCTIONS: &str = include_str!("preload.sh");

/// The programs and their options. A receive buffer that overflows loses messages of UC and UD, so few are in flight.
const PROGRAMS: &[&str] = &[
    "rping -V -C 50 -S 4000",
    "ib_send_lat -n 100",
    "ib_send_lat -n 100 -e",
    "ib_send_lat -n 100 -R",
    "ib_send_lat -n 100 -c UC",
    "ib_send_lat -n 100 -c UD",
    "ib_send_bw -n 100 -s 4096",
    "ib_send_bw -n 100 -s 1024 -c UC -t 4",
    "ib_send_bw -n 100 -s 1024 -c UD -t 4",
    "ib_write_lat -n 100",
    "ib_write_bw -n 100 -s 4096",
    "ib_write_bw -n 100 -s 4096 -R",
    "ib_write_bw -n 100 -s 1024 -c UC -t 4",
    "ib_read_lat -n 100",
    "ib_read_bw -n 100 -s 4096",
    "ib_atomic_lat -n 100",
    "ib_atomic_bw -n 100",
    "ibv_rc_pingpong -n 100 -r 100",
    "ibv_uc_pingpong -n 100 -r 100",
    "ibv_ud_pingpong -n 100 -r 100",
    "ibv_srq_pingpong -n 100 -r 100",
];

/// The programs that also run while adverb-preload loses 1 % of the packets that it sends.
const PROGRAMS_WITH_LOSS: &[&str] = &[
    "rping -V -C 50 -S 4000",
    "ib_send_lat -n 500",
    "ib_send_bw -n 500 -s 4096",
    "ib_write_bw -n 500 -s 4096",
    "ib_read_bw -n 500 -s 4096",
    "ib_atomic_lat -n 500",
    "ibv_rc_pingpong -n 500 -r 500",
];

/// Returns the programs, with adverb-preload as server and as client.
pub(super) fn programs(adverb: &str, libraries: &Path) -> Vec<Program> {
    let libraries = libraries.display().to_string();
    let install = format!("install_preload {} {}", process::quote(adverb), process::quote(&libraries));
    let without_loss = PROGRAMS.iter().map(|command| (command, "", ""));
    let with_loss = PROGRAMS_WITH_LOSS.iter().map(|command| (command, "--loss 1", " with 1 % loss"));
    let mut programs = Vec::new();
    for (command, run_options, suffix) in without_loss.chain(with_loss) {
        programs.extend(["server", "client"].map(|role| Program {
            name: format!("{command} on adverb-preload as {role}{suffix}"),
            line: format!("{FUNCTIONS}\nnetwork\n{install} && against_rxe {role} '{run_options}' {command}"),
        }));
    }
    programs
}
