//! C programs on adverb-preload against the same programs on soft-RoCE.

use std::path::Path;

use support::process;

use super::Program;

/// The shell functions that run the programs.
const FUNCTIONS: &str = include_str!("preload.sh");

/// The programs and their options.
const PROGRAMS: &[&str] = &["rping -V -C 50 -S 4000", "ib_send_lat -n 100"];

/// Returns the programs, with adverb-preload as server and as client.
pub(super) fn programs(adverb: &str, libraries: &Path) -> Vec<Program> {
    let libraries = libraries.display().to_string();
    let install = format!("install_preload {} {}", process::quote(adverb), process::quote(&libraries));
    let mut programs = Vec::new();
    for command in PROGRAMS {
        programs.extend(["server", "client"].map(|role| Program {
            name: format!("{command} on adverb-preload as {role}"),
            line: format!("{FUNCTIONS}\nnetwork\n{install} && against_rxe {role} '' {command}"),
        }));
    }
    programs
}
