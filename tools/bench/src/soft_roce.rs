//! Comparison with soft-RoCE, in a virtual machine whose clock counts instructions.

use anyhow::Result;
use vm::virtual_time;

use super::report::{Goal, Row};
use super::{Output, Program};

/// The number of measurements. In virtual time, they differ little.
const ROUNDS: usize = 3;

/// Measures RDMA WRITEs between two processes, over the kernel's soft-RoCE and over the software NIC.
///
/// The guest has one CPU, so the processes wait for completion events instead of polling. The software NIC runs in the
/// namespace without RDMA, because both use the RoCE port. Its packets pass through the loopback interface; soft-RoCE
/// delivers packets to itself directly.
pub(super) fn compare(program: &Program) -> Result<Row> {
    let Program(path) = program;
    let soft = format!(
        "ip netns exec peer sh -c 'ip link set lo up && {path} write soft:127.0.0.2 soft:127.0.0.3 500 65536 asleep'"
    );
    let rxe = format!("{path} write rxe0 rxe0 500 65536 asleep");
    let lines: Vec<String> = [soft, rxe].into_iter().cycle().take(2 * ROUNDS).collect();
    let output = virtual_time::run(9000, &lines)?;
    let mut figures = [Vec::new(), Vec::new()];
    for (number, output) in output.into_iter().enumerate() {
        figures[number % 2].push(Output(output).number("bandwidth")?);
    }
    let [values, baseline_values] = figures;
    Ok(Row {
        what: "64 KiB WRITE in the VM",
        unit: "MB/s",
        values,
        baseline: "the kernel's soft-RoCE (rxe)",
        baseline_values,
        goal: Some(Goal::AtLeast(1.0)),
    })
}
