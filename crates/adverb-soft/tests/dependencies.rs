//! Any host can send any number of packets, so code that handles packets must not log.

use std::path::Path;

/// Checks that no file of a directory contains a call that prints or logs.
fn check(folder: &Path, file_count: &mut usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, file_count);
            continue;
        }
        *file_count += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("mod tests {").next().unwrap_or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for call in ["tracing::", "log::", "println!", "eprint!", "eprintln!", "dbg!"] {
                assert!(!line.contains(call), "{}: {line}", path.display());
            }
        }
    }
}

#[test]
fn packet_handling_code_does_not_log() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut file_count = 0;
    for folder in ["adverb-wire/src", "adverb-proto/src", "adverb-soft/src"] {
        check(&crates.join(folder), &mut file_count);
    }
    assert!(file_count > 50, "only {file_count} files were found");
}
