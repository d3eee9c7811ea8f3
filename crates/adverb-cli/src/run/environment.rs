//! The environment of programs on the software NIC: the options of `adverb run` and `adverb env`, the libraries, and the
//! variables.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anyhow::{Context, Result, bail};

use super::owner;

/// The options of the device, which programs read from environment variables.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The device: `soft:` and an address of this machine. The default is 127.0.0.1 or, if another
    /// program has its UDP port 4791, an address of the user.
    #[arg(long, value_name = "NAME", value_parser = device)]
    pub(super) device: Option<DeviceName>,
    /// The percentage of sent packets that are lost.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub(super) loss: Option<f64>,
    /// The percentage of sent packets that are delayed, so that later packets overtake them.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub(super) reorder: Option<f64>,
    /// The percentage of sent packets that are sent twice.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub(super) duplicate: Option<f64>,
    /// The percentage of sent packets that are corrupted.
    #[arg(long, value_name = "PERCENT", value_parser = percentage)]
    pub(super) corrupt: Option<f64>,
    /// The time in milliseconds by which each sent packet is delayed.
    #[arg(long, value_name = "MILLISECONDS", value_parser = delay)]
    pub(super) delay: Option<f64>,
    /// The seed of these faults.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(super) seed: u64,
    /// The file of a recording of the program's requests, packets and completions.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// The directory of the libraries.
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) libraries: Option<PathBuf>,
}

/// The name of a software device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeviceName {
    pub(super) address: IpAddr,
    /// The address, and the interface if the name has one. The libraries check that the interface has the address.
    text: String,
}

/// Returns the environment variables for programs on the software NIC, except the ones that name a directory of one
/// run.
pub(super) fn variables(
    options: &Options,
    libraries: &Path,
    trace: Option<PathBuf>,
    existing: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(&'static str, OsString)>> {
    let mut search = libraries.as_os_str().to_owned();
    if search.as_bytes().iter().any(|byte| b":;".contains(byte)) {
        bail!(
            "the dynamic linker can't load libraries from {}, because its path has a colon or a semicolon",
            libraries.display()
        );
    }
    // The dynamic linker replaces these tokens: $ORIGIN by the directory of the program.
    let tokens = ["ORIGIN", "LIB", "PLATFORM"].map(|name| [format!("${name}"), format!("${{{name}}}")]);
    let text = search.to_string_lossy();
    if let Some(token) = tokens.as_flattened().iter().find(|token| text.contains(token.as_str())) {
        bail!(
            "the dynamic linker can't load libraries from {}, because it replaces {token}",
            libraries.display()
        );
    }
    // An empty entry of the list stands for the working directory.
    let list = existing("LD_LIBRARY_PATH").filter(|list| !list.is_empty());
    if let Some(rest) = list.and_then(|list| without(&list, search.as_bytes())) {
        search.push(":");
        search.push(rest);
    }
    let mut variables = vec![
        ("LD_PRELOAD", preload(libraries, existing("LD_PRELOAD").unwrap_or_default())),
        ("LD_LIBRARY_PATH", search),
        // The runtime of AddressSanitizer refuses to start if a preloaded library comes before it. The last option wins.
        ("ASAN_OPTIONS", append_option(existing("ASAN_OPTIONS"), "verify_asan_link_order=0")),
        ("ADVERB_SEED", options.seed.to_string().into()),
    ];
    let suppressions = libraries.join("tsan.supp");
    // A quote in the path would end the option's value, and ThreadSanitizer would read the rest as further options.
    let is_quotable = !suppressions.as_os_str().as_bytes().contains(&b'\'');
    if is_quotable && suppressions.is_file() {
        // If the user's options name a file, too, they follow, and the last one wins.
        let option = format!("suppressions='{}':print_suppressions=0", suppressions.display());
        variables.push(("TSAN_OPTIONS", prepend_option(&option, existing("TSAN_OPTIONS"))));
    }
    if let Some(device) = &options.device {
        variables.push(("ADVERB_DEVICE", format!("soft:{}", device.text).into()));
    }
    let faults = [
        ("ADVERB_LOSS", options.loss),
        ("ADVERB_REORDER", options.reorder),
        ("ADVERB_DUPLICATION", options.duplicate),
        ("ADVERB_CORRUPTION", options.corrupt),
        ("ADVERB_DELAY", options.delay),
    ];
    let given = faults.into_iter().filter_map(|(name, rate)| Some((name, rate?.to_string().into())));
    variables.extend(given);
    variables.extend(trace.map(|trace| ("ADVERB_TRACE", trace.into())));
    Ok(variables)
}

/// Returns the list of preloaded libraries: those of the user, then Adverb's. Runtimes such as AddressSanitizer's have to
/// come first.
fn preload(libraries: &Path, list: OsString) -> OsString {
    // The dynamic linker splits the list at these characters, which can't be escaped.
    let is_separator = |byte: &u8| b": ".contains(byte);
    // It finds names without a directory in the search path, which isn't split at spaces.
    let has_separator = libraries.as_os_str().as_bytes().iter().any(is_separator);
    let ours = LIBRARIES.map(|name| if has_separator { name.into() } else { libraries.join(name) });
    let is_ours = |entry: &Path| LIBRARIES.iter().any(|name| entry.file_name() == Some(name.as_ref()));
    let existing = list.as_bytes().split(is_separator).filter(|entry| !entry.is_empty());
    let existing = existing.map(|entry| PathBuf::from(OsStr::from_bytes(entry)));
    // If this command was started by itself, the list has its libraries already.
    let entries: Vec<OsString> =
        existing.filter(|entry| !is_ours(entry)).chain(ours).map(OsString::from).collect();
    entries.join(OsStr::new(":"))
}

/// Removes these entries from the start of a search path, or returns `None` if nothing is left. So a command that runs
/// in an environment of `adverb run` doesn't add its entries again.
fn without(list: &OsStr, entries: &[u8]) -> Option<OsString> {
    match list.as_bytes().strip_prefix(entries) {
        Some([]) => None,
        Some([b':', rest @ ..]) => Some(OsStr::from_bytes(rest).to_owned()),
        _ => Some(list.to_owned()),
    }
}

/// Appends an option to a list of a sanitizer's options, unless it is the last one.
fn append_option(list: Option<OsString>, option: &str) -> OsString {
    let Some(mut list) = list.filter(|list| !list.is_empty()) else { return option.into() };
    if !list.as_bytes().ends_with(option.as_bytes()) {
        list.push(":");
        list.push(option);
    }
    list
}

/// Prepends options to a list of a sanitizer's options, unless it starts with them.
fn prepend_option(option: &str, list: Option<OsString>) -> OsString {
    let Some(list) = list.filter(|list| !list.is_empty()) else { return option.into() };
    if list.as_bytes().starts_with(option.as_bytes()) {
        return list;
    }
    let mut options = OsString::from(option);
    options.push(":");
    options.push(list);
    options
}

/// The preloaded libraries.
const LIBRARIES: [&str; 2] = ["libadverb-paths.so", "libibverbs.so.1"];

/// Returns the directory of the libraries.
pub(crate) fn libraries(given: Option<&Path>) -> Result<PathBuf> {
    // The kernel has resolved symbolic links in this path.
    let command = env::current_exe().ok();
    let beside = command.as_deref().and_then(Path::parent);
    let mut named_count = 1;
    let candidates = match given {
        Some(given) => vec![given.to_owned()],
        None => {
            let named = env::var_os("ADVERB_LIBRARIES").map(PathBuf::from);
            named_count = usize::from(named.is_some());
            let near = beside.map(|directory| [directory.join("preload"), directory.join("../lib/adverb")]);
            named.into_iter().chain(near.into_iter().flatten()).collect()
        }
    };
    let found = candidates.iter().position(|directory| directory.join("libibverbs.so.1").is_file());
    let Some(found) = found else {
        let tried: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        bail!(
            "no libibverbs.so.1 of Adverb is in {}\nhint: `pip install adverb`, Adverb's Debian package and the \
             tarball of its release have the command with its libraries (`cargo install` has only the command); in \
             a checkout of Adverb, `cargo xtask preload` links them and prints their directory, for --libraries or \
             ADVERB_LIBRARIES",
            tried.join(" or ")
        );
    };
    let is_named = found < named_count;
    let context = || format!("{} is not accessible", candidates[found].display());
    let found = candidates[found].canonicalize().with_context(context)?;
    // If the command is in a directory of all users, such as /tmp, another user can put libraries beside it.
    if !is_named && !is_of_installation(&found, command.as_deref()).with_context(context)? {
        bail!(
            "the libraries in {} belong to another user\nhint: put the command in a directory that other users can't \
             change, or name the libraries in --libraries or ADVERB_LIBRARIES",
            found.display()
        );
    }
    Ok(found)
}

/// Whether the owner of the libraries is this user, root, or the owner of the command.
fn is_of_installation(libraries: &Path, command: Option<&Path>) -> io::Result<bool> {
    let owner = fs::metadata(libraries)?.uid();
    let is_commands = |command: &Path| fs::metadata(command).is_ok_and(|file| file.uid() == owner);
    Ok(owner::is_trusted(owner) || command.is_some_and(is_commands))
}

/// Parses the name of a software device.
fn device(name: &str) -> Result<DeviceName, String> {
    let text = name.strip_prefix("soft:").unwrap_or_default();
    // A link-local address is usually written with its interface, as in `fe80::7%eth0`.
    let address = text.split_once('%').map_or(text, |(address, _)| address).parse();
    let address = address.map_err(|_| "use `soft:` and an IP address of this machine")?;
    Ok(DeviceName { address, text: text.to_owned() })
}

/// Parses a percentage.
fn percentage(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches('%').parse().ok().filter(|value| (0.0..=100.0).contains(value));
    value.ok_or_else(|| "use a number from 0 to 100".to_owned())
}

/// Parses a number of milliseconds.
fn delay(text: &str) -> Result<f64, String> {
    let value = text.trim_end_matches("ms").parse().ok().filter(|value| (0.0..=10_000.0).contains(value));
    value.ok_or_else(|| "use a number of milliseconds from 0 to 10000".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parse(line: &str) -> Options {
        Cli::try_parse_from(line.split(' ')).unwrap().options
    }

    fn value(variables: &[(&'static str, OsString)], name: &str) -> Option<String> {
        let found = variables.iter().find(|(key, _)| *key == name)?;
        Some(found.1.to_string_lossy().into_owned())
    }

    #[test]
    fn options_become_variables() {
        let options = parse("env --device soft:127.0.0.9 --loss 0.5 --seed 7 --delay 2 --trace /t.html");
        let existing = |name: &str| match name {
            "LD_PRELOAD" => Some("/x/a.so b.so:/old/libibverbs.so.1".into()),
            "ASAN_OPTIONS" => Some("detect_leaks=0".into()),
            "LD_LIBRARY_PATH" => Some(OsString::new()),
            _ => None,
        };
        let trace = options.trace.clone();
        let variables = variables(&options, Path::new("/l"), trace, existing).unwrap();
        let value = |name| value(&variables, name);
        assert_eq!(value("LD_PRELOAD").unwrap(), "/x/a.so:b.so:/l/libadverb-paths.so:/l/libibverbs.so.1");
        assert_eq!(value("ASAN_OPTIONS").unwrap(), "detect_leaks=0:verify_asan_link_order=0");
        assert_eq!(value("LD_LIBRARY_PATH").unwrap(), "/l");
        assert_eq!(value("ADVERB_DEVICE").unwrap(), "soft:127.0.0.9");
        assert_eq!(value("ADVERB_LOSS").unwrap(), "0.5");
        assert_eq!(value("ADVERB_SEED").unwrap(), "7");
        assert_eq!(value("ADVERB_REORDER"), None);
        assert_eq!(value("ADVERB_DELAY").unwrap(), "2");
        assert_eq!(value("ADVERB_TRACE").unwrap(), "/t.html");
    }

    #[test]
    fn a_link_local_address_may_have_its_interface() {
        let options = parse("env --device soft:fe80::7%eth0");
        assert_eq!(options.device.as_ref().unwrap().address, "fe80::7".parse::<IpAddr>().unwrap());
        let variables = variables(&options, Path::new("/l"), None, |_| None).unwrap();
        assert_eq!(value(&variables, "ADVERB_DEVICE").unwrap(), "soft:fe80::7%eth0");
        for name in ["soft:%eth0", "soft:eth0", "fe80::7%eth0"] {
            assert!(device(name).is_err(), "{name}");
        }
    }

    #[test]
    fn libraries_in_a_directory_with_a_space_are_found_by_name() {
        let variables_for = |libraries: &str| {
            let existing = |name: &str| (name == "LD_LIBRARY_PATH").then(|| OsString::from("/u"));
            variables(&parse("env"), Path::new(libraries), None, existing)
        };
        let variables = variables_for("/my libs").unwrap();
        assert_eq!(value(&variables, "LD_PRELOAD").unwrap(), "libadverb-paths.so:libibverbs.so.1");
        assert_eq!(value(&variables, "LD_LIBRARY_PATH").unwrap(), "/my libs:/u");
        assert_eq!(value(&variables, "TSAN_OPTIONS"), None, "the directory has no suppressions");
        assert!(variables_for("/$HOME").is_ok());
        for libraries in ["/a:b", "/a;b", "/$LIB/a", "/a/${ORIGIN}", "/\u{fffd}$PLATFORMx"] {
            let error = variables_for(libraries).unwrap_err().to_string();
            assert!(error.contains(libraries), "{error}");
        }
    }

    #[test]
    fn libraries_of_other_users_are_not_found() {
        let libraries = env::temp_dir().join(format!("adverb-run-owner-{}", std::process::id()));
        fs::create_dir(&libraries).unwrap();
        let (own, other) = (env::current_exe().unwrap(), libraries.join("command"));
        fs::write(&other, "").unwrap();
        assert!(is_of_installation(&libraries, None).unwrap());
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&libraries, Some(1000), None).unwrap();
            assert!(!is_of_installation(&libraries, None).unwrap());
            assert!(!is_of_installation(&libraries, Some(&other)).unwrap());
            std::os::unix::fs::chown(&other, Some(1000), None).unwrap();
            assert!(is_of_installation(&libraries, Some(&other)).unwrap());
        } else {
            println!("skipped in part, because only root can give files to another user");
        }
        assert!(is_of_installation(own.parent().unwrap(), Some(&own)).unwrap());
        fs::remove_dir_all(&libraries).unwrap();
    }

    #[test]
    fn the_users_options_of_sanitizers_are_kept() {
        let libraries = env::temp_dir().join(format!("adverb-run-options-{}", std::process::id()));
        fs::create_dir(&libraries).unwrap();
        fs::write(libraries.join("tsan.supp"), "").unwrap();
        let existing =
            |name: &str| name.ends_with("SAN_OPTIONS").then(|| OsString::from("suppressions=mine"));
        let variables = variables(&parse("env"), &libraries, None, existing).unwrap();
        fs::remove_dir_all(&libraries).unwrap();
        let value = |name| value(&variables, name).unwrap();
        assert_eq!(value("ASAN_OPTIONS"), "suppressions=mine:verify_asan_link_order=0");
        let (tsan, file) = (value("TSAN_OPTIONS"), libraries.join("tsan.supp"));
        assert!(tsan.starts_with(&format!("suppressions='{}':", file.display())), "{tsan}");
        assert!(tsan.ends_with(":suppressions=mine"), "{tsan}");
    }

    #[test]
    fn an_environment_with_the_variables_stays_as_it_is() {
        let libraries = env::temp_dir().join(format!("adverb-run-again-{}", std::process::id()));
        fs::create_dir(&libraries).unwrap();
        fs::write(libraries.join("tsan.supp"), "").unwrap();
        for mut before in [Vec::new(), vec![("LD_LIBRARY_PATH", "/u".into()), ("ASAN_OPTIONS", "a=1".into())]]
        {
            before.extend([("LD_PRELOAD", "/x/a.so".into()), ("TSAN_OPTIONS", "b=1".into())]);
            let existing = |variables: &[(&'static str, OsString)], name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())
            };
            let once = variables(&parse("env"), &libraries, None, |name| existing(&before, name)).unwrap();
            let twice = variables(&parse("env"), &libraries, None, |name| existing(&once, name)).unwrap();
            assert_eq!(once, twice);
        }
        fs::remove_dir_all(&libraries).unwrap();
    }

    #[test]
    fn invalid_values_are_rejected() {
        assert!(device("mlx5_0").is_err() && device("soft:x").is_err());
        assert!(percentage("-1").is_err() && percentage("101").is_err() && percentage("NaN").is_err());
        assert!(delay("-1").is_err() && delay("1 s").is_err() && delay("10001").is_err());
    }
}
