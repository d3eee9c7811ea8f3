//! `cargo xtask spine`: checks that `adverb ping` distinguishes a lossy spine from a clean one, and counts the probes.
//!
//! The network is a leaf-spine of network namespaces (`support::leaf_spine`). In each run, one of the two spines drops
//! a share of the packets that it forwards, in both directions, and `adverb ping --trace` probes both paths. The
//! kernel's route lookup shows which spine carries the answers of each port.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use support::leaf_spine::{H1, H2, LeafSpine, PATHS};
use support::{packages, process};

/// The options of `cargo xtask spine`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of runs for each loss.
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// The losses of the spine, in percent.
    #[arg(long, value_delimiter = ',', default_value = "10,1,0")]
    loss: Vec<f64>,
    /// The time between two probes, in seconds.
    #[arg(long, default_value = "0.002")]
    interval: String,
}

const SPINES: [&str; 2] = ["s1", "s2"];

/// A responder on h2, which ends with this value.
struct Responder(Child);

impl Drop for Responder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The number of probes after which the lossy spine is named, as `adverb ping` computes it.
#[derive(Clone, Copy, Default)]
struct Needed {
    median: u64,
    p99: u64,
}

/// The result of a run.
struct Outcome {
    /// The number of probes after which the lossy spine was named by lost probes, and by lost answers.
    forward: Option<u64>,
    back: Option<u64>,
    /// The number of times that a clean spine was named.
    wrong: u32,
    needed: Needed,
}

/// Runs `adverb ping` through the network, and prints a table.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(packages::is_root(), "the network needs root");
    packages::ensure(&["iproute2", "nftables"])?;
    let program = process::build("build -p adverb-cli")?;
    let prefix = format!("adverb-spine-{}", std::process::id());
    let network = LeafSpine::new(&prefix, false).map_err(|reason| anyhow!(reason))?;
    let _responder = respond(&network, &program)?;
    println!(
        "run  spine loss  probes  probes lost      answers lost     named by probes  by answers  wrong names"
    );
    let mut summaries = Vec::new();
    let mut wrong = 0;
    for &percent in &args.loss {
        let per_mille = (percent * 10.0).round() as u32;
        let mut outcomes = Vec::new();
        for run in 0..args.runs {
            let lossy = (run % 2) as usize;
            network.set_loss(SPINES[lossy], per_mille).map_err(|reason| anyhow!(reason))?;
            network.set_loss(SPINES[1 - lossy], 0).map_err(|reason| anyhow!(reason))?;
            let outcome = ping(&network, &program, args, run + 1, lossy, percent)?;
            wrong += outcome.wrong;
            outcomes.push(outcome);
        }
        summaries.push((percent, outcomes));
    }
    println!(
        "\nloss   runs  named  probes until named (min, median, max)  computed (median, 99 %)  wrong names"
    );
    for (percent, outcomes) in summaries {
        let mut after: Vec<u64> = outcomes.iter().filter_map(|outcome| outcome.forward).collect();
        after.sort_unstable();
        let range = match after.as_slice() {
            [] => "-".to_owned(),
            after => format!("{}, {}, {}", after[0], after[after.len() / 2], after[after.len() - 1]),
        };
        let needed = outcomes.first().map_or(Needed::default(), |outcome| outcome.needed);
        let computed = match percent > 0.0 {
            true => format!("{}, {}", needed.median, needed.p99),
            false => "-".to_owned(),
        };
        let wrong: u32 = outcomes.iter().map(|outcome| outcome.wrong).sum();
        let (runs, named) = (outcomes.len(), after.len());
        println!("{percent:>4} % {runs:>5}  {named:>5}  {range:<39} {computed:<24} {wrong}");
        ensure!(percent == 0.0 || named == runs, "the lossy spine was not named in {} runs", runs - named);
    }
    ensure!(wrong == 0, "a clean spine was named {wrong} times");
    Ok(())
}

fn respond(network: &LeafSpine, program: &str) -> Result<Responder> {
    let mut command = network.command("h2");
    command.args([program, "respond", "--json", "--device", &format!("soft:{H2}")]).stdout(Stdio::piped());
    let mut child = command.spawn().context("could not start the responder")?;
    let out = child.stdout.take();
    let responder = Responder(child);
    let mut line = String::new();
    BufReader::new(out.context("no output")?).read_line(&mut line)?;
    ensure!(line.contains("listening"), "the responder did not start: {line}");
    Ok(responder)
}

/// Probes both paths, one of which is lossy, and prints a line of the table.
fn ping(
    network: &LeafSpine,
    program: &str,
    args: &Args,
    run: u32,
    lossy: usize,
    percent: f64,
) -> Result<Outcome> {
    // Answers are lost, too, so the number of probes is twice the computed one.
    let count = match percent {
        0.0 => 5000,
        percent => (10_000.0 / percent) as u64,
    };
    let mut command = network.command("h1");
    command.args([program, "ping", H2, "--device", &format!("soft:{H1}"), "--json", "--trace"]);
    command.args(["--paths", "2", "--count", &count.to_string(), "--interval", &args.interval]);
    let run_ping = || -> Result<Value> {
        let output = command.output().context("could not run `adverb ping`")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last =
            text.lines().last().with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        serde_json::from_str(last).context("no JSON")
    };
    // A trace finds both paths with a probability of 99 %.
    let has_paths = |summary: &Value| summary["per_path"].as_array().is_some_and(|rows| rows.len() == 2);
    let mut attempts = std::iter::repeat_with(run_ping).take(4);
    let summary = attempts.find(|summary| summary.as_ref().map_or(true, has_paths));
    let summary = summary.context("only one path was traced, four times")??;
    let rows = summary["per_path"].as_array().context("no paths")?;
    let percent_of = |name: &str| {
        let rates = rows.iter().map(|row| format!("{:.2} %", 100.0 * row[name].as_f64().unwrap_or(0.0)));
        rates.collect::<Vec<_>>().join(", ")
    };
    let mut outcome = Outcome { forward: None, back: None, wrong: 0, needed: Needed::default() };
    for named in summary["lossy_paths"].as_array().context("no verdict")? {
        let after = named["after_probes"].as_u64();
        let port = named["source_port"].as_u64().context("no port")?;
        // The kernel shows which spine carries the packets: under loss, a trace may miss a hop.
        let is_forward = named["direction"] == "forward";
        let (spine, spines) = match is_forward {
            true => (network.next_hop("l1", H1, H2, port), PATHS.map(|path| path[1])),
            false => (network.next_hop("l2", H2, H1, port), ["10.91.21.1", "10.91.22.1"]),
        };
        match percent > 0.0 && spine.map_err(|reason| anyhow!(reason))? == spines[lossy] {
            true if is_forward => outcome.forward = after,
            true => outcome.back = after,
            false => outcome.wrong += 1,
        }
    }
    let needed = summary["probes_to_name"].as_array().into_iter().flatten();
    for row in needed.filter(|row| row["loss"].as_f64() == Some(percent / 100.0)) {
        outcome.needed =
            Needed { median: row["median"].as_u64().unwrap_or(0), p99: row["p99"].as_u64().unwrap_or(0) };
    }
    let after = |after: Option<u64>| after.map_or("-".to_owned(), |after| after.to_string());
    println!(
        "{run:>3}  {:>5} {percent:>2} % {:>7}  {:<16} {:<16} {:>15}  {:>10}  {:>11}",
        if percent > 0.0 { SPINES[lossy] } else { "-" },
        summary["probes"].as_u64().unwrap_or(0),
        percent_of("forward_loss"),
        percent_of("return_loss"),
        after(outcome.forward),
        after(outcome.back),
        outcome.wrong
    );
    Ok(outcome)
}
