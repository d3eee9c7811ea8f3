//! Other processes: this program again, with a part to play.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adverb::net::Options;
use adverb::net::blocking::{Connector, Listener};
use adverb::verbs::Device;

use crate::Messages;

/// What says which part.
const ROLE: &str = "ADVERB_PART";

/// The software NIC, unless another device is named.
pub(crate) fn device() -> Device {
    Device::open(&std::env::var("ADVERB_DEVICE").unwrap_or("soft".to_owned())).unwrap()
}

/// Options with which a peer that is gone is soon noticed.
pub(crate) fn options() -> Options {
    // TCP goes over loopback, wherever the device is.
    Options::new().device(&device()).allow_foreign_gid(true).keepalive(Duration::from_millis(200))
}

/// A listener where the device is.
pub(crate) fn listen() -> Listener {
    let address = device().gid_for(1, None).unwrap().gid.ip();
    Listener::bind_with((address, 0), &options()).unwrap()
}

/// A process that plays a part, and ends with this value.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(role: &str) -> Process {
        Process::spawn(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// In another network namespace.
    pub(crate) fn start_in(namespace: &str, role: &str) -> Process {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Process::spawn(program, role)
    }

    fn spawn(mut program: Command, role: &str) -> Process {
        program.args(["--exact", "child::runs_its_role", "--nocapture"]).env(ROLE, role);
        // Nothing is said to it: where that ends, so does it.
        Process(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The next word that it says.
    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        // What the test's harness says isn't for us. It may be on the same line.
        let mut words =
            lines.map_while(Result::ok).filter_map(|line| Some(line.split_once(word)?.1.trim().to_owned()));
        words.next().unwrap_or_else(|| panic!("a process ended before it said {word}"))
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What such a process does. (In a run of all tests, nothing.)
#[test]
fn runs_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // Whoever started it may be killed.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    if role == "paths" {
        return crate::paths::receive();
    }
    let connection = match role.split_once(' ') {
        Some(("receive", rest)) => {
            let (port, path) = rest.split_once(' ').unwrap();
            return crate::restart::receive(port, path);
        }
        Some(("connect", address)) => {
            let address: SocketAddr = address.parse().unwrap();
            Connector::new().options(&options()).connect(address).unwrap()
        }
        _ => {
            let listener = listen();
            println!("listening {}", listener.local_addr());
            listener.accept().unwrap()
        }
    };
    // Until it is killed.
    let messages = Messages::new();
    std::thread::scope(|scope| {
        scope.spawn(|| crate::kill::send_all(&connection, &messages));
        scope.spawn(|| crate::kill::recv_all(&connection, &messages));
    });
}
