//! The example as a newcomer runs it: a server, and clients that call it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_adverb-greeter");

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_server_greets_each_client() {
    let server = Command::new(PROGRAM).args(["serve", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Server(server);
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap();
    for name in ["Ann", "Bob"] {
        let client = Command::new(PROGRAM).args([address, name]).output().unwrap();
        let errors = String::from_utf8_lossy(&client.stderr);
        assert!(client.status.success(), "{errors}");
        assert_eq!(String::from_utf8_lossy(&client.stdout), format!("hello, {name}\n"), "{errors}");
    }
}
