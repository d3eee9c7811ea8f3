//! The process that an object belongs to.

/// The process that created an object.
///
/// In a forked child, the object still belongs to the parent: dropping it there must change nothing of the parent's, and
/// must not wait, because threads that the child doesn't have may hold the object's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// Returns this process.
    pub fn current() -> OwnerProcess {
        OwnerProcess(std::process::id())
    }

    /// Whether this process is the owner, and not a forked child.
    pub fn is_current(self) -> bool {
        self.0 == std::process::id()
    }
}
