//! What developers type.
fn main() {}
