//! Loading of the libraries at run time.

use std::error::Error;
use std::fmt;
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// An error that occurred while loading a library of rdma-core.
#[derive(Debug, Clone)]
pub struct LoadError {
    file: &'static str,
    reason: Reason,
}

#[derive(Debug, Clone)]
enum Reason {
    /// The dynamic linker didn't find the file, or couldn't load it. The string is its message.
    NotLoaded(String),
    /// The library lacks a symbol that rdma-core 17 and newer releases have.
    NoSymbol(String),
    /// The program is statically linked with musl, whose `dlopen` then always fails.
    Static,
}

impl LoadError {
    /// Returns the name of the library's file, such as `libibverbs.so.1`.
    pub fn file(&self) -> &str {
        self.file
    }

    /// Whether the dynamic linker could not load the file, most likely because rdma-core is not installed.
    pub fn is_not_installed(&self) -> bool {
        matches!(self.reason, Reason::NotLoaded(_))
    }

    /// Returns the packages to install, or another action to try.
    pub fn hint(&self) -> &'static str {
        match (&self.reason, self.file) {
            (Reason::NotLoaded(_), "librdmacm.so.1") => {
                "install librdmacm: `apt install librdmacm1` on Debian and Ubuntu, `dnf install librdmacm` on Fedora and \
                 RHEL, `zypper install librdmacm1` on SUSE, `pacman -S rdma-core` on Arch; if it is installed elsewhere, \
                 add its directory to LD_LIBRARY_PATH"
            }
            (Reason::NotLoaded(_), _) => {
                "install rdma-core: `apt install libibverbs1 ibverbs-providers` on Debian and Ubuntu, \
                 `dnf install libibverbs` on Fedora and RHEL, `zypper install libibverbs` on SUSE, \
                 `pacman -S rdma-core` on Arch; if it is installed elsewhere, add its directory to LD_LIBRARY_PATH"
            }
            (Reason::NoSymbol(_), _) => {
                "install rdma-core 17 or newer, and remove other libraries of this name from LD_LIBRARY_PATH"
            }
            (Reason::Static, _) => {
                "use a dynamically linked build of this program for RDMA NICs; this one has only the software NIC"
            }
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file;
        match &self.reason {
            Reason::NotLoaded(message) => write!(f, "loading {file} failed: {message}"),
            Reason::NoSymbol(symbol) => {
                write!(
                    f,
                    "loading {file} failed: it has no symbol {symbol}, so it is too old or not from rdma-core"
                )
            }
            Reason::Static => write!(f, "loading {file} failed: this program is statically linked"),
        }
    }
}

impl Error for LoadError {}

/// A library that stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct LoadedLibrary {
    file: &'static str,
    /// The library, which is never closed, because providers start threads and hold function pointers into it.
    library: ManuallyDrop<Library>,
}

/// Opens a library by the name that the dynamic linker knows.
pub(crate) fn open(file: &'static str) -> Result<LoadedLibrary, LoadError> {
    if cfg!(all(target_env = "musl", target_feature = "crt-static")) {
        return Err(LoadError { file, reason: Reason::Static });
    }
    // RTLD_NOW reports missing symbols here instead of during a later call. RTLD_LOCAL suffices, because providers and
    // librdmacm declare their own dependency on libibverbs. SAFETY: rdma-core's initializers have no preconditions;
    // linking with the library would run the same ones.
    let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    match library {
        Ok(library) => Ok(LoadedLibrary { file, library: ManuallyDrop::new(library) }),
        Err(error) => {
            // The text of libloading only names the call. Its source has the dynamic linker's message.
            let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Err(LoadError { file, reason: Reason::NotLoaded(message) })
        }
    }
}

impl LoadedLibrary {
    /// Returns the function with this name. The name ends with a NUL.
    ///
    /// # Safety
    ///
    /// `T` is a function pointer of the symbol's own type.
    pub(crate) unsafe fn required<T: Copy>(&self, name: &str) -> Result<T, LoadError> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.optional(name) }.ok_or_else(|| LoadError {
            file: self.file,
            reason: Reason::NoSymbol(name.trim_end_matches('\0').to_owned()),
        })
    }

    /// Returns the function with this name, if the library has it. The name ends with a NUL.
    ///
    /// If a symbol has several versions (most symbols of libibverbs have IBVERBS_1.0 and IBVERBS_1.1), this is the
    /// default version, which the linker would also select.
    ///
    /// # Safety
    ///
    /// `T` is a function pointer of the symbol's own type.
    pub(crate) unsafe fn optional<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller vouches for the type.
        let symbol = unsafe { self.library.get::<T>(name) };
        symbol.ok().map(|symbol| *symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_for_a_missing_library_names_the_packages() {
        let error = open("libnothing-of-adverb.so.1").unwrap_err();
        assert!(error.is_not_installed());
        assert_eq!(error.file(), "libnothing-of-adverb.so.1");
        let text = error.to_string();
        assert!(text.starts_with("loading libnothing-of-adverb.so.1 failed"), "{text}");
        assert!(text.contains("cannot open shared object file"), "{text}");
        assert!(error.hint().contains("apt install libibverbs1 ibverbs-providers"), "{}", error.hint());
    }

    #[test]
    fn hint_for_each_library_names_its_own_package() {
        let error = LoadError { file: "librdmacm.so.1", reason: Reason::NotLoaded("no such file".into()) };
        assert!(error.hint().contains("apt install librdmacm1"), "{}", error.hint());
        assert!(error.hint().contains("dnf install librdmacm`"), "{}", error.hint());
    }

    #[test]
    fn error_of_a_library_that_isnt_rdma_core_names_the_symbol() {
        let libc = open("libc.so.6").unwrap();
        // SAFETY: the symbol doesn't exist, so the type can't be wrong.
        let error = unsafe { libc.required::<unsafe extern "C" fn()>("ibv_get_device_list\0") }.unwrap_err();
        assert!(!error.is_not_installed());
        assert!(
            error.to_string().contains("loading libc.so.6 failed: it has no symbol ibv_get_device_list"),
            "{error}"
        );
        // SAFETY: as above.
        assert!(unsafe { libc.optional::<unsafe extern "C" fn()>("ibv_reg_dmabuf_mr\0") }.is_none());
    }
}
