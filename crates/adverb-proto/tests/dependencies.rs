//! The engine does no I/O: no crate in its dependency tree can.

use std::process::Command;

/// The allowed dependencies: packets, flags, and the checksum of packets.
const ALLOWED: [&str; 5] = ["adverb-proto", "adverb-wire", "bitflags", "cfg-if", "crc32fast"];

#[test]
fn dependency_tree_has_no_io_thread_or_clock_crate() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--package",
            "adverb-proto",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .args(["--offline", "--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .expect("cargo is available in tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8_lossy(&output.stdout);
    let mut seen = 0;
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap_or_default();
        assert!(ALLOWED.contains(&name), "{name} is not an allowed dependency of the engine");
        seen += 1;
    }
    assert!(seen >= 3, "{tree}");
}

#[test]
fn engine_names_no_clock_socket_thread_file_or_unsafe_block() {
    fn check(dir: &std::path::Path) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for word in
                ["Instant", "SystemTime", "std::thread::", "std::fs", "std::net::Udp", "std::io", "unsafe {"]
            {
                // A variable of each thread holds the selected mutation.
                let is_exempt = path.ends_with("mutation.rs");
                assert!(is_exempt || !text.contains(word), "{} names {word}", path.display());
            }
        }
    }
    check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}
