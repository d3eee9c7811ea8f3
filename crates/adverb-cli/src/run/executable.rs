//! Programs that can't load Adverb's libraries, found by reading their files.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid};

/// A reason for which a program can't load the libraries.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The program has no dynamic linker.
    Static,
    /// The program has musl's dynamic linker, with this path.
    Musl(String),
    /// The program runs with other privileges than its caller, so the dynamic linker ignores LD_PRELOAD.
    Privileged,
}

/// A program's file, and the reason for which it can't load the libraries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) file: PathBuf,
    pub(super) obstacle: Obstacle,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.obstacle {
            Obstacle::Static => write!(
                f,
                "{file} is statically linked and can't load Adverb's libraries, so only programs that it starts use the \
                 device; link it dynamically to run it on the device"
            ),
            Obstacle::Musl(linker) => write!(
                f,
                "{file} is linked against musl ({linker}), whose dynamic linker can't load Adverb's libraries\nhint: \
                 build it against glibc"
            ),
            Obstacle::Privileged => write!(
                f,
                "{file} is setuid or setgid, so the dynamic linker ignores LD_PRELOAD and it can't use the device; run \
                 a copy without these mode bits"
            ),
        }
    }
}

/// Returns the reason why a program can't load the libraries, or `None` if it can. For a script, its interpreter is
/// examined. Files that can't be found or read have no known obstacle.
pub(super) fn find_obstacle(program: &OsStr) -> Option<Blocked> {
    let mut file = find(program)?;
    // Linux follows as many scripts.
    for _ in 0..5 {
        match interpreter(&file).ok()? {
            Some(next) => file = find(&next)?,
            None => break,
        }
    }
    let obstacle = obstacle(&file).ok()??;
    Some(Blocked { file, obstacle })
}

/// Returns the path of a program that is looked for in PATH.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let is_program =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0);
    env::split_paths(&env::var_os("PATH")?).map(|directory| directory.join(program)).find(is_program)
}

/// Returns the interpreter of a script or, if that is `env`, the program that `env` starts. Returns `None` for other files.
fn interpreter(file: &Path) -> io::Result<Option<OsString>> {
    let mut start = [0; 256];
    let length = File::open(file)?.read_at(&mut start, 0)?;
    let Some(line) = start[..length].strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words =
        line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let first = words.next();
    let is_env = first.is_some_and(|first| Path::new(first).file_name() == Some("env".as_ref()));
    let started = words.next().filter(|word| is_env && !word.as_bytes().starts_with(b"-"));
    Ok(started.or(first).map(OsStr::to_owned))
}

/// Returns the obstacle of an executable in ELF. Executables for 32 bits aren't examined.
fn obstacle(path: &Path) -> io::Result<Option<Obstacle>> {
    let file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    let is_64_bit_elf = header.starts_with(b"\x7fELF\x02") && header[5] == NATIVE_BYTE_ORDER;
    if !is_64_bit_elf {
        return Ok(None);
    }
    let segments = number(&header, 32);
    let (size, count) = (half(&header, 54), half(&header, 56));
    let mut linker = None;
    for index in 0..u64::from(count) {
        let mut segment = [0; 56];
        file.read_exact_at(&mut segment, segments.saturating_add(index * u64::from(size)))?;
        if segment[..4] == PT_INTERP.to_ne_bytes() {
            let mut text = vec![0; usize::try_from(number(&segment, 32)).unwrap_or(0).min(4096)];
            file.read_exact_at(&mut text, number(&segment, 8))?;
            linker = Some(String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned());
        }
    }
    // A user may start the dynamic linker with a program as its argument. The linker itself names no linker.
    let is_linker = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld"));
    Ok(match linker {
        None if !is_linker => Some(Obstacle::Static),
        Some(linker) if linker.contains("/ld-musl") => Some(Obstacle::Musl(linker)),
        _ if is_privileged(&file)? => Some(Obstacle::Privileged),
        _ => None,
    })
}

/// Whether an executable runs with another user or group than this process.
fn is_privileged(file: &File) -> io::Result<bool> {
    let file = file.metadata()?;
    let is_setuid = file.mode() & 0o4000 != 0 && file.uid() != geteuid().as_raw();
    // Without the group's permission to execute, the bit has another meaning.
    let is_setgid = file.mode() & 0o2010 == 0o2010 && file.gid() != getegid().as_raw();
    Ok(is_setuid || is_setgid)
}

/// Returns the number of 8 bytes at a place.
fn number(bytes: &[u8], place: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[place..place + 8]);
    u64::from_ne_bytes(number)
}

/// Returns the number of 2 bytes at a place.
fn half(bytes: &[u8], place: usize) -> u16 {
    u16::from_ne_bytes([bytes[place], bytes[place + 1]])
}

/// The segment that contains the path of the dynamic linker.
const PT_INTERP: u32 = 3;

/// ELF's code for the byte order of this machine.
const NATIVE_BYTE_ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };
