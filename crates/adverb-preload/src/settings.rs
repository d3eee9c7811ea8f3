//! The configuration of the device, from environment variables.

use std::fs::OpenOptions;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use adverb_soft::link::{FaultConfig, Interface, UdpConfig};

/// The configuration of a process's device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Settings {
    /// The address, or `None` for 127.0.0.1 or, if that isn't free, the user's own address of 127.0.0.0/8.
    pub(crate) address: Option<IpAddr>,
    /// Whether each process has a device of its own.
    pub(crate) is_exclusive: bool,
    /// The faults that the link injects, if any.
    pub(crate) faults: Option<FaultConfig>,
    /// The file of a recording.
    pub(crate) trace: Option<PathBuf>,
    /// The directory of reports.
    pub(crate) report: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment variables.
    ///
    /// # Errors
    ///
    /// Returns a message if a variable has an invalid value.
    pub(crate) fn from_environment() -> Result<Settings, String> {
        // A program with more privileges than its user doesn't write files that the user names.
        // SAFETY: the function has no preconditions.
        let is_privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let settings = Settings::parse(|name| std::env::var(name).ok().filter(|_| !is_privileged))?;
        Ok(Settings { is_exclusive: !is_privileged && UdpConfig::is_exclusive_requested(), ..settings })
    }

    /// Whether this process is the first of an `adverb run` that calls this function, so that a message is written once.
    pub(crate) fn is_first_to_report(&self, subject: &str) -> bool {
        let Some(directory) = &self.report else { return true };
        let mut options = OpenOptions::new();
        let created = options.write(true).create_new(true).mode(0o600).open(directory.join(subject));
        !matches!(created, Err(error) if error.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Reads variables.
    fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let address = match variable("ADVERB_DEVICE").as_deref() {
            None | Some("" | "soft") => None,
            Some(name) => Some(device_address(name).ok_or_else(|| {
                format!("ADVERB_DEVICE is {name:?}: use `soft:` and an IP address of this machine")
            })?),
        };
        let rate = |name: &str| -> Result<u32, String> {
            let Some(text) = variable(name) else { return Ok(0) };
            let percentage = text.trim_end_matches('%').parse::<f64>().ok();
            let percentage = percentage.filter(|percentage| (0.0..=100.0).contains(percentage));
            let percentage =
                percentage.ok_or_else(|| format!("{name} is {text:?}: use a percentage from 0 to 100"))?;
            Ok((percentage * 10_000.0).round() as u32)
        };
        let seed = match variable("ADVERB_SEED") {
            None => 0,
            Some(text) => {
                text.parse().map_err(|_| format!("ADVERB_SEED is {text:?}: use an unsigned number"))?
            }
        };
        let mut faults = FaultConfig::new(seed);
        // Peers may be other implementations of RoCEv2, whose IPv4 IDs are arbitrary.
        faults.strict_icrc = false;
        faults.loss_ppm = rate("ADVERB_LOSS")?;
        faults.duplication_ppm = rate("ADVERB_DUPLICATION")?;
        faults.corruption_ppm = rate("ADVERB_CORRUPTION")?;
        faults.delay_ppm = rate("ADVERB_REORDER")?;
        let sum = u64::from(faults.loss_ppm)
            + u64::from(faults.duplication_ppm)
            + u64::from(faults.corruption_ppm)
            + u64::from(faults.delay_ppm);
        if sum > 1_000_000 {
            return Err("the percentages of faults exceed 100".to_owned());
        }
        if let Some(text) = variable("ADVERB_DELAY") {
            let seconds = text.parse::<f64>().ok().map(|milliseconds| milliseconds / 1000.0);
            let delay = seconds.filter(|seconds| (0.0..=MAX_DELAY).contains(seconds));
            let delay = delay.ok_or_else(|| {
                format!("ADVERB_DELAY is {text:?}: use a number of milliseconds up to {}", MAX_DELAY * 1000.0)
            })?;
            faults.latency = Duration::from_secs_f64(delay);
        }
        let is_faulty = sum > 0 || !faults.latency.is_zero();
        let path = |name| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(Settings {
            address,
            is_exclusive: false,
            faults: is_faulty.then_some(faults),
            trace: path("ADVERB_TRACE"),
            report: path("ADVERB_REPORT"),
        })
    }
}

/// Parses the name of a device. A link-local address is usually written with its interface, as in `soft:fe80::7%eth0`.
fn device_address(name: &str) -> Option<IpAddr> {
    let address = name.strip_prefix("soft:").unwrap_or(name);
    let Some((address, wanted)) = address.split_once('%') else { return address.parse().ok() };
    let address = address.parse().ok()?;
    let interface = Interface::of(address).ok()?;
    (interface.name == wanted || interface.index.to_string() == wanted).then_some(address)
}

/// The maximum delay of packets in seconds.
const MAX_DELAY: f64 = 10.0;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::parse(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_parsed() {
        assert_eq!(parse(&[]), Ok(Settings::default()));
        let settings = parse(&[
            ("ADVERB_DEVICE", "soft:127.3.2.1"),
            ("ADVERB_LOSS", "0.5"),
            ("ADVERB_CORRUPTION", "1%"),
            ("ADVERB_SEED", "7"),
            ("ADVERB_TRACE", "/tmp/t.html"),
        ]);
        let settings = settings.unwrap();
        assert_eq!(settings.address, Some("127.3.2.1".parse().unwrap()));
        let faults = settings.faults.unwrap();
        assert_eq!((faults.seed, faults.loss_ppm, faults.corruption_ppm), (7, 5_000, 10_000));
        assert_eq!(settings.trace, Some("/tmp/t.html".into()));
        let delayed = parse(&[("ADVERB_DELAY", "1.5")]).unwrap().faults.unwrap();
        assert_eq!((delayed.loss_ppm, delayed.latency), (0, Duration::from_micros(1500)));
    }

    #[test]
    fn an_address_may_have_its_interface() {
        let address: IpAddr = "::1".parse().unwrap();
        let Interface { name, index, .. } = Interface::of(address).unwrap();
        for name in [format!("soft:::1%{name}"), format!("::1%{index}")] {
            assert_eq!(parse(&[("ADVERB_DEVICE", &name)]).unwrap().address, Some(address), "{name}");
        }
    }

    #[test]
    fn invalid_values_are_named() {
        for (name, value) in [
            ("ADVERB_DEVICE", "eth0"),
            ("ADVERB_DEVICE", "soft:::1%absent"),
            ("ADVERB_LOSS", "-1"),
            ("ADVERB_REORDER", "101"),
            ("ADVERB_SEED", "x"),
            ("ADVERB_DELAY", "-1"),
            ("ADVERB_DELAY", "10001"),
        ] {
            let error = parse(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
        assert!(parse(&[("ADVERB_LOSS", "60"), ("ADVERB_REORDER", "60")]).is_err());
    }

    #[test]
    fn a_program_with_more_privileges_than_its_user_ignores_the_variables() {
        // SAFETY: the function has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: only root can make a program that runs as root");
            return;
        }
        let directory = std::env::temp_dir().join(format!("adverb-setuid-{}", std::process::id()));
        let program = directory.join("program");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let outputs = [0o755, 0o4755].map(|mode| {
            fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            let mut command = Command::new(&program);
            command.args(["--exact", "settings::tests::prints_its_settings", "--ignored", "--nocapture"]);
            command.env("ADVERB_REPORT", "/reports").env("ADVERB_EXCLUSIVE", "1").current_dir("/");
            String::from_utf8(command.uid(65_534).gid(65_534).output().unwrap().stdout).unwrap()
        });
        fs::remove_dir_all(&directory).unwrap();
        let settings =
            Settings { is_exclusive: true, report: Some("/reports".into()), ..Settings::default() };
        assert!(outputs[0].contains(&format!("user 65534: {settings:?}\n")), "{}", outputs[0]);
        if outputs[1].contains("user 65534") {
            println!("skipped: programs in the directory for temporary files get no privileges");
            return;
        }
        assert!(outputs[1].contains(&format!("user 0: {:?}\n", Settings::default())), "{}", outputs[1]);
    }

    #[test]
    #[ignore = "run by a_program_with_more_privileges_than_its_user_ignores_the_variables"]
    fn prints_its_settings() {
        // SAFETY: the function has no preconditions.
        let user = unsafe { libc::geteuid() };
        println!("\nuser {user}: {:?}", Settings::from_environment().unwrap());
    }
}
