//! `cargo xtask pictures`: pictures of real output for the documentation, in docs/pictures.
//!
//! Both are made in a leaf-spine network of network namespaces (`support::leaf_spine`): the output of `adverb ping` while
//! a spine loses packets, and the data of the Grafana dashboard's panels, which Prometheus scraped from `adverb exporter`
//! while parts failed.

mod dashboard;
mod terminal;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use support::leaf_spine::{H1, H2, LeafSpine};
use support::{packages, paths, process};

/// The options of `cargo xtask pictures`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Make only this picture.
    #[arg(long, value_parser = ["ping", "dashboard"])]
    only: Option<String>,
}

/// Draws the pictures.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(packages::is_root(), "the network needs root");
    packages::ensure(&["iproute2", "nftables", "prometheus"])?;
    let program = process::build("build -p adverb-cli")?;
    let prefix = format!("adverb-pictures-{}", std::process::id());
    let network = LeafSpine::new(&prefix, false).map_err(|reason| anyhow!(reason))?;
    let responder = Process::respond(&network, &program)?;
    let directory = paths::root().join("docs/pictures");
    let is_wanted = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    if is_wanted("ping") {
        let output = ping(&network, &program)?;
        let command = format!("adverb ping {H2} --paths 8 --trace --count 1000 --interval 0.005");
        std::fs::write(directory.join("ping.svg"), terminal::picture(&command, &output))?;
    }
    if is_wanted("dashboard") {
        let picture = dashboard::picture(&network, &program, &responder)?;
        std::fs::write(directory.join("dashboard.svg"), picture)?;
    }
    Ok(())
}

/// Returns the output of `adverb ping` while a spine loses 10 % of the packets.
fn ping(network: &LeafSpine, program: &str) -> Result<String> {
    network.set_loss("s1", 100).map_err(|reason| anyhow!(reason))?;
    let mut command = network.command("h1");
    command.args([program, "ping", H2, "--device", &format!("soft:{H1}"), "--trace"]);
    command.args(["--paths", "8", "--count", "1000", "--interval", "0.005"]);
    let output = command.output().context("could not run `adverb ping`")?;
    network.set_loss("s1", 0).map_err(|reason| anyhow!(reason))?;
    ensure!(output.status.code() == Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// A process, which ends with this value.
struct Process(Child);

impl Process {
    /// Starts a responder on h2.
    fn respond(network: &LeafSpine, program: &str) -> Result<Process> {
        let mut command = network.command("h2");
        command.args([program, "respond", "--json", "--device", &format!("soft:{H2}")]);
        let mut child = command.stdout(Stdio::piped()).spawn().context("could not start the responder")?;
        let out = child.stdout.take();
        let process = Process(child);
        let mut line = String::new();
        BufReader::new(out.context("no output")?).read_line(&mut line)?;
        ensure!(line.contains("listening"), "the responder did not start: {line}");
        Ok(process)
    }

    /// Sends a signal. (`ip netns exec` replaces itself with the program.)
    fn signal(&self, name: &str) -> Result<()> {
        let kill = format!("kill -{name} {}", self.0.id());
        ensure!(Command::new("sh").args(["-c", &kill]).status()?.success(), "`{kill}` failed");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Returns text for XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
