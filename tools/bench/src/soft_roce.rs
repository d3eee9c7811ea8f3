//! Beside soft-RoCE, in a virtual machine whose clock goes by its instructions.

use anyhow::Result;
use vm::virtual_time;

use super::report::{Goal, Row};
use super::{Program, Said};

/// How often each is measured: it repeats well.
const ROUNDS: usize = 3;

/// RDMA WRITEs between two processes, over the kernel's soft-RoCE and over ours.
///
/// There is one CPU, so that nobody polls while there is nothing to be had: completions have events. Ours are in the
/// namespace where there is no RDMA, so that both have their port, and their packets go through the loopback interface;
/// the kernel's go straight from its queue to itself.
pub(super) fn compare(program: &Program) -> Result<Row> {
    let Program(path) = program;
    let soft = format!(
        "ip netns exec peer sh -c 'ip link set lo up && {path} write soft:127.0.0.2 soft:127.0.0.3 500 65536 asleep'"
    );
    let rxe = format!("{path} write rxe0 rxe0 500 65536 asleep");
    let lines: Vec<String> = [soft, rxe].into_iter().cycle().take(2 * ROUNDS).collect();
    let said = virtual_time::run(9000, &lines)?;
    let mut figures = [Vec::new(), Vec::new()];
    for (number, said) in said.into_iter().enumerate() {
        figures[number % 2].push(Said(said).number("bandwidth")?);
    }
    let [ours, theirs] = figures;
    Ok(Row {
        what: "64 KiB WRITE in the VM",
        unit: "MB/s",
        ours,
        beside: "the kernel's soft-RoCE (rxe)",
        theirs,
        goal: Some(Goal::AtLeast(1.0)),
    })
}
