//! Strangers can send any number of packets, so nothing that handles packets may write a log.

use std::path::Path;

/// Checks every file of a folder for calls that print or log.
fn check(folder: &Path, files: &mut usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check(&path, files);
            continue;
        }
        *files += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
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
    let mut files = 0;
    for folder in ["adverb-wire/src", "adverb-proto/src", "adverb-soft/src"] {
        check(&crates.join(folder), &mut files);
    }
    assert!(files > 50, "only {files} files were found");
}
