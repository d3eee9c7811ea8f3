//! Baselines for the software NIC: UCX over TCP, plain UDP, iperf3.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use support::{packages, paths, process};

use super::{CONNECTOR_CPU, LISTENER_CPU};

const UDP: &str = include_str!("udp.c");

/// The baseline programs.
pub(super) struct Baselines {
    udp: PathBuf,
}

impl Baselines {
    /// Installs and builds the baseline programs.
    pub(super) fn prepare() -> Result<Baselines> {
        packages::ensure(&["gcc", "libc6-dev", "iperf3", "ucx-utils"])?;
        let directory = paths::cache()?.join("bench");
        std::fs::create_dir_all(&directory)?;
        let (source, udp) = (directory.join("udp.c"), directory.join("udp"));
        std::fs::write(&source, UDP)?;
        process::run(Command::new("gcc").args(["-O2", "-Wall", "-o"]).arg(&udp).arg(&source))?;
        Ok(Baselines { udp })
    }

    /// Measures the bandwidth of plain UDP with GSO and GRO, in MB/s.
    pub(super) fn udp_bandwidth(&self, milliseconds: u32) -> Result<f64> {
        self.udp("bandwidth", milliseconds)
    }

    /// Measures half a round trip of plain UDP with busy polling, in µs.
    pub(super) fn udp_latency(&self, rounds: u32) -> Result<f64> {
        self.udp("latency", rounds)
    }

    fn udp(&self, what: &str, number: u32) -> Result<f64> {
        let mut command = Command::new("timeout");
        command.arg("30").arg(&self.udp).args([what, &number.to_string()]);
        Ok(process::text(&mut command)?.trim().parse()?)
    }

    /// Runs a test of ucx_perftest over TCP.
    pub(super) fn ucx(&self, test: &str, bytes: u32, times: u32) -> Result<Ucx> {
        ucx(test, bytes, times, &[])
    }

    /// Measures the bandwidth of iperf3 over TCP, in MB/s.
    pub(super) fn iperf3(&self) -> Result<f64> {
        let port = (PORT + 1).to_string();
        let mut server = Command::new("timeout");
        server.args(["30", "iperf3", "-s", "-1", "-p", &port]);
        let server = Server::start(&mut server, PORT + 1)?;
        let mut client = Command::new("timeout");
        client.args(["30", "iperf3", "-c", "127.0.0.1", "-p", &port, "-t", "1", "-f", "m"]);
        client.args(["-A", &format!("{CONNECTOR_CPU},{LISTENER_CPU}")]);
        let output = process::text(&mut client)?;
        drop(server);
        iperf3_megabits(&output)
            .map(|megabits| megabits / 8.0)
            .with_context(|| format!("iperf3 printed no result:\n{output}"))
    }
}

/// Runs a test of ucx_perftest over TCP. The package `ucx-utils` must be installed.
pub(super) fn ucx(test: &str, bytes: u32, times: u32, options: &[&str]) -> Result<Ucx> {
    let command = |cpu| {
        let mut command = Command::new("timeout");
        command.args(["60", "ucx_perftest", "-p", &PORT.to_string(), "-c", cpu]);
        command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
        command
    };
    let server = Server::start(&mut command(LISTENER_CPU), PORT)?;
    let [bytes, times] = [bytes, times].map(|number| number.to_string());
    let mut client = command(CONNECTOR_CPU);
    client.args(["127.0.0.1", "-f", "-t", test, "-s", &bytes, "-n", &times]).args(options);
    let output = process::text(&mut client)?;
    drop(server);
    Ucx::parse(&output).with_context(|| format!("ucx_perftest {test} printed no result:\n{output}"))
}

/// The port of ucx_perftest's server. iperf3's server uses the next one.
const PORT: u16 = 13_579;

/// A result of ucx_perftest.
pub(super) struct Ucx {
    /// Latency at the 50th percentile, in µs: one way, or the round trip for fetch-add.
    pub(super) latency: f64,
    /// Bandwidth of the whole run, in MB/s.
    pub(super) megabytes: f64,
    /// Messages per second of the whole run.
    pub(super) messages: f64,
}

impl Ucx {
    /// Parses the last line: iterations; latency at the 50th percentile, average, overall; bandwidth and rate, each for
    /// the last interval and overall.
    fn parse(output: &str) -> Option<Ucx> {
        let numbers: Vec<f64> =
            output.lines().last()?.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [_, latency, _, _, _, mebibytes, _, messages] = numbers[..] else { return None };
        // ucx_perftest's "MB" are 2²⁰ bytes.
        Some(Ucx { latency, megabytes: mebibytes * 1.048_576, messages })
    }
}

/// Parses the received bandwidth in iperf3's output, in Mbit/s.
fn iperf3_megabits(output: &str) -> Option<f64> {
    let line = output.lines().rfind(|line| line.contains("receiver"))?;
    line.split(" Mbits/sec").next()?.split_whitespace().last()?.parse().ok()
}

/// A server process; waited for on drop.
struct Server(Child);

impl Server {
    /// Starts a server, and waits until it listens.
    fn start(command: &mut Command, port: u16) -> Result<Server> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Server(child);
        let start = Instant::now();
        while !is_listening(port)? {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("the server {:?} does not listen after 10 s", command.get_args());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server exits with its client; otherwise `timeout` kills it.
        _ = self.0.wait();
    }
}

/// Returns whether a process of this machine listens on the TCP port.
fn is_listening(port: u16) -> Result<bool> {
    let mut lines = String::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        lines += &std::fs::read_to_string(table).unwrap_or_default();
    }
    // "sl local_address rem_address st …", where state 0A is listening.
    Ok(lines.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.len() > 3 && words[3] == "0A" && words[1].ends_with(&format!(":{port:04X}"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_ucx_perftest_is_parsed() {
        let output = "+------+\n                       20000      3.683    24.522    24.522     2548.73    2000.00       40780       40781\n";
        let ucx = Ucx::parse(output).unwrap();
        assert_eq!((ucx.latency, ucx.megabytes, ucx.messages), (3.683, 2097.152, 40781.0));
        assert!(Ucx::parse("nothing").is_none());
    }

    #[test]
    fn the_output_of_iperf3_is_parsed() {
        let output = "[  5]   0.00-1.00   sec  3.3 GBytes  28000 Mbits/sec    0             sender\n\
                    [  5]   0.00-1.00   sec  3.2 GBytes  27500 Mbits/sec                  receiver\n";
        assert_eq!(iperf3_megabits(output), Some(27500.0));
        assert_eq!(iperf3_megabits("iperf3: error"), None);
    }
}
