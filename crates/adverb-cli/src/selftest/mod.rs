//! `adverb selftest`: runs the conformance tests on a device.

mod progress;

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use adverb::verbs::{Device, FaultConfig, Gid, IcrcCheck, SoftDevice, Switch, SwitchConfig};
use adverb_conformance::{Deviations, Options, Outcome, Report, Suite};
use anyhow::{Context, Result, ensure};

use progress::Progress;

use crate::json;

/// The options of `adverb selftest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The tests connect queue pairs of the device to each other on an active port.
They need no peer, and send no packets except through that port. The exit status
is 0 if the device follows every rule, except for its known deviations.

  adverb selftest --device mlx5_0 --report mlx5_0.json

writes the report to mlx5_0.json and, as text, to mlx5_0.txt. The report
contains no addresses and no GUIDs. Please send us your report, whatever the
results are: see the README.")]
pub(crate) struct Args {
    /// The name of the device: see `adverb devices`.
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    device: Option<String>,
    /// The link between the queue pairs of the software device `soft`.
    #[arg(long, value_enum, value_name = "LINK", requires = "device")]
    link: Option<Link>,
    /// The packet loss to inject into the link, in percent.
    #[arg(long, value_name = "PERCENT", requires = "link", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: u32,
    /// The seed of the injected packet loss.
    #[arg(long, value_name = "NUMBER", requires = "link", default_value_t = 1)]
    seed: u64,
    /// Write the report to this file as JSON, and as text to a file with the extension .txt. The fields of the JSON keep
    /// their names and meanings while `version` is 1.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run only the tests whose group or name contains this text. The option can be repeated.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// Read the device's known deviations from this file, instead of using Adverb's list.
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,
    /// The time limit of one test.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time_limit: u64,
    /// Print a line for every test, not only for failed and skipped tests.
    #[arg(long, short)]
    verbose: bool,
    /// List the tests and exit.
    #[arg(long)]
    list: bool,
}

/// The link of a software device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Link {
    /// No link: packets are delivered directly between the queue pairs.
    Loopback,
    /// A switch in memory, with ICRC checks as on a network.
    Mem,
    /// UDP sockets.
    Udp,
    /// UDP sockets on a port other than RoCE's 4791, as if another program used 4791.
    UdpPort,
}

/// Opens the software device for `--link`, if it is given.
fn open_link(args: &Args) -> Result<Option<Device>> {
    let Some(link) = args.link else { return Ok(None) };
    ensure!(args.device.as_deref() == Some("soft"), "--link needs --device soft");
    let mut device = match link {
        Link::Loopback => {
            ensure!(args.loss == 0, "--loss needs a link other than loopback");
            SoftDevice::loopback()
        }
        Link::Mem => {
            let config = SwitchConfig { icrc: IcrcCheck::IpId(0), ..SwitchConfig::default() };
            let switch = Switch::new(config);
            SoftDevice::on_switch(&switch, "10.77.0.1".parse()?)
                .add_addr("fd77::1".parse()?)
                .loopback_via_link()
        }
        Link::Udp => SoftDevice::new().loopback_via_link(),
        Link::UdpPort => {
            // Other programs hardly use this port.
            let port = Gid::UDP_PORTS.start() + (std::process::id() % 256) as u16;
            let at = |host: IpAddr| Gid::from(SocketAddr::new(host, port)).ip();
            let device = SoftDevice::at_addr(at(Ipv4Addr::LOCALHOST.into())).loopback_via_link();
            match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
                Ok(_) => device.add_addr(at(Ipv6Addr::LOCALHOST.into())),
                Err(_) => device,
            }
        }
    };
    if args.loss > 0 {
        device = device.faults(FaultConfig { loss_ppm: args.loss * 10_000, ..FaultConfig::new(args.seed) });
    }
    Ok(Some(device.open()?))
}

/// Runs the tests.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    for words in &args.filter {
        ensure!(
            Suite::all().matching(words).tests().len() > 0,
            "no test has a group or name that contains `{words}`"
        );
    }
    let suite = Suite::all().matching_any(&args.filter);
    let Some(name) = args.device.as_deref().filter(|_| !args.list) else {
        let mut out = io::stdout().lock();
        for test in suite.tests() {
            writeln!(out, "{}: {}", test.group(), test.name())?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    // While the device is open, it can be opened by its name.
    let opened = open_link(args)?;
    let name = opened.as_ref().map_or(name, Device::name);
    let mut options = Options::default();
    options.time_limit = Duration::from_secs(args.time_limit);
    options.loss_ppm = args.loss * 10_000;
    options.deviations = deviations(args.deviations.as_deref(), name)?;
    if let Some(file) = &args.report {
        // Fail before the tests, not after them.
        write(file, "")?;
    }
    let mut progress = Progress::new(suite.tests().map(|test| test.name()).collect());
    let report = suite.run(name, &options, |test, result| {
        if args.verbose {
            progress.line(&format!("{:7.3} s  {}: {result}", result.elapsed.as_secs_f64(), test.name()));
        } else if result.outcome != Outcome::Passed || !result.expected {
            progress.line(&format!("{}: {result}", test.name()));
        }
        progress.advance();
    });
    drop(progress);
    let report = report?;
    print!("{}", report.text());
    if let Some(file) = &args.report {
        save(&report, file)?;
    }
    Ok(if report.is_as_expected() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the known deviations of the device.
fn deviations(file: Option<&Path>, device: &str) -> Result<Deviations> {
    let Some(file) = file else {
        return Ok(Deviations::known(Device::open(device)?.attributes()));
    };
    let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    text.parse::<Deviations>().with_context(|| format!("could not parse {}", file.display()))
}

fn save(report: &Report, file: &Path) -> Result<()> {
    let text = text_report_path(file);
    write(file, &json::pretty("selftest", report)?)?;
    write(&text, &report.text())?;
    eprintln!("wrote the report to {} and {}: please send it to us", file.display(), text.display());
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
}

/// Returns the path of the text report for the JSON report at `file`.
fn text_report_path(file: &Path) -> PathBuf {
    match file.extension().is_some_and(|extension| extension == "txt") {
        true => file.with_extension("txt.txt"),
        false => file.with_extension("txt"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_report_never_replaces_the_json_report() {
        assert_eq!(text_report_path(Path::new("a/mlx5_0.json")), Path::new("a/mlx5_0.txt"));
        assert_eq!(text_report_path(Path::new("report")), Path::new("report.txt"));
        assert_eq!(text_report_path(Path::new("report.txt")), Path::new("report.txt.txt"));
    }
}
