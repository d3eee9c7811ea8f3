//! `adverb run` around a program: signals, files, and programs that can't use the device. The programs aren't built against
//! libibverbs, so the libraries are empty files, which the dynamic linker ignores.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

/// A directory with libraries, which is removed when this is dropped.
struct Directory(PathBuf);

impl Directory {
    fn create(name: &str) -> Directory {
        // Some tests cover the directories for temporary files.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("libibverbs.so.1"), "").unwrap();
        Directory(path)
    }

    /// Returns the words of `adverb run`, with these options.
    fn words(&self, options: &[&str]) -> Vec<String> {
        let libraries = self.0.to_str().unwrap();
        let command = [env!("CARGO_BIN_EXE_adverb"), "run", "--libraries", libraries];
        command.iter().chain(options).map(|word| (*word).to_owned()).collect()
    }

    fn run(&self, options: &[&str]) -> Output {
        let words = self.words(options);
        Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output().unwrap()
    }

    /// Compiles a program, with these options of the compiler, and returns its path.
    fn compile(&self, options: &[&str]) -> String {
        let (source, program) = (self.0.join("program.c"), self.0.join("program"));
        fs::write(&source, "int main(void) { return 7; }\n").unwrap();
        let status = Command::new("cc").args(options).arg("-o").arg(&program).arg(source).status().unwrap();
        assert!(status.success());
        program.to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Returns the standard error, in one line.
fn errors(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_signal_for_the_command_ends_the_program() {
    let directory = Directory::create("signal");
    let words = directory.words(&["--quiet", "--", "sh", "-c", "echo started; exec sleep 60"]);
    let mut command = Command::new(&words[0]);
    let mut run = command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let status = run.wait().unwrap();
    // The status of a program that SIGTERM ended. A program that blocks it ends later with status 0.
    assert_eq!(status.code(), Some(128 + 15), "{status:?}");
}

#[test]
fn a_program_handles_the_interrupt_of_a_terminal_itself() {
    let directory = Directory::create("terminal");
    let terminal = openpty(None, None).unwrap();
    let script = "trap 'echo cleaning; sleep 0.3; exit 9' INT; echo started; while true; do sleep 0.05; done";
    let words = directory.words(&["--quiet", "--", "sh", "-c", script]);
    let mut command = Command::new("setsid");
    // The terminal of the standard input becomes that of the new session.
    command.args(["--ctty", "--wait"]).args(words).stdin(terminal.slave).stderr(Stdio::null());
    let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    // Ctrl-C.
    fs::File::from(terminal.master.try_clone().unwrap()).write_all(b"\x03").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "cleaning");
    assert_eq!(run.wait().unwrap().code(), Some(9));
}

#[test]
fn a_recording_that_cannot_be_written_is_refused_before_the_program_starts() {
    let directory = Directory::create("trace");
    let path = directory.0.to_str().unwrap();
    for (trace, cause) in
        [(format!("{path}/absent/trace.html"), "No such file"), (path.to_owned(), "it is a directory")]
    {
        let output = directory.run(&["--trace", &trace, "--", "echo", "started"]);
        let errors = errors(&output);
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{errors}");
        assert!(errors.contains(&trace) && errors.contains(cause), "{errors}");
    }
    let trace = directory.0.join("trace.html");
    fs::write(&trace, "an earlier recording").unwrap();
    let output = directory.run(&["--trace", trace.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(!trace.exists(), "no process opened the device");
}

#[test]
fn the_program_runs_without_a_writable_directory() {
    let directory = Directory::create("read-only");
    let script = "mount -t tmpfs -o ro none /tmp && mount -t tmpfs -o ro none /dev/shm && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).stdin(Stdio::null());
    let attempt = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).output();
    if !attempt.is_ok_and(|output| output.status.success()) {
        println!("skipped, because this machine permits no user and mount namespaces");
        return;
    }
    let words = directory.words(&["--", "sh", "-c", "test -z \"$ADVERB_SYSFS$ADVERB_REPORT\" && exit 5"]);
    let output = unshare.args(words).env_remove("TMPDIR").env_remove("XDG_RUNTIME_DIR").output().unwrap();
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(5), "{errors}");
    for text in ["/tmp: Read-only file system", "/dev/shm: Read-only file system", "TMPDIR"] {
        assert!(errors.contains(text), "{errors}");
    }
}

#[test]
fn a_static_program_runs_with_a_message() {
    let directory = Directory::create("static");
    let program = directory.compile(&["-static"]);
    let output = directory.run(&["--", &program]);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains(&format!("{program} is statically linked")), "{text}");
    assert!(
        text.contains("no process opened the device. Either no program called ibv_open_device"),
        "{text}"
    );

    // The program is the interpreter of a script.
    let script = directory.0.join("script");
    fs::write(&script, format!("#!{program} -x\n")).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let text = errors(&directory.run(&["--", script.to_str().unwrap()]));
    assert!(text.contains(&format!("{program} is statically linked")), "{text}");
}

#[test]
fn a_program_for_musl_is_not_started() {
    let directory = Directory::create("musl");
    let program = directory.compile(&["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    let output = directory.run(&["--", &program]);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let message = format!("{program} is linked against musl (/lib/ld-musl-x86_64.so.1)");
    assert!(text.contains(&message) && text.contains("hint: build it against glibc"), "{text}");
}

#[test]
fn a_privileged_program_runs_with_a_message() {
    if !geteuid().is_root() {
        println!("skipped, because only root can create another user's program");
        return;
    }
    let directory = Directory::create("setuid");
    let program = directory.compile(&[]);
    let text = errors(&directory.run(&["--", &program]));
    assert!(!text.contains(&program), "{text}");
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    let output = directory.run(&["--", &program]);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains(&format!("{program} is setuid or setgid")), "{text}");
}

#[test]
fn a_dynamic_linker_and_scripts_of_env_have_no_obstacle() {
    let directory = Directory::create("dynamic");
    let program = directory.compile(&[]);
    let script = directory.0.join("script");
    fs::write(&script, "#!/usr/bin/env sh\nexit 7\n").unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let linker = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let linker = linker.iter().copied().find(|path| Path::new(path).exists());
    let script = [script.to_str().unwrap()];
    for command in [&[&*program][..], &script, &[linker.unwrap(), &program]] {
        let output = directory.run(&[&["--quiet", "--"], command].concat());
        assert_eq!(output.status.code(), Some(7), "{command:?}");
        assert!(!errors(&output).contains("linked"), "{}", errors(&output));
    }
}

/// Installs the command in a directory as packages do, and returns its path.
fn install(prefix: &Path) -> PathBuf {
    let (bin, libraries) = (prefix.join("bin"), prefix.join("lib/adverb"));
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(&libraries).unwrap();
    fs::write(libraries.join("libibverbs.so.1"), "").unwrap();
    let command = bin.join("adverb");
    fs::copy(env!("CARGO_BIN_EXE_adverb"), &command).unwrap();
    command
}

/// Runs a command without the variables that name libraries and directories.
fn output_in(temporary: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_remove("ADVERB_LIBRARIES").env_remove("XDG_RUNTIME_DIR");
    command.env("TMPDIR", temporary).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_command_finds_the_libraries_of_its_package_through_links() {
    let directory = Directory::create("links");
    let prefix = directory.0.join("a prefix");
    let command = install(&prefix);
    let [link, second] = ["link", "second"].map(|name| directory.0.join(name));
    std::os::unix::fs::symlink(&command, &link).unwrap();
    std::os::unix::fs::symlink("link", &second).unwrap();
    let expected = format!("{}:{}\n", prefix.join("lib/adverb").display(), "/own");
    for path in [&command, &link, &second] {
        let script = "LD_LIBRARY_PATH=/own exec \"$0\" run --quiet -- printenv LD_LIBRARY_PATH";
        let output = output_in(&directory.0, &["sh", "-c", script, path.to_str().unwrap()]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", errors(&output));
    }

    fs::remove_dir_all(prefix.join("lib")).unwrap();
    let output = output_in(&directory.0, &[command.to_str().unwrap(), "run", "true"]);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("a prefix/bin/../lib/adverb hint: `pip install adverb`"), "{text}");
}

#[test]
fn a_shell_gets_the_environment_of_a_run() {
    let directory = Directory::create("env");
    let command = install(&directory.0.join("a'prefix"));
    let command = command.to_str().unwrap();
    let variables = |script: &str| {
        let script =
            format!("{script}printenv | grep -E '^(ADVERB_|LD_|[AT]SAN)' | grep -v ADVERB_REPORT | sort");
        let output = output_in(&directory.0, &["sh", "-c", &script, command]);
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let options = "--loss 1 --seed 7 --device soft:127.0.0.9";
    let evaluate = format!("eval \"$(\"$0\" env {options})\"; ");
    let once = variables(&evaluate);
    assert!(once.contains("ADVERB_LOSS=1\n") && once.contains("ADVERB_SEED=7\n"), "{once}");
    assert_eq!(variables(&format!("{evaluate}{evaluate}")), once, "a second time changes nothing");
    assert_eq!(variables(&format!("eval \"$(\"$0\" run --print-env {options})\"; ")), once);

    // The variables are those of a run, which has a directory of its own.
    let without_sysfs = |text: &str| {
        text.lines().filter(|line| !line.contains("SYSFS=")).map(str::to_owned).collect::<Vec<_>>()
    };
    let root = once.lines().find_map(|line| line.strip_prefix("ADVERB_SYSFS=")).unwrap();
    assert!(
        root.starts_with(directory.0.join(format!("adverb-env-{}/127.0.0.9", geteuid())).to_str().unwrap())
    );
    let state = Path::new(root).join("sys/class/infiniband/adverb0/ports/1/state");
    assert_eq!(fs::read_to_string(state).unwrap(), "4: ACTIVE\n");
    let script =
        format!("exec \"$0\" run --quiet {options} -- sh -c 'printenv' | grep -E '^(ADVERB_|LD_|[AT]SAN)'");
    let output = output_in(&directory.0, &["sh", "-c", &script, command]);
    let mut run = without_sysfs(&String::from_utf8(output.stdout).unwrap());
    run.retain(|line| !line.starts_with("ADVERB_REPORT="));
    run.sort();
    let mut printed = without_sysfs(&once);
    printed.sort();
    assert_eq!(run, printed);
}

#[test]
fn the_list_for_cmake_and_the_document_have_the_same_variables() {
    let directory = Directory::create("formats");
    let command = install(&directory.0.join("prefix"));
    let print = |format: &str| {
        let words = [command.to_str().unwrap(), "env", "--delay", "2", "--format", format];
        String::from_utf8(output_in(&directory.0, &words).stdout).unwrap()
    };
    let document: serde_json::Value = serde_json::from_str(&print("json")).unwrap();
    let variables = document["variables"].as_object().unwrap().iter();
    let list: Vec<String> =
        variables.map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
    assert!(list.contains(&"ADVERB_DELAY=2".to_owned()), "{list:?}");
    assert_eq!(print("cmake"), list.join(";") + "\n");
    let output = output_in(&directory.0, &[command.to_str().unwrap(), "run", "--format", "json", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("no effect without --print-env"), "{}", errors(&output));
}
