//! `cargo xtask perf`: Adverb's speed on soft-RoCE, compared with perftest.
//!
//! perftest and Adverb's example `perf` do the same work on rxe0, between two processes, in turn: round trips of SENDs
//! with events and 16 posted receives, RDMA WRITEs with up to 128 in flight, and messages one way. The guest has one
//! CPU and a clock that counts instructions, so a run repeats to about one percent; perftest runs twice per round to
//! show the noise. strace counts the system calls of a short run and of a run twice as long; the difference is that of
//! the messages alone.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;
use support::process;
use vm::virtual_time;

use super::median;

/// The options of `cargo xtask perf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of measurements of each value; the table shows the medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// Run only this benchmark; repeatable.
    #[arg(long, value_enum)]
    work: Vec<Work>,
}

/// A shell function that runs `$1` in the background and, when a program in its network namespace listens on a TCP port,
/// `$2`. The guest has no other listeners.
pub(super) const PAIR: &str = "\
pair() {
  $1 >/tmp/server 2>&1 &
  for attempt in $(seq 100); do
    grep -q ' 0A ' /proc/$!/net/tcp /proc/$!/net/tcp6 && break
    sleep 0.1
  done
  $2 || { cat /tmp/server >&2; exit 1; }
  wait $! || { cat /tmp/server >&2; exit 1; }
}
";

/// The listener's address.
const ADDRESS: &str = "10.77.0.1";

/// A benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Work {
    /// Round trips of SENDs, waiting for events.
    Latency,
    /// RDMA WRITEs of 64 KiB.
    Bandwidth,
    /// Messages of 64 KiB: SENDs, compared with Adverb's connections.
    Messages,
}

/// A program, and its way to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Program {
    Perftest,
    /// perftest again: the difference is noise.
    PerftestAgain,
    /// perftest waiting for events, as connections do.
    PerftestWaiting,
    Adverb,
    /// Adverb with adaptive spinning: it polls before it sleeps.
    AdverbSpinning,
}

/// One run of two processes.
#[derive(Clone, Copy, Debug)]
struct Run {
    work: Work,
    program: Program,
    messages: u32,
    /// Whether strace counts the system calls.
    traced: bool,
}

impl Run {
    /// Returns the shell command for the run. A traced run ends with the counts of the listener and of the connector.
    fn line(&self, perf: &str) -> String {
        let Run { work, program, messages, traced } = *self;
        let (server, client) = match (program, work) {
            (Program::Adverb, Work::Latency) => adverb(perf, "events", messages),
            (Program::AdverbSpinning, Work::Latency) => adverb(perf, "latency", messages),
            (Program::Adverb | Program::AdverbSpinning, Work::Bandwidth) => {
                adverb(perf, "bandwidth", messages)
            }
            (Program::Adverb | Program::AdverbSpinning, Work::Messages) => {
                let address = format!("{ADDRESS}:7471");
                (format!("{perf} take {address}"), format!("{perf} messages {address} {messages}"))
            }
            (Program::PerftestWaiting, Work::Messages) => perftest("ib_send_bw -e -s 65536", messages),
            (_, Work::Messages) => perftest("ib_send_bw -s 65536", messages),
            (_, Work::Latency) => perftest("ib_send_lat -e -s 2 -r 16", messages),
            (_, Work::Bandwidth) => perftest("ib_write_bw -s 65536", messages),
        };
        if !traced {
            return format!("{PAIR}pair '{server}' '{client}'");
        }
        let strace = |name: &str| format!("strace -f -c -U calls,name -o /tmp/{name}.calls");
        let [server, client] =
            [("server", server), ("client", client)].map(|(name, line)| format!("{} {line}", strace(name)));
        format!("{PAIR}pair '{server}' '{client}'\ntail -qn 1 /tmp/server.calls /tmp/client.calls")
    }
}

fn adverb(perf: &str, work: &str, messages: u32) -> (String, String) {
    let address = format!("{ADDRESS}:7471");
    (format!("{perf} listen {address}"), format!("{perf} {work} {address} {messages}"))
}

fn perftest(command: &str, messages: u32) -> (String, String) {
    let line = format!("{command} -n {messages} -d rxe0 -x 1 -F");
    (line.clone(), format!("{line} {ADDRESS}"))
}

/// Returns the number of messages of a timed run.
fn messages(work: Work) -> u32 {
    match work {
        Work::Latency => 1000,
        Work::Bandwidth | Work::Messages => 300,
    }
}

/// The number of messages in the shorter of the two traced runs.
const TRACED_MESSAGES: u32 = 100;

/// Returns the programs of a benchmark.
fn programs(work: Work) -> impl Iterator<Item = Program> + Clone {
    let another = match work {
        Work::Latency => Some(Program::AdverbSpinning),
        Work::Bandwidth => None,
        Work::Messages => Some(Program::PerftestWaiting),
    };
    [Program::Perftest, Program::Adverb].into_iter().chain(another)
}

fn runs(rounds: u8, works: &[Work]) -> Vec<Run> {
    let mut runs = Vec::new();
    for &work in works {
        for _ in 0..rounds {
            for program in programs(work).chain([Program::PerftestAgain]) {
                runs.push(Run { work, program, messages: messages(work), traced: false });
            }
        }
        // The number of waits of a connection varies between runs.
        let times = if work == Work::Messages { 3 } else { 1 };
        for program in programs(work).cycle().take(times * programs(work).count()) {
            runs.push(Run { work, program, messages: TRACED_MESSAGES, traced: true });
            runs.push(Run { work, program, messages: 2 * TRACED_MESSAGES, traced: true });
        }
    }
    runs
}

/// Measures, prints a table, and returns failure if a goal is missed.
///
/// # Errors
///
/// Returns an error if a program can't be built, the guest fails, or a run prints no result.
pub fn run(args: &Args) -> Result<ExitCode> {
    let perf = process::build("build --release -p adverb --example perf")?;
    let works = if args.work.is_empty() { Work::value_variants() } else { &args.work };
    let runs = runs(args.rounds, works);
    let lines: Vec<String> = runs.iter().map(|run| run.line(&perf)).collect();
    let output = virtual_time::run(1500, &lines)?;
    let readings = runs
        .iter()
        .zip(&output)
        .map(|(run, output)| Reading::new(*run, output))
        .collect::<Result<Vec<_>>>()?;
    let mut rows = rows(&readings);
    rows.retain(|row| works.contains(&row.work));
    print!("{}", table(&rows));
    let missed = rows.iter().any(|row| !row.is_reached());
    if missed {
        println!("at least one goal is missed");
    }
    Ok(if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A run and its results.
struct Reading {
    run: Run,
    /// Latency: average and typical, in µs. Bandwidth: MiB/s. Traced: system calls of the listener and of the
    /// connector.
    numbers: Vec<f64>,
}

impl Reading {
    fn new(run: Run, output: &str) -> Result<Reading> {
        let numbers = if run.traced {
            counts(output)
        } else {
            match (run.program, run.work) {
                (Program::Perftest | Program::PerftestAgain, Work::Latency) => {
                    columns(output, &["t_avg[usec]", "t_typical[usec]"])
                }
                (
                    Program::Perftest | Program::PerftestAgain | Program::PerftestWaiting,
                    Work::Bandwidth | Work::Messages,
                ) => columns(output, &["BW average[MB/sec]"]),
                (_, Work::Latency) => after(output, &["average ", "typical "]),
                (_, Work::Bandwidth | Work::Messages) => after(output, &["bytes: "]),
            }
        };
        let numbers = numbers.with_context(|| format!("{run:?} printed no result:\n{output}"))?;
        Ok(Reading { run, numbers })
    }
}

/// Returns the numbers after the given words.
fn after(output: &str, words: &[&str]) -> Option<Vec<f64>> {
    words.iter().map(|word| first_number(output.split_once(word)?.1)).collect()
}

fn first_number(text: &str) -> Option<f64> {
    text.split(|c: char| c != '.' && !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the numbers in the named columns of perftest's table, whose headings are separated by two or more spaces or
/// by a unit.
pub(super) fn columns(output: &str, names: &[&str]) -> Option<Vec<f64>> {
    let mut lines = output.lines().skip_while(|line| !line.contains("#bytes"));
    let (heading, values) = (lines.next()?, lines.next()?);
    let values: Vec<&str> = values.split_whitespace().collect();
    names
        .iter()
        .map(|name| {
            let before = heading.split_once(name)?.0;
            // Some headings have two words, of which only the last has a unit.
            let names_before =
                before.replace("BW ", "BW").replace("% percentile", "%").replace("BWpeak", "peak");
            values.get(names_before.split_whitespace().count())?.parse().ok()
        })
        .collect()
}

/// Parses strace's totals, one per line: `1234 total`.
fn counts(output: &str) -> Option<Vec<f64>> {
    let sums = output.lines().filter_map(|line| line.trim().strip_suffix("total"));
    let sums: Vec<f64> = sums.filter_map(|sum| sum.trim().parse().ok()).collect();
    (sums.len() == 2).then_some(sums)
}

/// A row of the table.
struct Row {
    work: Work,
    what: &'static str,
    perftest: f64,
    again: Option<f64>,
    adverb: f64,
    goal: Goal,
}

/// A goal for the ratio to perftest.
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// No goal: the value explains another one.
    None,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.adverb / self.perftest
    }

    fn is_reached(&self) -> bool {
        match self.goal {
            Goal::AtMost(max) => self.ratio() <= max,
            Goal::AtLeast(min) => self.ratio() >= min,
            Goal::None => true,
        }
    }
}

fn rows(readings: &[Reading]) -> Vec<Row> {
    let timed = |work: Work, program: Program, number: usize| {
        let chosen = readings.iter().filter(|reading| {
            !reading.run.traced && reading.run.work == work && reading.run.program == program
        });
        median(chosen.map(|reading| reading.numbers[number]).collect())
    };
    let calls = |work: Work, program: Program, side: usize| {
        let count = |messages: u32| {
            let is_wanted = |reading: &&Reading| {
                let run = reading.run;
                run.traced && run.work == work && run.program == program && run.messages == messages
            };
            median(readings.iter().filter(is_wanted).map(|reading| reading.numbers[side]).collect())
        };
        (count(2 * TRACED_MESSAGES) - count(TRACED_MESSAGES)) / f64::from(TRACED_MESSAGES)
    };
    let row = |what, work, number, program, goal| Row {
        work,
        what,
        perftest: timed(work, Program::Perftest, number),
        again: Some(timed(work, Program::PerftestAgain, number)),
        adverb: timed(work, program, number),
        goal,
    };
    let calls_row = |what, work, side, program| Row {
        work,
        what,
        perftest: calls(work, Program::Perftest, side),
        again: None,
        adverb: calls(work, program, side),
        // Allow for a system call that isn't a message's and occurs in only one of the runs.
        goal: Goal::AtMost(1.01),
    };
    use {Program::Adverb, Program::AdverbSpinning, Work::Bandwidth, Work::Latency, Work::Messages};
    let explaining = |what, side| Row { goal: Goal::None, ..calls_row(what, Messages, side, Adverb) };
    let waiting = |row: Row, perftest| Row { goal: Goal::None, perftest, again: None, ..row };
    let (latency, bandwidth) = (|| Goal::AtMost(1.05), || Goal::AtLeast(0.95));
    vec![
        row("SEND latency, events, average µs", Latency, 0, Adverb, latency()),
        row("SEND latency, events, typical µs", Latency, 1, Adverb, latency()),
        calls_row("  system calls per message, listener", Latency, 0, Adverb),
        calls_row("  system calls per message, connector", Latency, 1, Adverb),
        row("SEND latency, spinning, average µs", Latency, 0, AdverbSpinning, latency()),
        row("SEND latency, spinning, typical µs", Latency, 1, AdverbSpinning, latency()),
        calls_row("  system calls per message, listener", Latency, 0, AdverbSpinning),
        calls_row("  system calls per message, connector", Latency, 1, AdverbSpinning),
        row("64 KiB WRITE bandwidth, MiB/s", Bandwidth, 0, Adverb, bandwidth()),
        calls_row("  system calls per WRITE, requester", Bandwidth, 1, Adverb),
        row("64 KiB message bandwidth, MiB/s", Messages, 0, Adverb, Goal::AtLeast(0.85)),
        explaining("  system calls per message, receiver", 0),
        explaining("  system calls per message, sender", 1),
        waiting(
            row("  compared with ib_send_bw -e, MiB/s", Messages, 0, Adverb, Goal::None),
            timed(Messages, Program::PerftestWaiting, 0),
        ),
        waiting(explaining("  its system calls, receiver", 0), calls(Messages, Program::PerftestWaiting, 0)),
        waiting(explaining("  its system calls, sender", 1), calls(Messages, Program::PerftestWaiting, 1)),
    ]
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:40} {:>9} {:>9} {:>7} {:>9} {:>7}  goal\n",
        "", "perftest", "again", "noise", "adverb", "ratio"
    );
    for row in rows {
        let again = row.again.map_or("-".to_owned(), |again| format!("{again:.2}"));
        let noise = row.again.map_or("-".to_owned(), |again| format!("{:.3}", again / row.perftest));
        let goal = match row.goal {
            Goal::AtMost(max) => format!("≤ {max:.2}"),
            Goal::AtLeast(min) => format!("≥ {min:.2}"),
            Goal::None => String::new(),
        };
        let missed = if row.is_reached() { "" } else { "  MISSED" };
        text += &format!(
            "{:40} {:>9.2} {again:>9} {noise:>7} {:>9.2} {:>7.3}  {goal}{missed}\n",
            row.what,
            row.perftest,
            row.adverb,
            row.ratio()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_perftest_are_parsed_by_their_headings() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]\n \
                       2       1000          234.00         296.94       240.33   \t       239.93      \t5.64   \t\t257.53 \n";
        assert_eq!(columns(latency, &["t_avg[usec]", "t_typical[usec]"]), Some(vec![239.93, 240.33]));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                         65536      300              10.90              10.13  \t\t   0.000162\n";
        assert_eq!(columns(bandwidth, &["BW average[MB/sec]"]), Some(vec![10.13]));
        assert_eq!(columns("nothing", &["t_avg[usec]"]), None);
    }

    #[test]
    fn the_output_of_the_example_is_parsed() {
        let output =
            "1000 messages of 2 bytes: average 192.14 µs, typical 184.84, least 183.90, 99 % 223.57\n";
        assert_eq!(after(output, &["average ", "typical "]), Some(vec![192.14, 184.84]));
        assert_eq!(after("300 writes of 65536 bytes: 10.13 MiB/s\n", &["bytes: "]), Some(vec![10.13]));
    }

    #[test]
    fn totals_of_strace_are_parsed() {
        assert_eq!(counts("a line\n     5471 total\n    12 total\n"), Some(vec![5471.0, 12.0]));
        assert_eq!(counts("5471 total\n"), None);
    }

    #[test]
    fn a_goal_can_be_missed() {
        let row =
            |adverb, goal| Row { work: Work::Latency, what: "", perftest: 100.0, again: None, adverb, goal };
        assert!(row(105.0, Goal::AtMost(1.05)).is_reached());
        assert!(!row(106.0, Goal::AtMost(1.05)).is_reached());
        assert!(!row(94.0, Goal::AtLeast(0.95)).is_reached());
        assert!(!row(f64::NAN, Goal::AtLeast(0.95)).is_reached());
    }
}
