//! `cargo xtask examples`: do the examples of connections do what they say, typed as they say?

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use support::{paths, process};

/// Runs each as a server and as a client, on the software NIC.
pub(crate) fn run() -> Result<()> {
    let directory = paths::cache()?.join("examples");
    fs::create_dir_all(&directory)?;
    let (original, copy) = (directory.join("original"), directory.join("copy"));
    fs::write(&original, (0..5_000_001u32).map(|at| (at ^ at >> 8) as u8).collect::<Vec<_>>())?;
    let (from, to) = (original.display().to_string(), copy.display().to_string());

    // With ADDRESS where the server's address belongs, and what the client has to say.
    let examples: [(&str, &[&str], &[&str], &str); 4] = [
        ("echo", &["serve", "ADDRESS"], &["ADDRESS"], "1048576 bytes there and back: "),
        ("remote_counter", &["serve", "ADDRESS"], &["ADDRESS"], "it was 1000 before this"),
        ("parameter_read", &["serve", "ADDRESS"], &["ADDRESS"], ": of one step"),
        (
            "file_transfer",
            &["receive", "ADDRESS", &to],
            &["send", "ADDRESS", &from],
            "sent 5000001 bytes in ",
        ),
    ];
    for (name, server, client, expected) in examples {
        let program = process::build(&format!("build --release -p adverb --example {name}"))?;
        let (mut server, address) =
            serve(&program, server).with_context(|| format!("the server of {name}"))?;
        // A minute is far more than any takes.
        let mut client = command("timeout", &[&["60", &program], client].concat(), &address);
        let said = process::text(&mut client).with_context(|| format!("the client of {name}"))?;
        ensure!(said.contains(expected), "the example {name} says, instead of “{expected}”:\n{said}");
        println!("{name}: {}", said.lines().last().unwrap_or_default());
        if name == "file_transfer" {
            ensure!(server.0.wait()?.success(), "the receiver failed");
        }
    }
    ensure!(fs::read(&original)? == fs::read(&copy)?, "the file that was transferred has changed");
    Ok(())
}

/// A server, until it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server at a free port, and says where it listens.
fn serve(program: &str, words: &[&str]) -> Result<(Server, String)> {
    let mut server = Server(command(program, words, "127.0.0.1:0").stdout(Stdio::piped()).spawn()?);
    let mut output = BufReader::new(server.0.stdout.take().context("its output is captured")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening at ").context("it doesn't say where it listens")?;
    let address = address.to_owned();
    // Who goes on to print mustn't find a pipe that nobody reads.
    std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
    Ok((server, address))
}

fn command(program: &str, words: &[&str], address: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.iter().map(|word| word.replace("ADDRESS", address)));
    command
}
