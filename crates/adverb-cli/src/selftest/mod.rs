//! `adverb selftest`: does a device do what an RDMA device must do?

mod progress;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use adverb::verbs::{Device, FaultConfig, Gid, IcrcCheck, SoftDevice, Switch, SwitchConfig};
use adverb_conformance::{Deviations, Options, Outcome, Report, Suite};
use anyhow::{Context, Result, ensure};

use progress::Progress;

/// What `adverb selftest` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two queue pairs of the device talk to each other, on a port that is active: no
peer is needed, and nothing leaves the machine but what the port itself sends.
The exit status is 0 if the device keeps every rule, or breaks only those that
it is known to break.

  adverb selftest --device mlx5_0 --report mlx5_0.json

writes mlx5_0.json for programs and mlx5_0.txt for people. Neither has addresses
or identifiers in it. Please send them, whatever they say: the README tells how.")]
pub(crate) struct Args {
    /// The device, by its name: see `adverb devices`.
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    device: Option<String>,
    /// What the packets between the queue pairs of a software device go over.
    #[arg(long, value_enum, value_name = "LINK", requires = "device")]
    link: Option<Link>,
    /// How many packets in a hundred that link is to lose.
    #[arg(long, value_name = "PERCENT", requires = "link", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: u32,
    /// What losses follow from.
    #[arg(long, value_name = "NUMBER", requires = "link", default_value_t = 1)]
    seed: u64,
    /// Where to write what was found: JSON, and beside it the same as text (.txt).
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run only tests whose group or name contains this; may be given again.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// What the device is known to do its own way, instead of what Adverb knows of it.
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,
    /// How long one test may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time_limit: u64,
    /// Print a line for every test, not only for those with something to say.
    #[arg(long, short)]
    verbose: bool,
    /// Only list the tests.
    #[arg(long)]
    list: bool,
}

/// What the packets of a software device go over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Link {
    /// Nothing: they go from queue pair to queue pair.
    Loopback,
    /// A switch in memory, which checks them as a network's receivers do.
    Mem,
    /// UDP sockets.
    Udp,
    /// UDP sockets where another device has RoCE's port: addresses say which they have instead.
    UdpPort,
}

/// Opens the software device that the options describe, if they do.
fn open_link(args: &Args) -> Result<Option<Device>> {
    let Some(link) = args.link else { return Ok(None) };
    ensure!(args.device.as_deref() == Some("soft"), "--link is for the device soft");
    let mut device = match link {
        Link::Loopback => {
            ensure!(args.loss == 0, "without a link nothing is lost");
            SoftDevice::loopback()
        }
        Link::Mem => {
            let config = SwitchConfig { icrc: IcrcCheck::Identification(0), ..SwitchConfig::default() };
            let switch = Switch::new(config);
            SoftDevice::on_switch(&switch, "10.77.0.1".parse()?)
                .address("fd77::1".parse()?)
                .loopback_via_link()
        }
        Link::Udp => SoftDevice::new().loopback_via_link(),
        Link::UdpPort => {
            // One that hardly anybody else has.
            let port = Gid::PORTS.start() + (std::process::id() % 256) as u16;
            let at = |host: IpAddr| Gid::from(SocketAddr::new(host, port)).ip();
            let device = SoftDevice::at_addr(at(Ipv4Addr::LOCALHOST.into())).loopback_via_link();
            match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
                Ok(_) => device.address(at(Ipv6Addr::LOCALHOST.into())),
                Err(_) => device,
            }
        }
    };
    if args.loss > 0 {
        device = device.faults(FaultConfig { loss: args.loss * 10_000, ..FaultConfig::new(args.seed) });
    }
    Ok(Some(device.open()?))
}

/// Runs the tests.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    for words in &args.filter {
        ensure!(Suite::all().matching(words).tests().len() > 0, "no test has a group or name with “{words}”");
    }
    let suite = Suite::all().matching_any(&args.filter);
    let Some(name) = args.device.as_deref().filter(|_| !args.list) else {
        suite.tests().for_each(|test| println!("{}: {}", test.group(), test.name()));
        return Ok(ExitCode::SUCCESS);
    };
    // While it is open, it is found by its name.
    let opened = open_link(args)?;
    let name = opened.as_ref().map_or(name, Device::name);
    let mut options = Options::default();
    options.time_limit = Duration::from_secs(args.time_limit);
    options.loss = args.loss * 10_000;
    options.deviations = deviations(args.deviations.as_deref(), name)?;
    if let Some(file) = &args.report {
        // Better now than after minutes of tests.
        write(file, "")?;
    }
    let mut progress = Progress::new(suite.tests().map(|test| test.name()).collect());
    let report = suite.run(name, &options, |test, result| {
        if args.verbose {
            progress.line(&format!("{:7.3} s  {}: {result}", result.seconds, test.name()));
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

/// What the device is known to do its own way.
fn deviations(file: Option<&Path>, device: &str) -> Result<Deviations> {
    let Some(file) = file else {
        return Ok(Deviations::known(Device::open(device)?.attributes()));
    };
    let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    text.parse::<Deviations>().with_context(|| format!("{} makes no sense", file.display()))
}

fn save(report: &Report, file: &Path) -> Result<()> {
    let text = text_beside(file);
    write(file, &(report.to_json()? + "\n"))?;
    write(&text, &report.text())?;
    eprintln!("the report is in {} and {}: please send it to us", file.display(), text.display());
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
}

/// Where the text goes if the JSON goes to `file`.
fn text_beside(file: &Path) -> PathBuf {
    match file.extension().is_some_and(|extension| extension == "txt") {
        true => file.with_extension("txt.txt"),
        false => file.with_extension("txt"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_lies_beside_the_json_and_never_over_it() {
        assert_eq!(text_beside(Path::new("a/mlx5_0.json")), Path::new("a/mlx5_0.txt"));
        assert_eq!(text_beside(Path::new("report")), Path::new("report.txt"));
        assert_eq!(text_beside(Path::new("report.txt")), Path::new("report.txt.txt"));
    }
}
