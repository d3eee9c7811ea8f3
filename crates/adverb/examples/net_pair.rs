//! Two processes that run every connection test case with each other, each on its own device. `cargo xtask net` runs
//! them.
//!
//! ```text
//! net_pair listen  DEVICE ADDRESS CONTROL [--loss PERCENT]
//! net_pair connect DEVICE CONTROL [--loss PERCENT] [--apis CLIENT-SERVER]… [--only CASE]…
//! net_pair list
//! ```
//!
//! `ADDRESS` is the device's address for the other process. `CONTROL` is the TCP address at which the two agree on the
//! next case. The connecting process prints one line per case: `ok` or `FAILED`, the case, the APIs (blocking or
//! async, of each side), the seconds, and the reasons of a failure. `ADVERB_CUT` is a command that interrupts the
//! network and restores it, for the cases that must survive that.

// The cases are those of a test.
#[path = "../tests/net_pairs/cases/mod.rs"]
mod cases;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use adverb::net::Options;
use adverb::verbs::{Device, FaultConfig, SoftDevice};

use cases::{AnyListener, Api, CASES, Case, Opening, Role};

type Outcome<T = ()> = Result<T, adverb::Report>;

/// The timeout of a case, longer than any timeout in it.
const CASE_TIMEOUT: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = Arguments::new(&words).and_then(|arguments| match &arguments.words[..] {
        ["listen", device, address, control] => {
            listen(&arguments.open(device)?, address.parse()?, control).map(|()| 0)
        }
        ["connect", device, control] => connect(&arguments, &arguments.open(device)?, control),
        ["list"] => {
            CASES.iter().for_each(|case| println!("{}", case.name));
            Ok(0)
        }
        _ => Err("usage: see the top of examples/net_pair.rs".into()),
    });
    match result {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

/// The command line.
struct Arguments<'a> {
    words: Vec<&'a str>,
    loss: u32,
    apis: Vec<&'a str>,
    only: Vec<&'a str>,
}

impl<'a> Arguments<'a> {
    fn new(words: &'a [String]) -> Outcome<Arguments<'a>> {
        let mut arguments = Arguments { words: Vec::new(), loss: 0, apis: Vec::new(), only: Vec::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().map(String::as_str).ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--loss" => arguments.loss = value()?.parse()?,
                "--apis" => arguments.apis.push(value()?),
                "--only" => arguments.only.push(value()?),
                word => arguments.words.push(word),
            }
        }
        Ok(arguments)
    }

    /// Opens a device by name, with packet loss if it was requested.
    fn open(&self, name: &str) -> Outcome<Device> {
        if self.loss == 0 {
            return Ok(Device::open(name)?);
        }
        let address =
            name.strip_prefix("soft:").ok_or("--loss needs a software NIC with an address (soft:ADDRESS)")?;
        let faults = FaultConfig { loss_ppm: self.loss * 10_000, ..FaultConfig::new(1) };
        Ok(SoftDevice::at_addr(address.parse()?).faults(faults).open()?)
    }
}

/// Runs the cases that the connecting process names, until it ends.
fn listen(device: &Device, address: IpAddr, control: &str) -> Outcome {
    let (stream, _) = TcpListener::bind(control)?.accept()?;
    let mut control = Control::new(stream)?;
    while let Some(line) = control.receive_line()? {
        let (name, api) = line.split_once(' ').ok_or("no case and API")?;
        let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
        let options = case.options(Role::Server, Options::new().device(device));
        let listener = AnyListener::bind(api.parse()?, &options, address)?;
        control.send_line(&listener.address().to_string())?;
        let result = run(move || case.run(Role::Server, &Opening::Accept(&listener)));
        control.send_line(&result.err().unwrap_or_default())?;
    }
    Ok(())
}

/// Runs every case with the other process. Returns the number of failures.
fn connect(arguments: &Arguments<'_>, device: &Device, control: &str) -> Outcome<usize> {
    let start = Instant::now();
    let stream = loop {
        match TcpStream::connect(control) {
            // The other process may still be starting.
            Err(_) if start.elapsed() < Duration::from_secs(20) => sleep(Duration::from_millis(20)),
            connected => break connected?,
        }
    };
    let mut control = Control::new(stream)?;
    let mut failed = 0;
    for case in CASES.iter().filter(|case| arguments.only.is_empty() || arguments.only.contains(&case.name)) {
        for (client, server) in case.apis() {
            let apis = format!("{client}-{server}");
            if !arguments.apis.is_empty() && !arguments.apis.contains(&&*apis) {
                continue;
            }
            let start = Instant::now();
            let reasons = run_with_peer(&mut control, case, device, client, server)?;
            let (word, seconds) =
                (if reasons.is_empty() { "ok" } else { "FAILED" }, start.elapsed().as_secs_f64());
            failed += usize::from(!reasons.is_empty());
            println!("{word} {} {apis} {seconds:.1} {reasons}", case.name);
        }
    }
    Ok(failed)
}

/// Runs a case with the other process. Returns the reasons of a failure, or an empty string.
fn run_with_peer(
    control: &mut Control,
    case: &'static Case,
    device: &Device,
    client: Api,
    server: Api,
) -> Outcome<String> {
    control.send_line(&format!("{} {server}", case.name))?;
    let address: SocketAddr = control.receive_line()?.ok_or("the other process has ended")?.parse()?;
    let options = case.options(Role::Client, Options::new().device(device));
    let result = run(move || case.run(Role::Client, &Opening::Connect(client, &options, address)));
    let theirs = control.receive_line()?.ok_or("the other process has ended")?;
    let ours = result.err().unwrap_or_default();
    let reasons = [("client: ", ours), ("server: ", theirs)];
    let reasons = reasons.into_iter().filter(|(_, reason)| !reason.is_empty());
    Ok(reasons.map(|(side, reason)| side.to_owned() + &reason).collect::<Vec<_>>().join("; "))
}

/// Runs a case with a timeout. If it panics, returns the message in one line.
fn run(case: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(case)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            text.replace('\n', " ")
        });
        _ = sender.send(result);
    });
    receiver
        .recv_timeout(CASE_TIMEOUT)
        .unwrap_or_else(|_| Err(format!("not finished after {CASE_TIMEOUT:?}")))
}

/// The control connection, which carries lines.
struct Control {
    from: BufReader<TcpStream>,
    to: TcpStream,
}

impl Control {
    fn new(stream: TcpStream) -> Outcome<Control> {
        stream.set_nodelay(true)?;
        // No wait for the other process takes longer than a case.
        stream.set_read_timeout(Some(2 * CASE_TIMEOUT))?;
        Ok(Control { from: BufReader::new(stream.try_clone()?), to: stream })
    }

    fn send_line(&mut self, line: &str) -> Outcome {
        Ok(self.to.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Reads the next line, or `None` at the end.
    fn receive_line(&mut self) -> Outcome<Option<String>> {
        let mut line = String::new();
        let len = self.from.read_line(&mut line)?;
        Ok((len > 0).then(|| line.trim_end().to_owned()))
    }
}
