//! What two devices must do with each other, as tests.
//!
//! Two processes, each with a device, talk over TCP about what their devices are to do: one waits ([`serve`]), the other
//! decides ([`Session`]). Every byte that arrives is compared with what was sent, and no byte beside it may have changed.
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
mod message;
mod reliable;
mod script;
mod store;
mod unreliable;

use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use adverb::verbs::{Device, PathMtu};
use anyhow::{Context, Result, ensure};

use crate::report::seconds;
use actor::Actor;
use message::{Command, Opened, Wire};
use script::{Script, Side};

pub use case::{Case, CaseOutcome, CaseResult, Direction, Operation};
pub use script::Counts;

/// A device, and which of its addresses to use.
#[derive(Clone, Debug)]
pub struct Port {
    device: Device,
    address: Option<IpAddr>,
}

impl Port {
    /// A device, with the address that it would choose itself.
    pub fn new(device: Device) -> Port {
        Port { device, address: None }
    }

    /// With this address of the device.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Port {
        self.address = Some(address);
        self
    }
}

/// What all cases of a session have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// The MTU of connections, and the length of the longest datagram: what both ports have unless set.
    pub mtu: Option<PathMtu>,
    /// Whether the network loses packets. Then messages may be absent where nothing brings them again, but what arrives is
    /// whole all the same.
    pub lossy: bool,
}

/// Does what a [`Session`] at the other end of a stream asks for, to the end of the session.
///
/// # Errors
///
/// If the stream breaks off, or says what makes no sense. What the devices do wrong is told to the other end, and is no
/// error here.
pub fn serve(port: Port, stream: TcpStream) -> Result<()> {
    let mut wire = Wire::new(stream)?;
    wire.send(&Command::Hello(message::VERSION))?;
    wire.greet()?;
    let mut actor = Actor::new(port);
    loop {
        match wire.receive()? {
            Command::Bye => return Ok(()),
            command => wire.send(&actor.obey(command))?,
        }
    }
}

/// The end that decides what both do.
pub struct Session {
    here: Side,
    there: Side,
    settings: Settings,
    /// Grows, so that no two messages of a session are alike.
    seed: u64,
}

impl Session {
    /// Begins a session with a peer that [serves](serve).
    ///
    /// # Errors
    ///
    /// If the peer doesn't answer, or is of another version.
    pub fn new(port: Port, stream: TcpStream, settings: Settings) -> Result<Session> {
        let mut wire = Wire::new(stream)?;
        wire.send(&Command::Hello(message::VERSION))?;
        wire.greet()?;
        let here = Side::Here(Box::new(Actor::new(port)));
        Ok(Session { here, there: Side::There(wire), settings, seed: 0 })
    }

    /// Does one case. A failure of the devices is a result, not an error.
    ///
    /// # Errors
    ///
    /// If the peer doesn't answer any more.
    pub fn run(&mut self, case: Case) -> Result<CaseResult> {
        let start = Instant::now();
        let (from, to) = match case.direction {
            Direction::Forward => (&mut self.here, &mut self.there),
            Direction::Reverse => (&mut self.there, &mut self.here),
        };
        let mut script = Script::new(from, to, self.settings, self.seed);
        let ended = script.play(case.operation);
        let (counts, seed) = (script.counts, script.seed);
        self.seed = seed;
        // Whatever became of it, the next one begins with nothing.
        for side in [&mut self.here, &mut self.there] {
            side.ask(Command::Close)?.context("ending a case")?;
        }
        Ok(CaseResult { case, counts, outcome: CaseOutcome::new(ended), seconds: seconds(start.elapsed()) })
    }

    /// Ends it, also at the other end.
    ///
    /// # Errors
    ///
    /// If the peer is gone.
    pub fn end(self) -> Result<()> {
        let Side::There(mut wire) = self.there else { return Ok(()) };
        wire.send(&Command::Bye)
    }
}

/// What two ports have in common.
fn common_mtu(here: &Opened, there: &Opened, wanted: Option<PathMtu>) -> Result<PathMtu> {
    let least = here.mtu.min(there.mtu);
    let wanted = wanted.map_or(least, PathMtu::bytes);
    ensure!(wanted <= least, "the ports have MTUs of {} and {}: {wanted} is too much", here.mtu, there.mtu);
    PathMtu::at_most(wanted.into()).context("a port has an MTU below 256")
}

/// An answer as what it was to be.
macro_rules! expect_answer {
    ($answer:expr, $variant:ident) => {
        match $answer? {
            $crate::peer::message::Answer::$variant(value) => Ok(value),
            other => Err(anyhow::anyhow!("{other:?} is no answer to that")),
        }
    };
}
use expect_answer;
