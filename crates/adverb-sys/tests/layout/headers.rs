//! The installed headers, and the compiler that reads them.

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The start of each C program.
pub(crate) const INCLUDES: &str = "#define _GNU_SOURCE\n\
                        #include <stddef.h>\n\
                        #include <stdint.h>\n\
                        #include <stdio.h>\n\
                        #include <time.h>\n\
                        #include <infiniband/verbs.h>\n\
                        #include <rdma/rdma_cma.h>\n";

/// Returns every identifier in the preprocessed headers, including macros, or `None` without headers.
pub(crate) fn names_in_headers() -> Option<BTreeSet<String>> {
    if let Err(reason) = check_installed() {
        let advice = "on Debian and Ubuntu, `apt install gcc libibverbs-dev librdmacm-dev`";
        let is_required = env::var_os("ADVERB_REQUIRE_HEADERS").is_some_and(|value| value == "1");
        assert!(!is_required, "ADVERB_REQUIRE_HEADERS is set, and there is {reason}; {advice}");
        println!("skipped: there is {reason}; {advice}");
        return None;
    }
    let (ok, text, errors) = cc(&["-E", "-dD", "-x", "c", "-"], INCLUDES);
    assert!(ok, "the headers are installed, but don't compile:\n{errors}");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    Some(words.filter(|word| !word.is_empty()).map(str::to_owned).collect())
}

/// Checks that a compiler and the headers are installed. Otherwise, returns the missing one.
fn check_installed() -> Result<(), &'static str> {
    let probe = "#if !__has_include(<infiniband/verbs.h>)\n\
                 no header of libibverbs\n\
                 #elif !__has_include(<rdma/rdma_cma.h>)\n\
                 no header of librdmacm\n\
                 #endif\n";
    match cc(&["-E", "-x", "c", "-"], probe) {
        (true, text, _) if text.contains("no header of libibverbs") => Err("no header of libibverbs"),
        (true, text, _) if text.contains("no header of librdmacm") => Err("no header of librdmacm"),
        (true, ..) => Ok(()),
        (false, ..) => Err("no C compiler"),
    }
}

/// Runs the C compiler on a source.
pub(crate) fn cc(arguments: &[&str], source: &str) -> (bool, String, String) {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let child = Command::new(compiler)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return (false, String::new(), error.to_string()),
    };
    // The compiler reads all of its input before it writes, so neither process waits for the other.
    let mut stdin = child.stdin.take().unwrap();
    let written = stdin.write_all(source.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success() && written.is_ok(), String::from_utf8_lossy(&output.stdout).into_owned(), errors)
}
