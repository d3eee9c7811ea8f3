//! `cargo xtask preload`: links the shared libraries of adverb-preload, and tests them with rdma-core's own programs.

mod check;
mod environments;
mod matrix;
mod programs;
mod rdmacm;
mod storage;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use support::{paths, process};

/// The arguments of `cargo xtask preload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory of the libraries; by default `preload` in cargo's target directory.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Build without optimization.
    #[arg(long)]
    debug: bool,
    /// Run rdma-core's example programs on the libraries.
    #[arg(long)]
    check: bool,
    /// Run perftest and ucx_perftest on the libraries with many options, without loss and with 1 % loss.
    #[arg(long)]
    matrix: bool,
}

/// Builds the libraries, and tests them if the arguments ask for it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let directory = build(args.out.clone(), if args.debug { "dev" } else { "dist" })?;
    println!("{}", directory.display());
    if args.check {
        check::run(&directory)?;
    }
    if args.matrix { check::run_matrix(&directory) } else { Ok(()) }
}

/// Builds and tests the libraries without optimization, as CI does.
pub(crate) fn run_check() -> Result<()> {
    check::run(&build(None, "dev")?)
}

/// The program that links the libraries, and the libraries of the C compiler that they need, as its arguments.
#[derive(Debug)]
pub(crate) struct Linker {
    pub(crate) program: String,
    pub(crate) libraries: Vec<OsString>,
}

impl Default for Linker {
    /// Returns the linker for programs of this machine.
    fn default() -> Self {
        let libraries = ["-Wl,--as-needed", "-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];
        Self { program: "cc".to_owned(), libraries: libraries.map(OsString::from).to_vec() }
    }
}

/// The cargo command that compiles the libraries' code; the profile follows.
pub(crate) const CARGO: &str = "rustc -p adverb-preload --lib --crate-type staticlib --profile";

/// Builds the libraries for this machine and returns their directory.
pub(crate) fn build(out: Option<PathBuf>, profile: &str) -> Result<PathBuf> {
    build_with(process::cargo(&format!("{CARGO} {profile}")), &Linker::default(), out)
}

/// Compiles the libraries with a cargo command ([`CARGO`]), links them, and returns their directory.
pub(crate) fn build_with(mut cargo: Command, linker: &Linker, out: Option<PathBuf>) -> Result<PathBuf> {
    cargo.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let messages = process::text(&mut cargo)?;
    let archive = static_library(&messages).context("cargo built no static library")?;
    let directory = match out {
        Some(out) => out,
        None => archive.parent().context("the static library has no directory")?.join("preload"),
    };
    fs::create_dir_all(&directory)?;
    let package = paths::root().join("crates/adverb-preload");

    // libibverbs.so.1 has librdmacm's functions too, because there is one NIC per process.
    let versions = ["libibverbs.map", "librdmacm.map"].map(|name| fs::read_to_string(package.join(name)));
    let [verbs, cm] = versions;
    let (verbs, cm) = (verbs?, cm?);
    let script = directory.join("libibverbs.map");
    fs::write(&script, format!("{verbs}\n{cm}"))?;
    let mut cc = linker.command(&directory, "libibverbs.so.1", &script);
    // The archive's symbols are used only through the version script.
    cc.args(["-Wl,--whole-archive".as_ref(), archive.as_os_str(), "-Wl,--no-whole-archive".as_ref()]);
    cc.args(["-Wl,-u,adverb_at_exit", "-Wl,-fini=adverb_at_exit"]);
    cc.arg("-Wl,--gc-sections").args(&linker.libraries);
    process::run(&mut cc)?;
    fs::remove_file(&script)?;
    rdmacm(linker, &directory, &cm)?;
    paths(linker, &directory, &archive, &package.join("src/paths.rs"))?;
    providers(linker, &directory, &fs::read_to_string(package.join("providers.txt"))?)?;
    for suppressions in ["tsan.supp", "valgrind.supp"] {
        fs::copy(package.join(suppressions), directory.join(suppressions))?;
    }
    Ok(directory)
}

/// Links librdmacm.so.1. It has only symbol versions: the dynamic linker finds their symbols in libibverbs.so.1, which the
/// library needs. Its run path is its own directory, so that the dynamic linker doesn't take rdma-core's libibverbs.so.1.
fn rdmacm(linker: &Linker, directory: &Path, versions: &str) -> Result<()> {
    let (source, script) = (directory.join("librdmacm.c"), directory.join("librdmacm.map"));
    fs::write(&source, "/* no symbols */\n")?;
    fs::write(&script, versions)?;
    let mut cc = linker.command(directory, "librdmacm.so.1", &script);
    cc.arg("-Wl,-rpath,$ORIGIN").arg(&source);
    cc.arg("-Wl,--no-as-needed").arg(directory.join("libibverbs.so.1")).args(&linker.libraries);
    process::run(&mut cc)?;
    fs::remove_file(&source)?;
    Ok(fs::remove_file(&script)?)
}

/// Links the library that redirects paths. Its functions are aliases of those in the archive: under their own names, they
/// would replace the C library's functions in libibverbs too.
fn paths(linker: &Linker, directory: &Path, archive: &Path, source: &Path) -> Result<()> {
    let source = fs::read_to_string(source)?;
    let words = source.split_whitespace();
    let names: Vec<&str> = words.filter_map(|word| word.strip_prefix("adverb_paths_")).collect();
    ensure!(names.len() > 20, "the list of redirected functions has another form");
    let script = directory.join("paths.map");
    fs::write(&script, format!("{{ global: {}; local: *; }};\n", names.join("; ")))?;
    let mut cc = linker.command(directory, "libadverb-paths.so", &script);
    cc.args(names.iter().map(|name| format!("-Wl,--defsym={name}=adverb_paths_{name}")));
    cc.arg("-Wl,--gc-sections").arg(archive).args(&linker.libraries);
    process::run(&mut cc)?;
    Ok(fs::remove_file(&script)?)
}

/// Returns the path of the static library in cargo's messages.
fn static_library(messages: &str) -> Option<PathBuf> {
    let name = "libadverb_preload";
    let texts = messages.split('"');
    texts.rev().find(|text| text.contains(name) && text.ends_with(".a")).map(PathBuf::from)
}

impl Linker {
    /// Returns the command that links a shared library with a version script. Files and libraries follow.
    fn command(&self, directory: &Path, name: &str, script: &Path) -> Command {
        let mut cc = Command::new(&self.program);
        cc.arg("-shared").arg("-o").arg(directory.join(name));
        cc.arg(format!("-Wl,-soname,{name}"));
        cc.arg(format!("-Wl,--version-script={}", script.display()));
        cc.args(["-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,nodelete"]);
        cc
    }
}

/// Links the libraries of providers, whose functions fail with EOPNOTSUPP. `list` has lines with the library, the symbol
/// version, the function and its result.
fn providers(linker: &Linker, directory: &Path, list: &str) -> Result<()> {
    let mut libraries: BTreeMap<&str, Vec<[&str; 3]>> = BTreeMap::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [library, version, function, result] = words[..] else { bail!("no list of functions: {line}") };
        libraries.entry(library).or_default().push([version, function, result]);
    }
    for (library, functions) in libraries {
        let (source, script) =
            (directory.join(format!("{library}.c")), directory.join(format!("{library}.map")));
        let (code, versions) = stubs(&functions)?;
        fs::write(&source, code)?;
        fs::write(&script, versions)?;
        let mut cc = linker.command(directory, library, &script);
        process::run(cc.args(["-O1", "-fPIC"]).arg(&source).args(&linker.libraries))?;
        fs::remove_file(&source)?;
        fs::remove_file(&script)?;
    }
    Ok(())
}

/// Returns the C code of functions that fail, and their version script.
fn stubs(functions: &[[&str; 3]]) -> Result<(String, String)> {
    let mut code = "#include <errno.h>\n#include <stddef.h>\n".to_owned();
    let (mut script, mut previous) = (String::new(), None);
    for [version, function, result] in functions {
        let (ty, body) = match *result {
            "int" => ("int", "return EOPNOTSUPP;"),
            "pointer" => ("void *", "errno = EOPNOTSUPP; return NULL;"),
            "bool" => ("_Bool", "return 0;"),
            "void" => ("void", ""),
            other => bail!("the function {function} has the unknown result {other}"),
        };
        writeln!(code, "{ty} {function}(void) {{ {body} }}")?;
        if previous != Some(*version) {
            // Each version follows the one before it, as in rdma-core.
            let names = functions.iter().filter(|[of, ..]| of == version).map(|[_, name, _]| *name);
            let names: Vec<&str> = names.collect();
            let rest = if previous.is_none() { " local: *;" } else { "" };
            let parent = previous.map(|parent| format!(" {parent}")).unwrap_or_default();
            writeln!(script, "{version} {{ global: {};{rest} }}{parent};", names.join("; "))?;
            previous = Some(*version);
        }
    }
    ensure!(previous.is_some(), "the library has no functions");
    Ok((code, script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_get_their_versions_and_results() {
        let functions = [["V_1", "a", "int"], ["V_1", "b", "bool"], ["V_2", "c", "pointer"]];
        let (code, script) = stubs(&functions).unwrap();
        assert!(code.contains("int a(void) { return EOPNOTSUPP; }"), "{code}");
        assert!(code.contains("_Bool b(void) { return 0; }"), "{code}");
        assert_eq!(script, "V_1 { global: a; b; local: *; };\nV_2 { global: c; } V_1;\n");
        assert!(stubs(&[]).is_err());
        assert!(stubs(&[["V", "a", "float"]]).is_err());
    }

    #[test]
    fn the_static_library_is_found() {
        let messages = r#"{"filenames":["/t/libadverb_preload.rlib"]}
{"filenames":["/t/debug/libadverb_preload.a"]}"#;
        assert_eq!(static_library(messages), Some(PathBuf::from("/t/debug/libadverb_preload.a")));
    }
}
