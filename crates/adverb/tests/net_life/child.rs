//! Other processes: this program, started with a role.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adverb::net::Options;
use adverb::net::blocking::{Connector, Listener};

use crate::Messages;
use crate::connections::device;

/// The environment variable that selects the role.
const ROLE: &str = "ADVERB_ROLE";

/// Returns options with a short keepalive interval, to detect a killed peer soon.
pub(crate) fn options() -> Options {
    // TCP uses loopback, and the device may have another address.
    Options::new().device(&device()).allow_foreign_gid(true).keepalive(Duration::from_millis(200))
}

/// Listens at the device's address.
pub(crate) fn listen() -> Listener {
    let address = device().gid_for(1, None).unwrap().gid.ip();
    Listener::builder().options(&options()).bind((address, 0)).unwrap()
}

/// A process with a role, which is killed when this value is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(role: &str) -> Process {
        Process::spawn(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// Starts a process in another network namespace.
    pub(crate) fn start_in(namespace: &str, role: &str) -> Process {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Process::spawn(program, role)
    }

    fn spawn(mut program: Command, role: &str) -> Process {
        program.args(["--exact", "child::runs_its_role", "--nocapture"]).env(ROLE, role);
        // The process exits when its standard input is closed.
        Process(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Reads lines up to one that contains `word`, and returns the rest of that line.
    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        // The test harness prints to the same pipe, perhaps on the same line.
        let mut words =
            lines.map_while(Result::ok).filter_map(|line| Some(line.split_once(word)?.1.trim().to_owned()));
        words.next().unwrap_or_else(|| panic!("the process ended before it printed {word}"))
    }

    /// Kills the process with SIGKILL.
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

/// Runs the role of a started process. Without a role, as in a run of all tests, it does nothing.
#[test]
fn runs_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // The parent may be killed.
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
    // Sends and receives until the process is killed.
    let messages = Messages::new();
    std::thread::scope(|scope| {
        scope.spawn(|| crate::kill::send_all(&connection, &messages));
        scope.spawn(|| crate::kill::recv_all(&connection, &messages));
    });
}
