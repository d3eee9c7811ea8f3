//! What the software NIC is compared with: UCX over TCP, bare UDP, iperf3.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use support::{packages, paths, process};

use super::{OURS, THEIRS};

const UDP: &str = include_str!("udp.c");

/// What there is to be compared with.
pub(super) struct Baselines {
    udp: PathBuf,
}

impl Baselines {
    /// Installs and builds what is missing.
    pub(super) fn prepare() -> Result<Baselines> {
        packages::ensure(&["gcc", "libc6-dev", "iperf3", "ucx-utils"])?;
        let directory = paths::cache()?.join("bench");
        std::fs::create_dir_all(&directory)?;
        let (source, udp) = (directory.join("udp.c"), directory.join("udp"));
        std::fs::write(&source, UDP)?;
        process::run(Command::new("gcc").args(["-O2", "-Wall", "-o"]).arg(&udp).arg(&source))?;
        Ok(Baselines { udp })
    }

    /// Bare UDP, with segmentation offload both ways: MB/s.
    pub(super) fn udp_bandwidth(&self, milliseconds: u32) -> Result<f64> {
        self.udp("bandwidth", milliseconds)
    }

    /// Bare UDP, spinning: half a round trip, in µs.
    pub(super) fn udp_latency(&self, rounds: u32) -> Result<f64> {
        self.udp("latency", rounds)
    }

    fn udp(&self, what: &str, number: u32) -> Result<f64> {
        let mut command = Command::new("timeout");
        command.arg("30").arg(&self.udp).args([what, &number.to_string()]);
        Ok(process::text(&mut command)?.trim().parse()?)
    }

    /// One of ucx_perftest's tests over TCP.
    pub(super) fn ucx(&self, test: &str, bytes: u32, times: u32) -> Result<Ucx> {
        let command = |cpu| {
            let mut command = Command::new("timeout");
            command.args(["60", "ucx_perftest", "-p", &PORT.to_string(), "-c", cpu]);
            command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo").env("UCX_WARN_UNUSED_ENV_VARS", "n");
            command
        };
        let server = Server::start(&mut command(THEIRS), PORT)?;
        let [bytes, times] = [bytes, times].map(|number| number.to_string());
        let mut client = command(OURS);
        client.args(["127.0.0.1", "-f", "-t", test, "-s", &bytes, "-n", &times]);
        let said = process::text(&mut client)?;
        drop(server);
        Ucx::read(&said).with_context(|| format!("ucx_perftest {test} gave no result:\n{said}"))
    }

    /// iperf3 over TCP: MB/s.
    pub(super) fn iperf3(&self) -> Result<f64> {
        let port = (PORT + 1).to_string();
        let mut server = Command::new("timeout");
        server.args(["30", "iperf3", "-s", "-1", "-p", &port]);
        let server = Server::start(&mut server, PORT + 1)?;
        let mut client = Command::new("timeout");
        client.args(["30", "iperf3", "-c", "127.0.0.1", "-p", &port, "-t", "1", "-f", "m"]);
        client.args(["-A", &format!("{OURS},{THEIRS}")]);
        let said = process::text(&mut client)?;
        drop(server);
        iperf3_megabits(&said)
            .map(|megabits| megabits / 8.0)
            .with_context(|| format!("iperf3 gave no result:\n{said}"))
    }
}

/// Where the baselines' servers listen.
const PORT: u16 = 13_579;

/// What ucx_perftest says.
pub(super) struct Ucx {
    /// At the 50th percentile, in µs: one way, or there and back for fetch-add.
    pub(super) latency: f64,
    /// Of the whole run.
    pub(super) megabytes: f64,
    pub(super) messages: f64,
}

impl Ucx {
    /// The last line: iterations; time at the 50th percentile, average, overall; bandwidth and rate, each lately and
    /// overall.
    fn read(said: &str) -> Option<Ucx> {
        let words: Vec<f64> =
            said.lines().last()?.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [_, latency, _, _, _, mebibytes, _, messages] = words[..] else { return None };
        // Its "MB" are of 2²⁰ bytes.
        Some(Ucx { latency, megabytes: mebibytes * 1.048_576, messages })
    }
}

/// What iperf3 says was received, in Mbit/s.
fn iperf3_megabits(said: &str) -> Option<f64> {
    let line = said.lines().rfind(|line| line.contains("receiver"))?;
    line.split(" Mbits/sec").next()?.split_whitespace().last()?.parse().ok()
}

/// A server, until it is dropped.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it listens.
    fn start(command: &mut Command, port: u16) -> Result<Server> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Server(child);
        let start = Instant::now();
        while !is_listening(port)? {
            if start.elapsed() > Duration::from_secs(10) {
                bail!("{:?} doesn't listen", command.get_args());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends with its client; `timeout` sees to it if not.
        _ = self.0.wait();
    }
}

/// Whether a program of this machine listens to this TCP port.
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
    fn what_ucx_perftest_says_is_read() {
        let said = "+------+\n                       20000      3.683    24.522    24.522     2548.73    2000.00       40780       40781\n";
        let ucx = Ucx::read(said).unwrap();
        assert_eq!((ucx.latency, ucx.megabytes, ucx.messages), (3.683, 2097.152, 40781.0));
        assert!(Ucx::read("nothing").is_none());
    }

    #[test]
    fn what_iperf3_says_is_read() {
        let said = "[  5]   0.00-1.00   sec  3.3 GBytes  28000 Mbits/sec    0             sender\n\
                    [  5]   0.00-1.00   sec  3.2 GBytes  27500 Mbits/sec                  receiver\n";
        assert_eq!(iperf3_megabits(said), Some(27500.0));
        assert_eq!(iperf3_megabits("iperf3: error"), None);
    }
}
