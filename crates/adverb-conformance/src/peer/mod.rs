//! Tests between two devices.
//!
//! Two processes, each with a device, coordinate over TCP. One process executes commands ([`serve`]). The other process
//! selects and runs the test cases ([`Session`]). Every received byte is compared with the sent byte, and the bytes
//! around the destination must not change.
//!
//! ```no_run
//! use std::net::TcpStream;
//!
//! use adverb::verbs::Device;
//! use adverb_conformance::peer::{Case, Port, Session, Settings};
//!
//! let port = Port::new(Device::open("mlx5_0")?);
//! let mut session = Session::new(port, TcpStream::connect("192.0.2.7:7472")?, Settings::default())?;
//! for case in Case::all() {
//!     println!("{case}: {}", session.run(case)?);
//! }
//! session.end()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod actor;
mod case;
mod case_run;
mod message;
mod reliable;
mod store;
mod unreliable;

use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use adverb::verbs::{Device, PathMtu};
use anyhow::{Context, Result, ensure};

use actor::Actor;
use case_run::{CaseRun, Side};
use message::{Command, ControlStream, Opened};

pub use case::{Case, CaseOutcome, CaseResult, Direction, Operation};
pub use case_run::Counts;

/// A device and optionally one of its addresses.
#[derive(Clone, Debug)]
pub struct Port {
    device: Device,
    address: Option<IpAddr>,
}

impl Port {
    /// Creates a port with the device's default address.
    pub fn new(device: Device) -> Port {
        Port { device, address: None }
    }

    /// Sets the device's address for the test cases.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Port {
        self.address = Some(address);
        self
    }
}

/// The settings of all cases of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The path MTU of connections, and the maximum size of a datagram. The default is the smaller of the two ports'
    /// active MTUs.
    pub mtu: Option<PathMtu>,
    /// Whether the network loses packets. If this is true, messages of unreliable transports may be missing, but
    /// messages that arrive must be complete.
    pub lossy: bool,
}

/// Executes the commands of a [`Session`] at the other end of a stream, until the session ends.
///
/// # Errors
///
/// Returns an error if the stream fails or carries an invalid message. Failures of the devices are reported to the
/// other end and are not errors of this function.
pub fn serve(port: Port, stream: TcpStream) -> Result<()> {
    let mut control = ControlStream::new(stream)?;
    control.send(&Command::Hello(message::VERSION))?;
    control.greet()?;
    let mut actor = Actor::new(port);
    loop {
        match control.receive()? {
            Command::Bye => return Ok(()),
            command => control.send(&actor.execute(command))?,
        }
    }
}

/// The controlling end of a test between two devices.
pub struct Session {
    here: Side,
    there: Side,
    settings: Settings,
    /// The seed of the next message. It increases, so that all messages of a session differ.
    seed: u64,
}

impl Session {
    /// Starts a session with a peer that runs [`serve`].
    ///
    /// # Errors
    ///
    /// Returns an error if the peer doesn't reply or runs another version of the test protocol.
    pub fn new(port: Port, stream: TcpStream, settings: Settings) -> Result<Session> {
        let mut control = ControlStream::new(stream)?;
        control.send(&Command::Hello(message::VERSION))?;
        control.greet()?;
        let here = Side::Here(Box::new(Actor::new(port)));
        Ok(Session { here, there: Side::There(control), settings, seed: 0 })
    }

    /// Runs a case. A failure of the devices is a result, not an error.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer no longer replies.
    pub fn run(&mut self, case: Case) -> Result<CaseResult> {
        let start = Instant::now();
        let (from, to) = match case.direction {
            Direction::Forward => (&mut self.here, &mut self.there),
            Direction::Reverse => (&mut self.there, &mut self.here),
        };
        let mut case_run = CaseRun::new(from, to, self.settings, self.seed);
        let ended = case_run.run(case.operation);
        let (counts, seed) = (case_run.counts, case_run.seed);
        self.seed = seed;
        // The next case starts without objects, regardless of the result.
        for side in [&mut self.here, &mut self.there] {
            side.send_command(Command::Close)?.context("ending a case")?;
        }
        Ok(CaseResult { case, counts, outcome: CaseOutcome::new(ended), elapsed: start.elapsed() })
    }

    /// Ends the session at both ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the connection to the peer is lost.
    pub fn end(self) -> Result<()> {
        let Side::There(mut control) = self.there else { return Ok(()) };
        control.send(&Command::Bye)
    }
}

/// Returns the path MTU that two ports support.
fn common_mtu(here: &Opened, there: &Opened, wanted: Option<PathMtu>) -> Result<PathMtu> {
    let min = here.mtu.min(there.mtu);
    let wanted = wanted.map_or(min, PathMtu::bytes);
    ensure!(wanted <= min, "the ports have MTUs of {} and {}: {wanted} is too large", here.mtu, there.mtu);
    PathMtu::at_most(wanted.into()).context("a port has an MTU below 256")
}

/// Returns the value of the expected variant of an answer.
macro_rules! expect_answer {
    ($answer:expr, $variant:ident) => {
        match $answer? {
            $crate::peer::message::Answer::$variant(value) => Ok(value),
            other => Err(anyhow::anyhow!("unexpected answer {other:?}")),
        }
    };
}
use expect_answer;
