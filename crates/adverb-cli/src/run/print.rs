//! `adverb env` and `adverb run --print-env`: print the environment of programs on the software NIC.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::environment::{self, Options};
use super::{prepare_trace, sysfs};
use crate::json;

/// The options of `adverb env`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All programs of a shell use the software NIC after this command, and those of a
subshell after the second one:

  eval \"$(adverb env)\"
  (eval \"$(adverb env --loss 1 --seed 7)\"; ./my_test)

The format `cmake` is a list for the property ENVIRONMENT of tests:

  find_program(ADVERB adverb REQUIRED)
  execute_process(COMMAND ${ADVERB} env --loss 1 --seed 7 --format cmake
                  OUTPUT_VARIABLE environment OUTPUT_STRIP_TRAILING_WHITESPACE)
  set_tests_properties(my_test PROPERTIES ENVIRONMENT \"${environment}\")

The format `json` is a document whose object `variables` has a string for each
name.

The variables are those that `adverb run` sets, which adds a summary at the end.
Variables that are set already, and that no option changes, remain: run `unset
ADVERB_LOSS` to end losses. The files of the device in sysfs are in a directory
of the user, `adverb-env-UID` in $XDG_RUNTIME_DIR, $TMPDIR (or else /tmp) or
/dev/shm. All calls of this command use it, and it remains.")]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// The format.
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
}

/// The formats of a printed environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Format {
    /// Commands of POSIX shells, one per line.
    Shell,
    /// A JSON document.
    Json,
    /// A list of CMake.
    Cmake,
}

/// Prints the environment.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    print(&args.options, args.format)
}

/// Prints the variables that the options select.
pub(super) fn print(options: &Options, format: Format) -> Result<ExitCode> {
    let libraries = environment::libraries(options.libraries.as_deref())?;
    let trace = options.trace.as_deref().map(prepare_trace).transpose()?;
    let mut variables = environment::variables(options, &libraries, trace, |name| env::var_os(name))?;
    let address = options.device.as_ref().map(|device| device.address);
    match sysfs::of_user(address, &sysfs::directories_of_user()) {
        Ok(root) => variables.push(("ADVERB_SYSFS", root.into())),
        Err(error) => eprintln!(
            "adverb: no directory is usable ({error}): programs don't find the device in sysfs; name a writable \
             directory in TMPDIR"
        ),
    }
    variables.sort();
    let text = match format {
        Format::Shell => variables.iter().flat_map(|(name, value)| shell_line(name, value)).collect(),
        Format::Json => json_document(&variables)?.into_bytes(),
        Format::Cmake => cmake_list(&variables)?,
    };
    io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command that sets a variable. Nothing can be escaped between single quotes, so `it's` becomes
/// `'it'\''s'`.
fn shell_line(name: &str, value: &OsStr) -> Vec<u8> {
    let mut line = format!("export {name}='").into_bytes();
    for byte in value.as_bytes() {
        match byte {
            b'\'' => line.extend_from_slice(br"'\''"),
            byte => line.push(*byte),
        }
    }
    line.extend_from_slice(b"'\n");
    line
}

/// Returns a list of CMake, on one line. A backslash before a semicolon makes the semicolon part of an item.
///
/// # Errors
///
/// Fails if a value can't be an item: CMake doesn't split lists between brackets, nor after a backslash.
fn cmake_list(variables: &[(&str, OsString)]) -> Result<Vec<u8>> {
    let mut list = Vec::new();
    for (at, (name, value)) in variables.iter().enumerate() {
        let is_item = !value.as_bytes().iter().any(|byte| b"[]".contains(byte));
        if !is_item || value.as_bytes().ends_with(b"\\") {
            bail!("a list of CMake can't contain {name}={}", value.display());
        }
        list.extend_from_slice(if at > 0 { b";" } else { b"" });
        list.extend_from_slice(format!("{name}=").as_bytes());
        for byte in value.as_bytes() {
            list.extend_from_slice(if *byte == b';' { b"\\" } else { b"" });
            list.push(*byte);
        }
    }
    list.push(b'\n');
    Ok(list)
}

/// The document of the format `json`.
#[derive(Serialize)]
struct Document<'a> {
    variables: std::collections::BTreeMap<&'a str, &'a str>,
}

fn json_document(variables: &[(&'static str, OsString)]) -> Result<String> {
    let text = variables.iter().map(|(name, value)| {
        let value = value.to_str().with_context(|| format!("the value of {name} is not UTF-8"))?;
        Ok((*name, value))
    });
    Ok(json::pretty("env", &Document { variables: text.collect::<Result<_>>()? })?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn shells_read_the_value_that_was_printed() {
        let value = OsString::from_vec(b"a'b \"$HOME\" `x`\n\\ ;\xff''".to_vec());
        let mut script = shell_line("ADVERB_TEST", &value);
        script.extend_from_slice(b"printf %s \"$ADVERB_TEST\"");
        let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap();
        assert_eq!(OsString::from_vec(output.stdout), value);
    }

    #[test]
    fn items_of_lists_and_documents_keep_their_values() {
        let variables = [("A", "x;y".into()), ("B", "\"z\"".into())];
        assert_eq!(cmake_list(&variables).unwrap(), b"A=x\\;y;B=\"z\"\n");
        for value in ["/[x", "/x]", "/x\\"] {
            assert!(cmake_list(&[("A", value.into()), ("B", "y".into())]).is_err(), "{value}");
        }
        let document: serde_json::Value = serde_json::from_str(&json_document(&variables).unwrap()).unwrap();
        assert_eq!(document["command"], "env");
        assert_eq!(document["variables"], serde_json::json!({"A": "x;y", "B": "\"z\""}));
        let error = json_document(&[("A", OsString::from_vec(vec![0xff]))]).unwrap_err();
        assert_eq!(error.to_string(), "the value of A is not UTF-8");
    }
}
