//! `adverb respond`: answers the probes of `adverb ping`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use adverb::probe::answer::Rate;
use adverb::probe::{DEFAULT_PORT, Key, ResponderOptions, ResponderStats};
use adverb::verbs::{Counters, Device, Gid};
use anyhow::{Context, Result};

use crate::doctor::ROCE_PORT;
use crate::interrupt::Interrupt;
use crate::json;

/// The options of `adverb respond`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The responder answers probes at the addresses of --address, by default at the
device's first address, and at no other. All answers to a probe together are not
longer than the probe, and the number of answers per second to one address is
limited. With a key, it answers only probers that have the same key; others see
100 % loss. `head -c 32 /dev/urandom | base64` prints a secret for a key file.

  adverb respond --device mlx5_0
  adverb respond --device soft:192.0.2.7 --key-file /etc/adverb/probe.key

The responder runs until SIGINT, SIGTERM or the end of --duration. Then it
prints the number of answered and dropped probes, and the errors that its device
counted since the start.")]
pub(crate) struct Args {
    /// The name of the device: see `adverb devices`.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// An address of the device. The option can be repeated. The default is the device's first address.
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<IpAddr>,
    /// The port at which probers look up the responder.
    #[arg(long, default_value_t = DEFAULT_PORT)]
    port: u16,
    /// A file with a secret of at least 16 bytes, which probers must have, too.
    #[arg(long, value_name = "FILE")]
    key_file: Option<std::path::PathBuf>,
    /// The maximum number of answered probes per second from one address.
    #[arg(long, value_name = "PROBES", default_value_t = 50_000)]
    source_rate: u32,
    /// Stop after this time.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Use only stamps of the process, to compare them with those of the NIC or the kernel.
    #[arg(long)]
    process_stamps: bool,
    /// Print JSON: one line at the start, and one at the end. The fields keep their names and meanings while
    /// `version` is 1.
    #[arg(long)]
    json: bool,
}

/// Answers probes until the time is over.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let interrupt = Interrupt::new()?;
    let key = args.key_file.as_deref().map(read_key).transpose()?;
    let device = Device::open(&args.device)?;
    let before = device.counters(1).ok();
    let addresses: Vec<Option<IpAddr>> = match args.address.is_empty() {
        true => vec![None],
        false => args.address.iter().copied().map(Some).collect(),
    };
    let mut responders = Vec::new();
    for address in addresses {
        let rate = Rate { per_second: args.source_rate, burst: (args.source_rate / 10).max(1) };
        let mut options =
            ResponderOptions::new().port(args.port).source_rate(rate).process_stamps(args.process_stamps);
        if let Some(address) = address {
            options = options.local_addr(address);
        }
        if let Some(key) = &key {
            options = options.key(key);
        }
        let (name, mut first) = (args.device.clone(), Some(device.clone()));
        let responder = options.start(move || first.take().map_or_else(|| Device::open(&name), Ok))?;
        let addr = responder.local_addr();
        let mut out = io::stdout().lock();
        if args.json {
            let event = serde_json::json!({ "event": "listening", "device": args.device, "address": addr.to_string() });
            let line = json::line("respond", &event)?;
            writeln!(out, "{line}")?;
        } else {
            writeln!(out, "answering probes at {addr} on {}", args.device)?;
        }
        out.flush()?;
        if let Some(note) = port_note(addr.ip()) {
            eprintln!("{note}");
        }
        responders.push(responder);
    }
    interrupt.wait(args.duration.map(Duration::from_secs));
    let errors = before.map(|before| device_errors(&device, &before)).unwrap_or_default();
    for responder in responders {
        let addr = responder.local_addr().to_string();
        let stats = responder.stop();
        println!("{}", if args.json { stopped(&addr, &stats, &errors)? } else { text(&addr, &stats) });
    }
    if !args.json && !errors.is_empty() {
        let errors: Vec<String> = errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
        println!("{}: {}", args.device, errors.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a note about a device whose sockets are at another UDP port than RoCE's.
fn port_note(addr: IpAddr) -> Option<String> {
    let gid = Gid::from(addr);
    let place = gid.udp_addr();
    gid.has_udp_port().then(|| {
        format!(
            "note: UDP port {ROCE_PORT} of {ip} is used by another program, so the device is at UDP port {}. Probers reach \
             it with `adverb ping {addr}`",
            place.port(),
            ip = place.ip()
        )
    })
}

/// Returns the error counters of the device that have grown.
fn device_errors(device: &Device, before: &Counters) -> BTreeMap<String, u64> {
    let Ok(now) = device.counters(1) else { return BTreeMap::new() };
    let grown = now.since(before);
    let errors = grown.iter().filter(|&(name, count)| count > 0 && Counters::is_error(name));
    errors.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Reads a key from a file with a secret.
pub(crate) fn read_key(path: &std::path::Path) -> Result<Key> {
    Key::from_file(path).with_context(|| format!("could not use the key in {}", path.display()))
}

fn text(address: &str, stats: &ResponderStats) -> String {
    let answers = &stats.answers;
    format!(
        "{address}: {} probes answered, {} dropped ({} over the rate limit, {} with a wrong key, {} invalid, {} busy), \
         {} acknowledgements not sent",
        answers.answered,
        answers.rate_limited + answers.bad_tags + answers.invalid + answers.busy,
        answers.rate_limited,
        answers.bad_tags,
        answers.invalid,
        answers.busy,
        answers.not_sent
    )
}

fn stopped(address: &str, stats: &ResponderStats, device_errors: &BTreeMap<String, u64>) -> Result<String> {
    let answers = &stats.answers;
    let event = serde_json::json!({
        "event": "stopped",
        "address": address,
        "answered": answers.answered,
        "completed": answers.completed,
        "not_sent": answers.not_sent,
        "invalid": answers.invalid,
        "bad_tags": answers.bad_tags,
        "rate_limited": answers.rate_limited,
        "busy": answers.busy,
        "device_errors": device_errors,
    });
    Ok(json::line("respond", &event)?)
}
