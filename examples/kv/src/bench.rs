//! The comparison: GETs of this cache by READ, by RPC and over TCP, and of Redis.
//!
//! Each server and each client is a process. The servers run on one CPU, and the clients on another. Machines are
//! noisy, so the rounds of all rows are interleaved, and the table has medians.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

const SERVER_CPU: &str = "1";
const CLIENT_CPU: &str = "0";
/// The maximum number of outstanding READs: as many as the software NIC allows.
const READS: &str = "128";

/// The options of the comparison.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct BenchConfig {
    /// The number of rounds.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// The number of GETs of each round.
    #[arg(long, default_value_t = 500_000)]
    pub operations: u64,
    /// The number of keys.
    #[arg(long, default_value_t = 10_000)]
    pub keys: u64,
    /// The length of values in bytes.
    #[arg(long, default_value_t = 100)]
    pub value_len: usize,
    /// The number of outstanding GETs; Redis: the length of a pipeline.
    #[arg(long, default_value_t = 64)]
    pub window: usize,
}

/// The measured values of a round, with times in µs. A missing one is NaN.
#[derive(Clone, Copy, Debug)]
struct Round {
    rate: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    /// The CPU time of the server per GET.
    server_cpu: f64,
}

/// A row of the table.
struct Contender {
    name: &'static str,
    note: &'static str,
    kind: Kind,
    rounds: Vec<Round>,
}

enum Kind {
    /// The options of `kv load`, and the index of the server.
    Kv(&'static [&'static str], usize),
    /// The index of the server.
    Redis(usize),
}

/// A server process, which is killed when the value is dropped.
struct ServerProcess {
    child: Child,
    addr: String,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the comparison and prints the table.
///
/// # Errors
///
/// Returns an error if a program can't be started, or prints no result.
pub fn run(config: &BenchConfig) -> Result<()> {
    let kv = env::current_exe()?;
    let mut servers = vec![
        start_kv(&kv, &["serve", "a", "--servers", "a=127.0.0.1:0", "--outstanding-reads", READS])?,
        start_kv(&kv, &["serve-tcp", "127.0.0.1:0"])?,
    ];
    let mut contenders = vec![
        Contender {
            name: "kv, one READ",
            note: "the client has cached the location of the item; it compares key and checksum",
            kind: Kind::Kv(&["--get", "one-sided"], 0),
            rounds: Vec::new(),
        },
        Contender {
            name: "kv, two READs",
            note: "reads the bucket, then the item; nothing is cached",
            kind: Kind::Kv(&["--get", "one-sided", "--no-cache"], 0),
            rounds: Vec::new(),
        },
        Contender {
            name: "kv, RPC",
            note: "the server's thread looks the key up and copies the value into the reply; no checksum",
            kind: Kind::Kv(&["--get", "rpc"], 0),
            rounds: Vec::new(),
        },
        Contender {
            name: "kv, TCP",
            note: "as RPC, over the kernel's TCP; replies in order",
            kind: Kind::Kv(&["--tcp"], 1),
            rounds: Vec::new(),
        },
    ];
    match start_redis() {
        Ok(redis) => {
            servers.push(redis);
            contenders.push(Contender {
                name: "Redis",
                note: "redis-benchmark, one connection; parses a text protocol, has expiry, eviction and more; uniform keys; latency of whole pipelines",
                kind: Kind::Redis(2),
                rounds: Vec::new(),
            });
        }
        Err(error) => println!("without Redis: {error:#}"),
    }
    for (index, server) in servers.iter().enumerate() {
        match index {
            0 => load(&kv, config, &["--get", "rpc"], &server.addr, true)?,
            1 => load(&kv, config, &["--tcp"], &server.addr, true)?,
            _ => fill_redis(config, &server.addr)?,
        };
    }
    for round in 0..config.rounds {
        for contender in &mut contenders {
            let measured = match contender.kind {
                Kind::Kv(options, server) => measure(&servers[server], config, || {
                    load(&kv, config, options, &servers[server].addr, false)
                }),
                Kind::Redis(server) => {
                    measure(&servers[server], config, || run_redis(config, &servers[server].addr))
                }
            };
            let measured = measured.with_context(|| format!("{} in round {round}", contender.name))?;
            contender.rounds.push(measured);
        }
    }
    print_table(config, &contenders);
    Ok(())
}

fn print_table(config: &BenchConfig, contenders: &[Contender]) {
    let BenchConfig { rounds, operations, keys, value_len, window } = config;
    println!(
        "GETs, zipfian keys: {keys} keys, values of {value_len} bytes, {window} outstanding (Redis: pipelines of \
         {window}), {operations} GETs per round, medians of {rounds} rounds"
    );
    println!();
    println!("| GET | 1000/s | p50 µs | p99 µs | p99.9 µs | server CPU µs/GET | work of a GET |");
    println!("|---|---|---|---|---|---|---|");
    for Contender { name, note, rounds, .. } in contenders {
        let median = |value: fn(&Round) -> f64| median(rounds.iter().map(value).collect());
        let [rate, p50, p99, p999, cpu] = [
            median(|round| round.rate / 1000.0),
            median(|round| round.p50),
            median(|round| round.p99),
            median(|round| round.p999),
            median(|round| round.server_cpu),
        ];
        let cell = |number: f64, digits: usize| {
            if number.is_nan() { "".to_owned() } else { format!("{number:.digits$}") }
        };
        println!(
            "| {name} | {} | {} | {} | {} | {} | {note} |",
            cell(rate, 0),
            cell(p50, 1),
            cell(p99, 1),
            cell(p999, 1),
            cell(cpu, 2)
        );
    }
    println!();
    println!(
        "With the software NIC, a one-sided GET still costs the server's CPU: its process copies the memory into \
         packets. With an RDMA NIC, the hardware reads the memory, and the column is 0 for READs."
    );
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs `action`, and adds the CPU time of the server to its result.
fn measure(
    server: &ServerProcess,
    config: &BenchConfig,
    action: impl FnOnce() -> Result<Round>,
) -> Result<Round> {
    let before = cpu_time(server.child.id())?;
    let round = action()?;
    let used = cpu_time(server.child.id())?.saturating_sub(before);
    Ok(Round { server_cpu: used.as_secs_f64() * 1e6 / config.operations as f64, ..round })
}

/// Returns the CPU time of a process, including its threads that have ended.
fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the server has ended")?;
    parse_cpu_time(&stat).with_context(|| format!("/proc/{pid}/stat has no CPU time: {stat}"))
}

/// Parses the user and system time in `/proc/PID/stat`, fields 14 and 15, in units of 10 ms.
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    // The second field, the name of the program, may have spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let (user, system) = (times.next()??, times.next()??);
    Some(Duration::from_millis(10 * (user + system)))
}

fn pinned(cpu: &str, program: impl Into<PathBuf>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cpu]).arg(program.into());
    command
}

/// Starts a server, which prints `listening at ADDRESS`.
fn start_kv(kv: &PathBuf, arguments: &[&str]) -> Result<ServerProcess> {
    let mut command = pinned(SERVER_CPU, kv);
    let mut child =
        command.args(arguments).stdout(Stdio::piped()).spawn().context("starting taskset failed")?;
    let output = child.stdout.take().context("the server's output is not a pipe")?;
    let mut server = ServerProcess { child, addr: String::new() };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let addr = line.trim().rsplit(' ').next().unwrap_or_default();
    ensure!(addr.contains(':'), "the server printed no address: {line}");
    server.addr = addr.to_owned();
    Ok(server)
}

/// Runs `kv load`. With `fill`, it stores the keys first, and the number of GETs is small.
fn load(kv: &PathBuf, config: &BenchConfig, options: &[&str], addr: &str, fill: bool) -> Result<Round> {
    let mut command = pinned(CLIENT_CPU, kv);
    command.args(["load", "--mix", "c"]).args(options);
    if options.contains(&"--tcp") {
        command.arg(addr);
    } else {
        command.args(["--servers", &format!("a={addr}"), "--clients", "client=127.0.0.1:0"]);
        command.args(["--outstanding-reads", READS]);
    }
    let operations = if fill { 1000 } else { config.operations };
    command.args(["--keys", &config.keys.to_string(), "--value-len", &config.value_len.to_string()]);
    command.args(["--operations", &operations.to_string(), "--window", &config.window.to_string()]);
    if !fill {
        command.arg("--no-fill");
    }
    let output = text(&mut command)?;
    let number = |name: &str| -> Result<f64> {
        let mut values = output.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = values.find(|(label, _)| *label == name).with_context(|| no_value(name, &output))?;
        let number = value.split(' ').next().unwrap_or_default();
        number.parse().with_context(|| no_value(name, &output))
    };
    ensure!(number("failed")? == 0.0 && number("missing")? == 0.0, "GETs failed:\n{output}");
    Ok(Round {
        rate: number("rate")?,
        p50: number("p50")?,
        p99: number("p99")?,
        p999: number("p99.9")?,
        server_cpu: f64::NAN,
    })
}

fn no_value(name: &str, output: &str) -> String {
    format!("the program printed no value `{name}`:\n{output}")
}

fn text(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn start_redis() -> Result<ServerProcess> {
    // redis-server can't report a port that the kernel chose, so the port is chosen here. If another program takes it
    // first, redis-server exits.
    let addr = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = pinned(SERVER_CPU, "redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", ""]);
    command.args(["--appendonly", "no", "--daemonize", "no"]).stdout(Stdio::null());
    let child =
        command.spawn().context("starting redis-server failed: install redis-server and redis-tools")?;
    let mut server = ServerProcess { child, addr: addr.to_string() };
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(addr).is_err() {
        if let Some(status) = server.child.try_wait()? {
            bail!("redis-server ended with {status}: install redis-server and redis-tools");
        }
        ensure!(Instant::now() < deadline, "redis-server does not listen at {addr}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

fn redis_benchmark(config: &BenchConfig, addr: &str, test: &str, operations: u64) -> Command {
    let mut command = pinned(CLIENT_CPU, "redis-benchmark");
    let (host, port) = addr.rsplit_once(':').unwrap_or_default();
    command.args(["-h", host, "-p", port, "-t", test, "-c", "1", "--csv"]);
    command.args(["-P", &config.window.to_string(), "-r", &config.keys.to_string()]);
    command.args(["-d", &config.value_len.to_string(), "-n", &operations.to_string()]);
    command
}

fn fill_redis(config: &BenchConfig, addr: &str) -> Result<Round> {
    // redis-benchmark chooses random keys: with 20 times as many SETs as keys, practically all keys exist.
    text(&mut redis_benchmark(config, addr, "set", 20 * config.keys))?;
    run_redis(&BenchConfig { operations: 1000, ..*config }, addr)
}

fn run_redis(config: &BenchConfig, addr: &str) -> Result<Round> {
    let output = text(&mut redis_benchmark(config, addr, "get", config.operations))?;
    parse_redis(&output).with_context(|| no_value("GET", &output))
}

/// Parses the CSV output: test, rate, and the average, minimum, p50, p95, p99 and maximum latency in ms.
fn parse_redis(output: &str) -> Option<Round> {
    let line = output.lines().find(|line| line.starts_with("\"GET\""))?;
    let fields: Vec<f64> =
        line.split(',').skip(1).map(|field| field.trim_matches('"').parse().ok()).collect::<Option<_>>()?;
    let [rate, _, _, p50, _, p99, ..] = fields[..] else { return None };
    Some(Round { rate, p50: p50 * 1000.0, p99: p99 * 1000.0, p999: f64::NAN, server_cpu: f64::NAN })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_is_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 123 45 0 0 20 0 3 0 100 1000 10";
        assert_eq!(parse_cpu_time(stat), Some(Duration::from_millis(1680)));
        assert_eq!(parse_cpu_time("7 (a) S"), None);
        assert!(cpu_time(std::process::id()).is_ok());
    }

    #[test]
    fn the_output_of_redis_benchmark_is_parsed() {
        let output = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
                      \"p99_latency_ms\",\"max_latency_ms\"\n\
                      \"GET\",\"500000.00\",\"0.120\",\"0.050\",\"0.119\",\"0.150\",\"0.200\",\"1.000\"\n";
        let round = parse_redis(output).unwrap();
        assert_eq!((round.rate, round.p50, round.p99), (500_000.0, 119.0, 200.0));
        assert!(parse_redis("").is_none());
    }
}
