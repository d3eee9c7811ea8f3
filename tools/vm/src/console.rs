//! Problems of the guest's kernel, and its console output.

use std::fmt;

/// A problem of the guest's kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum KernelProblem {
    /// A kernel warning (`WARN_ON`).
    Warning,
    /// A kernel oops (`BUG`, a bad pointer), which kills the current process.
    Oops,
}

impl KernelProblem {
    /// Returns the worst problem in the flags of `/proc/sys/kernel/tainted`, which don't depend on the log level or the
    /// wording of messages (the kernel's Documentation/admin-guide/tainted-kernels.rst).
    pub(super) fn from_taint(flags: u64) -> Option<Self> {
        const DIED: u64 = 1 << 7;
        const WARNED: u64 = 1 << 9;
        if flags & DIED != 0 {
            Some(Self::Oops)
        } else if flags & WARNED != 0 {
            Some(Self::Warning)
        } else {
            None
        }
    }

    /// Returns the worst problem in the console output, for a guest that can no longer report its flags.
    pub(super) fn from_console(text: &str) -> Option<Self> {
        let contains_any = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
        if contains_any(&["Kernel panic", "BUG: ", "Oops: ", "general protection fault"]) {
            Some(Self::Oops)
        } else if contains_any(&["WARNING: CPU: "]) {
            Some(Self::Warning)
        } else {
            None
        }
    }
}

impl fmt::Display for KernelProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "a WARNING",
            Self::Oops => "an OOPS",
        })
    }
}

/// Converts the bytes of a serial console to text for a log: without carriage returns, escape sequences (the firmware
/// clears the screen) and other control characters.
pub(super) fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_escape_sequence(&mut chars),
            '\n' | '\t' => clean.push(c),
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    clean
}

/// Skips the rest of an escape sequence: `[`, parameters and a final letter; or one character.
fn skip_escape_sequence(chars: &mut std::str::Chars<'_>) {
    if chars.next() == Some('[') {
        chars.find(|c| ('@'..='~').contains(c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oops_outranks_a_warning_and_other_flags_are_ignored() {
        assert_eq!(KernelProblem::from_taint(0), None);
        assert_eq!(KernelProblem::from_taint(1 << 12 | 1 << 13), None);
        assert_eq!(KernelProblem::from_taint(512), Some(KernelProblem::Warning));
        assert_eq!(KernelProblem::from_taint(128 | 512), Some(KernelProblem::Oops));
    }

    #[test]
    fn problems_are_found_in_the_console_output() {
        let warning =
            "[ 1.0] ------------[ cut here ]------------\n[ 1.0] WARNING: CPU: 0 PID: 9 at rxe_qp.c:8\n";
        let oops = "[ 1.0] BUG: kernel NULL pointer dereference, address: 0000000000000008\n";
        assert_eq!(KernelProblem::from_console("[ 1.0] infiniband rxe0: set active\n"), None);
        assert_eq!(KernelProblem::from_console(warning), Some(KernelProblem::Warning));
        assert_eq!(KernelProblem::from_console(&format!("{warning}{oops}")), Some(KernelProblem::Oops));
    }

    #[test]
    fn console_text_has_no_control_characters() {
        assert_eq!(readable(b"\x1bc\x1b[?7l\x1b[2Jhello\r\n\tworld\x00\r\n"), "hello\n\tworld\n");
        assert_eq!(readable(b"cut \x1b["), "cut ");
    }
}
