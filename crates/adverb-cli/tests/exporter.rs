//! Tests of `adverb exporter` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn sigterm_and_sigint_end_the_exporter_with_success() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        let mut exporter =
            command.args(["exporter", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(exporter.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().strip_prefix("serving http://").and_then(|rest| rest.strip_suffix("/metrics"));
        let mut stream = TcpStream::connect(address.expect("the exporter's address")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.contains("adverb_exporter_build_info"), "{response}");
        kill(Pid::from_raw(exporter.id().try_into().unwrap()), signal).unwrap();
        // Without a handler, the first process of a container would not end at all.
        assert_eq!(exporter.wait().unwrap().code(), Some(0), "{signal}");
    }
}
